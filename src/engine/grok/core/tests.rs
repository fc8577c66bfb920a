//! Whole sessions in virtual time.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Core, ToEngine};
use crate::engine::grok::coding::Coding;
use crate::engine::{Codec, ToWatch};

mod opus;

/// A core, the engine's texts it was sent, and a Watch that takes everything as soon as it is due.
struct Bench {
    core: Core,
    now: Duration,
    sent: Vec<Value>,
    got: Vec<(Duration, ToWatch)>,
}

impl Bench {
    fn new(playout: bool) -> Self {
        Self::with(playout, Codec::Pcm16)
    }

    fn with(playout: bool, codec: Codec) -> Self {
        Self {
            core: Core::new(playout, Coding::new(codec).unwrap()),
            now: Duration::ZERO,
            sent: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Lets time pass, stopping at each deadline.
    fn run_to(&mut self, ms: u64) {
        let end = Duration::from_millis(ms);
        loop {
            self.settle();
            let next = self.core.due().into_iter().chain(self.core.deadline()).min();
            match next.filter(|next| *next <= end) {
                Some(next) => {
                    assert!(next > self.now, "a deadline that passed was not dealt with");
                    self.now = next;
                }
                None => break,
            }
            self.core.handle_timeout(self.now);
            // Only a dead engine is silent for a minute.
            self.core.engine_alive(self.now);
        }
        self.now = end;
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(message) = self.core.poll(self.now) {
            self.got.push((self.now, message));
        }
        while let Some(message) = self.core.next_for_engine(self.now) {
            if let ToEngine::Text(text) = message {
                self.sent.push(serde_json::from_str(&text).unwrap());
            }
        }
    }

    fn engine(&mut self, event: Value) {
        self.core.engine_text(self.now, event.to_string().into());
        self.settle();
    }

    fn delta(&mut self, reply: &str, item: &str, pcm: &[u8]) {
        self.engine(json!({"type": "response.output_audio.delta", "response_id": reply, "item_id": item,
            "output_index": 0, "content_index": 0, "delta": STANDARD.encode(pcm)}));
    }

    /// A reply's audio in deltas of 200 ms, all at once.
    fn burst(&mut self, reply: &str, item: &str, ms: usize) {
        for _ in 0..ms / 200 {
            self.delta(reply, item, &[1; 9_600]);
        }
    }

    fn created(&mut self, reply: &str) {
        self.engine(json!({"type": "response.created", "response": {"id": reply}}));
    }

    fn done(&mut self, reply: &str, status: &str) {
        self.engine(json!({"type": "response.done", "response": {"id": reply, "status": status}}));
    }

    fn speech_started(&mut self) {
        self.engine(json!({"type": "input_audio_buffer.speech_started", "item_id": "user", "audio_start_ms": 0}));
    }

    fn watch(&mut self, event: Value) {
        self.core.watch_event(event.to_string().as_bytes());
        self.settle();
    }

    fn control(&mut self, control: Value) {
        let Value::Object(control) = control else { panic!("an object") };
        self.core.watch_control(self.now, &control);
        self.settle();
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = Value::Object(self.core.stats(self.now));
        stats.pointer(&format!("/{name}")).and_then(Value::as_u64).unwrap()
    }

    fn truncates(&self) -> Vec<(&str, u64)> {
        let truncates = self.sent.iter().filter(|event| event["type"] == "conversation.item.truncate");
        truncates.map(|event| (event["item_id"].as_str().unwrap(), event["audio_end_ms"].as_u64().unwrap())).collect()
    }

    fn audio(&self) -> Vec<u8> {
        let audio = self.got.iter().filter_map(|(_, message)| match message {
            ToWatch::Audio(pcm) => Some(&pcm[..]),
            _ => None,
        });
        audio.collect::<Vec<_>>().concat()
    }

    fn audio_ms(&self) -> u64 {
        self.audio().len() as u64 / 48
    }

    /// What the Watch got, in order: event types, `audio`, control types.
    fn order(&self) -> Vec<String> {
        let word = |(_, message): &(Duration, ToWatch)| match message {
            ToWatch::Audio(_) => "audio".to_owned(),
            ToWatch::Event(event) => {
                serde_json::from_slice::<Value>(event).unwrap()["type"].as_str().unwrap().to_owned()
            }
            ToWatch::Control(control) => control["type"].as_str().unwrap().to_owned(),
        };
        let mut order: Vec<String> = self.got.iter().map(word).collect();
        order.dedup();
        order
    }
}

#[test]
fn a_turn_is_audio_with_every_other_event_in_its_place() {
    let mut bench = Bench::new(false);
    bench.created("r1");
    bench.engine(json!({"type": "response.output_audio_transcript.delta", "delta": "one"}));
    bench.burst("r1", "a", 2_000);
    bench.engine(json!({"type": "response.output_audio_transcript.delta", "delta": "two"}));
    // The older name.
    bench.engine(json!({"type": "response.audio.delta", "item_id": "a", "delta": STANDARD.encode([0; 4_800])}));
    bench.engine(json!({"type": "response.audio.done", "item_id": "a"}));
    bench.done("r1", "completed");
    bench.engine(json!({"type": "ping", "timestamp": 1}));
    assert_eq!(bench.audio_ms(), 1_500);
    bench.run_to(5_000);
    assert_eq!(bench.audio_ms(), 2_100);
    assert_eq!(
        bench.order(),
        [
            "response.created",
            "response.output_audio_transcript.delta",
            "audio",
            "response.output_audio_transcript.delta",
            "audio",
            "response.audio.done",
            "response.done",
            "ping"
        ]
    );
    assert!(bench.sent.is_empty(), "a host that is not interrupted says nothing");
    assert_eq!((bench.stat("to_watch/sent_ms"), bench.stat("down/heard_ms")), (2_100, 2_100));
}

#[test]
fn case_7_deltas_cut_in_the_middle_of_a_sample_come_out_whole() {
    let ramp: Vec<u8> = (0..4_800_i16).flat_map(i16::to_le_bytes).collect();
    let mut bench = Bench::new(false);
    bench.delta("r1", "a", &ramp[..4_801]);
    bench.delta("r1", "a", &ramp[4_801..]);
    bench.delta("r1", "a", &[7]);
    bench.done("r1", "completed");
    bench.delta("r2", "b", &ramp);
    bench.run_to(2_000);
    assert_eq!(bench.audio(), [&ramp[..], &ramp[..]].concat());
}

#[test]
fn broken_audio_and_broken_texts_are_left_out_and_counted() {
    let mut bench = Bench::new(false);
    bench.delta("r1", "a", &[1; 4_801]);
    bench.engine(json!({"type": "response.output_audio.delta", "item_id": "a", "delta": "!!!"}));
    bench.engine(json!({"type": "response.output_audio.delta", "item_id": "a", "delta": 5}));
    bench.engine(json!({"type": "response.output_audio.delta", "item_id": "a"}));
    bench.delta("r1", "a", &[2; 4_800]);
    // Without its padding.
    bench.engine(json!({"type": "response.output_audio.delta", "item_id": "a", "delta": "AwM"}));
    for text in ["", "null", "[]", "{\"type\":", "\u{1}"] {
        bench.core.engine_text(bench.now, text.into());
    }
    bench.engine(json!({"type": 7, "item_id": {}, "response": "x", "error": []}));
    bench.run_to(1_000);
    assert_eq!(bench.audio(), [&[1; 4_800][..], &[2; 4_800], &[3; 2]].concat());
    assert_eq!(bench.stat("down/unreadable"), 8);
    assert_eq!(bench.got.len(), 4, "an event of odd types is the Watch's business");
}

#[test]
fn case_35_truncation_is_of_the_item_being_heard_and_within_its_audio() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 9_200);
    bench.done("r1", "completed");
    bench.run_to(20_000);
    bench.created("r2");
    bench.burst("r2", "b", 3_000);
    bench.run_to(21_400);
    bench.speech_started();
    bench.done("r2", "cancelled");
    assert_eq!(bench.truncates(), [("b", 1_200)]);
    // All of what came was heard, and more was to come: never more than that.
    bench.run_to(30_000);
    bench.created("r3");
    bench.burst("r3", "c", 600);
    bench.run_to(40_000);
    bench.speech_started();
    bench.done("r3", "cancelled");
    assert_eq!(bench.truncates()[1..], [("c", 600)]);
    let event = &bench.sent[1];
    assert_eq!((&event["event_id"], &event["content_index"]), (&json!("host-2"), &json!(0)));
}

