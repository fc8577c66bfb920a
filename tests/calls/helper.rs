//! `watch-audio helper` in a whole call: what the plugin of today and the engine say reaches the other, in the frames and
//! the order of `helper-stdio.md`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
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
use watch_audio_probes::sim::gpt_live::{Faults, Happening, Options, Simulator, What};
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

/// How a helper's call ends.
enum End {
    /// These bytes come on its input, and then its end.
    Input(Vec<u8>),
    /// The engine ends the session.
    Engine,
    /// Nobody reads what it says any more.
    Output,
}

#[tokio::test]
async fn case_55_however_it_ends_the_helpers_log_shows_nothing_of_the_call() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let frame = |kind: u8, payload: &[u8]| {
        let mut frame = vec![kind];
        frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        frame
    };
    let said = format!("{{\"type\":\"x\",\"text\":\"{SAID}\"");
    let ends = [
        ("in order", End::Input(frame(b'Q', b""))),
        ("end of input", End::Input(Vec::new())),
        ("half a frame", End::Input(frame(b'E', said.as_bytes())[..40].to_vec())),
        ("a frame over 1 MiB", End::Input(b"P\xff\xff\xff\xff".to_vec())),
        ("an unknown frame", End::Input(frame(b'Z', SAID.as_bytes()))),
        ("a second answer that is none", End::Input(frame(b'A', SAID.as_bytes()))),
        ("a second configuration", End::Input(frame(b'C', SAID.as_bytes()))),
        ("events that are none", End::Input([frame(b'E', said.as_bytes()), frame(b'E', b"\xff\xfe")].concat())),
        ("the engine", End::Engine),
        ("closed output", End::Output),
    ];
    let calls = ends.into_iter().map(|(name, end)| async move {
        let happening = |after_ms, what| Happening { after_ms, what };
        let mut at = vec![happening(50, What::Text(format!("{{\"type\":\"x\",\"text\":\"{ENGINE_SAID}\"}}")))];
        if matches!(end, End::Engine) {
            at.push(happening(1_500, What::Closed("expired".into())));
        }
        let faults = Faults { at, ..Faults::default() };
        let engine = Simulator::start(Options { script: Script::echo(), faults, ..Options::default() }).await.unwrap();
        let mut helper = Helper::with_log(Path::new(BINARY), "trace");
        let mut stderr = helper.child.stderr.take().unwrap();
        let log = tokio::spawn(async move {
            let mut log = Vec::new();
            stderr.read_to_end(&mut log).await.unwrap();
            log
        });
        helper.say(b'C', json!({"input_rate": 16_000, "output_rate": 24_000, "stun": []}).to_string().as_bytes()).await;
        let offer = helper.until(b'O').await;
        helper.say(b'E', format!("{{\"type\":\"x\",\"text\":\"{SAID}\"}}").as_bytes()).await;
        let answer = answer(&engine, offer.clone()).await;
        // With a way of no use, which is something to log.
        let more = "a=candidate:9 1 udp 1 engine.invalid 9 typ host\r\na=candidate:";
        helper.say(b'A', answer.replacen("a=candidate:", more, 1).as_bytes()).await;
        let mut spoken = Vec::new();
        pcm::to_bytes(&question(16_000)[..32_000], &mut spoken);
        helper.until(b'e').await;
        for piece in spoken.chunks(3_200) {
            helper.say(b'P', piece).await;
        }
        let sound = helper.until(b'p').await;
        match end {
            End::Input(bytes) => {
                helper.stdin.write_all(&bytes).await.unwrap();
                let Helper { mut child, stdin, mut stdout, .. } = helper;
                drop(stdin);
                timeout(SOON, stdout.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
                timeout(SOON, child.wait()).await.unwrap().unwrap();
            }
            End::Engine => {
                helper.until(b'X').await;
                timeout(SOON, helper.child.wait()).await.unwrap().unwrap();
            }
            End::Output => {
                let Helper { mut child, stdout, .. } = helper;
                drop(stdout);
                timeout(SOON, child.wait()).await.unwrap().unwrap();
            }
        }
        let log = String::from_utf8(log.await.unwrap()).unwrap();
        assert!(log.contains("DEBUG"), "{name}: the log was on: {log}");
        let mut secrets = vec![("what was said", SAID.as_bytes()), ("what the engine said", ENGINE_SAID.as_bytes())];
        for sdp in [&String::from_utf8(offer).unwrap(), &answer] {
            for credential in ["a=ice-pwd:", "a=ice-ufrag:", "a=fingerprint:sha-256 "] {
                let value = sdp.split(credential).nth(1).unwrap().lines().next().unwrap();
                // A short one is in any text by chance.
                assert!(value.len() < 12 || !log.contains(value), "{name}: {credential} is in the log");
                assert!(!log.contains(credential), "{name}: {credential} is in the log");
            }
        }
        secrets.push(("the microphone's sound", &spoken[30_000..30_024]));
        if let Some(stretch) =
            sound.chunks_exact(24).find(|stretch| stretch.iter().filter(|byte| **byte != 0).count() > 20)
        {
            secrets.push(("the engine's sound", stretch));
        }
        for (what, secret) in secrets {
            for form in forms(secret) {
                assert!(!log.contains(&form), "{name}: {what} is in the log");
            }
        }
    });
    futures_util::future::join_all(calls).await;
}

/// A secret in the forms in which it would be written.
fn forms(secret: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    if let Ok(text) = std::str::from_utf8(secret) {
        forms.extend(text.as_bytes().windows(12).map(|piece| String::from_utf8_lossy(piece).into_owned()));
    }
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    forms.extend([hex.to_uppercase(), hex]);
    forms.push(secret.iter().map(u8::to_string).collect::<Vec<_>>().join(", "));
    // Base64 of a longer text that has it somewhere inside: it begins in one of three places.
    for offset in 0..3 {
        let whole = &secret[offset..offset + (secret.len() - offset) / 3 * 3];
        forms.extend([STANDARD_NO_PAD.encode(whole), URL_SAFE_NO_PAD.encode(whole)]);
    }
    forms
}

const SAID: &str = "my garden gate opens with seven four one nine";
const ENGINE_SAID: &str = "your next appointment is the dentist on friday";

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
        command.arg("helper");
        Self::from(command)
    }

    fn with_log(program: &Path, level: &str) -> Self {
        let mut command = Command::new(program);
        command.args(["helper", "--log-level", level]).stderr(Stdio::piped());
        Self::from(command)
    }

    fn from(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
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
