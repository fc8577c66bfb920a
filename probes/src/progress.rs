//! What a terminal shows while the call is on: one line that says what goes on, and the captions of a live call.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use crate::live::captions::{Captions, Who};

/// The line is on stderr and wiped when the call is over; captions go to stdout and stay.
#[derive(Debug)]
pub struct Progress {
    line: bool,
    captions: Option<Captions>,
    shown: Option<Duration>,
    /// How many characters stand on the line.
    width: usize,
}

impl Progress {
    /// A line on stderr, when that is a terminal.
    pub fn on_terminal() -> Option<Self> {
        io::stderr().is_terminal().then_some(Self { line: true, captions: None, shown: None, width: 0 })
    }

    /// The same with captions on stdout, whatever that is.
    pub fn with_captions() -> Self {
        Self { line: io::stderr().is_terminal(), captions: Some(Captions::default()), shown: None, width: 0 }
    }

    /// Shows the time on the call's line and what goes on, a few times a second.
    pub fn show(&mut self, time: Duration, what: impl FnOnce() -> String) {
        if let Some(captions) = &mut self.captions {
            print(captions.handle_timeout(time));
            if captions.in_line() {
                return;
            }
        }
        if self.line && self.shown.is_none_or(|shown| time >= shown + PERIOD) {
            self.shown = Some(time);
            let line = format!("{:5.1} s  {}", time.as_secs_f64(), what());
            let _ = write!(io::stderr(), "\r{line:<width$}", width = self.width);
            self.width = line.chars().count();
        }
    }

    /// Prints words as they are said.
    pub fn caption(&mut self, time: Duration, who: Who, words: &str, whole: bool) {
        let Some(captions) = &mut self.captions else { return };
        let text = captions.words(time, who, words, whole);
        self.wipe();
        print(&text);
    }

    /// What comes next is a line of its own.
    pub fn end_caption(&mut self) {
        if let Some(captions) = &mut self.captions {
            print(captions.end());
        }
    }

    fn wipe(&mut self) {
        if self.width > 0 {
            let _ = write!(io::stderr(), "\r{:width$}\r", "", width = self.width);
            self.width = 0;
        }
    }
}

/// A reader that went away misses the captions; the call goes on.
fn print(text: &str) {
    if !text.is_empty() {
        let mut stdout = io::stdout();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
        if let Some(captions) = &mut self.captions {
            print(captions.end());
        }
    }
}

/// Faster than this nobody reads.
const PERIOD: Duration = Duration::from_millis(200);
