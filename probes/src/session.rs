//! One stream of a call as the deployed Watch holds it: from hello to `ended` (`watch-audio.md`, "The deployed Watch").

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout_at};
use watch_audio::engine::EngineKind;
use watch_audio_media::codec::CodecError;

use crate::attempts::stopped;
use crate::coding::Coding;
use crate::dialogue::{Act, Dialect, Dialogue};
use crate::journal::Journal;
use crate::live::captions::Who;
use crate::microphone::Microphone;
use crate::output::OutputError;
use crate::playout::Mark;
use crate::timeline::What;
use crate::tools::Tools;
use crate::verdict::Stop;
use crate::watch::{Close, Grant, Incoming, JoinError, Watch};
use crate::work::{Done, Work};

/// How the Watch behaves in a call.
#[derive(Clone)]
pub struct Manner {
    /// The engine it asks for.
    pub engine: EngineKind,
    /// The language of GPT-Live's events.
    pub dialect: Dialect,
    /// What it says, at the engine's input rate.
    pub question: Vec<i16>,
    /// Sends no audio while a reply plays, as deployed Watches do.
    pub half_duplex: bool,
    /// Speaks the question again over the reply, so long after the reply's first sound.
    pub barge_in: Option<Duration>,
    /// Taps the reply away, so long after its first sound.
    pub tap: Option<Duration>,
    /// Offers the `playout` extension.
    pub playout: bool,
    /// Offers Opus (the `codecs` extension).
    pub opus: bool,
    /// Further fields of `start`: `voice`, `greeting`, `history`, …
    pub start: Map<String, Value>,
    /// The longest call, from the first `started`.
    pub longest: Duration,
}

/// How a stream ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum End {
    /// The Watch hung up, in order.
    HungUp(Because),
    /// The relay was not reached, or refused.
    NotJoined(JoinError),
    /// The connection was closed before `started`.
    NotStarted(Close),
    /// Nothing came of `start` for as long as a Watch waits.
    GaveUp,
    /// The host said `error`, with its code and its words.
    Error(String, String),
    /// The connection is gone after `started`.
    Lost(Close),
    /// The host said `ended` by itself.
    Ended(String),
    /// The recording cannot be written.
    Recording(OutputError),
    /// The codec that was agreed fails.
    Codec(CodecError),
}

/// Why the Watch hung up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The answer was heard to its end.
    Answered,
    /// The longest call is over.
    Longest,
    /// The caller of the probe wants it.
    Stopped,
}

/// Holds one stream, until it ends or `stop` says so.
pub async fn run(
    journal: &mut Journal,
    manner: &Manner,
    grant: &Grant,
    tools: &Tools,
    stop: &mut Receiver<Stop>,
) -> End {
    let mut watch = tokio::select! {
        joined = Watch::join(grant) => match joined {
            Ok(watch) => watch,
            Err(error) => return End::NotJoined(error),
        },
        _ = stopped(stop) => return End::HungUp(Because::Stopped),
    };
    let started = tokio::select! {
        started = start(journal, manner, &mut watch) => started,
        _ = stopped(stop) => Err(End::HungUp(Because::Stopped)),
    };
    let end = match started {
        Ok((opened, coding)) => {
            journal.arrivals.next_run();
            let mut session = Session::new(journal, manner, tools, &mut watch, opened, coding);
            let end = session.run(stop).await;
            session.let_play_out(&end).await;
            end
        }
        Err(end) => end,
    };
    leave(&mut watch, &end).await;
    journal.dropped += watch.dropped();
    journal.lost += watch.lost();
    end
}

