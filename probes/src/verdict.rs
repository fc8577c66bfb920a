//! How a call came out: one line, one exit code (case 69).

use std::fmt;

/// The outcome of a call. Its `Display` is the one outcome line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The answer was heard to its end.
    Done,
    /// A fault of ours: the bridge died, the disk is full.
    Fault(String),
    /// Bad use, or a question that is no WAV file.
    BadUse(String),
    /// The relay or the grant refused.
    Refused(String),
    /// The engine refused: the host's error code and its words.
    EngineRefused(String, String),
    /// The call broke before the answer was over.
    Broke(String),
    /// No answer was heard, or not to its end.
    NoAnswer(String),
    /// A signal ended the call, in order.
    Interrupted(Signal),
}

/// The signals that end a call in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// `kill`'s default.
    Terminate,
}

/// Whether and why a call shall stop, as whoever handles signals says.
pub type Stop = Option<Signal>;

impl Verdict {
    /// The exit code of the probe.
    pub fn code(&self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Fault(_) => 1,
            Self::BadUse(_) => 2,
            Self::Refused(_) => 3,
            Self::EngineRefused(..) => 4,
            Self::Broke(_) => 5,
            Self::NoAnswer(_) => 6,
            // As a shell tells a process that a signal ended: 128 and its number.
            Self::Interrupted(Signal::Interrupt) => 130,
            Self::Interrupted(Signal::Terminate) => 143,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Fault(what) => write!(f, "a fault of the probe or the bridge: {what}"),
            Self::BadUse(what) => f.write_str(what),
            Self::Refused(what) => write!(f, "the relay refused: {what}"),
            Self::EngineRefused(code, message) => write!(f, "the engine refused ({code}): {message}"),
            Self::Broke(what) => write!(f, "the call broke: {what}"),
            Self::NoAnswer(what) => write!(f, "no answer: {what}"),
            Self::Interrupted(Signal::Interrupt) => f.write_str("interrupted"),
            Self::Interrupted(Signal::Terminate) => f.write_str("terminated"),
        }
    }
}