#[test]
fn case_35_an_engine_that_does_not_know_truncation_is_asked_once() {
    let mut bench = Bench::new(false);
    for n in 1..=3 {
        let reply = format!("r{n}");
        bench.burst(&reply, &reply, 3_000);
        bench.run_to(n * 10_000 + 1_000);
        bench.burst(&reply, &reply, 3_000);
        bench.run_to(n * 10_000 + 2_000);
        bench.speech_started();
        bench.done(&reply, "cancelled");
        let error = json!({"type": "invalid_event", "message": "unknown event", "event_id": "host-1"});
        bench.engine(json!({"type": "error", "event_id": "e", "error": error}));
    }
    assert_eq!(bench.truncates().len(), 1);
    assert!(!bench.order().contains(&"error".to_owned()));
    assert!(bench.core.ended().is_none());
}

#[test]
fn case_36_speech_while_nobody_is_talking_is_no_interruption() {
    let mut bench = Bench::new(true);
    bench.speech_started();
    bench.created("r1");
    bench.speech_started();
    // The reply that was about to begin is not taken away.
    bench.burst("r1", "a", 1_000);
    bench.done("r1", "completed");
    bench.run_to(10_000);
    bench.speech_started();
    let error = json!({"type": "invalid_request_error", "code": "response_cancel_not_active", "event_id": "watch-7"});
    bench.engine(json!({"type": "error", "error": error}));
    assert_eq!(bench.audio_ms(), 1_000);
    assert!(bench.sent.is_empty());
    assert!(!bench.order().contains(&"flush".to_owned()));
    assert_eq!(bench.order().last().unwrap(), "error", "an error of the Watch's own is the Watch's");
    assert_eq!((bench.stat("barge_ins"), bench.core.ended()), (0, None));
}

