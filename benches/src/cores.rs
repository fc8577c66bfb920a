//! Which core does what, and how busy each is.

use std::process::{Command, Stdio};

use crate::Failed;

/// The core for what is measured: the last one.
pub fn of_the_subject() -> usize {
    count() - 1
}

/// Keeps this process, and all that it starts from now on, off the core of what is measured; where there is but one, all
/// share it.
///
/// # Errors
/// When there is no `taskset`, or it refuses.
pub fn leave_the_subjects() -> Result<(), Failed> {
    let rest = match of_the_subject() {
        0 => "0".to_owned(),
        subjects => format!("0-{}", subjects - 1),
    };
    let mut taskset = Command::new("taskset");
    taskset.args(["-a", "-c", "-p", &rest, &std::process::id().to_string()]).stdout(Stdio::null());
    let status = taskset.status().map_err(Failed::to("run taskset"))?;
    if status.success() { Ok(()) } else { Err(Failed("taskset does not move this process".to_owned())) }
}

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

fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
