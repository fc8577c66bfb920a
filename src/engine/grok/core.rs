//! What a Grok session does, without IO and clock: texts from the engine and messages from the Watch go in with the time,
//! texts for the engine and messages for the Watch come out, and [`Core::due`] and [`Core::deadline`] say when to come back.
//!
//! A barge-in, the moment this file exists for: the engine says `input_audio_buffer.speech_started` while a reply is being
//! heard. Everything unsent is dropped, late audio of the reply is refused from then on, the Watch is told to throw away
//! what it has (if it understands that), the event goes on behind the events before it without delay, and the engine is
//! told how much was heard, so that it does not believe to have said the rest. It stops by itself: no cancel is sent.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use tracing::{debug, warn};
use watch_audio_media::ledger::{ItemKey, Ledger, Received, Stopped};
use watch_audio_media::pacer::{Paced, Pacer, Piece};

use super::coding::Coding;
use super::outbox::{Outbox, Stuck};
use crate::engine::figures::{millis, percentiles};
use crate::engine::{EngineKind, ToWatch};
use crate::seal::MAX_PLAIN;

/// The state of one session. Its time begins when the socket is open.
pub(super) struct Core {
    playout: bool,
    coding: Coding,
    /// The host truncates: the Watch does not, and the engine knows the event.
    truncates: bool,
    pacer: Pacer<Bytes>,
    ledger: Ledger,
    outbox: Outbox,
    /// Raised by each barge-in: what a Watch got before is old.
    epoch: u64,
    /// The one flush to send, ahead of all else.
    flush: Option<Value>,
    /// The mark behind the piece just sent.
    mark: Option<Value>,
    unsettled: Option<Unsettled>,
    /// Truncates on their way: event id and item.
    truncates_sent: VecDeque<(String, String)>,
    /// When the engine was last heard of, and when it is to be asked for a sign of life.
    alive: Duration,
    ping_at: Duration,
    ping: bool,
    /// What the engine said last before its end, if that explains it.
    last_words: Option<&'static str>,
    ended: Option<String>,
    stats: Stats,
}

/// A message for the engine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToEngine {
    /// A JSON text.
    Text(String),
    /// A WebSocket ping.
    Ping,
}

/// A barge-in of which the engine was not told yet.
struct Unsettled {
    /// Until when a Watch that reports its playout may say where it stopped.
    flushed_until: Option<Duration>,
    /// Where it stopped.
    stopped: Option<(String, u64)>,
    /// Until when the end of the interrupted reply is worth waiting for: a truncate takes effect only after it.
    reply_until: Option<Duration>,
}

#[derive(Default)]
struct Stats {
    barge_ins: u64,
    truncations: u64,
    /// Samples that came for a reply nobody hears any more.
    late: u64,
    /// Messages of the engine that could not be read.
    unreadable: u64,
    /// Audio of the microphone that the engine did not take.
    appends_refused: u64,
}

impl Core {
    /// A session just opened. `playout`: the Watch reports what it plays; `coding`: how it takes and gives its sound.
    pub(super) fn new(playout: bool, coding: Coding) -> Self {
        let rate = EngineKind::Grok.output_rate();
        Self {
            playout,
            truncates: true,
            pacer: Pacer::new(rate).in_pieces(coding.piece()),
            ledger: Ledger::new(rate, playout).in_grains(coding.grain()),
            coding,
            outbox: Outbox::new(CONFIGURE_WAIT),
            epoch: 0,
            flush: None,
            mark: None,
            unsettled: None,
            truncates_sent: VecDeque::new(),
            alive: Duration::ZERO,
            ping_at: PING_EVERY,
            ping: false,
            last_words: None,
            ended: None,
            stats: Stats::default(),
        }
    }

