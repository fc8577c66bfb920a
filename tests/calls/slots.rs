//! Four calls at once on one host, over all its processes.

use std::process::Command;
use std::time::Duration;

use watch_audio::engine::EngineKind;

use super::support::{Caller, RELEASED, SOON, World, within};

#[tokio::test]
async fn four_calls_at_once_on_one_host_the_fifth_told_busy_and_slots_free_again_after_a_sigkill() {
    let world = World::new().await;
    let engines = [EngineKind::GptLive, EngineKind::Grok, EngineKind::GptLive, EngineKind::Grok];
    let mut calls = Vec::new();
    for engine in engines {
        let host = world.host().await;
        let caller = Caller::start(host.grant(), engine).await.unwrap();
        calls.push((host, caller));
    }
    for (_, caller) in &mut calls {
        caller.hears_speech(Duration::from_millis(500)).await;
    }

    let fifth = world.host().await;
    assert_eq!(Caller::start(fifth.grant(), EngineKind::Grok).await.err().as_deref(), Some("busy"));
    assert_eq!(Caller::start(fifth.grant(), EngineKind::GptLive).await.err().as_deref(), Some("busy"));
    assert_eq!(world.gpt_live.look(<[_]>::len), 2, "no engine was asked for it");

    // SIGKILL: the kernel frees the slot. The Watch of that call is told by its relay.
    let (killed, mut caller) = calls.pop().unwrap();
    let pid = killed.bridge_id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "KILL", &pid]).status().unwrap().success());
    caller.until(RELEASED, "the relay's word", |caller| caller.closed.is_some()).await;
    assert_eq!(caller.closed.unwrap().code, Some(4503), "the host is not there");
    let mut late = Caller::start(fifth.grant(), EngineKind::GptLive).await.unwrap();
    late.hears_speech(Duration::from_millis(500)).await;
    assert_eq!(killed.close().await.0.exit, None, "a signal ended it");

    // The others never noticed. When they end in order, every slot is free.
    for (_, caller) in &mut calls {
        caller.hears_speech(Duration::from_millis(500)).await;
        caller.hang_up();
        assert_eq!(caller.hears_ended(SOON).await, "ended");
    }
    late.hang_up();
    assert_eq!(late.hears_ended(SOON).await, "ended");
    within(RELEASED, "all slots free", || world.slots_are_free()).await;
    for (host, _) in calls {
        assert_eq!(host.close().await.0.exit, Some(0));
    }
    assert_eq!(fifth.close().await.0.exit, Some(0));
}