/// Asks for the engine and waits for it.
async fn start(journal: &mut Journal, manner: &Manner, watch: &mut Watch) -> Result<(Instant, Coding), End> {
    let mut message = json!({"type": "start", "engine": manner.engine.as_str()});
    if manner.playout {
        message["playout"] = true.into();
    }
    if manner.opus {
        message["codecs"] = json!(["opus", "pcm16"]);
    }
    for (field, value) in &manner.start {
        message[field] = value.clone();
    }
    watch.control(&message);
    journal.timeline.note(Instant::now(), What::Start, manner.engine.as_str());
    let patience = match manner.engine {
        EngineKind::GptLive => PATIENCE_GPT_LIVE,
        EngineKind::Grok => PATIENCE_GROK,
    };
    let deadline = Instant::now() + patience;
    loop {
        let (at, incoming) = timeout_at(deadline, watch.next()).await.map_err(|_| End::GaveUp)?;
        match incoming {
            Incoming::Control(control) => match text(&control, "type") {
                "started" => {
                    journal.timeline.start(at);
                    journal.timeline.note(at, What::Started, text(&control, "voice"));
                    let coding =
                        Coding::agreed(control.get("codec").and_then(Value::as_str), manner.engine.input_rate());
                    journal.started = control;
                    return Ok((at, coding.map_err(End::Codec)?));
                }
                "error" => return Err(error_of(journal, at, &control)),
                "ended" => return Err(End::Ended(text(&control, "reason").to_owned())),
                _ => {}
            },
            Incoming::Closed(close) => return Err(End::NotStarted(close)),
            Incoming::Audio(_) | Incoming::Event(_) => {}
        }
    }
}

struct Session<'a> {
    journal: &'a mut Journal,
    manner: &'a Manner,
    work: Work,
    watch: &'a mut Watch,
    dialogue: Dialogue,
    microphone: Microphone,
    /// When the microphone opened: the origin of its time.
    opened: Instant,
    coding: Coding,
    ping_at: Instant,
    /// Grok: a reply is on its way.
    replying: bool,
    barge_in: Option<Duration>,
    tap: Option<Duration>,
}

impl<'a> Session<'a> {
    fn new(
        journal: &'a mut Journal,
        manner: &'a Manner,
        tools: &Tools,
        watch: &'a mut Watch,
        opened: Instant,
        coding: Coding,
    ) -> Self {
        Self {
            journal,
            manner,
            work: Work::new(tools.clone()),
            watch,
            dialogue: Dialogue::new(manner.engine, manner.dialect),
            microphone: Microphone::new(manner.engine.input_rate(), manner.question.clone()),
            opened,
            coding,
            ping_at: opened + PING,
            replying: false,
            barge_in: manner.barge_in,
            tap: manner.tap,
        }
    }

    async fn run(&mut self, stop: &mut Receiver<Stop>) -> End {
        if let Some(opening) = self.dialogue.opening() {
            self.watch.event(&opening);
        }
        match &mut self.journal.sound {
            Some(sound) => sound.discard(),
            None => self.speak(),
        }
        loop {
            let deadline = self.deadline();
            let end = tokio::select! {
                (at, incoming) = self.watch.next() => self.take_in(at, incoming),
                done = self.work.next() => {
                    self.worked(done);
                    None
                }
                () = sleep_until(deadline) => None,
                _ = stopped(stop) => Some(End::HungUp(Because::Stopped)),
            };
            if let Some(end) = end.or_else(|| self.tick(Instant::now()).err()) {
                return end;
            }
            if let Some(because) = self.over(Instant::now()) {
                self.journal.timeline.note(Instant::now(), What::End, "");
                return End::HungUp(because);
            }
        }
    }

    /// The next thing to do without anybody asking for it.
    fn deadline(&self) -> Instant {
        let microphone = (!self.live()).then(|| self.opened + self.microphone.due());
        let dialogue = self.dialogue.deadline().map(|deadline| self.journal.instant(deadline));
        let playing = Instant::now() + PLAYING_TICK;
        [microphone, dialogue, Some(playing), Some(self.ping_at)].into_iter().flatten().min().unwrap_or(playing)
    }

    fn speak(&mut self) {
        let begins = self.microphone.speak();
        self.journal.timeline.note(self.opened + begins, What::Question, "");
    }

    /// Whether a person holds this call, at a microphone and a speaker.
    fn live(&self) -> bool {
        self.journal.sound.is_some()
    }