    /// A text from the engine.
    pub(super) fn engine_text(&mut self, now: Duration, text: Bytes) {
        self.engine_alive(now);
        let Ok(mut event) = serde_json::from_slice::<Map<String, Value>>(&text) else {
            self.stats.unreadable += 1;
            warn!("the engine sent a text that is not a JSON object; it was left out");
            return;
        };
        match text_of(&event, "type") {
            "response.output_audio.delta" | "response.audio.delta" => return self.audio(now, &mut event),
            "input_audio_buffer.speech_started" if self.ledger.speaking(now) => self.barge_in(now),
            "session.updated" => self.outbox.release(),
            "response.created" => {
                self.ledger.reply_started(text_in(&event, "response", "id"));
                self.reply_is_over(now);
            }
            "response.output_audio.done" | "response.audio.done" => self.ledger.item_done(text_of(&event, "item_id")),
            "response.done" => {
                self.ledger.reply_done(text_in(&event, "response", "id"));
                self.reply_is_over(now);
            }
            "conversation.item.truncated" if self.answers_ours(&event) => return,
            "error" if self.is_about_ours(&event) => return,
            "error" if text_in(&event, "error", "type") == "max_duration" => {
                self.last_words = Some("The call has reached the engine's longest duration.");
            }
            _ => {}
        }
        while let Some(Received { item, end, pcm }) = self.ledger.tail() {
            self.pacer.push_audio(now, item, end, pcm);
        }
        self.pacer.push_event(if text.len() > MAX_PLAIN { cut_short(&event) } else { text });
    }

    /// A sign of life of the engine.
    pub(super) fn engine_alive(&mut self, now: Duration) {
        self.alive = now;
    }

    /// The engine is gone. Audio not sent goes with it, so that its last events come out at once.
    pub(super) fn engine_closed(&mut self, reason: &str) {
        if self.ended.is_none() {
            self.ended = Some(self.last_words.unwrap_or(reason).to_owned());
            self.pacer.drop_audio(|_| true);
        }
    }

    /// Audio from the Watch.
    pub(super) fn watch_audio(&mut self, now: Duration, message: &[u8]) {
        self.outbox.audio(now, self.coding.decoded(message));
    }

    /// An event from the Watch: goes to the engine as it is.
    pub(super) fn watch_event(&mut self, json: &[u8]) {
        let Ok(text) = std::str::from_utf8(json) else {
            warn!("the Watch sent an event that is not UTF-8; it was left out");
            return;
        };
        let event = serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
        match text_of(&event, "type") {
            "conversation.item.truncate" => self.truncates = false,
            "response.cancel" => self.cancelled(event.get("response_id").and_then(Value::as_str)),
            // A commit or a clear is about the audio before it, which must not come after.
            kind if kind.starts_with("input_audio_buffer.") => self.outbox.release(),
            _ => {}
        }
        let sent = self.outbox.event(text.to_owned());
        self.unless_stuck(sent);
    }

    /// A control message from the Watch; only one that reports its playout has any for us.
    pub(super) fn watch_control(&mut self, now: Duration, control: &Map<String, Value>) {
        if !self.playout {
            return;
        }
        let epoch = control.get("epoch").and_then(Value::as_u64);
        let item = text_of(control, "item");
        let ms = control.get("ms").and_then(Value::as_f64).map_or(0, |ms| ms.max(0.0) as u64);
        match text_of(control, "type") {
            // Reports from before the flush may still be on their way.
            "played"
                if epoch == Some(self.epoch) || (self.unsettled.is_some() && epoch == self.epoch.checked_sub(1)) =>
            {
                self.ledger.played(item, ms);
            }
            "flushed" if epoch == Some(self.epoch) => {
                if let Some(unsettled) = &mut self.unsettled {
                    unsettled.flushed_until = None;
                    unsettled.stopped = Some((item.to_owned(), ms));
                }
                self.settle(now);
            }
            "stop" if self.ledger.speaking(now) => self.barge_in(now),
            _ => {}
        }
    }

