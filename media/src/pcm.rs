//! 16-bit mono PCM: bytes of the wire to samples and back, and how loud they are.

/// The highest peak that still counts as quiet: the deployed Watch throws such audio away outside speech
/// (`watch-audio.md`, deployed Watch).
pub const QUIET_PEAK: u16 = 600;

/// The largest magnitude among `samples`, 0 when there are none.
pub fn peak(samples: &[i16]) -> u16 {
    samples.iter().map(|sample| sample.unsigned_abs()).max().unwrap_or(0)
}

/// Appends `samples` to `out`, little-endian.
pub fn to_bytes(samples: &[i16], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 2);
    out.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
}

/// Appends the whole little-endian samples of `bytes` to `out`. An odd last byte is ignored; where the rest of its
/// sample may follow, use [`OddByte`].
pub fn from_bytes(bytes: &[u8], out: &mut Vec<i16>) {
    let (samples, _) = bytes.as_chunks::<2>();
    out.extend(samples.iter().map(|sample| i16::from_le_bytes(*sample)));
}

/// Reads a PCM stream whose pieces may end in the middle of a sample (case 7): the spare byte waits for the next
/// piece.
#[derive(Debug, Clone, Default)]
pub struct OddByte(Option<u8>);

impl OddByte {
    /// Nothing carried.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the whole samples of what was carried and `bytes` to `out`, and carries an odd byte to the next call.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<i16>) {
        if let Some(low) = self.0 {
            let Some((high, rest)) = bytes.split_first() else { return };
            out.push(i16::from_le_bytes([low, *high]));
            bytes = rest;
        }
        from_bytes(bytes, out);
        self.0 = bytes.as_chunks::<2>().1.first().copied();
    }

    /// Drops the carried byte: the item ended or was interrupted, and its half sample belongs to nothing that follows.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn peak_takes_the_most_negative_sample_as_it_is() {
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[3, -7, 5]), 7);
        assert_eq!(peak(&[0, i16::MIN]), 32_768);
    }

    #[test]
    fn bytes_are_little_endian_and_an_odd_tail_is_ignored() {
        let mut bytes = Vec::new();
        to_bytes(&[0x0102, -2], &mut bytes);
        assert_eq!(bytes, [0x02, 0x01, 0xFE, 0xFF]);
        bytes.push(0x55);
        let mut samples = Vec::new();
        from_bytes(&bytes, &mut samples);
        assert_eq!(samples, [0x0102, -2]);
    }

    #[test]
    fn case_7_pcm16_cut_in_the_middle_of_a_sample() {
        let ramp: Vec<i16> = (0..4_800).map(|n| n - 2_400).collect();
        let mut bytes = Vec::new();
        to_bytes(&ramp, &mut bytes);
        let (first, second) = bytes.split_at(4_801);

        let mut carry = OddByte::new();
        let mut samples = Vec::new();
        carry.push(first, &mut samples);
        carry.push(second, &mut samples);
        assert_eq!(samples, ramp);

        // Another item begins with whole samples: a byte left over from the one before must not shift it.
        carry.push(&bytes[..101], &mut samples);
        carry.reset();
        samples.clear();
        carry.push(&bytes[..4_800], &mut samples);
        assert_eq!(samples, ramp[..2_400]);
    }

    proptest! {
        #[test]
        fn any_cut_of_a_stream_gives_the_same_samples(
            ramp in prop::collection::vec(any::<i16>(), 0..200),
            cuts in prop::collection::vec(0usize..7, 0..200),
        ) {
            let mut bytes = Vec::new();
            to_bytes(&ramp, &mut bytes);
            let mut rest = bytes.as_slice();
            let (mut carry, mut samples) = (OddByte::new(), Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                carry.push(piece, &mut samples);
                rest = after;
            }
            carry.push(rest, &mut samples);
            prop_assert_eq!(samples, ramp);
        }
    }
}
