//! What is fuzzed: one function for each place where bytes of others come in. Each takes any bytes and panics when something
//! does not hold that must hold of all of them.
//!
//! `fuzz/run` has libFuzzer call them, compiled to tell which code an input reached. `fuzz/corpus/TARGET` keeps inputs that
//! reach much, and every input that ever found a fault: the test below runs them all, as every `cargo test` does.

use std::time::Duration;

use serde_json::{Map, Value};
use watch_audio_media::downlink::{Downlink, FrameKind, RtpPacket};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings};
use watch_audio_media::uplink::passing::Passing;
use watch_audio_media::wav;

use crate::engine::{EngineKind, Start};
use crate::seal::tools::Envelope;
use crate::seal::{self, GrantId, Kind, MAX_MESSAGE, OpenError, Rid, Root, Sid, Stream, Streams};
use crate::sign_in::session::{Dialect, session_request};
use crate::{engine, hermes, parent, relay, rtc};

/// A target's name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("sealed", sealed),
    ("tools", tools),
    ("control", control),
    ("relay_frames", relay::fuzz::frames),
    ("relay_requests", relay::fuzz::requests),
    ("helper_frames", parent::frames::fuzz),
    ("plugin_lines", parent::lines::fuzz),
    ("grok_events", engine::grok::fuzz),
    ("gpt_live_events", engine::gpt_live::fuzz),
    ("hermes_events", hermes::fuzz),
    ("sdp_answer", rtc::fuzz::answer),
    ("downlink", downlink),
    ("opus_messages", opus_messages),
    ("wav", wav),
];

/// A message as it comes from the relay. Forged, it opens never; genuine, once, whatever came before.
fn sealed(message: &[u8]) {
    let (mut watch, mut host) = streams();
    let mut genuine = Vec::new();
    let plain = &message[..message.len().min(seal::MAX_PLAIN)];
    watch.sealer.seal(Kind::Event, plain, &mut genuine).expect("it fits");
    assert!(host.opener.open(message).is_err(), "nobody else has the key");
    // What an attacker on the way can do with a genuine one: change it by the input.
    let mut changed = genuine.clone();
    let at = message.first().map_or(0, |first| usize::from(*first) % changed.len());
    changed[at] ^= message.last().copied().unwrap_or(1).max(1);
    assert!(matches!(host.opener.open(&changed), Err(OpenError::Forged | OpenError::Malformed)));
    assert!(host.opener.open(&genuine[..genuine.len() - 1]).is_err());
    assert_eq!(host.opener.open(&genuine), Ok((Kind::Event, plain.to_vec())));
    assert_eq!(host.opener.open(&genuine), Err(OpenError::Repeated));
    assert!(genuine.len() <= MAX_MESSAGE);
}

/// A sealed tool call and result as the relay passes them, as JSON.
fn tools(json: &[u8]) {
    let (root, grant) = grant();
    let rid: Rid = "RRRRRRRRRRRRRRRRRRRRRR".parse().expect("22 characters");
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(json) {
        assert!(seal::tools::open_call(&root, &grant, &rid, &envelope).is_err(), "nobody else has the key");
        assert!(seal::tools::open_result(&root, &grant, &rid, &envelope).is_err(), "nobody else has the key");
    }
}

/// A hello, and what a Watch may say once its stream is open.
fn control(message: &[u8]) {
    if let Ok(hello) = seal::parse_hello(message) {
        assert_eq!(message.len(), seal::HELLO_BYTES);
        let (root, grant) = grant();
        let mut streams = Streams::new(root, grant);
        assert!(streams.take(hello.sid).is_ok() && streams.take(hello.sid).is_err());
    }
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(message) else { return };
    let engine = fields.remove("engine");
    let engine = engine.as_ref().and_then(Value::as_str).and_then(EngineKind::parse).unwrap_or(EngineKind::GptLive);
    let start = Start { engine, fields };
    let _ = (start.codec(), start.flag("playout"), start.flag("stats"));
    for dialect in [Dialect::A, Dialect::B] {
        let request = session_request(dialect, &start, None, None);
        let size = request.session.to_string().len();
        assert!(size <= 2 * message.len() + 4_096, "{size} bytes are asked for by {}", message.len());
        assert!(!request.voice.is_empty());
    }
}

