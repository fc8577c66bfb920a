//! From a device's microphone to the Watch's messages: any rate, any number of channels.

use watch_audio_media::resample::{RateError, Resampler};

use crate::live::ring::{Reader, Writer, ring};

/// The callback's end of a microphone.
#[derive(Debug)]
pub struct Capture {
    ring: Writer,
    channels: usize,
}

/// What a microphone gives, mono, at its own rate in Hz.
#[derive(Debug)]
pub struct Source {
    rate: u32,
    ring: Reader,
}

/// A microphone that captures at `rate` Hz in `channels` channels.
pub fn microphone(rate: u32, channels: u16) -> (Capture, Source) {
    let (writer, reader) = ring((rate as usize).saturating_mul(RING_MS) / 1000);
    (Capture { ring: writer, channels: usize::from(channels.max(1)) }, Source { rate, ring: reader })
}

impl Capture {
    /// Takes a block of interleaved samples; neither waits nor allocates. When the task stands still, what does not fit is
    /// lost.
    pub fn captured<T: Copy>(&mut self, block: &[T], convert: impl Fn(T) -> i16) {
        let mono = block.chunks_exact(self.channels).map(|frame| {
            let sum: i32 = frame.iter().map(|&sample| i32::from(convert(sample))).sum();
            (sum / frame.len() as i32) as i16
        });
        self.ring.push(mono);
    }
}

/// The task's end of a microphone, at the engine's rate.
pub struct Microphone {
    source: Source,
    resampler: Resampler,
    taken: Vec<i16>,
    waiting: Vec<i16>,
    message: Vec<i16>,
    message_samples: usize,
}

impl Microphone {
    /// Messages of 20 ms at `rate` Hz.
    ///
    /// # Errors
    /// When the device's rate is no rate of sound.
    pub fn new(source: Source, rate: u32) -> Result<Self, RateError> {
        let resampler = Resampler::new(source.rate, rate)?;
        let message_samples = rate as usize / MESSAGES_PER_SECOND;
        Ok(Self { source, resampler, taken: vec![], waiting: vec![], message: vec![], message_samples })
    }

    /// The next message, when it is complete.
    pub fn message(&mut self) -> Option<&[i16]> {
        self.taken.clear();
        self.source.ring.take(usize::MAX, |sample| self.taken.push(sample));
        self.resampler.push(&self.taken, &mut self.waiting);
        if self.waiting.len() < self.message_samples {
            return None;
        }
        self.message.clear();
        self.message.extend(self.waiting.drain(..self.message_samples));
        Some(&self.message)
    }
}

impl std::fmt::Debug for Microphone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Microphone").field("rate", &self.source.rate).finish_non_exhaustive()
    }
}

/// As long as a packet of Opus; a deployed Watch takes five times that, but a person waits for the answer here.
const MESSAGES_PER_SECOND: usize = 50;
/// A task that stands still for longer loses sound.
const RING_MS: usize = 500;

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    /// The mean square of a tone in 1 s of messages, from a device of this rate and these channels.
    fn loudness(rate: u32, channels: u16, left_only: bool) -> (usize, f64) {
        let (mut capture, source) = microphone(rate, channels);
        let mut microphone = Microphone::new(source, 16_000).unwrap();
        let mut samples = Vec::new();
        for block in 0..100 {
            let frames = (0..rate as usize / 100).map(|n| (block * (rate as usize / 100) + n) as f64);
            let tone = frames.map(|n| (n / f64::from(rate) * 440.0 * TAU).sin() as f32 * 0.5);
            let block: Vec<f32> = tone
                .flat_map(|sample| {
                    (0..channels).map(move |channel| if left_only && channel > 0 { 0.0 } else { sample })
                })
                .collect();
            capture.captured(&block, |sample| (sample * 32_767.0) as i16);
            while let Some(message) = microphone.message() {
                assert_eq!(message.len(), 320);
                samples.extend_from_slice(message);
            }
        }
        let energy: f64 = samples.iter().map(|&sample| f64::from(sample).powi(2)).sum();
        (samples.len(), (energy / samples.len() as f64).sqrt())
    }

    #[test]
    fn any_rate_and_any_channels_come_out_as_messages_of_20_ms() {
        for (rate, channels) in [(8_000, 1), (16_000, 1), (44_100, 2), (48_000, 2), (96_000, 6), (48_000, 32)] {
            let (samples, rms) = loudness(rate, channels, false);
            assert!((15_360..=16_000).contains(&samples), "{rate} Hz: {samples}");
            assert!((rms / (16_383.5 / 2_f64.sqrt()) - 1.0).abs() < 0.03, "{rate} Hz, {channels} channels: {rms}");
        }
    }

    #[test]
    fn channels_are_mixed() {
        let (_, both) = loudness(48_000, 2, false);
        let (_, one) = loudness(48_000, 2, true);
        assert!((one / both - 0.5).abs() < 0.01);
    }

    #[test]
    fn a_task_that_stands_still_loses_the_newest_sound_only() {
        let (mut capture, source) = microphone(16_000, 1);
        let mut microphone = Microphone::new(source, 16_000).unwrap();
        for block in 0..100 {
            capture.captured(&[block; 160], |sample| sample);
        }
        let mut samples = Vec::new();
        while let Some(message) = microphone.message() {
            samples.extend_from_slice(message);
        }
        assert_eq!(samples.len(), 8_000);
        assert_eq!((samples[0], samples[7_999]), (0, 49));
        capture.captured(&[7; 320], |sample| sample);
        assert_eq!(microphone.message().unwrap(), [7; 320]);
    }
}
