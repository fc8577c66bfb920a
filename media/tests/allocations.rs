//! Once its buffers have grown, nothing here allocates: not per frame, not per packet, not per message.
//!
//! Counted by the allocator itself, in the thread of the test. libopus is C and not counted; it works on the stack and in
//! what it was created with.

use std::hint::black_box;
use std::time::Duration;

use allocation_counter::measure;
use watch_audio_media::backlog::Backlog;
use watch_audio_media::codec::{CodecError, Decode};
use watch_audio_media::downlink::{Downlink, RtpPacket};
use watch_audio_media::ledger::Ledger;
use watch_audio_media::pacer::{Paced, Pacer};
use watch_audio_media::pcm::{self, OddByte};
use watch_audio_media::resample::Resampler;
use watch_audio_media::stats::{Histogram, Jitter};
use watch_audio_media::uplink::Uplink;

const FRAME: Duration = Duration::from_millis(20);

/// Allocations of `run` in this thread.
fn allocations(run: impl FnOnce()) -> u64 {
    measure(run).count_total
}

/// A dice with a seed, 0 up to 1 (xorshift64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A voiced sound of 2 s and a pause of 1 s, in turn.
fn sound(rate: u32, index: u64) -> i16 {
    let t = index as f64 / f64::from(rate) % 3.0;
    if t < 2.0 { (8_000.0 * (t * 1_000.0).sin() + 3_000.0 * (t * 2_000.0).sin()) as i16 } else { 10 }
}

/// A codec that needs none: every packet is 20 ms of the sound.
struct Plain {
    at: u64,
    sound: Vec<i16>,
}

impl Plain {
    const RATE: u32 = 24_000;

    fn new() -> Self {
        Self { at: 0, sound: (0..72_000).map(|index| sound(Self::RATE, index)).collect() }
    }

    fn append(&mut self, count: usize, pcm: &mut Vec<i16>) -> usize {
        pcm.extend((self.at..self.at + count as u64).map(|index| self.sound[index as usize % self.sound.len()]));
        self.at += count as u64;
        count
    }
}

impl Decode for Plain {
    fn rate(&self) -> u32 {
        Self::RATE
    }

    fn decode(&mut self, _: &[u8], pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        Ok(self.append(480, pcm))
    }

    fn recover(&mut self, _: &[u8], samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        Ok(self.append(samples, pcm))
    }

    fn conceal(&mut self, samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        Ok(self.append(samples, pcm))
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Vec::<u8>::with_capacity(9)))), 1);
    let mut grows = Vec::with_capacity(1);
    assert_eq!(allocations(|| grows.extend_from_slice(&[1u8, 2])), 1);
}

/// A network for the way down.
struct Network {
    /// The share of packets lost, and the mean length of a burst of losses.
    loss: f64,
    burst: f64,
    /// How much later than its turn a packet may come, in ms.
    jitter: f64,
    /// Whether packets of half a second each minute stay away.
    outages: bool,
}

/// Packets `numbers` of a stream, each deadline kept.
fn play<D: Decode>(
    downlink: &mut Downlink<D>,
    network: &Network,
    dice: &mut Dice,
    packets: &[Vec<u8>],
    numbers: std::ops::Range<u64>,
) {
    let (mut lost, mut last) = (false, Duration::ZERO);
    for n in numbers {
        let late = Duration::from_secs_f64(network.jitter * dice.roll() / 1_000.0);
        let at = (FRAME * n as u32 + late).max(last);
        last = at;
        let stays = if network.burst > 1.0 { 1.0 - 1.0 / network.burst } else { network.loss };
        lost = dice.roll() < if lost { stays } else { network.loss / network.burst.max(1.0) };
        while let Some(deadline) = downlink.deadline().filter(|deadline| *deadline <= at) {
            downlink.handle_timeout(deadline);
            while downlink.pop().is_some() {}
        }
        if lost || (network.outages && n % 3_000 > 2_975) {
            continue;
        }
        let payload = &packets[n as usize % packets.len()];
        let timestamp = (n as u32).wrapping_mul(960);
        downlink
            .push(at, RtpPacket { sequence: n as u16, timestamp, marker: false, payload_type: 111, ssrc: 7, payload });
        while downlink.pop().is_some() {}
    }
}

const NETWORKS: [Network; 4] = [
    Network { loss: 0.0, burst: 1.0, jitter: 0.0, outages: false },
    Network { loss: 0.05, burst: 1.0, jitter: 30.0, outages: false },
    Network { loss: 0.10, burst: 4.0, jitter: 100.0, outages: false },
    Network { loss: 0.02, burst: 1.0, jitter: 10.0, outages: true },
];

