//! The requirements on the way up, in virtual time.

use proptest::prelude::*;

use super::*;
use crate::stats::Percentiles;
use crate::testing::{Dice, babble, curve, frequency, loudness, quantile, speech, tone};

const RATE: u32 = 16_000;

fn low(rate: u32, index: u64) -> i16 {
    tone(200.0, rate, index)
}

fn millis(millis: f64) -> Duration {
    Duration::from_nanos((millis * 1e6) as u64)
}

/// A message: when it arrives, and which samples.
#[derive(Debug, Clone)]
struct Message {
    at: Duration,
    start: u64,
    samples: usize,
}

/// What came out.
#[derive(Default)]
struct Out {
    frames: Vec<(Duration, Slot, Vec<i16>)>,
    /// What waited just after each message, less that message, in ms.
    depths: Vec<(Duration, f64)>,
    stats: UplinkStats,
    delay: Percentiles,
    jitter: Percentiles,
}

impl Out {
    fn sound(&self) -> Vec<i16> {
        self.frames.iter().flat_map(|frame| frame.2.iter().copied()).collect()
    }

    /// The most that waited between two moments.
    fn deepest(&self, from: f64, to: f64) -> f64 {
        let range = millis(from)..millis(to);
        self.depths.iter().filter(|depth| range.contains(&depth.0)).map(|depth| depth.1).fold(0.0, f64::max)
    }

    fn spacings(&self, from: Duration) -> Vec<f64> {
        let slots: Vec<Duration> = self.frames.iter().map(|frame| frame.0).filter(|at| *at >= from).collect();
        slots.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
    }
}

/// Runs messages through, the first pull at `start`; every slot is kept.
fn run(signal: fn(u32, u64) -> i16, messages: &[Message], start: Duration, until: Duration) -> Out {
    // All signals of these tests repeat after ten seconds.
    let signal: Vec<i16> = (0..10 * u64::from(RATE)).map(|index| signal(RATE, index)).collect();
    let mut uplink = Uplink::new(RATE);
    let mut out = Out::default();
    let mut messages = messages.iter().peekable();
    let mut frame = Vec::new();
    loop {
        let slot = uplink.next_slot().max(start);
        let now = messages.peek().map_or(slot, |message| message.at.min(slot));
        if now >= until {
            break;
        }
        match messages.next_if(|message| message.at <= slot) {
            Some(message) => {
                let samples = signal.iter().cycle().skip(message.start as usize % signal.len()).take(message.samples);
                uplink.push(message.at, &samples.copied().collect::<Vec<i16>>());
                let queued = uplink.stats().queued.as_secs_f64() * 1e3;
                out.depths.push((message.at, queued - message.samples as f64 / 16.0));
            }
            None => {
                let slot = uplink.pull(now, &mut frame);
                assert_eq!(frame.len(), 320);
                out.frames.push((now, slot, frame.clone()));
            }
        }
    }
    out.stats = uplink.stats();
    (out.delay, out.jitter) = (uplink.delay().percentiles(), uplink.jitter().percentiles());
    out
}

/// Messages of `length` ms each at their time, the first at `first`.
fn steady(length: f64, first: f64, seconds: f64) -> Vec<Message> {
    let samples = (length * 16.0) as usize;
    (0..(seconds * 1e3 / length) as u64)
        .map(|n| Message { at: millis(first + n as f64 * length), start: n * samples as u64, samples })
        .collect()
}

