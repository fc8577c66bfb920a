//! How a surplus of delay is lost again: pauses first, and speech a little faster with its pitch kept.

use super::pitch;

/// Decides, slot by slot, how much to take out of what is about to be sent.
#[derive(Debug)]
pub(super) struct CatchUp {
    rate: u32,
    /// Whether speech is being compressed.
    running: bool,
    /// What may be taken out by now without going faster than [`FULL_SPEED`] allows, in samples.
    allowance: usize,
    /// The loudest of the last seconds.
    loud: u16,
    /// Quiet sent in the present pause, in samples.
    pause: usize,
}

/// What to take out of the front of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// How many samples.
    pub(super) samples: usize,
    /// Over how many to blend.
    pub(super) blend: usize,
    /// Whether it is speech.
    pub(super) speech: bool,
}

impl CatchUp {
    pub(super) fn new(rate: u32) -> Self {
        Self { rate, running: false, allowance: 0, loud: 0, pause: 0 }
    }

    /// Something was sent in a slot.
    pub(super) fn sent(&mut self, peak: u16, samples: usize) {
        self.pause = if peak <= self.quiet_peak() { self.pause + samples } else { 0 };
        self.loud = peak.max(self.loud - self.loud.div_ceil(256));
    }

    /// What to take out of `ahead` before the next frame is sent, when `surplus` samples are too many. At least
    /// `frame` samples stay.
    pub(super) fn next(&mut self, ahead: &[i16], surplus: usize, frame: usize) -> Option<Cut> {
        let most = surplus.min(ahead.len().saturating_sub(frame));
        if let Some(cut) = self.cut_pause(ahead, most) {
            return Some(cut);
        }
        self.cut_speech(ahead, surplus, most)
    }

    /// The rest of a pause that has been heard as one.
    fn cut_pause(&self, ahead: &[i16], most: usize) -> Option<Cut> {
        if self.pause < self.samples(PAUSE_KEPT) {
            return None;
        }
        let peak = self.quiet_peak();
        let quiet = ahead.iter().take_while(|sample| sample.unsigned_abs() <= peak).count();
        // Words begin softly: what leads up to one stays.
        let lead_in = if quiet < ahead.len() { self.samples(LEAD_IN) } else { 0 };
        let samples = most.min(quiet.saturating_sub(lead_in));
        let blend = self.samples(BLEND);
        (samples >= blend).then_some(Cut { samples, blend, speech: false })
    }

    /// One pitch period of speech, as often as the speed allows.
    fn cut_speech(&mut self, ahead: &[i16], surplus: usize, most: usize) -> Option<Cut> {
        self.running = surplus > self.samples(if self.running { STOP } else { START });
        if !self.running {
            self.allowance = 0;
            return None;
        }
        let speed = if surplus > self.samples(FAR) { FULL_SPEED } else { HALF_SPEED };
        let longest = pitch::longest(self.rate);
        self.allowance = (self.allowance + self.samples(speed)).min(longest);
        let (lag, similarity) = pitch::cut(ahead, self.allowance.min(most), self.rate)?;
        // A poor fit waits until longer periods have been allowed for.
        if similarity < GOOD_FIT && self.allowance < longest {
            return None;
        }
        self.allowance -= lag;
        Some(Cut { samples: lag, blend: pitch::window(self.rate), speech: true })
    }

    /// What counts as quiet beside the speech of the last seconds.
    fn quiet_peak(&self) -> u16 {
        (self.loud / QUIET_SHARE).min(crate::pcm::QUIET_PEAK)
    }

    fn samples(&self, millis: usize) -> usize {
        self.rate as usize * millis / 1_000
    }
}

/// What a pause keeps at its start, in ms: still a pause, to the ear and to the engine.
const PAUSE_KEPT: usize = 100;
/// What it keeps before the next word, in ms.
const LEAD_IN: usize = 20;
/// What two pieces of a pause are blended over, in ms.
const BLEND: usize = 5;
/// Speech is compressed from this surplus on, in ms: less waits for a pause…
const START: usize = 20;
/// …until it is down to this.
const STOP: usize = 5;
/// Above this surplus, in ms, at full speed.
const FAR: usize = 80;
/// 8 ms out of each slot: 1.4 times.
const FULL_SPEED: usize = 8;
/// 4 ms out of each slot: 1.2 times.
const HALF_SPEED: usize = 4;
/// 24 dB below the loudest is a pause.
const QUIET_SHARE: u16 = 16;
/// The correlation of voiced speech with itself a period later.
const GOOD_FIT: f32 = 0.7;
