//! How long sound takes through the helper, down and up, on good and bad networks; what is missing of it; how long a
//! call takes to start. The baseline and ours in turn, in one run.
//!
//! `cargo bench --bench latency` measures all in about ten minutes; `-- --smoke` only shows that each can run, in a few
//! seconds.

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use watch_audio_benches::call::{self, Call};
use watch_audio_benches::follow::Followed;
use watch_audio_benches::helper::Subject;
use watch_audio_benches::marks::Marks;
use watch_audio_benches::network::Network;
use watch_audio_benches::report::{self, Figures};
use watch_audio_benches::{FRAME, Failed, baseline};

#[derive(Parser)]
struct Arguments {
    /// One short call with each helper on a clean network: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// Calls with each helper under each condition.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of sound in each call under a steady condition.
    #[arg(long, default_value_t = 12)]
    seconds: u32,
    /// Only this helper: `baseline` or `ours`.
    #[arg(long)]
    only: Option<String>,
    /// Only the conditions whose name contains this.
    #[arg(long, default_value = "")]
    condition: String,
    /// Our helper, when it is not the one built with the bench.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_watch-audio"))]
    helper: PathBuf,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let ours = Subject { name: "ours", command: vec![arguments.helper.clone().into(), "helper".into()] };
    let baseline = baseline::subject(&target)?;
    let python = PathBuf::from(&baseline.command[0]);
    let wanted = |subject: &Subject| arguments.only.as_ref().is_none_or(|only| only == subject.name);
    let subjects: Vec<Subject> = [baseline, ours].into_iter().filter(wanted).collect();
    let (rounds, seconds) = if arguments.smoke { (1, 2) } else { (arguments.rounds, arguments.seconds) };
    let conditions = if arguments.smoke { &CONDITIONS[..1] } else { &CONDITIONS[..] };

    let circumstances = report::circumstances(&python);
    let mut measured = Vec::new();
    for condition in conditions.iter().filter(|condition| condition.name.contains(&arguments.condition)) {
        measured.push(Measured::take(condition, &subjects, rounds, seconds)?);
    }
    print(&measured, &subjects);
    let report = json!({
        "bench": "latency", "rounds": rounds, "seconds": seconds, "circumstances": circumstances,
        "conditions": measured.iter().map(|measured| measured.json(&subjects)).collect::<Vec<_>>(),
    });
    println!("\n{}", report::store(&target, "latency", &report)?.display());
    Ok(())
}

/// What the network does during a call.
struct Condition {
    name: &'static str,
    network: Network,
}

/// The calls under one condition, by subject.
struct Measured {
    condition: &'static Condition,
    calls: Vec<Vec<Call>>,
}

impl Measured {
    fn take(condition: &'static Condition, subjects: &[Subject], rounds: usize, seconds: u32) -> Result<Self, Failed> {
        let length = if condition.event().is_some() { EVENT_CALL } else { Duration::from_secs(seconds.into()) };
        let marks = Marks::new((length.as_millis() / FRAME.as_millis()) as usize);
        let mut calls: Vec<Vec<Call>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (subject, calls) in subjects.iter().zip(&mut calls) {
                eprintln!("{}, round {} of {rounds}: {}", condition.name, round + 1, subject.name);
                let call = call::hold(subject, &marks, condition.network, SEED + round as u64);
                calls.push(call.map_err(|error| Failed(format!("{}, {}: {error}", subject.name, condition.name)))?);
            }
        }
        Ok(Self { condition, calls })
    }

    /// The condition's name, for the first of its lines.
    fn name(&self, subject: usize) -> &str {
        if subject == 0 { self.condition.name } else { "" }
    }

    fn figures(&self, subject: usize, direction: &Direction) -> Figures {
        Figures::of(&self.marks(subject, direction))
    }

    /// The extra delay at each of [`AFTER`], for a condition with an event.
    fn extra(&self, subject: usize, direction: &Direction) -> Option<[f64; 3]> {
        let (began, over) = self.condition.event()?;
        let marks = self.marks(subject, direction);
        Some(AFTER.map(|after| report::extra(&marks, began, over, after)))
    }

    fn marks(&self, subject: usize, direction: &Direction) -> Vec<Vec<Followed>> {
        self.calls[subject].iter().map(|call| (direction.marks)(call).to_vec()).collect()
    }

    fn json(&self, subjects: &[Subject]) -> serde_json::Value {
        let subjects = subjects.iter().enumerate().map(|(n, subject)| {
            let calls = &self.calls[n];
            let directions = DIRECTIONS.iter().map(|direction| {
                let mut figures = self.figures(n, direction).json();
                figures["extra_ms_after_1_5_15_s"] = json!(self.extra(n, direction));
                (direction.name.to_owned(), figures)
            });
            let mut all: serde_json::Map<_, _> = directions.collect();
            all.insert("offer_ms".into(), json!(calls.iter().map(|call| report::ms(call.offer)).collect::<Vec<_>>()));
            let connected = calls.iter().map(|call| report::ms(call.connected)).collect::<Vec<_>>();
            all.insert("connected_ms".into(), json!(connected));
            (subject.name.to_owned(), all.into())
        });
        json!({ "name": self.condition.name, "subjects": serde_json::Map::from_iter(subjects) })
    }
}