/// So many packets to grow, and twice as many that must not allocate.
fn downlink_allocates_nothing<D: Decode>(new: impl Fn() -> Downlink<D>, packets: &[Vec<u8>], count: u64) {
    for network in &NETWORKS {
        let (mut downlink, mut dice) = (new(), Dice(5));
        play(&mut downlink, network, &mut dice, packets, 0..count);
        let made = allocations(|| play(&mut downlink, network, &mut dice, packets, count..3 * count));
        let stats = downlink.stats();
        assert_eq!(made, 0, "loss {}, jitter {}: {stats:?}", network.loss, network.jitter);
        assert!(stats.reception.received > 2 * count && (network.loss == 0.0) == (stats.reception.lost == 0));
    }
}

#[test]
fn downlink() {
    let packets: Vec<Vec<u8>> = (40..120).map(|length| vec![1; length]).collect();
    downlink_allocates_nothing(|| Downlink::new(Plain::new(), Some(111)), &packets, 20_000);
    downlink_allocates_nothing(|| Downlink::new(Plain::new(), None).passing_packets(), &packets, 20_000);
}

#[test]
fn uplink() {
    // Steady; jittery; and with a stall of 1.5 s each minute, which pauses and compression catch up with.
    for (jitter, stalls) in [(0.0, false), (120.0, false), (20.0, true)] {
        let (mut uplink, mut dice) = (Uplink::new(16_000), Dice(3));
        let (mut frame, mut last) = (Vec::new(), Duration::ZERO);
        let talk: Vec<i16> = (0..48_000 * 4).map(|index| sound(16_000, index)).collect();
        let mut run = |messages: std::ops::Range<u64>| {
            for n in messages {
                let held = if stalls && n % 600 >= 585 { 100 * (600 - n % 600) } else { 0 };
                let late = Duration::from_secs_f64(jitter * dice.roll() / 1_000.0);
                let at = (Duration::from_millis(1_000 + 100 * n + held) + late).max(last);
                last = at;
                while uplink.next_slot() < at {
                    uplink.pull(uplink.next_slot().max(Duration::from_millis(500)), &mut frame);
                }
                let start = (n * 1_600) as usize % (talk.len() - 1_600);
                uplink.push(at, &talk[start..start + 1_600]);
            }
        };
        run(0..1_800);
        let count = allocations(|| run(1_800..18_000));
        assert_eq!(count, 0, "jitter {jitter}, stalls {stalls}: {:?}", uplink.stats());
        assert!(!stalls || uplink.stats().stalls > 20 && !uplink.stats().compressed.is_zero());
    }
}

#[test]
fn backlog() {
    // A link that takes everything at once, and one that stops for a while again and again.
    for stall in [0, 40, 150] {
        let mut backlog = Backlog::new();
        let talk: Vec<i16> = (0..72_000).map(|index| sound(24_000, index)).collect();
        let mut run = |frames: std::ops::Range<usize>| {
            for n in frames {
                let now = FRAME * n as u32;
                let frame = &talk[n % 150 * 480..][..480];
                backlog.push(now, frame, FRAME, pcm::peak(frame));
                while n % 500 >= stall && backlog.pop(now).is_some() {}
            }
        };
        run(0..3_000);
        assert_eq!(allocations(|| run(3_000..30_000)), 0, "stalls of {stall} frames");
        assert_eq!(backlog.stats().dropped.is_zero(), stall < 150);
        assert_eq!(backlog.stats().shed.is_zero(), stall == 0);
    }
}

#[test]
fn pacer_and_ledger() {
    // Replies of 3 s that come within half a second, in deltas the engine's reader has allocated already.
    // Where deltas do not end with a grain, every second one is given half a grain more than it brought, and its memory
    // grows once.
    for (grain, cut, ends) in [(1, 9_600, true), (480, 9_600, true), (1, 7_200, true), (480, 7_200, false)] {
        let (mut pacer, mut ledger) = (Pacer::<Vec<u8>>::new(24_000), Ledger::new(24_000, false).in_grains(grain));
        let mut run = |replies: std::ops::Range<u32>, deltas: &mut Vec<Vec<u8>>| {
            let mut samples = 0;
            for n in replies {
                let began = Duration::from_secs(4) * n;
                for tick in 0..200 {
                    let now = began + FRAME * tick;
                    if tick % 2 == 0
                        && tick < 2 * 144_000 / cut
                        && let Some(delta) = deltas.pop()
                        && let Some(received) = ledger.receive("reply", "item", 0, delta)
                    {
                        pacer.push_audio(now, received.item, received.end, received.pcm);
                    }
                    while let Some(Paced::Audio(piece)) = pacer.poll(now) {
                        samples += piece.pcm.len() / 2;
                        ledger.sent(piece.item, piece.end, piece.plays_until);
                    }
                    assert!(ledger.speaking(now) && ledger.heard_in_all(now) <= ledger.received_in_all());
                }
            }
            samples
        };
        let deltas = |replies: u32| vec![vec![1; cut as usize]; (replies * 144_000 / cut) as usize];
        run(0..20, &mut deltas(20));
        let (mut prepared, mut samples) = (deltas(200), 0);
        let most = if ends { 0 } else { prepared.len() as u64 / 2 };
        let count = allocations(|| samples = run(20..220, &mut prepared));
        assert!(count <= most, "{count} with a grain of {grain} and deltas of {cut} bytes");
        assert_eq!(samples, 200 * 72_000);
    }
}

