//! How long a call is on the page.

use crate::call::Outcome;
use crate::page::scale::Scale;
use crate::playout::RATE;

/// From the first moment of a call to its last, in ms from `started`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Span {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let moments = || outcome.moments.iter().map(|moment| moment.ms);
        let played = outcome.played.len() as i64 * 1000 / i64::from(RATE);
        let said = i64::try_from(outcome.said.end().as_millis()).unwrap_or_default();
        let from = moments().min().unwrap_or_default().min(0);
        let to = moments().max().unwrap_or_default().max(played).max(said);
        Self { from, to: to.max(from + 1) }
    }

    /// How long it is from `started` on, in seconds.
    pub(super) fn seconds_from_zero(&self) -> f64 {
        self.to as f64 / 1000.0
    }

    pub(super) fn length_ms(&self) -> i64 {
        self.to - self.from
    }

    /// Where a moment is, in per cent.
    pub(super) fn place(&self, ms: i64) -> f64 {
        100.0 * (ms - self.from) as f64 / self.length_ms() as f64
    }

    /// Its axis, in seconds.
    pub(super) fn scale(&self) -> Scale {
        Scale::new(self.from as f64 / 1000.0, self.to as f64 / 1000.0)
    }
}