    /// What was said into a live microphone.
    fn listen(&mut self, now: Instant) -> Result<(), End> {
        let rate = self.manner.engine.input_rate();
        let open = !self.manner.half_duplex || self.journal.microphone_open(now);
        let Some(sound) = &mut self.journal.sound else { return Ok(()) };
        sound.refresh(rate);
        let mut said = Vec::new();
        while let Some(message) = sound.message() {
            if !open {
                continue;
            }
            for message in self.coding.write(message).map_err(End::Codec)? {
                self.watch.audio(&message);
            }
            said.extend_from_slice(message);
        }
        if !said.is_empty() {
            self.journal.sent(now, rate, &said);
        }
        Ok(())
    }

    /// What is due by now: microphone, speaker, pings, the scripted barge-in and tap.
    fn tick(&mut self, now: Instant) -> Result<(), End> {
        self.listen(now)?;
        while !self.live() && self.opened + self.microphone.due() <= now {
            let at = self.opened + self.microphone.due();
            let ends = self.microphone.speech_ends().len();
            let open = !self.manner.half_duplex || self.journal.microphone_open(at);
            let message = self.microphone.capture();
            if open {
                for message in self.coding.write(message).map_err(End::Codec)? {
                    self.watch.audio(&message);
                }
                self.journal.sent(at, self.manner.engine.input_rate(), message);
            }
            if let Some(end) = self.microphone.speech_ends().get(ends) {
                self.journal.timeline.note(self.opened + *end, What::QuestionEnd, "");
            }
        }
        self.journal.play(now).map_err(End::Recording)?;
        for mark in self.journal.take_passed(now) {
            if self.manner.playout {
                self.watch.control(&mark_message("played", &mark));
            }
        }
        let time = self.journal.time(now);
        self.journal.show_progress(time, self.state());
        for act in self.dialogue.handle_timeout(time) {
            self.act(now, act);
        }
        if now >= self.ping_at {
            self.watch.ping();
            self.ping_at = now + PING;
        }
        if let Some(after) = self.barge_in
            && self.reply_plays_since(time, after)
        {
            self.barge_in = None;
            self.speak();
        }
        if let Some(after) = self.tap
            && self.reply_plays_since(time, after)
        {
            self.tap = None;
            self.tap(now);
        }
        Ok(())
    }

