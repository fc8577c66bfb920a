//! The engine fails.

use std::net::TcpListener;
use std::time::Duration;

use watch_audio::engine::EngineKind::{self, GptLive, Grok};
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::plugin::SignIns;
use watch_audio_probes::sim::gpt_live::{Happening, Path, Timing, What};
use watch_audio_probes::sim::{gpt_live, grok};

use super::plugin::Answering;
use super::row::{Row, Told, wanted};
use super::scene::{SOON, SPOKEN, Scene};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for engine in [GptLive, Grok] {
        rows.push(never_answers(engine));
        rows.push(not_there(engine));
        for (status, code) in [(401, "refused"), (403, "refused"), (429, "rate_limited"), (500, "unreachable")] {
            rows.push(refuses(engine, status, code));
        }
        rows.push(answers_late(engine));
        rows.push(dies(engine));
        rows.push(goes_silent(engine));
        rows.push(closes(engine));
        rows.push(sends_junk(engine));
        rows.push(sends_a_flood(engine));
    }
    rows.push(no_way_to_it());
    rows.push(a_large_event());
    rows.push(too_large_a_message());
    rows
}

/// The Watch asks for an engine with these faults; what it is told.
async fn asks(scene: &mut Scene, gpt_live: gpt_live::Options, grok: grok::Options, limit: u64) -> Told {
    scene.engine_with(gpt_live, grok).await;
    asks_for_it(scene, limit).await
}

async fn asks_for_it(scene: &mut Scene, limit: u64) -> Told {
    scene.lobby().await;
    scene.mark();
    scene.watch.as_ref().unwrap().start(scene.kind, "").await;
    if limit > 20 {
        scene.waits();
    }
    scene.told(Duration::from_secs(limit), |scene| !scene.watch_said().is_empty()).await
}

fn never_answers(engine: EngineKind) -> Row {
    let within = if engine == GptLive { 34 } else { 20 };
    Row::new("engine never answers", engine, wanted(&not_started("unreachable"), NOT_STARTED, within), async |scene| {
        let timing = Timing { answer_ms: 600_000, ..Default::default() };
        let faults = grok::Faults { answer_after_ms: 600_000, ..Default::default() };
        asks(
            scene,
            gpt_live::Options { timing, ..Default::default() },
            grok::Options { faults, ..Default::default() },
            45,
        )
        .await
    })
    .waits()
}

fn not_there(engine: EngineKind) -> Row {
    Row::new("engine is not there", engine, wanted(&not_started("unreachable"), NOT_STARTED, 5), async |scene| {
        // A port that nobody listens on any more.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let gpt_live = Some((format!("http://{port}"), Dialect::B));
        let sign_ins = SignIns { gpt_live, grok: Some(format!("ws://{port}/v1/realtime")), bearer: None };
        *scene.desk.0.lock().unwrap() = Answering::Usual(sign_ins);
        asks_for_it(scene, 20).await
    })
}

fn refuses(engine: EngineKind, status: u16, code: &str) -> Row {
    let name = format!("engine refuses with {status}");
    Row::new(name, engine, wanted(&not_started(code), NOT_STARTED, 5), async move |scene| {
        let faults = gpt_live::Faults { http_status: Some(status), ..Default::default() };
        let grok_faults = grok::Faults { http_status: Some(status), ..Default::default() };
        asks(
            scene,
            gpt_live::Options { faults, ..Default::default() },
            grok::Options { faults: grok_faults, ..Default::default() },
            20,
        )
        .await
    })
}

fn answers_late(engine: EngineKind) -> Row {
    Row::new("engine answers 5 s late", engine, wanted("started; the call goes on", "started", 12), async |scene| {
        let timing = Timing { answer_ms: 5_000, ..Default::default() };
        let faults = grok::Faults { answer_after_ms: 5_000, ..Default::default() };
        scene
            .engine_with(
                gpt_live::Options { timing, ..Default::default() },
                grok::Options { faults, ..Default::default() },
            )
            .await;
        scene.lobby().await;
        scene.mark();
        assert!(scene.start().await);
        scene.goes_on(SOON).await
    })
}

