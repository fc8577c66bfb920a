//! How many calls one core carries, and what each costs it in processor time and memory: the helpers in turn, then the
//! whole bridge.
//!
//! `cargo bench --bench capacity` takes six minutes; `-- --smoke` only shows that each can run, in a few seconds. The
//! subjects have one core to themselves, their peers another.

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use watch_audio_benches::crowd::{Calls, Measured, measure};
use watch_audio_benches::machine::disk;
use watch_audio_benches::record::{Cell, Kind, Line, Record, Series, Table};
use watch_audio_benches::subject::Subject;
use watch_audio_benches::{Failed, baseline, cores, exit_code};

#[derive(Parser)]
struct Arguments {
    /// One call of each kind: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// Seconds that each number of calls is watched for.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// The most calls at once.
    #[arg(long, default_value_t = 128)]
    most: usize,
    /// Only the kinds of call whose name contains this: `baseline`, `helper`, `bridge`, `Opus`.
    #[arg(long, default_value = "")]
    only: String,
    /// Our program, when it is not the one built with the bench.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_watch-audio"))]
    program: PathBuf,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code("capacity", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let baseline = baseline::subject(&target)?;
    let python = PathBuf::from(&baseline.command[0]);
    let mut record = Record::new("capacity");
    record.measures(&arguments.program);
    record.baseline(&python);
    let core = cores::of_the_subject();
    cores::leave_the_subjects()?;
    let program = &arguments.program;
    let [helper, pcm, opus] = Subject::ours(program);

    let mut all = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.contains(&arguments.only)) {
        let subject = match *kind {
            BASELINE => &baseline,
            HELPER => &helper,
            BRIDGE => &pcm,
            _ => &opus,
        };
        let calls = Calls::new(subject.clone().on_core(core), program)?;
        let steps = if arguments.smoke { &STEPS[..1] } else { &STEPS[..] };
        let steps = steps.iter().copied().filter(|step| *step <= arguments.most);
        let time = if arguments.smoke { Duration::from_secs(1) } else { Duration::from_secs(arguments.seconds) };
        all.push((*kind, fill(kind, &calls, steps, time)?));
    }
    let sizes = [(BASELINE, disk(&target.join("baseline-env"))), (HELPER, disk(program))];
    record.tables.push(costs(&all, &sizes));
    record.tables.push(steps(&all));
    record.series = plots(&all);
    for table in &record.tables {
        println!("{}", table.text());
    }
    println!("\n{}", record.store(&target)?.display());
    Ok(())
}

/// Adds calls until the core cannot carry them.
fn fill(
    kind: &str,
    calls: &Calls,
    steps: impl Iterator<Item = usize>,
    time: Duration,
) -> Result<Vec<Measured>, Failed> {
    let mut crowd = Vec::new();
    let mut all = Vec::new();
    for step in steps {
        eprintln!("{kind}: {step}");
        let alone = |error: Failed| if all.is_empty() { Err(error) } else { Ok(None) };
        let more = (crowd.len()..step).try_for_each(|_| calls.add().map(|call| crowd.push(call)));
        std::thread::sleep(SETTLE.min(time));
        // A call that cannot be had, or does not last, is as good as lost sound, unless it is the first.
        let measured = match more.and_then(|()| measure(&crowd, time)) {
            Ok(measured) => Some(measured),
            Err(error) => {
                eprintln!("{kind}: {step}: {error}");
                alone(error)?
            }
        };
        let Some(measured) = measured else { break };
        let is_well = measured.is_well();
        all.push(measured);
        if !is_well {
            break;
        }
    }
    Ok(all)
}

fn costs(all: &[(&str, Vec<Measured>)], sizes: &[(&str, u64)]) -> Table {
    let columns = [
        "call",
        "CPU a call-second, ms",
        "wake-ups a call-second",
        "RSS, MiB",
        "PSS, MiB",
        "on disk, MiB",
        "calls on one core",
    ];
    let note = format!(
        "cost of each of {TYPICAL} calls at once; calls on one core: until the jitter at the Watch is above 10 ms at p99, \
         or sound is lost"
    );
    let mut table = Table::new("What a call costs", &note, &columns);
    let figures = |kind: &str, steps: &[Measured]| {
        let typical = steps.iter().rfind(|step| step.calls <= TYPICAL)?;
        let most = steps.iter().rfind(|step| step.is_well()).map_or(f64::NAN, |step| step.calls as f64);
        let size = sizes.iter().find(|(of, _)| *of == kind).map_or(f64::NAN, |(_, size)| *size as f64 / 1_048_576.0);
        Some([typical.cpu_ms, typical.wakes, typical.rss_mib, typical.pss_mib, size, most])
    };
    let row = |name: String, figures: [f64; 6]| {
        std::iter::once(Cell::from(name)).chain(figures.map(Cell::from)).collect::<Vec<_>>()
    };
    let baseline = all.iter().find(|(kind, _)| *kind == BASELINE).and_then(|(kind, steps)| figures(kind, steps));
    for (kind, steps) in all {
        let Some(figures) = figures(kind, steps) else { continue };
        table.rows.push(row((*kind).to_owned(), figures));
        if let Some(baseline) = baseline.filter(|_| *kind != BASELINE) {
            let ratios = std::array::from_fn(|n| figures[n] / baseline[n]);
            table.rows.push(row(format!("{kind}, ratio"), ratios));
        }
    }
    table
}

fn steps(all: &[(&str, Vec<Measured>)]) -> Table {
    let columns = [
        "call",
        "at once",
        "CPU a call-second, ms",
        "of the core, %",
        "jitter p99, ms",
        "down, %",
        "up, %",
        "peers' core, %",
    ];
    let note = "down, up: how much of the sound came to the Watch, to the engine";
    let mut table = Table::new("More and more calls on one core", note, &columns);
    for (kind, steps) in all {
        for step in steps {
            let Measured { calls, cpu_ms, core, jitter_p99_ms, down, up, peers, .. } = step;
            let figures = [*cpu_ms, *core, *jitter_p99_ms, *down, *up, *peers];
            let names = [Cell::from(*kind), Cell::from(calls.to_string())];
            table.rows.push(names.into_iter().chain(figures.map(Cell::from)).collect());
        }
    }
    table
}

fn plots(all: &[(&str, Vec<Measured>)]) -> Vec<Series> {
    let series = |title: &str, y_label: &str, of: fn(&Measured) -> f64| Series {
        title: title.to_owned(),
        x_label: "calls on one core".to_owned(),
        y_label: y_label.to_owned(),
        kind: Kind::Line,
        lines: all
            .iter()
            .map(|(kind, steps)| Line {
                name: (*kind).to_owned(),
                points: steps.iter().map(|step| (step.calls as f64, Some(of(step)))).collect(),
            })
            .collect(),
    };
    vec![
        series("Jitter at the Watch with more and more calls", "p99, ms", |step| step.jitter_p99_ms),
        series("A core with more and more calls", "% of the core", |step| step.core),
    ]
}

const BASELINE: &str = "baseline helper";
const HELPER: &str = "our helper";
const BRIDGE: &str = "our bridge, PCM";
const KINDS: [&str; 4] = [BASELINE, HELPER, BRIDGE, "our bridge, Opus"];
/// As many as a host has slots: what a call costs is told for these.
const TYPICAL: usize = 4;
/// Each some 20 % more.
const STEPS: [usize; 17] = [1, 4, 6, 8, 10, 12, 16, 20, 24, 28, 34, 40, 48, 58, 70, 84, 100];
/// For the calls just added.
const SETTLE: Duration = Duration::from_secs(2);
