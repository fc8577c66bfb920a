//! `samples/plugin.py`, the plugin's side in plain asyncio, as the parent of the bridge.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use watch_audio::engine::EngineKind;
use watch_audio::relay::RelayUrl;
use watch_audio::relay::client::{ClientError, Host};
use watch_audio::seal::Root;
use watch_audio::secret::Secret;
use watch_audio_probes::likeness::heard_once;
use watch_audio_probes::sim::gpt_live::{self, Dialect, Ended};
use watch_audio_probes::sim::grok;
use watch_audio_probes::watch::Grant;

use super::support::{
    BINARY, CREDENTIAL, Caller, RELEASED, SOON, World, is_gone, sample, script, slots_are_free, within,
};

const OPENAI_KEY: &str = "sk-not-to-be-seen";
const XAI_KEY: &str = "xai-not-to-be-seen";

struct Plugin {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    grant: Grant,
    told: String,
}

async fn world(answer: &str, openai_key: &str) -> World {
    let gpt_live =
        gpt_live::Options { script: script(answer), bearer: Some(Secret::new(openai_key)), ..Default::default() };
    let grok = grok::Options { script: script(answer), bearer: Some(Secret::new(XAI_KEY)), ..Default::default() };
    World::with(gpt_live, grok).await
}

impl Plugin {
    /// The plugin with its bridge, which is on the relay.
    async fn start(world: &World) -> Self {
        let file = |name: &str, text: &str| {
            let path = world.dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let grant_file = world.dir.path().join("grant.json");
        let mut command = Command::new("python3");
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/plugin.py"))
            .args(["--bridge", BINARY, "--relay", &world.relay.url(), "--one-call"])
            .args(["--openai-url", &world.gpt_live.url(), "--xai-url", &format!("ws://{}", world.grok.address())])
            .arg("--credential-file")
            .arg(file("credential", CREDENTIAL))
            .arg("--openai-key-file")
            .arg(file("openai.key", OPENAI_KEY))
            .arg("--xai-key-file")
            .arg(file("xai.key", XAI_KEY))
            .arg("--grant-out")
            .arg(&grant_file)
            // The slots' folder is the user's own by default: here each world has one.
            .env("XDG_RUNTIME_DIR", world.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("python3 is not installed; the example of the plugin's side needs it to be tested")
            }
            child => child.unwrap(),
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = String::new();
        while !told.contains("\"connected\"") {
            let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().expect("the bridge reaches the relay");
            told.push_str(&line);
        }
        assert_eq!(fs::metadata(&grant_file).unwrap().permissions().mode() & 0o777, 0o600);
        let grant: Value = serde_json::from_slice(&fs::read(&grant_file).unwrap()).unwrap();
        let text = |field: &str| grant[field].as_str().unwrap();
        let grant = Grant {
            id: text("grant_id").parse().unwrap(),
            root: Root::parse(text("key")).unwrap(),
            watch_key: Secret::new(text("watch_key")),
            relay: RelayUrl::parse(text("relay_url")).unwrap(),
        };
        Self { child, lines, grant, told }
    }

    /// Waits until it ends by itself. No secret of its went where it can be seen.
    async fn ends(mut self, world: &World) -> (Option<i32>, String) {
        while let Some(line) = timeout(SOON, self.lines.next_line()).await.expect("an end in time").unwrap() {
            self.told.push_str(&line);
        }
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
        assert_eq!(errors, "");
        let root = self.grant.root.encode();
        for secret in [CREDENTIAL, OPENAI_KEY, XAI_KEY, &root, self.grant.watch_key.expose()] {
            assert!(!self.told.contains(secret), "{secret} in {}", self.told);
        }
        let code = timeout(SOON, self.child.wait()).await.unwrap().unwrap().code();
        // The grant is closed: nobody can come back to it.
        let relay = Host::new(self.grant.relay.clone(), Secret::new(CREDENTIAL)).unwrap();
        let polled = relay.poll_calls(&self.grant.id, Duration::ZERO).await;
        assert!(matches!(polled, Err(ClientError::Refused { status: 410, .. })), "the grant is still open");
        assert!(slots_are_free(world.dir.path().join("watch-audio")));
        (code, self.told)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_py_holds_a_whole_call_with_gpt_live_dialect_a_and_with_grok() {
    let call = |engine: EngineKind| async move {
        let world = world("answer.wav", OPENAI_KEY).await;
        let plugin = Plugin::start(&world).await;
        let mut caller = Caller::start(&plugin.grant, engine).await.unwrap();
        caller.hears_speech(Duration::from_secs(1)).await;
        // The rest of the answer, of 4 s in all.
        caller.run(Duration::from_secs(6)).await;
        caller.hang_up();
        assert_eq!(caller.hears_ended(SOON).await, "ended");
        let (code, told) = plugin.ends(&world).await;
        assert_eq!(code, Some(0));
        assert!(told.contains("\"summary\""), "{told}");
        match engine {
            EngineKind::GptLive => world.gpt_live.look(|sessions| {
                assert_eq!((sessions.len(), sessions[0].dialect, sessions[0].status), (1, Dialect::A, 201));
                assert_eq!(sessions[0].ended.map(|(_, how)| how), Some(Ended::Closed));
            }),
            EngineKind::Grok => world.grok.look(|sessions| assert_eq!((sessions.len(), sessions[0].status), (1, 101))),
        }
        caller.played
    };
    let (one, other) = tokio::join!(call(EngineKind::GptLive), call(EngineKind::Grok));
    // It takes seconds, in which no engine here would answer: so it is looked at when both calls are over.
    for played in [one, other] {
        heard_once(&sample("answer.wav").samples, &played, 24_000).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_py_ends_in_order_when_it_is_told_to() {
    let world = world("answer.wav", OPENAI_KEY).await;
    let plugin = Plugin::start(&world).await;
    let mut caller = Caller::start(&plugin.grant, EngineKind::Grok).await.unwrap();
    caller.hears_speech(Duration::from_secs(1)).await;
    let id = plugin.child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(caller.hears_ended(SOON).await, "The host ended the call.");
    let (code, told) = plugin.ends(&world).await;
    assert_eq!(code, Some(128 + 15), "{told}");
}

#[tokio::test]
async fn plugin_py_says_in_a_sentence_that_there_is_no_relay() {
    let dir = tempfile::tempdir().unwrap();
    let credential = dir.path().join("credential");
    fs::write(&credential, CREDENTIAL).unwrap();
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/plugin.py"))
        .args(["--relay", "http://127.0.0.1:1", "--grant-out", "grant.json", "--credential-file"])
        .arg(credential)
        .current_dir(&dir)
        .output();
    let output = timeout(SOON, output).await.unwrap().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
}

#[tokio::test]
async fn plugin_py_tells_the_watch_what_was_refused() {
    let world = world("answer.wav", "another-key").await;
    let plugin = Plugin::start(&world).await;
    assert_eq!(Caller::start(&plugin.grant, EngineKind::GptLive).await.err().as_deref(), Some("refused"));
    let (code, told) = plugin.ends(&world).await;
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(world.gpt_live.look(|sessions| (sessions.len(), sessions[0].status)), (1, 401));
}

#[tokio::test]
async fn parent_killed_in_mid_call_leaves_nothing_behind() {
    let killed = async |engine: EngineKind| {
        let world = world("long-answer.wav", OPENAI_KEY).await;
        let mut plugin = Plugin::start(&world).await;
        let bridge = child_of(plugin.child.id().unwrap()).expect("the plugin's bridge");
        let mut caller = Caller::start(&plugin.grant, engine).await.unwrap();
        caller.hears_speech(Duration::from_secs(1)).await;

        plugin.child.kill().await.unwrap();
        let since = Instant::now();
        assert_eq!(caller.hears_ended(RELEASED).await, "The host ended the call.");
        caller.until(RELEASED, "the relay's word", |caller| caller.closed.is_some()).await;
        within(RELEASED, "the bridge gone", || is_gone(bridge)).await;
        assert!(since.elapsed() < RELEASED, "{:?}", since.elapsed());
        assert!(slots_are_free(world.dir.path().join("watch-audio")));
        match engine {
            EngineKind::GptLive => world.gpt_live.look(|sessions| {
                assert_eq!(sessions[0].ended.map(|(_, how)| how), Some(Ended::Closed));
            }),
            EngineKind::Grok => world.grok.look(|sessions| assert!(sessions[0].ended.is_some())),
        }
    };
    tokio::join!(killed(EngineKind::GptLive), killed(EngineKind::Grok));
}

/// The one process that this one started.
fn child_of(parent: u32) -> Option<u32> {
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.into_iter().find(|pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in brackets, may hold anything; state and parent follow.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    })
}
