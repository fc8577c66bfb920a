//! One measured call: a helper between an engine that plays marks and a Watch that speaks them.

use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use watch_audio_media::pcm;

use crate::engine::{self, Engine};
use crate::follow::{Followed, Heard, follow};
use crate::helper::{self, Helper, Subject};
use crate::marks::Marks;
use crate::network::{Network, Path};
use crate::{FRAME, Failed};

/// What one call showed.
#[derive(Debug)]
pub struct Call {
    /// From starting the process to its offer.
    pub offer: Duration,
    /// From the answer to `R`.
    pub connected: Duration,
    /// From the engine's track to the helper's stdout.
    pub down: Vec<Followed>,
    /// From the helper's stdin to RTP at the engine.
    pub up: Vec<Followed>,
}

/// Holds a call with the sound of `marks` in both directions at once, and ends it.
///
/// # Errors
/// When the helper does not start, connect or keep going.
pub fn hold(subject: &Subject, marks: &Marks, network: Network, seed: u64) -> Result<Call, Failed> {
    let encoded = engine::encode(OUTPUT_RATE, &marks.pcm(OUTPUT_RATE));
    let packets = encoded.map_err(Failed::to("encode the engine's sound"))?;
    let speech = marks.pcm(INPUT_RATE);

    let started = Instant::now();
    let (helper, mut stdin) = Helper::spawn(subject)?;
    helper::write(&mut stdin, b'C', CONFIG)?;
    let offer = helper.expect(b'O')?;
    let (engine, answer) = Engine::answer(&String::from_utf8_lossy(&offer.payload))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Whichever way this is left, the helper and the engine end before their threads are waited for.
        let helper = helper;
        let _stop = StopOnDrop(&stop);
        let engine = scope.spawn(|| engine.run(&packets, network, seed, &stop));
        let answered = Instant::now();
        helper::write(&mut stdin, b'A', answer.as_bytes())?;
        let ready = helper.expect(b'R')?;
        let microphone = scope.spawn(move || speak(stdin, &speech, network, seed));
        let heard = listen(&helper, Instant::now() + marks.duration())?;
        stop.store(true, Ordering::Relaxed);
        let taken = engine.join().expect("the engine does not panic")?;
        let limit = Instant::now() + helper::PATIENCE;
        while !microphone.is_finished() {
            if Instant::now() > limit {
                return Err(Failed("the helper does not read its stdin".to_owned()));
            }
            thread::sleep(FRAME);
        }
        let (mut stdin, spoken) = microphone.join().expect("the microphone does not panic")?;
        helper::write(&mut stdin, b'Q', &[])?;
        helper.expect(b'X')?;
        Ok(Call {
            offer: offer.at - started,
            connected: ready.at - answered,
            down: follow(marks, &taken.sent, &heard),
            up: follow(marks, &spoken, &taken.heard),
        })
    })
}

/// Writes 20 ms of `speech` each 20 ms, or when the network lets it through. Answers when each frame was spoken.
fn speak(
    mut stdin: ChildStdin,
    speech: &[i16],
    network: Network,
    seed: u64,
) -> Result<(ChildStdin, Vec<Instant>), Failed> {
    let mut path = Path::new(network.from_watch(), seed);
    let mut bytes = Vec::new();
    let mut spoken = Vec::new();
    let start = Instant::now();
    for (n, frame) in speech.chunks_exact(INPUT_RATE as usize / 50).enumerate() {
        let slot = FRAME * n as u32;
        let due = path.pass(slot).unwrap_or(slot);
        thread::sleep((start + due).saturating_duration_since(Instant::now()));
        // This thread's own lateness is not the helper's.
        spoken.push(Instant::now() - (due - slot));
        bytes.clear();
        pcm::to_bytes(frame, &mut bytes);
        helper::write(&mut stdin, b'P', &bytes)?;
    }
    Ok((stdin, spoken))
}

/// Takes down the helper's sound until `end`.
fn listen(helper: &Helper, end: Instant) -> Result<Heard, Failed> {
    let mut heard = Heard::new(OUTPUT_RATE);
    let mut samples = Vec::new();
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let frame = match helper.output.recv_timeout(left) {
            Ok(frame) => frame,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return Err(Failed("the helper closed its stdout".to_owned())),
        };
        match frame.kind {
            b'p' => {
                samples.clear();
                pcm::from_bytes(&frame.payload, &mut samples);
                heard.push(frame.at, &samples);
            }
            b'X' => return Err(Failed("the helper ended the call".to_owned())),
            _ => {}
        }
    }
    Ok(heard)
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
const OUTPUT_RATE: u32 = 24_000;
