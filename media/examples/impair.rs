//! Speech through the whole path, with the codec, under each impairment: what `tests/speech/run.sh` has recognised.
//!
//!     cargo run -p watch-audio-media --example impair -- FOLDER
//!
//! Writes `source.wav`, the human speech of `samples/` in one piece, and a WAV of what is heard of it for each impairment.
#![expect(clippy::disallowed_methods, reason = "reads and writes WAVs")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use watch_audio_media::backlog::Backlog;
use watch_audio_media::codec::{Decode, Encode};
use watch_audio_media::downlink::{Downlink, RtpPacket};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, is_dtx};
use watch_audio_media::resample::Resampler;
use watch_audio_media::uplink::Uplink;
use watch_audio_media::uplink::passing::Passing;
use watch_audio_media::{pcm, wav};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("which folder?")?);
    fs::create_dir_all(&folder)?;
    let source = source()?;
    let write = |name: &str, samples: &[i16]| {
        let mut bytes = wav::header(RATE, samples.len() as u64).to_vec();
        pcm::to_bytes(samples, &mut bytes);
        fs::write(folder.join(format!("{name}.wav")), bytes)
    };
    write("source", &source)?;

    write("up", &up(&source, &on_time))?;
    write("up-stall", &up(&source, &stalls))?;
    write("up-jitter", &up(&source, &jitter(300.0)))?;
    write("up-opus-stall", &up_opus(&source, &stalls))?;

    let packets = packets(&source, false);
    write("down", &down(&packets, &on_time, &never, &|_| true))?;
    for percent in [1, 5, 10] {
        let share = f64::from(percent) / 100.0;
        write(&format!("down-{percent}-random"), &down(&packets, &on_time, &losses(share, 1.0), &|_| true))?;
        write(&format!("down-{percent}-bursts"), &down(&packets, &on_time, &losses(share, 3.0), &|_| true))?;
    }
    write("down-jitter", &down(&packets, &jitter(100.0), &never, &|_| true))?;
    write("down-stall", &down(&packets, &stalls, &never, &|_| true))?;
    write("down-dtx", &down(&self::packets(&source, true), &on_time, &never, &|_| true))?;
    // The engine's packets come, and the Watch's link stands still.
    write("watch-stall", &down(&packets, &on_time, &never, &|now| stalls(now) == now))?;
    Ok(())
}

/// The human speech, with a pause after each sentence.
fn source() -> Result<Vec<i16>, Box<dyn std::error::Error>> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples");
    let mut source = vec![0; RATE as usize / 2];
    for sentence in ["austen-0870", "austen-0880", "austen-0890", "austen-0920", "austen-0930"] {
        let speech = wav::parse(&fs::read(samples.join(sentence).with_extension("wav"))?)?;
        assert_eq!(speech.rate, RATE);
        source.extend(speech.samples);
        source.resize(source.len() + RATE as usize, 0);
    }
    Ok(source)
}

/// When something arrives that would come at a moment over a perfect network.
type Delivery<'a> = &'a dyn Fn(Duration) -> Duration;

fn on_time(at: Duration) -> Duration {
    at
}

/// Stands still for 1.5 s, in the midst of words, three times.
fn stalls(at: Duration) -> Duration {
    let stall: Option<Range<f64>> =
        [3.0..4.5, 13.3..14.8, 21.4..22.9].into_iter().find(|stall| stall.contains(&at.as_secs_f64()));
    stall.map_or(at, |stall| Duration::from_secs_f64(stall.end))
}

/// Takes 0 to `most` ms longer each time.
fn jitter(most: f64) -> impl Fn(Duration) -> Duration {
    move |at| at + Duration::from_secs_f64(most / 1_000.0 * dice(at.as_micros() as u64))
}

/// 0 up to but not 1, the same for the same seed (SplitMix64).
fn dice(seed: u64) -> f64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The Watch's microphone in messages of 100 ms, through the uplink and the codec, as the engine hears it.
fn up(source: &[i16], delivery: Delivery<'_>) -> Vec<i16> {
    let mut uplink = Uplink::new(RATE);
    let mut encoder = Encoder::new(RATE, &EncoderSettings::voice()).expect("an encoder");
    let mut decoder = Decoder::new(RATE).expect("a decoder");
    let (mut frame, mut packet, mut heard) = (Vec::new(), Vec::new(), Vec::new());
    let mut pull_until = |uplink: &mut Uplink, until: Duration| {
        while uplink.next_slot() < until {
            uplink.pull(uplink.next_slot().max(START), &mut frame);
            packet.clear();
            encoder.encode(&frame, &mut packet).expect("a frame of 20 ms");
            decoder.decode(&packet, &mut heard).expect("a packet");
        }
    };
    let mut last = Duration::ZERO;
    for (n, message) in source.chunks(RATE as usize / 10).enumerate() {
        last = delivery(Duration::from_millis(100) * (n as u32 + 1)).max(last);
        pull_until(&mut uplink, last);
        uplink.push(last, message);
    }
    pull_until(&mut uplink, last + END);
    heard
}

