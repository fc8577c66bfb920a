//! GPT-Live: one endless stream both ways over WebRTC, silence included, without turns (`engines.md` 1 to 3).
//!
//! The engine's events pass through unread but for their type, in their order and never lost: what the Watch does not
//! take is left with the engine, past 200 messages. Its sound is bounded instead (`media::backlog`): quiet is shed
//! first, then the oldest.

pub mod call;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout, timeout_at};
use watch_audio_media::backlog::{Backlog, BacklogStats};
use watch_audio_media::pcm::{self, OddByte};
use watch_audio_media::stats::Histogram;

use self::call::{Call, CallConfig, CallError, CallEvent, Sound};
use super::figures::{millis, percentiles};
use super::{Codec, EngineConfig, EngineKind, ErrorCode, Start, StartError, Started, ToWatch};
use crate::rtc::{PeerConfig, PeerError};
use crate::sign_in::SignIn;

/// A running GPT-Live session.
pub struct Session {
    call: Call,
    origin: Instant,
    odd: OddByte,
    microphone: Vec<i16>,
    to_watch: ToWatchQueue,
    events: VecDeque<Bytes>,
    /// Times that the engine said to have cut its own reply.
    cleared: u64,
    ended: Option<String>,
}

impl Session {
    /// Starts a session: one offer, the exchange (32 s), and the connection within 8 s of the answer; 40 s in all. There
    /// is no second try: each session is billed.
    ///
    /// # Errors
    /// What the Watch is to be told.
    pub async fn start(start: &Start, sign_in: &SignIn, config: &EngineConfig) -> Result<(Self, Started), StartError> {
        let deadline = Instant::now() + START_LIMIT;
        let call_config = CallConfig {
            peer: PeerConfig { stun: config.stun.clone() },
            input_rate: EngineKind::GptLive.input_rate(),
            output_rate: EngineKind::GptLive.output_rate(),
            codec: start.codec(),
        };
        let (call, offer) = Call::offer(&call_config).await.map_err(no_call)?;
        let answer = timeout(EXCHANGE_LIMIT, sign_in.gpt_live(&offer, start)).await.map_err(|_| {
            StartError::new(ErrorCode::Unreachable, "The sign-in to GPT-Live did not answer in time.")
        })??;
        let mut session = Self::over(call, start.codec());
        session.call.accept(&answer.sdp).await.map_err(|error| no_call(error.into()))?;
        session.connect(deadline.min(Instant::now() + CONNECT_LIMIT)).await?;

        let mut fields = Map::new();
        fields.insert("voice".into(), answer.voice.into());
        fields.insert("briefing_applied".into(), answer.briefing_applied.into());
        fields.insert("greeting_applied".into(), answer.greeting_applied.into());
        start.codec().confirm(&mut fields);
        Ok((session, Started { fields }))
    }

    /// Waits for the engine and the session's own deadlines. Cancel safe.
    pub async fn drive(&mut self) {
        if self.ended.is_some() {
            return std::future::pending().await;
        }
        let event = self.call.next().await;
        self.take(event);
    }

    /// Sound from the Watch: PCM16LE at 16 kHz, whatever its length; half a sample waits for its other half. Or an Opus
    /// packet.
    pub fn watch_audio(&mut self, now: Instant, payload: &[u8]) {
        if let ToWatchQueue::Packets(_) = self.to_watch {
            return self.call.push_packet(now, payload);
        }
        self.microphone.clear();
        self.odd.push(payload, &mut self.microphone);
        self.call.push_microphone(now, &self.microphone);
    }

    /// An event from the Watch, byte for byte.
    pub fn watch_event(&mut self, _now: Instant, json: &[u8]) {
        match std::str::from_utf8(json) {
            Ok(text) => {
                if let Err(error) = self.call.send_text(text) {
                    tracing::warn!("{error}");
                }
            }
            Err(_) => tracing::warn!("an event of the Watch's that is no text was left out"),
        }
    }

    /// The next message for the Watch: events first, they are few and small beside the sound that never ends.
    pub fn poll(&mut self, now: Instant) -> Option<ToWatch> {
        if let Some(event) = self.events.pop_front() {
            self.call.hold_text(false);
            return Some(ToWatch::Event(event));
        }
        self.to_watch.pop(now.saturating_duration_since(self.origin)).map(ToWatch::Audio)
    }

    /// Whether what is polled next is sound.
    pub fn next_is_sound(&self) -> bool {
        self.events.is_empty()
    }

