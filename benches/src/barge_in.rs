//! Barge-ins on the simulated Grok through a real bridge and relay: how soon the old reply ends, and how well the engine is
//! told what was heard of it.

use std::collections::HashMap;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use watch_audio::engine::EngineKind;
use watch_audio::seal::Kind;
use watch_audio_media::pcm;
use watch_audio_probes::playout::{Mark, Playout};
use watch_audio_probes::sim::grok;
use watch_audio_probes::sim::script::{Script, Turn, Utterance};

use crate::bridge::{Bridge, Relay};
use crate::helper::{Output, PATIENCE};
use crate::subject::Subject;
use crate::watch::{Mouth, Watch};
use crate::{FRAME, Failed};

/// One barge-in.
#[derive(Debug, Clone, Copy)]
pub struct BargeIn {
    /// From the engine's notice to the message at the Watch that ends the old reply: behind it nothing old came.
    pub told: Duration,
    /// From the notice to the last old sound at the Watch; zero when that had come before.
    pub last_old: Duration,
    /// Messages of the old reply that came behind the end.
    pub stragglers: u32,
    /// What the Watch had played of the reply's item, in ms.
    pub heard_ms: f64,
    /// What the engine was told of it, in ms: 0 when it was told of nothing.
    pub told_ms: f64,
}

/// Holds one call in which the user speaks over `count` replies, one after the other.
///
/// # Errors
/// When the call breaks, or a reply or a notice stays out.
pub fn hold(
    runtime: &Runtime,
    subject: &Subject,
    relay: &Relay,
    playout: bool,
    count: usize,
) -> Result<Vec<BargeIn>, Failed> {
    let options = grok::Options { script: script(), think_ms: THINK_MS, ..grok::Options::default() };
    let engine = runtime.block_on(grok::Simulator::start(options)).map_err(Failed::to("start the simulated Grok"))?;
    let grant = relay.grant()?;
    let mut bridge = Bridge::start(subject, relay, &grant)?;
    bridge.expect("relay", "connected")?;
    let mut watch = Watch::join(&grant)?;
    watch.control(&json!({"type": "start", "engine": "grok", "playout": playout}))?;
    let (_, request) = bridge.expect("session_request", "")?;
    let model = "grok-voice-latest";
    bridge.say(&json!({"type": "session", "id": request.get("id"), "url": engine.url(), "bearer": "bench",
                       "model": model, "voice": "eve"}))?;
    watch.expect("started", PATIENCE)?;
    let mouth = watch.take_mouth().expect("nobody took it");
    let mut caller = Caller::new(mouth, playout);
    caller.mouth.send(Kind::Event, session_update().to_string().as_bytes())?;
    while caller.ends.len() < count || caller.settling() {
        caller.step(&watch)?;
    }
    let taken: Option<Vec<BargeIn>> = engine.look(|sessions| {
        let session = sessions.first()?;
        let started = session.sent.iter().filter(|event| event.kind == STARTED);
        let notices: Vec<Instant> = started.map(|event| event.at).collect();
        let told: HashMap<&str, u64> = session.truncates.iter().map(|seen| (&*seen.item, seen.ms)).collect();
        let barge_in = |end: &End| {
            let notice = *notices.get(end.notice)?;
            Some(BargeIn {
                told: end.at.saturating_duration_since(notice),
                last_old: end.last_old.saturating_duration_since(notice),
                stragglers: end.stragglers,
                heard_ms: end.heard as f64 / f64::from(RATE / 1_000),
                told_ms: told.get(&*end.item).map_or(0.0, |ms| *ms as f64),
            })
        };
        caller.ends.iter().map(barge_in).collect()
    });
    runtime.block_on(engine.shutdown());
    taken.ok_or_else(|| Failed("the engine does not know of a barge-in".to_owned()))
}

