//! What the simulated service does with what it receives. No IO: texts and times in, texts out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::reply::{self, Call, Plan, Step};
use super::{Interruption, Opening, Options, Reply, Sessions, Truncate, TruncateSeen};
use crate::sim::ear::{Ear, EarSettings, Noticed};
use crate::sim::record::{Event, Heard};
use crate::sim::script::{RATE, Utterance, fragments};

/// What goes to the socket.
pub(super) enum Out {
    Text(String),
    Close(Option<u16>),
    Drop,
}

/// One session's service.
pub(super) struct Model {
    options: Arc<Options>,
    sessions: Sessions,
    index: usize,
    ids: u64,
    /// The effective session, as `session.updated` has it.
    session: Value,
    /// Events that wait for nothing.
    ready: VecDeque<Out>,
    /// The running reply, in order.
    reply: VecDeque<Step>,
    active: Option<Active>,
    /// Things that come at a time of their own, earliest first.
    timed: VecDeque<(Duration, Out)>,
    next_ping: Option<Duration>,
    ear: Ear,
    /// The input item being spoken, or the last one.
    input_item: Option<String>,
    last_item: Option<String>,
    /// The audio of the speech being heard, kept for an echo.
    speech: Vec<i16>,
    /// How many questions were heard, and the answer a function call was made for.
    turns: usize,
    awaited: Option<Utterance>,
    late_truncates: Vec<(String, u64)>,
    straggler: Option<Value>,
    spoke: bool,
}

/// The response that is not over yet.
struct Active {
    response: String,
    /// Its place among the recorded replies, when it speaks.
    reply: Option<usize>,
}

impl Model {
    pub(super) fn new(options: Arc<Options>, sessions: Sessions, index: usize) -> Self {
        let ping = Duration::from_millis(options.ping_ms);
        let model = sessions.with(index, |session| session.model.clone());
        let mut this = Self {
            session: first_session(&options, model.as_deref()),
            sessions,
            index,
            ids: 0,
            ready: VecDeque::new(),
            reply: VecDeque::new(),
            active: None,
            timed: timed(&options),
            next_ping: (!ping.is_zero()).then_some(ping),
            ear: Ear::new(RATE, ear_settings(&Value::Null)),
            input_item: None,
            last_item: None,
            speech: Vec::new(),
            turns: 0,
            awaited: None,
            late_truncates: Vec::new(),
            straggler: None,
            spoke: false,
            options,
        };
        if this.options.opening == Opening::Full {
            let session = this.session.clone();
            this.say(json!({"type": "session.created", "session": session}));
        }
        if matches!(this.options.opening, Opening::Full | Opening::ConversationOnly) {
            this.say(json!({"type": "conversation.created",
                            "conversation": {"id": "conv_sim1", "object": "realtime.conversation"}}));
        }
        this
    }

    /// When [`Model::pop`] has something, since the session began.
    pub(super) fn due(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let timed = self.timed.front().map(|(due, _)| *due);
        [timed, self.reply.front().map(|step| step.due), self.next_ping].into_iter().flatten().min()
    }

    /// The next thing that is due.
    pub(super) fn pop(&mut self, now: Duration) -> Option<Out> {
        if self.ready.is_empty() && self.next_ping.is_some_and(|due| due <= now) {
            self.next_ping = Some(now + Duration::from_millis(self.options.ping_ms));
            self.say(json!({"type": "ping", "timestamp": now.as_millis() as u64}));
        }
        let out = if let Some(out) = self.ready.pop_front() {
            out
        } else if self.timed.front().is_some_and(|(due, _)| *due <= now) {
            self.timed.pop_front()?.1
        } else if self.reply.front().is_some_and(|step| step.due <= now) {
            let step = self.reply.pop_front()?;
            self.sent(&step);
            Out::Text(step.event.to_string())
        } else {
            return None;
        };
        self.keep(&out);
        Some(out)
    }

    fn keep(&mut self, out: &Out) {
        let at = Instant::now();
        let code = match out {
            Out::Text(text) => {
                let event = Event::new(at, text);
                if !(event.kind.ends_with("audio.delta")) {
                    self.note(|session| session.sent.push(event));
                }
                return;
            }
            Out::Close(code) => code.unwrap_or(1005),
            Out::Drop => 1006,
        };
        self.note(|session| _ = session.ended.get_or_insert((at, code)));
    }

