//! Many calls at once, each a process on the subject's core, with peers on the other that only send what was prepared.

mod peer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use watch_audio_media::opus::packet_samples;

use self::peer::exchange;
use crate::bridge::Relay;
use crate::call::{Microphone, OUTPUT_RATE, Running, Sound};
use crate::engine::Engine;
use crate::machine::{Memory, Usage};
use crate::marks::Marks;
use crate::subject::{Subject, Way};
use crate::{FRAME, Failed};

/// Makes calls of one kind.
pub struct Calls {
    subject: Subject,
    relay: Relay,
    sound: Arc<Sound>,
}

impl Calls {
    /// With `subject`, and a relay of `program` wherever this runs.
    ///
    /// # Errors
    /// When the relay does not start, or nothing can be encoded.
    pub fn new(subject: Subject, program: &Path) -> Result<Self, Failed> {
        Ok(Self { subject, relay: Relay::start(program)?, sound: Arc::new(Sound::new(Marks::new(500))?) })
    }

    /// Sets up one more call; it is connected when this returns. A Watch that speaks PCM sends 100 ms at a time, as
    /// deployed ones do.
    ///
    /// # Errors
    /// When the subject does not start, connect or keep going.
    pub fn add(&self) -> Result<Call, Failed> {
        let mut running = Running::start(&self.subject, &self.relay)?;
        let opus = running.opus();
        let at_once = if self.subject.way == (Way::Bridge { opus: false }) { FRAMES_A_MESSAGE } else { 1 };
        let (engine, answer) = Engine::answer(&running.offer)?;
        // The engine answers from now on; the microphone is there once the call is.
        let (hand_over, handed) = channel::<Microphone>();
        let (stop, up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (sound, stopped, came) = (Arc::clone(&self.sound), Arc::clone(&stop), Arc::clone(&up));
        let engine = std::thread::spawn(move || {
            let speech = sound.speech(opus);
            let mut microphone = None;
            let spoken = |n: usize| {
                if microphone.is_none() {
                    microphone = handed.try_recv().ok();
                }
                match &mut microphone {
                    Some(speak) if at_once == 1 => speak(&speech[n % speech.len()]),
                    Some(speak) if n.is_multiple_of(at_once) => {
                        speak(&speech[n % (speech.len() - at_once)..][..at_once].concat())
                    }
                    _ => Ok(()),
                }
            };
            exchange(engine, sound.packets(), spoken, &came, &stopped)
        });
        running.connect(&answer)?;
        // A thread that is gone shows when the call is looked at.
        let _ = hand_over.send(running.microphone()?);
        Ok(Call { running, opus, up, stop, engine })
    }
}

/// One call under way. Dropping it ends its process.
pub struct Call {
    running: Running,
    opus: bool,
    /// Packets that came to the engine.
    up: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    engine: JoinHandle<Result<(), Failed>>,
}

impl Call {
    /// Takes what has come to the Watch since this was last asked.
    fn take(&self, into: &mut Vec<Arrival>) {
        let sound = self.running.output().try_iter().filter(|message| message.kind == b'p');
        into.extend(sound.map(|message| {
            let samples = match self.opus {
                true => packet_samples(&message.payload, OUTPUT_RATE).unwrap_or(0),
                false => message.payload.len() / 2,
            };
            (message.at, Duration::from_secs_f64(samples as f64 / f64::from(OUTPUT_RATE)))
        }));
    }
}

/// A piece of sound at the Watch: when it came, and how long it is.
pub type Arrival = (Instant, Duration);

/// What a crowd showed over a while.
#[derive(Debug, Clone)]
pub struct Measured {
    /// How many calls.
    pub calls: usize,
    /// Processor time for each second of a call, in ms.
    pub cpu_ms: f64,
    /// Wake-ups in each second of a call.
    pub wakes: f64,
    /// Memory of a call's process, in MiB: the mean of all.
    pub rss_mib: f64,
    /// The same, shared pages counted in shares.
    pub pss_mib: f64,
    /// By how many ms neighbouring pieces at the Watch differed in their delay, the slowest 1 % left out.
    pub jitter_p99_ms: f64,
    /// The share of the sound that came, in percent: to the Watch, and to the engine.
    pub down: f64,
    /// The same, to the engine.
    pub up: f64,
    /// The share of its core that the subject took, and of theirs the peers, in percent.
    pub core: f64,
    /// The same, of the peers' core.
    pub peers: f64,
}

impl Measured {
    /// Whether this many calls are well on one core: even, and nothing lost.
    pub fn is_well(&self) -> bool {
        self.jitter_p99_ms <= MOST_JITTER_MS && self.down >= WHOLE && self.up >= WHOLE
    }
}

/// Watches `calls` for `time`.
///
/// # Errors
/// When one has ended.
pub fn measure(calls: &[Call], time: Duration) -> Result<Measured, Failed> {
    let mut arrivals: Vec<Vec<Arrival>> = calls.iter().map(|_| Vec::new()).collect();
    let take = |into: &mut Vec<Vec<Arrival>>| {
        for (call, into) in calls.iter().zip(into) {
            call.take(into);
        }
    };
    take(&mut arrivals);
    arrivals.iter_mut().for_each(Vec::clear);

    let used = |calls: &[Call]| calls.iter().map(|call| Usage::of(call.running.id())).collect::<Result<Vec<_>, _>>();
    let came = |calls: &[Call]| calls.iter().map(|call| call.up.load(Ordering::Relaxed)).sum::<u64>();
    let (start, before, up_before) = (Instant::now(), used(calls)?, came(calls));
    let own_before = Usage::of(std::process::id())?;
    while start.elapsed() < time {
        std::thread::sleep(STEP.min(time));
        take(&mut arrivals);
        if calls.iter().any(|call| call.engine.is_finished()) {
            return Err(Failed("an engine lost its call".to_owned()));
        }
    }
    let (after, up, took) = (used(calls)?, came(calls) - up_before, start.elapsed().as_secs_f64());
    let own = Usage::of(std::process::id())?.since(own_before);
    let memory = calls.iter().map(|call| Memory::of(call.running.id())).collect::<Result<Vec<_>, _>>()?;

    let count = calls.len() as f64;
    let used: Vec<Usage> = after.iter().zip(before).map(|(after, before)| after.since(before)).collect();
    let cpu: f64 = used.iter().map(|used| used.cpu.as_secs_f64()).sum();
    let heard: f64 = arrivals.iter().flatten().map(|(_, length)| length.as_secs_f64()).sum();
    let mean = |of: fn(&Memory) -> u64| memory.iter().map(of).sum::<u64>() as f64 / count / 1_048_576.0;
    Ok(Measured {
        calls: calls.len(),
        cpu_ms: 1_000.0 * cpu / took / count,
        wakes: used.iter().map(|used| used.wakes as f64).sum::<f64>() / took / count,
        rss_mib: mean(|memory| memory.rss),
        pss_mib: mean(|memory| memory.pss),
        jitter_p99_ms: jitter_p99(&arrivals),
        down: (100.0 * heard / took / count).min(100.0),
        up: (100.0 * up as f64 * FRAME.as_secs_f64() / took / count).min(100.0),
        core: 100.0 * cpu / took,
        peers: 100.0 * own.cpu.as_secs_f64() / took,
    })
}

/// Of all calls together, in ms.
fn jitter_p99(arrivals: &[Vec<Arrival>]) -> f64 {
    let of_call = |call: &Vec<Arrival>| {
        let pairs = call.windows(2).map(|pair| {
            let [(before, length), (after, _)] = pair else { return 0.0 };
            1_000.0 * ((*after - *before).as_secs_f64() - length.as_secs_f64()).abs()
        });
        pairs.collect::<Vec<_>>()
    };
    let mut all: Vec<f64> = arrivals.iter().flat_map(of_call).collect();
    all.sort_by(f64::total_cmp);
    all.get((0.99 * all.len() as f64) as usize).copied().unwrap_or(f64::NAN)
}

impl Drop for Call {
    fn drop(&mut self) {
        // The engine's thread sees this, or that the subject, which is killed with the rest, takes nothing any more.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// 100 ms.
const FRAMES_A_MESSAGE: usize = 5;
/// Above this the Watch's own buffer runs dry now and then.
const MOST_JITTER_MS: f64 = 10.0;
/// In percent: less has lost sound, and not only a frame at the edge of the time that was watched.
const WHOLE: f64 = 99.0;
/// How often what came is taken: before any queue of it is full.
const STEP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_of_what_came_late() {
        let start = Instant::now();
        let late = |n: u64| if n.is_multiple_of(50) { 15 } else { 0 };
        let call: Vec<Arrival> = (0..500).map(|n| (start + Duration::from_millis(20 * n + late(n)), FRAME)).collect();
        assert!((jitter_p99(&[call]) - 15.0).abs() < 0.01, "one in fifty is late, and one after it early");
        let even: Vec<Arrival> = (0..500).map(|n| (start + FRAME * n, FRAME)).collect();
        assert!(jitter_p99(&[even.clone(), even]) < 0.01);
        assert!(jitter_p99(&[vec![]]).is_nan());
    }
}
