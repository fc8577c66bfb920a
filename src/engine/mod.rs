//! What an engine's session is, and the one place that starts one.
//!
//! A session is driven by the bridge's task alone: [`Session::drive`] waits for the engine and for the session's own
//! deadlines, what the Watch says goes in with the `watch_*` methods, and what is to go to the Watch is taken with
//! [`Session::poll`], one message at a time and only when the link has room. So what has not been polled can still be
//! dropped, and "sent" means sent.

mod figures;
pub mod gpt_live;
pub mod grok;
#[cfg(test)]
pub(crate) mod scripted;

use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::sign_in::SignIn;

/// Which engine holds the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// OpenAI's GPT-Live over WebRTC: one endless stream both ways.
    GptLive,
    /// xAI's Grok over a realtime WebSocket: bounded replies, faster than real time.
    Grok,
}

impl EngineKind {
    /// The name on the wire (`watch-audio.md`, `start`).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GptLive => "gpt_live",
            Self::Grok => "grok",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "gpt_live" => Some(Self::GptLive),
            "grok" => Some(Self::Grok),
            _ => None,
        }
    }

    /// Watch to host, in Hz.
    pub fn input_rate(self) -> u32 {
        match self {
            Self::GptLive => 16_000,
            Self::Grok => 24_000,
        }
    }

    /// Host to Watch, in Hz.
    pub fn output_rate(self) -> u32 {
        24_000
    }
}

/// How sound is written in the messages to and from the Watch (`watch-audio.md`, Extensions, `codecs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// PCM16LE, mono, at the rates of `started`: version 1, and what `started` is silent about.
    #[default]
    Pcm16,
    /// One Opus packet per message.
    Opus,
}

impl Codec {
    /// Reads the name on the wire.
    fn parse(name: &str) -> Option<Self> {
        match name {
            "pcm16" => Some(Self::Pcm16),
            "opus" => Some(Self::Opus),
            _ => None,
        }
    }

    /// Confirms the choice in `started`.
    fn confirm(self, started: &mut Map<String, Value>) {
        if self == Self::Opus {
            started.insert("codec".into(), "opus".into());
        }
    }
}

/// The Watch's `start` control message, its values untouched: an absent field stays absent.
#[derive(Clone)]
pub struct Start {
    /// The engine asked for.
    pub engine: EngineKind,
    /// Every field of the message but `type` and `engine`.
    pub fields: Map<String, Value>,
}

impl Start {
    /// A text field, when it is there and is text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    /// The first codec on the Watch's list that is known here.
    pub fn codec(&self) -> Codec {
        let offered = self.fields.get("codecs").and_then(Value::as_array);
        offered.into_iter().flatten().filter_map(Value::as_str).find_map(Codec::parse).unwrap_or_default()
    }

    /// Whether a field is `true`.
    pub fn flag(&self, field: &str) -> bool {
        self.fields.get(field).and_then(Value::as_bool).unwrap_or(false)
    }
}

impl fmt::Debug for Start {
    /// Briefing, greeting and history are speech: only the engine is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The error codes of the Watch's control messages (`watch-audio.md`, Control).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The Watch speaks another version.
    Version,
    /// The request makes no sense.
    BadRequest,
    /// All slots of this host are taken.
    Busy,
    /// The parent did not offer this engine.
    Unavailable,
    /// The engine said no.
    Refused,
    /// The engine said "not now".
    RateLimited,
    /// The engine did not answer.
    Unreachable,
    /// Anything else.
    Failed,
}

impl ErrorCode {
    /// The code on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::BadRequest => "bad_request",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::RateLimited => "rate_limited",
            Self::Unreachable => "unreachable",
            Self::Failed => "failed",
        }
    }

    /// Reads the code on the wire.
    pub fn parse(code: &str) -> Option<Self> {
        [
            Self::Version,
            Self::BadRequest,
            Self::Busy,
            Self::Unavailable,
            Self::Refused,
            Self::RateLimited,
            Self::Unreachable,
            Self::Failed,
        ]
        .into_iter()
        .find(|known| known.as_str() == code)
    }
}

/// Why an engine could not be started: what the Watch is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// For the Watch's program.
    pub code: ErrorCode,
    /// For a person: a short sentence without a secret, SDP or a provider's response body.
    pub message: String,
}

impl StartError {
    /// An error with its sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// One message for the Watch, in clear.
#[derive(Clone, PartialEq)]
pub enum ToWatch {
    /// PCM16LE mono at the output rate, or one Opus packet where that was negotiated (type 1).
    Audio(Bytes),
    /// The engine's own JSON text (type 2).
    Event(Bytes),
    /// A control message of the session's own: `mark`, `flush` (type 3).
    Control(Value),
}

/// What `started` says beyond engine and rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// The fields to add: `voice`, and `briefing_applied`, `greeting_applied` or `model`.
    pub fields: Map<String, Value>,
}

/// What every session is given.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// STUN servers, `stun:host:port`; none means host candidates only.
    pub stun: Vec<String>,
}

/// A running session with one of the engines.
pub enum Session {
    /// GPT-Live.
    GptLive(Box<gpt_live::Session>),
    /// Grok.
    Grok(Box<grok::Session>),
    /// A test's own.
    #[cfg(test)]
    Scripted(scripted::Session),
}

