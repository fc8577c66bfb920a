//! The plugin's part: spawns `watch-audio bridge`, speaks JSON lines with it, and signs in for it (`plugin-stdio.md`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use watch_audio::engine::{EngineKind, ErrorCode, Start, StartError};
use watch_audio::secret::Secret;
use watch_audio::sign_in::openai::{self, ChatGpt};
use watch_audio::sign_in::session::session_request;

use crate::dialogue::Dialect;
use crate::watch::Grant;

/// How the bridge is started.
#[derive(Debug, Clone)]
pub struct BridgeCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, `bridge` among them.
    pub arguments: Vec<OsString>,
    /// The folder of the host-wide slots; without one the bridge's own default.
    pub slots: Option<PathBuf>,
    /// STUN servers, `stun:host:port`.
    pub stun: Vec<String>,
}

/// The sign-ins that the plugin has.
#[derive(Debug, Clone, Default)]
pub struct SignIns {
    /// GPT-Live: the service's base URL and its dialect.
    pub gpt_live: Option<(String, Dialect)>,
    /// Grok: the realtime WebSocket.
    pub grok: Option<String>,
    /// The bearer for either: an API key or an access token.
    pub bearer: Option<Secret>,
}

/// A running bridge.
#[derive(Debug)]
pub struct Bridge {
    child: Child,
    to_bridge: mpsc::Sender<String>,
    lines: mpsc::Receiver<Result<Map<String, Value>, serde_json::Error>>,
    report: BridgeReport,
    tasks: JoinSet<()>,
}

/// What the bridge said of the call, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BridgeReport {
    /// The `summary` of each `ended` line, in order.
    pub summaries: Vec<Value>,
    /// The last `stats` line.
    pub stats: Option<Value>,
    /// The reason of `closed`.
    pub closed: Option<String>,
    /// The details of its `relay` lines that told of trouble.
    pub relay: Vec<String>,
    /// The exit code; none when it had to be killed.
    pub exit: Option<i32>,
}

/// Why there is no bridge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// It cannot be started.
    #[error("cannot start the bridge {0}: {1}")]
    Spawn(PathBuf, #[source] std::io::Error),
    /// It ended before it was on the relay.
    #[error("the bridge ended before it was on the relay: {0}")]
    Ended(String),
    /// It says something else than a bridge does.
    #[error("{path} wrote something that is no line of a bridge's protocol; have --bridge name a watch-audio", path = .0.display())]
    NoProtocol(PathBuf),
    /// It is not ready in time.
    #[error("{path} did not say within 15 s that it is ready; have --bridge name a watch-audio", path = .0.display())]
    NotReady(PathBuf),
    /// It is not on the relay in time.
    #[error("the bridge did not reach the relay: {0}")]
    NoRelay(String),
}

impl Bridge {
    /// Starts a bridge for a grant and waits until it is on the relay.
    ///
    /// # Errors
    /// When it does not start, or is not there within 15 s.
    pub async fn start(
        command: &BridgeCommand,
        grant: &Grant,
        relay_url: &str,
        credential: &Secret,
        expires_in: Duration,
        sign_ins: SignIns,
    ) -> Result<Self, BridgeError> {
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal goes to the whole group: the bridge is to end by `stop`, as under a plugin.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| BridgeError::Spawn(command.program.clone(), error))?;
        let mut stdin = child.stdin.take().expect("stdin was asked for");
        let stdout = child.stdout.take().expect("stdout was asked for");
        let (to_bridge, mut to_write) = mpsc::channel::<String>(QUEUE);
        let (line_read, lines) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(line) = to_write.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
                    break;
                }
            }
        });
        let answers = to_bridge.clone();
        tasks.spawn(async move {
            let mut stdout = BufReader::new(stdout);
            let mut requests = JoinSet::new();
            let mut line = Vec::new();
            while let Ok(1..) = (&mut stdout).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
                match serde_json::from_slice::<Map<String, Value>>(&line) {
                    Ok(line) if text(&line, "type") == "session_request" => {
                        let (answers, sign_ins) = (answers.clone(), sign_ins.clone());
                        requests.spawn(async move {
                            let answer = sign_ins.answer(&line).await;
                            let _ = answers.send(format!("{answer}\n")).await;
                        });
                    }
                    line => {
                        if line_read.send(line).await.is_err() {
                            break;
                        }
                    }
                }
                line.clear();
            }
        });
        let mut slots = Map::new();
        if let Some(dir) = &command.slots {
            slots.insert("dir".into(), dir.to_string_lossy().into());
        }
        let open = json!({
            "type": "open", "version": 1,
            "grant": {
                "id": grant.id.as_str(),
                "key": grant.root.encode().as_str(),
                "relay_url": relay_url,
                "credential": credential.expose(),
                "expires_in_s": expires_in.as_secs_f64(),
            },
            "engines": ["gpt_live", "grok"],
            "slots": slots,
            "stun": command.stun,
            "stats": true,
        });
        let mut bridge = Self { child, to_bridge, lines, report: BridgeReport::default(), tasks };
        bridge.say(&open);
        bridge.wait_for_relay(&command.program).await?;
        Ok(bridge)
    }

    async fn wait_for_relay(&mut self, program: &Path) -> Result<(), BridgeError> {
        let deadline = Instant::now() + ON_THE_RELAY;
        let mut ready = false;
        loop {
            let line = timeout_at(deadline, self.lines.recv()).await;
            let said = || self.report.relay.last().cloned().unwrap_or_else(|| "it said nothing".into());
            let line = match line {
                Ok(Some(Ok(line))) => line,
                Ok(Some(Err(_))) => return Err(BridgeError::NoProtocol(program.into())),
                Ok(None) => return Err(BridgeError::Ended(self.report.closed.clone().unwrap_or_else(said))),
                Err(_) if ready => return Err(BridgeError::NoRelay(said())),
                Err(_) => return Err(BridgeError::NotReady(program.into())),
            };
            ready |= text(&line, "type") == "ready";
            let connected = text(&line, "type") == "relay" && text(&line, "state") == "connected";
            self.take_note(line);
            if connected {
                return Ok(());
            }
        }
    }

    /// Takes in what the bridge says. Returns once it is gone; cancel safe.
    pub async fn gone(&mut self) {
        while let Some(line) = self.lines.recv().await {
            match line {
                Ok(line) => self.take_note(line),
                Err(_) => tracing::warn!("the bridge wrote a line that is no JSON object"),
            }
        }
    }

    fn take_note(&mut self, mut line: Map<String, Value>) {
        match text(&line, "type") {
            "ended" => self.report.summaries.extend(line.remove("summary")),
            "stats" => self.report.stats = Some(line.into()),
            "closed" => self.report.closed = Some(text(&line, "reason").to_owned()),
            "relay" => {
                let detail = text(&line, "detail");
                if !detail.is_empty() {
                    self.report.relay.push(detail.to_owned());
                }
            }
            _ => {}
        }
    }

    /// What was learnt so far.
    pub fn report(&self) -> &BridgeReport {
        &self.report
    }

    /// The process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    fn say(&mut self, line: &Value) {
        // Few lines are ever said, and the queue is longer than that.
        let _ = self.to_bridge.try_send(format!("{line}\n"));
    }

    /// Says `stop` and sees the process out, within 6 s.
    pub async fn stop(mut self) -> BridgeReport {
        self.say(&json!({"type": "stop"}));
        let deadline = Instant::now() + SEES_OUT;
        let _ = timeout_at(deadline, self.gone()).await;
        match timeout_at(deadline, self.child.wait()).await {
            Ok(Ok(status)) => self.report.exit = status.code(),
            _ => {
                let _ = self.child.kill().await;
            }
        }
        self.tasks.abort_all();
        self.report
    }
}

