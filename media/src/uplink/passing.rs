//! The uplink of a Watch that sends Opus: its packets go on untouched (`watch-audio.md`, Extensions, `codecs`).

use std::collections::VecDeque;
use std::time::Duration;

use super::{Slot, SlotKind, Uplink};
use crate::codec::{Decode, Encode};
use crate::opus::{Messages, MessagesStats, is_dtx, packet_samples};
use crate::pcm::{self, QUIET_PEAK};

/// An [`Uplink`] beside which the packets themselves wait.
///
/// All packets are decoded, for the uplink decides by their sound; but as long as what it lets out is what came in, the
/// packet goes, which costs no encoder and no quality. Where it is not (silence, catching up, what was made up for a lost
/// packet) a frame has to be encoded, and it is a quiet packet at which the packets themselves are taken up again.
#[derive(Debug)]
pub struct Passing<D, E> {
    uplink: Uplink,
    messages: Messages<D>,
    encoder: E,
    /// Packets whose sound is still whole in the uplink, in order.
    waiting: VecDeque<Waiting>,
    /// The packet given out last, and the end of its sound if the encoder does not know that.
    current: Vec<u8>,
    unknown: Vec<i16>,
    spare: Vec<Vec<u8>>,
    decoded: Vec<i16>,
    frame: Vec<i16>,
    /// Where the next message's sound begins, counted from the first sample ever.
    end: u64,
    /// The sound before was encoded.
    encoding: bool,
    passed: u64,
}

/// A packet, and where its sound is.
#[derive(Debug)]
struct Waiting {
    packet: Vec<u8>,
    start: u64,
    frames: u32,
    quiet: bool,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due<'a> {
    /// The slot.
    pub slot: Slot,
    /// The packet for it; empty when the encoder failed.
    pub packet: &'a [u8],
    /// How long it is, in frames of 20 ms.
    pub frames: u32,
    /// Whether it is one of the Watch's.
    pub untouched: bool,
}

impl<D: Decode, E: Encode> Passing<D, E> {
    /// A stream at the encoder's rate, which must be the decoder's, without sound.
    pub fn new(decoder: D, encoder: E) -> Self {
        debug_assert_eq!(decoder.rate(), encoder.rate());
        Self {
            uplink: Uplink::new(encoder.rate()),
            messages: Messages::new(decoder),
            encoder,
            waiting: VecDeque::new(),
            current: Vec::with_capacity(PACKET_ROOM),
            unknown: Vec::new(),
            spare: Vec::new(),
            decoded: Vec::new(),
            frame: Vec::new(),
            end: 0,
            encoding: false,
            passed: 0,
        }
    }

