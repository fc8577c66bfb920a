//! libopus behind the traits of [`crate::codec`].

use opus::{Application, Bitrate, Channels};

use super::packet_samples;
use crate::codec::{CodecError, Decode, Encode};

/// libopus as a decoder to mono. Packets of any mode, duration and channel count may follow each other: a stereo
/// packet is mixed down by libopus itself, so channels never depend on the rate (case 10).
#[derive(Debug)]
pub struct Decoder {
    inner: opus::Decoder,
    rate: u32,
}

impl Decoder {
    /// A decoder whose samples come out at `rate`: 8000, 12,000, 16,000, 24,000 or 48,000 Hz.
    ///
    /// # Errors
    /// At any other rate.
    pub fn new(rate: u32) -> Result<Self, CodecError> {
        let inner = opus::Decoder::new(rate, Channels::Mono).map_err(refused)?;
        Ok(Self { inner, rate })
    }

    /// Forgets all packets before, as at the start of another stream.
    ///
    /// # Errors
    /// When libopus refuses.
    pub fn reset(&mut self) -> Result<(), CodecError> {
        self.inner.reset_state().map_err(refused)
    }

    /// Decodes into the `samples` samples after the end of `pcm`. libopus wants whole steps of 2.5 ms, and puts as much on
    /// the stack: more than the longest packet is refused here.
    fn append(&mut self, packet: &[u8], samples: usize, fec: bool, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        if samples > (self.rate / 1_000) as usize * MAX_PACKET_MS {
            return Err(CodecError(format!("{samples} samples at once are more than {MAX_PACKET_MS} ms")));
        }
        let before = pcm.len();
        pcm.resize(before + samples, 0);
        let decoded = self.inner.decode(packet, &mut pcm[before..], fec);
        pcm.truncate(before + decoded.as_ref().map_or(0, |count| *count));
        decoded.map_err(refused)
    }
}

impl Decode for Decoder {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn decode(&mut self, packet: &[u8], pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        let samples = packet_samples(packet, self.rate).ok_or_else(not_opus)?;
        self.append(packet, samples, false, pcm)
    }

    fn recover(&mut self, next: &[u8], samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        packet_samples(next, self.rate).ok_or_else(not_opus)?;
        self.append(next, samples, true, pcm)
    }

    fn conceal(&mut self, samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        self.append(&[], samples, false, pcm)
    }
}

/// How to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderSettings {
    /// In bit/s, on average.
    pub bitrate: u32,
    /// libopus' complexity, 0 (least CPU) to 10.
    pub complexity: u8,
    /// Whether packets carry a rough copy of the frame before (in-band FEC).
    pub fec: bool,
    /// The loss to prepare for; at 0 no FEC is sent even with `fec`.
    pub expected_loss_percent: u8,
    /// Whether silence is sent as few one-byte packets (DTX).
    pub dtx: bool,
}

impl EncoderSettings {
    /// Speech over a lossy network. No DTX: GPT-Live's clock is the audio it gets (case 17).
    pub fn voice() -> Self {
        Self {
            bitrate: VOICE_BITRATE,
            complexity: VOICE_COMPLEXITY,
            fec: true,
            expected_loss_percent: VOICE_LOSS_PERCENT,
            dtx: false,
        }
    }

    /// Speech over a link that loses nothing: no FEC.
    pub fn reliable() -> Self {
        Self { bitrate: RELIABLE_BITRATE, fec: false, expected_loss_percent: 0, ..Self::voice() }
    }
}

/// libopus as an encoder of mono speech.
#[derive(Debug)]
pub struct Encoder {
    inner: opus::Encoder,
    rate: u32,
    /// Where libopus writes, so that the caller's buffer grows by no more than the packet.
    packet: Box<[u8; MAX_PACKET_BYTES]>,
}

impl Encoder {
    /// An encoder of samples at `rate`: 8000, 12,000, 16,000, 24,000 or 48,000 Hz.
    ///
    /// # Errors
    /// At any other rate, or when libopus refuses a setting.
    pub fn new(rate: u32, settings: &EncoderSettings) -> Result<Self, CodecError> {
        let inner = configured(rate, settings).map_err(refused)?;
        Ok(Self { inner, rate, packet: Box::new([0; MAX_PACKET_BYTES]) })
    }
}

impl Encode for Encoder {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn encode(&mut self, pcm: &[i16], packet: &mut Vec<u8>) -> Result<usize, CodecError> {
        let count = self.inner.encode(pcm, self.packet.as_mut_slice()).map_err(refused)?;
        packet.extend_from_slice(&self.packet[..count]);
        Ok(count)
    }
}

