//! What a row plays in: a relay, an engine, a plugin with its bridge, a Watch; what all of them are told; and what is left
//! of it afterwards.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;
use watch_audio::bridge::slots::{DEFAULT_SLOTS, Slots};
use watch_audio::engine::EngineKind;
use watch_audio::relay::RelayUrl;
use watch_audio::relay::client::{Host, NewGrant};
use watch_audio::seal::{GrantId, Root};
use watch_audio::secret::Secret;
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::plugin::SignIns;
use watch_audio_probes::sim::script::{Script, Utterance};
use watch_audio_probes::sim::{gpt_live, grok};
use watch_audio_probes::watch::Grant;

use super::plugin::{Answering, Desk, Log, Plugin, collect, descriptors, is_gone, within};
use super::row::Told;
use super::secrets::Secrets;
use super::watch::Watch;

pub(crate) struct Scene {
    pub(crate) kind: EngineKind,
    pub(crate) dir: TempDir,
    pub(crate) relay: RelayProcess,
    /// Where the bridge and the plugin reach the relay, when not directly.
    pub(crate) through: Option<SocketAddr>,
    pub(crate) engine: Option<Engine>,
    pub(crate) desk: Desk,
    pub(crate) plugin: Option<Plugin>,
    pub(crate) grant: Option<Grant>,
    pub(crate) watch: Option<Watch>,
    /// What the bridge says on its standard error.
    pub(crate) log: Log,
    /// The bridge's descriptors before the Watch came.
    idle: usize,
    marks: (Instant, usize, usize),
    healthy: Rc<Healthy>,
    secrets: Arc<Secrets>,
    turns: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

/// The engines of the next call.
pub(crate) struct Healthy {
    /// What an engine with a fault says: a minute of it.
    long: Script,
    gpt_live: gpt_live::Simulator,
    grok: grok::Simulator,
}

/// One simulated engine.
pub(crate) enum Engine {
    GptLive(gpt_live::Simulator),
    Grok(grok::Simulator),
}

/// What came of everything once the fault was over.
pub(crate) struct Rest {
    pub(crate) left: String,
    pub(crate) next: String,
    pub(crate) faults: Vec<String>,
}

/// `watch-audio relay`.
pub(crate) struct RelayProcess {
    child: Child,
    address: SocketAddr,
    credentials: PathBuf,
    log: Log,
    tasks: JoinSet<()>,
    /// Its descriptors when nobody was there.
    idle: usize,
}

impl Healthy {
    pub(crate) async fn start() -> Self {
        let script = script(Duration::from_secs(3));
        let gpt_live = gpt_live::Options { script: script.clone(), ..Default::default() };
        let grok = grok::Options { script, ..Default::default() };
        Self {
            long: self::script(Duration::from_secs(60)),
            gpt_live: gpt_live::Simulator::start(gpt_live).await.unwrap(),
            grok: grok::Simulator::start(grok).await.unwrap(),
        }
    }
}

/// The engine speaks by itself, for so long, and says the same to whatever it hears.
fn script(length: Duration) -> Script {
    let speech = Utterance::tone(SPOKEN, SPOKEN_HERTZ, length);
    Script { greeting: Some(speech.clone()), turns: Vec::new(), remark: speech, ..Script::default() }
}

impl Engine {
    fn sign_ins(&self) -> SignIns {
        let (gpt_live, grok) = match self {
            Self::GptLive(simulator) => (Some((simulator.url(), Dialect::B)), None),
            Self::Grok(simulator) => (None, Some(simulator.url())),
        };
        SignIns { gpt_live, grok, bearer: Some(Secret::new(BEARER)) }
    }

    /// Sessions that were let in and are not over.
    fn open_sessions(&self) -> usize {
        match self {
            Self::GptLive(simulator) => simulator.look(|sessions| {
                sessions.iter().filter(|session| session.status == 201 && session.ended.is_none()).count()
            }),
            Self::Grok(simulator) => simulator.look(|sessions| {
                sessions.iter().filter(|session| session.status == 101 && session.ended.is_none()).count()
            }),
        }
    }