#[test]
fn steady_messages_leave_at_once_whatever_their_phase() {
    for length in [20.0, 40.0, 85.0, 100.0, 107.0] {
        for phase in [0.0, 3.3, 9.9, 14.1, 19.7] {
            let messages = steady(length, 1_000.0 + phase, 30.0);
            let out = run(low, &messages, millis(200.0), millis(30_900.0));
            let sound = out.sound();
            // Where the tone's first sample is tells when each message's first sample left.
            let begin = sound.iter().position(|sample| *sample != 0).expect("sound") as i64 - 1;
            let waits: Vec<f64> = messages
                .iter()
                .filter_map(|message| {
                    let frame = out.frames.get(((begin + message.start as i64) / 320) as usize)?;
                    Some((frame.0.as_secs_f64() - message.at.as_secs_f64()) * 1e3)
                })
                .collect();
            let target = out.stats.target.as_secs_f64() * 1e3;
            let p50 = quantile(&waits, 0.5);
            println!(
                "{length} ms at {phase}: p50 {p50:.2} ms, target {target:.2} ms, concealed {}",
                out.stats.concealed
            );
            assert!(p50 <= 5.0 + target, "{length} ms at {phase}: p50 {p50}, target {target}");
            assert!(p50 <= 15.0);
            let p95 = quantile(&waits, 0.95);
            assert!((out.delay.p95 - p95).abs() <= 0.4, "{length} ms at {phase}: p95 {p95}, told {:?}", out.delay);
            assert!(out.delay.count * 100 >= messages.len() as u64 * 99 && out.jitter.max < 0.01, "{:?}", out.jitter);
            assert_eq!(out.stats.concealed, 0);
            let spacings = out.spacings(millis(3_000.0));
            assert!(spacings.iter().all(|spacing| (spacing - 20.0).abs() <= 1.0));
        }
    }
}

/// The same messages, none of which arrives between `from` and `to`: those come at `to`, in their order.
fn stalled(mut messages: Vec<Message>, from: f64, to: f64) -> Vec<Message> {
    for message in &mut messages {
        if (millis(from)..millis(to)).contains(&message.at) {
            message.at = millis(to);
        }
    }
    messages
}

/// The largest curve the signal has by itself.
fn natural(signal: fn(u32, u64) -> i16) -> i32 {
    curve(&(0..16_000 * 8).map(|index| signal(RATE, index)).collect::<Vec<_>>())
}

#[test]
fn case_41_a_stall_of_1500_ms_is_caught_up_with() {
    for length in [20.0, 85.0, 100.0, 107.0] {
        for (name, signal, within) in
            [("speech", speech as fn(u32, u64) -> i16, 3_000.0), ("babble", babble as fn(u32, u64) -> i16, 5_000.0)]
        {
            let messages = stalled(steady(length, 1_000.0, 30.0), 8_050.0, 9_550.0);
            let out = run(signal, &messages, millis(0.0), millis(31_000.0 - length));
            for second in 0..8 {
                let from = 9_560.0 + 1_000.0 * f64::from(second);
                print!("{:.0} ", out.deepest(from, from + 1_000.0));
            }
            println!("{name} in {length} ms: {:?}", out.stats);
            assert!(out.deepest(9_550.0 + within, 31_000.0) < 100.0, "{name} in {length} ms");
            assert_eq!(out.stats.dropped, Duration::ZERO);
            assert_eq!(out.stats.stalls, 1);
            let (loudest, natural) = (curve(&out.sound()), natural(signal));
            assert!(loudest <= 3 * natural, "{name} in {length} ms: a click of {loudest} against {natural}");
        }
    }
}

#[test]
fn a_stall_with_over_two_seconds_of_backlog_drops_the_oldest() {
    let messages = stalled(steady(100.0, 1_000.0, 30.0), 8_050.0, 13_050.0);
    let out = run(babble, &messages, millis(0.0), millis(31_500.0));
    let dropped = out.stats.dropped.as_secs_f64();
    assert!((2.5..=3.0).contains(&dropped), "{dropped}");
    assert!(out.deepest(13_060.0, 14_000.0) <= 2_200.0);
    assert!(out.deepest(20_050.0, 31_000.0) < 100.0);
    assert!(curve(&out.sound()) <= 3 * natural(babble));
    // The same of a tone, which shows where its phase breaks or it drops out.
    let out = run(low, &messages, millis(0.0), millis(31_500.0));
    let resumes = out.frames.iter().position(|frame| frame.0 >= millis(13_050.0)).expect("frames");
    let sound: Vec<i16> = out.frames[resumes + 2..resumes + 800].iter().flat_map(|frame| frame.2.clone()).collect();
    let (hz, (least, most)) = (frequency(&sound, RATE), loudness(&sound, RATE));
    assert!((hz - 200.0).abs() < 1.0 && least > 0.9 && most < 1.1, "{hz} Hz, {least} to {most}");
    assert!(curve(&out.sound()) <= 3 * natural(low));
}

