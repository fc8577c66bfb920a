//! How long sound takes down and up, on good and bad networks, and what is missing of it; how long a call takes to start.
//! The baseline's helper, ours, and our whole bridge with relay, sealing and Watch, in turn, in one run.
//!
//! `cargo bench --bench latency` measures all in about twenty minutes. In pieces: `-- --condition loss`, `-- --only
//! bridge`; they come together in one record. `-- --smoke` only shows that each can run, in a few seconds.

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use watch_audio_benches::barge_in::{self, BargeIn};
use watch_audio_benches::bridge::Relay;
use watch_audio_benches::call::{self, Call, Sound};
use watch_audio_benches::follow::Followed;
use watch_audio_benches::marks::Marks;
use watch_audio_benches::network::Network;
use watch_audio_benches::record::{Cell, Kind, Line, Record, Series, Table};
use watch_audio_benches::report::{self, Figures, median, ms};
use watch_audio_benches::subject::{Subject, Way};
use watch_audio_benches::{FRAME, Failed, baseline, exit_code};

#[derive(Parser)]
struct Arguments {
    /// One short call each on a clean network: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// Calls of each under each condition.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of sound in each call under a steady condition.
    #[arg(long, default_value_t = 12)]
    seconds: u32,
    /// Only those whose name contains this: `baseline`, `ours`, `bridge`, `Opus`.
    #[arg(long, default_value = "")]
    only: String,
    /// Only the conditions whose name contains this, `barge-in` among them.
    #[arg(long, default_value = "")]
    condition: String,
    /// Our program, when it is not the one built with the bench.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_watch-audio"))]
    program: PathBuf,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code("latency", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let baseline = baseline::subject(&target)?;
    let mut record = Record::new("latency");
    record.measures(&arguments.program);
    record.baseline(Path::new(&baseline.command[0]));

    let wanted = |subject: &Subject| subject.name.contains(&arguments.only);
    let subjects = [baseline].into_iter().chain(Subject::ours(&arguments.program));
    let subjects: Vec<Subject> = subjects.filter(wanted).collect();
    let (rounds, seconds) = if arguments.smoke { (1, 2) } else { (arguments.rounds, arguments.seconds) };
    let conditions = if arguments.smoke { &CONDITIONS[..1] } else { &CONDITIONS[..] };
    let relay = Relay::start(&arguments.program)?;
    let mut measured = Vec::new();
    for condition in conditions.iter().filter(|condition| condition.name.contains(&arguments.condition)) {
        measured.push(Measured::take(condition, &subjects, &relay, rounds, seconds)?);
    }

    let barge_ins = match BARGE_IN.contains(&arguments.condition) {
        true => barge_ins(&subjects, &relay, if arguments.smoke { (1, 1) } else { (BARGED_CALLS, BARGE_INS) })?,
        false => Vec::new(),
    };

    record.tables = DIRECTIONS.iter().flat_map(|direction| direction.tables(&measured, &subjects)).collect();
    record.tables.extend(start_table(&measured, &subjects));
    record.tables.extend((!barge_ins.is_empty()).then(|| barge_in_table(&barge_ins)));
    record.series = measured.iter().flat_map(|measured| measured.series(&subjects)).collect();
    for table in &record.tables {
        println!("{}", table.text());
    }
    println!("\n{}", record.store(&target)?.display());
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

struct Direction {
    name: &'static str,
    note: &'static str,
    marks: fn(&Call) -> &[Followed],
}

impl Measured {
    fn take(
        condition: &'static Condition,
        subjects: &[Subject],
        relay: &Relay,
        rounds: usize,
        seconds: u32,
    ) -> Result<Self, Failed> {
        let length = if condition.event().is_some() { EVENT_CALL } else { Duration::from_secs(seconds.into()) };
        let sound = Sound::new(Marks::new((length.as_millis() / FRAME.as_millis()) as usize))?;
        let mut calls: Vec<Vec<Call>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (subject, calls) in subjects.iter().zip(&mut calls) {
                eprintln!("{}, round {} of {rounds}: {}", condition.name, round + 1, subject.name);
                let call = call::hold(subject, relay, &sound, condition.network, SEED + round as u64);
                calls.push(call.map_err(|error| Failed(format!("{}, {}: {error}", subject.name, condition.name)))?);
            }
        }
        Ok(Self { condition, calls })
    }

    fn marks(&self, subject: usize, direction: &Direction) -> Vec<Vec<Followed>> {
        self.calls[subject].iter().map(|call| (direction.marks)(call).to_vec()).collect()
    }

    fn figures(&self, subject: usize, direction: &Direction) -> Figures {
        Figures::of(&self.marks(subject, direction))
    }

    /// The delay over time of the first round where something happens in it, else how the delays are spread.
    fn series(&self, subjects: &[Subject]) -> Vec<Series> {
        let through_time = self.condition.event().is_some();
        let series = |direction: &Direction| {
            let line = |(n, subject): (usize, &Subject)| {
                let marks = self.marks(n, direction);
                if through_time {
                    return Line { name: subject.name.to_owned(), points: over_time(&marks[0]) };
                }
                Line::cdf(
                    subject.name,
                    &marks.iter().flatten().filter_map(|mark| mark.delay.map(ms)).collect::<Vec<_>>(),
                )
            };
            let label = |time: &str, delay: &str| if through_time { time.to_owned() } else { delay.to_owned() };
            Series {
                title: format!("{}: delay, {}", direction.name, self.condition.name),
                x_label: label("time, s", "delay, ms"),
                y_label: label("delay, ms", "share of the marks"),
                kind: if through_time { Kind::Line } else { Kind::Cdf },
                lines: subjects.iter().enumerate().map(line).collect(),
            }
        };
        DIRECTIONS.iter().map(series).collect()
    }
}

impl Condition {
    /// From when to when something happens once, after which the delay is of interest.
    fn event(&self) -> Option<(Duration, Duration)> {
        let lost = self.network.lose_one.map(|at| (at, at));
        self.network.stall.map(|(from, length)| (from, from + length)).or(lost)
    }
}

impl Direction {
    fn tables(&self, measured: &[Measured], subjects: &[Subject]) -> Vec<Table> {
        let mut delays = Table::new(
            &format!("{}: delay", self.name),
            self.note,
            &[
                "condition",
                "subject",
                "p50, ms",
                "lowest round",
                "highest round",
                "p95, ms",
                "p99, ms",
                "max, ms",
                "p50 to the baseline's",
                "neighbours p99, ms",
                "sample to sample p50, ms",
                "missing, %",
                "marks",
            ],
        );
        let mut after = Table::new(
            &format!("{}: what an event leaves behind", self.name),
            "How much longer sound takes than before it, so long after it was over: medians of a second.",
            &["event", "subject", "+1 s, ms", "+5 s, ms", "+15 s, ms", "missing, %", "marks"],
        );
        for measured in measured {
            let figures: Vec<Figures> = (0..subjects.len()).map(|n| measured.figures(n, self)).collect();
            for (n, (subject, figures)) in subjects.iter().zip(&figures).enumerate() {
                let mut row: Vec<Cell> = vec![measured.condition.name.into(), subject.name.into()];
                let (missing, marks) = (figures.missing.into(), (figures.marks as f64).into());
                if let Some((began, over)) = measured.condition.event() {
                    let rounds = measured.marks(n, self);
                    row.extend(AFTER.map(|after| report::extra(&rounds, began, over, after).into()));
                    row.extend([missing, marks]);
                    after.rows.push(row);
                    continue;
                }
                let baseline = subjects.iter().position(|subject| subject.name == "baseline");
                let ratio = baseline.map_or(f64::NAN, |baseline| measured.figures(baseline, self).p50);
                let Figures { p50, spread: (low, high), p95, p99, max, jitter, sample_to_sample, .. } = figures;
                let figures = [*p50, *low, *high, *p95, *p99, *max, p50 / ratio, *jitter, *sample_to_sample];
                row.extend(figures.map(Cell::from));
                row.extend([missing, marks]);
                delays.rows.push(row);
            }
        }
        [delays, after].into_iter().filter(|table| !table.rows.is_empty()).collect()
    }
}

/// From all calls, whatever their network: none is bad before the call stands.
fn start_table(measured: &[Measured], subjects: &[Subject]) -> Option<Table> {
    let columns = [
        "subject",
        "spawn to offer, ms",
        "lowest",
        "highest",
        "answer to connected, ms",
        "lowest",
        "highest",
        "spawn to first sound, ms",
        "lowest",
        "highest",
        "calls",
    ];
    let note = "Medians. A bridge reaches its relay and is joined by its Watch before it is asked for an offer; it is \
                connected when the Watch is told `started`. The engine answers at once and plays from its first moment.";
    let mut table = Table::new("Start of a call", note, &columns);
    for (n, subject) in subjects.iter().enumerate() {
        let calls: Vec<&Call> = measured.iter().flat_map(|measured| &measured.calls[n]).collect();
        let steps: [fn(&Call) -> Duration; 3] = [|call| call.offer, |call| call.connected, |call| call.first_sound];
        let mut row: Vec<Cell> = vec![subject.name.into()];
        for step in steps {
            let times = report::sorted(calls.iter().map(|call| ms(step(call))));
            row.extend(
                [median(times.iter().copied()), report::rank(&times, 0.0), report::rank(&times, 1.0)].map(Cell::from),
            );
        }
        row.push((calls.len() as f64).into());
        table.rows.push(row);
    }
    (!measured.is_empty()).then_some(table)
}

/// Barge-ins on Grok through the bridge, without and with the `playout` extension. No helper holds Grok's calls.
fn barge_ins(
    subjects: &[Subject],
    relay: &Relay,
    (calls, count): (usize, usize),
) -> Result<Vec<(&'static str, Vec<BargeIn>)>, Failed> {
    let Some(bridge) = subjects.iter().find(|subject| subject.way == Way::Bridge { opus: false }) else {
        return Ok(Vec::new());
    };
    let take = |(name, playout): (&'static str, bool)| {
        eprintln!("{BARGE_IN}: {name}");
        let taken = barge_in::hold_many(bridge, relay, playout, calls, count);
        Ok((name, taken.map_err(|error| Failed(format!("{name}: {error}")))?))
    };
    [("without playout", false), ("with playout", true)].into_iter().map(take).collect()
}

fn barge_in_table(barge_ins: &[(&'static str, Vec<BargeIn>)]) -> Table {
    let note = "From the engine's notice, handed to its socket, to the Watch: to the last sound of the old reply (0 when it \
                had come before), and to the message behind which nothing old came; the way through the relay is in \
                both. The error is what the engine was told of the reply less what the Watch had played of it.";
    let columns = [
        "Watch",
        "last old sound p50, ms",
        "p99, ms",
        "max, ms",
        "nothing old after p50, ms",
        "p99, ms",
        "max, ms",
        "old sound behind it",
        "truncation error p50, ms",
        "p99, ms",
        "max, ms",
        "mean with sign, ms",
        "barge-ins",
    ];
    let mut table = Table::new("Barge-ins on Grok", note, &columns);
    for (name, taken) in barge_ins {
        let spread = |value: &dyn Fn(&BargeIn) -> f64| {
            let values = report::sorted(taken.iter().map(value));
            [0.5, 0.99, 1.0].map(|share| Cell::from(report::rank(&values, share)))
        };
        let error = |barge_in: &BargeIn| barge_in.told_ms - barge_in.heard_ms;
        let mut row: Vec<Cell> = vec![(*name).into()];
        row.extend(spread(&|barge_in| ms(barge_in.last_old)));
        row.extend(spread(&|barge_in| ms(barge_in.told)));
        row.push(f64::from(taken.iter().map(|barge_in| barge_in.stragglers).sum::<u32>()).into());
        row.extend(spread(&|barge_in| error(barge_in).abs()));
        row.push((taken.iter().map(error).sum::<f64>() / taken.len() as f64).into());
        row.push((taken.len() as f64).into());
        table.rows.push(row);
    }
    table
}

/// The delay of each mark, by the time at which it was spoken; a gap where it was not heard.
fn over_time(marks: &[Followed]) -> Vec<(f64, Option<f64>)> {
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let point = |mark: &Followed| {
        (rounded((FRAME * mark.frame as u32).as_secs_f64()), mark.delay.map(|delay| rounded(ms(delay))))
    };
    marks.iter().map(point).collect()
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        name: "Down",
        note: "From the engine's 20 ms frame, encoded, to the PCM on the helper's stdout, or to the message at the Watch. \
               Sample to sample adds what both codecs and the frame cost: from a sample's entry into the engine's \
               track to the same sample in what came out.",
        marks: |call| &call.down,
    },
    Direction {
        name: "Up",
        note: "From the microphone's whole 20 ms at the helper's stdin, or at the Watch, to its RTP packet at the engine. \
               Sample to sample is from a sample's entry into the microphone to the same sample as the engine \
               decodes it.",
        marks: |call| &call.up,
    },
];

/// The last of the conditions.
const BARGE_IN: &str = "barge-in";
/// So many calls at once, each with so many: more than 100 in all.
const BARGED_CALLS: usize = 8;
const BARGE_INS: usize = 14;
/// Late enough for a delay before it, early enough for 15 s after it.
const EVENT: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_millis(1_500);
const CONDITIONS: [Condition; 8] = [
    Condition { name: "clean", network: Network::CLEAN },
    Condition { name: "1 % loss", network: Network::losing(0.01) },
    Condition { name: "5 % loss", network: Network::losing(0.05) },
    Condition { name: "10 % loss", network: Network::losing(0.10) },
    Condition { name: "0 to 60 ms jitter", network: Network::jittery(60.0) },
    Condition { name: "5 % loss and 0 to 60 ms jitter", network: Network::losing(0.05).and_jittery(60.0) },
    Condition { name: "one lost packet", network: Network { lose_one: Some(EVENT), ..Network::CLEAN } },
    Condition { name: "1.5 s stall", network: Network { stall: Some((EVENT, STALL)), ..Network::CLEAN } },
];
const AFTER: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];
/// The sound of a call with an event: [`EVENT`], [`STALL`] and the last of [`AFTER`] fit in.
const EVENT_CALL: Duration = Duration::from_secs(22);
/// Any: each round has its own losses, the same for every subject.
const SEED: u64 = 20;
