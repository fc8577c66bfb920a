//! From one fixed rate to another, as a stream.
//!
//! The filter remembers what came before, so the pieces a stream is pushed in do not matter, and its tail is asked
//! for at the end (case 8).

use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Async, FixedAsync, SincInterpolationParameters, SincInterpolationType, WindowFunction};

/// These rates cannot be resampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot resample from {from} Hz to {to} Hz; both must be from {MIN_RATE} to {MAX_RATE} Hz")]
pub struct RateError {
    from: u32,
    to: u32,
}

/// Resamples one mono stream: sample `n` of the output is the sound at `n / to` seconds of the input, and in all there
/// are as many as belong to the input's length.
///
/// What comes out lags by half the filter, 32 samples of the slower rate, and at most 1 ms more: 2 to 3 ms where that is
/// 16 kHz. At equal rates nothing lags.
pub struct Resampler {
    from: u32,
    to: u32,
    /// `None` at equal rates.
    filter: Option<Filter>,
    pushed: u64,
    given: u64,
}

impl Resampler {
    /// A resampler from `from` Hz to `to` Hz.
    ///
    /// # Errors
    /// When a rate is no rate of sound.
    pub fn new(from: u32, to: u32) -> Result<Self, RateError> {
        let sound = MIN_RATE..=MAX_RATE;
        let error = RateError { from, to };
        if !sound.contains(&from) || !sound.contains(&to) {
            return Err(error);
        }
        let filter = if from == to { None } else { Some(Filter::new(from, to).ok_or(error)?) };
        Ok(Self { from, to, filter, pushed: 0, given: 0 })
    }

    /// Takes the next piece of the stream, of any length, and appends what it completes to `out`.
    pub fn push(&mut self, samples: &[i16], out: &mut Vec<i16>) {
        let before = out.len();
        match &mut self.filter {
            Some(filter) => filter.push(samples.iter().copied(), out),
            None => out.extend_from_slice(samples),
        }
        self.pushed += samples.len() as u64;
        self.given += (out.len() - before) as u64;
    }

    /// Ends the stream: appends the tail that the filter still holds to `out` and begins anew.
    pub fn flush(&mut self, out: &mut Vec<i16>) {
        let (from, to) = (u64::from(self.from), u64::from(self.to));
        let due = (self.pushed * to + from / 2) / from;
        let end = out.len() + due.saturating_sub(self.given) as usize;
        if let Some(filter) = &mut self.filter {
            while out.len() < end {
                filter.push(std::iter::repeat_n(0, filter.block), out);
            }
            out.truncate(end);
        }
        self.reset();
    }

    /// Forgets the stream so far, as after an interruption: nothing of it reaches the next one.
    pub fn reset(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.reset();
        }
        self.pushed = 0;
        self.given = 0;
    }
}

/// The filter, fed in blocks.
struct Filter {
    inner: Async<f32>,
    /// How much it takes at once.
    block: usize,
    /// Less than a block, waiting.
    waiting: Vec<f32>,
    /// Room for what one block gives.
    made: Vec<f32>,
    /// The filter's own delay in samples of the output.
    delay: usize,
    /// How much of it is still to be dropped.
    lead: usize,
}

impl Filter {
    fn new(from: u32, to: u32) -> Option<Self> {
        // Down, the filter must be as many *output* samples long for the same steepness.
        let length = TAPS * from.div_ceil(to) as usize;
        let parameters = SincInterpolationParameters::new(length, WindowFunction::BlackmanHarris2)
            .oversampling_factor(PHASES)
            .interpolation(SincInterpolationType::Linear);
        let block = (from / BLOCKS_PER_SECOND) as usize;
        let ratio = f64::from(to) / f64::from(from);
        let inner = Async::new_sinc(ratio, 1.0, &parameters, block, 1, FixedAsync::Input).ok()?;
        let made = vec![0.0; rubato::Resampler::output_frames_max(&inner)];
        // Half the filter, to the nearest sample; rubato's first one is already a step into it.
        let delay = (length as f64 / 2.0 * ratio).round() as usize - 1;
        Some(Self { inner, block, waiting: Vec::with_capacity(block), made, delay, lead: delay })
    }