/// Calls at once, each on a thread of its own.
///
/// # Errors
/// As [`hold`].
pub fn hold_many(
    subject: &Subject,
    relay: &Relay,
    playout: bool,
    calls: usize,
    count: usize,
) -> Result<Vec<BargeIn>, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = &runtime.map_err(Failed::to("start a runtime"))?;
    thread::scope(|scope| {
        let calls = (0..calls).map(|_| scope.spawn(move || hold(runtime, subject, relay, playout, count)));
        let calls: Vec<_> = calls.collect();
        let mut all = Vec::new();
        for call in calls {
            all.extend(call.join().expect("a call does not panic")?);
        }
        Ok(all)
    })
}

/// How one reply ended at the Watch.
struct End {
    at: Instant,
    /// Which of the engine's notices it was.
    notice: usize,
    last_old: Instant,
    stragglers: u32,
    item: String,
    /// Samples of it that were played.
    heard: usize,
}

/// The Watch: plays what comes, speaks over each reply some time after its first sound.
struct Caller {
    mouth: Mouth,
    with_marks: bool,
    opened: Instant,
    playout: Playout,
    /// Microphone messages sent so far.
    frames: u32,
    /// From when to when it speaks: the first question at once.
    voice: (Instant, Instant),
    notices: usize,
    /// The reply that plays or will.
    reply: Option<Reply>,
    ends: Vec<End>,
    /// When the last thing happened.
    latest: Instant,
    samples: Vec<i16>,
}

#[derive(Default)]
struct Reply {
    item: String,
    heard: usize,
    last: Option<Instant>,
}

impl Caller {
    fn new(mouth: Mouth, with_marks: bool) -> Self {
        let now = Instant::now();
        Self {
            mouth,
            with_marks,
            opened: now,
            playout: Playout::new(EngineKind::Grok),
            frames: 0,
            voice: (now + SETTLES, now + SETTLES + VOICE),
            notices: 0,
            reply: None,
            ends: Vec::new(),
            latest: now,
            samples: Vec::new(),
        }
    }

    /// Whether the engine may still be told of the last barge-in.
    fn settling(&self) -> bool {
        self.latest.elapsed() < SETTLES
    }

