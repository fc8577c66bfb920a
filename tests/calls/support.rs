//! The neighbours of a bridge, and what is looked at from outside: its descriptors, its slots, its end.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use watch_audio::bridge::slots::{DEFAULT_SLOTS, Slots};
use watch_audio::engine::EngineKind;
use watch_audio::secret::Secret;
use watch_audio_media::resample::Resampler;
use watch_audio_media::{pcm, wav};
use watch_audio_probes::dialogue::{Dialect, Dialogue};
use watch_audio_probes::host::{Engine, Host, HostOptions, Relay};
use watch_audio_probes::microphone::Microphone;
use watch_audio_probes::playout::Playout;
use watch_audio_probes::plugin::{BridgeCommand, SignIns};
use watch_audio_probes::sim::script::{Script, Turn, Utterance};
use watch_audio_probes::sim::{gpt_live, grok};
use watch_audio_probes::tools::Answers;
use watch_audio_probes::watch::{Close, Grant, Incoming, Watch};

/// For what happens at once, on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The product's word: a session's sockets, slot and tasks are gone so long after its end.
pub(crate) const RELEASED: Duration = Duration::from_secs(5);

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_watch-audio");

pub(crate) const CREDENTIAL: &str = "install.gateway.not-to-be-seen";

/// A relay, both engines, and the folder of the slots.
pub(crate) struct World {
    pub(crate) relay: RelayProcess,
    pub(crate) gpt_live: gpt_live::Simulator,
    pub(crate) grok: grok::Simulator,
    pub(crate) dir: TempDir,
    pub(crate) program: PathBuf,
}

impl World {
    /// Engines in good health that answer a question by themselves, at length.
    pub(crate) async fn new() -> Self {
        let gpt_live = gpt_live::Options { script: script("long-answer.wav"), ..Default::default() };
        let grok = grok::Options { script: script("long-answer.wav"), ..Default::default() };
        Self::with(gpt_live, grok).await
    }

    pub(crate) async fn with(gpt_live: gpt_live::Options, grok: grok::Options) -> Self {
        Self::with_limits(gpt_live, grok, &[]).await
    }

    /// The same with other limits of the relay, by their environment variables' last words.
    pub(crate) async fn with_limits(
        gpt_live: gpt_live::Options,
        grok: grok::Options,
        limits: &[(&'static str, &'static str)],
    ) -> Self {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        Self {
            relay: RelayProcess::start(dir.path(), limits).await,
            gpt_live: gpt_live::Simulator::start(gpt_live).await.unwrap(),
            grok: grok::Simulator::start(grok).await.unwrap(),
            dir,
            program: BINARY.into(),
        }
    }

    pub(crate) async fn host(&self) -> Host {
        self.host_through(&self.relay.url()).await
    }

    /// A host, its bridge and the Watch's grant, all of which reach the relay at `url`.
    pub(crate) async fn host_through(&self, url: &str) -> Host {
        let sign_ins = SignIns {
            gpt_live: Some((self.gpt_live.url(), Dialect::B)),
            grok: Some(self.grok.url()),
            bearer: Some(Secret::new("sign-in-not-to-be-seen")),
        };
        let options = HostOptions {
            relay: Relay::At { url: url.to_owned(), credential: Secret::new(CREDENTIAL) },
            engine: Engine::At(sign_ins),
            dialect: Dialect::B,
            bridge: BridgeCommand {
                program: self.program.clone(),
                arguments: vec!["bridge".into()],
                slots: Some(self.slots()),
                stun: vec![],
            },
            answers: Answers::scripted(Duration::ZERO),
        };
        Host::open(options).await.unwrap()
    }

    pub(crate) fn slots(&self) -> PathBuf {
        self.dir.path().join("slots")
    }

    /// Whether every slot of the host can be had.
    pub(crate) fn slots_are_free(&self) -> bool {
        slots_are_free(self.slots())
    }
}