    fn push(&mut self, samples: impl Iterator<Item = i16>, out: &mut Vec<i16>) {
        for sample in samples {
            self.waiting.push(sample.into());
            if self.waiting.len() == self.block {
                self.run(out);
            }
        }
    }

    /// Runs the block that is waiting.
    fn run(&mut self, out: &mut Vec<i16>) {
        let room = self.made.len();
        let (_, made) = SequentialSlice::new(&self.waiting, 1, self.block)
            .ok()
            .zip(SequentialSlice::new_mut(&mut self.made, 1, room).ok())
            .and_then(|(block, mut made)| {
                rubato::Resampler::process_into_buffer(&mut self.inner, &block, &mut made, None).ok()
            })
            .expect("both buffers have the sizes that the filter asked for");
        self.waiting.clear();
        let dropped = self.lead.min(made);
        self.lead -= dropped;
        // `as` rounds toward zero and holds at the ends: a peak that overshoots clips.
        out.extend(self.made[dropped..made].iter().map(|sample| sample.round() as i16));
    }

    fn reset(&mut self) {
        rubato::Resampler::reset(&mut self.inner);
        self.waiting.clear();
        self.lead = self.delay;
    }
}

const MIN_RATE: u32 = 4_000;
const MAX_RATE: u32 = 768_000;
/// 64 taps and linear interpolation between 256 phases: the error stays below that of 16 bits.
const TAPS: usize = 64;
const PHASES: usize = 256;
/// A block of 1 ms: shorter costs more per sample, longer delays.
const BLOCKS_PER_SECOND: u32 = 1_000;

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    fn tone(hz: f64, rate: u32, count: usize) -> Vec<i16> {
        (0..count).map(|n| (16_000.0 * (n as f64 * hz * TAU / f64::from(rate)).sin()).round() as i16).collect()
    }

    /// The whole of `input` in pieces of `piece` samples.
    fn resample(from: u32, to: u32, input: &[i16], piece: usize) -> Vec<i16> {
        let mut resampler = Resampler::new(from, to).unwrap();
        let mut out = Vec::new();
        for piece in input.chunks(piece) {
            resampler.push(piece, &mut out);
        }
        resampler.flush(&mut out);
        out
    }

    fn rms(samples: impl IntoIterator<Item = f64>) -> f64 {
        let (sum, count) = samples.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value * value, count + 1));
        (sum / f64::from(count)).sqrt()
    }

    /// The ratio of the tone to all that is not the tone, in dB, with the amplitude and phase that fit best.
    fn purity(hz: f64, rate: u32, samples: &[i16]) -> f64 {
        let wave = |n: usize| (n as f64 * hz * TAU / f64::from(rate)).sin_cos();
        let (mut a, mut b) = (0.0, 0.0);
        for (n, sample) in samples.iter().enumerate() {
            let (sin, cos) = wave(n);
            a += sin * f64::from(*sample) * 2.0 / samples.len() as f64;
            b += cos * f64::from(*sample) * 2.0 / samples.len() as f64;
        }
        let rest = samples.iter().enumerate().map(|(n, sample)| {
            let (sin, cos) = wave(n);
            f64::from(*sample) - a * sin - b * cos
        });
        20.0 * (a.hypot(b) / 2f64.sqrt() / rms(rest)).log10()
    }

    #[test]
    fn case_8_pieces_do_not_matter_and_the_tail_is_there() {
        let input = tone(1_000.0, 44_100, 44_100);
        let whole = resample(44_100, 24_000, &input, 44_100);
        assert!(whole.len().abs_diff(24_000) <= 1, "{}", whole.len());
        for piece in [441, 1, 777] {
            assert_eq!(resample(44_100, 24_000, &input, piece), whole, "pieces of {piece}");
        }
        let last = rms(whole[whole.len() - 120..].iter().map(|sample| f64::from(*sample)));
        assert!((last / (16_000.0 / 2f64.sqrt()) - 1.0).abs() < 0.05, "the last 5 ms are tone: {last}");
    }

    #[test]
    fn case_8_after_a_reset_nothing_but_silence() {
        let mut resampler = Resampler::new(44_100, 24_000).unwrap();
        let mut out = Vec::new();
        resampler.push(&tone(1_000.0, 44_100, 13_230), &mut out);
        resampler.reset();
        out.clear();
        resampler.push(&[0; 44_100], &mut out);
        resampler.flush(&mut out);
        assert_eq!(out, vec![0; 24_000]);
        // A flush begins anew as well.
        out.clear();
        resampler.push(&[0; 441], &mut out);
        resampler.flush(&mut out);
        assert_eq!(out, vec![0; 240]);
    }

    #[test]
    fn usual_rates_keep_count_time_and_purity() {
        for (from, to) in [(8_000, 24_000), (16_000, 24_000), (22_050, 16_000), (24_000, 16_000), (44_100, 24_000)]
            .into_iter()
            .chain([(48_000, 16_000), (48_000, 24_000), (24_000, 48_000), (96_000, 8_000), (11_025, 24_000)])
        {
            let out = resample(from, to, &tone(1_000.0, from, from as usize), 320);
            assert!(out.len().abs_diff(to as usize) <= 1, "{from} to {to}: {}", out.len());
            let (edge, middle) = (to as usize / 10, to as usize * 8 / 10);
            let middle = &out[edge..edge + middle];
            assert!(purity(1_000.0, to, middle) > 85.0, "{from} to {to}: {} dB", purity(1_000.0, to, middle));
            // In time to half a sample: the output is the tone as it would be at its own rate.
            let right = &tone(1_000.0, to, to as usize)[edge..];
            let off = rms(middle.iter().zip(right).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            let half = 0.5 * 16_000.0 / 2f64.sqrt() * 1_000.0 * TAU / f64::from(to);
            assert!(off < half + 1.0, "{from} to {to}: {off}, half a sample is {half}");
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_carry_is_filtered_out() {
        for (from, to, hz) in [(48_000, 16_000, 10_000.0), (44_100, 24_000, 15_000.0), (48_000, 24_000, 14_500.0)] {
            let out = resample(from, to, &tone(hz, from, from as usize), 480);
            let left = rms(out[to as usize / 10..to as usize * 9 / 10].iter().map(|sample| f64::from(*sample)));
            assert!(left < 4.0, "{from} to {to}: {left}");
        }
    }

    #[test]
    fn delay_is_low() {
        for (from, to) in [(48_000, 24_000), (16_000, 24_000), (44_100, 16_000)] {
            let mut resampler = Resampler::new(from, to).unwrap();
            let mut out = Vec::new();
            resampler.push(&vec![0; from as usize / 10], &mut out);
            let held = 100.0 - out.len() as f64 * 1_000.0 / f64::from(to);
            assert!(held < 3.5, "{from} to {to}: {held} ms");
        }
    }

    #[test]
    fn equal_rates_pass_through() {
        let input = tone(440.0, 24_000, 1_000);
        assert_eq!(resample(24_000, 24_000, &input, 480), input);
    }

    #[test]
    fn full_scale_clips_and_does_not_wrap() {
        let square: Vec<i16> = (0..16_000).map(|n| if n / 40 % 2 == 0 { i16::MAX } else { i16::MIN }).collect();
        let out = resample(16_000, 24_000, &square, 320);
        // Just after each edge the sign must be the square's.
        for (n, sample) in out.iter().enumerate().skip(600).take(20_000) {
            if (10..50).contains(&(n % 60)) {
                assert_eq!(*sample > 0, n / 60 % 2 == 0, "{n}: {sample}");
            }
        }
    }

    #[test]
    fn rates_that_are_none_are_refused() {
        assert!(Resampler::new(0, 24_000).is_err());
        assert!(Resampler::new(24_000, u32::MAX).is_err());
    }
}