    /// Sound that came, in ms.
    pub(crate) fn heard_ms(&self) -> u64 {
        match self {
            Self::GptLive(simulator) => {
                simulator.look(|sessions| sessions.iter().map(|session| session.input.samples / 48).sum())
            }
            Self::Grok(simulator) => {
                simulator.look(|sessions| sessions.iter().map(|session| session.samples / 24).sum())
            }
        }
    }
}

impl Scene {
    pub(crate) async fn new(kind: EngineKind, healthy: Rc<Healthy>, turns: Arc<Semaphore>) -> Self {
        let turn = Some(Arc::clone(&turns).acquire_owned().await.unwrap());
        let dir = tempfile::tempdir().unwrap();
        Self {
            turns,
            turn,
            kind,
            relay: RelayProcess::start(&dir).await,
            dir,
            through: None,
            engine: None,
            desk: Desk(Arc::new(Mutex::new(Answering::Usual(SignIns::default())))),
            plugin: None,
            grant: None,
            watch: None,
            log: Log::default(),
            idle: 0,
            marks: (Instant::now(), 0, 0),
            healthy,
            secrets: Arc::new(Secrets::new()),
        }
    }

    /// An engine that speaks for a minute, with these faults.
    pub(crate) async fn engine_with(&mut self, gpt_live: gpt_live::Options, grok: grok::Options) {
        let script = self.healthy.long.clone();
        let engine = match self.kind {
            EngineKind::GptLive => {
                Engine::GptLive(gpt_live::Simulator::start(gpt_live::Options { script, ..gpt_live }).await.unwrap())
            }
            EngineKind::Grok => Engine::Grok(grok::Simulator::start(grok::Options { script, ..grok }).await.unwrap()),
        };
        *self.desk.0.lock().unwrap() = Answering::Usual(engine.sign_ins());
        self.engine = Some(engine);
    }

    /// The relay's URL for the bridge.
    pub(crate) fn relay_url(&self) -> String {
        format!("http://{}", self.through.unwrap_or(self.relay.address))
    }

    pub(crate) async fn new_grant(&mut self) -> Grant {
        let host = Host::new(RelayUrl::parse(&self.relay.url()).unwrap(), Secret::new(CREDENTIAL)).unwrap();
        let watch_key = Root::random().encode().to_string();
        let new = NewGrant {
            watch_key: Secret::new(&*watch_key),
            life: Duration::from_secs(1_800),
            max_calls: 1,
            audio: true,
        };
        let id: GrantId = host.create_grant(&new).await.unwrap().id;
        let root = Root::random();
        let secrets = Arc::get_mut(&mut self.secrets).expect("nobody looks yet");
        secrets.add("root key", root.encode().as_bytes());
        secrets.add("watch key", watch_key.as_bytes());
        let relay = RelayUrl::parse(&self.relay.url()).unwrap();
        Grant { id, root, watch_key: Secret::new(watch_key), relay }
    }

    pub(crate) fn open_line(&self, grant: &Grant) -> Value {
        json!({
            "type": "open", "version": 1,
            "grant": {"id": grant.id.as_str(), "key": grant.root.encode().as_str(), "relay_url": self.relay_url(),
                      "credential": CREDENTIAL, "expires_in_s": 1800},
            "engines": ["gpt_live", "grok"], "slots": {"dir": self.slots_dir()}, "stats": true,
        })
    }

    fn slots_dir(&self) -> PathBuf {
        self.dir.path().join("slots")
    }

    /// A new grant and its plugin, whose bridge is dialling.
    pub(crate) async fn plugin(&mut self) {
        self.plugin_as(bridge_command()).await;
    }

    pub(crate) async fn plugin_as(&mut self, command: Command) {
        let grant = self.new_grant().await;
        let open = self.open_line(&grant);
        self.plugin = Some(Plugin::start(command, &open, self.desk.clone(), &self.log));
        self.grant = Some(grant);
    }