fn configured(rate: u32, settings: &EncoderSettings) -> opus::Result<opus::Encoder> {
    let mut encoder = opus::Encoder::new(rate, Channels::Mono, Application::Voip)?;
    // Above what libopus has any use for, the number only has to fit.
    encoder.set_bitrate(Bitrate::Bits(settings.bitrate.min(MAX_BITRATE) as i32))?;
    encoder.set_complexity(settings.complexity.into())?;
    encoder.set_inband_fec(settings.fec)?;
    encoder.set_packet_loss_perc(settings.expected_loss_percent.into())?;
    encoder.set_dtx(settings.dtx)?;
    Ok(encoder)
}

fn refused(error: opus::Error) -> CodecError {
    CodecError(error.to_string())
}

fn not_opus() -> CodecError {
    CodecError("not an Opus packet".to_owned())
}

/// Of human speech, FEC brought lost frames back at 10.3 dB against the stream without loss; at 24 kb/s at 7.3, and
/// concealment at 0.7.
const VOICE_BITRATE: u32 = 32_000;
/// With packets of 60 ms, sealed and counted as the relay counts them, speech without any pause stays below 5 KB/s.
const RELIABLE_BITRATE: u32 = 28_000;
/// Encoding took 195 µs a frame, at 10 it took 315 for 1 dB better FEC; below 3 FEC gets worse.
const VOICE_COMPLEXITY: u8 = 5;
/// Enough for libopus to put FEC into every packet of speech.
const VOICE_LOSS_PERCENT: u8 = 10;
/// What libopus recommends as the room for one packet.
const MAX_PACKET_BYTES: usize = 4_000;
/// The longest packet (RFC 6716 section 3.2.5, R5).
const MAX_PACKET_MS: usize = 120;
/// The most that libopus takes for one channel.
const MAX_BITRATE: u32 = 512_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::opus::{channels, is_dtx};

    /// `ms` of a sine at `rate`, with `amplitude`.
    fn sine(hz: f64, rate: u32, ms: u32, amplitude: f64) -> Vec<i16> {
        (0..rate * ms / 1_000)
            .map(|n| (amplitude * (f64::from(n) * hz * std::f64::consts::TAU / f64::from(rate)).sin()) as i16)
            .collect()
    }

    /// The amplitude of one frequency in `pcm` (one DFT bin).
    fn amplitude_at(hz: f64, rate: u32, pcm: &[i16]) -> f64 {
        let step = hz * std::f64::consts::TAU / f64::from(rate);
        let (mut re, mut im) = (0.0, 0.0);
        for (n, sample) in pcm.iter().enumerate() {
            re += f64::from(*sample) * (step * n as f64).cos();
            im += f64::from(*sample) * (step * n as f64).sin();
        }
        2.0 * re.hypot(im) / pcm.len() as f64
    }

    /// A vowel-like sound whose pitch glides, so that a repeated frame does not pass for the right one.
    fn glide(rate: u32, ms: u32) -> Vec<i16> {
        let mut phase = 0.0;
        (0..rate * ms / 1_000)
            .map(|n| {
                let t = f64::from(n) / f64::from(rate);
                phase += (140.0 + 60.0 * (t * 9.0).sin()) * std::f64::consts::TAU / f64::from(rate);
                let loudness = 3_000.0 * (1.2 + (t * 23.0).sin());
                (1..=8).map(|k| loudness / f64::from(k) * (phase * f64::from(k)).sin()).sum::<f64>() as i16
            })
            .collect()
    }

    fn encode_all(encoder: &mut Encoder, pcm: &[i16], frame: usize) -> Vec<Vec<u8>> {
        pcm.chunks_exact(frame)
            .map(|frame| {
                let mut packet = Vec::new();
                encoder.encode(frame, &mut packet).unwrap();
                packet
            })
            .collect()
    }

    #[test]
    fn the_gpt_live_path_needs_no_resampler() {
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let packets = encode_all(&mut encoder, &sine(440.0, 16_000, 1_000, 8_000.0), 320);
        for rate in [8_000, 12_000, 16_000, 24_000, 48_000] {
            let mut decoder = Decoder::new(rate).unwrap();
            let mut pcm = Vec::new();
            for packet in &packets {
                assert_eq!(decoder.decode(packet, &mut pcm).unwrap(), rate as usize / 50);
            }
            assert_eq!(pcm.len(), rate as usize);
            let tone = amplitude_at(440.0, rate, &pcm[rate as usize / 10..]);
            assert!((6_000.0..9_000.0).contains(&tone), "{rate} Hz: {tone}");
        }
    }

    #[test]
    fn case_10_stereo_packets_become_mono_of_the_same_length() {
        for rate in [24_000, 48_000] {
            // Left 440 Hz, right silent.
            let mut stereo = opus::Encoder::new(rate, Channels::Stereo, Application::Audio).unwrap();
            stereo.set_force_channels(Some(Channels::Stereo)).unwrap();
            let left = sine(440.0, rate, 1_000, 8_000.0);
            let both: Vec<i16> = left.iter().flat_map(|sample| [*sample, 0]).collect();
            let mut decoder = Decoder::new(rate).unwrap();
            let mut pcm = Vec::new();
            for frame in both.chunks_exact(rate as usize / 50 * 2) {
                let packet = stereo.encode_vec(frame, 4_000).unwrap();
                assert_eq!(channels(&packet), 2);
                decoder.decode(&packet, &mut pcm).unwrap();
            }
            assert_eq!(pcm.len(), rate as usize, "1.000 s");
            let settled = &pcm[rate as usize / 10..];
            let tone = amplitude_at(440.0, rate, settled);
            assert!((3_000.0..5_000.0).contains(&tone), "half of one side: {tone}");
            assert!(amplitude_at(220.0, rate, settled) < 100.0, "not an octave down");

            // Mono packets in mid-stream.
            let mut mono = Encoder::new(rate, &EncoderSettings::voice()).unwrap();
            pcm.clear();
            for packet in encode_all(&mut mono, &left, rate as usize / 50) {
                assert_eq!(channels(&packet), 1);
                decoder.decode(&packet, &mut pcm).unwrap();
            }
            assert_eq!(pcm.len(), rate as usize);
            let tone = amplitude_at(440.0, rate, &pcm[rate as usize / 10..]);
            assert!((6_000.0..9_000.0).contains(&tone), "{tone}");
        }
    }

    #[test]
    fn every_duration_is_decoded_whole() {
        let mut decoder = Decoder::new(24_000).unwrap();
        for (ms_times_ten, frame) in [(25, 120), (50, 240), (100, 480), (200, 960), (400, 1_920), (600, 2_880)] {
            let mut encoder = Encoder::new(48_000, &EncoderSettings::voice()).unwrap();
            let mut packet = Vec::new();
            encoder.encode(&sine(440.0, 48_000, 60, 8_000.0)[..frame], &mut packet).unwrap();
            let mut pcm = Vec::new();
            assert_eq!(decoder.decode(&packet, &mut pcm).unwrap(), 24 * ms_times_ten / 10);
            assert_eq!(pcm.len(), 24 * ms_times_ten / 10);
        }
        // 120 ms: two packets of 60 ms joined.
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let pair = encode_all(&mut encoder, &glide(16_000, 120), 960);
        let mut joined = vec![0; 2_000];
        let length = opus::Repacketizer::new().unwrap().combine(&[&pair[0], &pair[1]], &mut joined).unwrap();
        let mut pcm = Vec::new();
        assert_eq!(decoder.decode(&joined[..length], &mut pcm).unwrap(), 2_880);
    }

    #[test]
    fn fec_brings_a_lost_frame_back_better_than_concealment() {
        let speech = glide(16_000, 1_000);
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let packets = encode_all(&mut encoder, &speech, 320);
        let mut whole = Vec::new();
        let mut decoder = Decoder::new(24_000).unwrap();
        for packet in &packets {
            decoder.decode(packet, &mut whole).unwrap();
        }
        // Every fifth packet is lost; the error of those frames against the stream without loss.
        let error = |fec: bool| -> f64 {
            let mut decoder = Decoder::new(24_000).unwrap();
            let mut pcm = Vec::new();
            let mut error = 0.0;
            for (n, packet) in packets.iter().enumerate() {
                if n % 5 != 4 || n + 1 == packets.len() {
                    decoder.decode(packet, &mut pcm).unwrap();
                    continue;
                }
                let start = pcm.len();
                let given = match fec {
                    true => decoder.recover(&packets[n + 1], 480, &mut pcm),
                    false => decoder.conceal(480, &mut pcm),
                };
                assert_eq!(given, Ok(480));
                error += pcm[start..]
                    .iter()
                    .zip(&whole[start..])
                    .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                    .sum::<f64>();
            }
            assert_eq!(pcm.len(), whole.len());
            error
        };
        let (fec, plc) = (error(true), error(false));
        assert!(fec < plc / 2.0, "FEC {fec:.0}, concealment {plc:.0}");
    }

    #[test]
    fn concealment_fades_and_takes_up_to_120_ms() {
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let mut decoder = Decoder::new(24_000).unwrap();
        let mut pcm = Vec::new();
        for packet in encode_all(&mut encoder, &glide(16_000, 200), 320) {
            decoder.decode(&packet, &mut pcm).unwrap();
        }
        pcm.clear();
        for _ in 0..10 {
            assert_eq!(decoder.conceal(480, &mut pcm), Ok(480));
        }
        assert_eq!(decoder.conceal(2_880, &mut pcm), Ok(2_880));
        assert!(crate::pcm::peak(&pcm[..480]) > 1_000, "goes on");
        assert!(crate::pcm::peak(&pcm[4_800..]) < 100, "and ends");
    }

    #[test]
    fn a_refused_packet_appends_nothing_and_the_stream_goes_on() {
        let mut decoder = Decoder::new(24_000).unwrap();
        let mut pcm = vec![7; 3];
        // Empty, two equal frames in three bytes, a frame count of none, a VBR length beyond the packet.
        for bad in [&[][..], &[0x49, 1, 2, 3], &[0x4B, 0], &[0x4A, 251, 255]] {
            assert!(decoder.decode(bad, &mut pcm).is_err(), "{bad:?}");
            assert_eq!(pcm, [7; 3]);
        }
        assert!(decoder.recover(&[], 480, &mut pcm).is_err());
        assert!(decoder.conceal(7, &mut pcm).is_err(), "not a multiple of 2.5 ms");
        assert!(decoder.conceal(2_880 + 60, &mut pcm).is_err(), "longer than any packet");
        assert!(decoder.recover(&[0x48, 0], usize::MAX, &mut pcm).is_err());
        assert_eq!(pcm, [7; 3]);

        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let mut packet = Vec::new();
        assert!(encoder.encode(&[0; 100], &mut packet).is_err());
        assert!(packet.is_empty());
        encoder.encode(&[0; 320], &mut packet).unwrap();
        assert_eq!(decoder.decode(&packet, &mut pcm), Ok(480));
        decoder.reset().unwrap();
    }

    #[test]
    fn dtx_is_off_for_voice_and_falls_silent_when_asked() {
        let silence = vec![0; 16_000];
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        assert!(encode_all(&mut encoder, &silence, 320).iter().all(|packet| !is_dtx(packet)));
        let mut encoder = Encoder::new(16_000, &EncoderSettings { dtx: true, ..EncoderSettings::voice() }).unwrap();
        let packets = encode_all(&mut encoder, &silence, 320);
        assert!(packets.iter().filter(|packet| is_dtx(packet)).count() > 25, "most of a second of silence");
        let mut decoder = Decoder::new(24_000).unwrap();
        let mut pcm = Vec::new();
        for packet in &packets {
            assert_eq!(decoder.decode(packet, &mut pcm), Ok(480), "TOC-only packets have a duration too");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_what_is_decoded_has_the_length_that_the_packet_says(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..20),
        ) {
            let mut decoder = Decoder::new(24_000).unwrap();
            let mut pcm = Vec::new();
            for packet in packets {
                pcm.clear();
                if let Ok(count) = decoder.decode(&packet, &mut pcm) {
                    prop_assert_eq!(Some(count), packet_samples(&packet, 24_000));
                }
                let given = pcm.len();
                if decoder.recover(&packet, 480, &mut pcm).is_ok() {
                    prop_assert_eq!(pcm.len(), given + 480);
                }
            }
        }
    }

    #[test]
    fn nothing_is_allocated_once_the_buffers_have_grown() {
        let mut encoder = Encoder::new(16_000, &EncoderSettings::voice()).unwrap();
        let mut decoder = Decoder::new(24_000).unwrap();
        let (mut packet, mut pcm) = (Vec::with_capacity(200), Vec::with_capacity(480));
        let places = (packet.as_ptr(), pcm.as_ptr());
        for frame in glide(16_000, 2_000).chunks_exact(320) {
            packet.clear();
            pcm.clear();
            encoder.encode(frame, &mut packet).unwrap();
            decoder.decode(&packet, &mut pcm).unwrap();
            assert_eq!((packet.as_ptr(), pcm.as_ptr()), places, "{} bytes", packet.len());
        }
    }
}
