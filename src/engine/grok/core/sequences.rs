//! Whatever happens in whatever order: what must hold of every session.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use watch_audio_media::opus::packet_samples;

use super::{Core, ToEngine};
use crate::engine::Codec;
use crate::engine::ToWatch;
use crate::engine::grok::coding::Coding;

#[derive(Debug, Clone)]
enum Step {
    Wait(u16),
    /// Audio of one of the last replies: how long ago it was created, which of its items, how many bytes.
    Delta(u8, u8, u16),
    Created,
    /// How long ago the reply was created.
    Done(u8),
    ItemDone(u8, u8),
    SpeechStarted,
    Event,
    Cancel(Option<u8>),
    Stop,
    /// The Watch reports: flushed or only played, whether of the present epoch, the item, the place.
    Report(bool, bool, u8, u8, u16),
    Microphone(u16),
    /// The link has room for so many messages.
    Poll(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let ago = || prop_oneof![4 => Just(0_u8), 1 => 0..3_u8];
    prop_oneof![
        4 => (0..900_u16).prop_map(Step::Wait),
        8 => (ago(), 0..2_u8, 0..30_000_u16).prop_map(|(ago, item, size)| Step::Delta(ago, item, size)),
        2 => Just(Step::Created),
        2 => ago().prop_map(Step::Done),
        1 => (ago(), 0..2_u8).prop_map(|(ago, item)| Step::ItemDone(ago, item)),
        2 => Just(Step::SpeechStarted),
        2 => Just(Step::Event),
        1 => proptest::option::of(ago()).prop_map(Step::Cancel),
        1 => Just(Step::Stop),
        2 => (any::<bool>(), any::<bool>(), ago(), 0..2_u8, 0..9_000_u16)
            .prop_map(|(flushed, now, ago, item, ms)| Step::Report(flushed, now, ago, item, ms)),
        1 => (0..5_000_u16).prop_map(Step::Microphone),
        8 => (1..40_u8).prop_map(Step::Poll),
    ]
}

#[derive(Default)]
struct Seen {
    opus: bool,
    deltas: u64,
    /// Numbers of the events that went in, and that came out.
    events: (u64, Vec<u64>),
    /// Samples of each reply that were taken and did not come out.
    waiting: HashMap<u8, u64>,
    /// Replies that may no longer be heard.
    silenced: Vec<u8>,
    truncated: HashMap<String, u64>,
    received: HashMap<String, u64>,
    last_own: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_keeps_the_books_and_the_order(
        playout in any::<bool>(),
        opus in prop::bool::weighted(0.3),
        steps in vec(step(), 1..120),
    ) {
        let codec = if opus { Codec::Opus } else { Codec::Pcm16 };
        let mut core = Core::new(playout, Coding::new(codec).unwrap());
        let mut now = Duration::ZERO;
        let mut reply = 0_u8;
        let mut seen = Seen { opus, ..Seen::default() };
        for step in steps {
            let barge_ins = core.stats.barge_ins;
            match step {
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms.into());
                    core.engine_alive(now);
                    core.handle_timeout(now);
                    prop_assert!(core.deadline().is_none_or(|deadline| deadline > now), "it would spin");
                }
                Step::Delta(ago, item, size) => {
                    let of = reply.saturating_sub(ago);
                    let id = format!("r{of}-{item}");
                    seen.deltas += 1;
                    *seen.received.entry(id.clone()).or_default() += u64::from(size);
                    let pcm = vec![of; size.into()];
                    let event = json!({"type": "response.output_audio.delta", "response_id": format!("r{of}"),
                        "item_id": id, "content_index": 0, "delta": STANDARD.encode(pcm)});
                    let before = core.ledger.received_in_all();
                    core.engine_text(now, event.to_string().into());
                    *seen.waiting.entry(of).or_default() += core.ledger.received_in_all() - before;
                }
                Step::Created => {
                    reply = reply.saturating_add(1);
                    event(&mut core, now, &mut seen, json!({"type": "response.created", "response": {"id": format!("r{reply}")}}));
                }
                Step::Done(ago) => {
                    let id = format!("r{}", reply.saturating_sub(ago));
                    event(&mut core, now, &mut seen, json!({"type": "response.done", "response": {"id": id}}));
                }
                Step::ItemDone(ago, item) => {
                    let id = format!("r{}-{item}", reply.saturating_sub(ago));
                    event(&mut core, now, &mut seen, json!({"type": "response.output_audio.done", "item_id": id}));
                }
                Step::SpeechStarted => {
                    event(&mut core, now, &mut seen, json!({"type": "input_audio_buffer.speech_started"}));
                }
                Step::Event => event(&mut core, now, &mut seen, json!({"type": "something"})),
                Step::Cancel(ago) => {
                    let of = ago.map(|ago| reply.saturating_sub(ago));
                    core.watch_event(json!({"type": "response.cancel", "response_id": of.map(|of| format!("r{of}"))})
                        .to_string().as_bytes());
                    seen.silenced.extend(of);
                }
                Step::Stop => control(&mut core, now, json!({"type": "stop"})),
                Step::Report(flushed, present, ago, item, ms) => {
                    let kind = if flushed { "flushed" } else { "played" };
                    let epoch = core.epoch.saturating_sub(u64::from(!present));
                    let item = format!("r{}-{item}", reply.saturating_sub(ago));
                    control(&mut core, now, json!({"type": kind, "epoch": epoch, "item": item, "ms": ms}));
                }
                Step::Microphone(size) => core.watch_audio(now, &vec![0; size.into()]),
                Step::Poll(room) => {
                    for _ in 0..room {
                        let Some(message) = core.poll(now) else { break };
                        to_watch(message, &mut seen)?;
                    }
                }
            }
            if core.stats.barge_ins > barge_ins {
                let waiting = seen.waiting.iter().filter(|(_, samples)| **samples > 0);
                seen.silenced.extend(waiting.map(|(reply, _)| *reply));
            }
            let pacer = core.pacer.stats();
            let held = core.pacer.held().as_micros() as u64 * 24 / 1_000;
            let silence = if opus { 480 * seen.deltas } else { 0 };
            let total = pacer.sent + pacer.dropped + pacer.overflowed + held;
            let received = core.ledger.received_in_all();
            prop_assert!(
                total + 1 >= received && total <= received + silence + 1,
                "received is sent, dropped or held, and less than 20 ms of silence fills up what came"
            );
            prop_assert!(core.ledger.heard_in_all(now) <= pacer.sent);
            while let Some(ToEngine::Text(text)) = core.next_for_engine(now) {
                to_engine(&text, &mut seen)?;
            }
        }
        // In the end everything comes out.
        now += Duration::from_secs(600);
        core.engine_closed("over");
        while let Some(message) = core.poll(now) {
            to_watch(message, &mut seen)?;
        }
        let all: Vec<u64> = (0..seen.events.0).collect();
        prop_assert_eq!(seen.events.1, all, "every event, in order");
    }
}

