//! One line on a terminal that says what the call is doing.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// The line. It is wiped when the call is over.
#[derive(Debug)]
pub struct Progress {
    shown: Option<Duration>,
}

impl Progress {
    /// A line on stderr, when that is a terminal.
    pub fn on_terminal() -> Option<Self> {
        io::stderr().is_terminal().then_some(Self { shown: None })
    }

    /// Shows the time on the call's line and what goes on, a few times a second.
    pub fn show(&mut self, time: Duration, what: &str) {
        if self.shown.is_none_or(|shown| time >= shown + PERIOD) {
            self.shown = Some(time);
            let _ = write!(io::stderr(), "\r{:5.1} s  {what:<24}", time.as_secs_f64());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r{:34}\r", "");
        }
    }
}

/// Faster than this nobody reads.
const PERIOD: Duration = Duration::from_millis(200);
