//! `watch-audio bridge` as a process: its lines, its exit codes, and what is left of it when its parent dies. The relay is
//! ours, the engine a WebSocket in the test, the plugin the test itself.

// Everything here is a test; the lint only knows the functions marked so.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_async, connect_async};
use watch_audio::relay::client::{Host, NewGrant};
use watch_audio::relay::{Config, Credentials, Limits, RelayUrl, Server, Side};
use watch_audio::seal::{GrantId, Kind, Root, Sid, Stream, hello};
use watch_audio::secret::Secret;
use watch_audio::sign_in::openai;
use watch_audio_probes::sim::gpt_live::{Ended, Options, Simulator, Timing};

/// A relay, an engine and the folder of the slots.
struct World {
    relay: Server,
    relay_url: String,
    host: Host,
    engine: TcpListener,
    dir: tempfile::TempDir,
}

/// A grant as its plugin holds it.
struct Grant {
    id: GrantId,
    root: Root,
    watch_key: String,
}

/// One bridge process.
struct Bridge {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

struct Watch {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    stream: Stream,
}

const CREDENTIAL: &str = "gateway-credential-not-to-be-seen";
const BEARER: &str = "xai-bearer-not-to-be-seen";
const SPEECH: &str = "what-was-said-not-to-be-seen";

/// Generous: the machine is small and shared.
const SOON: Duration = Duration::from_secs(30);

impl World {
    async fn new() -> Self {
        // Another test may have been first.
        watch_audio::tls::ensure_provider();
        let credentials = Credentials::parse(CREDENTIAL).unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let limits = Limits::default();
        let config = Config { listen, behind_tls: false, address_header: None, credentials, limits };
        let relay = Server::bind(config).await.unwrap();
        let relay_url = format!("http://{}", relay.local_addr());
        let host = Host::new(RelayUrl::parse(&relay_url).unwrap(), Secret::new(CREDENTIAL)).unwrap();
        let engine = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { relay, relay_url, host, engine, dir: tempfile::tempdir().unwrap() }
    }

    async fn grant(&self) -> Grant {
        let watch_key = Root::random().encode().to_string();
        let new =
            NewGrant { watch_key: Secret::new(&*watch_key), life: Duration::from_secs(600), max_calls: 1, audio: true };
        let id = self.host.create_grant(&new).await.unwrap().id;
        Grant { id, root: Root::random(), watch_key }
    }

    fn open(&self, grant: &Grant) -> Value {
        json!({
            "type": "open",
            "version": 1,
            "grant": {
                "id": grant.id.as_str(),
                "key": &*grant.root.encode(),
                "relay_url": self.relay_url,
                "credential": CREDENTIAL,
                "expires_in_s": 600,
            },
            "engines": ["grok"],
            "slots": {"dir": self.dir.path(), "max": 1},
            "future": {"ignored": true},
        })
    }

    /// A bridge that is connected to the relay.
    async fn bridge(&self, grant: &Grant) -> Bridge {
        let mut bridge = Bridge::spawn(&["bridge"]);
        bridge.connect(&self.open(grant)).await;
        bridge
    }

    async fn watch(&self, grant: &Grant) -> Watch {
        let url = RelayUrl::parse(&self.relay_url).unwrap().audio(&grant.id, Side::Watch);
        let mut request = url.as_str().into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {}", grant.watch_key).parse().unwrap());
        let (mut socket, _) = connect_async(request).await.unwrap();
        let stream = Stream::watch(&grant.root, &grant.id, Sid::random());
        socket.send(Message::binary(hello(stream.sid).to_vec())).await.unwrap();
        Watch { socket, stream }
    }

    /// Answers the bridge's sign-in request and takes its connection, which says hello as an engine.
    async fn sign_in(&self, bridge: &mut Bridge) -> WebSocketStream<TcpStream> {
        let request = bridge.line("session_request").await;
        assert_eq!((&request["engine"], &request["start"]["briefing"]), (&json!("grok"), &json!(SPEECH)));
        let url = format!("ws://{}/v1/realtime", self.engine.local_addr().unwrap());
        let id = &request["id"];
        bridge
            .say(&json!({"type": "session", "id": id, "url": url, "bearer": BEARER, "model": "m", "voice": "eve"}))
            .await;
        self.engine().await
    }

