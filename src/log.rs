//! What the programs say on standard error: logs, panics without what they hold, and the one line of a failure. None of
//! it may end a call or hold it up: not when standard error is closed, its disk is full, or nobody reads it.

use std::fmt;
use std::io::{self, StderrLock, Write as _};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;

/// How much of it is said, as `--log-level` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[expect(missing_docs, reason = "their names say it")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The level as an argument and as a filter has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Logs what `crates` say at `level` and above, and sets the hook for panics. A second time changes nothing but the hook.
pub fn start(level: LogLevel, crates: &[&str]) {
    let level = level.as_str();
    // Our own words only: a library's debug lines may show a request with its bearer.
    let ours: Vec<String> = crates.iter().map(|name| format!("{name}={level}")).collect();
    let filter = EnvFilter::new(ours.join(","));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr(NO_WAIT))
        // It would be told with `eprintln!`, which panics when standard error is what failed.
        .log_internal_errors(false)
        .with_ansi(false);
    // It was set already when a test runs two command lines in one process.
    let _ = log.try_init();
    panic::set_hook(Box::new(note_panic));
}

/// Says one line, whatever the log level.
pub fn say(line: impl fmt::Display) {
    // Nobody is left to tell when even this cannot be written.
    let _ = stderr(ONE_LINE).write_all(format!("{line}\n").as_bytes());
}

/// Locked: between the look for room and the line nobody else of this process takes it.
fn stderr(patience: Timespec) -> Bounded<StderrLock<'static>> {
    Bounded { to: io::stderr().lock(), patience }
}

/// Drops what finds no room in time: a call goes on, and ends, beside a parent that does not read. Room is what the system
/// calls so: a page of a pipe, more than a line of ours.
struct Bounded<W> {
    to: W,
    patience: Timespec,
}

impl<W: io::Write + AsFd> io::Write for Bounded<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let room = poll(&mut [PollFd::new(&self.to, PollFlags::OUT)], Some(&self.patience));
        if matches!(room, Ok(0)) { Ok(line.len()) } else { self.to.write(line) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A log line holds no call up.
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What a program says once, when it starts or fails, may find a reader that is busy.
const ONE_LINE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Says where a panic was, and not what it says: that may hold what was being worked on.
fn note_panic(panic: &PanicHookInfo<'_>) {
    if let Some(place) = panic.location() {
        tracing::error!(file = place.file(), line = place.line(), "a fault of ours");
    }
}

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
    fn a_pipe_that_nobody_reads_holds_nothing_up() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut writer = Bounded { to: writer, patience: NO_WAIT };
        let line = [b'x'; 100];
        for _ in 0..10_000 {
            writer.write_all(&line).unwrap();
        }
        drop(writer);
        let mut got = Vec::new();
        io::Read::read_to_end(&mut reader, &mut got).unwrap();
        assert!(!got.is_empty() && got.len() < 1_000_000 && got.len() % line.len() == 0, "{}", got.len());
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
        assert!(log.contains("src/log.rs") && !log.contains("secret-bearer"), "{log}");
    }
}
