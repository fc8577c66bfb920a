//! Somebody goes away in mid-call: what the others are told, and that nothing is left behind.

use std::time::{Duration, Instant};

use watch_audio::engine::EngineKind;
use watch_audio_probes::host::Host;
use watch_audio_probes::net::TcpProxy;
use watch_audio_probes::sim::gpt_live::{self, Ended, Faults, Path};
use watch_audio_probes::sim::grok;

use super::support::{Caller, RELEASED, SOON, World, descriptors, is_gone, script, within};

/// A call in the middle of the engine's answer.
struct MidCall {
    host: Host,
    caller: Caller,
    pid: u32,
    /// The bridge's descriptors before the Watch came.
    idle: usize,
}

impl MidCall {
    async fn new(world: &World, engine: EngineKind) -> Self {
        let host = world.host().await;
        let pid = host.bridge_id().unwrap();
        let idle = descriptors(pid).unwrap();
        let mut caller = Caller::start(host.grant(), engine).await.unwrap();
        caller.hears_speech(Duration::from_secs(1)).await;
        assert!(descriptors(pid).unwrap() > idle, "the engine's sockets");
        assert!(!world.slots_are_free());
        Self { host, caller, pid, idle }
    }

    /// The bridge is as before the call: no socket of the engine's, no slot.
    async fn nothing_left(&self, world: &World) {
        within(RELEASED, "sockets closed", || descriptors(self.pid) == Some(self.idle)).await;
        within(RELEASED, "slots free", || world.slots_are_free()).await;
    }
}

const LOST: &str = "The connection to the engine was lost.";

#[tokio::test]
async fn engine_killed_over_tcp_is_told_at_once_and_leaves_nothing_behind() {
    let world = World::new().await;
    let mut call = MidCall::new(&world, EngineKind::Grok).await;
    drop(world.grok);
    let world = World { grok: grok::Simulator::start(grok::Options::default()).await.unwrap(), ..world };
    assert_eq!(call.caller.hears_ended(RELEASED).await, LOST);
    call.nothing_left(&world).await;
    // The Watch is still there, and so is its bridge; the engine it knows is not.
    assert_eq!(call.host.close().await.0.exit, Some(0));
}

#[tokio::test]
async fn engine_that_vanishes_is_told_within_the_stated_time_and_leaves_nothing_behind() {
    // GPT-Live: its process is gone. Over TCP its connection ends with it; over UDP nothing tells but consent, which runs out
    // 30 s after the last answer (RFC 7675).
    let gpt_live = async |udp: Path, told: Duration| {
        let faults = Faults { udp, ..Faults::default() };
        let options = gpt_live::Options { script: script("long-answer.wav"), faults, ..Default::default() };
        let world = World::with(options, grok::Options::default()).await;
        let mut call = MidCall::new(&world, EngineKind::GptLive).await;
        drop(world.gpt_live);
        let world = World { gpt_live: gpt_live::Simulator::start(Default::default()).await.unwrap(), ..world };
        let reason = call.caller.hears_ended(told).await;
        assert_eq!(reason, "the connection to the engine was lost");
        call.nothing_left(&world).await;
        assert_eq!(call.host.close().await.0.exit, Some(0));
    };
    // Grok: 60 s without any word, the answer to our pings too. Its socket stays.
    let grok = async {
        let faults = grok::Faults { vanish_after_ms: Some(6_000), ..Default::default() };
        let options = grok::Options { script: script("long-answer.wav"), faults, ..Default::default() };
        let world = World::with(gpt_live::Options::default(), options).await;
        let mut call = MidCall::new(&world, EngineKind::Grok).await;
        let reason = call.caller.hears_ended(Duration::from_secs(65)).await;
        assert_eq!(reason, "The engine stopped answering.");
        call.nothing_left(&world).await;
        assert_eq!(call.host.close().await.0.exit, Some(0));
    };
    tokio::join!(gpt_live(Path::Open, Duration::from_secs(35)), gpt_live(Path::Dead, RELEASED), grok);
}