    async fn engine(&self) -> WebSocketStream<TcpStream> {
        let (socket, _) = timeout(SOON, self.engine.accept()).await.unwrap().unwrap();
        accept_async(socket).await.unwrap()
    }
}

impl Bridge {
    fn spawn(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_watch-audio"));
        command.args(args);
        Self::from(command)
    }

    fn from(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { stdin: child.stdin.take(), child, lines, seen: Vec::new() }
    }

    async fn say(&mut self, line: &Value) {
        self.write(format!("{line}\n").as_bytes()).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        // A process that has ended already takes no more; its exit code tells.
        let _ = self.stdin.as_mut().unwrap().write_all(bytes).await;
    }

    async fn connect(&mut self, open: &Value) {
        self.say(open).await;
        let ready = self.line("ready").await;
        assert_eq!((&ready["version"], ready["build"].is_string()), (&json!(1), true));
        assert_eq!(self.line("relay").await["state"], "connected");
    }

    /// The next line of a type; every line must be one JSON object.
    async fn line(&mut self, kind: &str) -> Value {
        loop {
            let line = timeout(SOON, self.lines.next_line()).await.expect("a line in time").unwrap();
            let line = line.unwrap_or_else(|| panic!("no {kind} line; so far {:?}", self.seen));
            let value: Value = serde_json::from_str(&line).expect("stdout carries protocol lines only");
            self.seen.push(line);
            if value["type"] == kind {
                return value;
            }
        }
    }

    /// Waits for the end: exit code and stderr. Nothing may come after `closed`.
    async fn exit(mut self) -> (Option<i32>, String) {
        while let Some(line) = timeout(SOON, self.lines.next_line()).await.expect("an end in time").unwrap() {
            serde_json::from_str::<Value>(&line).expect("stdout carries protocol lines only");
            self.seen.push(line);
        }
        let is_closed = |line: &String| serde_json::from_str::<Value>(line).unwrap()["type"] == "closed";
        let last = self.seen.iter().position(is_closed);
        assert!(last.is_none_or(|last| last == self.seen.len() - 1), "{:?}", self.seen);
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
        (timeout(SOON, self.child.wait()).await.unwrap().unwrap().code(), stderr)
    }
}

impl Watch {
    async fn says(&mut self, kind: Kind, plain: &[u8]) {
        let mut message = Vec::new();
        self.stream.sealer.seal(kind, plain, &mut message).unwrap();
        self.socket.send(Message::binary(message)).await.unwrap();
    }

    async fn start(&mut self) {
        let start = json!({"type": "start", "engine": "grok", "briefing": SPEECH});
        self.says(Kind::Control, start.to_string().as_bytes()).await;
    }

    async fn hears(&mut self) -> (Kind, Bytes) {
        loop {
            let message = timeout(SOON, self.socket.next()).await.expect("a message in time").unwrap().unwrap();
            if let Message::Binary(message) = message {
                let (kind, plain) = self.stream.opener.open(&message).unwrap();
                return (kind, plain.into());
            }
        }
    }

    async fn hears_control(&mut self, kind: &str) -> Value {
        loop {
            if let (Kind::Control, plain) = self.hears().await {
                let control: Value = serde_json::from_slice(&plain).unwrap();
                assert_eq!(control["type"], kind, "{control}");
                return control;
            }
        }
    }
}

/// Waits until the engine's connection ends.
async fn engine_ends(engine: &mut WebSocketStream<TcpStream>) {
    let ended = async { while let Some(Ok(_)) = engine.next().await {} };
    timeout(Duration::from_secs(8), ended).await.expect("the engine's session is closed");
}

/// As when the disk with the log is full: nothing that is said there may change how a program ends.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_standard_error_that_takes_nothing_changes_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [
        &["bridge", "--config", "missing"][..],
        &["relay", "--credentials", "missing"],
        &["helper", "--uninstall", "missing"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_watch-audio"));
        let status = command.args(args).current_dir(&dir).stdin(Stdio::null()).stderr(full()).status();
        assert_eq!(timeout(SOON, status).await.unwrap().unwrap().code(), Some(2), "{args:?}");
    }
}

