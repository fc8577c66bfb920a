//! The Watch misbehaves, or its network does.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::sleep;
use watch_audio::engine::EngineKind::{self, GptLive, Grok};
use watch_audio::seal::Kind;

use super::engines::{goes_on, in_call};
use super::row::{Row, wanted};
use super::scene::{SOON, Scene};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for engine in [GptLive, Grok] {
        rows.push(leaves(engine));
        rows.push(vanishes(engine));
        rows.push(rejoins(engine));
        rows.push(replays(engine));
        rows.push(forges(engine));
        rows.push(floods(engine));
        rows.push(starts_again_and_again(engine));
        rows.push(mutes(engine, Duration::from_secs(10)));
        rows.push(mutes(engine, Duration::from_secs(180)).long());
        rows.push(odd_sizes(engine));
        rows.push(never_reads(engine, Duration::from_secs(10)));
        rows.push(never_reads_at_all(engine).long());
    }
    rows
}

fn leaves(engine: EngineKind) -> Row {
    Row::new("Watch leaves", engine, wanted("closed 1000", LEFT, 5), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.watch.as_ref().unwrap().close().await;
        scene.told(SOON, |scene| scene.plugin_heard("watch gone")).await
    })
}

fn vanishes(engine: EngineKind) -> Row {
    Row::new("Watch is gone without a word", engine, wanted("nothing", LEFT, 5), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.watch.take().unwrap().vanish().await;
        scene.told(SOON, |scene| scene.plugin_heard("watch gone")).await
    })
}

fn rejoins(engine: EngineKind) -> Row {
    let plugin = "ended: The Watch left., watch gone, watch connected, started";
    Row::new("Watch rejoins while its old socket lives", engine, wanted("closed 4000", plugin, 20), async |scene| {
        in_call(scene).await;
        scene.mark();
        let old = scene.watch.take().unwrap();
        scene.watch_joins().await;
        assert!(scene.start().await);
        scene.hears(Duration::from_millis(500), SOON).await;
        // What the old one was told counts here; the new one goes on with the next call.
        let new = scene.watch.replace(old);
        let told = scene.told(SOON, Scene::watch_is_closed).await;
        scene.watch = new;
        told
    })
}

fn replays(engine: EngineKind) -> Row {
    Row::new("Watch's messages come twice", engine, goes_on(20), async |scene| {
        in_call(scene).await;
        let (sent, _) = scene.watch.as_ref().unwrap().wire().await;
        assert!(sent.len() > 2, "`start` among them");
        scene.mark();
        for message in sent {
            scene.watch.as_ref().unwrap().sends(message).await;
        }
        scene.goes_on(SOON).await
    })
}

fn forges(engine: EngineKind) -> Row {
    Row::new("messages that nobody sealed, moved, sent back", engine, goes_on(20), async |scene| {
        in_call(scene).await;
        let watch = scene.watch.as_ref().unwrap();
        let (sent, received) = watch.wire().await;
        scene.mark();
        let watch = scene.watch.as_ref().unwrap();
        // The window must not move: not even the largest counter does anything unproven.
        let mut forged = vec![1];
        forged.extend(u64::MAX.to_be_bytes());
        forged.extend([7; 200]);
        watch.sends(Bytes::from(forged)).await;
        for message in sent.iter().take(5) {
            let mut other = message.to_vec();
            other[0] = other[0] % 3 + 1;
            other[1] = 0x7f;
            watch.sends(Bytes::from(other)).await;
        }
        for message in received.into_iter().take(5) {
            watch.sends(message).await;
        }
        for message in [&[1][..], &[2, 0, 0], &[3; 24], &[4], &[4; 18], &[9; 100]] {
            watch.sends(Bytes::copy_from_slice(message)).await;
        }
        scene.goes_on(SOON).await
    })
}

fn floods(engine: EngineKind) -> Row {
    Row::new("Watch floods", engine, wanted("closed 4429", LEFT, 10), async |scene| {
        in_call(scene).await;
        scene.mark();
        for _ in 0..30 {
            scene.watch.as_ref().unwrap().says(Kind::Audio, &vec![0; 30_000]).await;
        }
        scene.told(SOON, |scene| scene.plugin_heard("watch gone")).await
    })
}

