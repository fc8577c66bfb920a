//! The model behind the peer: hears, understands what the script says it understands, delegates and speaks.
//!
//! Its timeline is the audio it received (`engines.md` 1.6): without audio nothing happens, appends are not even
//! acknowledged. No IO: audio, texts and instants in, texts and packets out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use watch_audio_media::codec::CodecError;

use super::check::tokens;
use super::events::{Events, Slot};
use super::http::session_id;
use super::mouth::{Mouth, Packet};
use super::{Dialect, Note, Occasion, Options};
use crate::sim::ear::{Ear, EarSettings, Noticed};
use crate::sim::record::{Event, Heard};
use crate::sim::script::{RATE, Turn, Utterance, fragments};

/// One session's model.
pub(super) struct Model {
    options: Arc<Options>,
    note: Note,
    dialect: Dialect,
    id: String,
    request: Value,
    events: Events,
    texts: VecDeque<String>,
    mouth: Mouth,
    ear: Ear,
    open: bool,
    muted: bool,
    closed: bool,
    /// What comes at a time of the timeline; the second number keeps the order of what was planned.
    plans: BTreeMap<(u64, u64), Plan>,
    planned: u64,
    appends: u64,
    questions: usize,
    /// The question being heard: its beginning, and how many of its words are told.
    question: Option<(u64, usize)>,
    /// Delegations made, by id: whether they were answered, and the answer.
    delegations: Vec<(String, Option<Utterance>)>,
    user_turn: Option<ProjectedTurn>,
    own_turn: Option<ProjectedTurn>,
    turn_ids: u64,
    next_usage: u64,
    /// What was heard of the speech that goes on, for an echo.
    speech: Vec<i16>,
}

/// A turn of dialect B while it is open.
struct ProjectedTurn {
    id: String,
    start_ms: u64,
    end_ms: u64,
    words: String,
}

/// What the model is going to do.
enum Plan {
    /// Tell words of the user's.
    Heard(String, Slot),
    /// Close the user's turn.
    TurnOver,
    Delegate {
        request: String,
        offset_ms: u64,
        answer: Utterance,
        filler: Option<Utterance>,
    },
    Say(Occasion, Utterance),
    /// Acknowledge an append, and say what it asks for.
    Append(Value),
    Usage,
}

impl Model {
    pub(super) fn new(options: Arc<Options>, note: Note, dialect: Dialect, request: Value) -> Result<Self, CodecError> {
        let silence = Duration::from_millis(options.timing.silence_ms);
        Ok(Self {
            id: session_id(dialect, &note),
            mouth: Mouth::new(note.clone(), &options.faults.rtp)?,
            ear: Ear::new(RATE, EarSettings { silence, ..EarSettings::default() }),
            events: Events::new(dialect),
            next_usage: options.timing.usage_ms,
            texts: VecDeque::new(),
            plans: BTreeMap::new(),
            delegations: Vec::new(),
            speech: Vec::new(),
            user_turn: None,
            own_turn: None,
            question: None,
            open: false,
            muted: false,
            closed: false,
            planned: 0,
            appends: 0,
            questions: 0,
            turn_ids: 0,
            options,
            note,
            dialect,
            request,
        })
    }

    /// The data channel is open.
    pub(super) fn opened(&mut self) {
        self.open = true;
        let started = self.events.started(&self.id, &self.request);
        self.texts.push_back(started);
        if let Some(greeting) = self.options.script.greeting.clone() {
            self.plan(GREETING_MS, Plan::Say(Occasion::Greeting, greeting));
        }
        self.plan(self.next_usage, Plan::Usage);
    }

    /// Whether the data channel is open.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Sound can be sent.
    pub(super) fn connected(&mut self, now: Instant) {
        self.mouth.start(now);
    }

    /// The next text for the data channel.
    pub(super) fn text(&mut self) -> Option<String> {
        if self.open { self.texts.pop_front() } else { None }
    }

    /// A text of the simulator's own, said as it is.
    pub(super) fn inject(&mut self, text: String) {
        self.texts.push_back(text);
    }