fn no_way_to_it() -> Row {
    let wanted = wanted(&not_started("unreachable"), NOT_STARTED, 11);
    Row::new("engine answers, but no path to it carries anything", GptLive, wanted, async |scene| {
        let faults = gpt_live::Faults { udp: Path::Dead, tcp: Path::Dead, ..Default::default() };
        let told = asks(scene, gpt_live::Options { faults, ..Default::default() }, Default::default(), 20).await;
        // It was never connected, and notices that by itself only much later.
        scene.forget_engine();
        told
    })
    .waits()
}

fn dies(engine: EngineKind) -> Row {
    // Nothing tells of the end of a UDP path but its silence: consent runs out after 30 s (RFC 7675).
    let (reason, within) = match engine {
        GptLive => ("the connection to the engine was lost | ended: the engine hung up", 35),
        Grok => ("The connection to the engine was lost.", 3),
    };
    let row = Row::new("engine dies", engine, ended(reason, within), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.forget_engine();
        scene.waits();
        scene.told(Duration::from_secs(60), Scene::watch_is_over).await
    });
    if engine == GptLive { row.waits() } else { row }
}

fn goes_silent(engine: EngineKind) -> Row {
    let (reason, within) = match engine {
        GptLive => ("the connection to the engine was lost", 45),
        // 60 s without a word, the answer to our pings too.
        Grok => ("The engine stopped answering.", 72),
    };
    Row::new("engine goes silent", engine, ended(reason, within), async |scene| {
        let at = vec![Happening { after_ms: 6_000, what: What::Vanish }];
        let gpt_live =
            gpt_live::Options { faults: gpt_live::Faults { at, ..Default::default() }, ..Default::default() };
        let faults = grok::Faults { vanish_after_ms: Some(6_000), ..Default::default() };
        scene.engine_with(gpt_live, grok::Options { faults, ..Default::default() }).await;
        scene.call().await;
        scene.mark();
        scene.waits();
        let told = scene.told(Duration::from_secs(80), Scene::watch_is_over).await;
        scene.forget_engine();
        told
    })
    .waits()
}

fn closes(engine: EngineKind) -> Row {
    let reason = if engine == GptLive { "expired" } else { "The engine ended the call." };
    Row::new("engine closes in order", engine, ended(reason, 10), async |scene| {
        let at = vec![Happening { after_ms: 5_000, what: What::Closed("expired".into()) }];
        let gpt_live =
            gpt_live::Options { faults: gpt_live::Faults { at, ..Default::default() }, ..Default::default() };
        let faults = grok::Faults { close_after_ms: Some(5_000), ..Default::default() };
        scene.engine_with(gpt_live, grok::Options { faults, ..Default::default() }).await;
        scene.call().await;
        scene.mark();
        scene.told(SOON, Scene::watch_is_over).await
    })
}

fn sends_junk(engine: EngineKind) -> Row {
    Row::new("engine sends junk", engine, goes_on(20), async |scene| {
        let texts = [
            "no JSON".to_owned(),
            String::new(),
            "[]".to_owned(),
            "{\"type\":7}".to_owned(),
            format!("{{\"type\":\"error\",\"error\":{{\"message\":\"{SPOKEN}\"}}}}"),
            "{\"type\":\"response.output_audio.delta\",\"delta\":\"%%%\"}".to_owned(),
            "{\"type\":\"response.output_audio.delta\",\"delta\":17,\"item_id\":[]}".to_owned(),
            "\u{0}\u{1}\u{ffff}".to_owned(),
        ];
        let at = texts.iter().map(|text| Happening { after_ms: 5_000, what: What::Text(text.clone()) }).collect();
        let rtp = gpt_live::RtpFaults {
            empty_every: Some(5),
            double_every: Some(7),
            swap_every: Some(9),
            ..Default::default()
        };
        let gpt_live =
            gpt_live::Options { faults: gpt_live::Faults { at, rtp, ..Default::default() }, ..Default::default() };
        let inject = texts.into_iter().map(|text| grok::Injection { after_ms: 5_000, text }).collect();
        let faults = grok::Faults { inject, broken_base64: Some(3), ..Default::default() };
        scene.engine_with(gpt_live, grok::Options { faults, ..Default::default() }).await;
        scene.call().await;
        scene.mark();
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.goes_on(SOON).await
    })
}