    /// The bridge is on the relay.
    pub(crate) async fn on_the_relay(&mut self) {
        self.plugin_says("the relay reached", SOON, |said| said.contains(&"relay connected".to_owned())).await;
        if let Some(pid) = self.pid() {
            self.idle = descriptors(pid);
            self.secrets.look_at_process(pid);
        }
    }

    /// A Watch joins. It tries again while its host is not back, as a Watch does.
    pub(crate) async fn watch_joins(&mut self) {
        let plugin = self.plugin.as_ref().unwrap();
        let came = || {
            let here = |line: &&Value| line["type"] == "watch" && line["state"] == "connected";
            plugin.look(|said| said.iter().filter(here).count())
        };
        for _ in 0..8 {
            let before = came();
            let watch = Watch::join(self.grant.as_ref().unwrap(), self.kind).await;
            within(SOON, || came() > before || watch.look(|heard| heard.closed.is_some())).await;
            let turned_away = watch.look(|heard| heard.closed == Some(Some(4503)));
            self.watch = Some(watch);
            if !turned_away {
                return;
            }
            sleep(Duration::from_millis(800)).await;
        }
        panic!("the Watch is turned away");
    }

    /// The Watch asks for the engine and has the answer.
    pub(crate) async fn start(&mut self) -> bool {
        let watch = self.watch.as_ref().unwrap();
        let before = watch.look(|heard| heard.controls.len());
        watch.start(self.kind, BRIEFING).await;
        let answer = || {
            watch.look(|heard| {
                let kinds = heard.controls[before..].iter().map(|control| control["type"].as_str().unwrap_or_default());
                kinds.into_iter().find_map(|kind| match kind {
                    "started" => Some(true),
                    "error" => Some(false),
                    _ => None,
                })
            })
        };
        assert!(within(Duration::from_secs(45), || answer().is_some()).await, "no answer to `start`");
        let started = answer() == Some(true);
        if started {
            watch.started(self.kind, BRIEFING).await;
        }
        started
    }

    /// Whether a call runs, as far as its Watch knows.
    fn runs(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| {
            watch.look(|heard| {
                let kind = heard.controls.last().and_then(|control| control["type"].as_str());
                heard.closed.is_none() && kind == Some("started")
            })
        })
    }

    async fn hang_up(&mut self, faults: &mut Vec<String>) {
        self.mark();
        let watch = self.watch.as_ref().unwrap();
        watch.speaks(false);
        watch.control(&json!({"type": "end"})).await;
        let told = self.told(SOON, Self::watch_is_over).await;
        if told.watch != "ended: ended" {
            faults.push(format!("the end of a call was told as {}", told.watch));
        }
    }

    fn heard_controls(&self) -> usize {
        self.watch.as_ref().map_or(0, |watch| watch.look(|heard| heard.controls.len()))
    }

    /// A call in which the engine is being heard.
    pub(crate) async fn call(&mut self) {
        self.plugin().await;
        self.call_on().await;
    }

    /// The same on the present plugin.
    pub(crate) async fn call_on(&mut self) {
        self.on_the_relay().await;
        self.watch_joins().await;
        assert!(self.start().await, "not started: {}", self.situation());
        self.hears(Duration::from_millis(500), SOON).await;
    }

    /// A Watch that has joined and asked for nothing.
    pub(crate) async fn lobby(&mut self) {
        self.plugin().await;
        self.on_the_relay().await;
        self.watch_joins().await;
    }

    /// The engine is heard to speak for so long.
    pub(crate) async fn hears(&mut self, time: Duration, limit: Duration) {
        let watch = self.watch.as_ref().unwrap();
        let wanted = watch.look(|heard| heard.loud) + (time.as_secs_f64() * 24_000.0 * LOUD_SHARE) as usize;
        let heard = within(limit, || watch.look(|heard| heard.loud >= wanted)).await;
        assert!(heard, "{time:?} of speech were not heard; {}", self.situation());
    }

    /// What follows is a long wait: others may work meanwhile.
    pub(crate) fn waits(&mut self) {
        self.turn = None;
    }

    // What the two sides are told.