#[test]
fn case_37_barge_in_during_the_tail_empties_the_queue_at_once() {
    let mut bench = Bench::new(false);
    bench.created("r1");
    bench.run_to(100);
    bench.burst("r1", "a", 8_000);
    bench.burst("r1", "b", 1_000);
    bench.engine(json!({"type": "response.output_audio_transcript.done", "transcript": "…"}));
    bench.done("r1", "completed");
    bench.run_to(3_100);
    let before = bench.got.len();
    assert_eq!(bench.audio_ms(), 4_500);
    bench.speech_started();
    assert_eq!(bench.truncates(), [("a", 2_800)], "and nothing of the item behind it");
    bench.run_to(20_000);
    assert_eq!(bench.audio_ms(), 4_500);
    let freed: Vec<_> = bench.got[before..].iter().map(|(at, _)| at.as_millis()).collect();
    assert_eq!(freed, [3_100; 3], "what waited behind the audio goes at once");
    assert_eq!(
        bench.order()[2..],
        ["response.output_audio_transcript.done", "response.done", "input_audio_buffer.speech_started"]
    );
    assert_eq!(bench.stat("down/interrupted_ms"), 4_500);
}

#[test]
fn case_39_late_audio_of_an_interrupted_reply_is_not_heard() {
    let mut bench = Bench::new(false);
    bench.created("r1");
    bench.burst("r1", "a", 3_000);
    bench.run_to(1_000);
    bench.speech_started();
    let before = bench.audio_ms();
    bench.burst("r1", "a", 1_000);
    bench.done("r1", "cancelled");
    bench.created("r2");
    bench.burst("r2", "b", 400);
    bench.burst("r1", "a", 200);
    bench.burst("r2", "b", 400);
    bench.done("r2", "completed");
    bench.run_to(10_000);
    assert_eq!(bench.audio_ms() - before, 800);
    assert_eq!(bench.stat("down/late_ms"), 1_200);
    assert_eq!(bench.stat("down/received_ms"), 3_800);
    assert_eq!(bench.truncates(), [("a", 800)]);
    assert!(bench.sent.iter().all(|event| event["type"] != "response.cancel"), "the engine stops by itself");
}