    /// Whether the session is closed: nothing more comes of it.
    pub(super) fn closed(&self) -> bool {
        self.closed
    }

    /// When the next packet is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.mouth.due()
    }

    /// The length of a packet.
    pub(super) fn period(&self) -> Duration {
        self.mouth.period()
    }

    /// A sequence number for a packet that carries nothing.
    pub(super) fn empty_number(&mut self) -> u64 {
        self.mouth.empty_number()
    }

    /// The next packet of the output, none when it is not sent.
    pub(super) fn packet(&mut self, now: Instant) -> Option<Packet> {
        let (packet, words) = self.mouth.packet(now);
        let slot = self.slot();
        for word in words {
            let told = self.events.words(false, &word, slot);
            self.tell(told);
            self.project(false, &word, slot);
        }
        if !self.mouth.speaking() {
            self.end_turn(false);
        }
        packet
    }

    /// Takes received audio at 24 kHz: the timeline moves on.
    pub(super) fn hear(&mut self, now: Instant, pcm: &mut [i16]) {
        if self.muted {
            pcm.fill(0);
        }
        let mut noticed = Vec::new();
        self.ear.push(pcm, &mut noticed);
        if self.options.script.echo {
            self.speech.extend_from_slice(pcm);
            if !self.ear.speaking() && noticed.is_empty() {
                let surplus = self.speech.len().saturating_sub(ECHO_PREFIX);
                self.speech.drain(..surplus);
            }
        }
        for noticed in noticed {
            match noticed {
                Noticed::Started(since) => self.speech_started(now, since.as_millis() as u64),
                Noticed::Stopped(since) => self.speech_stopped(now, since.as_millis() as u64),
            }
        }
        self.tell_words_so_far();
        let time = self.time();
        while let Some(entry) = self.plans.first_entry().filter(|entry| entry.key().0 <= time) {
            let plan = entry.remove();
            self.carry_out(now, plan);
        }
    }

    fn speech_started(&mut self, now: Instant, since: u64) {
        self.note.with(|session| {
            session.heard.push(Heard { from: now, to: None, start_ms: since, end_ms: None });
        });
        self.question = Some((since, 0));
        if self.mouth.speaking() {
            self.mouth.cut(now + Duration::from_millis(self.options.timing.barge_in_ms));
            if self.dialect == Dialect::B && self.options.dialect_b.cleared {
                let cleared = self.events.cleared();
                self.tell(cleared);
            }
        }
    }

    /// One word per slot while somebody speaks.
    fn tell_words_so_far(&mut self) {
        let Some((start, told)) = self.question else { return };
        if self.options.faults.late_transcript {
            return;
        }
        let words = self.turn().map(|turn| fragments(&turn.heard)).unwrap_or_default();
        let slot_end = start.next_multiple_of(SLOT_MS) + (told as u64 + 1) * SLOT_MS;
        if told + 1 < words.len() && slot_end <= self.time() {
            self.question = Some((start, told + 1));
            let due = slot_end + self.options.timing.transcript_ms;
            self.plan(due, Plan::Heard(words[told].clone(), (slot_end - SLOT_MS, slot_end)));
        }
    }

    fn speech_stopped(&mut self, now: Instant, end: u64) {
        self.note.with(|session| {
            if let Some(heard) = session.heard.last_mut() {
                (heard.to, heard.end_ms) = (Some(now), Some(end));
            }
        });
        let (start, told) = self.question.take().unwrap_or((end, 0));
        let time = self.time();
        let timing = self.options.timing.clone();
        if self.options.script.echo {
            let echo = Utterance::new("", std::mem::take(&mut self.speech));
            return self.plan(time + timing.think_ms, Plan::Say(Occasion::Echo, echo));
        }
        let Some(turn) = self.turn().cloned() else { return };
        self.questions += 1;
        let words = fragments(&turn.heard);
        let told_at = (end + timing.transcript_ms).max(time);
        let decided = told_at + timing.think_ms;
        let slot_end = end.next_multiple_of(SLOT_MS).max(start.next_multiple_of(SLOT_MS) + (told as u64 + 1) * SLOT_MS);
        if self.options.faults.late_transcript {
            self.plan_late_transcript(&words, start, end, decided + LATE_TRANSCRIPT_MS);
        } else {
            self.plan(told_at, Plan::Heard(words[told..].concat(), (slot_end - SLOT_MS, slot_end)));
        }
        self.plan(told_at, Plan::TurnOver);
        let plan = match turn.delegate {
            Some(request) => Plan::Delegate { request, offset_ms: slot_end, answer: turn.answer, filler: turn.filler },
            None => Plan::Say(Occasion::Answer, turn.answer),
        };
        self.plan(decided, plan);
    }

    /// Case 34: three pieces that lie before the delegation, and one of later speech.
    fn plan_late_transcript(&mut self, words: &[String], start: u64, end: u64, due: u64) {
        let third = words.len().div_ceil(3).max(1);
        let step = (end.saturating_sub(start) / 3).max(1);
        for (n, piece) in words.chunks(third).enumerate() {
            let from = start + n as u64 * step;
            self.plan(due, Plan::Heard(piece.concat(), (from, from + step.min(SLOT_MS))));
        }
        self.plan(due, Plan::Heard(" Later".to_owned(), (due, due + SLOT_MS)));
    }

    fn carry_out(&mut self, now: Instant, plan: Plan) {
        match plan {
            Plan::Heard(words, slot) => {
                let told = self.events.words(true, &words, slot);
                self.tell(told);
                self.project(true, &words, slot);
            }
            Plan::TurnOver => self.end_turn(true),
            Plan::Say(occasion, utterance) => self.mouth.say(occasion, utterance),
            Plan::Usage => {
                let usage = self.events.usage(self.time());
                self.tell(usage);
                self.next_usage += self.options.timing.usage_ms;
                self.plan(self.next_usage, Plan::Usage);
            }
            Plan::Delegate { request, offset_ms, answer, filler } => {
                let id = format!("item_sim{}", self.delegations.len() + 1);
                self.delegations.push((id.clone(), Some(answer)));
                for _ in 0..if self.options.faults.double_delegation { 2 } else { 1 } {
                    let created = self.events.delegation(&id, offset_ms, &request);
                    self.tell(created);
                }
                if let Some(filler) = filler {
                    let due = self.time() + self.options.timing.filler_ms;
                    self.plan(due, Plan::Say(Occasion::Filler, filler));
                }
            }
            Plan::Append(event) => self.appended(now, &event),
        }
    }

    /// Takes a text of the client's.
    pub(super) fn receive(&mut self, now: Instant, text: &str) {
        self.note.with(|session| session.received.push(Event::new(now, text)));
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or_default();
        if self.closed {
            return;
        }
        if !self.allowed(kind) {
            let info = self.events.not_allowed(kind);
            return self.tell(info);
        }
        match (self.dialect, kind) {
            (_, "session.close") => self.close("close_requested"),
            (Dialect::A, "session.input_audio.mute") | (Dialect::B, "input_audio.pause") => self.mute(true),
            (Dialect::A, "session.input_audio.unmute") | (Dialect::B, "input_audio.resume") => self.mute(false),
            (Dialect::A, "session.commentary.append" | "session.thinking.append" | "session.instructions.append") => {
                self.append_a(&event);
            }
            (Dialect::B, "session.context.append" | "delegation.context.append") => self.append_b(&event),
            (Dialect::A, "session.update") => {
                self.refuse("immutable_field_update", "Nothing of this session can be changed.", None, &event);
            }
            (Dialect::A, "response.item.create" | "response.create") => {
                self.refuse("invalid_request_error", "This requires Responses delegation.", None, &event);
            }
            _ => {
                let supported = if self.dialect == Dialect::A { EVENTS_A } else { EVENTS_B };
                let message = format!("Unsupported event. Supported: {supported}.");
                self.refuse("invalid_value", &message, Some("type"), &event);
            }
        }
    }

    /// Ends the session with `session.closed`; appends that never found a place are told of first.
    pub(super) fn close(&mut self, reason: &str) {
        let waiting: Vec<Value> = std::mem::take(&mut self.plans)
            .into_values()
            .filter_map(|plan| if let Plan::Append(event) = plan { Some(event) } else { None })
            .collect();
        for event in waiting {
            self.refuse("context_injection_incomplete", "The session is over.", None, &event);
        }
        let closed = self.events.closed(&self.id, reason, self.time());
        self.tell(closed);
        self.closed = true;
    }

    fn allowed(&self, kind: &str) -> bool {
        let allowed = &self.request["client"]["data_channel"]["allowed_client_events"];
        allowed.as_array().is_none_or(|list| list.iter().any(|entry| entry == kind))
    }

    fn append_a(&mut self, event: &Value) {
        let Some(content) = event["content"].as_str() else {
            return self.refuse("invalid_value", "content must be a string.", Some("content"), event);
        };
        if tokens(content) > MAX_TOKENS {
            let message = "Context append text must not exceed 500 tokens.";
            return self.refuse("invalid_value", message, Some("content"), event);
        }
        if event.get("delegation_id").is_none() || !self.known(&event["delegation_id"]) {
            let message = "delegation_id must be null or name a delegation.";
            return self.refuse("invalid_value", message, Some("delegation_id"), event);
        }
        self.place(event);
    }

    fn append_b(&mut self, event: &Value) {
        let content = event["content"].as_array().filter(|parts| !parts.is_empty());
        let texts = content.and_then(|parts| {
            parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "input_text")).collect()
        });
        let Some(texts): Option<Vec<&str>> = texts else {
            return self.refuse("invalid_value", "content must be input_text parts.", Some("content"), event);
        };
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if self.options.dialect_b.byte_limit && bytes > MAX_BYTES {
            return self.refuse("invalid_value", "At most 500 bytes.", Some("content"), event);
        }
        if event["type"] == "delegation.context.append" && !self.known(&event["delegation_item_id"]) {
            return self.refuse("invalid_value", "There is no such delegation.", Some("delegation_item_id"), event);
        }
        self.place(event);
    }

    fn known(&self, id: &Value) -> bool {
        id.is_null() || self.delegations.iter().any(|(known, _)| id == known)
    }

    /// An append finds its place at the next slot, some time later.
    fn place(&mut self, event: &Value) {
        let (least, spread) = self.options.timing.append_ms;
        self.appends += 1;
        let later = if spread == 0 { 0 } else { self.appends * APPEND_STEP_MS % spread };
        let due = (self.time() + least + later).next_multiple_of(SLOT_MS);
        self.plan(due, Plan::Append(event.clone()));
    }

    fn appended(&mut self, now: Instant, event: &Value) {
        let time = self.time();
        let acknowledgement = self.events.appended(event, (time - time % SLOT_MS, time - time % SLOT_MS + SLOT_MS));
        self.tell(acknowledgement);
        let spoken = match self.dialect {
            Dialect::A => event["type"] == "session.commentary.append",
            Dialect::B => event["channel"].as_str().unwrap_or("speakable") == "speakable",
        };
        if !spoken {
            return;
        }
        let id = if self.dialect == Dialect::A { &event["delegation_id"] } else { &event["delegation_item_id"] };
        let said = if self.options.script.verbatim {
            let words = first_words(event["content"].as_str().unwrap_or_default());
            let answers = self.delegations.iter_mut().rev().filter(|(known, _)| id.is_null() || id == known);
            let answer = answers
                .map(|(_, answer)| answer)
                .find(|answer| answer.as_ref().is_some_and(|answer| first_words(&answer.text) == words));
            let answer = answer.and_then(Option::take).map(|answer| (Occasion::Answer, answer));
            Some(answer.unwrap_or_else(|| (Occasion::Remark, self.options.script.remark.clone())))
        } else if id.is_null() {
            Some((Occasion::Remark, self.options.script.remark.clone()))
        } else {
            // Further pieces of an answer belong to what is being said already.
            let delegation = self.delegations.iter_mut().find(|(known, _)| id == known);
            delegation.and_then(|(_, answer)| answer.take()).map(|answer| (Occasion::Answer, answer))
        };
        if let Some((occasion, utterance)) = said {
            self.mouth.cut(now);
            self.plan(time + self.options.timing.speak_ms, Plan::Say(occasion, utterance));
        }
    }

    fn mute(&mut self, muted: bool) {
        self.muted = muted;
        let event = self.events.muted(muted);
        self.tell(event);
    }

    fn refuse(&mut self, code: &str, message: &str, param: Option<&str>, event: &Value) {
        let error = self.events.error(code, message, param, event);
        self.tell(error);
    }

    fn tell(&mut self, text: String) {
        if !self.closed {
            self.texts.push_back(text);
        }
    }

    /// Dialect B's turns: the words again, grouped.
    fn project(&mut self, user: bool, words: &str, slot: Slot) {
        if self.dialect == Dialect::A || !self.options.dialect_b.turns {
            return;
        }
        let mut turn = if user { self.user_turn.take() } else { self.own_turn.take() };
        if turn.is_none() {
            self.turn_ids += 1;
            let id = format!("turn_{}", self.turn_ids);
            let created = self.events.turn_created(&id, user, slot.0);
            self.tell(created);
            turn = Some(ProjectedTurn { id, start_ms: slot.0, end_ms: slot.1, words: String::new() });
        }
        if let Some(turn) = &mut turn {
            turn.words.push_str(words);
            turn.end_ms = slot.1;
            let delta = self.events.turn_delta(&turn.id, words, slot);
            self.tell(delta);
        }
        *(if user { &mut self.user_turn } else { &mut self.own_turn }) = turn;
    }

    fn end_turn(&mut self, user: bool) {
        let turn = if user { self.user_turn.take() } else { self.own_turn.take() };
        if let Some(turn) = turn {
            let done = self.events.turn_done(&turn.id, user, &turn.words, (turn.start_ms, turn.end_ms));
            self.tell(done);
        }
    }

    fn turn(&self) -> Option<&Turn> {
        self.options.script.turn(self.questions).filter(|_| !self.options.script.echo)
    }

    fn plan(&mut self, due: u64, plan: Plan) {
        self.planned += 1;
        self.plans.insert((due, self.planned), plan);
    }

    /// Audio received, in ms.
    fn time(&self) -> u64 {
        self.ear.time().as_millis() as u64
    }

    fn slot(&self) -> Slot {
        let start = self.time() / SLOT_MS * SLOT_MS;
        (start, start + SLOT_MS)
    }
}

