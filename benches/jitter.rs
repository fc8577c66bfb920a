//! How evenly sound comes out on a clean path, with one call and with many on one core: the baseline's helper, ours, and
//! our bridge with its relay, at the Watch.
//!
//! What is measured has one core for itself; engines, microphones, Watches and the relay have another. How busy both
//! were stands beside the figures: where the peers have no time left, the figures are theirs.

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use watch_audio_benches::bridge::Relay;
use watch_audio_benches::call::{Microphone, Running, Sound};
use watch_audio_benches::cores::{self, Busy};
use watch_audio_benches::engine::Engine;
use watch_audio_benches::marks::Marks;
use watch_audio_benches::network::Network;
use watch_audio_benches::record::{Cell, Kind, Line, Record, Series, Table};
use watch_audio_benches::report::{median, ms, rank, sorted};
use watch_audio_benches::subject::Subject;
use watch_audio_benches::{FRAME, Failed, baseline, exit_code};

#[derive(Parser)]
struct Arguments {
    /// One short call each: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// How many calls at once.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16,32,64")]
    calls: Vec<usize>,
    /// Seconds that are measured of each; longer with few calls, until a thousand messages are due.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Only those whose name contains this: `baseline`, `ours`, `bridge`, `Opus`.
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
    exit_code("jitter", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let baseline = baseline::subject(&target)?;
    let mut record = Record::new("jitter");
    record.measures(&arguments.program);
    record.baseline(Path::new(&baseline.command[0]));

    let core = cores::of_the_subject();
    cores::leave_the_subjects()?;
    let subjects = [baseline].into_iter().chain(Subject::ours(&arguments.program));
    let subjects: Vec<Subject> = subjects
        .filter(|subject| subject.name.contains(&arguments.only))
        .map(|subject| subject.on_core(core))
        .collect();
    let (calls, seconds) = if arguments.smoke { (&[1][..], 1) } else { (&arguments.calls[..], arguments.seconds) };
    let relay = Relay::start(&arguments.program)?;
    let sound = Sound::new(Marks::new(SOUND_FRAMES))?;
    let enough = if arguments.smoke { Duration::ZERO } else { FRAME * ENOUGH };
    let length = |calls: usize| Duration::from_secs(seconds.into()).max(enough / calls.max(1) as u32);
    let mut measured = Vec::new();
    for count in calls {
        for subject in &subjects {
            if subject.name == "baseline" && *count > BASELINE_CALLS {
                continue;
            }
            eprintln!("{count} calls: {}", subject.name);
            let taken = Measured::take(subject, &relay, &sound, *count, length(*count), core);
            measured.push(taken.map_err(|error| Failed(format!("{count} calls, {}: {error}", subject.name)))?);
        }
    }

    record.tables.push(table(&measured));
    record.series = series(&measured);
    for table in &record.tables {
        println!("{}", table.text());
    }
    println!("\n{}", record.store(&target)?.display());
    Ok(())
}

/// What so many calls at once showed.
struct Measured {
    subject: &'static str,
    calls: usize,
    /// When each message came, by call.
    arrivals: Vec<Vec<Instant>>,
    /// Messages that should have come, over all calls.
    due: f64,
    /// How busy the subject's core and the peers' were, in percent.
    busy: (f64, f64),
}

impl Measured {
    fn take(
        subject: &Subject,
        relay: &Relay,
        sound: &Sound,
        count: usize,
        length: Duration,
        core: usize,
    ) -> Result<Self, Failed> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            let mut listeners = Vec::new();
            for n in 0..count {
                let mut call = Running::start(subject, relay)?;
                let (engine, answer) = Engine::answer(&call.offer)?;
                let stop = &stop;
                scope.spawn(move || engine.run(sound.packets(), Network::CLEAN, n as u64, stop));
                call.connect(&answer)?;
                let microphone = call.microphone()?;
                let speech = sound.speech(call.opus());
                scope.spawn(move || speak(microphone, speech.iter().map(|message| &message[..]), stop));
                listeners.push(scope.spawn(move || listen(&call, stop)));
            }
            thread::sleep(SETTLES);
            let (from, before) = (Instant::now(), Busy::now());
            thread::sleep(length);
            let (to, after) = (Instant::now(), Busy::now());
            stop.store(true, Ordering::Relaxed);
            let mut arrivals = Vec::new();
            for listener in listeners {
                let mut came = listener.join().expect("a listener does not panic")?;
                came.retain(|at| (from..to).contains(at));
                arrivals.push(came);
            }
            Ok(Self {
                subject: subject.name,
                calls: count,
                arrivals,
                due: count as f64 * length.as_secs_f64() / FRAME.as_secs_f64(),
                busy: (after.since(&before, core), after.since(&before, 0)),
            })
        })
    }

    /// The times between neighbouring messages of a call, in ms, of all calls.
    fn intervals(&self) -> Vec<f64> {
        let pairs = self.arrivals.iter().flat_map(|call| call.windows(2));
        sorted(pairs.map(|pair| ms(pair[1] - pair[0])))
    }

    /// RFC 3550 section 6.4.1, for messages that are due each 20 ms: each call's mean, in ms.
    fn jitters(&self) -> Vec<f64> {
        let jitter = |call: &Vec<Instant>| {
            let (mut jitter, mut sum) = (0.0, 0.0);
            for pair in call.windows(2) {
                let difference = (ms(pair[1] - pair[0]) - ms(FRAME)).abs();
                jitter += (difference - jitter) / 16.0;
                sum += jitter;
            }
            sum / (call.len() as f64 - 1.0)
        };
        self.arrivals.iter().map(jitter).collect()
    }
}