#[tokio::test]
async fn relay_killed_and_restarted_knows_no_grant_and_the_bridge_is_over() {
    let killed = async |engine: EngineKind| {
        let mut world = World::new().await;
        let mut call = MidCall::new(&world, engine).await;
        world.relay.kill().await;
        let since = Instant::now();
        world.relay.restart().await;
        call.caller.until(SOON, "the end of the socket", |caller| caller.closed.is_some()).await;
        assert!(call.caller.controls.is_empty(), "nobody could be told");
        // Dialled again, the relay answers 410: the bridge is over. Its session had ended with the socket.
        tokio::time::timeout(SOON, call.host.bridge_gone()).await.expect("the bridge ends");
        within(RELEASED, "the process gone", || is_gone(call.pid)).await;
        assert!(since.elapsed() < Duration::from_secs(15));
        within(RELEASED, "slots free", || world.slots_are_free()).await;
        engine_was_left_in_order(&world, engine).await;
        let (report, _) = call.host.close().await;
        assert_eq!((report.exit, report.closed.as_deref()), (Some(3), Some("The relay refused the grant (410).")));
        assert_eq!((report.summaries.len(), report.relay.len()), (1, 1), "{:?}", report.relay);
    };
    tokio::join!(killed(EngineKind::GptLive), killed(EngineKind::Grok));
}

#[tokio::test]
async fn network_to_the_relay_cut_ends_the_session_and_the_watch_joins_again() {
    let world = World::new().await;
    let proxy = TcpProxy::start(world.relay.address()).await.unwrap();
    let host = world.host_through(&format!("http://{}", proxy.address())).await;
    let pid = host.bridge_id().unwrap();
    let idle = descriptors(pid).unwrap();
    let mut caller = Caller::start(host.grant(), EngineKind::GptLive).await.unwrap();
    caller.hears_speech(Duration::from_secs(1)).await;
    proxy.cut();
    caller.until(SOON, "the end of the socket", |caller| caller.closed.is_some()).await;
    within(RELEASED, "sockets closed", || descriptors(pid) == Some(idle)).await;
    within(RELEASED, "slots free", || world.slots_are_free()).await;
    engine_was_left_in_order(&world, EngineKind::GptLive).await;
    let mut caller = Caller::start(host.grant(), EngineKind::GptLive).await.unwrap();
    caller.hears_speech(Duration::from_secs(1)).await;
    caller.hang_up();
    assert_eq!(caller.hears_ended(SOON).await, "ended");
    let (report, _) = host.close().await;
    assert_eq!((report.exit, report.summaries.len(), report.relay.len()), (Some(0), 2, 1), "{:?}", report.relay);
}

#[tokio::test]
async fn watch_killed_ends_the_session_silently_and_another_may_come() {
    let killed = async |engine: EngineKind| {
        let world = World::new().await;
        let call = MidCall::new(&world, engine).await;
        let MidCall { host, caller, pid, idle } = call;
        // Its socket is dropped without a close.
        drop(caller);
        within(RELEASED, "sockets closed", || descriptors(pid) == Some(idle)).await;
        within(RELEASED, "slots free", || world.slots_are_free()).await;
        engine_was_left_in_order(&world, engine).await;
        let mut caller = Caller::start(host.grant(), engine).await.unwrap();
        caller.hears_speech(Duration::from_millis(500)).await;
        let (report, _) = host.close().await;
        assert_eq!((report.exit, report.summaries.len()), (Some(0), 2));
    };
    tokio::join!(killed(EngineKind::GptLive), killed(EngineKind::Grok));
}

/// The first session was ended by us, as the engine wants it.
async fn engine_was_left_in_order(world: &World, engine: EngineKind) {
    match engine {
        EngineKind::GptLive => {
            let how = || world.gpt_live.look(|sessions| sessions[0].ended.map(|(_, how)| how));
            within(RELEASED, "the session's end", || how().is_some()).await;
            assert_eq!(how(), Some(Ended::Closed));
        }
        EngineKind::Grok => {
            let code = || world.grok.look(|sessions| sessions[0].ended.map(|(_, code)| code));
            within(RELEASED, "the session's end", || code().is_some()).await;
            assert_eq!(code(), Some(1005), "a close frame without a code");
        }
    }
}