    /// What goes on, in a word.
    fn state(&self) -> &'static str {
        if self.journal.playout.active() {
            "listening to the answer"
        } else if self.microphone.speaking() {
            "speaking"
        } else if self.live() {
            "listening to you"
        } else {
            "waiting"
        }
    }

    /// Whether the reply to the question has sounded for so long, and sounds now. What is said while an agent works is
    /// not the reply.
    fn reply_plays_since(&self, time: Duration, after: Duration) -> bool {
        let speech = self.journal.playout.speech();
        let sounds = speech.last_end().is_some_and(|end| end + STILL_SOUNDING >= time);
        let begins = self.question_end().and_then(|end| self.journal.reply_since(end));
        sounds && !self.owes() && begins.is_some_and(|begins| time >= begins + after)
    }

    /// Whether the engine waits for something of ours.
    fn owes(&self) -> bool {
        self.work.owes() || self.dialogue.deadline().is_some()
    }

    /// When the user's last words ended, on the call's time line; none while he speaks.
    fn question_end(&self) -> Option<Duration> {
        let end = self.microphone.speech_ends().last()?;
        (!self.microphone.speaking()).then(|| self.journal.time(self.opened + *end))
    }

    fn tap(&mut self, now: Instant) {
        self.journal.timeline.note(now, What::Tap, "");
        self.stop_playing(now);
        self.journal.playout.skip_reply();
        // The user has heard enough: no more is owed.
        self.journal.answered = None;
        if self.manner.playout {
            self.watch.control(&json!({"type": "stop"}));
        }
    }

    fn stop_playing(&mut self, now: Instant) -> Option<Mark> {
        let time = self.journal.time(now);
        if self.journal.playout.active() {
            self.journal.timeline.note(now, What::Flush, "");
        }
        let stopped = self.journal.playout.flush(time);
        if let Some(sound) = &mut self.journal.sound {
            sound.forget_marks();
        }
        stopped
    }

    fn take_in(&mut self, at: Instant, incoming: Incoming) -> Option<End> {
        match incoming {
            Incoming::Audio(bytes) => {
                let mut samples = Vec::new();
                self.coding.read(&bytes, &mut samples);
                self.journal.arrived(at, &samples);
            }
            Incoming::Event(event) => {
                for act in self.dialogue.event(self.journal.time(at), &event) {
                    self.act(at, act);
                }
            }
            Incoming::Control(control) => return self.control(at, &control),
            Incoming::Closed(close) => {
                self.journal.timeline.note(at, What::Lost, close.to_string());
                return Some(End::Lost(close));
            }
        }
        None
    }

    fn control(&mut self, at: Instant, control: &Map<String, Value>) -> Option<End> {
        let number = |field| control.get(field).and_then(Value::as_u64).unwrap_or_default();
        match text(control, "type") {
            "error" => return Some(error_of(self.journal, at, control)),
            "ended" => {
                let reason = text(control, "reason").to_owned();
                self.journal.timeline.note(at, What::Ended, reason.clone());
                return Some(End::Ended(reason));
            }
            "mark" if self.manner.playout => {
                let mark = Mark { item: text(control, "item").to_owned(), epoch: number("epoch"), ms: number("ms") };
                self.journal.playout.mark(self.journal.time(at), mark);
            }
            "flush" if self.manner.playout => {
                let stopped = self.stop_playing(at);
                let mut answer = json!({"type": "flushed", "epoch": number("epoch")});
                if let Some(mark) = stopped {
                    answer["item"] = mark.item.into();
                    answer["ms"] = mark.ms.into();
                }
                self.watch.control(&answer);
            }
            _ => {}
        }
        None
    }

    fn act(&mut self, at: Instant, act: Act) {
        let timeline = &mut self.journal.timeline;
        match act {
            Act::Send(event) => self.watch.event(&event),
            Act::Search { id, query, lines } => {
                timeline.note(at, What::Delegation, query.clone());
                if let Some(done) = self.work.begin(&id, query, lines) {
                    self.worked(done);
                }
            }
            Act::Heard(words) => {
                let whole = self.manner.engine == EngineKind::Grok;
                timeline.words(at, What::Heard, &words, whole);
                self.journal.caption(at, Who::User, &words, whole);
            }
            Act::Said(words) => {
                timeline.words(at, What::Said, &words, false);
                self.journal.caption(at, Who::Engine, &words, false);
            }
            Act::StopPlaying => {
                timeline.note(at, What::Notice, "");
                // With the extension it is the host's `flush` that stops the speaker, in its place among the audio.
                if !self.manner.playout {
                    self.stop_playing(at);
                }
            }
            Act::SaidAll => self.journal.end_words(),
            Act::ReplyBegins => {
                self.journal.end_words();
                self.replying = true;
                self.journal.arrivals.next_run();
                self.journal.playout.next_reply();
            }
            Act::ReplyEnds => self.replying = false,
            Act::Complaint(words) => timeline.note(at, What::Complaint, words),
        }
    }

    fn worked(&mut self, done: Done) {
        match done {
            Done::Answer { id, words } => self.answer(&id, &words),
            Done::Goes(words) => self.journal.timeline.note(Instant::now(), What::Work, words),
        }
    }

    fn answer(&mut self, id: &str, words: &str) {
        for event in self.dialogue.answer(id, words) {
            self.watch.event(&event);
        }
        self.journal.timeline.note(Instant::now(), What::Answer, words);
        self.journal.answered = Some(self.journal.time(Instant::now()));
    }

    /// Whether and why it is time to hang up.
    fn over(&self, now: Instant) -> Option<Because> {
        let time = self.journal.time(now);
        if time >= self.manner.longest {
            return Some(Because::Longest);
        }
        let quiet = self.journal.playout.speech().last_end().is_some_and(|end| time >= end + LISTENS_ON);
        (quiet && self.heard_answer()).then_some(Because::Answered)
    }

    /// Whether the call was what it was held for. A person hangs up when it was.
    fn fulfilled(&self) -> bool {
        if self.live() { !self.journal.playout.speech().spans().is_empty() } else { self.heard_answer() }
    }

    /// Whether an answer was heard to its end. GPT-Live says nowhere that it is over (case 18): a stretch of quiet
    /// after speech has to do, once nothing is owed any more.
    fn heard_answer(&self) -> bool {
        let owed = self.owes() || self.replying;
        let scripted = self.barge_in.is_some() || self.tap.is_some();
        let Some(question_end) = self.question_end() else { return false };
        !owed && !scripted && !self.journal.playout.active() && self.journal.reply_since(question_end).is_some()
    }

    /// After the end of the stream the Watch still plays what it has. Then it is known whether the answer was whole.
    async fn let_play_out(&mut self, end: &End) {
        let clean = match end {
            End::Ended(_) => true,
            End::Lost(close) => close.code == Some(1000),
            _ => false,
        };
        let limit = Instant::now() + PLAYS_OUT;
        while clean && self.journal.playout.active() && Instant::now() < limit {
            sleep_until(Instant::now() + PLAYING_TICK).await;
            if self.journal.play(Instant::now()).is_err() {
                break;
            }
        }
        self.journal.whole = match end {
            End::HungUp(because) => *because == Because::Answered || self.fulfilled(),
            _ => clean && self.fulfilled(),
        };
        let now = Instant::now();
        self.journal.playout.flush(self.journal.time(now));
    }
}