/// The same from a Watch that sends Opus, in packets of 60 ms.
fn up_opus(source: &[i16], delivery: Delivery<'_>) -> Vec<i16> {
    let encoder = |settings: EncoderSettings| Encoder::new(RATE, &settings).expect("an encoder");
    let mut watch = encoder(EncoderSettings::reliable());
    let mut passing = Passing::new(Decoder::new(RATE).expect("a decoder"), encoder(EncoderSettings::voice()));
    let mut decoder = Decoder::new(RATE).expect("a decoder");
    let (mut message, mut heard) = (Vec::new(), Vec::new());
    let mut pull_until = |passing: &mut Passing<Decoder, Encoder>, until: Duration| {
        while passing.next_slot() < until {
            let due = passing.pull(passing.next_slot().max(START));
            decoder.decode(due.packet, &mut heard).expect("a packet");
        }
    };
    let mut last = Duration::ZERO;
    for (n, frame) in source.chunks_exact(RATE as usize * 3 / 50).enumerate() {
        last = delivery(Duration::from_millis(60) * (n as u32 + 1)).max(last);
        pull_until(&mut passing, last);
        message.clear();
        watch.encode(frame, &mut message).expect("a frame of 60 ms");
        passing.push(last, &message);
    }
    pull_until(&mut passing, last + END);
    heard
}

/// The engine's packets of 20 ms; with `dtx` those without sound stay away.
fn packets(source: &[i16], dtx: bool) -> Vec<Vec<u8>> {
    let settings = EncoderSettings { dtx, ..EncoderSettings::voice() };
    let mut encoder = Encoder::new(RATE, &settings).expect("an encoder");
    let encode = |frame: &[i16]| {
        let mut packet = Vec::new();
        encoder.encode(frame, &mut packet).expect("a frame of 20 ms");
        packet
    };
    source.chunks_exact(RATE as usize / 50).map(encode).collect()
}

fn never(_: u64) -> bool {
    false
}

/// Whether a packet is lost: this share of them, in bursts of this length on average (Gilbert's model; 1 is random loss).
fn losses(share: f64, burst: f64) -> impl Fn(u64) -> bool {
    let mut lost = false;
    let enter = share / burst / (1.0 - share);
    let fates: Vec<bool> = (0..5_000)
        .map(|n| {
            let roll = dice(n + 1_000_000);
            lost = if burst == 1.0 {
                roll < share
            } else if lost {
                roll >= 1.0 / burst
            } else {
                roll < enter
            };
            lost
        })
        .collect();
    move |n| fates[n as usize % fates.len()]
}

/// Packets over a network to the downlink, the codec and the queue to the Watch, as the Watch hears it.
fn down(
    packets: &[Vec<u8>],
    delivery: Delivery<'_>,
    lost: &dyn Fn(u64) -> bool,
    open: &dyn Fn(Duration) -> bool,
) -> Vec<i16> {
    let mut downlink = Downlink::new(Decoder::new(WATCH_RATE).expect("a decoder"), Some(PAYLOAD_TYPE));
    let mut backlog = Backlog::new();
    let mut resampler = Resampler::new(WATCH_RATE, RATE).expect("rates of sound");
    let mut heard = Vec::new();
    // Does what is due, and hands on what has come of it.
    let mut step = |downlink: &mut Downlink<Decoder>, now: Duration| {
        downlink.handle_timeout(now);
        while let Some(frame) = downlink.pop() {
            let length = Duration::from_secs(1) * frame.samples.len() as u32 / WATCH_RATE;
            backlog.push(now, frame.samples, length, frame.peak);
        }
        while open(now)
            && let Some(samples) = backlog.pop(now)
        {
            resampler.push(samples, &mut heard);
        }
    };
    let (mut sequence, mut last) = (0u16, Duration::ZERO);
    for (n, payload) in packets.iter().enumerate() {
        if is_dtx(payload) {
            continue;
        }
        sequence = sequence.wrapping_add(1);
        if lost(n as u64) {
            continue;
        }
        last = delivery(FRAME * (n as u32 + 1)).max(last);
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline < last) {
            step(&mut downlink, deadline);
        }
        let timestamp = 960 * n as u32;
        let packet = RtpPacket { sequence, timestamp, marker: false, payload_type: PAYLOAD_TYPE, ssrc: 1, payload };
        downlink.push(last, packet);
        step(&mut downlink, last);
    }
    heard
}

/// Of the source, of the Watch's microphone and of what is written.
const RATE: u32 = 16_000;
/// Of what the Watch plays.
const WATCH_RATE: u32 = 24_000;
const FRAME: Duration = Duration::from_millis(20);
/// When the stream up begins.
const START: Duration = Duration::from_millis(50);
/// How long is listened after the last arrival.
const END: Duration = Duration::from_millis(500);
const PAYLOAD_TYPE: u8 = 111;