#[tokio::test]
async fn case_55_58_a_call_with_every_word_logged_shows_none() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut bridge = Bridge::spawn(&["bridge", "--log-level", "trace"]);
    bridge.connect(&world.open(&grant)).await;
    let mut watch = world.watch(&grant).await;
    assert_eq!(bridge.line("watch").await["state"], "connected");
    watch.start().await;
    let mut engine = world.sign_in(&mut bridge).await;
    let started = watch.hears_control("started").await;
    assert_eq!((&started["input_rate"], &started["model"]), (&json!(24000), &json!("m")));
    assert_eq!(bridge.line("started").await["engine"], "grok");

    watch
        .says(Kind::Event, format!("{{\"type\":\"session.update\",\"session\":{{\"x\":\"{SPEECH}\"}}}}").as_bytes())
        .await;
    let Some(Ok(Message::Text(update))) = timeout(SOON, engine.next()).await.unwrap() else { panic!() };
    assert!(update.contains(SPEECH), "passed on byte for byte");
    engine.send(Message::text("{\"type\":\"session.updated\",\"session\":{}}")).await.unwrap();
    assert_eq!(watch.hears().await.0, Kind::Event);
    // What does not open, and an error of the engine's with words in it.
    watch.socket.send(Message::binary(vec![1; 40])).await.unwrap();
    engine.send(Message::text(format!("{{\"type\":\"error\",\"error\":{{\"message\":\"{SPEECH}\"}}}}"))).await.unwrap();
    assert_eq!(watch.hears().await.0, Kind::Event);

    watch.says(Kind::Control, b"{\"type\":\"end\"}").await;
    assert_eq!(watch.hears_control("ended").await["reason"], "ended");
    let ended = bridge.line("ended").await;
    assert!(ended["summary"]["duration_s"].is_number());
    engine_ends(&mut engine).await;
    bridge.say(&json!({"type": "stop"})).await;
    assert_eq!(bridge.line("relay").await["state"], "closed");
    bridge.line("closed").await;
    let (code, stderr) = bridge.exit().await;
    assert_eq!(code, Some(0));
    assert!(stderr.contains("DEBUG"), "the log was on: {stderr}");
    let key = grant.root.encode();
    for secret in [CREDENTIAL, BEARER, SPEECH, &grant.watch_key, &key, "Z2F0ZXdheS1jcmVkZW50aWFs", "xai-bearer"] {
        assert!(!stderr.contains(secret), "{secret} in {stderr}");
    }
    world.relay.shutdown().await;
}

/// A file on a disk that does not answer, as far as a reader can tell: a pipe that nobody writes to.
fn hanging_file(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[tokio::test]
async fn a_configuration_on_a_disk_that_hangs_holds_no_end_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    hanging_file(&config);
    let args = ["bridge", "--config", config.to_str().unwrap()];
    let told = Bridge::spawn(&args);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let id = told.child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let begun = Instant::now();
    assert_eq!(told.exit().await.0, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(4), "SIGTERM is heeded");

    let (code, stderr) = Bridge::spawn(&args).exit().await;
    assert_eq!(code, Some(2));
    assert!(stderr.contains("does not answer; see to the disk"), "{stderr}");
}

#[tokio::test]
async fn a_key_on_a_disk_that_hangs_is_an_error_for_the_watch_and_holds_nothing_up() {
    let world = World::new().await;
    let grant = world.grant().await;
    let (config, key) = (world.dir.path().join("config.json"), world.dir.path().join("key"));
    hanging_file(&key);
    std::fs::write(&config, json!({"grok": {"api_key_file": key}}).to_string()).unwrap();
    let mut bridge = Bridge::spawn(&["bridge", "--config", config.to_str().unwrap()]);
    bridge.connect(&world.open(&grant)).await;
    let mut watch = world.watch(&grant).await;
    watch.start().await;
    assert_eq!(watch.hears_control("error").await["code"], "failed");
    assert_eq!(watch.hears_control("ended").await["reason"], "error");
    assert_eq!(bridge.line("ended").await["reason"], "error");

    // And in the middle of it.
    watch.start().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    bridge.say(&json!({"type": "stop"})).await;
    assert_eq!(bridge.line("closed").await["reason"], "The host ended the call.");
    assert_eq!(bridge.exit().await.0, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(6));
    world.relay.shutdown().await;
}

