//! What a message costs a relay: processor time, delay, memory, at a few bridges and at many. The baseline and ours in
//! turn, in one run, each on a core of its own, and the least that a relay can do.
//!
//! `cargo bench --bench relay` takes two minutes; `-- --smoke` only shows that each can run, in a few seconds.

// The tables are what a bench is for.
#![allow(clippy::print_stdout)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use tokio::task::LocalSet;
use watch_audio::relay::RelayUrl;
use watch_audio::relay::client::{Host, NewGrant};
use watch_audio::secret::Secret;
use watch_audio_benches::machine::{Memory, Usage};
use watch_audio_benches::record::{Cell, Kind, Line, Record, Series, Table};
use watch_audio_benches::relays::{self, Relay};
use watch_audio_benches::sockets::{Bridges, End, MESSAGE};
use watch_audio_benches::{Failed, bare, baseline, cores, exit_code, report};

#[derive(Parser)]
struct Arguments {
    /// One short load on each relay: fails when one cannot run.
    #[arg(long)]
    smoke: bool,
    /// Seconds of each load.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often each load is put on each relay; what is shown is the median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this relay: `baseline`, `ours` or `floor`.
    #[arg(long)]
    only: Option<String>,
    /// Our program, when it is not the one built with the bench.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_watch-audio"))]
    program: PathBuf,
    /// Be the relay that does the least.
    #[arg(long, hide = true)]
    bare: bool,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code("relay", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failed> {
    if arguments.bare {
        return bare::run().map_err(Failed::to("be a relay"));
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("benches");
    let node = baseline::relay(&target)?;
    let mut record = Record::new("relay");
    record.measures(&arguments.program);
    record.version("node", Command::new("node").arg("--version"));
    record.versions.insert("ws".to_owned(), "8.23.0".to_owned());
    let core = cores::of_the_subject();
    cores::leave_the_subjects()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failed::to("start"))?;

    let wanted = |subject: &&Subject| arguments.only.as_ref().is_none_or(|only| only == subject.name);
    let subjects: Vec<&Subject> = SUBJECTS.iter().filter(wanted).collect();
    let (loads, rounds, time) = match arguments.smoke {
        true => (&LOADS[..1], 1, Duration::from_secs(1)),
        false => (&LOADS[..], arguments.rounds, Duration::from_secs(arguments.seconds)),
    };
    let mut measured = Vec::new();
    for load in loads {
        let mut of_all: Vec<Vec<Measured>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (subject, of_one) in subjects.iter().zip(&mut of_all) {
                eprintln!("{}, round {} of {rounds}: {}", load.name(), round + 1, subject.name);
                let mut command = (subject.command)(core, &arguments.program, &node, &target)?;
                let relay = Relay::start(&mut command)?;
                let put = put(&relay, *load, subject.grants, time);
                of_one.push(LocalSet::new().block_on(&runtime, put)?);
            }
        }
        measured.push(of_all);
    }
    for table in tables(loads, &subjects, &measured) {
        println!("{}", table.text());
        record.tables.push(table);
    }
    record.series = plots(loads, &subjects, &measured);
    println!("\n{}", record.store(&target)?.display());
    Ok(())
}

/// A relay to measure.
struct Subject {
    name: &'static str,
    command: fn(usize, &Path, &[PathBuf; 2], &Path) -> Result<Command, Failed>,
    /// Whether a bridge needs a grant.
    grants: bool,
}

const SUBJECTS: [Subject; 3] = [
    Subject {
        name: "baseline",
        command: |core, _, node, _| {
            let mut command = on_core(core, "node");
            command.args(node);
            Ok(command)
        },
        grants: false,
    },
    Subject {
        name: "ours",
        command: |core, program, _, folder| {
            let mut command = on_core(core, program);
            relays::ours(&mut command, folder, CREDENTIAL)?;
            Ok(command)
        },
        grants: true,
    },
    // Not to be had for more than this: what is left are the system calls.
    Subject {
        name: "floor",
        command: |core, _, _, _| {
            let mut command = on_core(core, std::env::current_exe().map_err(Failed::to("find this program"))?);
            command.arg("--bare");
            Ok(command)
        },
        grants: false,
    },
];

fn on_core(core: usize, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// So many bridges, and what goes into each of their ends.
#[derive(Clone, Copy)]
struct Load {
    bridges: usize,
    /// Messages a second.
    rate: u32,
}

const LOADS: [Load; 3] =
    [Load { bridges: 10, rate: 50 }, Load { bridges: 100, rate: 50 }, Load { bridges: 1_000, rate: 10 }];

impl Load {
    fn name(self) -> String {
        format!("{} bridges of {}/s each way", self.bridges, self.rate)
    }
}

/// What one load on one relay showed.
struct Measured {
    /// Messages that a full core would carry in a second.
    per_core_second: f64,
    /// The share of a core that it took.
    core: f64,
    delays: Vec<f64>,
    missing: f64,
    /// In bytes: all that it holds, and what it holds more than before the bridges, for each.
    memory: f64,
    per_bridge: f64,
    /// Of a core, for the load itself.
    peers: f64,
}

async fn put(relay: &Relay, load: Load, grants: bool, time: Duration) -> Result<Measured, Failed> {
    let ends = ends(relay, load.bridges, grants).await?;
    let idle = Memory::of(relay.pid())?;
    let mut bridges = Bridges::open(relay.address, &ends).await?;
    bridges.load(load.rate, WARM_UP.min(time)).await;
    let (before, own_before) = (Usage::of(relay.pid())?, Usage::of(std::process::id())?);
    let carried = bridges.load(load.rate, time).await;
    let used = Usage::of(relay.pid())?.since(before);
    let own = Usage::of(std::process::id())?.since(own_before);
    let memory = Memory::of(relay.pid())?;
    let came = carried.delays.len() as f64;
    if came == 0.0 {
        return Err(Failed("nothing came through the relay".to_owned()));
    }
    Ok(Measured {
        per_core_second: came / used.cpu.as_secs_f64(),
        core: 100.0 * used.cpu.as_secs_f64() / time.as_secs_f64(),
        missing: 100.0 * (1.0 - came / carried.due as f64),
        delays: carried.delays,
        memory: memory.pss as f64,
        per_bridge: memory.pss.saturating_sub(idle.pss) as f64 / load.bridges as f64,
        peers: 100.0 * own.cpu.as_secs_f64() / time.as_secs_f64(),
    })
}

/// Both ends of each bridge. Ours asks for a grant first, as the plugin does.
async fn ends(relay: &Relay, count: usize, grants: bool) -> Result<Vec<[End; 2]>, Failed> {
    let path = |grant: &str, side: &str| format!("/v1/watch-audio/{grant}/{side}");
    if !grants {
        let end = |n: usize, side| End { path: path(&n.to_string(), side), bearer: CREDENTIAL.to_owned() };
        return Ok((0..count).map(|n| ["host", "watch"].map(|side| end(n, side))).collect());
    }
    // The client uses TLS elsewhere.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = RelayUrl::parse(&format!("http://{}", relay.address)).map_err(Failed::to("reach the relay"))?;
    let host = Host::new(url, Secret::new(CREDENTIAL)).map_err(Failed::to("reach the relay"))?;
    let new =
        NewGrant { watch_key: Secret::new(WATCH_KEY), life: Duration::from_secs(1_800), max_calls: 1, audio: true };
    let mut ends = Vec::with_capacity(count);
    for _ in 0..count {
        let grant = host.create_grant(&new).await.map_err(Failed::to("open a grant"))?;
        let end = |side, bearer: &str| End { path: path(grant.id.as_str(), side), bearer: bearer.to_owned() };
        ends.push([end("host", CREDENTIAL), end("watch", WATCH_KEY)]);
    }
    Ok(ends)
}

fn tables(loads: &[Load], subjects: &[&Subject], measured: &[Vec<Vec<Measured>>]) -> [Table; 2] {
    let note = format!(
        "messages of {MESSAGE} bytes, as 20 ms of PCM at 24 kHz are; medians of the rounds; floor: a relay that only reads, \
         unmasks and writes"
    );
    let mut messages = Table::new(
        "What a message costs a relay",
        &note,
        &[
            "load",
            "relay",
            "messages per core-second",
            "of a core, %",
            "p50, µs",
            "p99, µs",
            "missing, %",
            "load's core, %",
        ],
    );
    let note = "PSS; for each bridge: what there is more of it than before the first";
    let columns = ["load", "relay", "in all, MiB", "for each bridge, KiB"];
    let mut memory = Table::new("What a relay holds in memory", note, &columns);
    for (load, of_all) in loads.iter().zip(measured) {
        let mut compared: Vec<[f64; 4]> = Vec::new();
        for (subject, of_one) in subjects.iter().zip(of_all) {
            let of = |figure: fn(&Measured) -> f64| report::median(of_one.iter().map(figure));
            let (p50, p99) = (of(|one| rank(&one.delays, 0.5)), of(|one| rank(&one.delays, 0.99)));
            let (cost, missing) = (of(|one| one.per_core_second), of(|one| one.missing));
            let (all, each) = (of(|one| one.memory) / MIB, of(|one| one.per_bridge) / 1_024.0);
            let figures = [cost.round(), of(|one| one.core), p50, p99, missing, of(|one| one.peers)];
            messages.rows.push(row(&load.name(), subject.name, &figures));
            memory.rows.push(row(&load.name(), subject.name, &[all, each]));
            compared.push([cost, p50, p99, all]);
        }
        if let [baseline, ours, ..] = &compared[..] {
            let ratio = |n: usize| ours[n] / baseline[n];
            let none = f64::NAN;
            messages.rows.push(row(&load.name(), "ratio", &[ratio(0), none, ratio(1), ratio(2), none, none]));
            memory.rows.push(row(&load.name(), "ratio", &[ratio(3), none]));
        }
    }
    [messages, memory]
}

fn plots(loads: &[Load], subjects: &[&Subject], measured: &[Vec<Vec<Measured>>]) -> Vec<Series> {
    let of_load = |(load, of_all): (&Load, &Vec<Vec<Measured>>)| Series {
        title: format!("Delay through the relay, {}", load.name()),
        x_label: "µs".to_owned(),
        y_label: "share of the messages".to_owned(),
        kind: Kind::Cdf,
        lines: subjects
            .iter()
            .zip(of_all)
            .map(|(subject, of_one)| {
                let delays: Vec<f64> = of_one.iter().flat_map(|one| one.delays.iter().copied()).collect();
                Line::cdf(subject.name, &delays)
            })
            .collect(),
    };
    loads.iter().zip(measured).map(of_load).collect()
}

fn row(load: &str, relay: &str, figures: &[f64]) -> Vec<Cell> {
    [load, relay].map(Cell::from).into_iter().chain(figures.iter().copied().map(Cell::from)).collect()
}

fn rank(delays: &[f64], share: f64) -> f64 {
    let mut delays = delays.to_vec();
    delays.sort_by(f64::total_cmp);
    delays[((share * delays.len() as f64).ceil() as usize).saturating_sub(1)]
}

/// Any, for relays that live as long as the bench.
const CREDENTIAL: &str = "install.gateway.of-a-bench";
const WATCH_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// For buffers to grow and code to be compiled, where it is.
const WARM_UP: Duration = Duration::from_secs(2);
const MIB: f64 = 1_048_576.0;