    /// Up to the next message, or the microphone's next.
    fn step(&mut self, watch: &Watch) -> Result<(), Failed> {
        let due = self.opened + FRAME * self.frames;
        match watch.output.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(message) => self.take(&message)?,
            Err(RecvTimeoutError::Timeout) => {
                let loud = due >= self.voice.0 && due < self.voice.1;
                let mut message = Vec::new();
                pcm::to_bytes(&[if loud { LOUD } else { 0 }; FRAME_SAMPLES], &mut message);
                self.mouth.send(Kind::Audio, &message)?;
                self.frames += 1;
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Failed("the call broke".to_owned())),
        }
        self.play(Instant::now())?;
        if self.latest.elapsed() > PATIENCE {
            return Err(Failed("no reply, or no notice of a barge-in".to_owned()));
        }
        Ok(())
    }

    fn take(&mut self, message: &Output) -> Result<(), Failed> {
        match message.kind {
            b'p' => {
                self.samples.clear();
                pcm::from_bytes(&message.payload, &mut self.samples);
                match &mut self.reply {
                    Some(reply) => {
                        if reply.last.replace(message.at).is_none() {
                            let after = EARLIEST + STEP * (self.ends.len() as u32 * STRIDE % STEPS);
                            self.voice = (message.at + after, message.at + after + VOICE);
                        }
                        self.playout.push(message.at - self.opened, &self.samples);
                    }
                    None => {
                        if let Some(end) = self.ends.last_mut() {
                            end.stragglers += 1;
                        }
                    }
                }
            }
            b'e' => {
                let event: Value = serde_json::from_slice(&message.payload).map_err(Failed::to("read an event"))?;
                self.event(message.at, &event);
            }
            _ => {
                let control: Map<String, Value> =
                    serde_json::from_slice(&message.payload).map_err(Failed::to("read a control message"))?;
                self.control(message.at, &control)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, at: Instant, event: &Value) {
        match event["type"].as_str().unwrap_or_default() {
            STARTED => {
                self.stop(at);
                self.notices += 1;
            }
            "response.created" => {
                self.reply = Some(Reply::default());
                self.playout.next_reply();
                self.latest = at;
            }
            "conversation.item.added" if event["item"]["role"] == "assistant" => {
                if let Some(reply) = &mut self.reply {
                    reply.item = event["item"]["id"].as_str().unwrap_or_default().to_owned();
                }
            }
            // The engine's end of the old one; the next is on its way or not.
            "response.done" if self.reply.as_ref().is_some_and(|reply| reply.last.is_none()) => self.reply = None,
            _ => {}
        }
    }

    fn control(&mut self, at: Instant, control: &Map<String, Value>) -> Result<(), Failed> {
        let number = |field| control.get(field).and_then(Value::as_u64).unwrap_or_default();
        let text = |field| control.get(field).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "mark" => {
                let mark = Mark { item: text("item").to_owned(), epoch: number("epoch"), ms: number("ms") };
                self.playout.mark(at - self.opened, mark);
            }
            "flush" => {
                let mut answer = json!({"type": "flushed", "epoch": number("epoch")});
                if let Some(mark) = self.stop(at) {
                    answer["item"] = mark.item.into();
                    answer["ms"] = mark.ms.into();
                }
                self.mouth.send(Kind::Control, answer.to_string().as_bytes())?;
            }
            "error" | "ended" => return Err(Failed("the host ended the call".to_owned())),
            _ => {}
        }
        Ok(())
    }

    /// The old reply is over: what is not played yet is dropped.
    fn stop(&mut self, at: Instant) -> Option<Mark> {
        let stopped = self.playout.flush(at - self.opened);
        self.count_played();
        if let Some(Reply { item, heard, last: Some(last) }) = self.reply.take() {
            let notice = self.notices;
            self.ends.push(End { at, notice, last_old: last, stragglers: 0, item, heard });
            self.latest = at;
        }
        stopped
    }

    fn play(&mut self, now: Instant) -> Result<(), Failed> {
        self.playout.advance(now - self.opened);
        self.count_played();
        for mark in self.playout.take_passed() {
            if self.with_marks {
                let played = json!({"type": "played", "item": mark.item, "epoch": mark.epoch, "ms": mark.ms});
                self.mouth.send(Kind::Control, played.to_string().as_bytes())?;
            }
        }
        Ok(())
    }

    /// The reply has no silent sample, so what is not silent is the reply's.
    fn count_played(&mut self) {
        let heard = self.playout.take_played().iter().filter(|sample| **sample != 0).count();
        if let Some(reply) = &mut self.reply {
            reply.heard += heard;
        }
    }
}

/// Every question is answered at length, with the same sample again and again.
fn script() -> Script {
    let answer = Utterance::new("Here is the weather.", vec![LOUD; RATE as usize * ANSWER_S]);
    Script {
        turns: vec![Turn { heard: "The weather?".to_owned(), filler: None, delegate: None, answer }],
        ..Script::default()
    }
}

fn session_update() -> Value {
    json!({"type": "session.update", "session": {
        "turn_detection": {"type": "server_vad", "silence_duration_ms": SILENCE_MS},
        "voice": "eve",
    }})
}

const STARTED: &str = "input_audio_buffer.speech_started";
const RATE: u32 = 24_000;
const FRAME_SAMPLES: usize = 480;
const LOUD: i16 = 3_000;
/// Longer than it is ever listened to.
const ANSWER_S: usize = 8;
/// The simulated engine hears 60 ms of voice as speech.
const VOICE: Duration = Duration::from_millis(100);
/// What ends a question, and the time to the answer: short, as there are many.
const SILENCE_MS: u64 = 200;
const THINK_MS: u64 = 50;
/// A call begins in peace, and a truncate has its time.
const SETTLES: Duration = Duration::from_millis(1_500);
/// How long after a reply's first sound it is spoken over: each time at another place of it. The mean keeps a call with
/// its bursts within the relay's bytes a second.
const EARLIEST: Duration = Duration::from_millis(700);
const STEP: Duration = Duration::from_millis(1);
const STEPS: u32 = 1_600;
/// Without a common divisor with [`STEPS`].
const STRIDE: u32 = 397;
