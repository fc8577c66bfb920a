//! What the tests of this crate share: signals, ears, a seeded dice and a codec that needs none.

use std::f64::consts::TAU;

use crate::codec::{CodecError, Decode};

/// A sine of `hz` at sample `index`, at amplitude 8,000.
pub(crate) fn tone(hz: f64, rate: u32, index: u64) -> i16 {
    (8_000.0 * (TAU * hz * index as f64 / f64::from(rate)).sin()) as i16
}

/// Something like speech: syllables of a voiced sound whose pitch wanders, 1.6 s of them, then 0.4 s of near silence.
pub(crate) fn speech(rate: u32, index: u64) -> i16 {
    let t = index as f64 / f64::from(rate) % 2.0;
    let loud = (t / 0.02).min((1.6 - t) / 0.02).clamp(0.0, 1.0);
    let hum = 20.0 * (TAU * 60.0 * t).sin();
    (loud * f64::from(babble(rate, index)) + hum) as i16
}

/// The same without its pauses.
pub(crate) fn babble(rate: u32, index: u64) -> i16 {
    let t = index as f64 / f64::from(rate);
    let phase = TAU * (140.0 * t + 3.0 * (TAU * 0.8 * t).sin());
    let voice = phase.sin() + 0.5 * (2.0 * phase).sin() + 0.3 * (3.0 * phase).sin();
    let syllable = 0.6 + 0.4 * (TAU * 4.0 * t).sin();
    (4_000.0 * syllable * voice) as i16
}

/// The largest curve (second difference) in `samples`: a click shows as a value far above what the signal itself has.
pub(crate) fn curve(samples: &[i16]) -> i32 {
    let second = |w: &[i16]| (i32::from(w[0]) - 2 * i32::from(w[1]) + i32::from(w[2])).abs();
    samples.windows(3).map(second).max().unwrap_or(0)
}

/// The frequency of a clean tone, from its upward zero crossings.
pub(crate) fn frequency(samples: &[i16], rate: u32) -> f64 {
    let ups: Vec<f64> = samples
        .windows(2)
        .enumerate()
        .filter(|(_, w)| w[0] < 0 && w[1] >= 0)
        .map(|(index, w)| index as f64 + f64::from(-w[0]) / f64::from(i32::from(w[1]) - i32::from(w[0])))
        .collect();
    (ups.len() - 1) as f64 * f64::from(rate) / (ups[ups.len() - 1] - ups[0])
}

/// The least and the greatest loudness (RMS) of any 10 ms, as shares of the loudness of all: a dropout or a bump shows.
pub(crate) fn loudness(samples: &[i16], rate: u32) -> (f64, f64) {
    let rms =
        |part: &[i16]| (part.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / part.len() as f64).sqrt();
    let all = rms(samples);
    let shares = samples.chunks_exact(rate as usize / 100).map(|part| rms(part) / all);
    shares.fold((f64::MAX, 0.0), |(least, most), share| (least.min(share), most.max(share)))
}

/// A dice with a seed (xorshift64*).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// 0 up to but not 1.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The value below which a share `q` of `values` lies.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() as f64 * q) as usize).min(sorted.len() - 1)]
}

/// A codec whose packets name a stretch of a known signal. Concealment goes on with that signal, so that what the
/// caller adds to it shows.
pub(crate) struct Stretch {
    pub(crate) rate: u32,
    pub(crate) signal: fn(u32, u64) -> i16,
    at: u64,
    pub(crate) recovered: usize,
}

impl Stretch {
    pub(crate) fn new(rate: u32, signal: fn(u32, u64) -> i16) -> Self {
        Self { rate, signal, at: 0, recovered: 0 }
    }

    /// A packet of `count` samples from `start` on; `fec`: the one before can be had from it.
    pub(crate) fn packet(start: u64, count: u16, fec: bool) -> Vec<u8> {
        let mut packet = vec![u8::from(fec)];
        packet.extend(start.to_le_bytes());
        packet.extend(count.to_le_bytes());
        packet
    }

    fn read(packet: &[u8]) -> Result<(bool, u64, u16), CodecError> {
        let bad = || CodecError("no stretch".to_owned());
        let start = packet.get(1..9).and_then(|bytes| bytes.try_into().ok()).ok_or_else(bad)?;
        let count = packet.get(9..11).and_then(|bytes| bytes.try_into().ok()).ok_or_else(bad)?;
        Ok((packet[0] == 1, u64::from_le_bytes(start), u16::from_le_bytes(count)))
    }

    fn append(&mut self, count: usize, pcm: &mut Vec<i16>) -> usize {
        pcm.extend((0..count as u64).map(|index| (self.signal)(self.rate, self.at.wrapping_add(index))));
        self.at = self.at.wrapping_add(count as u64);
        count
    }
}

impl Decode for Stretch {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn decode(&mut self, packet: &[u8], pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        let (_, start, count) = Self::read(packet)?;
        self.at = start;
        Ok(self.append(usize::from(count), pcm))
    }

    fn recover(&mut self, next: &[u8], samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        let (fec, start, _) = Self::read(next)?;
        self.recovered += usize::from(fec);
        self.at = start.saturating_sub(samples as u64);
        Ok(self.append(samples, pcm))
    }

    fn conceal(&mut self, samples: usize, pcm: &mut Vec<i16>) -> Result<usize, CodecError> {
        Ok(self.append(samples, pcm))
    }
}
