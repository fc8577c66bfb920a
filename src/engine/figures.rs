//! How figures are written: sound and time in milliseconds, distributions as percentiles.

use std::time::Duration;

use serde_json::{Value, json};
use watch_audio_media::stats::{Histogram, Percentiles};

/// A length of sound, in whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A distribution of times, in milliseconds to the hundredth. All zero before the first.
pub(super) fn percentiles(times: &Histogram) -> Value {
    let Percentiles { p50, p95, p99, max, .. } = times.percentiles();
    let rounded = |ms: f64| (ms * 100.0).round() / 100.0;
    json!({"p50": rounded(p50), "p95": rounded(p95), "p99": rounded(p99), "max": rounded(max)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_to_the_hundredth() {
        assert_eq!(percentiles(&Histogram::new()), json!({"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}));
        let mut times = Histogram::new();
        for _ in 0..99 {
            times.record(Duration::from_micros(40));
        }
        times.record(Duration::from_nanos(12_345_678));
        assert_eq!(percentiles(&times), json!({"p50": 0.04, "p95": 0.04, "p99": 0.04, "max": 12.35}));
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