pub(crate) fn slots_are_free(dir: PathBuf) -> bool {
    let slots = Slots::open(Some(dir), DEFAULT_SLOTS).unwrap();
    let taken: Vec<_> = (0..DEFAULT_SLOTS).map_while(|_| slots.take().unwrap()).collect();
    taken.len() == DEFAULT_SLOTS
}

/// `watch-audio relay`.
pub(crate) struct RelayProcess {
    child: Child,
    address: SocketAddr,
    credentials: PathBuf,
    limits: Limits,
}

/// Limits of a relay by their environment variables' last words.
type Limits = Vec<(&'static str, &'static str)>;

impl RelayProcess {
    async fn start(dir: &Path, limits: &[(&'static str, &'static str)]) -> Self {
        let credentials = dir.join("credentials");
        fs::write(&credentials, CREDENTIAL).unwrap();
        fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
        let (child, address) = Self::spawn(&credentials, "127.0.0.1:0".parse().unwrap(), limits).await;
        Self { child, address, credentials, limits: limits.to_vec() }
    }

    async fn spawn(
        credentials: &Path,
        listen: SocketAddr,
        limits: &[(&'static str, &'static str)],
    ) -> (Child, SocketAddr) {
        let mut child = Command::new(BINARY)
            .args(["relay", "--listen", &listen.to_string(), "--credentials"])
            .arg(credentials)
            .envs(limits.iter().map(|(name, value)| (format!("WATCH_AUDIO_RELAY_{name}"), value)))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = timeout(SOON, said.next_line()).await.unwrap().unwrap().expect("where it listens");
        let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        (child, address)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// A new process at the same address, which knows nothing of the old one's grants.
    pub(crate) async fn restart(&mut self) {
        let (child, address) = Self::spawn(&self.credentials, self.address, &self.limits).await;
        assert_eq!(address, self.address);
        self.child = child;
    }
}

/// A Watch in a call: asks its question again and again, plays what comes, and keeps silent while it plays.
pub(crate) struct Caller {
    watch: Watch,
    microphone: Microphone,
    playout: Playout,
    opened: Instant,
    /// When the question is asked next, and how often.
    asks: (Instant, Duration),
    pub(crate) controls: Vec<Map<String, Value>>,
    /// Audio that came, in samples, and those among them that are no quiet.
    pub(crate) received: usize,
    pub(crate) loud: usize,
    pub(crate) played: Vec<i16>,
    pub(crate) closed: Option<Close>,
}

impl Caller {
    /// Joins as a deployed Watch does and asks for the engine; the host's error code when it has none.
    pub(crate) async fn start(grant: &Grant, engine: EngineKind) -> Result<Self, String> {
        let mut tries = 1;
        let (mut watch, opened, control) = loop {
            let mut watch = Watch::join(grant).await.unwrap();
            watch.control(&json!({"type": "start", "engine": engine.as_str()}));
            let (opened, incoming) = timeout(SOON, watch.next()).await.expect("an answer to `start`");
            match incoming {
                Incoming::Control(control) => break (watch, opened, control),
                // The host is not there yet, or not yet again: a Watch tries 8 times, a second apart.
                Incoming::Closed(close) if close.code == Some(4503) && tries < 8 => {
                    tries += 1;
                    sleep(Duration::from_secs(1)).await;
                }
                other => panic!("{other:?} before `started`"),
            }
        };
        if control["type"] != "started" {
            return Err(control["code"].as_str().unwrap().to_owned());
        }
        // Grok's session is the Watch's to set up.
        if let Some(opening) = Dialogue::new(engine, Dialect::B).opening() {
            watch.event(&opening);
        }
        Ok(Self {
            watch,
            microphone: Microphone::new(engine.input_rate(), question(engine.input_rate())),
            playout: Playout::new(engine),
            opened,
            asks: (opened, Duration::from_secs(60)),
            controls: Vec::new(),
            received: 0,
            loud: 0,
            played: Vec::new(),
            closed: None,
        })
    }

    pub(crate) fn asks_every(&mut self, period: Duration) {
        self.asks.1 = period;
    }

