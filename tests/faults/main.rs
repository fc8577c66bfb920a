//! What becomes of a call when something goes wrong: every fault with either engine, over real processes. The outcomes are
//! printed as a table, which is left in `target/faults.md` too; one that is not as it should be fails the run.
//!
//! `cargo test --test faults -- WORD…` runs the rows that have one of the words in them, `-- --long` also those that take
//! minutes.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test and its table")]

mod between;
mod engines;
mod machine;
mod parents;
mod plugin;
mod relays;
mod row;
mod scene;
mod secrets;
mod watch;
mod watches;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};
use watch_audio::engine::EngineKind;

use self::row::{Outcome, Row};
use self::scene::Healthy;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let [first, engine] = &arguments[..]
        && first == machine::INSIDE
    {
        let outcome = machine::no_port_inside(EngineKind::parse(engine).unwrap());
        let Outcome { watch, plugin, after, faults, .. } = runtime.block_on(LocalSet::new().run_until(outcome));
        let after = after.unwrap_or_default().as_secs_f64();
        println!("{}", serde_json::json!({"watch": watch, "plugin": plugin, "after": after, "faults": faults}));
        return ExitCode::SUCCESS;
    }
    let long = arguments.iter().any(|argument| argument == "--long");
    let words: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    // What a row panics with stands below the table.
    std::panic::set_hook(Box::new(|_| ()));
    let begun = Instant::now();
    let outcomes = runtime.block_on(LocalSet::new().run_until(run(long, &words)));
    if outcomes.is_empty() {
        return ExitCode::SUCCESS;
    }
    let table = table(&outcomes, begun.elapsed());
    print!("{table}");
    // Beside this program, in `target`; where that cannot be written the table was printed all the same.
    let _ = std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("faults.md"), &table);
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.faults.is_empty()).collect();
    for outcome in &failed {
        println!("\n{} ({}):\n  {}", outcome.fault, outcome.engine, outcome.faults.join("\n  "));
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All rows, some at a time.
async fn run(long: bool, words: &[&String]) -> Vec<Outcome> {
    let rows = [engines::rows(), relays::rows(), watches::rows(), parents::rows(), machine::rows()];
    let mut rows: Vec<Row> = rows.into_iter().flatten().collect();
    rows.retain(|row| {
        let name = format!("{} {}", row.fault, row.engine.as_str());
        words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
    });
    if rows.is_empty() {
        return Vec::new();
    }
    let healthy = Rc::new(Healthy::start().await);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    // Those that mostly wait begin at once: the others run meanwhile.
    let mut order: Vec<(usize, Row)> = rows.into_iter().enumerate().collect();
    order.sort_by_key(|(_, row)| std::cmp::Reverse(row.waits));
    for (place, row) in order {
        let (healthy, turns) = (Rc::clone(&healthy), Arc::clone(&turns));
        running.spawn_local(async move { (place, row.run(healthy, turns, long).await) });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome.unwrap());
    }
    outcomes.sort_by_key(|(place, _)| *place);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn table(outcomes: &[Outcome], took: Duration) -> String {
    let mut text = String::from(
        "| fault | engine | the Watch was told | the plugin was told | after | left | next call |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for outcome in outcomes {
        let Outcome { fault, engine, watch, plugin, after, left, next, .. } = outcome;
        let after = after.map_or_else(|| "-".to_owned(), |after| format!("{:.1} s", after.as_secs_f64()));
        let _ = writeln!(text, "| {fault} | {engine} | {watch} | {plugin} | {after} | {left} | {next} |");
    }
    let ran = outcomes.iter().filter(|outcome| outcome.ran).count();
    let wrong = outcomes.iter().filter(|outcome| !outcome.faults.is_empty()).count();
    let not_run = outcomes.len() - ran;
    let _ = writeln!(text, "\n{ran} run, {wrong} not as wanted, {not_run} not run; {:.0} s", took.as_secs_f64());
    text
}

/// Calls in real time: more of them at once than a small machine can hold would test the machine.
const AT_ONCE: usize = 8;