fn event(core: &mut Core, now: Duration, seen: &mut Seen, mut event: Value) {
    event["number"] = json!(seen.events.0);
    seen.events.0 += 1;
    core.engine_text(now, event.to_string().into());
}

fn control(core: &mut Core, now: Duration, control: Value) {
    core.watch_control(now, control.as_object().unwrap());
}

fn to_watch(message: ToWatch, seen: &mut Seen) -> Result<(), TestCaseError> {
    match message {
        ToWatch::Audio(packet) if seen.opus => {
            prop_assert!(matches!(packet_samples(&packet, 24_000), Some(480 | 960 | 1_440)));
        }
        ToWatch::Audio(pcm) => {
            prop_assert!(pcm.len().is_multiple_of(2) && (2..=4_800).contains(&pcm.len()));
            prop_assert!(!seen.silenced.contains(&pcm[0]), "a reply that is over is heard");
            *seen.waiting.entry(pcm[0]).or_default() -= pcm.len() as u64 / 2;
        }
        ToWatch::Event(event) => {
            let event: Value = serde_json::from_slice(&event).unwrap();
            seen.events.1.push(event["number"].as_u64().unwrap());
        }
        ToWatch::Control(control) => prop_assert!(control["epoch"].is_u64()),
    }
    Ok(())
}

fn to_engine(text: &str, seen: &mut Seen) -> Result<(), TestCaseError> {
    let event: Value = serde_json::from_str(text).unwrap();
    if let Some(id) = event["event_id"].as_str() {
        let number: u64 = id.strip_prefix("host-").unwrap().parse().unwrap();
        prop_assert_eq!(number, seen.last_own + 1);
        seen.last_own = number;
    }
    if event["type"] == "conversation.item.truncate" {
        let (item, ms) = (event["item_id"].as_str().unwrap().to_owned(), event["audio_end_ms"].as_u64().unwrap());
        prop_assert!(ms > 0 && ms <= seen.received[&item] / 48, "within what was received");
        prop_assert!(seen.truncated.insert(item, ms).is_none(), "an item is truncated once");
    }
    Ok(())
}
