//! Many calls on one host, many starts on one bridge, many streams through one relay: what they leave behind is nothing.

use std::fs;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use watch_audio::engine::EngineKind;
use watch_audio::relay::client::{self, NewGrant};
use watch_audio::relay::{RelayUrl, Side};
use watch_audio::seal::Root;
use watch_audio::secret::Secret;
use watch_audio_probes::host::Host;
use watch_audio_probes::sim::gpt_live::{self, Timing};
use watch_audio_probes::sim::grok;
use watch_audio_probes::watch::{Grant, Incoming, Watch};

use super::support::{CREDENTIAL, Caller, RELEASED, SOON, World, descriptors, within};

#[tokio::test]
async fn forty_calls_in_a_row_leave_nothing_behind() {
    calls(40).await;
}

/// Minutes of what forty calls show in seconds in every run: a leak of less than a descriptor or some KiB in forty calls shows
/// only here.
#[tokio::test]
#[ignore = "four minutes of what forty calls show each time: cargo test --test calls a_thousand_calls -- --ignored --nocapture"]
async fn a_thousand_calls_in_a_row_leave_nothing_behind() {
    calls(1_000).await;
}

#[tokio::test]
async fn forty_starts_on_one_bridge_leave_nothing_behind() {
    starts(40).await;
}

/// The same for starts: forty run beside the other calls, a thousand in a run of their own.
#[tokio::test]
#[ignore = "keeps a core busy, which calls in real time beside it would feel; .ci/run runs it alone"]
async fn a_thousand_starts_on_one_bridge_leave_nothing_behind() {
    starts(1_000).await;
}

#[tokio::test]
async fn five_hundred_streams_through_one_relay_leave_nothing_behind() {
    streams(500).await;
}

/// The same for streams: five hundred beside the other calls.
#[tokio::test]
#[ignore = "keeps a core busy, which calls in real time beside it would feel; .ci/run runs it alone"]
async fn ten_thousand_streams_through_one_relay_leave_nothing_behind() {
    streams(10_000).await;
}

/// What a process that lives on holds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident_kib: u64,
}

