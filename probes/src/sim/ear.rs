//! Hears speech by its level: good enough for scripted calls, and it never guesses.

use std::time::Duration;

/// What an [`Ear`] listens for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarSettings {
    /// A block of 10 ms whose peak is above this is voiced.
    pub level: u16,
    /// So much voice within 200 ms is speech.
    pub voice: Duration,
    /// So much quiet ends it.
    pub silence: Duration,
}

impl Default for EarSettings {
    fn default() -> Self {
        Self { level: LEVEL, voice: Duration::from_millis(60), silence: Duration::from_millis(600) }
    }
}

/// What was noticed, with its place on the timeline of the audio pushed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noticed {
    /// Speech began at this moment, a little before it was noticed.
    Started(Duration),
    /// Speech ended at this moment: the settled quiet came after it.
    Stopped(Duration),
}

/// Listens to one stream of mono audio, in pieces of any length.
#[derive(Debug)]
pub struct Ear {
    settings: EarSettings,
    block: u64,
    rate: u64,
    /// Samples pushed in all, and the peak of the block that is not full yet.
    samples: u64,
    peak: u16,
    /// One bit per block, the newest lowest: 1 is voiced.
    recent: u32,
    quiet: u64,
    speaking: bool,
}

impl Ear {
    /// An ear for audio at `rate` Hz.
    pub fn new(rate: u32, settings: EarSettings) -> Self {
        let rate = u64::from(rate.max(100));
        Self { settings, block: rate / 100, rate, samples: 0, peak: 0, recent: 0, quiet: 0, speaking: false }
    }

    /// Changes what is listened for; what was heard stays.
    pub fn set(&mut self, settings: EarSettings) {
        self.settings = settings;
    }

    /// How much audio came so far.
    pub fn time(&self) -> Duration {
        self.at(self.samples)
    }

    /// Whether somebody speaks now.
    pub fn speaking(&self) -> bool {
        self.speaking
    }

    /// Takes the next samples and appends what they told.
    pub fn push(&mut self, samples: &[i16], noticed: &mut Vec<Noticed>) {
        for sample in samples {
            self.peak = self.peak.max(sample.unsigned_abs());
            self.samples += 1;
            if self.samples.is_multiple_of(self.block) {
                noticed.extend(self.end_block());
                self.peak = 0;
            }
        }
    }

    fn end_block(&mut self) -> Option<Noticed> {
        let voiced = self.peak > self.settings.level;
        self.recent = ((self.recent << 1) | u32::from(voiced)) & WINDOW;
        self.quiet = if voiced { 0 } else { self.quiet + self.block };
        if self.speaking {
            if self.at(self.quiet) < self.settings.silence {
                return None;
            }
            self.speaking = false;
            self.recent = 0;
            return Some(Noticed::Stopped(self.at(self.samples - self.quiet)));
        }
        if u128::from(self.recent.count_ones()) * 10 < self.settings.voice.as_millis() || self.recent == 0 {
            return None;
        }
        self.speaking = true;
        let blocks = u64::from(u32::BITS - self.recent.leading_zeros());
        Some(Noticed::Started(self.at(self.samples - (blocks * self.block).min(self.samples))))
    }

    fn at(&self, samples: u64) -> Duration {
        Duration::from_micros(samples * 1_000_000 / self.rate)
    }
}

/// Room noise of a Watch stays below this; it is also where the Watch itself draws the line (`watch-audio.md`).
const LEVEL: u16 = 600;
/// 20 blocks: 200 ms.
const WINDOW: u32 = (1 << 20) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(ms: usize, rate: usize) -> Vec<i16> {
        (0..ms * rate / 1000).map(|n| if n % 20 < 10 { 8000 } else { -8000 }).collect()
    }

    #[test]
    fn speech_is_found_within_ten_milliseconds_whatever_the_pieces() {
        let mut audio = vec![0; 24_000];
        audio.extend(tone(500, 24_000));
        audio.extend(vec![0; 24_000]);
        for piece in [7, 480, 2_040, 100_000] {
            let mut ear = Ear::new(24_000, EarSettings::default());
            let mut noticed = Vec::new();
            for chunk in audio.chunks(piece) {
                ear.push(chunk, &mut noticed);
            }
            let expected =
                vec![Noticed::Started(Duration::from_secs(1)), Noticed::Stopped(Duration::from_millis(1_500))];
            assert_eq!(noticed, expected, "in pieces of {piece}");
            assert_eq!(ear.time(), Duration::from_millis(2_500));
        }
    }

    #[test]
    fn a_click_is_not_speech_and_a_short_pause_does_not_end_it() {
        let mut ear = Ear::new(16_000, EarSettings::default());
        let mut noticed = Vec::new();
        ear.push(&tone(20, 16_000), &mut noticed);
        ear.push(&[0; 8_000], &mut noticed);
        assert_eq!(noticed, []);
        ear.push(&tone(200, 16_000), &mut noticed);
        ear.push(&[0; 8_000], &mut noticed);
        ear.push(&tone(200, 16_000), &mut noticed);
        assert_eq!(noticed.len(), 1);
        assert!(ear.speaking());
    }
}