#[test]
fn a_hold_of_the_half_duplex_watch_is_not_jitter() {
    for (hold, length) in
        [(1.0, 100.0), (3.7, 100.0), (20.0, 100.0), (120.0, 100.0), (3.7, 20.0), (3.7, 85.0), (20.0, 107.0)]
    {
        // Where messages are no whole frames, the rest of one is part of the target.
        let ragged = if length % 20.0 == 0.0 { 0.0 } else { 20.0 };
        let mut messages = steady(length, 1_000.0, 10.0);
        let spoken = messages.iter().map(|message| message.samples as u64).sum::<u64>();
        let resumes = 1_000.0 + spoken as f64 / 16.0 + hold * 1e3 + 13.7;
        for mut message in steady(length, resumes, 10.0) {
            message.start += spoken;
            messages.push(message);
        }
        let end = resumes + 10_000.0 - 2.0 * length;
        let out = run(low, &messages, millis(0.0), millis(end));
        assert_eq!((out.stats.holds, out.stats.stalls, out.stats.concealed), (1, 0, 0), "{hold} s, {length} ms");
        let lost = out.stats.shed + out.stats.compressed + out.stats.dropped;
        assert_eq!(lost, Duration::ZERO, "no surplus");
        assert!(out.jitter.max < 0.01 && out.delay.max < 25.0 + ragged, "{:?}, {:?}", out.jitter, out.delay);
        assert!(out.deepest(resumes + 1_000.0, end) < 25.0 + ragged);
        // The first word after it: whole and at once.
        let resumes = millis(resumes);
        let first = out.frames.iter().position(|frame| frame.0 >= resumes && frame.1.kind == SlotKind::Sound);
        let first = first.expect("it resumes");
        let wait = (out.frames[first].0 - resumes).as_secs_f64() * 1e3;
        assert!(wait <= 5.0 + ragged, "{wait} ms");
        let word: Vec<i16> = out.frames[first..first + 50].iter().flat_map(|frame| frame.2.clone()).collect();
        let expected: Vec<i16> = (spoken..spoken + 16_000).map(|index| low(RATE, index % 160_000)).collect();
        assert_eq!(word[80..], expected[80..], "whole, but for the fade-in of 5 ms");
        // Silence all the while, on time.
        let quiet = out.frames.iter().filter(|frame| frame.1.kind == SlotKind::Silence && frame.0 > millis(11_500.0));
        assert!(quiet.count() as f64 >= hold * 50.0 - 30.0);
        let spacings = out.spacings(millis(3_000.0));
        let odd = spacings.iter().filter(|spacing| (**spacing - 20.0).abs() > 1.001).count();
        assert!(odd <= 1, "only the slot that meets the first word may be elsewhere: {odd}");
        assert!(curve(&out.sound()) <= 3 * natural(low));
    }
}

/// Messages whose way takes 0 to `most` ms more, in order.
fn jittery(messages: Vec<Message>, most: impl Fn(Duration) -> f64, seed: u64) -> Vec<Message> {
    let mut dice = Dice(seed);
    let mut last = Duration::ZERO;
    messages
        .into_iter()
        .map(|mut message| {
            message.at = (message.at + millis(most(message.at) * dice.roll())).max(last);
            last = message.at;
            message
        })
        .collect()
}

