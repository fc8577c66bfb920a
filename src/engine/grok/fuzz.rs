//! Any sequence of what engine and Watch say, and of time.

use std::time::Duration;

use bytes::Bytes;

use super::coding::Coding;
use super::core::Core;
use crate::engine::{Codec, ToWatch};
use crate::seal::MAX_PLAIN;

/// A line each: `e` a text of the engine's, `w` an event and `c` a control message of the Watch's, `a` its audio, `t` and a
/// number of milliseconds that pass, `p` the Watch takes all that is due, `x` the engine hangs up. A script that begins with
/// `!` is of a Watch that reports its playout, with `?` of one that speaks Opus.
pub(crate) fn script(script: &[u8]) {
    let first = script.first().copied().unwrap_or_default();
    let codec = if first == b'?' { Codec::Opus } else { Codec::Pcm16 };
    let mut core = Core::new(first == b'!', Coding::new(codec).expect("a codec"));
    let mut now = Duration::ZERO;
    for line in script.split(|byte| *byte == b'\n') {
        let Some((kind, rest)) = line.split_first() else { continue };
        match kind {
            b'e' => core.engine_text(now, Bytes::copy_from_slice(rest)),
            b'w' => core.watch_event(rest),
            b'c' => {
                if let Ok(control) = serde_json::from_slice(rest) {
                    core.watch_control(now, &control);
                }
            }
            b'a' => core.watch_audio(now, rest),
            b't' => {
                let ms = std::str::from_utf8(rest).ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(100);
                now += Duration::from_millis(ms.min(LONGEST_PAUSE).into());
                core.handle_timeout(now);
                assert!(core.deadline().is_none_or(|next| next > now) || core.ended().is_some(), "it would spin");
            }
            b'p' => take_all(&mut core, now),
            b'x' => core.engine_closed("closed"),
            _ => {}
        }
        while core.next_for_engine(now).is_some() {}
    }
    take_all(&mut core, now);
    // However much was held, a patient Watch gets all of it.
    for _ in 0..MOST_PIECES {
        let Some(due) = core.due() else { break };
        now = now.max(due);
        take_all(&mut core, now);
    }
    assert!(core.due().is_none(), "something is due for ever");
    let stats = core.stats(now);
    let ms = |side: &str, name: &str| stats[side][name].as_u64().expect("a number");
    assert!(ms("down", "heard_ms") <= ms("down", "received_ms"), "{stats:?}");
}

fn take_all(core: &mut Core, now: Duration) {
    while core.due().is_some_and(|due| due <= now) {
        match core.poll(now) {
            Some(ToWatch::Audio(bytes)) => assert!(!bytes.is_empty() && bytes.len() <= MAX_PLAIN),
            Some(ToWatch::Event(bytes)) => assert!(bytes.len() <= MAX_PLAIN),
            Some(ToWatch::Control(control)) => assert!(control.to_string().len() <= MAX_PLAIN),
            None => panic!("what is due comes"),
        }
    }
}

/// Longer than anything the core waits for, ms.
const LONGEST_PAUSE: u32 = 70_000;

/// Ten minutes of sound in pieces of 60 ms, and as many marks and events.
const MOST_PIECES: usize = 40_000;
