//! The sound that is played: each 20 ms of it is a mark, two tones at once as on a telephone's keys, in phrases with
//! pauses as in speech.
//!
//! Codecs keep tones, so a mark is known again after Opus, even from FEC; concealment only goes on with the mark before
//! and does not pass for one. A pair of tones comes back after 3.2 s, later than any delay.

use std::time::Duration;

use crate::FRAME;

/// The sound of a call.
#[derive(Debug)]
pub struct Marks {
    /// What each frame sounds: two of [`TONES`], or nothing.
    frames: Vec<Option<[usize; 2]>>,
}

impl Marks {
    /// Silence first, then `count` frames in phrases, then silence for what is still under way.
    pub fn new(count: usize) -> Self {
        let mut played = (0..).map(pair);
        let phrases = (0..count).map(|n| (n % PHRASE_FRAMES < SOUNDING_FRAMES).then(|| played.next()).flatten());
        let frames = [None; LEAD_FRAMES].into_iter().chain(phrases).chain([None; TAIL_FRAMES]).collect();
        Self { frames }
    }

    /// What each frame sounds: two of [`TONES`], or nothing.
    pub fn frames(&self) -> &[Option<[usize; 2]>] {
        &self.frames
    }

    /// How long it is.
    pub fn duration(&self) -> Duration {
        FRAME * self.frames.len() as u32
    }

    /// The sound at `rate`. Tones do whole turns in a frame, so there is no click between frames.
    pub fn pcm(&self, rate: u32) -> Vec<i16> {
        let mut pcm = Vec::new();
        for frame in &self.frames {
            pcm.extend((0..rate / 50).map(|n| {
                let tones = frame.iter().flatten();
                let turns = |tone: &usize| hz(*tone) * f64::from(n) / f64::from(rate);
                tones.map(|tone| AMPLITUDE * (turns(tone) * std::f64::consts::TAU).sin()).sum::<f64>() as i16
            }));
        }
        pcm
    }
}

/// The frequency of tone 0 to [`TONES`] - 1, in Hz.
pub fn hz(tone: usize) -> f64 {
    LOWEST_HZ + STEP_HZ * tone as f64
}

/// The tones of the `n`th mark. One goes round the low tones, one round the high ones, in steps wide enough for
/// neighbours to differ, and small enough for Opus to follow; the two rounds have no common divisor, so all pairs come before one comes back.
fn pair(n: usize) -> [usize; 2] {
    [n * 2 % LOW_TONES, LOW_TONES + n * 3 % HIGH_TONES]
}

/// How many tones there are.
pub const TONES: usize = LOW_TONES + HIGH_TONES;
const LOW_TONES: usize = 11;
const HIGH_TONES: usize = 13;
/// Tones of 400 to 2,700 Hz: what Opus keeps of speech at any bitrate, and below half of 8 kHz.
const LOWEST_HZ: f64 = 400.0;
/// Twice what 20 ms can tell apart.
const STEP_HZ: f64 = 100.0;
const AMPLITUDE: f64 = 5_000.0;
/// A second for both sides to settle.
const LEAD_FRAMES: usize = 50;
/// What may still be under way: more than any delay seen.
const TAIL_FRAMES: usize = 150;
/// Phrases of 1.6 s with 0.4 s between them.
const PHRASE_FRAMES: usize = 100;
const SOUNDING_FRAMES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_comes_back_late() {
        let marks = Marks::new(2_000);
        let sounding: Vec<_> = marks.frames().iter().enumerate().filter_map(|(n, pair)| Some((n, (*pair)?))).collect();
        for (place, (n, pair)) in sounding.iter().enumerate() {
            let back = sounding[place + 1..].iter().find(|(_, other)| other == pair);
            assert!(back.is_none_or(|(back, _)| FRAME * (back - n) as u32 >= Duration::from_millis(3_200)));
        }
    }

    #[test]
    fn the_same_sound_at_every_rate() {
        let marks = Marks::new(200);
        let (slow, fast) = (marks.pcm(8_000), marks.pcm(48_000));
        assert_eq!(slow.len() * 6, fast.len());
        let worst = slow.iter().enumerate().map(|(n, sample)| sample.abs_diff(fast[6 * n])).max();
        assert!(worst <= Some(2), "{worst:?}");
        assert_eq!(marks.frames().iter().flatten().count(), 160);
    }
}