#[test]
fn jitter_raises_the_target_and_calm_lowers_it_again() {
    for (jitter, length, seed) in
        [(80.0, 100.0, 1), (300.0, 100.0, 2), (80.0, 20.0, 3), (300.0, 20.0, 4), (300.0, 107.0, 5), (80.0, 85.0, 6)]
    {
        for signal in [babble as fn(u32, u64) -> i16, speech] {
            // Ten calm seconds, a minute of jitter, 30 calm seconds.
            let rough = millis(11_000.0)..millis(71_000.0);
            let most = |at: Duration| if rough.contains(&at) { jitter } else { 0.0 };
            let messages = jittery(steady(length, 1_000.0, 100.0), most, seed);
            let short: Vec<Message> =
                messages.iter().filter(|message| message.at < millis(71_000.0)).cloned().collect();
            let settled: Vec<Message> =
                messages.iter().filter(|message| message.at < millis(13_000.0)).cloned().collect();
            let early = run(signal, &settled, millis(0.0), millis(12_950.0)).stats.concealed;
            let during = run(signal, &short, millis(0.0), millis(70_900.0)).stats;
            let out = run(signal, &messages, millis(0.0), millis(100_900.0));
            let after = (during.concealed - early) as f64 / (58.0 * 50.0);
            println!(
                "0..{jitter} ms, {length} ms: concealed {early} in 2 s, then {:.2} %; target {:?}; calm {:.0} ms; {:?}",
                after * 100.0,
                during.target,
                out.deepest(81_000.0, 100_000.0),
                out.stats
            );
            assert!(after < 0.01, "{jitter} {length}: {after}");
            assert!((jitter / 2.0..jitter + 1.0).contains(&out.jitter.max), "{:?}", out.jitter);
            assert!(out.delay.p99 > jitter / 2.0 && out.delay.max < 2.0 * jitter + 40.0, "{:?}", out.delay);
            assert!(out.deepest(81_000.0, 100_000.0) < 30.0);
            assert_eq!(out.stats.dropped, Duration::ZERO);
            assert!(curve(&out.sound()) <= 3 * natural(signal));
        }
    }
}

#[test]
fn case_19_drift_of_500_ppm_over_ten_minutes_is_absorbed() {
    for (ppm, length) in [(500.0, 100.0), (-500.0, 100.0), (500.0, 107.0), (-500.0, 85.0)] {
        let ragged = if length % 20.0 == 0.0 { 0.0 } else { 20.0 };
        let mut messages = steady(length, 1_000.0, 600.0);
        for message in &mut messages {
            message.at = millis(1_000.0 + (message.at.as_secs_f64() * 1e3 - 1_000.0) * (1.0 + ppm / 1e6));
        }
        let end = messages.last().expect("messages").at;
        let out = run(low, &messages, millis(0.0), end);
        println!("{ppm} ppm, {length} ms: deepest {:.1}, {:?}", out.deepest(10_000.0, 600_000.0), out.stats);
        assert!(out.deepest(10_000.0, 600_000.0) < 25.0 + ragged);
        assert_eq!(out.stats.concealed, 0);
        assert_eq!(out.stats.shed + out.stats.compressed + out.stats.dropped, Duration::ZERO);
        assert!(curve(&out.sound()[100_000..]) <= natural(low) + 2, "not one join");
        assert!(out.spacings(millis(3_000.0)).iter().all(|spacing| (spacing - 20.0).abs() <= 0.021));
    }
}

#[test]
fn an_underrun_fades_and_what_follows_fades_in() {
    let mut messages = steady(100.0, 1_000.0, 3.0);
    messages.iter_mut().skip(15).for_each(|message| message.at += millis(150.0));
    let out = run(low, &messages, millis(0.0), millis(4_000.0));
    assert_eq!(out.stats.concealed, 8);
    let kinds: Vec<SlotKind> = out.frames.iter().map(|frame| frame.1.kind).collect();
    let fading = kinds.iter().position(|kind| *kind == SlotKind::Fading).expect("an underrun");
    assert_eq!(kinds[fading + 1..fading + 3], [SlotKind::Silence; 2]);
    assert!(curve(&out.sound()) <= 3 * natural(low));
    // The same tone, as loud, before and after.
    let resumes = fading + kinds[fading..].iter().position(|kind| *kind == SlotKind::Sound).expect("it resumes");
    let begins = kinds.iter().position(|kind| *kind == SlotKind::Sound).expect("it begins");
    for part in [begins + 1..fading, resumes + 1..resumes + 50] {
        let sound: Vec<i16> = out.frames[part].iter().flat_map(|frame| frame.2.clone()).collect();
        let ((least, most), hz) = (loudness(&sound, RATE), frequency(&sound, RATE));
        assert!((hz - 200.0).abs() < 0.1 && least > 0.99 && most < 1.01, "{hz} Hz, {least} to {most}");
    }
    // The fade only falls, and it ends at nothing.
    let faded: Vec<i16> = out.frames[fading..resumes].iter().flat_map(|frame| frame.2.clone()).collect();
    let peaks: Vec<u16> = faded.chunks(80).map(pcm::peak).collect();
    assert!(peaks.windows(2).all(|pair| pair[1] <= pair[0]) && peaks[0] > 4_000, "{peaks:?}");
    assert!(faded[320..].iter().all(|sample| *sample == 0));
}

