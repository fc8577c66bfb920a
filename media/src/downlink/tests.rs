//! The requirements on the way down, in virtual time.

use super::*;
use crate::testing::{Dice, Stretch, curve, quantile, tone};

const RATE: u32 = 24_000;
/// Where the streams of these tests start on the wire: every test wraps both counters.
const FIRST_SEQUENCE: u16 = 65_500;
const FIRST_TIMESTAMP: u32 = u32::MAX - 100_000;

fn low(rate: u32, index: u64) -> i16 {
    tone(200.0, rate, index)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One event on the wire.
#[derive(Debug, Clone)]
struct Sent {
    at: Duration,
    sequence: u16,
    timestamp: u32,
    payload_type: u8,
    ssrc: u32,
    payload: Vec<u8>,
}

/// Packet `n` of a stream with packets of 20 ms that left when its sound was complete.
fn sent(n: u64) -> Sent {
    Sent {
        at: millis(1_000 + 20 * n),
        sequence: FIRST_SEQUENCE.wrapping_add(n as u16),
        timestamp: FIRST_TIMESTAMP.wrapping_add(960 * n as u32),
        payload_type: 111,
        ssrc: 7,
        payload: Stretch::packet(480 * n, 480, true),
    }
}

/// What came out: when, how long (in samples), of which kind.
struct Out {
    frames: Vec<(Duration, usize, FrameKind)>,
    samples: Vec<i16>,
    stats: DownlinkStats,
    recovered: usize,
}

impl Out {
    fn duration(&self) -> f64 {
        self.samples.len() as f64 / f64::from(RATE)
    }

    fn count(&self, kind: FrameKind) -> usize {
        self.frames.iter().filter(|frame| frame.2 == kind).count()
    }

    /// How long after its packet was sent each decoded frame came out at the far end of what came out so far: the
    /// delay a listener has who plays without a break from the start.
    fn delay_at(&self, from: Duration, to: Duration) -> Vec<f64> {
        let mut played = 0.0;
        let mut delays = Vec::new();
        for (at, length, _) in &self.frames {
            played += *length as f64 / f64::from(RATE);
            if (from..to).contains(at) {
                delays.push(at.as_secs_f64() - played);
            }
        }
        delays
    }
}

/// Runs packets through, in order of their arrival, with every deadline kept.
fn run(signal: fn(u32, u64) -> i16, mut wire: Vec<Sent>, until: Duration) -> Out {
    wire.sort_by_key(|sent| sent.at);
    let mut downlink = Downlink::new(Stretch::new(RATE, signal), Some(111));
    let mut out = Out { frames: Vec::new(), samples: Vec::new(), stats: DownlinkStats::default(), recovered: 0 };
    let mut wire = wire.into_iter().peekable();
    loop {
        let packet_at = wire.peek().map_or(until, |sent| sent.at);
        let now = downlink.deadline().map_or(packet_at, |deadline| deadline.min(packet_at));
        if now >= until {
            break;
        }
        match wire.next_if(|sent| sent.at <= now) {
            Some(sent) => downlink.push(
                now,
                RtpPacket {
                    sequence: sent.sequence,
                    timestamp: sent.timestamp,
                    marker: false,
                    payload_type: sent.payload_type,
                    ssrc: sent.ssrc,
                    payload: &sent.payload,
                },
            ),
            None => downlink.handle_timeout(now),
        }
        while let Some(frame) = downlink.pop() {
            out.frames.push((now, frame.samples.len(), frame.kind));
            out.samples.extend_from_slice(frame.samples);
        }
    }
    out.stats = downlink.stats();
    out.recovered = downlink.decoder.recovered;
    out
}

#[test]
fn in_order_comes_out_in_the_step_it_came_in() {
    let wire: Vec<Sent> = (0..3_000).map(sent).collect();
    let out = run(low, wire.clone(), millis(61_000));
    assert_eq!(out.frames.len(), 3_000);
    assert!(out.frames.iter().zip(&wire).all(|(frame, sent)| frame.0 == sent.at));
    let expected: Vec<i16> = (0..3_000 * 480).map(|index| low(RATE, index)).collect();
    assert_eq!(out.samples, expected);
    assert_eq!(out.stats.reception.received, 3_000);
    assert_eq!(out.stats.reception.concealed, Duration::ZERO);
}

#[test]
fn case_14_one_lost_packet_costs_one_frame_and_no_delay() {
    let wire: Vec<Sent> = (0..=60).filter(|n| *n != 8).map(sent).collect();
    let out = run(low, wire, millis(2_220));
    assert_eq!(out.frames.len(), 61);
    assert_eq!((out.count(FrameKind::Recovered), out.recovered), (1, 1));
    // The frame for packet 8 and packet 9 wait 20 ms, the first wait; 10 is not late any more.
    assert_eq!(out.frames[8].0, millis(1_000 + 200));
    assert_eq!(out.frames[9].0, millis(1_000 + 200));
    assert_eq!(out.frames[10].0, millis(1_000 + 200));
    assert!((11..61).all(|n| out.frames[n].0 == millis(1_000 + 20 * n as u64)));
    let expected: Vec<i16> = (0..61 * 480).map(|index| low(RATE, index)).collect();
    assert_eq!(out.samples, expected, "FEC brings the very frame back");
}

#[test]
fn loss_random_and_in_bursts_keeps_the_duration() {
    for (loss, burst) in [1.0, 5.0, 10.0, 20.0].into_iter().flat_map(|loss| [(loss, 1.0), (loss, 4.0)]) {
        let mut dice = Dice(42 + loss as u64);
        let mut bad = false;
        // Gilbert-Elliott with the given mean burst; 1 is independent loss.
        let leave = 1.0 / burst;
        let enter = loss / 100.0 * leave / (1.0 - loss / 100.0);
        let count = 6_000;
        let wire: Vec<Sent> = (0..count)
            .filter(|n| {
                bad = if burst == 1.0 {
                    dice.roll() < loss / 100.0
                } else if bad {
                    dice.roll() >= leave
                } else {
                    dice.roll() < enter
                };
                *n == 0 || *n == count - 1 || !bad
            })
            .map(sent)
            .collect();
        let came = wire.len();
        let out = run(low, wire, millis(1_000 + 20 * count));
        assert!((out.duration() - 120.0).abs() <= 0.020, "{loss} % in bursts of {burst}: {}", out.duration());
        assert_eq!(out.count(FrameKind::Decoded), came, "nothing that arrived is discarded");
        assert_eq!(out.stats.reception.lost, count - came as u64);
        let delays = out.delay_at(millis(1_500), millis(120_000));
        println!(
            "loss {loss} % burst {burst}: delay p50 {:.1} max {:.1} ms",
            1e3 * (quantile(&delays, 0.5) - delays[0]),
            1e3 * (quantile(&delays, 1.0) - delays[0])
        );
    }
}

#[test]
fn a_long_gap_fades_to_silence_and_back_without_a_click() {
    let wire: Vec<Sent> = (0..100).filter(|n| !(20..70).contains(n)).map(sent).collect();
    let out = run(low, wire, millis(3_000));
    assert_eq!(out.frames.len(), 100);
    assert_eq!(out.samples.len(), 100 * 480);
    assert!(out.count(FrameKind::Silence) >= 44);
    let natural = curve(&(0..24_000).map(|index| low(RATE, index)).collect::<Vec<_>>());
    let loudest = curve(&out.samples);
    assert!(loudest <= 3 * natural, "{loudest} against {natural}");
}

#[test]
fn delay_after_an_outage_or_a_dtx_gap_is_what_it_was() {
    for gap in [5, 10, 25, 50, 100, 250u64] {
        for dtx in [false, true] {
            let wire: Vec<Sent> = (0..600)
                .filter(|n| !(100..100 + gap).contains(n))
                .map(|n| {
                    let mut sent = sent(n);
                    if dtx && n >= 100 {
                        sent.sequence = sent.sequence.wrapping_sub(gap as u16);
                    }
                    sent
                })
                .collect();
            let out = run(low, wire, millis(13_000));
            let before = quantile(&out.delay_at(millis(1_500), millis(2_900)), 0.5);
            let after = quantile(&out.delay_at(millis(3_100 + 20 * gap), millis(13_000)), 0.5);
            assert!((before - after).abs() <= 0.020, "gap {gap} dtx {dtx}: {before} {after}");
            assert_eq!(out.samples.len(), 600 * 480, "gap {gap} dtx {dtx}");
            assert_eq!(out.stats.reception.lost, if dtx { 0 } else { gap });
        }
    }
}