    /// Takes in one message of the Watch that arrived at `now`: a packet, or nothing for a lost one.
    pub fn push(&mut self, now: Duration, message: &[u8]) {
        self.decoded.clear();
        let before = self.messages.stats().decoded;
        self.messages.push(message, &mut self.decoded);
        if self.decoded.is_empty() {
            return;
        }
        self.end += self.decoded.len() as u64;
        let samples = packet_samples(message, self.encoder.rate()).unwrap_or(0);
        let came = self.messages.stats().decoded > before;
        // The engine's clock is our audio, and nobody knows what it makes of DTX on the way up (`engines.md` 3.2): that is
        // encoded like any silence. So is what does not fill whole slots.
        if came && samples.is_multiple_of(self.uplink.frame()) && !is_dtx(message) {
            let mut packet = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PACKET_ROOM));
            packet.clear();
            packet.extend_from_slice(message);
            self.waiting.push_back(Waiting {
                packet,
                start: self.end - samples as u64,
                frames: (samples / self.uplink.frame()) as u32,
                quiet: pcm::peak(&self.decoded[self.decoded.len() - samples..]) <= QUIET_PEAK,
            });
        }
        self.uplink.push(now, &self.decoded);
        self.forget_before(self.uplink.position());
    }

    /// When the next packet is to leave, an absolute time; at once before the first.
    pub fn next_slot(&self) -> Duration {
        self.uplink.next_slot()
    }

    /// What leaves in the slot that is due at `now`.
    pub fn pull(&mut self, now: Duration) -> Due<'_> {
        self.align();
        let expected = self.uplink.position();
        let slot = self.uplink.pull(now, &mut self.frame);
        if slot.kind != SlotKind::Sound {
            // It has faded: what comes next follows on silence, not on what was encoded.
            self.encoding = false;
            self.forget_before(self.uplink.position());
            return self.encoded(slot);
        }
        let start = self.uplink.position() - self.frame.len() as u64;
        self.forget_before(start);
        let follows = start == expected && !self.encoding;
        let packet = self.waiting.pop_front_if(|next| next.start == start && (follows || next.quiet));
        self.encoding = packet.is_none();
        let Some(Waiting { packet, frames, .. }) = packet else { return self.encoded(slot) };
        self.unknown.clear();
        self.unknown.extend_from_slice(&self.frame);
        self.uplink.pull_more(frames - 1, &mut self.unknown);
        self.passed += 1;
        self.spare.push(std::mem::replace(&mut self.current, packet));
        Due { slot, packet: &self.current, frames, untouched: true }
    }

    fn encoded(&mut self, slot: Slot) -> Due<'_> {
        // The engine's decoder goes on from the packet before. What the encoder predicts from has to be the same sound.
        let known = self.unknown.len().saturating_sub(WARM_UP * self.frame.len());
        for frame in self.unknown[known..].chunks_exact(self.frame.len()) {
            self.current.clear();
            // What comes out was heard already, and a failure shows with the next frame.
            let _ = self.encoder.encode(frame, &mut self.current);
        }
        self.unknown.clear();
        self.current.clear();
        if self.encoder.encode(&self.frame, &mut self.current).is_err() {
            self.current.clear();
        }
        Due { slot, packet: &self.current, frames: 1, untouched: false }
    }

    /// The uplink that the sound goes through, for its figures.
    pub fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    /// What the messages were.
    pub fn messages(&self) -> MessagesStats {
        self.messages.stats()
    }

    /// How many packets went on untouched.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// After catching up, frames and packets begin at different places. Where both are quiet, what is left of a packet, less
    /// than a frame, is left out so that the next one can pass.
    fn align(&mut self) {
        let position = self.uplink.position();
        self.forget_before(position);
        let Some(next) = self.waiting.front().filter(|next| next.quiet) else { return };
        let rest = (next.start - position) as usize;
        if (1..self.uplink.frame()).contains(&rest) && pcm::peak(&self.uplink.ahead()[..rest]) <= QUIET_PEAK {
            self.uplink.leave_out(rest);
        }
    }

    /// Packets that began before `position` are whole no more.
    fn forget_before(&mut self, position: u64) {
        while let Some(gone) = self.waiting.pop_front_if(|waiting| waiting.start < position) {
            self.spare.push(gone.packet);
        }
    }
}

/// More than a packet of speech ever has, so that its memory need not grow under the next.
const PACKET_ROOM: usize = 512;
/// Frames that are encoded in vain before those that are heard.
const WARM_UP: usize = 2;

#[cfg(test)]
#[cfg(feature = "opus")]
mod tests {
    use super::*;
    use crate::codec::Encode;
    use crate::opus::{Decoder, Encoder, EncoderSettings};
    use crate::testing::{Dice, curve, speech};
    use crate::uplink::UplinkStats;

    const RATE: u32 = 16_000;

    fn millis(millis: f64) -> Duration {
        Duration::from_nanos((millis * 1e6) as u64)
    }

    fn encoder() -> Encoder {
        Encoder::new(RATE, &EncoderSettings::voice()).unwrap()
    }

    /// A Watch's microphone: speech with pauses, in packets of `ms`.
    fn packets(ms: usize, seconds: usize) -> Vec<Vec<u8>> {
        let mut encoder = encoder();
        let frame = 16 * ms as u64;
        let packet = |n: u64| {
            let pcm: Vec<i16> = (n * frame..(n + 1) * frame).map(|index| speech(RATE, index)).collect();
            let mut packet = Vec::new();
            encoder.encode(&pcm, &mut packet).unwrap();
            packet
        };
        (0..(seconds * 1_000 / ms) as u64).map(packet).collect()
    }

