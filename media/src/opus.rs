//! Opus (RFC 6716): what a packet says of itself, and the codec.

#[cfg(feature = "opus")]
mod codec;
mod messages;

#[cfg(feature = "opus")]
pub use codec::{Decoder, Encoder, EncoderSettings};
pub use messages::{Messages, MessagesStats};

/// How long `packet` plays, in samples at `rate` Hz, read from its TOC byte and frame count (RFC 6716 section 3.1 and
/// 3.2). `None` when it is empty, lacks its count or is longer than the 120 ms that Opus allows.
pub fn packet_samples(packet: &[u8], rate: u32) -> Option<usize> {
    let toc = *packet.first()?;
    let frames = match toc & 0b11 {
        0 => 1,
        1 | 2 => 2,
        _ => u64::from(packet.get(1)? & 0x3F),
    };
    // In units of 2.5 ms, the shortest frame.
    let frame_units: u64 = match toc >> 3 {
        silk @ 0..=11 => [4, 8, 16, 24][usize::from(silk & 0b11)],
        hybrid @ 12..=15 => [4, 8][usize::from(hybrid & 0b1)],
        celt => 1 << (celt & 0b11),
    };
    let units = frames * frame_units;
    let samples = units * u64::from(rate) / UNITS_PER_SECOND;
    (1..=MAX_UNITS).contains(&units).then_some(samples as usize)
}

/// 2 when the packet's TOC byte says stereo, else 1 (RFC 6716 section 3.1). A property of each packet, not of the
/// stream (case 10).
pub fn channels(packet: &[u8]) -> u8 {
    1 + packet.first().map_or(0, |toc| toc >> 2 & 1)
}

/// Whether the encoder fell silent with this packet: its TOC byte alone, without any frame data (RFC 6716 section
/// 2.1.9). A short packet with data may be real sound (case 13).
pub fn is_dtx(packet: &[u8]) -> bool {
    matches!(packet, [toc] if toc & 0b11 < 2)
}

/// One second in units of 2.5 ms.
const UNITS_PER_SECOND: u64 = 400;
/// 120 ms, the longest packet (RFC 6716 section 3.2.5, R5).
const MAX_UNITS: u64 = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_follows_configuration_and_frame_count() {
        // Config 1 (SILK NB 20 ms), 3 (60 ms), 13 (hybrid 20 ms), 16 (CELT 2.5 ms), 31 (CELT 20 ms).
        assert_eq!(packet_samples(&[1 << 3], 48_000), Some(960));
        assert_eq!(packet_samples(&[3 << 3, 1], 24_000), Some(1_440));
        assert_eq!(packet_samples(&[3 << 3 | 1], 24_000), Some(2_880));
        assert_eq!(packet_samples(&[13 << 3 | 2, 1], 16_000), Some(640));
        assert_eq!(packet_samples(&[16 << 3], 8_000), Some(20));
        assert_eq!(packet_samples(&[31 << 3 | 3, 0x40 | 6], 24_000), Some(2_880));
    }

    #[test]
    fn what_cannot_be_a_packet_has_no_duration() {
        assert_eq!(packet_samples(&[], 48_000), None);
        assert_eq!(packet_samples(&[3], 48_000), None, "no frame count");
        assert_eq!(packet_samples(&[3, 0], 48_000), None, "no frame");
        assert_eq!(packet_samples(&[31 << 3 | 3, 7], 48_000), None, "140 ms");
    }

    #[test]
    fn case_13_dtx_is_the_toc_byte_alone() {
        assert!(is_dtx(&[0x48]));
        assert!(!is_dtx(&[]));
        assert!(!is_dtx(&[0x48, 0x00]), "two bytes may be real sound");
        assert!(!is_dtx(&[0x4B]), "a count is missing");
    }

    #[test]
    fn channels_are_in_the_toc_byte() {
        assert_eq!(channels(&[31 << 3]), 1);
        assert_eq!(channels(&[31 << 3 | 4]), 2);
        assert_eq!(channels(&[]), 1);
    }
}