#[test]
fn case_39_a_cancel_of_the_watch_takes_what_it_names() {
    let mut bench = Bench::new(false);
    bench.created("r1");
    bench.burst("r1", "a", 3_000);
    bench.created("r2");
    bench.burst("r2", "b", 3_000);
    bench.watch(json!({"type": "response.cancel", "response_id": "r1"}));
    bench.burst("r1", "a", 200);
    bench.run_to(20_000);
    assert_eq!(bench.audio_ms(), 1_500 + 3_000);
    bench.burst("r2", "b", 3_000);
    bench.watch(json!({"type": "response.cancel"}));
    bench.run_to(40_000);
    assert_eq!(bench.audio_ms(), 1_500 + 3_000 + 1_500);
    assert_eq!(bench.sent.len(), 2, "both went to the engine as they were");
}

#[test]
fn case_40_ten_minutes_in_twenty_seconds_come_out_whole_at_real_time() {
    let mut bench = Bench::new(false);
    let mut pushed = Vec::new();
    for n in 0..2_000_u64 {
        let delta: Vec<u8> = (0..7_200_u64).flat_map(|at| ((n * 7_200 + at) as u16).to_le_bytes()).collect();
        bench.delta("r1", "a", &delta);
        pushed.extend(delta);
        bench.run_to((n + 1) * 10);
    }
    bench.done("r1", "completed");
    assert!(bench.audio_ms() <= 21_500);
    bench.run_to(598_400);
    assert!(bench.audio_ms() < 600_000 && !bench.order().contains(&"response.done".to_owned()));
    bench.run_to(600_000);
    assert!(bench.audio() == pushed, "to the byte");
    assert_eq!(bench.stat("to_watch/dropped_ms"), 0);
}

#[test]
fn case_43_the_microphone_waits_for_the_configuration_at_most_a_second() {
    let created = json!({"type": "session.created", "session": {}});
    let conversation = json!({"type": "conversation.created"});
    let updated = json!({"type": "session.updated", "session": {}});
    let orders: [&[&Value]; 3] = [&[&created, &updated], &[&updated], &[&conversation, &updated]];
    for order in orders {
        let mut bench = Bench::new(false);
        bench.core.watch_audio(bench.now, &[0; 4_800]);
        bench.watch(json!({"type": "session.update"}));
        assert_eq!(bench.sent.len(), 1, "what configures the session does not wait behind what waits for it");
        for event in order {
            bench.run_to(bench.now.as_millis() as u64 + 50);
            bench.core.watch_audio(bench.now, &[0; 4_800]);
            bench.engine((*event).clone());
        }
        let appends = bench.sent.iter().filter(|event| event["type"] == "input_audio_buffer.append").count();
        assert_eq!(appends, 1 + order.len());
    }
    // It never comes: the first delta implies the response, and the microphone is heard.
    let mut bench = Bench::new(false);
    bench.core.watch_audio(bench.now, &[0; 4_800]);
    bench.run_to(999);
    assert!(bench.sent.is_empty());
    bench.run_to(1_000);
    assert_eq!(bench.sent.len(), 1);
    bench.core.watch_audio(bench.now, &[0; 4_800]);
    bench.burst("never announced", "a", 400);
    bench.run_to(2_000);
    assert_eq!((bench.sent.len(), bench.audio_ms()), (2, 400));
}

#[test]
fn audio_held_back_goes_before_what_is_about_it() {
    let mut bench = Bench::new(false);
    bench.core.watch_audio(bench.now, &[0; 4_800]);
    bench.watch(json!({"type": "input_audio_buffer.commit"}));
    let types: Vec<_> = bench.sent.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["input_audio_buffer.append", "input_audio_buffer.commit"]);
}

#[test]
fn case_44_an_interruption_is_told_once_and_its_answer_is_not_the_watchs() {
    let mut bench = Bench::new(false);
    bench.created("r1");
    bench.burst("r1", "a", 10_000);
    bench.run_to(4_000);
    bench.speech_started();
    bench.speech_started();
    assert!(bench.sent.is_empty(), "it takes effect only once the reply is over");
    bench.run_to(4_100);
    bench.done("r1", "cancelled");
    bench.speech_started();
    bench.run_to(10_000);
    assert_eq!(bench.truncates(), [("a", 3_800)]);
    bench.engine(json!({"type": "conversation.item.truncated", "item_id": "a", "audio_end_ms": 3_800}));
    assert!(!bench.order().contains(&"conversation.item.truncated".to_owned()));
    // Another one is not ours.
    bench.engine(json!({"type": "conversation.item.truncated", "item_id": "a", "audio_end_ms": 3_800}));
    assert_eq!(bench.order().last().unwrap(), "conversation.item.truncated");
    // Interrupted before anything was heard: nothing is said.
    bench.run_to(20_000);
    bench.burst("r2", "b", 3_000);
    bench.run_to(20_150);
    bench.speech_started();
    bench.run_to(30_000);
    assert_eq!((bench.truncates().len(), bench.stat("barge_ins")), (1, 2));
}