    /// What left: when, the packet or none, how many frames, of which kind.
    struct Left {
        at: Duration,
        packet: Option<Vec<u8>>,
        frames: u32,
        kind: SlotKind,
    }

    struct Out {
        left: Vec<Left>,
        /// As the engine hears it.
        heard: Vec<i16>,
        stats: UplinkStats,
    }

    impl Out {
        fn passed(&self) -> Vec<&[u8]> {
            self.left.iter().filter_map(|left| left.packet.as_deref()).collect()
        }

        /// Sound that was encoded, in frames.
        fn encoded(&self) -> usize {
            let encoded = |left: &&Left| left.packet.is_none() && left.kind == SlotKind::Sound;
            self.left.iter().filter(encoded).count()
        }
    }

    /// Runs messages through, each at its time, from 200 ms on; every slot is kept.
    fn run(messages: &[(Duration, &[u8])], until: Duration) -> Out {
        let mut passing = Passing::new(Decoder::new(RATE).unwrap(), encoder());
        let mut engine = Decoder::new(RATE).unwrap();
        let mut out = Out { left: Vec::new(), heard: Vec::new(), stats: UplinkStats::default() };
        let mut messages = messages.iter().peekable();
        loop {
            let slot = passing.next_slot().max(millis(200.0));
            let now = messages.peek().map_or(slot, |message| message.0.min(slot));
            if now >= until {
                break;
            }
            if let Some((at, message)) = messages.next_if(|message| message.0 <= slot) {
                passing.push(*at, message);
                continue;
            }
            let Due { slot, packet, frames, untouched } = passing.pull(now);
            let heard = engine.decode(packet, &mut out.heard).unwrap();
            assert_eq!(heard, frames as usize * 320);
            let packet = untouched.then(|| packet.to_vec());
            out.left.push(Left { at: now, packet, frames, kind: slot.kind });
        }
        out.stats = passing.uplink().stats();
        // What leaves is as long as the time it takes, whatever it is.
        for pair in out.left.windows(2) {
            let (length, taken) = (20.0 * f64::from(pair[0].frames), (pair[1].at - pair[0].at).as_secs_f64() * 1e3);
            let resumes = pair[0].packet.is_none() && pair[1].kind != SlotKind::Silence;
            assert!((length - taken).abs() <= if resumes { 20.0 } else { 1.1 }, "{length} ms took {taken} ms");
        }
        assert_eq!(out.stats.frames, out.left.iter().map(|left| u64::from(left.frames)).sum::<u64>());
        out
    }

    /// Each packet at its time and up to `jitter` ms later.
    fn on_time(packets: &[Vec<u8>], ms: f64, jitter: f64) -> Vec<(Duration, &[u8])> {
        let mut dice = Dice(7);
        let mut last = 0.0_f64;
        let at = |(n, packet)| {
            last = last.max(1_003.0 + n as f64 * ms + dice.roll() * jitter);
            (millis(last), packet as &[u8])
        };
        packets.iter().map(Vec::as_slice).enumerate().map(at).collect()
    }

    #[test]
    fn on_target_every_packet_passes_untouched_and_nothing_is_encoded_but_silence() {
        for ms in [20, 40, 60] {
            for jitter in [0.0, 30.0] {
                let packets = packets(ms, 20);
                let out = run(&on_time(&packets, ms as f64, jitter), millis(21_500.0));
                let passed = out.passed();
                // The first jitter has to be learnt, and a packet that came too late follows on encoded sound until a pause.
                let first = packets.len() - passed.len();
                println!("{ms} ms, jitter {jitter}: {first} of {} were encoded", packets.len());
                if jitter == 0.0 {
                    assert!(passed == packets, "{ms} ms");
                    assert_eq!(out.encoded(), 0);
                } else {
                    assert!(passed.len() * 100 >= packets.len() * 95, "{ms} ms: {} of {}", passed.len(), packets.len());
                }
            }
        }
    }

