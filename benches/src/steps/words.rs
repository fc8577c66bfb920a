//! The steps that seal and open, and those that turn sound into Grok's texts and back.

use std::hint::black_box;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use watch_audio::seal::{GrantId, Kind, Root, Sid, Stream, Streams};
use watch_audio_media::ledger::Ledger;
use watch_audio_media::pacer::{Paced, Pacer};

use super::sound::{MESSAGE_FRAMES, timed};
use super::{Call, Group, Step, step};
use crate::{FRAME, Failed};

pub(super) const SEAL: [Step; 6] = [
    step(Group::Seal, "open the microphone, 100 ms of PCM at 16 kHz", &[Call::Pcm], |frames| {
        open(frames.div_ceil(MESSAGE_FRAMES), 3_200)
    }),
    step(Group::Seal, "open the microphone, 100 ms of PCM at 24 kHz", &[Call::Grok], |frames| {
        open(frames.div_ceil(MESSAGE_FRAMES), 4_800)
    }),
    step(Group::Seal, "open the microphone, 20 ms of Opus", &[Call::Opus], |frames| open(frames, OPUS_PACKET)),
    step(Group::Seal, "seal for the Watch, 20 ms of PCM", &[Call::Pcm], |frames| seal(frames, 960)),
    step(Group::Seal, "seal for the Watch, 100 ms of PCM", &[Call::Grok], |frames| {
        seal(frames.div_ceil(MESSAGE_FRAMES), 4_800)
    }),
    step(Group::Seal, "seal for the Watch, 20 ms of Opus", &[Call::Opus], |frames| seal(frames, OPUS_PACKET)),
];

pub(super) const CORE: [Step; 3] = [
    step(Group::Core, "Grok: base64 and JSON up, 100 ms", &[Call::Grok], |frames| {
        let pcm = noise(4_800);
        timed(frames.div_ceil(MESSAGE_FRAMES), |_| {
            let event = json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(&pcm)});
            black_box(event.to_string());
            Ok(())
        })
    }),
    step(Group::Core, "Grok: JSON and base64 down, 100 ms", &[Call::Grok], |frames| {
        let delta = json!({
            "type": "response.output_audio.delta", "event_id": "event_0123456789", "response_id": "resp_0123456789",
            "item_id": "item_0123456789", "output_index": 0, "content_index": 0, "delta": STANDARD.encode(noise(4_800)),
        })
        .to_string();
        timed(frames.div_ceil(MESSAGE_FRAMES), |_| {
            let event: Map<String, Value> = serde_json::from_str(&delta).unwrap_or_default();
            let pcm = event.get("delta").and_then(Value::as_str).map(|delta| STANDARD.decode(delta));
            black_box(pcm);
            Ok(())
        })
    }),
    step(Group::Core, "Grok: ledger and pacer", &[Call::Grok], |frames| {
        let mut ledger = Ledger::new(24_000, false);
        let mut pacer: Pacer<Vec<u8>> = Pacer::new(24_000);
        let pcm = noise(4_800);
        timed(frames.div_ceil(MESSAGE_FRAMES), |n| {
            let now = FRAME * MESSAGE_FRAMES * n;
            if let Some(received) = ledger.receive("reply", "item", 0, pcm.clone()) {
                pacer.push_audio(now, received.item, received.end, received.pcm);
            }
            while let Some(Paced::Audio(piece)) = pacer.poll(now) {
                black_box(piece.pcm.len());
                ledger.sent(piece.item, piece.end, piece.plays_until);
            }
            Ok(())
        })
    }),
];

fn seal(messages: u32, plain: usize) -> Result<Duration, Failed> {
    let (mut host, _) = streams()?;
    let plain = noise(plain);
    let mut message = Vec::new();
    timed(messages, |_| {
        let sealed = host.sealer.seal(Kind::Audio, &plain, &mut message);
        debug_assert!(sealed.is_ok());
        Ok(())
    })
}

fn open(messages: u32, plain: usize) -> Result<Duration, Failed> {
    let (mut host, mut watch) = streams()?;
    let plain = noise(plain);
    let sealed: Result<Vec<Vec<u8>>, _> = (0..messages)
        .map(|_| {
            let mut message = Vec::new();
            watch.sealer.seal(Kind::Audio, &plain, &mut message).map(|()| message)
        })
        .collect();
    let sealed = sealed.map_err(Failed::to("seal"))?;
    timed(messages, |n| {
        let opened = host.opener.open(&sealed[n as usize]);
        debug_assert!(opened.is_ok());
        let _ = black_box(opened);
        Ok(())
    })
}

/// Both ends of a stream, the host's first.
fn streams() -> Result<(Stream, Stream), Failed> {
    let (root, grant, sid) = (Root::random(), GrantId::random(), Sid::random());
    let host = Streams::new(root.clone(), grant.clone()).take(sid).map_err(Failed::to("take a stream"))?;
    Ok((host, Stream::watch(&root, &grant, sid)))
}

/// Bytes of any kind.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// What 20 ms of speech have at 32 kb/s.
const OPUS_PACKET: usize = 80;
