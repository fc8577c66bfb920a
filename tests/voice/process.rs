//! `watch-audio voice` as a process: its options, what it says at start, its exit codes, and that nothing secret is said.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use watch_audio::secret::Secret;
use watch_audio_probes::sim::{gpt_live, hermes};

use crate::support::LIMIT;

const HERMES_KEY: &str = "hermes-key-not-to-be-seen";
const OPENAI_KEY: &str = "sk-openai-not-to-be-seen";
const TOKEN: &str = "access-token-not-to-be-seen";
const SPEECH: &str = "what-was-said-not-to-be-seen";

/// Files with secrets, as they should be.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        for (name, content) in [("hermes", HERMES_KEY), ("openai", OPENAI_KEY), ("token", TOKEN)] {
            files.write(name, &format!("{content}\n"));
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn command(&self, hermes_url: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_watch-audio"));
        command.args(["voice", "--hermes-url", hermes_url]);
        if !more.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.arg("--hermes-key-file").arg(self.path("hermes"));
        command.arg("--openai-key-file").arg(self.path("openai"));
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

async fn output(command: &mut Command) -> (Option<i32>, String) {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let Output { status, stderr, .. } = timeout(LIMIT, command.output()).await.unwrap().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Waits until the page is there; gives its address and what was said so far.
async fn page(child: &mut Child) -> (String, String, BufReader<tokio::process::ChildStderr>) {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("The page is at ") || !said.ends_with('\n') {
        let read = timeout(LIMIT, stderr.read_line(&mut said)).await.unwrap().unwrap();
        assert!(read > 0, "{said}");
    }
    let url = said.split("The page is at ").nth(1).unwrap().trim().to_owned();
    (url, said, stderr)
}

async fn terminate(child: &mut Child) -> Option<i32> {
    let id = child.id().unwrap().to_string();
    std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
    timeout(LIMIT, child.wait()).await.unwrap().unwrap().code()
}

fn http() -> reqwest::Client {
    watch_audio::tls::ensure_provider();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn bad_use_is_told_in_a_sentence_and_exits_with_2() {
    let files = Files::new();
    let url = "http://127.0.0.1:8642";
    for (more, told) in [
        (&["--listen", "0.0.0.0:0"][..], "whoever can use this server can drive the agent"),
        (&["--listen", "8790"], "8790 is no address to listen at"),
        (&["--config", "/nonexistent"], "/nonexistent cannot be read"),
        (&["--access-token-file", "/nonexistent"], "/nonexistent cannot be read"),
        (&["--demo"], "cannot be used with"),
        (&["--key", "x"], "unexpected argument"),
    ] {
        let mut command = files.command(url, more);
        let (code, said) = output(&mut command).await;
        assert!(code == Some(2) && said.contains(told), "{more:?}: {code:?} {said}");
    }
    let (code, said) = output(&mut files.command("http://hermes.example", &[])).await;
    assert!(code == Some(2) && said.contains("its key would travel in clear"), "{said}");
    let (code, said) = output(Command::new(env!("CARGO_BIN_EXE_watch-audio")).args(["voice"])).await;
    assert!(code == Some(2) && said.contains("--hermes-url") && said.contains("--openai-key-file"), "{said}");

    for (content, told) in
        [("", "must hold one secret"), ("two words", "must hold one secret"), ("sk-\u{e9}", "must hold one secret")]
    {
        files.write("openai", content);
        let (code, said) = output(&mut files.command(url, &[])).await;
        assert!(code == Some(2) && said.contains(told) && !said.contains("sk-"), "{said}");
    }
    files.write("openai", OPENAI_KEY);
    for (config, told) in [
        (json!({"voices": []}), "unknown field"),
        (json!({"idle_seconds": 0}), "idle_seconds must be from 5 to 3600"),
        (json!({"voice": ""}), "must not be empty"),
        (json!({"openai_url": "http://openai.example"}), "must be https"),
    ] {
        files.write("config", &config.to_string());
        let path = files.path("config");
        let (code, said) = output(&mut files.command(url, &["--config", path.to_str().unwrap()])).await;
        assert!(code == Some(2) && said.contains(told), "{said}");
    }
}

#[tokio::test]
async fn it_says_where_the_page_is_and_ends_in_order() {
    let files = Files::new();
    std::fs::set_permissions(files.path("hermes"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut child = files.command("http://127.0.0.1:8642", &[]).spawn().unwrap();
    let (url, said, mut stderr) = page(&mut child).await;
    assert!(said.contains("others can read this file") && said.contains("hermes"), "{said}");
    assert_eq!(said.matches("others can read").count(), 1);
    assert_eq!(http().get(&url).send().await.unwrap().status(), 200);
    assert_eq!(terminate(&mut child).await, Some(0));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("no microphone unless it comes from this machine or over HTTPS"), "{rest}");
}

#[tokio::test]
async fn a_proxy_does_not_get_what_stays_on_this_machine() {
    let files = Files::new();
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine =
        gpt_live::Simulator::start(gpt_live::Options { bearer: Some(Secret::new("another")), ..Default::default() });
    let engine = engine.await.unwrap();
    files.write("config", &json!({"openai_url": engine.url()}).to_string());
    let mut command = files.command("http://127.0.0.1:8642", &["--config", files.path("config").to_str().unwrap()]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(name, format!("http://{}", proxy.local_addr().unwrap()));
    }
    let mut child = command.env_remove("NO_PROXY").env_remove("no_proxy").spawn().unwrap();
    let (url, _, _stderr) = page(&mut child).await;
    let answer = http().post(format!("{url}session")).json(&json!({"sdp": "v=0\r\n"})).send().await.unwrap();
    let told: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(told["status"], 401, "the engine has answered");
    assert!(timeout(Duration::from_millis(100), proxy.accept()).await.is_err(), "the proxy was asked");
}

#[tokio::test]
async fn case_55_no_level_shows_a_secret_or_what_was_said() {
    let files = Files::new();
    let hermes = hermes::Simulator::start(hermes::Options {
        key: Some(Secret::new(HERMES_KEY)),
        jobs: vec![
            vec![
                hermes::Step::Delta(SPEECH.into()),
                hermes::Step::Approval { command: SPEECH.into(), description: SPEECH.into(), denied: String::new() },
                hermes::Step::Fail(SPEECH.into()),
            ],
            vec![hermes::Step::Complete(SPEECH.into())],
        ],
        ..Default::default()
    });
    let hermes = hermes.await.unwrap();
    // It refuses with a text that repeats the key.
    let engine =
        gpt_live::Simulator::start(gpt_live::Options { bearer: Some(Secret::new("another")), ..Default::default() });
    let engine = engine.await.unwrap();
    files.write(
        "config",
        &json!({"openai_url": engine.url(), "instructions": SPEECH, "glossary": [SPEECH]}).to_string(),
    );
    let (config, token) = (files.path("config"), files.path("token"));
    let options =
        ["--config", config.to_str().unwrap(), "--access-token-file", token.to_str().unwrap(), "--log-level=trace"];
    let mut child = files.command(&hermes.url(), &options).spawn().unwrap();
    let (url, mut said, mut stderr) = page(&mut child).await;
    let post = async |path: &str, body: serde_json::Value| {
        http().post(format!("{url}{path}")).bearer_auth(TOKEN).json(&body).send().await.unwrap()
    };
    let offer = "v=0\r\na=ice-pwd:what-was-said-not-to-be-seen\r\n";
    assert_eq!(
        post("session", json!({"sdp": offer, "history": [{"speaker": "user", "text": SPEECH}]})).await.status(),
        502
    );
    let lines = json!([{"speaker": "user", "text": SPEECH}]);
    let first = post("delegate", json!({"hermes_session": "a", "lines": lines})).await;
    assert_eq!(first.status(), 200);
    let second = post("delegate", json!({"hermes_session": "a", "lines": lines})).await;
    assert!(second.text().await.unwrap().contains(SPEECH));
    assert_eq!(post("approve", json!({"run_id": "run_1", "choice": "once"})).await.status(), 404);
    assert_eq!(http().get(format!("{url}config")).bearer_auth(SPEECH).send().await.unwrap().status(), 401);
    drop(first);
    hermes.shutdown().await;
    assert_eq!(
        post("delegate", json!({"hermes_session": "b", "lines": lines, "delegation_id": "x y"})).await.status(),
        400
    );
    assert_eq!(terminate(&mut child).await, Some(0));
    stderr.read_to_string(&mut said).await.unwrap();
    for secret in [HERMES_KEY, OPENAI_KEY, TOKEN, SPEECH] {
        assert!(!said.contains(secret), "{said}");
    }
    assert!(said.contains("the voice service refused a session"), "the log is there: {said}");
}

#[tokio::test]
async fn the_demonstration_is_the_probe_beside_this_program() {
    let alone = tempfile::tempdir().unwrap();
    let copy = alone.path().join("watch-audio");
    std::fs::copy(env!("CARGO_BIN_EXE_watch-audio"), &copy).unwrap();
    let (code, said) = output(Command::new(&copy).args(["voice", "--demo"])).await;
    let told = format!("--demo needs {}", alone.path().join("watch-audio-probe").display());
    assert!(code == Some(2) && said.contains(&told) && said.contains("cargo build --workspace"), "{said}");

    // With it, it is that program from then on, with the options that concern it.
    let probe = alone.path().join("watch-audio-probe");
    std::fs::write(&probe, "#!/bin/sh\nprintf '%s|' \"$@\" >&2\n").unwrap();
    std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["voice", "--demo", "--listen", "[::1]:0", "--config", "c", "--access-token-file", "t"];
    for (more, level) in [(&[][..], "warn"), (&["--log-level", "debug"], "debug")] {
        let (code, said) = output(Command::new(&copy).args(options).args(more)).await;
        let expected = "--listen|[::1]:0|--access-token-file|t|--config|c|";
        assert_eq!((code, said), (Some(0), format!("voice-demo|--log-level|{level}|{expected}")));
    }
}