    /// From now on counts.
    pub(crate) fn mark(&mut self) {
        let controls = self.heard_controls();
        let lines = self.plugin.as_ref().map_or(0, |plugin| plugin.look(<[Value]>::len));
        self.marks = (Instant::now(), controls, lines);
    }

    /// Waits until `done`, and a little more for what belongs to it.
    pub(crate) async fn told(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> Told {
        let end = self.marks.0 + limit;
        let mut exit = None;
        while !done(self) && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
        let after = self.marks.0.elapsed();
        // Until nothing new has come for a while, or the bridge is gone.
        let mut before = (0, 0);
        let mut quiet = 0;
        while quiet < 8 {
            sleep(Duration::from_millis(100)).await;
            exit = self.exit().await;
            let now = (self.watch_said().len(), self.plugin_said().len());
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
        let mut plugin = self.plugin_said();
        plugin.extend(exit.map(|code| format!("exit {code}")));
        Told { watch: sentence(&self.watch_said()), plugin: sentence(&plugin), after, not_run: None }
    }

    /// The call goes on: half a second more of the engine is heard, and it hears the Watch.
    pub(crate) async fn goes_on(&mut self, limit: Duration) -> Told {
        self.hears(Duration::from_millis(500), limit).await;
        let engine = self.engine.as_ref().unwrap();
        let heard = engine.heard_ms();
        let hears = within(SOON, || self.engine.as_ref().unwrap().heard_ms() >= heard + 300).await;
        assert!(hears, "the engine does not hear the Watch: {}", self.situation());
        let after = self.marks.0.elapsed();
        let told = self.told(Duration::ZERO, |_| true).await;
        Told { watch: format!("{}; the call goes on", told.watch), after, ..told }
    }

    /// What the Watch was told since the mark.
    pub(crate) fn watch_said(&self) -> Vec<String> {
        let Some(watch) = &self.watch else { return Vec::new() };
        watch.look(|heard| {
            let controls = heard.controls.iter().skip(self.marks.1).map(|control| match control["type"].as_str() {
                Some("error") => format!("error {}", control["code"].as_str().unwrap_or_default()),
                Some("ended") => format!("ended: {}", control["reason"].as_str().unwrap_or_default()),
                other => other.unwrap_or_default().to_owned(),
            });
            let closed = heard.closed.map(|code| match code {
                Some(code) => format!("closed {code}"),
                None => "the connection broke".to_owned(),
            });
            controls.chain(closed).collect()
        })
    }

    /// What the plugin was told since the mark, figures and requests apart.
    pub(crate) fn plugin_said(&self) -> Vec<String> {
        let Some(plugin) = &self.plugin else { return Vec::new() };
        plugin.look(|said| {
            let lines = said.iter().skip(self.marks.2).filter_map(|line| {
                let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
                Some(match line["type"].as_str()? {
                    "stats" | "session_request" | "ready" => return None,
                    kind @ ("ended" | "closed") => format!("{kind}: {}", text("reason")),
                    kind => format!("{kind} {}", text("state")).trim().to_owned(),
                })
            });
            lines.collect()
        })
    }

    pub(crate) async fn plugin_says(&mut self, what: &str, limit: Duration, done: impl Fn(&[String]) -> bool) {
        assert!(within(limit, || done(&self.plugin_said())).await, "{what}: not in time; {}", self.situation());
    }

    pub(crate) fn watch_is_over(&self) -> bool {
        self.watch_said()
            .iter()
            .any(|said| said.starts_with("ended") || said.starts_with("closed") || said.contains("broke"))
    }

    pub(crate) fn watch_is_closed(&self) -> bool {
        self.watch_said().iter().any(|said| said.starts_with("closed") || said.contains("broke"))
    }

    pub(crate) fn plugin_heard(&self, wanted: &str) -> bool {
        self.plugin_said().iter().any(|said| said.starts_with(wanted))
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.plugin.as_ref().and_then(Plugin::pid)
    }

    pub(crate) async fn exit(&mut self) -> Option<i32> {
        match &mut self.plugin {
            Some(plugin) => plugin.exit().await,
            None => None,
        }
    }

    /// For a message.
    pub(crate) fn situation(&self) -> String {
        let log = String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned();
        let last: Vec<&str> = log.lines().rev().filter(|line| !line.contains("was dropped")).take(3).collect();
        format!("told the Watch {:?}, the plugin {:?}; its log ends {last:?}", self.watch_said(), self.plugin_said())
    }

    // What is left.

    /// Nothing may be left of the fault, the next call has to go well, and nothing may be left of that either.
    pub(crate) async fn finish(&mut self) -> Rest {
        if self.turn.is_none() {
            self.turn = Some(Arc::clone(&self.turns).acquire_owned().await.unwrap());
        }
        let mut faults = Vec::new();
        if self.runs() {
            self.hang_up(&mut faults).await;
        }
        self.nothing_left("the fault", &mut faults).await;

        let engine = match self.kind {
            EngineKind::GptLive => {
                SignIns { gpt_live: Some((self.healthy.gpt_live.url(), Dialect::B)), ..self.bearer() }
            }
            EngineKind::Grok => SignIns { grok: Some(self.healthy.grok.url()), ..self.bearer() },
        };
        *self.desk.0.lock().unwrap() = Answering::Usual(engine);
        let lives = self.plugin.is_some() && self.exit().await.is_none() && !self.pid().is_some_and(is_gone);
        if !lives {
            self.plugin = None;
            self.watch = None;
            self.through = None;
            self.mark();
            self.plugin().await;
            self.on_the_relay().await;
        }
        if self.watch.as_ref().is_none_or(|watch| watch.look(|heard| heard.closed.is_some())) {
            self.watch_joins().await;
        }
        self.mark();
        assert!(self.start().await, "the next call does not start: {}", self.situation());
        self.hears(Duration::from_millis(300), SOON).await;
        self.hang_up(&mut faults).await;
        self.nothing_left("the next call", &mut faults).await;

        let plugin = self.plugin.as_ref().unwrap();
        plugin.stop().await;
        let since = Instant::now();
        while self.exit().await.is_none() && since.elapsed() < SOON {
            sleep(Duration::from_millis(20)).await;
        }
        if self.exit().await != Some(0) {
            faults.push(format!("the bridge ends with {:?}", self.exit().await));
        }
        // The grants are closed, as a plugin does, and then the relay is as it was.
        drop(self.watch.take());
        if let Some(grant) = &self.grant {
            let host = Host::new(grant.relay.clone(), Secret::new(CREDENTIAL)).unwrap();
            host.close_grant(&grant.id).await.unwrap();
        }
        let (pid, idle) = (self.relay.child.id().unwrap(), self.relay.idle);
        if !within(SOON, || descriptors(pid) <= idle).await {
            faults.push(format!("the relay has {} descriptors, had {idle}", descriptors(pid)));
        }
        self.private_files(&mut faults);
        let logs = [("the bridge's log", self.log.clone()), ("the relay's log", self.relay.log.clone())];
        for (name, log) in logs {
            let (secrets, text) = (Arc::clone(&self.secrets), log.lock().unwrap().clone());
            faults.extend(tokio::task::spawn_blocking(move || secrets.found_in(name, &text)).await.unwrap());
        }
        faults.extend(self.secrets.seen_in_processes().to_vec());
        let next = if lives { "fine, on the same bridge" } else { "fine, on a new bridge" };
        let left = if faults.is_empty() { "nothing" } else { "see below" };
        Rest { left: left.into(), next: next.into(), faults }
    }

    fn bearer(&self) -> SignIns {
        SignIns { bearer: Some(Secret::new(BEARER)), ..SignIns::default() }
    }

    async fn nothing_left(&mut self, of: &str, faults: &mut Vec<String>) {
        match self.pid() {
            Some(pid) if self.exit().await.is_none() && !is_gone(pid) => {
                // Its own connection to the relay may be gone or new.
                let idle = self.idle;
                if !within(RELEASED, || descriptors(pid) <= idle).await {
                    faults.push(format!("of {of}: the bridge has {} descriptors, had {idle}", descriptors(pid)));
                }
            }
            _ => {}
        }
        let dir = self.slots_dir();
        let free = || {
            let slots = Slots::open(Some(dir.clone()), DEFAULT_SLOTS).unwrap();
            let taken: Vec<_> = (0..DEFAULT_SLOTS).map_while(|_| slots.take().unwrap()).collect();
            taken.len() == DEFAULT_SLOTS
        };
        if !within(RELEASED, free).await {
            faults.push(format!("of {of}: a slot is taken"));
        }
        if let Some(engine) = &self.engine
            && !within(RELEASED + SOON, || engine.open_sessions() == 0).await
        {
            faults.push(format!("of {of}: the engine has {} open sessions", engine.open_sessions()));
        }
    }

    /// The folder of the locks holds locks only, and both are the user's own.
    fn private_files(&self, faults: &mut Vec<String>) {
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = self.slots_dir();
        if mode(&dir) != 0o700 {
            faults.push(format!("the folder of the slots has mode {:o}", mode(&dir)));
        }
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if mode(&path) != 0o600 || !["", "used\n"].contains(&text.as_str()) {
                faults.push(format!("{}: mode {:o}, {} bytes", path.display(), mode(&path), text.len()));
            }
        }
    }

    /// For faults of which the engine is not told: its sessions do not end by themselves.
    pub(crate) fn forget_engine(&mut self) {
        self.engine = None;
    }
}

fn sentence(said: &[String]) -> String {
    if said.is_empty() { "nothing".into() } else { said.join(", ") }
}

/// The program under test, at the loudest log level.
pub(crate) fn bridge_command() -> Command {
    let mut command = Command::new(BINARY);
    command.args(BRIDGE);
    command
}

impl RelayProcess {
    async fn start(dir: &TempDir) -> Self {
        let credentials = dir.path().join("credentials");
        std::fs::write(&credentials, CREDENTIAL).unwrap();
        std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (log, mut tasks) = (Log::default(), JoinSet::new());
        let (child, address) = Self::spawn(&credentials, "127.0.0.1:0".parse().unwrap(), &log, &mut tasks).await;
        let idle = descriptors(child.id().unwrap());
        Self { child, address, credentials, log, tasks, idle }
    }