impl SignIns {
    /// The line that answers a `session_request`.
    pub async fn answer(&self, request: &Map<String, Value>) -> Value {
        let id = request.get("id").cloned().unwrap_or_default();
        let signed_in = match EngineKind::parse(text(request, "engine")) {
            Some(EngineKind::GptLive) => self.gpt_live(request).await,
            Some(EngineKind::Grok) => self.grok(),
            None => Err(StartError::new(ErrorCode::BadRequest, "Unknown engine.")),
        };
        let mut line = signed_in.unwrap_or_else(
            |error| json!({"type": "session_failed", "code": error.code.as_str(), "message": error.message}),
        );
        line["id"] = id;
        line
    }

    async fn gpt_live(&self, request: &Map<String, Value>) -> Result<Value, StartError> {
        let unavailable = || StartError::new(ErrorCode::Unavailable, "No sign-in for GPT-Live.");
        let (url, dialect) = self.gpt_live.as_ref().ok_or_else(unavailable)?;
        let fields = request.get("start").and_then(Value::as_object).cloned().unwrap_or_default();
        let start = Start { engine: EngineKind::GptLive, fields };
        let wanted = session_request(*dialect, &start, None, None);
        let offer = text(request, "offer");
        let failed = |error: reqwest::Error| StartError::new(ErrorCode::Failed, error.without_url().to_string());
        let http = openai::http_client([url.as_str()]).map_err(failed)?;
        let bearer = self.bearer.clone().unwrap_or_else(|| Secret::new("probe"));
        let sdp = match dialect {
            Dialect::A => openai::create_with_key(&http, url, &bearer, &wanted.session, offer).await,
            Dialect::B => {
                let sign_in = ChatGpt { access_token: bearer, account_id: Secret::new("probe") };
                openai::create_with_chatgpt(&http, url, &sign_in, &wanted.session, offer).await
            }
        };
        Ok(json!({
            "type": "session",
            "sdp": sdp?,
            "voice": wanted.voice,
            "briefing_applied": wanted.briefing_applied,
            "greeting_applied": wanted.greeting_applied,
        }))
    }

    fn grok(&self) -> Result<Value, StartError> {
        let unavailable = || StartError::new(ErrorCode::Unavailable, "No sign-in for Grok.");
        let url = self.grok.as_ref().ok_or_else(unavailable)?;
        let bearer = self.bearer.as_ref().map_or("probe", Secret::expose);
        Ok(json!({"type": "session", "url": url, "bearer": bearer, "model": "grok-voice-latest", "voice": "eve"}))
    }
}

fn text<'a>(line: &'a Map<String, Value>, field: &str) -> &'a str {
    line.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Lines in the pipe between the tasks: a call has a handful, and a `stats` line a second.
const QUEUE: usize = 32;
/// A session request holds an offer of some KiB.
const LONGEST_LINE: u64 = 1 << 20;
/// A bridge dials at once; a relay that is not reached by then is not there.
const ON_THE_RELAY: Duration = Duration::from_secs(15);
/// The bridge is gone 5 s after `stop` (`watch-audio.md`), and a little more on a busy machine.
const SEES_OUT: Duration = Duration::from_secs(6);
