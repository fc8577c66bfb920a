//! Work for Hermes: a Watch call's delegations as its runs, and the demonstration of the browser call.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;
use watch_audio::secret::Secret;
use watch_audio_probes::sim::hermes::{Faults, Options, Simulator, StartFault, Step};

const KEY: &str = "hermes-key-0123456789";
const ANSWER: &str = "It is sunny in Tokyo. Twenty one degrees.";

/// Longer than a call takes, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(90);

fn probe(dir: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watch-audio-probe"));
    command.current_dir(dir.path()).env("XDG_RUNTIME_DIR", dir.path()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn key_file(dir: &TempDir) {
    let path = dir.path().join("key");
    fs::write(&path, KEY).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

async fn hermes(jobs: Vec<Step>, faults: Faults) -> Simulator {
    let options = Options { key: Some(Secret::new(KEY)), jobs: vec![jobs], faults, ..Options::default() };
    Simulator::start(options).await.unwrap()
}

/// A call of the sample question whose delegations go to `hermes`.
async fn call(dir: &TempDir, hermes: &Simulator, more: &[&str]) -> (Option<i32>, Value) {
    key_file(dir);
    let question = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/question.wav");
    let mut command = probe(dir);
    command.arg(question).args(["--json", "--hermes", &hermes.url(), "--hermes-key-file", "key"]).args(more);
    let output = timeout(LIMIT, command.output()).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing to complain of");
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// The details of the timeline's moments of this kind.
fn moments<'a>(report: &'a Value, what: &str) -> Vec<&'a str> {
    let moments = report["timeline"].as_array().unwrap().iter().filter(|moment| moment["what"] == what);
    moments.map(|moment| moment["detail"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_calls_delegations_run_as_hermes_jobs() {
    let steps = || {
        vec![
            Step::Tool { name: "web_search".into(), ms: 300, error: false },
            Step::Approval { command: "curl weather".into(), description: "look".into(), denied: "I may not.".into() },
            Step::Complete(ANSWER.into()),
        ]
    };
    let calls = [
        (&["--dialect", "a", "--approve", "once"][..], "User: what is the weather in tokyo today", ANSWER),
        (&["--approve", "session"], "User: find out what the weather in tokyo is today", ANSWER),
        (&["--engine", "grok"], "User: find out what the weather in tokyo is today", "I may not."),
    ];
    let held = calls.map(|(more, asked, answer)| async move {
        let dir = tempfile::tempdir().unwrap();
        let hermes = hermes(steps(), Faults::default()).await;
        let (code, report) = call(&dir, &hermes, more).await;
        assert_eq!(code, Some(0), "{more:?}: {report}");
        let [run] = &hermes.record()[..] else { panic!("{more:?}: one run") };
        assert!(run.input().ends_with(asked), "{more:?}: {}", run.input());
        assert!(run.body["session_id"].as_str().unwrap().starts_with("probe-"));
        let decision = more.iter().skip_while(|word| **word != "--approve").nth(1).unwrap_or(&"deny");
        assert_eq!(run.decisions[0].choice, *decision);
        assert_eq!(moments(&report, "answer"), [answer]);
        let asks = format!("asks to run curl weather (look): {decision}");
        assert_eq!(
            moments(&report, "work"),
            ["web_search runs", "web_search is done", &asks, "its question is decided"]
        );
        assert!(report["figures"]["speech_ms"].as_i64().unwrap() > 2_000, "the answer was spoken");
    });
    let mut tasks = tokio::task::JoinSet::new();
    for call in held {
        tasks.spawn(call);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hermes_that_refuses_is_said_aloud() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults { starts: vec![StartFault::Status(400, None); 8], ..Faults::default() };
    let hermes = hermes(vec![], faults).await;
    let (code, report) = call(&dir, &hermes, &["--dialect", "a"]).await;
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(moments(&report, "answer"), ["I cannot ask Hermes: Hermes refused the request (400)."]);
}

#[tokio::test]
async fn hermes_is_given_with_its_key_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    key_file(&dir);
    let question = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/question.wav");
    for (more, told) in [
        (&["--hermes", "http://127.0.0.1:8642"][..], "--hermes-key-file"),
        (&["--hermes", "http://hermes.example", "--hermes-key-file", "key"], "its key would travel in clear"),
        (&["--hermes", "nonsense", "--hermes-key-file", "key"], "must be a URL"),
        (&["--hermes", "http://127.0.0.1:8642", "--hermes-key-file", "none"], "none cannot be read"),
        (&["--approve", "once"], "--hermes"),
        (&["--hermes", "http://127.0.0.1:8642", "--hermes-key-file", "key", "--approve", "always"], "possible values"),
    ] {
        let output = timeout(LIMIT, probe(&dir).arg(&question).args(more).output()).await.unwrap().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.code() == Some(2) && said.contains(told), "{more:?}: {said}");
    }
}

#[tokio::test]
async fn the_demonstration_is_page_engine_and_agent_in_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("hermes"), json!({"jobs": [[{"complete": ANSWER}]]}).to_string()).unwrap();
    let mut demo = probe(&dir);
    let mut demo = demo.args(["voice-demo", "--listen", "127.0.0.1:0", "--hermes", "hermes"]).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(demo.stderr.take().unwrap());
    while !said.contains("The page is at ") || !said.ends_with('\n') {
        assert!(timeout(LIMIT, stderr.read_line(&mut said)).await.unwrap().unwrap() > 0, "{said}");
    }
    let url = said.split("The page is at ").nth(1).unwrap().trim();
    watch_audio::tls::ensure_provider();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(http.get(url).send().await.unwrap().text().await.unwrap().contains("<title>"));
    let body = json!({"hermes_session": "a", "lines": [{"speaker": "user", "text": "the weather"}]});
    let told = http.post(format!("{url}delegate")).json(&body).send().await.unwrap().text().await.unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told, [json!({"type": "delta", "text": ANSWER}), json!({"type": "done", "finish_reason": "stop"})]);
    let id = demo.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert_eq!(timeout(LIMIT, demo.wait()).await.unwrap().unwrap().code(), Some(0));

    fs::write(dir.path().join("hermes"), r#"{"job": []}"#).unwrap();
    let output =
        timeout(LIMIT, probe(&dir).args(["voice-demo", "--hermes", "hermes"]).output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("hermes is no description of a simulated Hermes"),
        "{said}"
    );
}
