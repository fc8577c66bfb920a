//! How a stream fared, in the words of RFC 3611 (section 4.7): loss, discard, concealment, delay, jitter.

use core::time::Duration;

/// What arrived of a packet stream, and what was made of the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reception {
    /// Packets that arrived in time, each counted once.
    pub received: u64,
    /// Packets that never came.
    pub lost: u64,
    /// Packets that came too late to be played, or twice.
    pub discarded: u64,
    /// Sound that was given out, concealment included.
    pub played: Duration,
    /// Of it: made up without any data (packet loss concealment, and the silence after its fade).
    pub concealed: Duration,
    /// Of it: brought back from in-band FEC of the packet after.
    pub recovered: Duration,
}

impl Reception {
    /// The share of packets that never came, 0 to 1 (RFC 3611 4.7.1, loss rate).
    pub fn loss_rate(&self) -> f64 {
        share(self.lost as f64, (self.received + self.lost + self.discarded) as f64)
    }

    /// The share of packets that came but were of no use, 0 to 1 (RFC 3611 4.7.1, discard rate).
    pub fn discard_rate(&self) -> f64 {
        share(self.discarded as f64, (self.received + self.lost + self.discarded) as f64)
    }

    /// The share of the sound that was made up, 0 to 1.
    pub fn conceal_rate(&self) -> f64 {
        share(self.concealed.as_secs_f64(), self.played.as_secs_f64())
    }
}

/// The interarrival jitter of an RTP stream (RFC 3550 section 6.4.1 and appendix A.8).
#[derive(Debug, Clone)]
pub struct Jitter {
    clock_rate: u32,
    last: Option<(Duration, u32)>,
    seconds: f64,
    differences: Histogram,
}

impl Jitter {
    /// Of a stream whose timestamps run at `clock_rate` Hz (Opus: 48,000).
    pub fn new(clock_rate: u32) -> Self {
        Self { clock_rate, last: None, seconds: 0.0, differences: Histogram::new() }
    }

    /// A packet of RTP `timestamp` arrived at `now`.
    pub fn push(&mut self, now: Duration, timestamp: u32) {
        if let Some((before, last)) = self.last {
            // Timestamps wrap, and packets overtake each other: the difference is signed.
            let sent = f64::from(timestamp.wrapping_sub(last) as i32) / f64::from(self.clock_rate);
            let arrived = now.as_secs_f64() - before.as_secs_f64();
            let difference = (arrived - sent).abs();
            self.seconds += (difference - self.seconds) / 16.0;
            self.differences.record(Duration::from_secs_f64(difference));
        }
        self.last = Some((now, timestamp));
    }

    /// Begins anew at a break of the timeline (another SSRC) and keeps the estimate.
    pub fn restart(&mut self) {
        self.last = None;
    }

    /// The estimate so far.
    pub fn value(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// What it is the mean of: by how much each packet came sooner or later after the one before than it was sent.
    pub fn differences(&self) -> &Histogram {
        &self.differences
    }
}

/// Durations by size, for percentiles: to 1.6 % at any size, up to 71 minutes, in 3.5 KB whatever is recorded.
/// Recording allocates nothing.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    count: u64,
    max: Duration,
}

/// The usual extract of a [`Histogram`], in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Percentiles {
    /// How many were recorded; with 0 the rest is 0 too.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// 95 % were at most this.
    pub p95: f64,
    /// 99 % were at most this.
    pub p99: f64,
    /// The largest, exact.
    pub max: f64,
}