#[tokio::test]
async fn case_57_end_of_input_ends_the_call() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut bridge = world.bridge(&grant).await;
    let mut watch = world.watch(&grant).await;
    watch.start().await;
    let mut engine = world.sign_in(&mut bridge).await;
    watch.hears_control("started").await;
    engine.send(Message::text("{\"type\":\"session.updated\",\"session\":{}}")).await.unwrap();

    bridge.stdin = None;
    let begun = Instant::now();
    assert_eq!(
        watch.hears_control("ended").await["reason"],
        "The host ended the call.",
        "said before the relay is closed"
    );
    bridge.line("closed").await;
    engine_ends(&mut engine).await;
    assert_eq!(bridge.exit().await.0, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn case_57_a_killed_parent_leaves_nothing_behind() {
    let world = World::new().await;
    let grant = world.grant().await;
    // The parent is a shell; the test holds the other end of the input too, so that no end of input comes.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0; \"$1\" bridge <&3 & wait", "sh", env!("CARGO_BIN_EXE_watch-audio")]);
    let mut bridge = Bridge::from(shell);
    bridge.connect(&world.open(&grant)).await;
    let mut watch = world.watch(&grant).await;
    watch.start().await;
    let mut engine = world.sign_in(&mut bridge).await;
    watch.hears_control("started").await;

    let begun = Instant::now();
    bridge.child.start_kill().unwrap();
    engine_ends(&mut engine).await;
    bridge.line("closed").await;
    // Its end of the output closes when it is gone.
    bridge.exit().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn slots_are_counted_over_processes_and_freed_when_one_dies() {
    let world = World::new().await;
    let (grant, other_grant) = (world.grant().await, world.grant().await);
    let mut bridge = world.bridge(&grant).await;
    let mut watch = world.watch(&grant).await;
    watch.start().await;
    let mut engine = world.sign_in(&mut bridge).await;
    watch.hears_control("started").await;

    let mut other = world.bridge(&other_grant).await;
    let mut other_watch = world.watch(&other_grant).await;
    other_watch.start().await;
    assert_eq!(other_watch.hears_control("error").await["code"], "busy");

    bridge.child.kill().await.unwrap();
    engine_ends(&mut engine).await;
    other_watch.start().await;
    let _engine = world.sign_in(&mut other).await;
    other_watch.hears_control("started").await;
}

#[tokio::test]
async fn case_52_a_second_process_does_not_get_the_grant() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut bridge = world.bridge(&grant).await;
    let refused = async || {
        let mut second = Bridge::spawn(&["bridge"]);
        second.say(&world.open(&grant)).await;
        let (code, stderr) = second.exit().await;
        assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{stderr}");
    };
    refused().await;
    world.watch(&grant).await;
    bridge.line("watch").await;
    world.watch(&grant).await;
    assert_eq!(bridge.line("watch").await["state"], "gone");
    bridge.line("watch").await;
    // Streams were taken: not even when the first one is dead.
    bridge.child.kill().await.unwrap();
    refused().await;
}

#[tokio::test]
async fn bad_input_ends_with_code_2_and_one_line() {
    let world = World::new().await;
    let grant = world.grant().await;
    let with = |change: fn(&mut Value)| {
        let mut open = world.open(&grant);
        change(&mut open);
        format!("{open}\n")
    };
    for input in [
        "hello\n".to_owned(),
        "[]\n".to_owned(),
        "{\"type\":\"session_failed\",\"id\":1}\n".to_owned(),
        "{\"type\":\"open\"}\n".to_owned(),
        with(|open| open["version"] = json!(2)),
        with(|open| open["grant"]["id"] = json!("short")),
        with(|open| open["grant"]["key"] = json!("short")),
        with(|open| open["grant"]["expires_in_s"] = json!(-1)),
        with(|open| open["grant"]["relay_url"] = json!("http://relay.example")),
        with(|open| open["grant"]["credential"] = json!("two\nlines")),
        with(|open| open["grant"]["credential"] = json!("two-é")),
    ] {
        let mut bridge = Bridge::spawn(&["bridge"]);
        bridge.write(input.as_bytes()).await;
        let (code, stderr) = bridge.exit().await;
        assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{input} gave {stderr}");
        assert!(!stderr.contains(CREDENTIAL) && !stderr.contains("two"));
    }

    // In a call too, and the call ends in order.
    let mut bridge = world.bridge(&grant).await;
    bridge.write(b"no json\n").await;
    bridge.line("closed").await;
    let (code, stderr) = bridge.exit().await;
    assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{stderr}");
}

#[tokio::test]
async fn a_parent_that_changes_its_mind() {
    let mut bridge = Bridge::spawn(&["bridge"]);
    bridge.stdin = None;
    bridge.line("closed").await;
    assert_eq!(bridge.exit().await, (Some(0), String::new()));
}

#[tokio::test]
async fn a_refused_grant_ends_with_code_3() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut open = world.open(&grant);
    open["grant"]["credential"] = json!("another credential");
    let mut bridge = Bridge::spawn(&["bridge"]);
    bridge.say(&open).await;
    assert_eq!(bridge.line("closed").await["reason"], "The relay refused the grant (401).");
    assert_eq!(bridge.exit().await.0, Some(3));

    let mut bridge = world.bridge(&grant).await;
    world.host.close_grant(&grant.id).await.unwrap();
    assert_eq!(bridge.line("closed").await["reason"], "The relay closed the grant (4010).");
    assert_eq!(bridge.exit().await.0, Some(3));
}