    async fn spawn(
        credentials: &std::path::Path,
        listen: SocketAddr,
        log: &Log,
        tasks: &mut JoinSet<()>,
    ) -> (Child, SocketAddr) {
        let mut child = Command::new(BINARY)
            .args(["relay", "--log-level", "trace", "--listen", &listen.to_string(), "--credentials"])
            .arg(credentials)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            assert!(said.read_line(&mut line).await.unwrap() > 0, "the relay says where it listens");
            log.lock().unwrap().extend_from_slice(line.as_bytes());
            address =
                line.split("address=").nth(1).map(|rest| rest.split_whitespace().next().unwrap().parse().unwrap());
        }
        collect(tasks, said, log);
        (child, address.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// A new process at the same address, which knows nothing of the old one's grants.
    pub(crate) async fn restart(&mut self) {
        let (child, _) = Self::spawn(&self.credentials, self.address, &self.log, &mut self.tasks).await;
        self.child = child;
    }
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_watch-audio");
/// Its arguments.
pub(crate) const BRIDGE: [&str; 3] = ["bridge", "--log-level", "trace"];

// Words that nobody else uses: any piece of them gives them away.
pub(crate) const CREDENTIAL: &str = "xylem.gateway.quagmire-zephyr-kumquat";
pub(crate) const BEARER: &str = "bearer-fjord-obelisk-walrus-0815";
pub(crate) const BRIEFING: &str = "gherkin pterodactyl umbrella marzipan";
pub(crate) const SPOKEN: &str = "kaleidoscope hippopotamus tangerine quicksand";
pub(crate) const SPOKEN_HERTZ: f64 = 440.0;

/// Of a tone, the samples that are no quiet.
const LOUD_SHARE: f64 = 0.9;

/// For what happens at once, on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(40);
/// The product's word: all of a session is gone so long after its end.
const RELEASED: Duration = Duration::from_secs(5);
