//! What is sent when the sound stops short: its last pitch period again and again, fading.

use super::pitch;
use crate::join;

/// The end of what was sent, and the fade that may follow it.
#[derive(Debug)]
pub(super) struct Tail {
    rate: u32,
    /// The last samples sent.
    past: Vec<i16>,
    keep: usize,
    /// How far back the repeated piece starts; 0 when nothing is to be repeated.
    lag: usize,
    at: usize,
}

impl Tail {
    pub(super) fn new(rate: u32) -> Self {
        let keep = pitch::reach(rate);
        Self { rate, past: Vec::with_capacity(2 * keep), keep, lag: 0, at: 0 }
    }

    /// Real sound was sent.
    pub(super) fn remember(&mut self, sent: &[i16]) {
        self.lag = 0;
        let sent = &sent[sent.len().saturating_sub(self.keep)..];
        let surplus = (self.past.len() + sent.len()).saturating_sub(self.keep);
        self.past.drain(..surplus);
        self.past.extend_from_slice(sent);
    }

    /// The sound stops short here.
    pub(super) fn start(&mut self) {
        self.lag = pitch::period(&self.past, self.rate);
        self.at = 0;
    }

    /// Whether nothing is left of the sound.
    pub(super) fn is_over(&self) -> bool {
        self.lag == 0 || self.at >= self.length()
    }

    /// Appends `count` samples: what is left of the fade, then silence.
    pub(super) fn append(&mut self, count: usize, out: &mut Vec<i16>) {
        let length = self.length();
        for _ in 0..count {
            let sample = if self.is_over() {
                0
            } else {
                let sample = i32::from(self.past[self.past.len() - self.lag + self.at % self.lag]);
                (sample * (length - self.at) as i32 / (length + 1) as i32) as i16
            };
            out.push(sample);
            self.at += 1;
        }
    }

    /// Sound resumes: fades it in over what is left of the fade.
    pub(super) fn resume(&mut self, samples: &mut [i16], scratch: &mut Vec<i16>) {
        scratch.clear();
        self.append(join::length(self.rate).min(samples.len()), scratch);
        join::cross(scratch, samples);
        self.lag = 0;
    }

    /// 20 ms.
    fn length(&self) -> usize {
        self.rate as usize / 50
    }
}