#[test]
fn resampler() {
    for (from, to) in [(16_000, 24_000), (24_000, 16_000), (48_000, 24_000), (44_100, 16_000), (24_000, 24_000)] {
        let mut resampler = Resampler::new(from, to).unwrap();
        let talk: Vec<i16> = (0..u64::from(from)).map(|index| sound(from, index)).collect();
        let mut out = Vec::new();
        let mut run = |times: usize| {
            for piece in talk.chunks(317).cycle().take(times) {
                out.clear();
                resampler.push(piece, &mut out);
            }
        };
        run(500);
        assert_eq!(allocations(|| run(10_000)), 0, "{from} to {to}");
    }
}

#[test]
fn formats_and_figures() {
    let (mut odd, mut samples, mut bytes) = (OddByte::new(), Vec::with_capacity(4_000), Vec::with_capacity(8_000));
    let (mut histogram, mut jitter) = (Histogram::new(), Jitter::new(48_000));
    let wire = [7; 8_000];
    let count = allocations(|| {
        for n in 1..4_000u32 {
            samples.clear();
            bytes.clear();
            odd.push(&wire[..n as usize], &mut samples);
            pcm::to_bytes(&samples[..samples.len().min(2_000)], &mut bytes);
            jitter.push(FRAME * n, 960 * n);
            histogram.record(jitter.value() + Duration::from_micros(u64::from(n)));
            assert!(histogram.percentiles().count > 0);
        }
    });
    assert_eq!(count, 0);
}

#[cfg(feature = "opus")]
mod with_opus {
    use watch_audio_media::codec::Encode;
    use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, Messages};
    use watch_audio_media::uplink::passing::Passing;

    use super::*;

    /// A minute of packets of `ms` milliseconds.
    fn packets(ms: u64) -> Vec<Vec<u8>> {
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).expect("a codec");
        let frame = 16 * ms;
        let packet = |n| {
            let pcm: Vec<i16> = (n * frame..(n + 1) * frame).map(|index| sound(16_000, index)).collect();
            let mut packet = Vec::new();
            encoder.encode(&pcm, &mut packet).expect("a packet");
            packet
        };
        (0..60_000 / ms).map(packet).collect()
    }

    #[test]
    fn codec() {
        let packets = packets(20);
        let mut encoder = Encoder::new(24_000, &EncoderSettings::voice()).unwrap();
        let mut decoder = Decoder::new(24_000).unwrap();
        let (mut pcm, mut packet) = (Vec::new(), Vec::new());
        let mut run = |packets: &[Vec<u8>]| {
            for (n, next) in packets.iter().enumerate() {
                pcm.clear();
                if n % 10 == 9 {
                    decoder.recover(next, 480, &mut pcm).unwrap();
                    decoder.conceal(480, &mut pcm).unwrap();
                }
                decoder.decode(next, &mut pcm).unwrap();
                packet.clear();
                encoder.encode(&pcm[..480], &mut packet).unwrap();
            }
        };
        run(&packets);
        assert_eq!(allocations(|| run(&packets)), 0);
    }

    #[test]
    fn downlink_with_the_codec() {
        let packets = packets(20);
        downlink_allocates_nothing(|| Downlink::new(Decoder::new(24_000).unwrap(), Some(111)), &packets, 4_000);
    }

    #[test]
    fn messages_of_the_watch_and_their_uplink() {
        let packets = packets(60);
        let mut messages = Messages::new(Decoder::new(16_000).unwrap());
        let encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let mut passing = Passing::new(Decoder::new(16_000).unwrap(), encoder);
        let (mut pcm, mut encoded) = (Vec::new(), 0);
        let mut run = |numbers: std::ops::Range<usize>| {
            for n in numbers {
                // One in fifty is lost, and each minute the network stands still for 1.5 s.
                let packet = if n % 50 == 7 { &[] } else { &packets[n % packets.len()][..] };
                let held = if n % 1_000 >= 975 { 60 * (1_000 - n % 1_000) } else { 0 };
                let at = Duration::from_millis(1_000 + 60 * n as u64 + held as u64);
                while passing.next_slot() < at {
                    let due = passing.pull(passing.next_slot().max(Duration::from_millis(500)));
                    encoded += usize::from(!due.untouched);
                }
                passing.push(at, packet);
                pcm.clear();
                messages.push(packet, &mut pcm);
            }
        };
        run(0..3_000);
        assert_eq!(allocations(|| run(3_000..8_000)), 0);
        assert!(passing.passed() > 3_000 && encoded > 1_000);
    }
}