#[test]
fn case_42_after_a_host_pause_missed_slots_are_skipped() {
    let mut uplink = Uplink::new(RATE);
    let mut frame = Vec::new();
    let first = uplink.pull(millis(500.0), &mut frame);
    assert!(first.marker && first.skipped == 0);
    let mut now = 500.0;
    for _ in 0..50 {
        now += 20.0;
        assert_eq!(uplink.pull(millis(now), &mut frame), Slot { skipped: 0, marker: false, kind: SlotKind::Silence });
    }
    now += 7_200_000.0 + 33.0;
    let late = uplink.pull(millis(now), &mut frame);
    assert_eq!((late.skipped, late.marker), (360_000, true));
    assert!(uplink.next_slot() > millis(now), "no burst");
    assert!(!uplink.pull(uplink.next_slot(), &mut frame).marker);
}

#[test]
fn a_host_pause_in_the_middle_of_speech_leaves_no_delay() {
    for pause in [60.0, 300.0, 1_500.0] {
        let mut uplink = Uplink::new(RATE);
        let mut frame = Vec::new();
        let mut sound = Vec::new();
        let mut waits = Vec::new();
        let asleep = millis(10_000.0)..millis(10_000.0 + pause);
        let mut skipped = 0;
        for message in steady(100.0, 1_003.0, 40.0) {
            let at = if asleep.contains(&message.at) { asleep.end } else { message.at };
            while uplink.next_slot().max(millis(100.0)) < at {
                let slot = uplink.next_slot().max(millis(100.0));
                let now = if asleep.contains(&slot) { asleep.end } else { slot };
                skipped += uplink.pull(now, &mut frame).skipped;
                sound.extend_from_slice(&frame);
            }
            let samples: Vec<i16> =
                (message.start..message.start + message.samples as u64).map(|index| speech(RATE, index)).collect();
            uplink.push(at, &samples);
            waits.push((at, uplink.stats().queued.as_secs_f64() * 1e3 - 100.0));
        }
        assert!(f64::from(skipped) >= pause / 20.0 - 2.0);
        let late = waits.iter().filter(|wait| wait.0 > millis(24_000.0)).map(|wait| wait.1).fold(0.0, f64::max);
        println!("pause {pause}: {late:.1} ms, {:?}", uplink.stats());
        assert!(late < 25.0, "{pause}: {late} ms");
    }
}

#[test]
fn a_message_before_the_first_slot_goes_out_at_once_too() {
    let mut uplink = Uplink::new(RATE);
    let mut frame = Vec::new();
    uplink.push(millis(100.0), &[1_000; 1_600]);
    assert_eq!(uplink.pull(millis(100.0), &mut frame).kind, SlotKind::Silence);
    let wait = uplink.next_slot() - millis(100.0);
    assert!(wait <= millis(5.0), "{wait:?}");
    assert_eq!(uplink.pull(uplink.next_slot(), &mut frame).kind, SlotKind::Sound);
}