    fn sent(&mut self, step: &Step) {
        let at = Instant::now();
        if let Some(reply) = self.active.as_ref().and_then(|active| active.reply).filter(|_| step.samples > 0) {
            self.note(|session| {
                let reply = &mut session.replies[reply];
                reply.first_audio.get_or_insert(at);
                reply.last_audio = Some(at);
                reply.samples += step.samples;
            });
        }
        if step.last {
            self.active = None;
            for (item, ms) in std::mem::take(&mut self.late_truncates) {
                self.truncated(&item, ms);
            }
        }
    }

    /// Takes one text of the client's.
    pub(super) fn receive(&mut self, now: Duration, text: &str) {
        let Ok(event) = serde_json::from_str::<Value>(text) else {
            return self.error("invalid_event", "The event is not JSON.", &Value::Null);
        };
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "input_audio_buffer.append" {
            return self.append(now, &event);
        }
        self.note(|session| session.received.push(Event::new(Instant::now(), text)));
        match kind {
            "session.update" => self.update(&event),
            "conversation.item.create" => self.item(now, &event),
            "conversation.item.truncate" => self.truncate(&event),
            "response.create" => self.create(now, &event),
            "response.cancel" => self.cancel(&event),
            "input_audio_buffer.commit" => self.commit(now),
            "input_audio_buffer.clear" => self.say(json!({"type": "input_audio_buffer.cleared"})),
            "conversation.item.delete" | "pong" => {}
            _ => self.error("invalid_event", "Unknown event type.", &event),
        }
    }

    fn update(&mut self, event: &Value) {
        let Some(asked) = event["session"].as_object() else {
            return self.error("invalid_request", "session is missing.", event);
        };
        for (name, value) in asked {
            self.session[name.as_str()] = value.clone();
        }
        if self.session["audio"]["input"]["format"]["rate"].as_u64().is_some_and(|rate| rate != u64::from(RATE)) {
            self.error("unsupported_rate", "The simulator hears and speaks at 24000 Hz only.", event);
        }
        if self.options.quirks.voice_prefix {
            self.session["voice"] = json!(format!("xai_{}", self.session["voice"].as_str().unwrap_or("eve")));
        }
        self.ear.set(ear_settings(&self.session["turn_detection"]));
        if self.options.opening != Opening::NeverUpdated {
            let session = self.session.clone();
            self.say(json!({"type": "session.updated", "session": session}));
            self.note(|session| _ = session.updated.get_or_insert(Instant::now()));
        }
    }

    fn append(&mut self, now: Duration, event: &Value) {
        let at = Instant::now();
        let bytes = event["audio"].as_str().and_then(|audio| STANDARD.decode(audio).ok());
        let good = bytes.as_ref().is_some_and(|bytes| bytes.len().is_multiple_of(2));
        let samples: Vec<i16> =
            bytes.unwrap_or_default().chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
        self.note(|session| {
            session.appends += 1;
            session.bad_appends += u64::from(!good);
            session.samples += samples.len() as u64;
            session.first_append.get_or_insert(at);
        });
        if !good {
            return self.error("invalid_audio", "The audio is not whole 16-bit samples in base64.", event);
        }
        let mut noticed = Vec::new();
        self.ear.push(&samples, &mut noticed);
        self.speech.extend_from_slice(&samples);
        if !self.ear.speaking() && noticed.is_empty() {
            let surplus = self.speech.len().saturating_sub(PREFIX);
            self.speech.drain(..surplus);
        }
        for noticed in noticed {
            match noticed {
                Noticed::Started(since) => self.speech_started(at, since),
                Noticed::Stopped(since) => self.speech_stopped(now, at, since),
            }
        }
    }

    fn speech_started(&mut self, at: Instant, since: Duration) {
        let start_ms = since.as_millis() as u64;
        self.note(|session| session.heard.push(Heard { from: at, to: None, start_ms, end_ms: None }));
        if !self.vad() {
            return;
        }
        if !(self.options.quirks.same_item && self.input_item.is_some()) {
            self.input_item = Some(self.id("item"));
        }
        let interruption = self.options.interruption;
        if interruption == Interruption::DoneFirst {
            self.stop_reply("cancelled", "turn_detected");
        }
        let item = self.input_item.clone();
        self.say(json!({"type": "input_audio_buffer.speech_started", "item_id": item, "audio_start_ms": start_ms}));
        match interruption {
            Interruption::Cancelled => self.stop_reply("cancelled", "turn_detected"),
            Interruption::Incomplete => self.stop_reply("incomplete", "turn_detected"),
            Interruption::LateDeltas | Interruption::Straggler => self.stop_late(),
            Interruption::Nothing => _ = self.drop_reply(),
            Interruption::DoneFirst => {}
        }
    }

