//! One measured call: a helper, or a bridge with its relay and Watch, between an engine that plays marks and a microphone
//! that speaks them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use watch_audio::seal::Kind;
use watch_audio_media::codec::CodecError;
use watch_audio_media::opus::{Decoder, Messages};
use watch_audio_media::pcm;

use crate::bridge::{Bridge, Relay};
use crate::engine::{self, Engine, Taken};
use crate::follow::{Followed, Heard, follow};
use crate::helper::{self, Helper, Output, PATIENCE};
use crate::marks::Marks;
use crate::network::{Network, Path};
use crate::subject::{Subject, Way};
use crate::watch::Watch;
use crate::{FRAME, Failed};

/// What one call showed.
#[derive(Debug)]
pub struct Call {
    /// From starting the process to its offer.
    pub offer: Duration,
    /// From the answer to `R`, or to `started` at the Watch.
    pub connected: Duration,
    /// From starting the process to the first sound of the engine's, silent or not.
    pub first_sound: Duration,
    /// From the engine's track to stdout, or to the Watch.
    pub down: Vec<Followed>,
    /// From stdin, or the Watch, to RTP at the engine.
    pub up: Vec<Followed>,
}

/// The sound of calls, encoded once for all of them.
pub struct Sound {
    marks: Marks,
    packets: Vec<Arc<[u8]>>,
    speech: Vec<Arc<[u8]>>,
    speech_packets: Vec<Arc<[u8]>>,
}

impl Sound {
    /// Encodes `marks` for both directions.
    ///
    /// # Errors
    /// When libopus refuses.
    pub fn new(marks: Marks) -> Result<Self, Failed> {
        let speech = marks.pcm(INPUT_RATE);
        let encode = |rate, pcm: &[i16]| -> Result<Vec<Arc<[u8]>>, CodecError> { engine::encode(rate, pcm) };
        Ok(Self {
            packets: encode(OUTPUT_RATE, &marks.pcm(OUTPUT_RATE)).map_err(Failed::to("encode the engine's sound"))?,
            speech_packets: encode(INPUT_RATE, &speech).map_err(Failed::to("encode the microphone's sound"))?,
            speech: speech.chunks_exact(INPUT_RATE as usize / 50).map(bytes).collect(),
            marks,
        })
    }

    /// The engine's packets, 20 ms each.
    pub fn packets(&self) -> &[Arc<[u8]>] {
        &self.packets
    }

    /// The microphone's messages, 20 ms each.
    pub fn speech(&self, opus: bool) -> &[Arc<[u8]>] {
        if opus { &self.speech_packets } else { &self.speech }
    }
}

/// Holds a call with the sound of `marks` in both directions at once, and ends it.
///
/// # Errors
/// When the helper or bridge does not start, connect or keep going.
pub fn hold(subject: &Subject, relay: &Relay, sound: &Sound, network: Network, seed: u64) -> Result<Call, Failed> {
    let mut call = Running::start(subject, relay)?;
    let (engine, answer) = Engine::answer(&call.offer)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Whichever way this is left, the engine ends before its thread is waited for.
        let _stop = StopOnDrop(&stop);
        let engine = scope.spawn(|| engine.run(&sound.packets, network, seed, &stop));
        let answered = Instant::now();
        let ready = call.connect(&answer)?;
        let mut send = call.microphone()?;
        let speech = sound.speech(call.opus);
        // What it sends with is given back: with its end the call would end.
        let microphone = scope.spawn(move || (speak(&mut *send, speech, network, seed), send));
        let heard = listen(call.output(), call.opus, Instant::now() + sound.marks.duration())?;
        stop.store(true, Ordering::Relaxed);
        let Taken { sent, heard: taken } = engine.join().expect("the engine does not panic")?;
        let limit = Instant::now() + PATIENCE;
        while !microphone.is_finished() {
            if Instant::now() > limit {
                return Err(Failed("the microphone's sound is not taken".to_owned()));
            }
            thread::sleep(FRAME);
        }
        let (spoken, _send) = microphone.join().expect("the microphone does not panic");
        let first = heard.arrivals().next().ok_or_else(|| Failed("no sound of the engine's came".to_owned()))?;
        Ok(Call {
            offer: call.offered - call.started,
            connected: ready - answered,
            first_sound: first - call.started,
            down: follow(&sound.marks, &sent, &heard),
            up: follow(&sound.marks, &spoken?, &taken),
        })
    })
}

/// A call up to its offer, and on.
pub struct Running {
    /// The engine's offer.
    pub offer: String,
    opus: bool,
    started: Instant,
    offered: Instant,
    parts: Parts,
}

/// Dropping them ends the call.
enum Parts {
    Helper { helper: Helper, stdin: Option<std::process::ChildStdin> },
    Bridge { bridge: Bridge, watch: Box<Watch>, request: Value },
}

/// Sends one message of the microphone's.
pub type Microphone = Box<dyn FnMut(&[u8]) -> Result<(), Failed> + Send>;

impl Running {
    /// Starts a helper, or a bridge on `relay` with a Watch that joins as soon as the bridge is there and asks for GPT-Live.
    ///
    /// # Errors
    /// When it makes no offer.
    pub fn start(subject: &Subject, relay: &Relay) -> Result<Self, Failed> {
        match subject.way {
            Way::Helper => Self::helper(subject),
            Way::Bridge { opus } => Self::bridge(subject, relay, opus),
        }
    }

    fn helper(subject: &Subject) -> Result<Self, Failed> {
        let started = Instant::now();
        let (helper, mut stdin) = Helper::spawn(subject)?;
        helper::write(&mut stdin, b'C', CONFIG)?;
        let Output { at: offered, payload, .. } = helper.expect(b'O')?;
        let offer = String::from_utf8_lossy(&payload).into_owned();
        Ok(Self { offer, opus: false, started, offered, parts: Parts::Helper { helper, stdin: Some(stdin) } })
    }