/// Sends the microphone's sound again and again until `stop`.
fn speak<'a>(mut send: Microphone, speech: impl Iterator<Item = &'a [u8]> + Clone, stop: &AtomicBool) {
    let start = Instant::now();
    for (n, message) in (0..).zip(speech.cycle()) {
        thread::sleep((start + FRAME * n).saturating_duration_since(Instant::now()));
        // A call that is over tells so where it is listened to.
        if stop.load(Ordering::Relaxed) || send(message).is_err() {
            return;
        }
    }
}

/// When each message of sound came, until `stop`.
fn listen(call: &Running, stop: &AtomicBool) -> Result<Vec<Instant>, Failed> {
    let mut arrivals = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match call.output().recv_timeout(FRAME) {
            Ok(message) if message.kind == b'p' => arrivals.push(message.at),
            // The microphone's end, after `stop`, is the call's.
            _ if stop.load(Ordering::Relaxed) => {}
            Ok(message) if message.kind == b'X' => return Err(Failed("the helper ended the call".to_owned())),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failed("the call broke".to_owned())),
        }
    }
    Ok(arrivals)
}

fn table(measured: &[Measured]) -> Table {
    let note = "Times between neighbouring messages of a call, and how far they are from 20 ms; all calls of a subject on \
                one core, on a clean path. RFC 3550's jitter is the median of the calls' means.";
    let columns = [
        "calls",
        "subject",
        "p50, ms",
        "p95, ms",
        "p99, ms",
        "p99.9, ms",
        "max, ms",
        "off 20 ms p99",
        "RFC 3550 jitter, ms",
        "missing, %",
        "its core, % busy",
        "peers' core, % busy",
        "messages",
    ];
    let mut table = Table::new("Inter-arrival at the Watch", note, &columns);
    for measured in measured {
        let intervals = measured.intervals();
        let off = sorted(intervals.iter().map(|interval| (interval - ms(FRAME)).abs()));
        let messages = measured.arrivals.iter().map(Vec::len).sum::<usize>() as f64;
        let mut row: Vec<Cell> = vec![measured.calls.to_string().into(), measured.subject.into()];
        row.extend([0.5, 0.95, 0.99, 0.999, 1.0].map(|share| Cell::from(rank(&intervals, share))));
        row.extend([rank(&off, 0.99), median(measured.jitters().into_iter())].map(Cell::from));
        let missing = (100.0 * (1.0 - messages / measured.due)).max(0.0);
        row.extend([missing, measured.busy.0, measured.busy.1, messages].map(Cell::from));
        table.rows.push(row);
    }
    table
}

fn series(measured: &[Measured]) -> Vec<Series> {
    let histogram = |calls: usize| Series {
        title: format!("Inter-arrival at the Watch, calls at once: {calls}"),
        x_label: "between two messages, ms".to_owned(),
        y_label: "messages".to_owned(),
        kind: Kind::Histogram,
        lines: measured
            .iter()
            .filter(|measured| measured.calls == calls)
            .map(|measured| Line::histogram(measured.subject, &measured.intervals(), 0.0, LONGEST_MS, 0.5))
            .collect(),
    };
    let mut subjects: Vec<&str> = Vec::new();
    measured.iter().for_each(|measured| {
        if !subjects.contains(&measured.subject) {
            subjects.push(measured.subject);
        }
    });
    let over_calls = |subject: &&str| {
        let points = measured.iter().filter(|measured| measured.subject == *subject).map(|measured| {
            let off = sorted(measured.intervals().into_iter().map(|interval| (interval - ms(FRAME)).abs()));
            (measured.calls as f64, Some(rank(&off, 0.99)))
        });
        Line { name: (*subject).to_owned(), points: points.collect() }
    };
    let mut counts: Vec<usize> = measured.iter().map(|measured| measured.calls).collect();
    counts.dedup();
    let mut series: Vec<Series> = counts.into_iter().map(histogram).collect();
    series.push(Series {
        title: "Inter-arrival at the Watch over calls on one core".to_owned(),
        x_label: "calls".to_owned(),
        y_label: "off 20 ms, p99, ms".to_owned(),
        kind: Kind::Line,
        lines: subjects.iter().map(over_calls).collect(),
    });
    series
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A core carries about eight of the baseline's calls, and each takes 70 MB: this shows where it ends.
const BASELINE_CALLS: usize = 16;
/// So many messages have a p99.9.
const ENOUGH: u32 = 1_000;
/// After the last call was connected.
const SETTLES: Duration = Duration::from_secs(2);
/// The engines' sound, silence apart: longer than it takes to start all calls and to measure them.
const SOUND_FRAMES: usize = 50 * 60;
/// Of the histograms.
const LONGEST_MS: f64 = 60.0;
