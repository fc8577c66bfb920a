//! The requirements on the way down, in virtual time.

#[cfg(feature = "opus")]
mod with_opus;

use proptest::prelude::*;

use super::*;
use crate::stats::Percentiles;
use crate::testing::{Dice, Stretch, curve, frequency, loudness, quantile, tone};

const RATE: u32 = 24_000;
/// Where the streams of these tests start on the wire: every test wraps both counters.
const FIRST_SEQUENCE: u16 = 65_500;
const FIRST_TIMESTAMP: u32 = u32::MAX - 100_000;

fn low(rate: u32, index: u64) -> i16 {
    tone(200.0, rate, index)
}

/// The low tone from sample `start` up to `end`.
fn stretch(start: u64, end: u64) -> Vec<i16> {
    (start..end).map(|index| low(RATE, index)).collect()
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
#[derive(Default)]
struct Out {
    frames: Vec<(Duration, usize, FrameKind)>,
    samples: Vec<i16>,
    stats: DownlinkStats,
    delay: Percentiles,
    jitter: Percentiles,
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
    let mut out = Out::default();
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
    (out.delay, out.jitter) = (downlink.delay().percentiles(), downlink.jitter().percentiles());
    out.recovered = downlink.decoder.recovered;
    out
}

#[test]
fn in_order_comes_out_in_the_step_it_came_in() {
    let wire: Vec<Sent> = (0..3_000).map(sent).collect();
    let out = run(low, wire.clone(), millis(61_000));
    assert_eq!(out.frames.len(), 3_000);
    assert!(out.frames.iter().zip(&wire).all(|(frame, sent)| frame.0 == sent.at));
    assert!(out.samples == stretch(0, 3_000 * 480));
    assert_eq!(out.stats.reception.received, 3_000);
    assert_eq!(out.stats.reception.concealed, Duration::ZERO);
    assert_eq!((out.delay.count, out.delay.max), (3_000, 0.0));
    assert!(out.jitter.max < 0.001);
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
    assert!(out.samples == stretch(0, 61 * 480), "FEC brings the very frame back");
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
    // Down without a bump to nothing at all, and the tone again, as loud as it was.
    let peaks: Vec<u16> = out.samples[20 * 480..30 * 480].chunks(240).map(crate::pcm::peak).collect();
    assert!(peaks.windows(2).all(|pair| pair[1] <= pair[0]) && peaks[0] > 7_000, "{peaks:?}");
    assert!(out.samples[26 * 480..69 * 480].iter().all(|sample| *sample == 0));
    for part in [&out.samples[..20 * 480], &out.samples[71 * 480..]] {
        assert!((frequency(part, RATE) - 200.0).abs() < 0.1);
        let (least, most) = loudness(part, RATE);
        assert!(least > 0.99 && most < 1.01, "{least} to {most}");
    }
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

#[test]
fn a_long_concealment_then_late_packets_leaves_a_surplus_that_quiet_sheds() {
    // A stall of 2 s: everything comes at once after it. Speech for 6 s, then near silence.
    fn answer(rate: u32, index: u64) -> i16 {
        if index < 6 * u64::from(rate) { tone(200.0, rate, index) } else { 20 }
    }
    let stall = millis(3_010)..millis(5_010);
    let wire: Vec<Sent> = (0..1_000)
        .map(|n| {
            let mut sent = sent(n);
            if stall.contains(&sent.at) {
                sent.at = stall.end;
            }
            sent
        })
        .collect();
    let out = run(answer, wire, millis(21_000));
    assert_eq!(out.count(FrameKind::Decoded) as u64 + out.stats.shed.as_millis() as u64 / 20, 1_000, "all go out");
    assert_eq!(out.stats.reception.discarded, 0);
    let given = out.stats.reception.concealed;
    assert!((millis(1_900)..=millis(2_000)).contains(&given), "{given:?}");
    assert_eq!((out.stats.surplus, out.stats.shed), (Duration::ZERO, given), "shed in the next quiet stretch");
    assert_eq!(out.samples.len(), 1_000 * 480);
    // The pause after the speech keeps 0.7 s before anything of it goes.
    let speech_ends = out.samples.iter().rposition(|sample| sample.unsigned_abs() > 600).expect("speech");
    assert!(out.samples.len() - speech_ends > 24_000 * 7 / 10);
}

#[test]
fn jitter_without_loss_conceals_little_and_discards_nothing() {
    for (jitter, seed) in [(30, 1), (60, 2), (150, 3)] {
        let mut dice = Dice(seed);
        let mut last = Duration::ZERO;
        let wire: Vec<Sent> = (0..3_000)
            .map(|n| {
                let mut sent = sent(n);
                sent.at = (sent.at + Duration::from_micros((dice.roll() * f64::from(jitter) * 1e3) as u64)).max(last);
                last = sent.at;
                sent
            })
            .collect();
        let out = run(low, wire.clone(), last + millis(1));
        assert_eq!(out.count(FrameKind::Decoded), 3_000);
        assert!(out.stats.reception.concealed <= millis(200), "{jitter}: {:?}", out.stats.reception.concealed);
        assert!((f64::from(jitter) / 3.0..=f64::from(jitter)).contains(&out.jitter.p95), "{:?}", out.jitter);
        // Every packet leaves as it comes.
        let came = wire.iter().map(|sent| sent.at);
        let left = out.frames.iter().filter(|frame| frame.2 == FrameKind::Decoded).map(|frame| frame.0);
        assert!(came.eq(left));
    }
}

#[test]
fn reordering_is_waited_for_as_long_as_it_has_shown() {
    // Every tenth packet comes 45 ms late, behind two others: more than the first wait of 20 ms.
    let wire: Vec<Sent> = (0..3_000)
        .map(|n| {
            let mut sent = sent(n);
            sent.at += if n % 10 == 5 { millis(45) } else { Duration::ZERO };
            sent
        })
        .collect();
    let out = run(low, wire, millis(61_000));
    assert_eq!(out.stats.reception.discarded, 1, "the first taught: {:?}", out.stats.reception);
    assert_eq!(out.stats.reception.lost, 0, "too late is not lost: {:?}", out.stats.reception);
    assert!(out.count(FrameKind::Decoded) >= 2_999);
    assert!((millis(25)..millis(40)).contains(&out.stats.reorder_wait), "{:?}", out.stats.reorder_wait);
    assert_eq!(out.samples.len(), 3_000 * 480);
}

#[test]
fn a_network_that_only_loses_is_not_waited_for() {
    let wire: Vec<Sent> = (0..6_000).filter(|n| n % 50 != 25).map(sent).collect();
    let out = run(low, wire, millis(121_000));
    assert_eq!(out.stats.reorder_wait, Duration::ZERO, "after a minute without reordering");
    let last = out.frames.iter().rposition(|frame| frame.2 == FrameKind::Recovered).expect("a hole");
    assert_eq!(out.frames[last].0, millis(1_000 + 20 * 5_976), "it leaves with the packet that shows the hole");
}

#[test]
fn no_packet_waits_longer_than_the_wait() {
    let mut dice = Dice(5);
    let mut wire: Vec<Sent> = (0..6_000).filter(|n| *n == 0 || dice.roll() > 0.05).map(sent).collect();
    for sent in &mut wire {
        sent.at +=
            if dice.roll() < 0.1 { Duration::from_micros((dice.roll() * 80_000.0) as u64) } else { Duration::ZERO };
    }
    let sent_at: std::collections::HashMap<u64, Duration> =
        wire.iter().map(|sent| (u64::from_le_bytes(sent.payload[1..9].try_into().unwrap()) / 480, sent.at)).collect();
    // The signal names the packet, so each frame tells where it came from.
    let out = run(|_, index| (index / 480) as i16, wire, millis(121_000));
    let mut at = 0;
    let mut worst = Duration::ZERO;
    for (left, length, kind) in &out.frames {
        if *kind == FrameKind::Decoded {
            let number = out.samples[at + length / 2] as u64;
            worst = worst.max(*left - sent_at[&number]);
        }
        at += length;
    }
    println!("worst wait {worst:?}, {:?}", out.stats);
    assert!(worst <= millis(60));
    assert_eq!(out.delay.max, worst.as_secs_f64() * 1e3);
}

#[test]
fn case_12_rtp_that_carries_no_speech_is_neither_played_nor_lost() {
    let mut wire: Vec<Sent> = (0..200).map(sent).collect();
    // After every third packet a probe without payload, and once a telephone-event: both take sequence numbers.
    let mut extra = 0u16;
    let mut mixed = Vec::new();
    for (n, mut sent) in wire.drain(..).enumerate() {
        sent.sequence = sent.sequence.wrapping_add(extra);
        let mut other = sent.clone();
        mixed.push(sent);
        if n % 3 == 0 {
            extra += 1;
            other.sequence = other.sequence.wrapping_add(1);
            other.at += millis(1);
            other.payload.clear();
            if n % 2 == 0 {
                other.payload_type = 101;
                other.payload = vec![0x02, 0x8A, 0x03, 0xC0];
                other.timestamp = other.timestamp.wrapping_add(400_000);
            }
            mixed.push(other);
        }
    }
    let out = run(low, mixed, millis(5_000));
    assert_eq!(out.frames.len(), 200);
    assert!(out.frames.iter().all(|frame| frame.2 == FrameKind::Decoded));
    assert_eq!((out.stats.reception.lost, out.stats.reception.received), (0, 200));
    assert!(out.samples == stretch(0, 200 * 480));
}

#[test]
fn case_12_a_foreign_payload_type_of_another_source_moves_nothing() {
    let mut wire: Vec<Sent> = (0..200).map(sent).collect();
    let mut other = sent(100);
    (other.ssrc, other.payload_type, other.sequence) = (99, 97, 3);
    wire.push(other);
    let out = run(low, wire, millis(5_000));
    assert_eq!((out.frames.len(), out.stats.restarts), (200, 0));
}

#[test]
fn a_packet_that_will_not_decode_is_concealed_and_the_stream_goes_on() {
    let mut wire: Vec<Sent> = (0..100).map(sent).collect();
    wire[50].payload = vec![1, 2, 3];
    let out = run(low, wire, millis(3_000));
    assert_eq!(out.samples.len(), 100 * 480);
    assert_eq!((out.stats.undecodable, out.count(FrameKind::Concealed)), (1, 1));
}

#[test]
fn case_13_a_dtx_gap_is_exactly_its_length_of_silence_and_no_loss() {
    // A packet, 400 ms of DTX, speech again: sequence n, n + 1, timestamps 19,200 + 960 apart.
    let wire: Vec<Sent> = (0..200)
        .filter(|n| !(50..70).contains(n))
        .map(|n| {
            let mut sent = sent(n);
            if n >= 70 {
                sent.sequence = sent.sequence.wrapping_sub(20);
            }
            sent
        })
        .collect();
    let out = run(low, wire, millis(5_000));
    assert_eq!(out.samples.len(), 200 * 480);
    assert_eq!(out.stats.reception.lost, 0);
    assert_eq!(out.stats.reception.concealed, millis(400));
    assert_eq!(out.frames.last().unwrap().0, millis(1_000 + 20 * 199));
}

/// A stream of packets of the given lengths in ticks, each leaving when its sound is complete.
fn of_lengths(lengths: impl Iterator<Item = u32>) -> Vec<Sent> {
    let mut ticks = 0u32;
    lengths
        .zip(0u16..)
        .map(|(length, n)| {
            let start = ticks;
            ticks += length;
            Sent {
                at: millis(1_000) + Duration::from_micros(u64::from(ticks) * 1_000 / 48),
                sequence: FIRST_SEQUENCE.wrapping_add(n),
                timestamp: FIRST_TIMESTAMP.wrapping_add(start),
                payload_type: 111,
                ssrc: 7,
                payload: Stretch::packet(u64::from(start) / 2, (length / 2) as u16, true),
            }
        })
        .collect()
}

#[test]
fn packets_of_2_5_to_120_ms_come_out_as_they_are() {
    for length in [120u32, 240, 480, 960, 1_920, 2_880, 3_840, 4_800, 5_760] {
        let count = 48_000 * 30 / length;
        let mut wire = of_lengths((0..count).map(|_| length));
        let until = wire.last().unwrap().at + millis(25);
        let whole = run(low, wire.clone(), until);
        assert!(whole.samples == stretch(0, 30 * 24_000), "{length} ticks");
        assert_eq!(whole.stats.reception.concealed, Duration::ZERO);
        // With 5 % of them lost, the duration stays.
        let mut dice = Dice(3);
        let last = wire.len() - 1;
        let mut number = 0;
        wire.retain(|_| {
            number += 1;
            number == 1 || number > last || dice.roll() > 0.05
        });
        let holed = run(low, wire, until);
        assert!((holed.duration() - 30.0).abs() <= f64::from(length) / 48_000.0, "{length}: {}", holed.duration());
    }
}

#[test]
fn packet_lengths_may_change_at_any_time() {
    let lengths = [120u32, 240, 480, 960, 1_920, 2_880, 3_840, 4_800, 5_760];
    let mut dice = Dice(3);
    let wire = of_lengths((0..1_000).map(|_| lengths[(dice.roll() * 9.0) as usize]));
    let total = wire.last().unwrap().at - millis(1_000);
    let out = run(low, wire.clone(), wire.last().unwrap().at + millis(1));
    assert_eq!(out.count(FrameKind::Decoded), 1_000);
    // The first long packet is a surprise to the clock for gaps; it learns.
    let more = out.duration() - total.as_secs_f64();
    assert!((0.0..=0.061).contains(&more), "{more}");
    assert_eq!(out.stats.surplus, Duration::from_micros((more * 1e6).round() as u64));
}

#[test]
fn duplicates_are_played_once() {
    let wire: Vec<Sent> = (0..300)
        .flat_map(|n| {
            let mut again = sent(n);
            again.at += millis(20 * (n % 4));
            [sent(n), again]
        })
        .collect();
    let out = run(low, wire, millis(7_100));
    assert_eq!(out.count(FrameKind::Decoded), 300);
    assert_eq!((out.stats.reception.discarded, out.stats.reception.lost), (300, 0));
    assert_eq!(out.stats.reorder_wait, millis(20), "a duplicate is no reordering");
}

#[test]
fn a_jump_of_the_sequence_is_followed_after_two_packets() {
    for jump in [-20_000i32, -3_000, -150, 4_000, 30_000] {
        let wire: Vec<Sent> = (0..300)
            .map(|n| {
                let mut sent = sent(n);
                if n >= 100 {
                    sent.sequence = sent.sequence.wrapping_add(jump as u16);
                    sent.timestamp = sent.timestamp.wrapping_add((jump * 960) as u32);
                }
                sent
            })
            .collect();
        let out = run(low, wire, millis(7_000));
        assert_eq!(out.count(FrameKind::Decoded), 300, "{jump}: nothing is thrown away");
        assert_eq!(out.stats.restarts, 1, "{jump}");
        assert_eq!(out.frames.last().unwrap().0, millis(1_000 + 20 * 299), "{jump}: no delay stays");
        assert!((out.duration() - 6.0).abs() <= 0.020, "{jump}");
    }
}

#[test]
fn a_short_jump_back_is_followed_within_half_a_second() {
    let wire: Vec<Sent> = (0..300)
        .map(|n| {
            let mut sent = sent(n);
            if n >= 100 {
                sent.sequence = sent.sequence.wrapping_sub(60);
                sent.timestamp = sent.timestamp.wrapping_sub(60 * 960);
            }
            sent
        })
        .collect();
    let out = run(low, wire, millis(7_000));
    assert!(out.count(FrameKind::Decoded) >= 274, "{}", out.count(FrameKind::Decoded));
    assert_eq!(out.stats.restarts, 1);
}

#[test]
fn a_stray_packet_far_away_moves_nothing() {
    let mut wire: Vec<Sent> = (0..300).map(sent).collect();
    let mut stray = sent(100);
    stray.sequence = stray.sequence.wrapping_add(20_000);
    stray.at += millis(3);
    wire.push(stray);
    let out = run(low, wire, millis(7_000));
    assert_eq!((out.count(FrameKind::Decoded), out.stats.restarts), (300, 0));
    assert!(out.samples == stretch(0, 300 * 480));
}

#[test]
fn a_new_source_is_followed_at_once_and_the_old_one_left() {
    let wire: Vec<Sent> = (0..300)
        .map(|n| {
            let mut sent = sent(n);
            if n >= 100 {
                (sent.ssrc, sent.sequence, sent.timestamp) = (8, (n - 100) as u16, 960 * (n - 100) as u32);
            }
            if n == 98 {
                sent.at = millis(3_030);
            }
            sent
        })
        .collect();
    let out = run(low, wire, millis(7_000));
    // 99 waits behind the hole of 98 until the new source shows that 98 is over; 98 comes too late.
    assert_eq!(out.count(FrameKind::Decoded), 299);
    assert_eq!((out.stats.restarts, out.samples.len()), (1, 300 * 480));
    let new = out.frames.iter().find(|frame| frame.0 == millis(3_000)).expect("at once");
    assert_eq!(new.1, 480);
}

#[test]
fn case_42_a_host_that_slept_gets_no_burst() {
    let mut downlink = Downlink::new(Stretch::new(RATE, low), None);
    let first = sent(0);
    downlink.push(
        millis(1_000),
        RtpPacket {
            sequence: first.sequence,
            timestamp: first.timestamp,
            marker: true,
            payload_type: 111,
            ssrc: 7,
            payload: &first.payload,
        },
    );
    while downlink.pop().is_some() {}
    let now = millis(7_200_000);
    downlink.handle_timeout(now);
    let mut frames = 0;
    while downlink.pop().is_some() {
        frames += 1;
    }
    assert!(frames <= 6, "{frames}");
    assert!(downlink.deadline().expect("the clock for gaps") > now);
}

#[test]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "how long it takes is what is tested")]
fn an_hour_down_in_seconds() {
    let began = std::time::Instant::now();
    let mut dice = Dice(11);
    let mut downlink = Downlink::new(Stretch::new(RATE, |_, index| (index % 97) as i16 * 100), Some(111));
    let (mut samples, mut most) = (0, 0);
    for n in 0..180_000u64 {
        if n > 0 && n < 179_999 && dice.roll() < 0.02 {
            continue;
        }
        let sent = sent(n);
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline <= sent.at) {
            downlink.handle_timeout(deadline);
        }
        let packet = RtpPacket {
            sequence: sent.sequence,
            timestamp: sent.timestamp,
            marker: false,
            payload_type: 111,
            ssrc: 7,
            payload: &sent.payload,
        };
        downlink.push(sent.at, packet);
        let mut frames = 0;
        while let Some(frame) = downlink.pop() {
            samples += frame.samples.len();
            frames += 1;
        }
        most = most.max(frames);
    }
    println!("an hour down: {:?}, {:?}", began.elapsed(), downlink.stats());
    assert_eq!(samples, 180_000 * 480);
    assert!(most <= 8);
    assert!(began.elapsed() < Duration::from_secs(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever comes in whatever order: no panic, no endless deadline, order kept and every sample accounted for.
    #[test]
    fn any_packets_keep_the_order_and_the_sum(
        operations in prop::collection::vec(
            (0u64..90_000, -8i64..12, 0usize..12, prop::sample::select(vec![60u16, 480, 960, 2_880]), any::<u32>()),
            1..250,
        ),
    ) {
        let mut downlink = Downlink::new(Stretch::new(RATE, |_, index| index as i16), Some(111));
        let mut now = millis(1_000);
        let mut number = 0i64;
        let (mut out, mut decoded, mut offered) = (Duration::ZERO, 0u64, 0u64);
        for (later, step, what, length, wild) in operations {
            let until = now + Duration::from_micros(later);
            let mut rounds = 0;
            while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline <= until) {
                now = now.max(deadline);
                downlink.handle_timeout(now);
                rounds += 1;
                prop_assert!(rounds < 1_000, "a deadline that stays");
            }
            now = until;
            number += step.max(1) - i64::from(step < 0) * 4;
            let payload = match what {
                0 => Vec::new(),
                1 => wild.to_le_bytes().to_vec(),
                _ => Stretch::packet((number * 480) as u64, length, wild % 2 == 0),
            };
            let packet = RtpPacket {
                sequence: if what == 2 { wild as u16 } else { number as u16 },
                timestamp: if what == 3 { wild } else { (number * 960) as u32 },
                marker: false,
                payload_type: if what == 4 { 9 } else { 111 },
                ssrc: if what == 5 { wild % 3 } else { 7 },
                payload: &payload,
            };
            offered += 1;
            downlink.push(now, packet);
            downlink.handle_timeout(now);
            prop_assert!(downlink.deadline().is_none_or(|deadline| deadline > now));
            while let Some(frame) = downlink.pop() {
                prop_assert!(frame.samples.len() <= 2_880);
                prop_assert_eq!(frame.peak, crate::pcm::peak(frame.samples));
                out += lateness::from_ticks(frame.samples.len() as i64 * 2);
                decoded += u64::from(frame.kind == FrameKind::Decoded);
            }
            let stats = downlink.stats();
            prop_assert_eq!(stats.reception.played, out);
            prop_assert!(decoded <= offered);
            prop_assert!(stats.reception.concealed + stats.reception.recovered <= out + stats.shed);
            prop_assert!(stats.reorder_wait <= millis(60));
        }
    }
}

#[test]
fn passed_through_packets_are_untouched_and_lost_ones_empty() {
    let mut downlink = Downlink::new(Stretch::new(RATE, low), Some(111)).passing_packets();
    let mut wire: Vec<Sent> =
        (0..200).filter(|n| ![50, 80, 81].contains(n) && !(120..160).contains(n)).map(sent).collect();
    let mut out: Vec<Vec<u8>> = Vec::new();
    for sent in wire.drain(..) {
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline < sent.at) {
            downlink.handle_timeout(deadline);
        }
        let Sent { at, sequence, timestamp, payload_type, ssrc, ref payload } = sent;
        downlink.push(at, RtpPacket { sequence, timestamp, marker: false, payload_type, ssrc, payload });
        while let Some(frame) = downlink.pop() {
            assert_eq!(frame.samples.len(), 480);
            out.push(frame.packet.to_vec());
        }
    }
    let expected: Vec<Vec<u8>> = (0..200)
        .filter(|n| !(125..160).contains(n))
        .map(|n| if [50, 80, 81].contains(&n) || (120..125).contains(&n) { Vec::new() } else { sent(n).payload })
        .collect();
    assert!(out == expected, "each as it came, and at most 5 lost ones in a row");
}
