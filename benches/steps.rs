//! What each step of the way of a sound costs: microseconds and instructions for a frame of 20 ms, by itself and summed
//! up to calls. The groups are `codec`, `seal`, `core` and `network`.
//!
//! `cargo bench --bench steps` takes three minutes; `-- codec` only does that group; `-- --smoke` shows that each step
//! can run, in a few seconds. Instructions are counted under valgrind, where there is one (`.ci/setup --bench`).

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use watch_audio_benches::record::{Cell, Kind, Line, Record, Series, Table};
use watch_audio_benches::steps::{Call, Group, Step, all, counted};
use watch_audio_benches::{Failed, exit_code, report};

#[derive(Parser)]
struct Arguments {
    /// Only these groups: `codec`, `seal`, `core`, `network`.
    groups: Vec<String>,
    /// A few frames of each step: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// Does this one step and says nothing: what callgrind looks at.
    #[arg(long, requires = "frames", hide = true)]
    step: Option<String>,
    /// For so many frames.
    #[arg(long, hide = true)]
    frames: Option<u32>,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code("steps", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    if let (Some(name), Some(frames)) = (&arguments.step, arguments.frames) {
        let step = all().into_iter().find(|step| step.name == name);
        return step.map_or(Ok(()), |step| (step.run)(frames).map(drop));
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let wanted = |group: Group| arguments.groups.is_empty() || arguments.groups.iter().any(|name| name == group.name());
    if !Group::ALL.into_iter().any(wanted) {
        return Err(Failed("the groups are codec, seal, core and network".to_owned()));
    }
    let mut record = Record::new("steps");
    let counts = counted::possible();
    if counts {
        record.version("valgrind", Command::new("valgrind").arg("--version"));
    }
    let mut measured = Vec::new();
    for step in all().into_iter().filter(|step| wanted(step.group)) {
        eprintln!("{}: {}", step.group.name(), step.name);
        measured.push(Measured::take(step, arguments.smoke, counts, &target)?);
    }
    let note = match counts {
        true => "a frame is 20 ms; instructions as callgrind counts them, in user mode",
        false => "a frame is 20 ms; without valgrind no instructions were counted (.ci/setup --bench)",
    };
    for group in Group::ALL.into_iter().filter(|group| wanted(*group)) {
        let title = format!("The steps of {}", group.name());
        let mut table = Table::new(&title, note, &["step", "µs a frame", "instructions a frame"]);
        for one in measured.iter().filter(|one| one.step.group == group) {
            table.rows.push(vec![one.step.name.into(), one.micros.into(), one.instructions.round().into()]);
        }
        record.tables.push(table);
    }
    // A sum needs all of its steps.
    if arguments.groups.is_empty() {
        record.tables.extend(Call::ALL.map(|call| sum(call, &measured)));
        record.series.push(plot(&measured));
    }
    for table in &record.tables {
        println!("{}", table.text());
    }
    println!("\n{}", record.store(&target)?.display());
    Ok(())
}

/// What one step showed, for a frame. What it takes to wait for a packet is not the packet's cost: of the live steps all
/// but the first are what they take more than that.
struct Measured {
    step: Step,
    micros: f64,
    instructions: f64,
}

impl Measured {
    fn take(step: Step, smoke: bool, counts: bool, target: &Path) -> Result<Self, Failed> {
        let (frames, rounds) = match (smoke, step.live) {
            (true, true) => (10, 1),
            (true, false) => (50, 1),
            (false, true) => (250, 1),
            (false, false) => (1_000, 11),
        };
        // Caches and frequency settle.
        if !step.live {
            (step.run)(frames)?;
        }
        let times: Result<Vec<f64>, Failed> =
            (0..rounds).map(|_| Ok((step.run)(frames)?.as_secs_f64() * 1e6 / f64::from(frames))).collect();
        // One step shows that counting works.
        let instructions = match counts && (!smoke || step.name == all()[0].name) {
            true => counted::instructions(&step, if step.live { 100 } else { 200 }, target)?,
            false => f64::NAN,
        };
        Ok(Self { step, micros: report::median(times?.into_iter()), instructions })
    }
}

/// A call as the sum of its steps.
fn sum(call: Call, measured: &[Measured]) -> Table {
    let parts: Vec<(&str, f64, f64)> = parts(call, measured);
    let all = |of: fn(&(&str, f64, f64)) -> f64| parts.iter().map(of).sum::<f64>();
    let (micros, instructions) = (all(|part| part.1), all(|part| part.2));
    let columns = ["step", "µs a frame", "of the sum, %", "of a core, %", "instructions a frame"];
    let title = format!("Where a call's processor time goes: {}", call.name());
    let mut table = Table::new(&title, "both ways, 50 frames a second", &columns);
    let row = |name: &str, time: f64, count: f64| {
        let figures = [time, 100.0 * time / micros, time * FRAMES_A_SECOND / 1e4, count.round()];
        std::iter::once(Cell::from(name)).chain(figures.map(Cell::from)).collect()
    };
    let mut by_time = parts.clone();
    by_time.sort_by(|a, b| b.1.total_cmp(&a.1));
    table.rows.extend(by_time.iter().map(|(name, time, count)| row(name, *time, *count)));
    table.rows.push(row("the sum", micros, instructions));
    table
}

fn parts(call: Call, measured: &[Measured]) -> Vec<(&str, f64, f64)> {
    let idle = measured.iter().find(|one| one.step.live);
    let (idle_micros, idle_instructions) = idle.map_or((0.0, 0.0), |idle| (idle.micros, idle.instructions));
    let ours = measured.iter().filter(|one| one.step.part_of.contains(&call));
    ours.map(|one| match one.step.live && idle.is_some_and(|idle| idle.step.name != one.step.name) {
        true => (one.step.name, more(one.micros, idle_micros), more(one.instructions, idle_instructions)),
        false => (one.step.name, one.micros, one.instructions),
    })
    .collect()
}

/// By how much `all` is more than `idle`; not a number where either is not.
fn more(all: f64, idle: f64) -> f64 {
    (all - idle).clamp(0.0, f64::INFINITY)
}

fn plot(measured: &[Measured]) -> Series {
    let lines = parts(Call::Pcm, measured).into_iter().chain(parts(Call::Opus, measured));
    let mut all: Vec<(&str, f64)> = Vec::new();
    for (name, micros, _) in lines {
        if !all.iter().any(|(known, _)| *known == name) {
            all.push((name, micros));
        }
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    Series {
        title: "Cost of each step of a GPT-Live call".to_owned(),
        x_label: String::new(),
        y_label: "µs a frame".to_owned(),
        kind: Kind::Bars,
        lines: all
            .into_iter()
            .map(|(name, micros)| Line { name: name.to_owned(), points: vec![(0.0, Some(micros))] })
            .collect(),
    }
}

const FRAMES_A_SECOND: f64 = 50.0;
