//! What waits for the link ahead of all sound: control messages, never dropped, in order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::seal::{Kind, SealError, Sealer};

/// Control messages on their way.
#[derive(Default)]
pub(super) struct Outgoing {
    waiting: VecDeque<(Instant, Control)>,
}

/// One of them.
pub(super) enum Control {
    /// For the stream that lives.
    Clear(Value),
    /// Already sealed on a stream that was refused.
    Sealed(Bytes),
}

impl Outgoing {
    pub(super) fn push(&mut self, now: Instant, control: Control) {
        self.waiting.push_back((now, control));
    }

    pub(super) fn pop(&mut self) -> Option<Control> {
        self.waiting.pop_front().map(|(_, control)| control)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nothing more for a stream that is gone.
    pub(super) fn drop_stream(&mut self) {
        self.waiting.retain(|(_, control)| matches!(control, Control::Sealed(_)));
    }

    /// Nothing more for a connection that is gone.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Whether the link takes so little that it is of no use. Each message's own wait counts, so that a trickle does not
    /// pass for life (case 50).
    pub(super) fn overflows(&self, now: Instant) -> bool {
        let oldest = self.waiting.front().map(|(since, _)| now.saturating_duration_since(*since));
        self.waiting.len() > MAX_WAITING || oldest.is_some_and(|age| age > MAX_AGE)
    }
}

/// Seals an engine's event; one too large to seal goes as a note of it (`watch-audio.md`).
pub(super) fn seal_event(sealer: &mut Sealer, event: &[u8], message: &mut Vec<u8>) -> Result<(), SealError> {
    match sealer.seal(Kind::Event, event, message) {
        Err(SealError::TooLong(_)) => sealer.seal(Kind::Event, truncated(event).to_string().as_bytes(), message),
        sealed => sealed,
    }
}

/// What stands for an event that is too large.
fn truncated(event: &[u8]) -> Value {
    #[derive(Deserialize)]
    struct Event {
        r#type: String,
    }
    let event: Option<Event> = serde_json::from_slice(event).ok();
    let name = event.map(|event| event.r#type).filter(|name| name.len() <= MAX_TYPE);
    json!({"type": name.as_deref().unwrap_or("unknown"), "conduit_truncated": true})
}

/// A call has a handful of control messages; marks and flushes make some more.
const MAX_WAITING: usize = 256;

/// Longer than any stall that a Watch sits through.
const MAX_AGE: Duration = Duration::from_secs(20);

/// A type's name; anything longer is none.
const MAX_TYPE: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_event_is_named() {
        let event = format!("{{\"delta\":\"{}\",\"type\":\"response.done\"}}", "x".repeat(70_000));
        assert_eq!(truncated(event.as_bytes()), json!({"type": "response.done", "conduit_truncated": true}));
        for odd in ["[]", "{\"type\":7}", "no json", &format!("{{\"type\":\"{}\"}}", "x".repeat(70_000))] {
            assert_eq!(truncated(odd.as_bytes()), json!({"type": "unknown", "conduit_truncated": true}));
        }
    }

    #[test]
    fn case_50_a_trickle_does_not_pass_for_life() {
        let start = Instant::now();
        let mut outgoing = Outgoing::default();
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            outgoing.push(now, Control::Clear(json!({"type": "flush"})));
            if second % 2 == 0 {
                outgoing.pop();
            }
            if outgoing.overflows(now) {
                assert!((35..50).contains(&second), "{second}");
                return;
            }
        }
        panic!("half of it never went out and nobody noticed");
    }
}
