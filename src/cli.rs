//! The command line: what each subcommand is given, and the exit codes.
//!
//! Exit codes of `bridge` (`plugin-stdio.md`): 0 the call is over in any orderly way, 1 a fault of ours, 2 bad input, 3 the
//! relay refused the grant.

mod bridge;

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

use crate::parent::{helper, install};
use crate::relay::{self, args::RelayArgs};

/// Carries an Apple Watch's call to a realtime voice engine, sealed, through a relay it does not trust.
#[derive(Parser)]
#[command(name = "watch-audio", version)]
struct Args {
    /// What goes to stderr: warnings, of a relay also its news. No level ever shows a secret or what was said.
    #[arg(long, global = true, value_enum)]
    log_level: Option<LogLevel>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one Watch call: JSON lines on stdin and stdout, spawned by the plugin for each call.
    Bridge {
        /// Take the sign-ins from the files named in this one, instead of asking the parent for them.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Hold one GPT-Live call for a plugin that speaks the WebRTC helper's frames on stdin and stdout.
    Helper {
        /// Put this program where the plugin looks for its helper, or into DIR; nothing else is run.
        #[arg(long, value_name = "DIR", conflicts_with = "uninstall")]
        install: Option<Option<PathBuf>>,
        /// Take it away again.
        #[arg(long, value_name = "DIR")]
        uninstall: Option<Option<PathBuf>>,
        /// Whatever else the plugin says is ignored.
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Run a relay: it passes sealed messages between hosts and Watches and can open none of them.
    Relay(Box<RelayArgs>),
}

#[derive(Clone, Copy, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Runs the command line `args`, the program's name first, and gives the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.first().is_some_and(|name| helper::invoked_as_helper(name)) {
        prepare(LogLevel::Warn);
        return block_on(Builder::new_current_thread(), helper::run());
    }
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            // Nobody is left to tell when even this cannot be printed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT));
        }
    };
    let usual = if matches!(args.command, Command::Relay(_)) { LogLevel::Info } else { LogLevel::Warn };
    prepare(args.log_level.unwrap_or(usual));
    match args.command {
        Command::Bridge { config } => block_on(Builder::new_current_thread(), bridge::run(config)),
        Command::Helper { install: Some(folder), .. } => tell(install::install(folder.as_deref()), "installed in"),
        Command::Helper { uninstall: Some(folder), .. } => tell(install::uninstall(folder.as_deref()), "removed from"),
        Command::Helper { .. } => block_on(Builder::new_current_thread(), helper::run()),
        Command::Relay(args) => block_on(Builder::new_multi_thread(), relay::args::run(*args)),
    }
}

/// Says on stderr what became of an installation.
fn tell(done: Result<PathBuf, install::InstallError>, what: &str) -> ExitCode {
    let (line, code) = match done {
        Ok(folder) => (format!("The helper is {what} {}.", folder.display()), ExitCode::SUCCESS),
        Err(error) => (format!("{error}"), ExitCode::from(FAULT)),
    };
    eprintln!("{line}");
    code
}

/// What every subcommand needs: logs on stderr, panics without what they hold.
fn prepare(level: LogLevel) {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    // Our own words only: a library's debug lines may show a request with its bearer.
    let filter = EnvFilter::new(format!("watch_audio={level},watch_audio_media={level}"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // Both were set already when a test runs two command lines in one process.
    let _ = log.try_init();
    panic::set_hook(Box::new(note_panic));
}

/// Says where a panic was, and not what it says: that may hold what was being worked on.
fn note_panic(panic: &PanicHookInfo<'_>) {
    if let Some(place) = panic.location() {
        tracing::error!(file = place.file(), line = place.line(), "a fault of ours");
    }
}

/// Runs one subcommand to its end. Whatever still blocks then ends with the process.
fn block_on(mut runtime: Builder, run: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return ExitCode::from(FAULT);
        }
    };
    let exit = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(run)));
    runtime.shutdown_background();
    exit.unwrap_or(ExitCode::from(FAULT))
}

/// A fault of ours.
const FAULT: u8 = 1;

/// What we were given cannot be used.
const BAD_INPUT: u8 = 2;

/// The relay refused the grant.
const REFUSED: u8 = 3;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A log that a test reads.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn case_55_a_panic_says_where_and_not_what() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let before = panic::take_hook();
        panic::set_hook(Box::new(note_panic));
        let fault = tracing::subscriber::with_default(subscriber, || {
            panic::catch_unwind(|| panic!("the bearer is {}", "secret-bearer"))
        });
        panic::set_hook(before);
        assert!(fault.is_err());
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(log.contains("src/cli.rs") && !log.contains("secret-bearer"), "{log}");
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
        let bad = |args: &[&str]| Args::try_parse_from(args).is_err_and(|error| error.exit_code() == 2);
        assert!(bad(&["watch-audio"]) && bad(&["watch-audio", "bridge", "--key", "secret"]));
        assert!(Args::try_parse_from(["watch-audio", "bridge", "--config", "f", "--log-level", "trace"]).is_ok());
    }
}