    fn bridge(subject: &Subject, relay: &Relay, opus: bool) -> Result<Self, Failed> {
        let grant = relay.grant()?;
        let started = Instant::now();
        let bridge = Bridge::start(subject, relay, &grant)?;
        bridge.expect("relay", "connected")?;
        let mut watch = Watch::join(&grant)?;
        let codecs = if opus { json!(["opus", "pcm16"]) } else { json!(["pcm16"]) };
        watch.control(&json!({"type": "start", "engine": "gpt_live", "codecs": codecs}))?;
        let (offered, mut line) = bridge.expect("session_request", "")?;
        let offer = line.get("offer").and_then(Value::as_str).unwrap_or_default().to_owned();
        let request = line.remove("id").unwrap_or_default();
        Ok(Self { offer, opus, started, offered, parts: Parts::Bridge { bridge, watch: Box::new(watch), request } })
    }

    /// Whether the Watch speaks Opus.
    pub fn opus(&self) -> bool {
        self.opus
    }

    /// Hands over the engine's answer. Says when the call stood.
    ///
    /// # Errors
    /// When it does not connect.
    pub fn connect(&mut self, answer: &str) -> Result<Instant, Failed> {
        match &mut self.parts {
            Parts::Helper { helper, stdin } => {
                let stdin = stdin.as_mut().ok_or_else(|| Failed("the microphone has stdin".to_owned()))?;
                helper::write(stdin, b'A', answer.as_bytes())?;
                Ok(helper.expect(b'R')?.at)
            }
            Parts::Bridge { bridge, watch, request } => {
                bridge.say(&json!({"type": "session", "id": request, "sdp": answer, "voice": "cove",
                                   "briefing_applied": false, "greeting_applied": false}))?;
                let (at, started) = watch.expect("started", PATIENCE)?;
                let codec = started.get("codec").and_then(Value::as_str);
                if (codec == Some("opus")) == self.opus { Ok(at) } else { Err(Failed("another codec".to_owned())) }
            }
        }
    }

    /// The subject's process id.
    pub fn id(&self) -> u32 {
        match &self.parts {
            Parts::Helper { helper, .. } => helper.id(),
            Parts::Bridge { bridge, .. } => bridge.id(),
        }
    }

    /// What comes down, sound among it.
    pub fn output(&self) -> &Receiver<Output> {
        match &self.parts {
            Parts::Helper { helper, .. } => &helper.output,
            Parts::Bridge { watch, .. } => &watch.output,
        }
    }

    /// The way up, for the microphone's thread. Once.
    ///
    /// # Errors
    /// When it was given out.
    pub fn microphone(&mut self) -> Result<Microphone, Failed> {
        let taken = || Failed("there is one microphone a call".to_owned());
        Ok(match &mut self.parts {
            Parts::Helper { stdin, .. } => {
                let mut stdin = stdin.take().ok_or_else(taken)?;
                Box::new(move |message| helper::write(&mut stdin, b'P', message))
            }
            Parts::Bridge { watch, .. } => {
                let mut mouth = watch.take_mouth().ok_or_else(taken)?;
                Box::new(move |message| mouth.send(Kind::Audio, message))
            }
        })
    }
}

/// Sends 20 ms of `speech` each 20 ms, or when the network lets it through. Answers when each frame was spoken.
fn speak(
    send: &mut (dyn FnMut(&[u8]) -> Result<(), Failed> + Send),
    speech: &[Arc<[u8]>],
    network: Network,
    seed: u64,
) -> Result<Vec<Instant>, Failed> {
    let mut path = Path::new(network.from_watch(), seed);
    let mut spoken = Vec::new();
    let start = Instant::now();
    for (n, message) in speech.iter().enumerate() {
        let slot = FRAME * n as u32;
        let due = path.pass(slot).unwrap_or(slot);
        thread::sleep((start + due).saturating_duration_since(Instant::now()));
        // This thread's own lateness is not the subject's.
        spoken.push(Instant::now() - (due - slot));
        send(message)?;
    }
    Ok(spoken)
}

/// Takes down the sound that comes until `end`.
fn listen(output: &Receiver<Output>, opus: bool, end: Instant) -> Result<Heard, Failed> {
    let mut heard = Heard::new(OUTPUT_RATE);
    let mut messages = Messages::new(Decoder::new(OUTPUT_RATE).map_err(Failed::to("decode what comes"))?);
    let mut samples = Vec::new();
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let frame = match output.recv_timeout(left) {
            Ok(frame) => frame,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return Err(Failed("the call broke".to_owned())),
        };
        match frame.kind {
            b'p' => {
                samples.clear();
                if opus {
                    messages.push(&frame.payload, &mut samples);
                } else {
                    pcm::from_bytes(&frame.payload, &mut samples);
                }
                heard.push(frame.at, &samples);
            }
            b'X' => return Err(Failed("the helper ended the call".to_owned())),
            _ => {}
        }
    }
    Ok(heard)
}

fn bytes(samples: &[i16]) -> Arc<[u8]> {
    let mut bytes = Vec::new();
    pcm::to_bytes(samples, &mut bytes);
    bytes.into()
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the plugin asks for: the Watch's rate up, the engine's own down.
const CONFIG: &[u8] = br#"{"input_rate":16000,"output_rate":24000,"stun":[]}"#;
const INPUT_RATE: u32 = 16_000;
pub(crate) const OUTPUT_RATE: u32 = 24_000;