/// Starts a session: sign-in, connection, ready for sound. Bounded: 40 s for GPT-Live, 18 s for Grok. Dropping the
/// future gives everything back.
///
/// # Errors
/// What the Watch is to be told.
pub async fn start(start: &Start, sign_in: &SignIn, config: &EngineConfig) -> Result<(Session, Started), StartError> {
    #[cfg(test)]
    if let SignIn::Scripted(engine) = sign_in {
        let (session, started) = engine.start(start).await?;
        return Ok((Session::Scripted(session), started));
    }
    match start.engine {
        EngineKind::GptLive => {
            let (session, started) = gpt_live::Session::start(start, sign_in, config).await?;
            Ok((Session::GptLive(Box::new(session)), started))
        }
        EngineKind::Grok => {
            let (session, started) = grok::Session::start(start, sign_in, config).await?;
            Ok((Session::Grok(Box::new(session)), started))
        }
    }
}

impl Session {
    /// Waits until the engine said something or one of the session's deadlines passed, and takes it in. Poll afterwards.
    /// Cancel safe.
    pub async fn drive(&mut self) {
        match self {
            Self::GptLive(session) => session.drive().await,
            Self::Grok(session) => session.drive().await,
            #[cfg(test)]
            Self::Scripted(session) => session.drive().await,
        }
    }

    /// Audio from the Watch.
    pub fn watch_audio(&mut self, now: Instant, payload: &[u8]) {
        match self {
            Self::GptLive(session) => session.watch_audio(now, payload),
            Self::Grok(session) => session.watch_audio(now, payload),
            #[cfg(test)]
            Self::Scripted(session) => session.watch_audio(payload),
        }
    }

    /// An engine event from the Watch, passed on byte for byte but where `watch-audio.md` says otherwise.
    pub fn watch_event(&mut self, now: Instant, json: &[u8]) {
        match self {
            Self::GptLive(session) => session.watch_event(now, json),
            Self::Grok(session) => session.watch_event(now, json),
            #[cfg(test)]
            Self::Scripted(session) => session.watch_event(json),
        }
    }

    /// A control message of the extensions: `played`, `flushed`, `stop`. Others are ignored.
    pub fn watch_control(&mut self, now: Instant, control: &Map<String, Value>) {
        match self {
            Self::GptLive(_) => {}
            Self::Grok(session) => session.watch_control(now, control),
            #[cfg(test)]
            Self::Scripted(session) => session.watch_control(control),
        }
    }

    /// The next message for the Watch, if one is due.
    pub fn poll(&mut self, now: Instant) -> Option<ToWatch> {
        match self {
            Self::GptLive(session) => session.poll(now),
            Self::Grok(session) => session.poll(now),
            #[cfg(test)]
            Self::Scripted(session) => session.poll(),
        }
    }

    /// Whether what is polled next, if anything, is sound: it may have to wait where it can still be dropped.
    pub fn next_is_sound(&self) -> bool {
        match self {
            Self::GptLive(session) => session.next_is_sound(),
            Self::Grok(session) => session.next_is_sound(),
            #[cfg(test)]
            Self::Scripted(session) => session.next_is_sound(),
        }
    }

    /// The engine's short reason once it has ended by itself. What can still be polled still goes out.
    pub fn ended(&self) -> Option<&str> {
        match self {
            Self::GptLive(session) => session.ended(),
            Self::Grok(session) => session.ended(),
            #[cfg(test)]
            Self::Scripted(session) => session.ended(),
        }
    }

    /// Figures of the call so far, for `stats` lines and the summary, in the words of RFC 3611: `up` to the engine, `down`
    /// from it, `to_watch` what waits for the Watch to take it. Lengths of sound end in `_ms`; `delay_ms` is how long sound
    /// was held here, and `jitter_ms` by how much each piece came sooner or later after the one before than it was sent,
    /// both as percentiles; the rest are counts.
    pub fn stats(&self) -> Map<String, Value> {
        match self {
            Self::GptLive(session) => session.stats(),
            Self::Grok(session) => session.stats(),
            #[cfg(test)]
            Self::Scripted(session) => session.stats(),
        }
    }

    /// Ends the session with the engine in order. Bounded at 5 s; dropping the future cuts it short.
    pub async fn close(self) {
        match self {
            Self::GptLive(session) => session.close().await,
            Self::Grok(session) => session.close().await,
            #[cfg(test)]
            Self::Scripted(session) => session.close().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_watchs_first_codec_that_is_known_is_taken_and_only_opus_is_confirmed() {
        for (codecs, codec) in [
            (json!(["opus", "pcm16"]), Codec::Opus),
            (json!(["opus"]), Codec::Opus),
            (json!(["lyra", 7, "opus"]), Codec::Opus),
            (json!(["pcm16", "opus"]), Codec::Pcm16),
            (json!(["lyra"]), Codec::Pcm16),
            (json!("opus"), Codec::Pcm16),
            (json!({"opus": true}), Codec::Pcm16),
            (json!(null), Codec::Pcm16),
        ] {
            let fields = Map::from_iter([("codecs".to_owned(), codecs.clone())]);
            assert_eq!(Start { engine: EngineKind::Grok, fields }.codec(), codec, "{codecs}");
        }
        assert_eq!(Start { engine: EngineKind::Grok, fields: Map::new() }.codec(), Codec::Pcm16);
        let mut started = Map::new();
        Codec::Pcm16.confirm(&mut started);
        assert!(started.is_empty(), "as in version 1");
        Codec::Opus.confirm(&mut started);
        assert_eq!(Value::Object(started), json!({"codec": "opus"}));
    }
}
