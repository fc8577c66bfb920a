//! The requirements on the way up, in virtual time.

use super::*;
use crate::testing::{quantile, tone};

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
    stats: UplinkStats,
}

impl Out {
    fn sound(&self) -> Vec<i16> {
        self.frames.iter().flat_map(|frame| frame.2.iter().copied()).collect()
    }

    fn spacings(&self, from: Duration) -> Vec<f64> {
        let slots: Vec<Duration> = self.frames.iter().map(|frame| frame.0).filter(|at| *at >= from).collect();
        slots.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
    }
}

/// Runs messages through, the first pull at `start`; every slot is kept.
fn run(signal: fn(u32, u64) -> i16, messages: &[Message], start: Duration, until: Duration) -> Out {
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
                let samples: Vec<i16> =
                    (message.start..message.start + message.samples as u64).map(|index| signal(RATE, index)).collect();
                uplink.push(message.at, &samples);
            }
            None => {
                let slot = uplink.pull(now, &mut frame);
                assert_eq!(frame.len(), 320);
                out.frames.push((now, slot, frame.clone()));
            }
        }
    }
    out.stats = uplink.stats();
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
            assert_eq!(out.stats.concealed, 0);
            let spacings = out.spacings(millis(3_000.0));
            assert!(spacings.iter().all(|spacing| (spacing - 20.0).abs() <= 1.0));
        }
    }
}