    #[test]
    fn catching_up_encodes_and_a_quiet_packet_ends_it() {
        for ms in [20, 60] {
            let packets = packets(ms, 30);
            // The network stands still from 5.0 to 6.5 s.
            let stalled = |(at, packet): (Duration, _)| {
                let stall = millis(5_000.0)..millis(6_500.0);
                (if stall.contains(&at) { stall.end } else { at }, packet)
            };
            let messages: Vec<_> = on_time(&packets, ms as f64, 0.0).into_iter().map(stalled).collect();
            let out = run(&messages, millis(31_200.0));
            let encoded: Vec<Duration> = out
                .left
                .iter()
                .filter(|left| left.packet.is_none() && left.kind == SlotKind::Sound)
                .map(|left| left.at)
                .collect();
            let (first, last) = (encoded[0], encoded[encoded.len() - 1]);
            println!("{ms} ms: encoded from {first:?} to {last:?}, {} passed of {}", out.passed().len(), packets.len());
            assert!(first >= millis(6_500.0) && last < millis(12_500.0), "{first:?} to {last:?}");
            let lost = out.stats.shed + out.stats.compressed + out.stats.dropped;
            assert!(lost > millis(1_300.0), "caught up: {lost:?}");
            // Passed in their order, and at the end all of them.
            let passed = out.passed();
            let mut all = packets.iter();
            assert!(passed.iter().all(|packet| all.any(|other| other == packet)));
            let end = 15_000 / ms;
            assert!(passed[passed.len() - end..] == packets[packets.len() - end..]);
            // The seams are no clicks.
            let loudest = curve(&out.heard);
            let mut coded = Vec::new();
            let mut decoder = Decoder::new(RATE).unwrap();
            packets.iter().for_each(|packet| assert!(decoder.decode(packet, &mut coded).is_ok()));
            let natural = curve(&coded);
            assert!(loudest <= 2 * natural, "{loudest} against {natural}");
        }
    }

    #[test]
    fn a_hold_is_silence_and_the_first_packet_after_it_passes() {
        let packets = packets(60, 4);
        let held = |(at, packet): (Duration, _)| (if at > millis(3_000.0) { at + millis(7_000.0) } else { at }, packet);
        let messages: Vec<_> = on_time(&packets, 60.0, 0.0).into_iter().map(held).collect();
        let out = run(&messages, millis(12_500.0));
        assert!(out.passed() == packets);
        let silent = out.left.iter().filter(|left| left.kind == SlotKind::Silence).count();
        assert!(silent >= 330, "the stream never stops: {silent}");
    }

    #[test]
    fn what_was_lost_and_dtx_are_encoded_and_a_pause_later_packets_pass_again() {
        let mut packets = packets(20, 8);
        let lost = 40;
        packets[lost].clear();
        let dtx = 285;
        packets[dtx] = vec![packets[dtx][0] & !0b11];
        let out = run(&on_time(&packets, 20.0, 0.0), millis(9_500.0));
        let passed = out.passed();
        assert!(passed[..lost] == packets[..lost]);
        let mut all = packets.iter();
        assert!(passed.iter().all(|packet| all.any(|other| other == packet)), "in their order");
        // Encoded until the pause that begins 1.6 s in, and then DTX; the slot that the lost one left empty is made up for.
        assert!(out.encoded() <= 45 && passed.len() + out.encoded() >= 399, "{} and {}", passed.len(), out.encoded());
        assert!(passed.iter().all(|packet| packet.len() > 1));
        assert_eq!(out.stats.received, millis(8_000.0), "nothing is missing");
    }

    #[test]
    fn packets_that_fill_no_slot_are_encoded() {
        let packets = packets(10, 2);
        let out = run(&on_time(&packets, 10.0, 0.0), millis(3_500.0));
        assert!(out.passed().is_empty());
        assert!((98..=101).contains(&out.encoded()), "{}", out.encoded());
    }
}