    /// The engine's reason once it has ended.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Figures so far, in RFC 3611 words; times in milliseconds. `barge_ins` counts what the engine tells of; it cuts its
    /// replies by itself and need not tell, so without any it is absent rather than 0.
    pub fn stats(&self) -> Map<String, Value> {
        let mut stats = self.call.stats();
        if self.cleared > 0 {
            stats.insert("barge_ins".into(), self.cleared.into());
        }
        let (queued, delay, backlog) = self.to_watch.stats();
        stats.insert(
            "to_watch".into(),
            json!({
                "queued_ms": millis(queued),
                "deepest_ms": millis(backlog.deepest),
                "shed_ms": millis(backlog.shed),
                "dropped_ms": millis(backlog.dropped),
                "delay_ms": percentiles(delay),
            }),
        );
        stats
    }

    /// Asks the engine to close, waits at most 2 s for it to say so, then closes the peer.
    pub async fn close(mut self) {
        // Behind too many events the oldest is dropped, and not this.
        if self.ended.is_none() && !matches!(self.call.send_text(CLOSE_EVENT), Err(PeerError::Closed)) {
            self.events.clear();
            self.call.hold_text(false);
            let closed = async {
                while self.ended.is_none() {
                    self.drive().await;
                    self.events.clear();
                }
            };
            if timeout(GOODBYE_LIMIT, closed).await.is_err() {
                tracing::info!("the engine did not confirm the end of the session");
            }
        }
        self.call.close().await;
    }

    fn over(call: Call, codec: Codec) -> Self {
        Self {
            call,
            origin: Instant::now(),
            odd: OddByte::new(),
            microphone: Vec::new(),
            to_watch: ToWatchQueue::new(codec),
            events: VecDeque::new(),
            cleared: 0,
            ended: None,
        }
    }

    /// Waits until sound can flow. Events may come before; they are kept.
    async fn connect(&mut self, deadline: Instant) -> Result<(), StartError> {
        let connected = async {
            loop {
                match self.call.next().await {
                    CallEvent::Connected => return Ok(()),
                    CallEvent::Ended(reason) => return Err(reason),
                    event => self.take(event),
                }
            }
        };
        let unreachable = match timeout_at(deadline, connected).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => format!("GPT-Live was not reached: {reason}."),
            Err(_) => match self.call.routes() {
                "nothing" => "GPT-Live offered no way to reach it from this network.".to_owned(),
                routes => format!("GPT-Live was not reached in time; tried {routes}."),
            },
        };
        self.call.close().await;
        Err(StartError::new(ErrorCode::Unreachable, unreachable))
    }

    fn take(&mut self, event: CallEvent) {
        match event {
            CallEvent::Connected => {}
            CallEvent::Text(text) => {
                if let Some(reason) = closing_reason(&text) {
                    self.ended = Some(reason);
                }
                self.cleared += u64::from(event_of(&text, CLEARED_TYPE).is_some());
                self.events.push_back(text);
                self.call.hold_text(self.events.len() >= MAX_EVENTS);
            }
            CallEvent::Sound => {
                let now = self.origin.elapsed();
                while let Some(sound) = self.call.pop() {
                    self.to_watch.push(now, sound);
                }
            }
            CallEvent::Ended(reason) => self.ended = Some(reason.to_owned()),
        }
    }
}

/// What waits for the Watch, as it takes it.
enum ToWatchQueue {
    Samples(Backlog),
    Packets(Backlog<u8>),
}

impl ToWatchQueue {
    fn new(codec: Codec) -> Self {
        match codec {
            Codec::Pcm16 => Self::Samples(Backlog::new()),
            Codec::Opus => Self::Packets(Backlog::new()),
        }
    }

    fn push(&mut self, now: Duration, sound: Sound<'_>) {
        let length = Duration::from_secs(1) * sound.samples.len() as u32 / EngineKind::GptLive.output_rate();
        match self {
            Self::Samples(backlog) => backlog.push(now, sound.samples, length, sound.peak),
            Self::Packets(backlog) => backlog.push(now, sound.packet, length, sound.peak),
        }
    }

    /// The next message.
    fn pop(&mut self, now: Duration) -> Option<Bytes> {
        match self {
            Self::Samples(backlog) => {
                let samples = backlog.pop(now)?;
                let mut bytes = Vec::with_capacity(samples.len() * 2);
                pcm::to_bytes(samples, &mut bytes);
                Some(bytes.into())
            }
            Self::Packets(backlog) => backlog.pop(now).map(Bytes::copy_from_slice),
        }
    }

