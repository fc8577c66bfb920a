//! The loudness of made-up sound: down to silence, and back without a click.

use std::time::Duration;

use crate::join;

/// How loud made-up sound still is.
#[derive(Debug)]
pub(super) struct Fade {
    rate: u32,
    /// Samples made up since real sound.
    run: usize,
}

impl Fade {
    pub(super) fn new(rate: u32) -> Self {
        Self { rate, run: 0 }
    }

    /// Whether nothing is left to hear.
    pub(super) fn is_silent(&self) -> bool {
        self.run >= self.samples(END)
    }

    /// Made-up sound: as it is for one frame, then down to nothing.
    pub(super) fn out(&mut self, samples: &mut [i16]) {
        for sample in samples {
            *sample = (f32::from(*sample) * self.gain()) as i16;
            self.run += 1;
        }
    }

    /// Real sound again: up from where the fade was.
    pub(super) fn back(&mut self, samples: &mut [i16]) {
        let start = self.gain();
        self.run = 0;
        if start >= 1.0 {
            return;
        }
        let ramp = join::length(self.rate).min(samples.len());
        for (index, sample) in samples[..ramp].iter_mut().enumerate() {
            let gain = start + (1.0 - start) * (index + 1) as f32 / ramp as f32;
            *sample = (f32::from(*sample) * gain) as i16;
        }
    }

    fn gain(&self) -> f32 {
        let (start, end) = (self.samples(START), self.samples(END));
        let left = end.saturating_sub(self.run) as f32;
        (left / (end - start) as f32).min(1.0)
    }

    fn samples(&self, time: Duration) -> usize {
        (time.as_millis() as usize * self.rate as usize) / 1_000
    }
}

/// Concealment of one 20 ms frame keeps its level…
const START: Duration = Duration::from_millis(20);
/// …and is gone after 100 ms.
const END: Duration = Duration::from_millis(100);
