//! What is sent when the sound stops short: its last pitch period again and again, fading.

use super::pitch;
use crate::join;

/// The end of what was sent, and the fade that may follow it.
#[derive(Debug)]
pub(super) struct Tail {
    rate: u32,
    /// The last samples sent.
    past: Vec<i16>,
    /// What is repeated: one period, its end made to lead into its start. Empty when there is nothing to fade.
    period: Vec<i16>,
    /// The step from the sound's last sample to the period, spread over its first samples.
    step: i32,
    at: usize,
}

impl Tail {
    pub(super) fn new(rate: u32) -> Self {
        let keep = pitch::reach(rate);
        let period = Vec::with_capacity(pitch::longest(rate));
        Self { rate, past: Vec::with_capacity(keep), period, step: 0, at: 0 }
    }

    /// Real sound was sent.
    pub(super) fn remember(&mut self, sent: &[i16]) {
        self.period.clear();
        let keep = pitch::reach(self.rate);
        let sent = &sent[sent.len().saturating_sub(keep)..];
        let surplus = (self.past.len() + sent.len()).saturating_sub(keep);
        self.past.drain(..surplus);
        self.past.extend_from_slice(sent);
    }

    /// The sound stops short here.
    pub(super) fn start(&mut self) {
        self.at = 0;
        self.period.clear();
        let lag = pitch::period(&self.past, self.rate);
        if lag == 0 {
            return;
        }
        let (before, period) = self.past.split_at(self.past.len() - lag);
        self.period.extend_from_slice(period);
        let (Some(last), Some(led_in)) = (period.last(), before.last()) else { return };
        self.step = i32::from(*last) - i32::from(*led_in);
        // Toward its end the period turns into what stood before its start.
        let blend = self.blend();
        let end = &before[before.len() - blend..];
        for (index, (sample, lead)) in self.period[lag - blend..].iter_mut().zip(end).enumerate() {
            let weight = (index + 1) as i32;
            let total = blend as i32;
            *sample = ((i32::from(*sample) * (total - weight) + i32::from(*lead) * weight) / total) as i16;
        }
    }

    /// Whether nothing is left of the sound.
    pub(super) fn is_over(&self) -> bool {
        self.period.is_empty() || self.at >= self.length()
    }

    /// Appends `count` samples: what is left of the fade, then silence.
    pub(super) fn append(&mut self, count: usize, out: &mut Vec<i16>) {
        let (length, blend) = (self.length(), self.blend());
        for _ in 0..count {
            if self.is_over() {
                out.push(0);
                continue;
            }
            let step = self.step * blend.saturating_sub(self.at) as i32 / (blend as i32 + 1);
            let sample = i32::from(self.period[self.at % self.period.len()]) + step;
            let faded = sample * (length - self.at) as i32 / (length as i32 + 1);
            out.push(faded.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16);
            self.at += 1;
        }
    }

    /// Sound resumes: fades it in over what is left of the fade.
    pub(super) fn resume(&mut self, samples: &mut [i16], scratch: &mut Vec<i16>) {
        scratch.clear();
        self.append(join::length(self.rate).min(samples.len()), scratch);
        join::cross(scratch, samples);
        self.period.clear();
    }

    fn blend(&self) -> usize {
        self.period.len() / 2
    }

    /// 20 ms.
    fn length(&self) -> usize {
        self.rate as usize / 50
    }
}