/// What two texts have in common when one says the other.
fn first_words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.take(3).map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

/// An event of at least so many bytes, of a type nobody knows (case 29).
pub(super) fn huge(bytes: usize) -> String {
    json!({"type": "session.sim.huge", "event_id": "event_huge", "filling": "x".repeat(bytes)}).to_string()
}

/// The timeline's step (`engines.md` 1.4).
const SLOT_MS: u64 = 200;
/// A greeting waits for the first sound to settle.
const GREETING_MS: u64 = 500;
/// How much later a late transcript comes (case 34).
const LATE_TRANSCRIPT_MS: u64 = 400;
/// Spreads the acknowledgements without chance: any number without a factor in common with usual spreads.
const APPEND_STEP_MS: u64 = 131;
/// `engines.md` 1.3.
const MAX_TOKENS: usize = 500;
/// `engines.md` 2.3.
const MAX_BYTES: usize = 500;
/// Audio kept from before speech is noticed, for an echo.
const ECHO_PREFIX: usize = RATE as usize / 5;
const EVENTS_A: &str = "session.start, session.update, session.input_audio.append, session.input_audio.mute, \
                        session.input_audio.unmute, session.instructions.append, session.thinking.append, \
                        session.commentary.append, response.item.create, response.create, session.close";
const EVENTS_B: &str = "session.context.append, delegation.context.append, input_audio.pause, input_audio.resume, \
                        session.close";
