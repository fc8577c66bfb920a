//! The plugin fails.

use std::fs;
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;
use watch_audio::engine::EngineKind::{self, GptLive, Grok};

use super::engines::in_call;
use super::plugin::{Answering, is_gone, within};
use super::row::{Row, wanted};
use super::scene::{BINARY, BRIDGE, SOON, Scene};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for engine in [GptLive, Grok] {
        rows.push(dies(engine));
        rows.push(stops_reading(engine));
        rows.push(sends_junk(engine));
        rows.push(answers_junk(engine));
        rows.push(closes_stdin(engine));
    }
    rows
}

fn dies(engine: EngineKind) -> Row {
    let told = format!("{OVER}, relay closed, closed: The host ended the call., exit -1");
    Row::new("parent dies", engine, wanted(&over(OVER), &told, 6), async |scene| {
        scene.engine_with(Default::default(), Default::default()).await;
        // The parent is a shell; the bridge's input stays open, so that no end of it comes.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 3<&0; \"$0\" \"$@\" <&3 & wait", BINARY]).args(BRIDGE);
        scene.plugin_as(shell).await;
        scene.plugin_says("the relay reached", SOON, |said| !said.is_empty()).await;
        let bridge = child_of(scene.pid().unwrap()).expect("the shell's child");
        scene.plugin.as_mut().unwrap().set_pid(bridge);
        scene.call_on().await;
        scene.mark();
        scene.plugin.as_mut().unwrap().kill_child();
        let told = scene.told(SOON, |scene| scene.watch_is_closed() && scene.plugin_heard("closed")).await;
        assert!(within(Duration::from_secs(6), || is_gone(bridge)).await, "the bridge outlives its parent");
        told
    })
}

/// The one process that this one started.
fn child_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn stops_reading(engine: EngineKind) -> Row {
    // What it was told before it reads again is for nobody; that the Watch is told and the process ends is what counts.
    let watch = over(OVER);
    Row::new("parent stops reading", engine, wanted(&watch, "exit 0", 40), async move |scene| {
        in_call(scene).await;
        scene.mark();
        scene.plugin.as_ref().unwrap().reads(false);
        // For a while nobody notices.
        scene.goes_on(SOON).await;
        // Then more is to be said than fits into the pipe and the queue.
        *scene.desk.0.lock().unwrap() = Answering::With(json!({"type": "nothing"}));
        scene.watch.as_ref().unwrap().speaks(false);
        for n in 0..1_500 {
            if scene.watch_is_closed() {
                break;
            }
            scene.watch.as_ref().unwrap().start(engine, "").await;
            // Within what the relay passes on.
            if n % 20 == 19 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let told = scene.told(SOON, Scene::watch_is_closed).await;
        let end = tokio::time::Instant::now() + SOON;
        let mut exit = None;
        while exit.is_none() && tokio::time::Instant::now() < end {
            exit = scene.exit().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let last: Vec<&str> = told.watch.rsplit(", ").take(2).collect();
        super::row::Told {
            watch: format!("{}, {}", last[1], last[0]),
            plugin: exit.map_or_else(|| "still there".to_owned(), |code| format!("exit {code}")),
            ..told
        }
    })
}

fn sends_junk(engine: EngineKind) -> Row {
    let ended = "ended: The host said something unexpected.";
    let told = format!("{ended}, relay closed, closed: The host said something unexpected., exit 2");
    Row::new("parent sends junk", engine, wanted(&over(ended), &told, 5), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.plugin.as_ref().unwrap().says("no JSON").await;
        scene.told(SOON, |scene| scene.watch_is_closed() && scene.plugin_heard("closed")).await
    })
}

fn answers_junk(engine: EngineKind) -> Row {
    let wanted = wanted("error failed, ended: error", "ended: error", 5);
    Row::new("parent answers with junk", engine, wanted, async move |scene| {
        let answer = json!({"type": "session", "sdp": "v=0 and no more", "url": "ftp://nowhere", "bearer": "two\nlines",
                            "model": "m", "voice": 7});
        *scene.desk.0.lock().unwrap() = Answering::With(answer);
        scene.lobby().await;
        scene.mark();
        scene.watch.as_ref().unwrap().start(engine, "").await;
        scene.told(SOON, Scene::watch_is_over).await
    })
}

fn closes_stdin(engine: EngineKind) -> Row {
    let told = format!("{OVER}, relay closed, closed: The host ended the call., exit 0");
    Row::new("parent closes stdin", engine, wanted(&over(OVER), &told, 5), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.plugin.as_mut().unwrap().close_stdin();
        scene.told(SOON, |scene| scene.watch_is_closed() && scene.plugin_heard("closed")).await
    })
}

const OVER: &str = "ended: The host ended the call.";

fn over(ended: &str) -> String {
    format!("{ended}, closed 4503")
}