fn starts_again_and_again(engine: EngineKind) -> Row {
    let restarted = ["ended: restarted"; 10].join(", ");
    let watch = format!("{restarted}, started; the call goes on");
    let wanted = wanted(&watch, &format!("{restarted}, started"), 25);
    Row::new("Watch starts ten times in a row", engine, wanted, async move |scene| {
        in_call(scene).await;
        scene.mark();
        for _ in 0..9 {
            scene.watch.as_ref().unwrap().start(engine, "").await;
        }
        scene.watch.as_ref().unwrap().start(engine, "").await;
        let told = scene.told(SOON, |scene| scene.watch_said().contains(&"started".to_owned())).await;
        assert!(told.watch.ends_with("started"), "{}", told.watch);
        scene.watch.as_ref().unwrap().started(engine, "").await;
        scene.goes_on(SOON).await
    })
}

fn mutes(engine: EngineKind, time: Duration) -> Row {
    let row = Row::new(
        format!("Watch mutes for {} s", time.as_secs()),
        engine,
        goes_on(time.as_secs() + 20),
        async move |scene| {
            in_call(scene).await;
            scene.mark();
            scene.watch.as_ref().unwrap().speaks(false);
            let mut left = time;
            while !left.is_zero() {
                let step = left.min(Duration::from_secs(20));
                sleep(step).await;
                left -= step;
                scene.watch.as_ref().unwrap().ping().await;
            }
            let loud = scene.engine.as_ref().unwrap().heard_ms();
            scene.watch.as_ref().unwrap().speaks(true);
            let wanted = loud + 300;
            let heard = super::plugin::within(SOON, || scene.engine.as_ref().unwrap().heard_ms() > wanted).await;
            assert!(heard, "the engine hears the Watch again");
            // The engine's minute of speech may be over; that the call is there shows in what is told.
            let after = scene.told(Duration::ZERO, |_| true).await;
            super::row::Told { watch: format!("{}; the call goes on", after.watch), ..after }
        },
    );
    row.waits()
}

fn odd_sizes(engine: EngineKind) -> Row {
    Row::new("Watch sends messages of odd sizes", engine, goes_on(20), async |scene| {
        in_call(scene).await;
        scene.mark();
        let watch = scene.watch.as_ref().unwrap();
        for size in [0, 1, 2, 3, 5, 333, 4_799, 4_801, 9_999, 65_511, 1, 0] {
            watch.says(Kind::Audio, &vec![0; size]).await;
        }
        for text in ["", "no JSON", "[]", "{\"type\":7}", "{\"type\":\"start\"", "\u{0}"] {
            watch.says(Kind::Control, text.as_bytes()).await;
        }
        watch.says(Kind::Control, &[0xff, 0xfe]).await;
        watch.control(&json!({"type": "news"})).await;
        scene.goes_on(SOON).await
    })
}

fn never_reads(engine: EngineKind, time: Duration) -> Row {
    let name = format!("Watch reads nothing for {} s", time.as_secs());
    Row::new(name, engine, goes_on(time.as_secs() + 20), async move |scene| {
        in_call(scene).await;
        scene.mark();
        scene.watch.as_ref().unwrap().reads(false);
        scene.waits();
        sleep(time).await;
        scene.watch.as_ref().unwrap().reads(true);
        scene.goes_on(SOON).await
    })
    .waits()
}

/// Its relay waits with the host's messages; the host's control messages pile up past their bound, and the host begins anew.
fn never_reads_at_all(engine: EngineKind) -> Row {
    let wanted = wanted(
        "closed 4503",
        "ended: The relay's connection dropped., watch gone, relay reconnecting, relay connected",
        100,
    );
    Row::new("Watch reads nothing for good", engine, wanted, async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.watch.as_ref().unwrap().reads(false);
        scene.waits();
        // It reads again when the host has begun anew: the relay's goodbye waits 2 s for it, and breaks off then.
        super::plugin::within(Duration::from_secs(120), || scene.plugin_heard("relay reconnecting")).await;
        scene.watch.as_ref().unwrap().reads(true);
        let told = scene.told(Duration::from_secs(120), |scene| scene.plugin_heard("relay connected")).await;
        let over = super::plugin::within(SOON, || scene.watch_is_closed()).await;
        assert!(over, "the Watch is told in the end");
        super::row::Told { watch: scene.watch_said().join(", "), ..told }
    })
}

const LEFT: &str = "ended: The Watch left., watch gone";
