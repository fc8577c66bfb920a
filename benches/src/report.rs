//! From marks to figures, and what a run's JSON says besides them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::follow::Followed;
use crate::{FRAME, Failed};

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
        Self {
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

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "marks": self.marks, "p50_ms": self.p50, "p50_spread_ms": [self.spread.0, self.spread.1], "p95_ms": self.p95,
            "p99_ms": self.p99, "max_ms": self.max, "jitter_p99_ms": self.jitter, "missing_percent": self.missing,
        })
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

/// The machine, the commit, the load and the versions of a run.
pub fn circumstances(python: &Path) -> Value {
    let model = read("/proc/cpuinfo");
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    json!({
        "processor": model.trim_start_matches(['\t', ' ', ':']),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>(),
        "commit": output(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"])),
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        "rustc": output(Command::new("rustc").arg("--version")),
        "python": output(Command::new(python).arg("--version")),
        "aiortc": output(Command::new(python).args(["-c", "import aiortc; print(aiortc.__version__)"])),
    })
}

/// Writes a run's JSON to `folder`, and answers where.
///
/// # Errors
/// When the folder cannot be written to.
pub fn store(folder: &Path, name: &str, report: &Value) -> Result<std::path::PathBuf, Failed> {
    let file = folder.join(format!("{name}.json"));
    std::fs::create_dir_all(folder).map_err(Failed::to("write the report"))?;
    std::fs::write(&file, format!("{report:#}\n")).map_err(Failed::to("write the report"))?;
    Ok(file)
}

fn at(mark: &Followed) -> Duration {
    FRAME * mark.frame as u32
}

fn delay(mark: &Followed) -> Option<f64> {
    mark.delay.map(ms)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value that a `share` of the sorted `values` does not exceed (nearest rank).
fn rank(values: &[f64], share: f64) -> f64 {
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

fn output(command: &mut Command) -> String {
    command.output().map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(delays: impl Iterator<Item = Option<u64>>) -> Vec<Followed> {
        let mark = |(frame, delay): (usize, Option<u64>)| Followed { frame, delay: delay.map(Duration::from_millis) };
        (0..).zip(delays).map(mark).collect()
    }

    #[test]
    fn figures_are_ranks_of_what_was_heard() {
        let figures = Figures::of(&[round((1..=100).map(Some)), round([Some(200), None].into_iter())]);
        assert_eq!(figures.marks, 102);
        assert_eq!((figures.p50, figures.p95, figures.p99, figures.max), (51.0, 96.0, 100.0, 200.0));
        assert_eq!(figures.spread, (50.0, 200.0));
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