    fn speech_stopped(&mut self, now: Duration, at: Instant, since: Duration) {
        let end_ms = since.as_millis() as u64;
        self.note(|session| {
            if let Some(heard) = session.heard.last_mut() {
                (heard.to, heard.end_ms) = (Some(at), Some(end_ms));
            }
        });
        if self.vad() {
            let item = self.input_item.clone();
            self.say(json!({"type": "input_audio_buffer.speech_stopped", "item_id": item, "audio_end_ms": end_ms}));
            self.understood(now);
        }
    }

    /// A question is over: it becomes an item with its words, and is answered.
    fn understood(&mut self, now: Duration) {
        let item = self.input_item.clone().unwrap_or_else(|| self.id("item"));
        self.input_item = Some(item.clone());
        let previous = self.previous();
        self.say(json!({"type": "input_audio_buffer.committed", "item_id": item, "previous_item_id": previous}));
        let content = json!([{"type": "input_audio", "transcript": null}]);
        self.say(json!({"type": "conversation.item.added", "previous_item_id": previous, "item": {
            "id": item, "object": "realtime.item", "type": "message", "role": "user", "status": "completed",
            "content": content}}));
        self.last_item = Some(item.clone());
        let options = Arc::clone(&self.options);
        let turn = options.script.turn(self.turns).filter(|_| !options.script.echo);
        let heard = turn.map_or("", |turn| turn.heard.as_str());
        self.transcribe(&item, heard);
        self.turns += 1;
        let speech = std::mem::take(&mut self.speech);
        let start = now + Duration::from_millis(options.think_ms);
        let Some(turn) = turn else {
            return self.reply(start, Some(&Utterance::new("", speech)), None);
        };
        match (&turn.delegate, self.function()) {
            (Some(request), Some((name, parameter))) => {
                self.awaited = Some(turn.answer.clone());
                let arguments = json!({ parameter: request }).to_string();
                let call = Call { item: self.id("item"), id: self.id("call"), name, arguments };
                self.reply(start, turn.filler.as_ref(), Some(call));
            }
            _ => self.reply(start, Some(&turn.answer), None),
        }
    }

    fn transcribe(&mut self, item: &str, heard: &str) {
        let words = fragments(heard);
        let mut steps = vec![("updated", words.len() / 2, "in_progress")];
        if self.options.quirks.repeated_transcription {
            steps.extend((1..words.len()).map(|count| ("completed", count, "in_progress")));
        }
        steps.push(("completed", words.len(), "completed"));
        for (suffix, count, status) in steps {
            self.say(json!({"type": format!("conversation.item.input_audio_transcription.{suffix}"), "item_id": item,
                            "content_index": 0, "transcript": words[..count].concat(), "status": status}));
        }
    }

    fn item(&mut self, now: Duration, event: &Value) {
        let mut item = event["item"].clone();
        if item["id"].as_str().is_none() {
            item["id"] = json!(self.id("item"));
        }
        let previous = self.previous();
        self.last_item = item["id"].as_str().map(str::to_owned);
        self.say(json!({"type": "conversation.item.added", "previous_item_id": previous, "item": item}));
        if item["type"] == "force_message" {
            let text = item["content"][0]["text"].as_str().unwrap_or_default();
            let utterance = Utterance::new(text, Arc::clone(&self.options.script.remark.pcm));
            self.reply(now, Some(&utterance), None);
        }
    }

    fn create(&mut self, now: Duration, event: &Value) {
        if self.active.is_some() {
            let message = "Conversation already has an active response.";
            return self.error("conversation_already_has_active_response", message, event);
        }
        let script = &self.options.script;
        let utterance = self.awaited.take().or_else(|| script.greeting.clone().filter(|_| !self.spoke));
        let utterance = utterance.unwrap_or_else(|| script.remark.clone());
        self.reply(now + Duration::from_millis(self.options.think_ms), Some(&utterance), None);
    }

    fn cancel(&mut self, event: &Value) {
        let named = event["response_id"].as_str();
        match &self.active {
            Some(active) if named.is_none_or(|named| named == active.response) => {
                self.stop_reply("cancelled", "client_cancelled");
            }
            _ => {
                let message = "Cancellation failed: no active response found";
                self.error("response_cancel_not_active", message, event);
            }
        }
    }