    pub(crate) async fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && self.closed.is_none() {
            self.step().await;
        }
    }

    /// Goes on until `done`.
    pub(crate) async fn until(&mut self, limit: Duration, what: &str, done: impl Fn(&Self) -> bool) {
        let waited = timeout(limit, async {
            while !done(self) {
                self.step().await;
            }
        });
        let late = waited.await.is_err();
        assert!(!late, "{what}: not within {limit:?}; told {:?}, {:?}", self.controls, self.closed);
    }

    /// Goes on until the host says `ended`; its reason.
    pub(crate) async fn hears_ended(&mut self, limit: Duration) -> String {
        self.until(limit, "ended", |caller| !caller.controls.is_empty()).await;
        let ended = &self.controls[0];
        assert_eq!(ended["type"], "ended", "{ended:?}");
        ended["reason"].as_str().unwrap().to_owned()
    }

    /// Goes on until the engine has been heard to speak for so long.
    pub(crate) async fn hears_speech(&mut self, time: Duration) {
        let samples = self.loud + (time.as_secs_f64() * 24_000.0) as usize;
        self.until(SOON, "speech", |caller| caller.loud >= samples).await;
    }

    /// Goes on until anything at all has been heard of the engine, be it silence; Grok is asked to speak first.
    pub(crate) async fn hears_sound(&mut self, engine: EngineKind) {
        if engine == EngineKind::Grok {
            self.watch.event(&json!({"type": "response.create"}));
        }
        self.until(SOON, "sound", |caller| caller.received > 0).await;
    }

    pub(crate) fn hang_up(&mut self) {
        self.watch.control(&json!({"type": "end"}));
    }

    async fn step(&mut self) {
        let due = self.opened + self.microphone.due();
        tokio::select! {
            (at, incoming) = self.watch.next(), if self.closed.is_none() => match incoming {
                Incoming::Audio(bytes) => {
                    let mut samples = Vec::new();
                    pcm::from_bytes(&bytes, &mut samples);
                    self.received += samples.len();
                    self.loud += samples.iter().filter(|sample| sample.unsigned_abs() > pcm::QUIET_PEAK).count();
                    self.playout.push(at - self.opened, &samples);
                }
                Incoming::Control(control) => self.controls.push(control),
                Incoming::Closed(close) => self.closed = Some(close),
                Incoming::Event(_) => {}
            },
            () = sleep_until(due) => {
                if self.asks.0 <= due {
                    self.microphone.speak();
                    self.asks.0 += self.asks.1;
                }
                let open = self.playout.microphone_open(due - self.opened);
                let mut message = Vec::new();
                pcm::to_bytes(self.microphone.capture(), &mut message);
                if open && self.closed.is_none() {
                    self.watch.audio(&message);
                }
            }
        }
        self.playout.advance(self.opened.elapsed());
        self.played.extend(self.playout.take_played());
    }
}

/// Every question is answered with this sample, without an agent.
pub(crate) fn script(answer: &str) -> Script {
    let answer = Utterance::new("Here is the weather.", sample(answer).samples);
    Script {
        turns: vec![Turn { heard: "The weather?".into(), filler: None, delegate: None, answer }],
        ..Script::default()
    }
}

pub(crate) fn sample(name: &str) -> wav::Wav {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name);
    wav::parse(&fs::read(path).unwrap()).unwrap()
}

/// The question at a rate.
pub(crate) fn question(rate: u32) -> Vec<i16> {
    let question = sample("question.wav");
    let mut resampler = Resampler::new(question.rate, rate).unwrap();
    let mut samples = Vec::new();
    resampler.push(&question.samples, &mut samples);
    resampler.flush(&mut samples);
    samples
}

/// The open descriptors of a process: its sockets and files. None when it is gone.
pub(crate) fn descriptors(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()).filter(|_| !is_gone(pid))
}

/// Whether a process has ended; its parent may not have asked for it yet.
pub(crate) fn is_gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name in brackets may hold anything.
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

pub(crate) async fn within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(20)).await;
    }
}