impl Condition {
    /// From when to when something happens once, after which the delay is of interest.
    fn event(&self) -> Option<(Duration, Duration)> {
        let lost = self.network.lose_one.map(|at| (at, at));
        self.network.stall.map(|(from, length)| (from, from + length)).or(lost)
    }
}

struct Direction {
    name: &'static str,
    title: &'static str,
    marks: fn(&Call) -> &[Followed],
}

fn print(measured: &[Measured], subjects: &[Subject]) {
    for direction in &DIRECTIONS {
        println!("\n{}, ms\n", direction.title);
        row("", "", ["marks", "p50", "of the rounds", "p95", "p99", "max", "jitter p99", "missing"].map(String::from));
        for measured in measured.iter().filter(|measured| measured.condition.event().is_none()) {
            let all: Vec<_> = (0..subjects.len()).map(|n| measured.figures(n, direction)).collect();
            for (n, figures) in all.iter().enumerate() {
                row(measured.name(n), subjects[n].name, cells(figures));
            }
            if let [baseline, ours] = &all[..] {
                row("", "ratio", ratios(ours, baseline));
            }
        }
        if measured.iter().any(|measured| measured.condition.event().is_some()) {
            println!();
            let after = AFTER.map(|after| format!("+{} s", after.as_secs()));
            row("extra delay after", "", after.into_iter().chain(["missing".to_owned()]));
        }
        for measured in measured {
            for (n, subject) in subjects.iter().enumerate() {
                let Some(extra) = measured.extra(n, direction) else { continue };
                let missing = format!("{:.1} %", measured.figures(n, direction).missing);
                let extra = extra.map(|extra| format!("{extra:.1}"));
                row(measured.name(n), subject.name, extra.into_iter().chain([missing]));
            }
        }
    }
    println!("\nStart of a call, ms: median (lowest to highest)\n");
    println!("{:<9} {:>26} {:>26}", "", "spawn to offer", "answer to connected");
    for (n, subject) in subjects.iter().enumerate() {
        let calls = || measured.iter().flat_map(|measured| &measured.calls[n]);
        let offer = range(calls().map(|call| report::ms(call.offer)));
        let connected = range(calls().map(|call| report::ms(call.connected)));
        println!("{:<9} {offer:>26} {connected:>26}", subject.name);
    }
}

fn row(condition: &str, subject: &str, cells: impl IntoIterator<Item = String>) {
    let cells: String = cells.into_iter().map(|cell| format!(" {cell:>CELL$}")).collect();
    println!("{condition:<18} {subject:<9}{cells}");
}

fn cells(figures: &Figures) -> [String; 8] {
    let Figures { marks, p50, spread: (low, high), p95, p99, max, jitter, missing } = figures;
    let ms = |value: &f64| format!("{value:.1}");
    let spread = format!("{low:.1} to {high:.1}");
    [marks.to_string(), ms(p50), spread, ms(p95), ms(p99), ms(max), ms(jitter), format!("{missing:.1} %")]
}

fn ratios(ours: &Figures, baseline: &Figures) -> [String; 7] {
    let ratio = |figure: fn(&Figures) -> f64| format!("{:.3}", figure(ours) / figure(baseline));
    let none = String::new;
    [
        none(),
        ratio(|of| of.p50),
        none(),
        ratio(|of| of.p95),
        ratio(|of| of.p99),
        ratio(|of| of.max),
        ratio(|of| of.jitter),
    ]
}

fn range(values: impl Iterator<Item = f64> + Clone) -> String {
    let (low, high) = values.clone().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    format!("{:.0} ({low:.0} to {high:.0})", report::median(values))
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        name: "down",
        title: "Down: the engine's track to PCM at the helper's stdout",
        marks: |call| &call.down,
    },
    Direction { name: "up", title: "Up: PCM at the helper's stdin to RTP at the engine", marks: |call| &call.up },
];

/// Late enough for a delay before it, early enough for 15 s after it.
const EVENT: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_millis(1_500);
const CONDITIONS: [Condition; 7] = [
    Condition { name: "clean", network: Network::CLEAN },
    Condition { name: "1 % loss", network: Network::losing(0.01) },
    Condition { name: "5 % loss", network: Network::losing(0.05) },
    Condition { name: "10 % loss", network: Network::losing(0.10) },
    Condition { name: "0 to 60 ms jitter", network: Network::jittery(60.0) },
    Condition { name: "one lost packet", network: Network { lose_one: Some(EVENT), ..Network::CLEAN } },
    Condition { name: "1.5 s stall", network: Network { stall: Some((EVENT, STALL)), ..Network::CLEAN } },
];
const AFTER: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];
/// The sound of a call with an event: [`EVENT`], [`STALL`] and the last of [`AFTER`] fit in.
const EVENT_CALL: Duration = Duration::from_secs(22);
/// Wide enough for a spread.
const CELL: usize = 14;
/// Any: each round has its own losses, the same for every helper.
const SEED: u64 = 20;