    fn commit(&mut self, now: Duration) {
        if self.vad() || self.speech.is_empty() {
            return;
        }
        self.input_item = None;
        self.understood(now);
    }

    fn truncate(&mut self, event: &Value) {
        let item = event["item_id"].as_str().unwrap_or_default().to_owned();
        let ms = event["audio_end_ms"].as_u64().unwrap_or(u64::MAX);
        let event_id = event["event_id"].as_str().map(str::to_owned);
        let sent_ms = self.note(|session| {
            let reply = session.replies.iter().find(|reply| reply.item == item);
            let sent_ms = reply.map(|reply| reply.samples * 1_000 / u64::from(RATE));
            session.truncates.push(TruncateSeen { at: Instant::now(), item: item.clone(), ms, event_id, sent_ms });
            sent_ms
        });
        match self.options.truncate {
            Truncate::Silent => {}
            Truncate::Error => self.error("invalid_event", "conversation.item.truncate is not supported.", event),
            _ if sent_ms.is_none() => self.error("item_not_found", "There is no such item.", event),
            _ if ms == 0 || sent_ms.is_some_and(|sent| ms > sent) => {
                self.error("invalid_value", "audio_end_ms is not within the item's audio.", event);
            }
            Truncate::Late if self.active.is_some() => self.late_truncates.push((item, ms)),
            Truncate::Ok | Truncate::Late => self.truncated(&item, ms),
        }
    }

    /// Answers a truncation with the share of the words that was heard.
    fn truncated(&mut self, item: &str, ms: u64) {
        let reply = self.note(|session| session.replies.iter().find(|reply| reply.item == item).cloned());
        let Some(reply) = reply else { return };
        let words = fragments(&reply.text);
        let heard = (words.len() as u64 * ms * u64::from(RATE) / 1_000 / reply.total.max(1)) as usize;
        let transcript = words[..heard.min(words.len())].concat();
        self.say(json!({"type": "conversation.item.truncated", "item_id": item, "content_index": 0,
                        "audio_end_ms": ms, "transcript": transcript}));
    }

    fn reply(&mut self, start: Duration, utterance: Option<&Utterance>, call: Option<Call>) {
        self.spoke = true;
        if self.options.quirks.empty_deletion {
            self.say(json!({"type": "conversation.item.deleted", "item_id": ""}));
        }
        if self.options.quirks.abandoned_response {
            let (response, item) = (self.id("resp"), self.id("item"));
            self.say(json!({"type": "response.created", "response": reply::running(&response)}));
            let item =
                json!({"id": item, "type": "message", "role": "assistant", "status": "in_progress", "content": []});
            self.say(
                json!({"type": "response.output_item.added", "response_id": response, "output_index": 0, "item": item}),
            );
        }
        let (response, item, previous) = (self.id("resp"), self.id("item"), self.previous());
        let plan = Plan { response: &response, item: &item, previous, utterance, call };
        let mut steps = reply::steps(&self.options, start, &plan);
        if let Some(event) = self.straggler.take() {
            let middle = steps.len() / 2;
            steps.insert(middle, Step { due: steps[middle].due, samples: 0, last: false, event });
        }
        self.reply.extend(steps);
        let reply = utterance.map(|utterance| {
            let reply = Reply {
                response: response.clone(),
                item: item.clone(),
                text: utterance.text.clone(),
                first_audio: None,
                last_audio: None,
                samples: 0,
                total: utterance.pcm.len() as u64,
                stopped: None,
            };
            self.last_item = Some(item);
            self.note(|session| {
                session.replies.push(reply);
                session.replies.len() - 1
            })
        });
        self.active = Some(Active { response, reply });
    }

    fn stop_reply(&mut self, status: &str, reason: &str) {
        if let Some(response) = self.drop_reply() {
            let details = json!({"type": "cancelled", "reason": reason});
            let done = reply::done(&self.options, &response, status, details, &[]);
            self.say(done);
            for (item, ms) in std::mem::take(&mut self.late_truncates) {
                self.truncated(&item, ms);
            }
        }
    }