#[test]
fn an_interrupted_reply_that_never_ends_is_truncated_all_the_same() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 10_000);
    bench.run_to(4_000);
    bench.speech_started();
    bench.run_to(4_499);
    assert!(bench.sent.is_empty());
    bench.run_to(4_500);
    assert_eq!(bench.truncates(), [("a", 3_800)]);
}

#[test]
fn a_refusal_of_the_hosts_own_event_is_not_passed_on() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 3_000);
    bench.done("r1", "completed");
    bench.run_to(1_500);
    bench.speech_started();
    assert_eq!(bench.truncates(), [("a", 1_300)]);
    let error = |id: Value, message: &str| {
        json!({"type": "error", "event_id": "server", "error": {"type": "invalid_request_error", "message": message,
            "event_id": id}})
    };
    let before = bench.got.len();
    bench.engine(error(json!("host-1"), "no"));
    assert_eq!(bench.got.len(), before);
    bench.engine(error(json!("host-9"), "that is not one of ours"));
    bench.engine(error(Value::Null, "Cannot truncate"));
    assert_eq!(bench.got.len(), before + 2, "no truncate of ours is unanswered");
    // One without a name, and one for a refused append.
    bench.run_to(10_000);
    bench.burst("r2", "b", 3_000);
    bench.done("r2", "completed");
    bench.run_to(11_500);
    bench.speech_started();
    let before = bench.got.len();
    bench.engine(error(Value::Null, "Item cannot be Truncated"));
    bench.core.watch_audio(bench.now, &[0; 480]);
    bench.engine(error(json!("host-3"), "bad audio"));
    assert_eq!((bench.got.len(), bench.stat("up/refused")), (before, 1));
}

#[test]
fn a_watch_that_truncates_by_itself_is_left_to_it() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 3_000);
    bench.run_to(1_000);
    bench.speech_started();
    bench.watch(json!({"type": "conversation.item.truncate", "item_id": "a", "audio_end_ms": 700}));
    bench.done("r1", "cancelled");
    bench.engine(json!({"type": "conversation.item.truncated", "item_id": "a"}));
    bench.run_to(20_000);
    bench.burst("r2", "b", 3_000);
    bench.run_to(21_000);
    bench.speech_started();
    bench.done("r2", "cancelled");
    assert_eq!(bench.truncates(), [("a", 700)], "the Watch's own, passed on");
    assert!(bench.order().contains(&"conversation.item.truncated".to_owned()));
}

#[test]
fn without_playout_the_truncation_is_within_250_ms_of_what_was_heard() {
    // A deployed Watch: 150 to 200 ms of buffer; a network of 5 to 80 ms; interrupted anywhere.
    for (buffer, network) in [(150, 5), (200, 20), (200, 80)] {
        for at in (400..9_000).step_by(313) {
            let mut bench = Bench::new(false);
            bench.run_to(1_000);
            bench.burst("r1", "a", 12_000);
            bench.run_to(1_000 + at);
            bench.speech_started();
            bench.done("r1", "cancelled");
            let heard = at.saturating_sub(network + buffer);
            let told = bench.truncates().first().map_or(0, |(_, ms)| *ms);
            assert!(told.abs_diff(heard) < 250, "told {told} ms, heard {heard} ms");
        }
    }
}