    /// The next message for the Watch, if one is due.
    pub(super) fn poll(&mut self, now: Duration) -> Option<ToWatch> {
        if let Some(control) = self.flush.take().or_else(|| self.mark.take()) {
            return Some(ToWatch::Control(control));
        }
        match self.pacer.poll(now)? {
            Paced::Event(event) => Some(ToWatch::Event(event)),
            Paced::Audio(Piece { item, end, pcm, plays_until }) => {
                let audio = self.coding.encoded(pcm);
                self.ledger.sent(item, end, plays_until);
                self.mark = self.mark_at(item, end);
                Some(ToWatch::Audio(audio))
            }
        }
    }

    /// Whether what is polled next is sound.
    pub(super) fn next_is_sound(&self) -> bool {
        self.flush.is_none() && self.mark.is_none() && self.pacer.next_is_audio()
    }

    /// When something is due for the Watch; a time that has passed means at once.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.flush.is_some() || self.mark.is_some() { Some(Duration::ZERO) } else { self.pacer.deadline() }
    }

    /// When to call [`Core::handle_timeout`] next.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let unsettled = self.unsettled.as_ref();
        [
            self.outbox.deadline(),
            unsettled.and_then(|unsettled| unsettled.flushed_until),
            unsettled.and_then(|unsettled| unsettled.reply_until),
            Some(self.ping_at),
            Some(self.alive + SILENCE),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what has become due.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        self.outbox.handle_timeout(now);
        self.settle(now);
        if now >= self.alive + SILENCE {
            self.engine_closed("The engine stopped answering.");
        }
        if now >= self.ping_at {
            // After a pause one ping is as good as many.
            self.ping = true;
            self.ping_at = now + PING_EVERY;
        }
    }

    /// Whether there is something for the engine.
    pub(super) fn has_for_engine(&self) -> bool {
        self.ping || !self.outbox.is_empty()
    }

    /// The next message for the engine.
    pub(super) fn next_for_engine(&mut self, now: Duration) -> Option<ToEngine> {
        if std::mem::take(&mut self.ping) {
            return Some(ToEngine::Ping);
        }
        self.outbox.pop(now).map(ToEngine::Text)
    }

    /// Why the session is over, once it is.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Figures since the beginning, in the words of [`crate::engine::Session::stats`]. Of the engine's sound was `heard`
    /// what is known of; it was `late` for a reply that was over, `interrupted` before it was sent, `dropped` past ten
    /// minutes. TCP loses none of it, and it comes as fast as the engine makes it, so there is no jitter to tell.
    pub(super) fn stats(&self, now: Duration) -> Map<String, Value> {
        let rate = u64::from(EngineKind::Grok.output_rate());
        let ms = |samples: u64| json!(samples * 1000 / rate);
        let (pacer, outbox, packets) = (self.pacer.stats(), self.outbox.stats(), self.coding.stats());
        let down = json!({
            "received_ms": ms(self.ledger.received_in_all()),
            "heard_ms": ms(self.ledger.heard_in_all(now)),
            "late_ms": ms(self.stats.late),
            "interrupted_ms": ms(pacer.dropped),
            "unreadable": self.stats.unreadable,
            "events_lost": pacer.events_lost,
        });
        let up = json!({
            "received_ms": ms(outbox.taken),
            "dropped_ms": ms(outbox.lost),
            "refused": self.stats.appends_refused,
            "packets_concealed": packets.concealed,
            "packets_undecodable": packets.undecodable,
            "delay_ms": percentiles(self.outbox.delay()),
            "jitter_ms": percentiles(self.outbox.jitter()),
        });
        let to_watch = json!({
            "sent_ms": ms(pacer.sent),
            "queued_ms": millis(self.pacer.held()),
            "dropped_ms": ms(pacer.overflowed),
            "delay_ms": percentiles(self.pacer.delay()),
        });
        let (barge_ins, truncations) = (json!(self.stats.barge_ins), json!(self.stats.truncations));
        [("down", down), ("up", up), ("to_watch", to_watch), ("barge_ins", barge_ins), ("truncations", truncations)]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn audio(&mut self, now: Duration, event: &mut Map<String, Value>) {
        let delta = event.remove("delta");
        let (reply, item) = (text_of(event, "response_id"), text_of(event, "item_id"));
        let Some(pcm) = delta.as_ref().and_then(Value::as_str).and_then(|delta| BASE64.decode(delta).ok()) else {
            self.stats.unreadable += 1;
            self.ledger.lost_bytes(item);
            warn!("the engine sent audio that is not base64; it was left out");
            return;
        };
        let (samples, index) = (pcm.len() as u64 / 2, event.get("content_index").and_then(Value::as_u64));
        let Some(received) = self.ledger.receive(reply, item, index.unwrap_or(0), pcm) else {
            self.stats.late += samples;
            return;
        };
        let before = self.pacer.stats().overflowed;
        self.pacer.push_audio(now, received.item, received.end, received.pcm);
        if before == 0 && self.pacer.stats().overflowed > 0 {
            warn!("more than ten minutes of a reply are waiting; the oldest of it is being dropped");
        }
    }

    fn barge_in(&mut self, now: Duration) {
        // An interruption before this one is settled by what is known of it.
        self.settle_with_what_is_known();
        self.stats.barge_ins += 1;
        self.epoch += 1;
        let runs = self.ledger.interrupt(now);
        self.pacer.drop_audio(|_| true);
        self.pacer.listener_flushed();
        self.mark = None;
        if self.playout {
            self.flush = Some(json!({"type": "flush", "epoch": self.epoch}));
        }
        self.unsettled = Some(Unsettled {
            flushed_until: self.playout.then_some(now + FLUSHED_WAIT),
            stopped: None,
            reply_until: runs.then_some(now + REPLY_END_WAIT),
        });
        self.settle(now);
    }

    /// The Watch has cancelled a reply, or whatever the engine is at.
    fn cancelled(&mut self, reply: Option<&str>) {
        let items = self.ledger.cancel(reply);
        self.pacer.drop_audio(|item| items.contains(&item));
    }

    fn reply_is_over(&mut self, now: Duration) {
        if let Some(unsettled) = &mut self.unsettled {
            unsettled.reply_until = None;
            self.settle(now);
        }
    }

    /// Tells the engine what was heard as soon as there is nothing more to wait for.
    fn settle(&mut self, now: Duration) {
        let Some(unsettled) = &mut self.unsettled else { return };
        for until in [&mut unsettled.flushed_until, &mut unsettled.reply_until] {
            *until = until.filter(|until| *until > now);
        }
        if unsettled.flushed_until.is_none() && unsettled.reply_until.is_none() {
            self.settle_with_what_is_known();
        }
    }

    fn settle_with_what_is_known(&mut self) {
        let Some(unsettled) = self.unsettled.take() else { return };
        let stopped = match &unsettled.stopped {
            Some((item, ms)) => Stopped::At(item, *ms),
            None if self.playout => Stopped::LastPlayed,
            None => Stopped::Reckoned,
        };
        let Some(truncation) = self.ledger.settle(stopped).filter(|_| self.truncates) else { return };
        let mut event = Map::new();
        event.insert("type".into(), json!("conversation.item.truncate"));
        event.insert("item_id".into(), json!(truncation.item));
        event.insert("content_index".into(), json!(truncation.content_index));
        event.insert("audio_end_ms".into(), json!(truncation.ms));
        match self.outbox.own_event(event) {
            Ok(id) => {
                self.stats.truncations += 1;
                self.truncates_sent.push_back((id, truncation.item));
                if self.truncates_sent.len() > TRUNCATES_REMEMBERED {
                    self.truncates_sent.pop_front();
                }
            }
            Err(stuck) => self.unless_stuck(Err(stuck)),
        }
    }

    fn mark_at(&self, item: ItemKey, end: u64) -> Option<Value> {
        let id = self.ledger.id(item).filter(|id| self.playout && !id.is_empty())?;
        let ms = end * 1000 / u64::from(EngineKind::Grok.output_rate());
        Some(json!({"type": "mark", "item": id, "epoch": self.epoch, "ms": ms}))
    }

    /// Whether this `conversation.item.truncated` answers a truncate of ours.
    fn answers_ours(&mut self, event: &Map<String, Value>) -> bool {
        let item = text_of(event, "item_id");
        let sent = self.truncates_sent.iter().position(|(_, truncated)| truncated == item);
        sent.and_then(|at| self.truncates_sent.remove(at)).is_some()
    }

    /// Whether this error is about an event of ours. The Watch would take it for a refusal of its own.
    fn is_about_ours(&mut self, event: &Map<String, Value>) -> bool {
        let named = text_in(event, "error", "event_id");
        let truncate = match named {
            // Not all errors name their event.
            "" => {
                let about = text_in(event, "error", "message").to_ascii_lowercase().contains("truncat");
                if !about || self.truncates_sent.is_empty() {
                    return false;
                }
                self.truncates_sent.pop_front()
            }
            named if self.outbox.is_own(named) => {
                let sent = self.truncates_sent.iter().position(|(id, _)| id == named);
                sent.and_then(|at| self.truncates_sent.remove(at))
            }
            _ => return false,
        };
        let unknown = [text_in(event, "error", "type"), text_in(event, "error", "code")]
            .iter()
            .any(|word| *word == "invalid_event" || word.contains("unknown"));
        if truncate.is_some() && unknown {
            debug!("the engine does not know truncation; no more are sent");
            self.truncates = false;
        } else if truncate.is_none() {
            self.stats.appends_refused += 1;
            if self.stats.appends_refused == 1 {
                warn!("the engine refuses audio from the microphone");
            }
        }
        true
    }

    fn unless_stuck(&mut self, sent: Result<(), Stuck>) {
        if sent == Err(Stuck) {
            self.engine_closed("The engine stopped reading.");
        }
    }
}

