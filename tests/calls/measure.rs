//! What the product promises in figures, measured on loopback with the program that `WATCH_AUDIO_MEASURED` names:
//! `.ci/measure` runs this against a release build.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::timeout;
use watch_audio::engine::EngineKind;
use watch_audio_probes::sim::gpt_live::{Options, Timing};
use watch_audio_probes::sim::grok;
use watch_audio_probes::sim::script::Script;

use super::helper::{Helper, answer};
use super::support::{BINARY, Caller, SOON, World};

/// What is promised holds for a release build, which `cargo test` does not make.
#[tokio::test]
#[ignore = "its limits are those of a release build, which cargo test does not make: .ci/measure"]
async fn offer_connection_memory_and_size_are_what_is_promised() {
    let program: PathBuf = std::env::var_os("WATCH_AUDIO_MEASURED").unwrap_or_else(|| OsString::from(BINARY)).into();
    let timing = Timing { answer_ms: 0, ..Timing::default() };
    let world = World::with(Options { script: Script::echo(), timing, ..Options::default() }, grok::Options::default());
    let world = World { program: program.clone(), ..world.await };

    let mut offers = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..RUNS {
        let (offer, connection) = helper_call(&world).await;
        offers.push(offer);
        connections.push(connection);
    }

    let host = world.host().await;
    let mut caller = Caller::start(host.grant(), EngineKind::GptLive).await.unwrap();
    caller.asks_every(Duration::from_secs(8));
    caller.run(Duration::from_secs(60)).await;
    let memory = resident_mib(host.bridge_id().unwrap());
    host.close().await;
    let size = fs::metadata(&program).unwrap().len() as f64 / 1e6;

    let (offer, connection) = (median(offers), median(connections));
    println!("spawn to offer       {offer:6.1} ms   (under 50; median of {RUNS})");
    println!("answer to connected  {connection:6.1} ms   (under 100; median of {RUNS})");
    println!("memory after 60 s    {memory:6.1} MiB  (under 16)");
    println!("size of the program  {size:6.1} MB   (under 10.5)");
    assert!(offer < 50.0 && connection < 100.0 && memory < 16.0 && size < 10.5, "a figure is over its limit");
}

/// One call of the helper, from its spawn: to its offer, and from the answer to the connection, in ms.
async fn helper_call(world: &World) -> (f64, f64) {
    let spawned = Instant::now();
    let mut helper = Helper::spawn(&world.program);
    helper.say(b'C', json!({"input_rate": 16_000, "output_rate": 24_000, "stun": []}).to_string().as_bytes()).await;
    let offer = helper.until(b'O').await;
    let to_offer = spawned.elapsed();

    let answer = answer(&world.gpt_live, offer).await;
    let answered = Instant::now();
    helper.say(b'A', answer.as_bytes()).await;
    helper.until(b'R').await;
    let to_connected = answered.elapsed();
    helper.say(b'Q', b"").await;
    timeout(SOON, helper.child.wait()).await.unwrap().unwrap();
    (to_offer.as_secs_f64() * 1e3, to_connected.as_secs_f64() * 1e3)
}

fn resident_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

const RUNS: usize = 7;
