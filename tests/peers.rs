//! Peers by the hundred against the simulated GPT-Live, in a process of their own so that what is left can be counted.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::Client;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use watch_audio::rtc::{Peer, PeerConfig, PeerEvent};
use watch_audio::secret::Secret;
use watch_audio::sign_in::openai::create_with_key;
use watch_audio_probes::sim::gpt_live::{Faults, Happening, Options, Simulator, Timing, What};

/// A third is closed by us, a third has its engine killed, a third is dropped while it gathers.
#[test]
fn case_26_nothing_is_left_of_200_peers() {
    watch_audio::tls::ensure_provider();
    let runtime = || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (ours, engines) = (runtime(), runtime());
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = || ours.metrics().num_alive_tasks();

    // What is made once and kept is there after these.
    cycle(&ours, &engines, 200);
    settle(|| tasks() == 0);
    let (files_before, resident_before) = (files(), resident_kib());
    cycle(&ours, &engines, 200);
    settle(|| tasks() == 0 && files() <= files_before);
    assert_eq!(tasks(), 0);
    assert!(files() <= files_before, "{} files, {files_before} before", files());
    let more = resident_kib().saturating_sub(resident_before);
    assert!(more < 8 * 1024, "{more} KiB more than the {resident_before} before");
}

fn settle(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn cycle(ours: &Runtime, engines: &Runtime, peers: u64) {
    let timing = || Timing { answer_ms: 0, ..Timing::default() };
    let vanish = Happening { after_ms: 50, what: What::Vanish };
    let faults = Faults { at: vec![vanish], ..Faults::default() };
    let (good, bad) = engines.block_on(async {
        let good = Simulator::start(Options { timing: timing(), ..Options::default() }).await.unwrap();
        let bad = Simulator::start(Options { timing: timing(), faults, ..Options::default() }).await.unwrap();
        (good, bad)
    });
    // Without connections kept open, which would be counted.
    let http = Arc::new(Client::builder().pool_max_idle_per_host(0).build().unwrap());
    ours.block_on(async {
        let open_and_close = |n| {
            let (http, url) = (Arc::clone(&http), if n % 3 == 0 { good.url() } else { bad.url() });
            tokio::spawn(async move {
                match n % 3 {
                    0 => closed_by_us(&http, &url, n % 2 == 0).await,
                    1 => with_its_engine_killed(&http, &url, n % 2 == 0).await,
                    _ => {
                        let offer = Box::pin(Peer::offer(&CONFIG));
                        drop(timeout(Duration::from_micros(500 * (n % 7)), offer).await);
                    }
                }
            })
        };
        let mut running = stream::iter(0..peers).map(open_and_close).buffer_unordered(AT_ONCE);
        while let Some(done) = running.next().await {
            done.unwrap();
        }
    });
    engines.block_on(async {
        good.shutdown().await;
        bad.shutdown().await;
    });
}

/// Closed from where its state is told, or once all is up.
async fn closed_by_us(http: &Client, url: &str, at_once: bool) {
    let mut peer = call(http, url).await;
    while !matches!((next(&mut peer).await, at_once), (PeerEvent::Connected, true) | (PeerEvent::Text(_), false)) {}
    let closing = Instant::now();
    peer.close().await;
    peer.close().await;
    assert!(closing.elapsed() < Duration::from_secs(5), "{:?}", closing.elapsed());
}

/// Nobody answers any more; then it is closed, or only dropped.
async fn with_its_engine_killed(http: &Client, url: &str, close: bool) {
    let mut peer = call(http, url).await;
    while !matches!(next(&mut peer).await, PeerEvent::Text(_)) {}
    sleep(Duration::from_millis(200)).await;
    let closing = Instant::now();
    if close {
        peer.close().await;
    }
    drop(peer);
    assert!(closing.elapsed() < Duration::from_secs(5), "{:?}", closing.elapsed());
}

async fn call(http: &Client, url: &str) -> Peer {
    let (mut peer, offer) = Box::pin(Peer::offer(&CONFIG)).await.unwrap();
    let session = json!({"model": "gpt-live-1"});
    let answer = create_with_key(http, url, &Secret::new("sk-test"), &session, &offer).await.unwrap();
    peer.accept(&answer).await.unwrap();
    peer
}

async fn next(peer: &mut Peer) -> PeerEvent {
    match timeout(Duration::from_secs(30), peer.next()).await.expect("an event in time") {
        PeerEvent::Closed(reason) => panic!("{reason}"),
        event => event,
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

static CONFIG: PeerConfig = PeerConfig { stun: Vec::new() };

/// How many are open at a time: most of a cycle is waiting.
const AT_ONCE: usize = 8;
