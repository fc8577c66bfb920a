//! `watch-audio helper` in a whole call: what the plugin of today and the engine say reaches the other, in the frames and
//! the order of `helper-stdio.md`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use watch_audio::engine::{EngineKind, Start};
use watch_audio::secret::Secret;
use watch_audio::sign_in::openai;
use watch_audio::sign_in::session::session_request;
use watch_audio_media::pcm;
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::likeness::find;
use watch_audio_probes::sim::gpt_live::{Options, Simulator};
use watch_audio_probes::sim::script::Script;

use super::support::{BINARY, SOON, question};

#[tokio::test]
async fn helper_frames_go_both_ways_in_their_order_and_the_last_is_x() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let engine = Simulator::start(Options { script: Script::echo(), ..Options::default() }).await.unwrap();
    let mut helper = Helper::spawn(Path::new(BINARY));
    helper.say(b'C', json!({"input_rate": 16_000, "output_rate": 24_000, "stun": []}).to_string().as_bytes()).await;
    let (kind, offer) = helper.next().await;
    assert_eq!(kind, b'O');
    // 65 events before there is a channel: the last 64 are held for it, byte for byte and in order.
    let event =
        |n: usize| json!({"type": "session.thinking.append", "delegation_id": null, "content": format!("{n} é")});
    for n in 0..65 {
        helper.say(b'E', event(n).to_string().as_bytes()).await;
    }
    helper.say(b'A', answer(&engine, offer).await.as_bytes()).await;
    let (kind, _) = helper.next().await;
    assert_eq!(kind, b'R', "before any sound or event");

    // The microphone in pieces that are no whole samples.
    let mut spoken = Vec::new();
    pcm::to_bytes(&question(16_000), &mut spoken);
    let mut pieces = spoken.chunks(1_601);
    let (mut played, mut texts) = (Vec::new(), Vec::new());
    let mut microphone = tokio::time::interval(Duration::from_millis(50));
    // The question, a pause, and all of it said back.
    while played.len() < 24_000 * 9 * 2 {
        tokio::select! {
            (kind, payload) = helper.next() => match kind {
                b'p' => played.extend(payload),
                b'e' => texts.push(String::from_utf8(payload).unwrap()),
                other => panic!("a frame of kind {}", other as char),
            },
            _ = microphone.tick() => if let Some(piece) = pieces.next() {
                say(&mut helper.stdin, b'P', piece).await;
            },
        }
    }
    let mut samples = Vec::new();
    pcm::from_bytes(&played, &mut samples);
    let echo = find(&question(24_000), &samples, 24_000).unwrap();
    assert!(echo.loudness > 0.9, "{echo:?}");
    assert!(texts[0].contains("session.started"));
    engine.look(|sessions| {
        let held: Vec<&str> = sessions[0].received.iter().map(|event| &*event.text).collect();
        assert_eq!(held, (1..65).map(|n| event(n).to_string()).collect::<Vec<_>>());
    });

    helper.say(b'Q', b"").await;
    let (mut last, mut frames) = (0, 0);
    while let Some((kind, payload)) = helper.read().await {
        assert_ne!(last, b'X', "nothing follows X");
        if kind == b'X' {
            assert!(serde_json::from_slice::<Value>(&payload).unwrap()["reason"].is_string());
        }
        (last, frames) = (kind, frames + 1);
    }
    assert_eq!(last, b'X', "of {frames} frames");
    assert_eq!(timeout(SOON, helper.child.wait()).await.unwrap().unwrap().code(), Some(0));
}

/// The engine's answer to an offer.
pub(crate) async fn answer(engine: &Simulator, offer: Vec<u8>) -> String {
    let start = Start { engine: EngineKind::GptLive, fields: Map::new() };
    let session = session_request(Dialect::A, &start, None, None).session;
    let (http, key) = (openai::http_client(["http://localhost"]).unwrap(), Secret::new("key"));
    let offer = String::from_utf8(offer).unwrap();
    openai::create_with_key(&http, &engine.url(), &key, &session, &offer).await.unwrap()
}

/// The process, as the plugin holds it.
pub(crate) struct Helper {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// What was read of the next frame.
    begun: Vec<u8>,
}

impl Helper {
    pub(crate) fn spawn(program: &Path) -> Self {
        let mut command = Command::new(program);
        let command = command.arg("helper").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout, begun: Vec::new() }
    }

    pub(crate) async fn say(&mut self, kind: u8, payload: &[u8]) {
        say(&mut self.stdin, kind, payload).await;
    }

    /// The next frame of a kind.
    pub(crate) async fn until(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let (kind, payload) = self.next().await;
            if kind == wanted {
                return payload;
            }
        }
    }

    async fn next(&mut self) -> (u8, Vec<u8>) {
        self.read().await.expect("another frame")
    }

    /// The next frame, none at the end. Cancel safe.
    async fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((head, rest)) = self.begun.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= length {
                    let frame = (head[0], rest[..length].to_vec());
                    self.begun.drain(..5 + length);
                    return Some(frame);
                }
            }
            if timeout(SOON, self.stdout.read_buf(&mut self.begun)).await.expect("a frame in time").unwrap() == 0 {
                return None;
            }
        }
    }
}

async fn say(stdin: &mut ChildStdin, kind: u8, payload: &[u8]) {
    let mut frame = vec![kind];
    frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend(payload);
    stdin.write_all(&frame).await.unwrap();
}