impl Histogram {
    /// Nothing recorded.
    pub fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0, max: Duration::ZERO }
    }

    /// Takes in one duration.
    pub fn record(&mut self, value: Duration) {
        let micros = u32::try_from(value.as_micros()).unwrap_or(u32::MAX);
        let count = &mut self.counts[bucket(micros)];
        *count = count.saturating_add(1);
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// Takes in all that `other` recorded.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.saturating_add(*more);
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest, exact.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The duration that a share of `quantile` (0 to 1) does not exceed, by nearest rank; `None` when nothing was
    /// recorded.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let rank = ((quantile * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        self.counts.iter().enumerate().find_map(|(index, count)| {
            below += u64::from(*count);
            (below >= rank).then(|| Duration::from_micros(middle(index)).min(self.max))
        })
    }

    /// Count, p50, p95, p99 and maximum.
    pub fn percentiles(&self) -> Percentiles {
        let ms = |quantile| self.quantile(quantile).map_or(0.0, millis);
        Percentiles { count: self.count, p50: ms(0.50), p95: ms(0.95), p99: ms(0.99), max: millis(self.max) }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Which bucket counts `micros`: below [`LINEAR`] each value has its own, above it each octave is cut into
/// `LINEAR / 2`.
fn bucket(micros: u32) -> usize {
    let shift = (u32::BITS - micros.leading_zeros()).saturating_sub(LINEAR_BITS);
    // With a shift the top bit is set, so the upper half of a linear range follows for each octave.
    (shift as usize) * (LINEAR / 2) + (micros >> shift) as usize
}

/// The middle of what a bucket counts, in microseconds.
fn middle(index: usize) -> u64 {
    let shift = (index / (LINEAR / 2)).saturating_sub(1);
    let lowest = ((index - shift * (LINEAR / 2)) as u64) << shift;
    lowest + ((1 << shift) - 1) / 2
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// 64 values from 0: then a bucket is at most 1/32 of its value wide, so its middle is at most 1.6 % off.
const LINEAR_BITS: u32 = 6;
const LINEAR: usize = 1 << LINEAR_BITS;
/// The linear range and half of one for each further octave of 32 bits.
const BUCKETS: usize = LINEAR + (u32::BITS - LINEAR_BITS) as usize * (LINEAR / 2);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(value: f64) -> Duration {
        Duration::from_secs_f64(value / 1_000.0)
    }

    #[test]
    fn rates_are_shares_of_all_that_was_sent() {
        assert_eq!(Reception::default().loss_rate(), 0.0);
        let reception = Reception {
            received: 90,
            lost: 6,
            discarded: 4,
            played: Duration::from_secs(2),
            concealed: ms(200.0),
            recovered: ms(40.0),
        };
        assert!((reception.loss_rate() - 0.06).abs() < 1e-9);
        assert!((reception.discard_rate() - 0.04).abs() < 1e-9);
        assert!((reception.conceal_rate() - 0.1).abs() < 1e-9);
    }

    #[test]
    fn jitter_is_zero_for_an_even_stream_across_the_wrap() {
        let mut jitter = Jitter::new(48_000);
        for n in 0..200u32 {
            jitter.push(ms(f64::from(n) * 20.0), (u32::MAX - 48_000).wrapping_add(n * 960));
        }
        assert!(jitter.value() < Duration::from_micros(1), "{:?}", jitter.value());
    }

    #[test]
    fn jitter_settles_at_the_mean_difference_of_transit() {
        let mut jitter = Jitter::new(48_000);
        for n in 0..200u32 {
            jitter.push(ms(f64::from(n) * 20.0 + f64::from(n % 2) * 8.0), n * 960);
        }
        assert!((jitter.value().as_secs_f64() - 0.008).abs() < 1e-6, "{:?}", jitter.value());
        let Percentiles { count, p50, max, .. } = jitter.differences().percentiles();
        assert_eq!(count, 199);
        assert!((7.8..8.2).contains(&p50) && (7.99..8.01).contains(&max), "{p50} {max}");
        // A new timeline does not look like hours of jitter.
        jitter.restart();
        jitter.push(ms(4_000.0), 3_000_000_000);
        assert!(jitter.value() < ms(9.0));
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentiles(), Percentiles::default());
        assert_eq!(histogram.quantile(0.5), None);
        for n in 1..=100 {
            histogram.record(ms(f64::from(n)));
        }
        let Percentiles { count, p50, p95, p99, max } = histogram.percentiles();
        assert_eq!((count, max), (100, 100.0));
        for (got, right) in [(p50, 50.0), (p95, 95.0), (p99, 99.0)] {
            assert!((got / right - 1.0).abs() < 0.016, "{got} for {right}");
        }
    }

    #[test]
    fn a_single_value_and_the_extremes_fit() {
        let mut histogram = Histogram::new();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.count(), 1);
        assert_eq!(histogram.max(), Duration::MAX);
        let mut other = Histogram::new();
        other.record(Duration::ZERO);
        other.record(ms(2.5));
        histogram.merge(&other);
        assert_eq!(histogram.count(), 3);
        assert_eq!(histogram.quantile(0.0), Some(Duration::ZERO));
        assert_eq!(histogram.quantile(0.5).map(|value| value.as_micros() / 100), Some(25));
    }

    #[test]
    fn buckets_rise_without_a_gap_and_fill_the_table() {
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
        let mut last = 0;
        for micros in 0..100_000 {
            let index = bucket(micros);
            assert!(index == last || index == last + 1, "{micros}");
            last = index;
        }
    }

    proptest! {
        #[test]
        fn the_middle_of_a_bucket_is_near_every_value_in_it(micros: u32) {
            let middle = middle(bucket(micros)) as f64;
            let off = (middle - f64::from(micros)).abs();
            prop_assert!(off <= 0.016 * f64::from(micros), "{middle} for {micros}");
        }
    }
}