#[tokio::test]
async fn a_relay_that_restarts_is_found_again() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut bridge = world.bridge(&grant).await;
    // A newer socket for the same grant takes the host's place, as a relay sees a host that lost its connection.
    let url = RelayUrl::parse(&world.relay_url).unwrap().audio(&grant.id, Side::Host);
    let mut request = url.as_str().into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {CREDENTIAL}").parse().unwrap());
    let (_newer, _) = connect_async(request).await.unwrap();
    let reconnecting = bridge.line("relay").await;
    assert_eq!(reconnecting["state"], "reconnecting");
    assert!(reconnecting["detail"].as_str().unwrap().contains("4000"));
    assert_eq!(bridge.line("relay").await["state"], "connected");
    bridge.stdin = None;
    assert_eq!(bridge.exit().await.0, Some(0));
}

#[tokio::test]
async fn a_configuration_signs_in_without_a_plugin() {
    let world = World::new().await;
    let grant = world.grant().await;
    let (key, config) = (world.dir.path().join("xai.key"), world.dir.path().join("config.json"));
    std::fs::write(&key, BEARER).unwrap();
    let url = format!("ws://{}/v1/realtime", world.engine.local_addr().unwrap());
    let text = json!({"grok": {"api_key_file": key, "url": url, "model": "m"}});
    std::fs::write(&config, text.to_string()).unwrap();
    let mut bridge = Bridge::spawn(&["bridge", "--config", config.to_str().unwrap()]);
    bridge.connect(&world.open(&grant)).await;
    let mut watch = world.watch(&grant).await;
    watch.start().await;
    let mut engine = world.engine().await;
    assert_eq!(watch.hears_control("started").await["model"], "m");
    bridge.stdin = None;
    engine_ends(&mut engine).await;
    let (code, stderr) = bridge.exit().await;
    assert_eq!(code, Some(0));
    assert!(stderr.contains("chmod 600") && !stderr.contains(BEARER), "{stderr}");

    let nowhere = Path::new("/nowhere/config.json");
    let (code, stderr) = Bridge::spawn(&["bridge", "--config", nowhere.to_str().unwrap()]).exit().await;
    assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{stderr}");
}