/// A text field; empty where there is none.
fn text_of<'a>(event: &'a Map<String, Value>, field: &str) -> &'a str {
    event.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A text field of an object in the event; empty where there is none.
fn text_in<'a>(event: &'a Map<String, Value>, object: &str, field: &str) -> &'a str {
    event.get(object).and_then(Value::as_object).map_or("", |object| text_of(object, field))
}

/// What goes in place of an event that is too large to seal.
fn cut_short(event: &Map<String, Value>) -> Bytes {
    let kind = match text_of(event, "type") {
        "" => "unknown",
        kind if kind.len() > LONGEST_TYPE => "unknown",
        kind => kind,
    };
    json!({"type": kind, "conduit_truncated": true}).to_string().into()
}

/// Deltas come padded or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How long the Watch's audio waits for `session.updated` (case 43). Both sides' default is 24 kHz anyway.
const CONFIGURE_WAIT: Duration = Duration::from_secs(1);

/// How long the Watch may take to say where it stopped.
const FLUSHED_WAIT: Duration = Duration::from_secs(1);

/// How long the end of an interrupted reply is waited for. It follows within some 100 ms or not at all, and the user's
/// next words must not be answered before the truncate is there.
const REPLY_END_WAIT: Duration = Duration::from_millis(500);

/// How often the engine is asked for a sign of life, and how long it may give none: nothing else shows a dead connection
/// while both sides are silent.
const PING_EVERY: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);

/// Truncates whose answer is still recognised.
const TRUNCATES_REMEMBERED: usize = 16;

/// Longer than any event's type.
const LONGEST_TYPE: usize = 128;

#[cfg(test)]
mod sequences;
#[cfg(test)]
mod tests;
