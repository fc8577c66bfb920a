//! The frames on their way out: in order, the quiet ones left out while there is a surplus to lose.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Frame, FrameKind, lateness};
use crate::join;
use crate::pause::Pause;
use crate::pcm;
use crate::stats::Reception;

/// A queue of frames that is emptied after every step.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    /// Given by the clock for gaps beyond what was missing, in ticks.
    pub(super) surplus: i64,
    /// Left out because of it.
    pub(super) shed: Duration,
    /// Thrown away because nobody took frames.
    pub(super) overflow: u64,
    pause: Pause,
    /// The start of what was left out, to join what follows it without a click.
    cut: Vec<i16>,
    ready: VecDeque<Made>,
    current: Made,
    spare: Vec<Made>,
}

/// A frame being made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) samples: Vec<i16>,
    pub(super) packet: Vec<u8>,
    pub(super) kind: FrameKind,
    peak: u16,
}

impl Default for Made {
    fn default() -> Self {
        Self { samples: Vec::new(), packet: Vec::new(), kind: FrameKind::Silence, peak: 0 }
    }
}

impl Outlet {
    /// An empty frame to fill. Its memory has been used before.
    pub(super) fn blank(&mut self) -> Made {
        let mut blank = self.spare.pop().unwrap_or_default();
        blank.samples.clear();
        blank.packet.clear();
        blank
    }

    /// Takes a frame back that was not needed.
    pub(super) fn recycle(&mut self, made: Made) {
        self.spare.push(made);
    }

    /// Puts a frame of `ticks` out, and counts it; or leaves it out when it is quiet and there is a surplus to lose.
    pub(super) fn put(&mut self, mut made: Made, ticks: i64, seam: usize, reception: &mut Reception) {
        let length = lateness::from_ticks(ticks);
        made.peak = pcm::peak(&made.samples);
        let quiet = made.peak <= pcm::QUIET_PEAK;
        if quiet && self.surplus >= ticks && self.pause.is_long_enough() {
            self.surplus -= ticks;
            self.shed += length;
            if self.cut.is_empty() {
                self.cut.extend_from_slice(&made.samples[..seam.min(made.samples.len())]);
            }
            return self.recycle(made);
        }
        if !self.cut.is_empty() {
            join::cross(&self.cut, &mut made.samples);
            self.cut.clear();
            made.peak = pcm::peak(&made.samples);
        }
        self.pause.played(quiet, length);
        reception.played += length;
        match made.kind {
            FrameKind::Decoded => {}
            FrameKind::Recovered => reception.recovered += length,
            FrameKind::Concealed | FrameKind::Silence => reception.concealed += length,
        }
        if self.ready.len() >= MAX_READY
            && let Some(oldest) = self.ready.pop_front()
        {
            self.overflow += 1;
            self.recycle(oldest);
        }
        self.ready.push_back(made);
    }

    /// The next frame.
    pub(super) fn pop(&mut self) -> Option<Frame<'_>> {
        let next = self.ready.pop_front()?;
        let last = std::mem::replace(&mut self.current, next);
        self.recycle(last);
        let Made { samples, packet, kind, peak } = &self.current;
        Some(Frame { samples, packet, kind: *kind, peak: *peak })
    }
}

/// Ten seconds of usual frames: nobody is taking them.
const MAX_READY: usize = 512;
