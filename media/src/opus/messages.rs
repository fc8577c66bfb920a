//! A stream of messages that hold one Opus packet each, or nothing for a lost one (`watch-audio.md`, Extensions, `codecs`).

use crate::codec::Decode;
use crate::opus::packet_samples;

/// Decodes such a stream to mono. A lost packet waits for the next message, whose in-band FEC may bring it back.
#[derive(Debug)]
pub struct Messages<D> {
    decoder: D,
    /// How long the last packet was, in samples; 0 before the first.
    last: usize,
    /// Lost since then, at most [`MAX_LOST`].
    lost: usize,
    stats: MessagesStats,
}

/// What came, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessagesStats {
    /// Decoded.
    pub decoded: u64,
    /// Lost, and made up or brought back.
    pub concealed: u64,
    /// No Opus; they count as lost as well.
    pub undecodable: u64,
}

impl<D: Decode> Messages<D> {
    /// A stream of which nothing came yet.
    pub fn new(decoder: D) -> Self {
        Self { decoder, last: 0, lost: 0, stats: MessagesStats::default() }
    }

    /// Takes one message and appends to `pcm` what can be heard now: nothing for a lost packet, and with the packet after
    /// it both.
    pub fn push(&mut self, message: &[u8], pcm: &mut Vec<i16>) {
        if message.is_empty() {
            return self.lose();
        }
        let Some(samples) = packet_samples(message, self.decoder.rate()) else {
            self.stats.undecodable += 1;
            return self.lose();
        };
        self.fill(message, pcm);
        match self.decoder.decode(message, pcm) {
            Ok(_) => {
                self.last = samples;
                self.stats.decoded += 1;
            }
            Err(_) => {
                self.stats.undecodable += 1;
                self.lose();
            }
        }
    }

    /// What came so far.
    pub fn stats(&self) -> MessagesStats {
        self.stats
    }

    /// Before the first packet nobody knows how long a lost one is; past the limit nobody wants to hear it.
    fn lose(&mut self) {
        if self.last > 0 {
            self.lost = (self.lost + 1).min(MAX_LOST);
        }
    }

    /// Makes up what was lost before `next`.
    fn fill(&mut self, next: &[u8], pcm: &mut Vec<i16>) {
        let lost = std::mem::take(&mut self.lost);
        self.stats.concealed += lost as u64;
        for left in (0..lost).rev() {
            let made_up = match left {
                0 => self.decoder.recover(next, self.last, pcm),
                _ => self.decoder.conceal(self.last, pcm),
            };
            if made_up.is_err() {
                pcm.resize(pcm.len() + self.last, 0);
            }
        }
    }
}

/// The most that is made up in a row (`watch-audio.md`, `codecs`).
const MAX_LOST: usize = 5;

#[cfg(test)]
#[cfg(feature = "opus")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::Encode;
    use crate::opus::{Decoder, Encoder, EncoderSettings};
    use crate::pcm;
    use crate::testing::babble;

    const RATE: u32 = 24_000;

    fn stream() -> Messages<Decoder> {
        Messages::new(Decoder::new(RATE).unwrap())
    }

    /// `count` packets of `ms` of speech, with FEC.
    fn packets(count: u64, ms: usize) -> Vec<Vec<u8>> {
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let frame = 16 * ms as u64;
        let packet = |n| {
            let pcm: Vec<i16> = (n * frame..(n + 1) * frame).map(|index| babble(16_000, index)).collect();
            let mut packet = Vec::new();
            encoder.encode(&pcm, &mut packet).unwrap();
            packet
        };
        (0..count).map(packet).collect()
    }

    #[test]
    fn a_lost_packet_is_as_long_as_the_last_and_comes_with_the_next() {
        for ms in [20, 60] {
            let (mut stream, mut pcm) = (stream(), Vec::new());
            let packets = packets(7, ms);
            for packet in &packets[..5] {
                stream.push(packet, &mut pcm);
            }
            stream.push(&[], &mut pcm);
            assert_eq!(pcm.len(), 5 * ms * 24, "nothing for the lost one yet");
            stream.push(&packets[6], &mut pcm);
            assert_eq!(pcm.len(), 7 * ms * 24);
            assert!(pcm::peak(&pcm[5 * ms * 24..6 * ms * 24]) > 1_000, "made up, not silent");
            assert_eq!(stream.stats(), MessagesStats { decoded: 6, concealed: 1, undecodable: 0 });
        }
    }

    #[test]
    fn fec_brings_back_the_packet_before_the_one_that_carries_it() {
        let packets = packets(30, 20);
        let decode = |lost: &[usize], fec: bool| {
            let (mut stream, mut pcm) = (stream(), Vec::new());
            for (n, packet) in packets.iter().enumerate() {
                if !lost.contains(&n) {
                    stream.push(packet, &mut pcm);
                } else if fec {
                    stream.push(&[], &mut pcm);
                } else {
                    stream.decoder.conceal(480, &mut pcm).unwrap();
                }
            }
            pcm
        };
        let whole = decode(&[], true);
        let error = |pcm: &[i16]| -> f64 {
            let part = 12 * 480..13 * 480;
            pcm[part.clone()].iter().zip(&whole[part]).map(|(a, b)| f64::from(a - b).powi(2)).sum()
        };
        let (with, without) = (error(&decode(&[12], true)), error(&decode(&[12], false)));
        assert!(with < without / 2.0, "with {with:.0}, without {without:.0}");
    }

    #[test]
    fn no_more_than_five_in_a_row_are_made_up_and_none_before_the_first() {
        let (mut stream, mut pcm) = (stream(), Vec::new());
        let packets = packets(3, 60);
        stream.push(&[], &mut pcm);
        stream.push(&packets[0], &mut pcm);
        assert_eq!(pcm.len(), 1_440);
        for _ in 0..9 {
            stream.push(&[], &mut pcm);
        }
        stream.push(&packets[1], &mut pcm);
        assert_eq!(pcm.len(), 7 * 1_440);
        stream.push(&packets[2], &mut pcm);
        assert_eq!(pcm.len(), 8 * 1_440);
    }

    #[test]
    fn what_is_no_opus_is_lost_and_a_packet_may_be_its_toc_alone() {
        let (mut stream, mut pcm) = (stream(), Vec::new());
        let packets = packets(2, 20);
        stream.push(&packets[0], &mut pcm);
        // 140 ms; then two equal frames in three bytes, of which only the decoder knows better.
        for bad in [&[31 << 3 | 3, 7][..], &[0x49, 1, 2, 3]] {
            stream.push(bad, &mut pcm);
        }
        stream.push(&packets[1], &mut pcm);
        assert_eq!(stream.stats(), MessagesStats { decoded: 2, concealed: 2, undecodable: 2 });
        assert_eq!(pcm.len(), 4 * 480);
        stream.push(&[packets[1][0]], &mut pcm);
        assert_eq!(pcm.len(), 5 * 480);
    }

    proptest! {
        #[test]
        fn no_messages_make_it_panic_or_give_more_than_is_allowed(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..40),
        ) {
            let (mut stream, mut pcm) = (stream(), Vec::new());
            for message in messages {
                pcm.clear();
                stream.push(&message, &mut pcm);
                prop_assert!(pcm.len() <= 6 * 2_880, "a packet and five before it, of 120 ms at most");
            }
        }
    }
}