/// Leaves a stream in order: hanging up says `end` and waits for `ended` as long as a Watch does; then the socket is
/// closed, unless it is gone.
async fn leave(watch: &mut Watch, end: &End) {
    if matches!(end, End::NotStarted(_) | End::Lost(_)) {
        return;
    }
    if matches!(end, End::HungUp(_)) {
        watch.control(&json!({"type": "end"}));
        let deadline = Instant::now() + PATIENCE_END;
        loop {
            match timeout_at(deadline, watch.next()).await {
                Ok((_, Incoming::Control(control))) if text(&control, "type") == "ended" => break,
                Ok((_, Incoming::Closed(_))) => return,
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    watch.close();
    let deadline = Instant::now() + CLOSING;
    while !matches!(timeout_at(deadline, watch.next()).await, Ok((_, Incoming::Closed(_))) | Err(_)) {}
}

fn error_of(journal: &mut Journal, at: Instant, control: &Map<String, Value>) -> End {
    let (code, message) = (text(control, "code"), text(control, "message"));
    journal.timeline.note(at, What::Error, format!("{code}: {message}"));
    End::Error(code.to_owned(), crate::watch::plain_words(message))
}

fn mark_message(kind: &str, mark: &Mark) -> Value {
    json!({"type": kind, "item": mark.item, "epoch": mark.epoch, "ms": mark.ms})
}

fn text<'a>(object: &'a Map<String, Value>, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// How long a deployed Watch waits for `started` (`watch-audio.md`).
const PATIENCE_GPT_LIVE: Duration = Duration::from_secs(45);
/// The same with Grok.
const PATIENCE_GROK: Duration = Duration::from_secs(20);
/// How long it waits for `ended` after its `end`.
const PATIENCE_END: Duration = Duration::from_secs(4);
/// It pings the relay so often.
const PING: Duration = Duration::from_secs(20);
/// The close handshake is a courtesy; nobody waits long for it.
const CLOSING: Duration = Duration::from_millis(500);
/// Speakers take audio in blocks of this order.
const PLAYING_TICK: Duration = Duration::from_millis(10);
/// A pause within words is not the end of a reply that one can speak over.
const STILL_SOUNDING: Duration = Duration::from_millis(200);
/// The probe hangs up after so much quiet behind the answer.
const LISTENS_ON: Duration = Duration::from_secs(3);
/// The host is at most 1.5 s ahead of real time, and the Watch holds 200 ms.
const PLAYS_OUT: Duration = Duration::from_secs(3);