    /// How much waits, how long it waited, and what became of the rest.
    fn stats(&self) -> (Duration, &Histogram, BacklogStats) {
        match self {
            Self::Samples(backlog) => (backlog.queued(), backlog.delay(), backlog.stats()),
            Self::Packets(backlog) => (backlog.queued(), backlog.delay(), backlog.stats()),
        }
    }
}

/// The reason of `session.closed`; `None` for every other event. An `error` is not the end (case 30).
fn closing_reason(event: &[u8]) -> Option<String> {
    let closed = event_of(event, CLOSED_TYPE)?;
    // A word of the engine's own (`expired`, `content`, …), not a text that might hold anything.
    let word = |reason: &&str| {
        (1..=40).contains(&reason.len()) && reason.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    Some(closed.get("reason").and_then(Value::as_str).filter(word).unwrap_or("ended").to_owned())
}

/// Any text of the engine's.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(event: &[u8]) {
    if let Some(reason) = closing_reason(event) {
        assert!((1..=40).contains(&reason.len()) && !reason.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        assert!(serde_json::from_slice::<Value>(event).is_ok_and(|event| event["type"] == CLOSED_TYPE));
    }
}

/// An event, if it is of this type.
fn event_of(event: &[u8], wanted: &str) -> Option<Map<String, Value>> {
    // Nearly every event is another: look before parsing.
    event.windows(wanted.len()).find(|part| *part == wanted.as_bytes())?;
    let event: Map<String, Value> = serde_json::from_slice(event).ok()?;
    (event.get("type").and_then(Value::as_str) == Some(wanted)).then_some(event)
}

fn no_call(error: CallError) -> StartError {
    match error {
        CallError::Peer(PeerError::Answer(reason)) => {
            StartError::new(ErrorCode::Failed, format!("GPT-Live's answer cannot be used: {reason}."))
        }
        error => StartError::new(ErrorCode::Failed, format!("The call cannot be set up on the host: {error}.")),
    }
}

/// `watch-audio.md`, GPT-Live session: from `start` to `started` or `error`.
const START_LIMIT: Duration = Duration::from_secs(40);

/// `plugin-stdio.md`: a `session_request` not answered within this time fails.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(32);

/// `watch-audio.md`, GPT-Live session: ICE and DTLS, from the answer on.
const CONNECT_LIMIT: Duration = Duration::from_secs(8);

/// `watch-audio.md`, GPT-Live session: for `session.closed`.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// `watch-audio.md`, GPT-Live session: messages held; more are left with the engine.
const MAX_EVENTS: usize = 200;

const CLOSE_EVENT: &str = r#"{"type":"session.close"}"#;
const CLOSED_TYPE: &str = "session.closed";

/// Dialect B's word for a reply cut short (`engines.md` 2.4), where the engine says it at all.
const CLEARED_TYPE: &str = "output_audio_buffer.cleared";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_30_only_session_closed_ends_a_session() {
        let reason = |event: &str| closing_reason(event.as_bytes());
        assert_eq!(reason(r#"{"type":"session.closed","reason":"expired"}"#).as_deref(), Some("expired"));
        assert_eq!(reason(r#"{"reason":"content","type":"session.closed"}"#).as_deref(), Some("content"));
        assert_eq!(reason(r#"{"type":"session.closed"}"#).as_deref(), Some("ended"));
        assert_eq!(reason(r#"{"type":"session.closed","reason":{"x":1}}"#).as_deref(), Some("ended"));
        assert_eq!(reason(r#"{"type":"session.closed","reason":"sk-123 was refused"}"#).as_deref(), Some("ended"));
        assert_eq!(reason(r#"{"type":"error","error":{"code":"x","message":"session.closed"}}"#), None);
        assert_eq!(reason(r#"{"type":"session.started"}"#), None);
        assert_eq!(reason("session.closed"), None);
        assert_eq!(reason(r#"["session.closed","expired"]"#), None, "no event");
        let cleared = |event: &str| event_of(event.as_bytes(), CLEARED_TYPE).is_some();
        assert!(cleared(r#"{"event_id":"1","type":"output_audio_buffer.cleared"}"#));
        assert!(!cleared(r#"{"type":"error","error":{"message":"output_audio_buffer.cleared"}}"#));
    }
}
