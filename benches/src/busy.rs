//! How busy each core is.

/// How long each core has been busy and idle since the machine started.
#[derive(Debug, Clone)]
pub struct Busy(Vec<(f64, f64)>);

impl Busy {
    /// As of now; of no core where `/proc/stat` is not to be had.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let cores = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
        let core = |line: &str| {
            let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
            // User, nice, system, idle, waiting for IO, interrupts, soft interrupts, stolen; guests are in the first two.
            let idle = ticks.iter().skip(3).take(2).sum::<f64>();
            (ticks.iter().take(8).sum::<f64>() - idle, idle)
        };
        Self(cores.map(core).collect())
    }

    /// The share of the time since `before` in which `core` was busy, in percent.
    pub fn since(&self, before: &Self, core: usize) -> f64 {
        let (Some(now), Some(then)) = (self.0.get(core), before.0.get(core)) else { return f64::NAN };
        let (busy, idle) = (now.0 - then.0, now.1 - then.1);
        100.0 * busy / (busy + idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_all_but_idle_and_waiting() {
        let before =
            Busy::parse("cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 100 0 50 800 50 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n");
        let after =
            Busy::parse("cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 110 5 60 850 60 10 5 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(after.since(&before, 0), 40.0);
        assert!(after.since(&before, 1).is_nan() && after.since(&before, 2).is_nan());
    }
}