#[test]
fn with_playout_the_truncation_is_what_the_watch_says() {
    let mut bench = Bench::new(true);
    bench.created("r1");
    bench.burst("r1", "a", 2_000);
    bench.burst("r1", "b", 6_000);
    bench.run_to(3_000);
    let marks: Vec<_> =
        bench.got.iter().filter_map(|(_, m)| if let ToWatch::Control(c) = m { Some(c) } else { None }).collect();
    assert_eq!(marks.len(), 45, "one behind each piece");
    assert_eq!(marks[19], &json!({"type": "mark", "item": "a", "epoch": 0, "ms": 2_000}));
    assert_eq!(marks[20], &json!({"type": "mark", "item": "b", "epoch": 0, "ms": 100}));
    bench.control(json!({"type": "played", "item": "a", "epoch": 0, "ms": 2_000}));
    bench.control(json!({"type": "played", "item": "b", "epoch": 0, "ms": 600}));
    let before = bench.got.len();
    bench.speech_started();
    bench.done("r1", "cancelled");
    let after: Vec<_> = bench.got[before..].iter().map(|(_, message)| message.clone()).collect();
    assert!(after[0] == ToWatch::Control(json!({"type": "flush", "epoch": 1})), "ahead of all else");
    assert!(bench.sent.is_empty(), "the Watch has not said yet");
    bench.run_to(3_060);
    bench.control(json!({"type": "played", "item": "b", "epoch": 0, "ms": 700}));
    bench.control(json!({"type": "flushed", "epoch": 0, "item": "b", "ms": 1}));
    assert!(bench.sent.is_empty(), "of another epoch");
    bench.control(json!({"type": "flushed", "epoch": 1, "item": "b", "ms": 731}));
    assert_eq!(bench.truncates(), [("b", 731)]);
    bench.control(json!({"type": "flushed", "epoch": 1, "item": "b", "ms": 900}));
    assert_eq!(bench.truncates().len(), 1);
    assert_eq!(bench.stat("down/heard_ms"), 2_731);
}

#[test]
fn a_mark_is_dropped_with_the_audio_around_it() {
    let mut core = Bench::new(true).core;
    let delta = json!({"type": "response.output_audio.delta", "response_id": "r1", "item_id": "a", "content_index": 0,
        "delta": STANDARD.encode([1; 9_600])});
    core.engine_text(Duration::ZERO, delta.to_string().into());
    assert!(matches!(core.poll(Duration::ZERO), Some(ToWatch::Audio(_))));
    core.engine_text(Duration::ZERO, json!({"type": "input_audio_buffer.speech_started"}).to_string().into());
    assert!(core.poll(Duration::ZERO) == Some(ToWatch::Control(json!({"type": "flush", "epoch": 1}))));
    assert!(matches!(core.poll(Duration::ZERO), Some(ToWatch::Event(_))), "no mark of the old epoch");
}

#[test]
fn a_reply_behind_a_barge_in_has_its_whole_lead() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 6_000);
    bench.run_to(1_000);
    bench.speech_started();
    bench.done("r1", "cancelled");
    let before = bench.audio_ms();
    bench.created("r2");
    bench.burst("r2", "b", 6_000);
    assert_eq!(bench.audio_ms() - before, 1_500, "the Watch threw away what it had of the first");
}

#[test]
fn with_playout_a_watch_that_does_not_answer_is_waited_for_a_second() {
    let mut bench = Bench::new(true);
    bench.burst("r1", "a", 6_000);
    bench.run_to(2_000);
    bench.control(json!({"type": "played", "item": "a", "epoch": 0, "ms": 1_700}));
    bench.speech_started();
    // Said before it saw the flush, come after it.
    bench.control(json!({"type": "played", "item": "a", "epoch": 0, "ms": 1_900}));
    bench.run_to(2_999);
    assert!(bench.sent.is_empty());
    bench.run_to(3_000);
    assert_eq!(bench.truncates(), [("a", 1_900)]);
}

#[test]
fn a_tap_is_a_barge_in_for_a_watch_that_offered_playout_only() {
    for playout in [true, false] {
        let mut bench = Bench::new(playout);
        bench.control(json!({"type": "stop"}));
        assert!(bench.got.is_empty(), "nothing sounds yet");
        bench.burst("r1", "a", 6_000);
        bench.run_to(1_000);
        bench.control(json!({"type": "stop"}));
        bench.control(json!({"type": "flushed", "epoch": 1, "item": "a", "ms": 950}));
        // The engine knows nothing of it and talks on.
        bench.burst("r1", "a", 2_000);
        bench.done("r1", "completed");
        bench.run_to(20_000);
        assert_eq!(bench.audio_ms(), if playout { 2_500 } else { 8_000 });
        assert_eq!(bench.truncates(), if playout { vec![("a", 950)] } else { vec![] });
        assert_eq!(bench.order().contains(&"mark".to_owned()), playout);
    }
}