    /// The deltas that were under way still come (case 39).
    fn stop_late(&mut self) {
        let late: Vec<Step> = self.reply.iter().filter(|step| step.samples > 0).take(LATE + 1).cloned().collect();
        let straggler = self.options.interruption == Interruption::Straggler;
        if let Some(response) = self.drop_reply() {
            for step in late.iter().take(LATE) {
                self.ready.push_back(Out::Text(step.event.to_string()));
            }
            self.straggler = late.into_iter().nth(LATE).filter(|_| straggler).map(|step| step.event);
            let details = json!({"type": "cancelled", "reason": "turn_detected"});
            let done = reply::done(&self.options, &response, "cancelled", details, &[]);
            self.say(done);
        }
    }

    fn drop_reply(&mut self) -> Option<String> {
        self.reply.clear();
        let active = self.active.take()?;
        if let Some(reply) = active.reply {
            self.note(|session| session.replies[reply].stopped = Some(Instant::now()));
        }
        Some(active.response)
    }

    fn vad(&self) -> bool {
        self.session["turn_detection"]["type"] == "server_vad"
    }

    /// The first function the client offers, and the parameter of it that is required.
    fn function(&self) -> Option<(String, String)> {
        let tools = self.session["tools"].as_array()?;
        let function = tools.iter().find(|tool| tool["type"] == "function")?;
        let parameter = function["parameters"]["required"][0].as_str().unwrap_or("request");
        Some((function["name"].as_str()?.to_owned(), parameter.to_owned()))
    }

    fn previous(&self) -> Value {
        if self.options.quirks.unknown_previous_item { json!("item_never_announced") } else { json!(self.last_item) }
    }

    fn error(&mut self, code: &str, message: &str, event: &Value) {
        let client = event["event_id"].as_str();
        self.say(json!({"type": "error", "error": {"type": "invalid_request_error", "code": code, "message": message,
                        "param": null, "event_id": client}}));
    }

    fn say(&mut self, mut event: Value) {
        event["event_id"] = json!(self.id("event"));
        self.ready.push_back(Out::Text(event.to_string()));
    }

    fn id(&mut self, kind: &str) -> String {
        self.ids += 1;
        format!("{kind}_sim{}", self.ids)
    }

    fn note<T>(&self, change: impl FnOnce(&mut super::Session) -> T) -> T {
        self.sessions.with(self.index, change)
    }
}

/// The session before any update (`engines.md` 4.1): no turn detection yet.
fn first_session(options: &Options, model: Option<&str>) -> Value {
    let voice = if options.quirks.voice_prefix { "xai_ara" } else { "ara" };
    json!({"id": "session_sim1", "object": "realtime.session", "model": model, "voice": voice, "instructions": "",
           "modalities": ["audio"], "turn_detection": {"type": null}, "tools": []})
}

/// The ear for a `turn_detection`: its threshold is a share of certainty there, and a level here.
fn ear_settings(detection: &Value) -> EarSettings {
    let threshold = detection["threshold"].as_f64().unwrap_or(0.85).clamp(0.1, 0.9);
    let silence = detection["silence_duration_ms"].as_u64().unwrap_or(500);
    let level = (threshold * FULL_THRESHOLD_LEVEL) as u16;
    EarSettings { level, silence: Duration::from_millis(silence), ..EarSettings::default() }
}

/// The faults that come at a time of their own, earliest first.
fn timed(options: &Options) -> VecDeque<(Duration, Out)> {
    let faults = &options.faults;
    let mut timed: Vec<(u64, Out)> = Vec::new();
    timed.extend(faults.inject.iter().map(|injection| (injection.after_ms, Out::Text(injection.text.clone()))));
    if let Some(after) = faults.max_duration_after_ms {
        let error = json!({"type": "error", "event_id": "event_max_duration", "error": {"type": "max_duration",
            "code": "max_duration", "message": "The session is over.", "param": null, "event_id": null}});
        timed.push((after, Out::Text(error.to_string())));
        timed.push((after, Out::Close(Some(1000))));
    }
    timed.extend(faults.close_after_ms.map(|after| (after, Out::Close(None))));
    timed.extend(faults.drop_after_ms.map(|after| (after, Out::Drop)));
    timed.sort_by_key(|(after, _)| *after);
    timed.into_iter().map(|(after, out)| (Duration::from_millis(after), out)).collect()
}

/// Deltas of an interrupted reply that were under way (case 39).
const LATE: usize = 5;
/// Audio kept from before speech is noticed, for an echo: 333 ms, the service's own prefix padding.
const PREFIX: usize = RATE as usize * 333 / 1_000;
/// The default threshold of 0.85 becomes a peak of 600, where the Watch draws the line between quiet and speech.
const FULL_THRESHOLD_LEVEL: f64 = 600.0 / 0.85;