impl Held {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        Self {
            descriptors: descriptors(pid).unwrap(),
            threads: field("Threads:") as usize,
            resident_kib: field("VmRSS:"),
        }
    }

    /// Waits until a process holds no more than it did, but for what an allocator keeps.
    async fn back_to(self, pid: u32, what: &str) {
        let end = Instant::now() + SOON + RELEASED;
        loop {
            let now = Self::of(pid);
            if now.descriptors <= self.descriptors && now.threads <= self.threads {
                println!("{what}: {self:?} before, {now:?} after");
                let more = now.resident_kib.saturating_sub(self.resident_kib);
                assert!(more < MOST_MORE_KIB, "{what}: {more} KiB more than before");
                return;
            }
            assert!(Instant::now() < end, "{what}: {self:?} before, {now:?} after");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Engines that answer at once, and a relay that lets everybody in as often as they like and forgets them soon.
async fn world() -> World {
    let timing = Timing { answer_ms: 0, ..Timing::default() };
    let gpt_live = gpt_live::Options { timing, ..Default::default() };
    World::with_limits(
        gpt_live,
        grok::Options::default(),
        &[
            ("GRANT_RATE", "1000000"),
            ("HOST_ADDRESS_RATE", "1000000"),
            ("WATCH_ADDRESS_RATE", "1000000"),
            ("CONNECT_RATE", "1000000"),
            ("BYTES_PER_S", "100000000"),
            ("REMEMBER_S", "1"),
        ],
    )
    .await
}

/// So many calls, each with a bridge of its own as a plugin starts it, alternating between the engines.
async fn calls(count: usize) {
    let world = world().await;
    let relay = world.relay.id();
    let mut before = Held::of(relay);
    for n in 0..count {
        let engine = if n % 2 == 0 { EngineKind::GptLive } else { EngineKind::Grok };
        let host = world.host().await;
        let bridge = host.bridge_id().unwrap();
        let mut caller = Caller::start(host.grant(), engine).await.unwrap();
        caller.hears_sound(engine).await;
        caller.hang_up();
        assert_eq!(caller.hears_ended(SOON).await, "ended");
        assert_eq!(host.close().await.0.exit, Some(0), "call {n}");
        assert!(super::support::is_gone(bridge), "call {n}");
        if n == WARM {
            // Once everything has been used, the relay's own buffers are there.
            before = Held { resident_kib: Held::of(relay).resident_kib, ..before };
        }
    }
    assert!(world.slots_are_free());
    let ended = (
        world.gpt_live.look(|sessions| sessions.iter().filter(|session| session.ended.is_some()).count()),
        world.grok.look(|sessions| sessions.iter().filter(|session| session.ended.is_some()).count()),
    );
    assert_eq!(ended, (count.div_ceil(2), count / 2), "every session was ended");
    before.back_to(relay, &format!("the relay of {count} calls")).await;
}

/// So many starts and ends on one bridge, over one stream.
async fn starts(count: usize) {
    let world = world().await;
    let mut host = world.host().await;
    let bridge = host.bridge_id().unwrap();
    let mut before = Held::of(bridge);
    let mut watch = Watch::join(host.grant()).await.unwrap();
    for n in 0..count {
        let engine = if n % 2 == 0 { EngineKind::GptLive } else { EngineKind::Grok };
        watch.control(&json!({"type": "start", "engine": engine.as_str()}));
        assert_eq!(control(&mut host, &mut watch, n).await, "started", "start {n}");
        watch.audio(&vec![0; engine.input_rate() as usize / 5]);
        // Sometimes the next one comes while this one runs.
        if n % 5 != 4 {
            watch.control(&json!({"type": "end"}));
        } else {
            watch.control(&json!({"type": "start", "engine": "no such"}));
        }
        assert_eq!(control(&mut host, &mut watch, n).await, "ended", "start {n}");
        if n % 5 == 4 {
            assert_eq!(control(&mut host, &mut watch, n).await, "error bad_request", "start {n}");
        }
        if n == WARM {
            before = Held { resident_kib: Held::of(bridge).resident_kib, ..before };
        }
    }
    drop(watch);
    within(RELEASED, "slots free", || world.slots_are_free()).await;
    before.back_to(bridge, &format!("the bridge of {count} starts")).await;
    let (report, _) = host.close().await;
    assert_eq!((report.exit, report.summaries.len()), (Some(0), count));
}

/// The type of the next control message, and an error's code. The plugin reads on meanwhile.
async fn control(host: &mut Host, watch: &mut Watch, n: usize) -> String {
    let end = Instant::now() + SOON * 2;
    loop {
        let next = tokio::select! {
            next = watch.next() => next.1,
            () = host.bridge_gone() => panic!("start {n}: the bridge is gone"),
            () = sleep_until(end) => panic!("start {n}: no answer in time"),
        };
        match next {
            Incoming::Control(control) => {
                let word = |name: &str| control.get(name).and_then(|word| word.as_str()).unwrap_or_default().to_owned();
                return format!("{} {}", word("type"), word("code")).trim().to_owned();
            }
            Incoming::Closed(close) => panic!("start {n}: {close}"),
            _ => {}
        }
    }
}

/// So many streams of Watches, 32 to a grant, each with a few messages both ways. The host is the test itself: none of them
/// is a call.
async fn streams(count: usize) {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::connect_async;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

    let world = world().await;
    let relay = world.relay.id();
    let url = RelayUrl::parse(&world.relay.url()).unwrap();
    let mut before = Held::of(relay);
    let mut streams = 0;
    while streams < count {
        let gateway = client::Host::new(url.clone(), Secret::new(CREDENTIAL)).unwrap();
        let root = Root::random();
        let watch_key = Secret::new(Root::random().encode().to_string());
        let new = NewGrant { watch_key: watch_key.clone(), life: Duration::from_secs(600), max_calls: 1, audio: true };
        let id = gateway.create_grant(&new).await.unwrap().id;
        let mut request = url.audio(&id, Side::Host).as_str().into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {CREDENTIAL}").parse().unwrap());
        let (mut host, _) = connect_async(request).await.unwrap();
        let grant = Grant { id, root, watch_key, relay: url.clone() };
        for _ in 0..32.min(count - streams) {
            let mut watch = Watch::join(&grant).await.unwrap();
            watch.audio(&[0; 3_000]);
            // That it is there, its hello and its sound; and an answer.
            for wanted in [0, 4, 1] {
                let got = timeout(SOON, host.next()).await.unwrap().unwrap().unwrap();
                assert_eq!(got.into_data()[0], wanted);
            }
            host.send(Message::binary(vec![1; 40])).await.unwrap();
            watch.close();
            assert!(matches!(timeout(SOON, watch.next()).await.unwrap().1, Incoming::Closed(_)));
            assert_eq!(timeout(SOON, host.next()).await.unwrap().unwrap().unwrap().into_data()[..], [0, 2]);
            streams += 1;
        }
        host.close(None).await.unwrap();
        gateway.close_grant(&grant.id).await.unwrap();
        if streams == 4 * 32 {
            before = Held { resident_kib: Held::of(relay).resident_kib, ..before };
        }
    }
    before.back_to(relay, &format!("the relay of {streams} streams")).await;
}

/// The call after which memory counts.
const WARM: usize = 19;

/// What an allocator may keep for itself. A session that stayed would be more than this after a few.
const MOST_MORE_KIB: u64 = 4 << 10;