#[test]
fn an_event_too_large_to_seal_is_named_and_left_out() {
    let mut bench = Bench::new(false);
    let event = |kind: &str, size: usize| {
        let text = json!({"type": kind, "x": ""}).to_string();
        json!({"type": kind, "x": "x".repeat(size - text.len())})
    };
    bench.engine(event("just.fits", 65_511));
    bench.engine(event("too.large", 65_512));
    bench.engine(json!({"x": "x".repeat(70_000)}));
    bench.engine(json!({"type": "t".repeat(70_000)}));
    let events: Vec<_> =
        bench.got.iter().map(|(_, m)| if let ToWatch::Event(e) = m { e.clone() } else { panic!() }).collect();
    assert_eq!(events[0].len(), 65_511);
    let short = |at: usize| serde_json::from_slice::<Value>(&events[at]).unwrap();
    assert_eq!(short(1), json!({"type": "too.large", "conduit_truncated": true}));
    assert_eq!(short(2), json!({"type": "unknown", "conduit_truncated": true}));
    assert_eq!(short(3), json!({"type": "unknown", "conduit_truncated": true}));
}

#[test]
fn events_go_both_ways_byte_for_byte() {
    let mut bench = Bench::new(false);
    let text = "{ \"type\" :\"x\",  \"n\": 1.0e0, \"s\":\"\\u00e4\", \"n\": 2 }";
    bench.core.engine_text(bench.now, text.into());
    assert!(bench.core.poll(bench.now) == Some(ToWatch::Event(text.into())));
    bench.core.watch_event(text.as_bytes());
    assert_eq!(bench.core.next_for_engine(bench.now), Some(ToEngine::Text(text.into())));
    bench.core.watch_event(b"not JSON either");
    assert_eq!(bench.core.next_for_engine(bench.now), Some(ToEngine::Text("not JSON either".into())));
    bench.core.watch_event(b"\xff");
    assert_eq!(bench.core.next_for_engine(bench.now), None);
}

#[test]
fn the_engines_last_events_come_out_and_its_reason_is_told() {
    let mut bench = Bench::new(false);
    bench.burst("r1", "a", 6_000);
    bench.engine(json!({"type": "error", "error": {"type": "max_duration", "message": "…"}}));
    assert_eq!(bench.order(), ["audio"]);
    assert!(bench.core.ended().is_none(), "an error is not the end");
    bench.core.engine_closed("The engine ended the call.");
    bench.settle();
    assert_eq!(bench.order(), ["audio", "error"]);
    assert_eq!(bench.core.ended(), Some("The call has reached the engine's longest duration."));
}

#[test]
fn a_silent_engine_is_asked_and_then_given_up() {
    let mut core = Core::new(false, Coding::Pcm16);
    let mut pings = 0;
    while core.ended().is_none() {
        let now = core.deadline().unwrap();
        assert!(now <= Duration::from_secs(60));
        core.handle_timeout(now);
        pings += u32::from(core.next_for_engine(now) == Some(ToEngine::Ping));
    }
    assert_eq!((pings, core.ended()), (3, Some("The engine stopped answering.")));
}

#[test]
fn an_engine_that_never_reads_is_given_up_before_events_are_lost() {
    let mut core = Core::new(false, Coding::Pcm16);
    let event = json!({"type": "conversation.item.create", "x": "x".repeat(60_000)}).to_string();
    for _ in 0..18 {
        core.watch_event(event.as_bytes());
    }
    assert_eq!(core.ended(), Some("The engine stopped reading."));
}

#[test]
fn stats_are_numbers_only() {
    fn is_zero(value: &Value) -> bool {
        value.as_f64() == Some(0.0) || value.as_object().is_some_and(|values| values.values().all(is_zero))
    }
    let stats = Core::new(true, Coding::Pcm16).stats(Duration::ZERO);
    assert!(is_zero(&Value::Object(stats)));
}
