//! What a simulator keeps of a call, so that tests and the probe can judge it afterwards.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

/// One event as text, at the instant it was received or handed to the socket.
#[derive(Clone)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// Its `type`, or an empty text when it has none.
    pub kind: String,
    /// The event, byte for byte.
    pub text: Arc<str>,
}

impl Event {
    pub(crate) fn new(at: Instant, text: &str) -> Self {
        let kind = serde_json::from_str::<Value>(text).ok();
        let kind = kind.as_ref().and_then(|json| json.get("type")).and_then(Value::as_str).unwrap_or_default();
        Self { at, kind: kind.to_owned(), text: text.into() }
    }

    /// The event as JSON; null when it is not.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

impl fmt::Debug for Event {
    /// An event may hold what was said: its kind is enough.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A stretch of speech that came in.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// When the message or packet that began it arrived.
    pub from: Instant,
    /// When the last voiced one arrived; none while it goes on.
    pub to: Option<Instant>,
    /// Where it began in the audio received so far, in ms.
    pub start_ms: u64,
    /// Where it ended.
    pub end_ms: Option<u64>,
}

/// The kinds of the events, in order: what most tests compare.
pub fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}