fn sends_a_flood(engine: EngineKind) -> Row {
    Row::new("engine sends 300 events of 1 KB at once", engine, goes_on(20), async |scene| {
        let text = |n| format!("{{\"type\":\"flood\",\"n\":{n},\"text\":\"{}\"}}", "x".repeat(1_000));
        let at = (0..300).map(|n| Happening { after_ms: 5_000, what: What::Text(text(n)) }).collect();
        let gpt_live =
            gpt_live::Options { faults: gpt_live::Faults { at, ..Default::default() }, ..Default::default() };
        let inject = (0..300).map(|n| grok::Injection { after_ms: 5_000, text: text(n) }).collect();
        let faults = grok::Faults { inject, ..Default::default() };
        scene.engine_with(gpt_live, grok::Options { faults, ..Default::default() }).await;
        scene.call().await;
        scene.mark();
        // GPT-Live's come at once and all; Grok's wait for their place behind the audio.
        let came = |scene: &Scene| {
            scene.watch.as_ref().unwrap().look(|heard| heard.events.iter().filter(|kind| *kind == "flood").count())
        };
        if scene.kind == GptLive {
            scene.told(SOON, |scene| came(scene) == 300).await;
            assert_eq!(came(scene), 300);
        } else {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        scene.goes_on(SOON).await
    })
}

fn a_large_event() -> Row {
    Row::new("engine sends an event of 200 KB", GptLive, goes_on(20), async |scene| {
        let at = vec![Happening { after_ms: 5_000, what: What::Huge(200_000) }];
        let gpt_live =
            gpt_live::Options { faults: gpt_live::Faults { at, ..Default::default() }, ..Default::default() };
        scene.engine_with(gpt_live, Default::default()).await;
        scene.call().await;
        scene.mark();
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.goes_on(SOON).await
    })
}

fn too_large_a_message() -> Row {
    Row::new(
        "engine sends a message of 5 MB",
        Grok,
        ended("The engine sent a message that is too large.", 5),
        async |scene| {
            let text = format!("{{\"type\":\"flood\",\"text\":\"{}\"}}", "x".repeat(5 << 20));
            let inject = vec![grok::Injection { after_ms: 5_000, text }];
            let faults = grok::Faults { inject, ..Default::default() };
            scene.engine_with(Default::default(), grok::Options { faults, ..Default::default() }).await;
            scene.call().await;
            scene.mark();
            scene.told(SOON, Scene::watch_is_over).await
        },
    )
}

/// A call with an engine in good health.
pub(crate) async fn in_call(scene: &mut Scene) {
    scene.engine_with(Default::default(), Default::default()).await;
    scene.call().await;
}

fn not_started(code: &str) -> String {
    format!("error {code}, ended: error")
}

const NOT_STARTED: &str = "ended: error";

/// The engine's end is told to both sides in the same words.
fn ended(reason: &str, within: u64) -> super::row::Wanted {
    let told = format!("ended: {reason}");
    wanted(&told, &told, within)
}

/// Nobody is told anything, for there is nothing to tell.
pub(crate) fn goes_on(within: u64) -> super::row::Wanted {
    wanted("nothing; the call goes on", "nothing", within)
}
