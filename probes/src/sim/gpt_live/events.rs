//! The service's events, each in the words of its dialect (`engines.md` 1.4 and 2.4).

use serde_json::{Value, json};

use super::Dialect;

/// Writes one session's events.
pub(super) struct Events {
    dialect: Dialect,
    ids: u64,
}

/// A stretch of the timeline, in ms.
pub(super) type Slot = (u64, u64);

impl Events {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, ids: 0 }
    }

    pub(super) fn started(&mut self, id: &str, request: &Value) -> String {
        let mut session = json!({"id": id, "status": "active", "expires_at": EXPIRES_AT,
            "audio": {"output": {"voice": "marin"}}, "delegation": {"type": "client"}});
        for (name, value) in request.as_object().into_iter().flatten() {
            session[name] = value.clone();
        }
        self.write(json!({"type": "session.started", "session": session}))
    }

    pub(super) fn words(&mut self, user: bool, words: &str, (start_ms, end_ms): Slot) -> String {
        let side = if user { "input" } else { "output" };
        self.ids += 1;
        let item = json!({"id": format!("item_t{}", self.ids), "type": format!("{side}_transcript"), "text": words});
        self.write(match self.dialect {
            Dialect::A => json!({"type": format!("session.{side}_transcript.delta"), "delta": words,
                                 "start_ms": start_ms, "end_ms": end_ms}),
            Dialect::B => json!({"type": format!("{side}_transcript.added"), "start_ms": start_ms, "end_ms": end_ms,
                                 "item": item}),
        })
    }

    pub(super) fn turn_created(&mut self, id: &str, user: bool, start_ms: u64) -> String {
        let role = if user { "user" } else { "assistant" };
        self.write(json!({"type": "turn.created", "turn": {"id": id, "role": role, "start_ms": start_ms,
                          "end_ms": start_ms, "transcript": ""}}))
    }

    pub(super) fn turn_delta(&mut self, id: &str, words: &str, (start_ms, end_ms): Slot) -> String {
        self.write(json!({"type": "turn.delta", "turn_id": id, "delta": words, "start_ms": start_ms, "end_ms": end_ms}))
    }

    pub(super) fn turn_done(&mut self, id: &str, user: bool, words: &str, (start_ms, end_ms): Slot) -> String {
        let role = if user { "user" } else { "assistant" };
        self.write(json!({"type": "turn.done", "turn": {"id": id, "role": role, "start_ms": start_ms,
                          "end_ms": end_ms, "transcript": words}}))
    }

    /// The task's words are told in the second dialect only.
    pub(super) fn delegation(&mut self, id: &str, offset_ms: u64, request: &str) -> String {
        self.write(match self.dialect {
            Dialect::A => json!({"type": "session.delegation.created", "offset_ms": offset_ms,
                                 "delegation": {"id": id, "type": "delegation", "target": "client"}}),
            Dialect::B => json!({"type": "delegation.created", "offset_ms": offset_ms, "item": {"id": id,
                "type": "delegation", "target": "client", "content": [{"type": "input_text", "text": request}]}}),
        })
    }

    /// An append has found its place. `kind` is the append's own type.
    pub(super) fn appended(&mut self, append: &Value, (start_ms, end_ms): Slot) -> String {
        let kind = append["type"].as_str().unwrap_or_default();
        let mut event = json!({"type": format!("{kind}ed"), "start_ms": start_ms, "end_ms": end_ms});
        match self.dialect {
            Dialect::A if append["event_id"].is_string() => event["client_event_id"] = append["event_id"].clone(),
            Dialect::B if !append["delegation_item_id"].is_null() => {
                event["delegation_item_id"] = append["delegation_item_id"].clone();
            }
            _ => {}
        }
        self.write(event)
    }

    pub(super) fn usage(&mut self, timeline_ms: u64) -> String {
        self.write(match self.dialect {
            Dialect::A => json!({"type": "session.usage.updated", "usage": {"seconds": timeline_ms / 1_000},
                                 "context_window": {"usage_ratio": 0.01}}),
            Dialect::B => json!({"type": "session.usage.updated", "usage": {"audio_duration_ms": timeline_ms},
                                 "usage_limit": null}),
        })
    }

    pub(super) fn closed(&mut self, id: &str, reason: &str, timeline_ms: u64) -> String {
        let usage = match self.dialect {
            Dialect::A => json!({"seconds": timeline_ms / 1_000}),
            Dialect::B => json!({}),
        };
        self.write(json!({"type": "session.closed", "reason": reason, "session": {"id": id}, "usage": usage}))
    }

    pub(super) fn muted(&mut self, muted: bool) -> String {
        self.write(json!({"type": match (self.dialect, muted) {
            (Dialect::A, true) => "session.input_audio.muted",
            (Dialect::A, false) => "session.input_audio.unmuted",
            (Dialect::B, true) => "input_audio.paused",
            (Dialect::B, false) => "input_audio.resumed",
        }}))
    }

    pub(super) fn cleared(&mut self) -> String {
        self.write(json!({"type": "output_audio_buffer.cleared"}))
    }

    pub(super) fn not_allowed(&mut self, kind: &str) -> String {
        let message = format!("The data channel may not send {kind}.");
        self.write(json!({"type": "info", "code": "data_channel_permissions", "message": message}))
    }

    /// An error that names the client's event.
    pub(super) fn error(&mut self, code: &str, message: &str, param: Option<&str>, event: &Value) -> String {
        let mut error = json!({"type": "invalid_request_error", "code": code, "message": message, "param": param});
        let name = if self.dialect == Dialect::A { "client_event_id" } else { "event_id" };
        error[name] = event["event_id"].clone();
        self.write(json!({"type": "error", "error": error}))
    }

    fn write(&mut self, mut event: Value) -> String {
        self.ids += 1;
        event["event_id"] = json!(format!("event_{}", self.ids));
        event.to_string()
    }
}

/// Far away: no simulated session lives so long.
const EXPIRES_AT: u64 = 4_000_000_000;