/// Whatever ends a start, the session it made is closed in order: it is billed.
#[tokio::test]
async fn gpt_live_is_told_when_its_start_is_given_up() {
    let timing = Timing { answer_ms: 300, ..Timing::default() };
    let simulator = Simulator::start(Options { timing, ..Options::default() }).await.unwrap();
    let world = World::new().await;
    let (key, config) = (world.dir.path().join("openai.key"), world.dir.path().join("config.json"));
    std::fs::write(&key, BEARER).unwrap();
    std::fs::write(&config, json!({"gpt_live": {"api_key_file": key, "url": simulator.url()}}).to_string()).unwrap();
    for (calls, by_the_watch) in [(1, true), (2, false)] {
        let grant = world.grant().await;
        let mut bridge = Bridge::spawn(&["bridge", "--config", config.to_str().unwrap()]);
        let mut open = world.open(&grant);
        open["engines"] = json!(["gpt_live"]);
        bridge.connect(&open).await;
        let mut watch = world.watch(&grant).await;
        watch.says(Kind::Control, br#"{"type":"start","engine":"gpt_live"}"#).await;
        until(|| simulator.look(|sessions| sessions.len()) == calls).await;
        if by_the_watch {
            watch.says(Kind::Control, br#"{"type":"end"}"#).await;
            watch.hears_control("ended").await;
        } else {
            bridge.say(&json!({"type": "stop"})).await;
        }
        until(|| simulator.look(|sessions| sessions[calls - 1].ended.is_some())).await;
        assert_eq!(simulator.look(|sessions| sessions[calls - 1].ended.unwrap().1), Ended::Closed);
        bridge.stdin = None;
        assert_eq!(bridge.exit().await.0, Some(0));
    }
}

/// The same where the plugin signs in: its answer counts, also after `ended` and after `closed`.
#[tokio::test]
async fn gpt_live_is_told_when_the_plugins_answer_comes_too_late() {
    let simulator = Simulator::start(Options::default()).await.unwrap();
    let world = World::new().await;
    for (calls, by_the_watch) in [(1, true), (2, false)] {
        let grant = world.grant().await;
        let mut bridge = Bridge::spawn(&["bridge"]);
        let mut open = world.open(&grant);
        open["engines"] = json!(["gpt_live"]);
        bridge.connect(&open).await;
        let mut watch = world.watch(&grant).await;
        watch.says(Kind::Control, br#"{"type":"start","engine":"gpt_live"}"#).await;
        let request = bridge.line("session_request").await;
        if by_the_watch {
            watch.says(Kind::Control, br#"{"type":"end"}"#).await;
            watch.hears_control("ended").await;
            // Longer than the session may take to end once it is there.
            tokio::time::sleep(Duration::from_secs(6)).await;
        } else {
            bridge.say(&json!({"type": "stop"})).await;
            bridge.line("closed").await;
        }
        let http = openai::http_client(["http://localhost"]).unwrap();
        let (key, offer) = (Secret::new("key"), request["offer"].as_str().unwrap());
        let session = json!({"model": "gpt-live-1"});
        let sdp = openai::create_with_key(&http, &simulator.url(), &key, &session, offer).await.unwrap();
        bridge.say(&json!({"type": "session", "id": request["id"], "sdp": sdp, "voice": "marin"})).await;
        until(|| simulator.look(|sessions| sessions.len() == calls && sessions[calls - 1].ended.is_some())).await;
        assert_eq!(simulator.look(|sessions| sessions[calls - 1].ended.unwrap().1), Ended::Closed);
        bridge.stdin = None;
        assert_eq!(bridge.exit().await.0, Some(0));
    }
}

#[tokio::test]
async fn too_few_descriptors_are_a_fault_that_is_told() {
    for mode in ["bridge", "helper", "relay --credentials x"] {
        let script = format!("ulimit -n 7 && exec {} {mode}", env!("CARGO_BIN_EXE_watch-audio"));
        let output = Command::new("sh").args(["-c", &script]).output().await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{mode}: {stderr}");
        assert!(stderr.contains("ulimit -n") && stderr.lines().count() == 1, "{mode}: {stderr}");
    }
}

async fn until(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, waiting).await.expect("in time");
}

#[tokio::test]
async fn a_signal_ends_the_call_in_order() {
    let world = World::new().await;
    let grant = world.grant().await;
    let mut bridge = world.bridge(&grant).await;
    let pid = bridge.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    bridge.line("closed").await;
    assert_eq!(bridge.exit().await.0, Some(0));
}