#[test]
fn the_lead_from_meeting_arrivals_is_given_back_in_silence() {
    // A hundred short talks, each meeting its slots elsewhere: frames never run ahead of the clock for good.
    let mut messages = Vec::new();
    let mut at = 1_000.0;
    for n in 0..100u64 {
        for k in 0..10 {
            messages.push(Message { at: millis(at), start: (10 * n + k) * 1_600, samples: 1_600 });
            at += 100.0;
        }
        at += 2_003.7;
    }
    let out = run(low, &messages, millis(0.0), millis(at));
    let ahead = out.frames.len() as f64 * 20.0 - at;
    assert!(ahead.abs() <= 45.0, "{ahead} ms of audio more than of time");
    assert_eq!(out.stats.concealed, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever comes and whenever it is pulled: no panic, bounds kept, and every sample is accounted for.
    #[test]
    fn any_operations_keep_the_bounds_and_the_sum(
        rate in prop::sample::select(vec![8_000u32, 16_000, 24_000, 44_100, 48_000]),
        operations in prop::collection::vec((0u64..400_000, 0usize..6_000, any::<bool>(), any::<i16>()), 1..200),
    ) {
        let mut uplink = Uplink::new(rate);
        let mut frame = Vec::new();
        let mut now = Duration::ZERO;
        let mut last = None;
        let (mut pushed, mut pulls) = (0u64, 0u64);
        for (later, samples, push, value) in operations {
            now += Duration::from_micros(later);
            if push {
                uplink.push(now, &vec![value; samples]);
                pushed += samples as u64;
            } else {
                while uplink.next_slot() <= now {
                    let slot = uplink.pull(now, &mut frame);
                    pulls += 1;
                    prop_assert_eq!(frame.len(), rate as usize / 50);
                    prop_assert!(uplink.next_slot() > last.unwrap_or(Duration::ZERO));
                    prop_assert!(slot.skipped == 0 || slot.marker);
                    last = Some(uplink.next_slot());
                }
            }
            let stats = uplink.stats();
            prop_assert!(stats.queued <= Duration::from_millis(2_820), "{:?}", stats.queued);
            prop_assert!(stats.target <= Duration::from_millis(446), "{:?}", stats.target);
            prop_assert!(stats.concealed <= pulls);
            let gone = stats.queued + stats.shed + stats.compressed + stats.dropped;
            let most = stats.received + Duration::from_micros(10 * pulls + 10);
            prop_assert!(gone <= most, "{:?} of {:?}", gone, stats.received);
            prop_assert!((stats.received.as_secs_f64() - pushed as f64 / f64::from(rate)).abs() < 1e-3);
        }
    }

    /// Without a surplus nothing is taken out: what went in comes out, in order and whole.
    #[test]
    fn steady_sound_comes_out_whole(length in 320usize..4_000, phase in 0u64..20_000, seed in any::<u64>()) {
        let mut uplink = Uplink::new(RATE);
        let mut dice = Dice(seed | 1);
        let mut frame = Vec::new();
        let (mut sent, mut came) = (Vec::new(), Vec::new());
        for n in 0..40u64 {
            let at = Duration::from_micros(100_000 + phase) + Duration::from_nanos(n * length as u64 * 62_500);
            while uplink.next_slot() < at {
                let kind = uplink.pull(uplink.next_slot().max(Duration::from_millis(50)), &mut frame).kind;
                if kind == SlotKind::Sound {
                    came.extend_from_slice(&frame);
                }
            }
            let message: Vec<i16> = (0..length).map(|_| (dice.roll() * 20_000.0) as i16 + 1).collect();
            uplink.push(at, &message);
            sent.extend_from_slice(&message);
        }
        prop_assert!(came.len() + 3 * length + 960 >= sent.len());
        prop_assert_eq!(&came[80..], &sent[80..came.len()], "all but the fade-in of 5 ms");
    }
}

#[test]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "how long it takes is what is tested")]
fn an_hour_up_in_seconds() {
    let began = std::time::Instant::now();
    let mut uplink = Uplink::new(RATE);
    let mut frame = Vec::new();
    let mut dice = Dice(9);
    let message: Vec<i16> = (0..1_600).map(|index| (index % 80 - 40) * 100).collect();
    let (mut last, mut deepest) = (Duration::ZERO, Duration::ZERO);
    for n in 0..36_000 {
        // Ten seconds of each minute are rough.
        let jitter = if n % 600 < 100 { 120.0 } else { 5.0 };
        let at = millis(1_000.0 + 100.0 * f64::from(n) + jitter * dice.roll()).max(last);
        last = at;
        while uplink.next_slot() < at {
            uplink.pull(uplink.next_slot().max(millis(500.0)), &mut frame);
        }
        uplink.push(at, &message);
        deepest = deepest.max(uplink.stats().queued);
    }
    println!("an hour up: {:?}, deepest {deepest:?}, {:?}", began.elapsed(), uplink.stats());
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(deepest < millis(350.0));
    assert!(uplink.stats().frames >= 179_900);
    let memory = uplink.queue.capacity();
    assert!(memory <= RATE as usize * 4, "nothing has grown: {memory}");
}

#[test]
fn real_speech_is_caught_up_with_and_stays_speech() {
    // One reader hardly stops for breath, the other does between sentences.
    for (file, within) in [
        (&include_bytes!("../../../samples/austen-0870.wav")[..], 5_000.0),
        (&include_bytes!("../../../samples/long-answer.wav")[..], 3_000.0),
    ] {
        let speech = crate::wav::parse(file).expect("a sample");
        let mut uplink = Uplink::new(speech.rate);
        let mut frame = Vec::new();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let step = speech.rate as usize / 10;
        for (n, message) in speech.samples.chunks_exact(step).cycle().take(140).enumerate() {
            // All that is said between 2 and 3.5 s comes at 3.5 s.
            let at = millis(100.0 * n as f64 + 100.0);
            let at = if (millis(2_000.0)..millis(3_500.0)).contains(&at) { millis(3_500.0) } else { at };
            while uplink.next_slot() < at {
                uplink.pull(uplink.next_slot().max(millis(50.0)), &mut frame);
                after.extend_from_slice(&frame);
            }
            uplink.push(at, message);
            before.extend_from_slice(message);
            let late = uplink.stats().queued.as_secs_f64() * 1e3 - 100.0;
            assert!(at < millis(3_500.0 + within) || late < 100.0, "{late} ms at {at:?}");
        }
        let stats = uplink.stats();
        println!("real speech: {stats:?}, curve {} of {}", curve(&after), curve(&before));
        assert_eq!((stats.dropped, stats.stalls), (Duration::ZERO, 1));
        assert!(f64::from(curve(&after)) <= 1.5 * f64::from(curve(&before)), "no click the speech has not itself");
        // Compressed, not attenuated: it is about as loud as it was.
        let loudness = |sound: &[i16]| {
            let loud: Vec<f64> = sound.iter().map(|s| f64::from(*s).powi(2)).filter(|power| *power > 1e4).collect();
            (loud.iter().sum::<f64>() / loud.len() as f64).sqrt()
        };
        let ratio = loudness(&after) / loudness(&before);
        assert!((0.85..1.15).contains(&ratio), "{ratio}");
    }
}

#[test]
fn compressed_sound_is_at_most_1_4_times_as_fast_and_keeps_its_pitch() {
    let messages = stalled(steady(100.0, 1_000.0, 20.0), 8_050.0, 9_550.0);
    let mut uplink = Uplink::new(RATE);
    let mut frame = Vec::new();
    let (mut sound, mut lost) = (Vec::new(), Vec::new());
    for message in messages {
        while uplink.next_slot() < message.at {
            uplink.pull(uplink.next_slot().max(millis(50.0)), &mut frame);
            if uplink.next_slot() > millis(9_600.0) {
                sound.extend_from_slice(&frame);
                lost.push(uplink.stats().compressed);
            }
        }
        let samples: Vec<i16> =
            (message.start..message.start + message.samples as u64).map(|index| low(RATE, index)).collect();
        uplink.push(message.at, &samples);
    }
    assert!(uplink.stats().compressed > millis(1_350.0));
    // In any half second no more than 0.2 s is left out, give or take a pitch period.
    let most = lost.windows(26).map(|lost| lost[25] - lost[0]).max().expect("slots");
    assert!((millis(180.0)..=millis(215.0)).contains(&most), "{most:?}");
    let compressed = &sound[..RATE as usize * 3];
    let (hz, (least, most)) = (frequency(compressed, RATE), loudness(&compressed[160..], RATE));
    assert!((hz - 200.0).abs() < 1.0, "{hz} Hz");
    assert!(least > 0.9 && most < 1.1, "no dropout and no bump: {least} to {most}");
    assert!(curve(&sound) <= 2 * natural(low));
}