/// Packets as the engine's network brings them: `[wait ms][sequence ±][timestamp ±][length][payload]`, decoded with libopus.
fn downlink(mut script: &[u8]) {
    let pass = script.first().is_some_and(|first| first & 1 == 1);
    let mut downlink = Downlink::new(Decoder::new(24_000).expect("a decoder"), Some(111));
    if pass {
        downlink = downlink.passing_packets();
    }
    let (mut now, mut sequence, mut timestamp) = (Duration::ZERO, 65_000_u16, u32::MAX - 48_000);
    let mut given = 0_u64;
    while let [wait, step, jump, length, rest @ ..] = script {
        // Up to 2 s between packets; deadlines are kept as a call keeps them.
        let arrives = now + Duration::from_millis(u64::from(*wait).pow(2) / 32);
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline <= arrives) {
            now = now.max(deadline);
            downlink.handle_timeout(now);
            given += pop_all(&mut downlink);
            assert!(downlink.deadline().is_none_or(|next| next > now), "it would spin");
        }
        now = arrives;
        let (payload, after) = rest.split_at(rest.len().min((*length).into()));
        script = after;
        sequence = sequence.wrapping_add_signed(i16::from(*step as i8));
        timestamp = timestamp.wrapping_add_signed(i32::from(*jump as i8) * 480);
        let payload_type = if *step == 0x7f { 13 } else { 111 };
        downlink.push(now, RtpPacket { sequence, timestamp, marker: false, payload_type, ssrc: 7, payload });
        given += pop_all(&mut downlink);
    }
    let played = Duration::from_secs(1) * given as u32 / 24_000;
    assert!(played <= now * 7 + Duration::from_secs(30), "{played:?} of sound came out of {now:?}");
}

/// Takes everything out; answers how many samples that were.
fn pop_all(downlink: &mut Downlink<Decoder>) -> u64 {
    let mut samples = 0;
    while let Some(frame) = downlink.pop() {
        assert!((60..=2_880).contains(&frame.samples.len()), "{} samples", frame.samples.len());
        assert!(frame.packet.is_empty() || frame.kind == FrameKind::Decoded || frame.packet.len() <= 1_500);
        samples += frame.samples.len() as u64;
    }
    samples
}

/// Opus messages of a Watch, on their way to the engine: `[wait ms][length][message]`.
fn opus_messages(mut script: &[u8]) {
    let decoder = Decoder::new(16_000).expect("a decoder");
    let encoder = Encoder::new(16_000, &EncoderSettings::voice()).expect("an encoder");
    let mut passing = Passing::new(decoder, encoder);
    let mut now = Duration::ZERO;
    while let [wait, length, rest @ ..] = script {
        let arrives = now + Duration::from_millis(u64::from(*wait).pow(2) / 256);
        while passing.next_slot() <= arrives {
            now = now.max(passing.next_slot());
            let slot = passing.next_slot();
            let due = passing.pull(now);
            assert!((1..=6).contains(&due.frames) && !due.packet.is_empty());
            assert!(passing.next_slot() > slot, "it would spin");
        }
        now = arrives;
        let (message, after) = rest.split_at(rest.len().min((*length).into()));
        script = after;
        passing.push(now, message);
    }
}

/// A WAV file.
fn wav(bytes: &[u8]) {
    if let Ok(wav) = wav::parse(bytes) {
        assert!(wav.samples.len() <= bytes.len() && wav.rate > 0);
        // What was read can be written and read again.
        let mut again = wav::header(wav.rate, wav.samples.len() as u64).to_vec();
        watch_audio_media::pcm::to_bytes(&wav.samples, &mut again);
        let again = wav::parse(&again).expect("our own");
        assert_eq!((again.rate, again.samples), (wav.rate, wav.samples));
    }
}

fn grant() -> (Root, GrantId) {
    (Root::new([7; 32]), "GGGGGGGGGGGGGGGGGGGGGG".parse().expect("22 characters"))
}

fn streams() -> (Stream, Stream) {
    let (root, grant) = grant();
    let watch = Stream::watch(&root, &grant, Sid::from_bytes([9; 16]));
    let host = Streams::new(root, grant).take(watch.sid).expect("the first");
    (watch, host)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_input_of_the_corpus_is_stood() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (name, target) in TARGETS {
            let inputs = std::fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut ran = 0;
            for input in inputs {
                let path = input.unwrap().path();
                let bytes = std::fs::read(&path).unwrap();
                let stood = std::panic::catch_unwind(|| target(&bytes));
                assert!(stood.is_ok(), "{}", path.display());
                ran += 1;
            }
            assert!(ran > 0, "{name} has no inputs");
        }
    }
}
