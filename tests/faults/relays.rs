//! The relay fails, or the way to it.

use std::time::Duration;

use watch_audio::engine::EngineKind::{self, GptLive, Grok};
use watch_audio_probes::net::{Mode, TcpProxy};

use super::between::{Between, Order};
use super::engines::{goes_on, in_call};
use super::row::{Row, wanted};
use super::scene::{SOON, Scene};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for engine in [GptLive, Grok] {
        rows.push(down_at_start(engine));
        rows.push(drops(engine));
        rows.push(killed(engine));
        rows.push(half_open(engine));
        rows.push(slow(engine));
        rows.push(floods(engine));
        rows.push(too_large(engine));
        for code in [1000, 1001, 1002, 1003, 1009, 4000, 4408, 4429, 4503] {
            rows.push(closes(engine, code));
        }
        rows.push(closes_the_grant(engine));
    }
    rows
}

fn down_at_start(engine: EngineKind) -> Row {
    let wanted =
        wanted("started; the call goes on", "relay reconnecting, relay connected, watch connected, started", 20);
    Row::new("relay down at start", engine, wanted, async |scene| {
        scene.engine_with(Default::default(), Default::default()).await;
        let proxy = TcpProxy::start(scene.relay.address()).await.unwrap();
        proxy.set(Mode::Refusing);
        scene.through = Some(proxy.address());
        scene.mark();
        scene.plugin().await;
        scene.plugin_says("the failed dial", SOON, |said| !said.is_empty()).await;
        proxy.set(OPEN);
        scene.on_the_relay().await;
        scene.watch_joins().await;
        assert!(scene.start().await);
        let told = scene.goes_on(SOON).await;
        keep(proxy);
        told
    })
}

fn drops(engine: EngineKind) -> Row {
    Row::new("relay drops the connection", engine, wanted("closed 4503", RECONNECTED, 10), async |scene| {
        let proxy = TcpProxy::start(scene.relay.address()).await.unwrap();
        scene.through = Some(proxy.address());
        in_call(scene).await;
        scene.mark();
        proxy.cut();
        let told = scene.told(SOON, |scene| scene.plugin_heard("relay connected")).await;
        keep(proxy);
        told
    })
}

fn killed(engine: EngineKind) -> Row {
    // A new relay at the same place knows nothing of its predecessor's grants: that is final, as it should be.
    let told = "ended: The relay's connection dropped., watch gone, relay reconnecting, relay closed, \
                closed: The relay refused the grant (410)., exit 3";
    Row::new("relay killed and started again", engine, wanted("the connection broke", told, 10), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.relay.kill().await;
        scene.relay.restart().await;
        scene.told(SOON, |scene| scene.plugin_heard("closed")).await
    })
}

fn half_open(engine: EngineKind) -> Row {
    // Two pings without an answer: 45 s.
    Row::new("relay half-open", engine, wanted("closed 4503", RECONNECTED, 55), async |scene| {
        let proxy = TcpProxy::start(scene.relay.address()).await.unwrap();
        scene.through = Some(proxy.address());
        in_call(scene).await;
        scene.mark();
        proxy.set(Mode::Frozen);
        scene.waits();
        scene.told(Duration::from_secs(70), |scene| scene.plugin_heard("relay reconnecting")).await;
        proxy.set(OPEN);
        let told = scene.told(Duration::from_secs(80), |scene| scene.plugin_heard("relay connected")).await;
        keep(proxy);
        told
    })
    .waits()
}

fn slow(engine: EngineKind) -> Row {
    Row::new("relay reads nothing for 6 s", engine, goes_on(26), async |scene| {
        let between = Between::start(scene.relay.address()).await;
        scene.through = Some(between.address());
        in_call(scene).await;
        scene.mark();
        between.order(Order::Stall);
        tokio::time::sleep(Duration::from_secs(6)).await;
        between.order(Order::Pass);
        let told = scene.goes_on(SOON).await;
        keep(between);
        told
    })
}

fn floods(engine: EngineKind) -> Row {
    Row::new("relay floods", engine, goes_on(20), async |scene| {
        let between = Between::start(scene.relay.address()).await;
        scene.through = Some(between.address());
        in_call(scene).await;
        scene.mark();
        between.order(Order::Flood(5_000));
        let told = scene.goes_on(SOON).await;
        keep(between);
        told
    })
}

fn too_large(engine: EngineKind) -> Row {
    Row::new("relay sends a message of 70 KB", engine, wanted("closed 4503", RECONNECTED, 10), async |scene| {
        broken_by(scene, Order::TooLarge).await
    })
}

fn closes(engine: EngineKind, code: u16) -> Row {
    let name = format!("relay closes with {code}");
    Row::new(name, engine, wanted("closed 4503", RECONNECTED, 10), async move |scene| {
        broken_by(scene, Order::Close(code)).await
    })
}

async fn broken_by(scene: &mut Scene, order: Order) -> super::row::Told {
    let between = Between::start(scene.relay.address()).await;
    scene.through = Some(between.address());
    in_call(scene).await;
    scene.mark();
    between.order(order);
    let told = scene.told(SOON, |scene| scene.plugin_heard("relay connected")).await;
    keep(between);
    told
}

fn closes_the_grant(engine: EngineKind) -> Row {
    let told = "relay closed, closed: The relay closed the grant (4010)., exit 3";
    let told = format!("ended: The relay closed the grant (4010)., {told}");
    Row::new("relay closes with 4010", engine, wanted("closed 4503", &told, 8), async |scene| {
        let between = Between::start(scene.relay.address()).await;
        scene.through = Some(between.address());
        in_call(scene).await;
        scene.mark();
        between.order(Order::Close(4010));
        let told = scene.told(SOON, |scene| scene.plugin_heard("closed")).await;
        keep(between);
        told
    })
}

/// What stands in between stays there to the end of the row, for the next call.
fn keep<T: 'static>(between: T) {
    std::mem::forget(between);
}

const OPEN: Mode = Mode::Open { delay: Duration::ZERO };

const RECONNECTED: &str = "ended: The relay's connection dropped., watch gone, relay reconnecting, relay connected";
