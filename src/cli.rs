//! The command line: what each subcommand is given, and the exit codes.
//!
//! Exit codes of `bridge` (`plugin-stdio.md`): 0 the call is over in any orderly way, 1 a fault of ours, 2 bad input, 3 the
//! relay refused the grant.

mod bridge;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

use crate::descriptors;
use crate::doctor::{self, DoctorArgs};
use crate::log::{self, LogLevel};
use crate::parent::{helper, install};
use crate::relay::{self, args::RelayArgs};
use crate::voice::{self, args::VoiceArgs};

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
    /// Hold calls with GPT-Live from a page in the browser; what they ask for is done by Hermes.
    Voice(Box<VoiceArgs>),
    /// Look at what this host has and lacks for a call: sign-ins, relay, network, slots, folders, limits.
    Doctor(Box<DoctorArgs>),
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
    let level = args.log_level.unwrap_or(usual);
    prepare(level);
    match args.command {
        Command::Bridge { config } => block_on(Builder::new_current_thread(), bridge::run(config)),
        Command::Helper { install: Some(folder), .. } => tell(install::install(folder.as_deref()), "installed in"),
        Command::Helper { uninstall: Some(folder), .. } => tell(install::uninstall(folder.as_deref()), "removed from"),
        Command::Helper { .. } => block_on(Builder::new_current_thread(), helper::run()),
        Command::Relay(args) => block_on(Builder::new_multi_thread(), relay::args::run(*args)),
        Command::Voice(args) => block_on(Builder::new_multi_thread(), voice::args::run(*args, level)),
        Command::Doctor(args) => block_on(Builder::new_current_thread(), doctor::run(*args)),
    }
}

/// Says on stderr what became of an installation.
fn tell(done: Result<PathBuf, install::InstallError>, what: &str) -> ExitCode {
    match done {
        Ok(folder) => {
            log::say(format_args!("The helper is {what} {}.", folder.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            log::say(&error);
            ExitCode::from(if error.is_bad_use() { BAD_INPUT } else { FAULT })
        }
    }
}

/// What every subcommand needs: logs on stderr, panics without what they hold.
fn prepare(level: LogLevel) {
    log::start(level, &["watch_audio", "watch_audio_media"]);
}

/// Runs one subcommand to its end. Whatever still blocks then ends with the process.
fn block_on(mut runtime: Builder, run: impl Future<Output = ExitCode> + Send + 'static) -> ExitCode {
    if let Err(error) = descriptors::ensure() {
        log::say(format_args!("watch-audio: {error}"));
        return ExitCode::from(FAULT);
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return ExitCode::from(FAULT);
        }
    };
    // As a task: what the runtime itself blocks on is woken through the kernel each time, from its own thread too.
    let exit = runtime.block_on(runtime.spawn(run));
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
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
        let bad = |args: &[&str]| Args::try_parse_from(args).is_err_and(|error| error.exit_code() == 2);
        assert!(bad(&["watch-audio"]) && bad(&["watch-audio", "bridge", "--key", "secret"]));
        assert!(Args::try_parse_from(["watch-audio", "bridge", "--config", "f", "--log-level", "trace"]).is_ok());
    }
}
