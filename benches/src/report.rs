//! From marks to figures.

use std::time::Duration;

use crate::FRAME;
use crate::follow::Followed;

/// The delays of one direction under one condition, from all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Marks played.
    pub marks: usize,
    /// In ms, like all that follow; `NaN` when nothing was heard.
    pub p50: f64,
    /// The lowest and the highest p50 of a round.
    pub spread: (f64, f64),
    /// 95 % were faster.
    pub p95: f64,
    /// 99 % were faster.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
    /// The median from sample to sample, the encoder's frame included (see [`Followed::sample_to_sample`]).
    pub sample_to_sample: f64,
    /// 99 % of neighbouring marks differed by less.
    pub jitter: f64,
    /// The share of the marks that was never heard, in percent.
    pub missing: f64,
}

impl Figures {
    /// Sums up `rounds`.
    pub fn of(rounds: &[Vec<Followed>]) -> Self {
        let delays = sorted(rounds.iter().flatten().filter_map(delay));
        let medians = sorted(rounds.iter().map(|round| median(round.iter().filter_map(delay))));
        let neighbours = rounds.iter().flat_map(|round| round.windows(2)).filter_map(|pair| match pair {
            [before, after] if after.frame == before.frame + 1 => Some((delay(after)? - delay(before)?).abs()),
            _ => None,
        });
        let marks = rounds.iter().map(Vec::len).sum();
        let sample_to_sample = rounds.iter().flatten().filter_map(Followed::sample_to_sample).map(ms);
        Self {
            sample_to_sample: median(sample_to_sample),
            marks,
            p50: rank(&delays, 0.5),
            spread: (rank(&medians, 0.0), rank(&medians, 1.0)),
            p95: rank(&delays, 0.95),
            p99: rank(&delays, 0.99),
            max: rank(&delays, 1.0),
            jitter: rank(&sorted(neighbours), 0.99),
            missing: 100.0 * (marks - delays.len()) as f64 / marks as f64,
        }
    }
}

/// By how many ms the delay `after` an event that was over at `over` exceeds that before it began, at `began`: the median
/// of the marks within half a second, as the median of the rounds.
pub fn extra(rounds: &[Vec<Followed>], began: Duration, over: Duration, after: Duration) -> f64 {
    let half = Duration::from_millis(500);
    let window = over + after - half..over + after + half;
    median(rounds.iter().map(|round| {
        let before = median(round.iter().filter(|mark| at(mark) + half < began).filter_map(delay));
        median(round.iter().filter(|mark| window.contains(&at(mark))).filter_map(delay)) - before
    }))
}

/// The middle of `values`; `NaN` of none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    rank(&sorted(values), 0.5)
}

/// A duration in ms.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

fn at(mark: &Followed) -> Duration {
    FRAME * mark.frame as u32
}

fn delay(mark: &Followed) -> Option<f64> {
    mark.delay.map(ms)
}

/// `values` from the lowest to the highest, without what is no number.
pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value that a `share`, 0 to 1, of the sorted `values` does not exceed (nearest rank).
pub fn rank(values: &[f64], share: f64) -> f64 {
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(delays: impl Iterator<Item = Option<u64>>) -> Vec<Followed> {
        let inside = Duration::from_millis(6);
        let mark =
            |(frame, delay): (usize, Option<u64>)| Followed { frame, delay: delay.map(Duration::from_millis), inside };
        (0..).zip(delays).map(mark).collect()
    }

    #[test]
    fn figures_are_ranks_of_what_was_heard() {
        let figures = Figures::of(&[round((1..=100).map(Some)), round([Some(200), None].into_iter())]);
        assert_eq!(figures.marks, 102);
        assert_eq!((figures.p50, figures.p95, figures.p99, figures.max), (51.0, 96.0, 100.0, 200.0));
        assert_eq!(figures.spread, (50.0, 200.0));
        assert_eq!(figures.sample_to_sample, 77.0);
        assert_eq!(figures.jitter, 1.0);
        assert!((figures.missing - 100.0 / 102.0).abs() < 1e-9);
    }

    #[test]
    fn extra_is_against_the_time_before() {
        let second = Duration::from_secs(1);
        let rounds = [round((0..500).map(|n| Some(if n < 100 { 80 } else { 280 })))];
        assert_eq!(extra(&rounds, 2 * second, 3 * second, second), 200.0);
        assert!(extra(&rounds, 2 * second, 3 * second, 60 * second).is_nan());
    }
}
