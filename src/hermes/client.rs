//! Requests to the Hermes API server (`engines.md` section 6): start a run, ask for its status, decide, stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, redirect};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::event::{Status, is_id};
use crate::address::keeps_secrets;
use crate::secret::Secret;

/// A Hermes API server and the key to it. Cheap to clone.
#[derive(Clone)]
pub struct Hermes {
    http: Client,
    base: Arc<str>,
    key: Secret,
    pub(super) patience: Patience,
    /// Whether this server is known to keep idempotency keys, so that a request can be sent again.
    keeps_keys: Arc<AtomicBool>,
}

impl fmt::Debug for Hermes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hermes")
    }
}

/// How long each thing may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// One request and its answer.
    pub request: Duration,
    /// Starting a run, with everything that is tried.
    pub start: Duration,
    /// Nothing at all on a run's stream, keepalives included: the server is gone (`hermes-voice.md`).
    pub stall: Duration,
    /// No event on a run's stream: its status is looked at meanwhile.
    pub quiet: Duration,
    /// Between two looks at the status of a run without a stream: first, and at most.
    pub poll: (Duration, Duration),
    /// No answer to any of these looks: the server is gone.
    pub gone: Duration,
    /// From asking a run to stop until it counts as stopped, whatever it does.
    pub stop: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(15),
            start: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            quiet: Duration::from_secs(10),
            poll: (Duration::from_millis(500), Duration::from_secs(5)),
            gone: Duration::from_secs(60),
            stop: Duration::from_secs(5),
        }
    }
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is no address of a web server.
    #[error("the address of Hermes must be a URL such as http://127.0.0.1:8642")]
    NotAUrl,
    /// The key would travel in clear.
    #[error("the address of Hermes must be https, or lead to this machine: its key would travel in clear")]
    Clear,
    /// No HTTP client.
    #[error("this machine has no usable certificates to trust")]
    Http(#[from] reqwest::Error),
}

/// A run to start.
pub struct NewRun {
    /// What is asked.
    pub input: String,
    /// How it is to be answered.
    pub instructions: String,
    /// The session whose history the server loads.
    pub session_id: String,
    /// Names the request: the same one sent again starts nothing new (1 to 255 visible ASCII characters).
    pub key: String,
}

/// A run's id: 1 to 256 of `A-Za-z0-9_.:-`, and neither `.` nor `..`, so that it can stand in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunId(String);

impl RunId {
    /// Takes a text that is an id.
    pub fn parse(text: &str) -> Option<Self> {
        is_id(text).then(|| Self(text.to_owned()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why no run was started. Never holds what the server answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Nobody answers.
    #[error("Hermes cannot be reached; is its API server running?")]
    Unreachable,
    /// The key is not its key.
    #[error("Hermes did not accept the key; look at the file with its key")]
    Key,
    /// It has too much to do, or is about to stop (HTTP 429 and 503).
    #[error("Hermes has too much to do just now ({0}); ask again in a moment")]
    Busy(u16),
    /// It refused with this HTTP status.
    #[error("Hermes refused the request ({0})")]
    Refused(u16),
    /// The answer was lost, and asking again could do the work twice.
    #[error("it is not certain that Hermes took the request; ask what became of it before asking again")]
    Uncertain,
    /// An answer without what it should hold.
    #[error("Hermes gave an answer that cannot be used")]
    Unusable,
    /// A newer request came first.
    #[error("a newer request took its place")]
    Replaced,
}

impl StartError {
    /// Whether it is certain that Hermes has not taken the request. One that it may have taken must not be made twice.
    pub(super) fn is_refusal(self) -> bool {
        match self {
            Self::Unreachable | Self::Key | Self::Busy(_) | Self::Replaced => true,
            Self::Refused(status) => status < 500,
            Self::Uncertain | Self::Unusable => false,
        }
    }
}

/// Why a question about a run was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nobody answers, or not in time.
    #[error("Hermes cannot be reached")]
    Unreachable,
    /// It refused with this HTTP status.
    #[error("Hermes refused ({0})")]
    Refused(u16),
    /// An answer that is not JSON, or too long.
    #[error("Hermes gave an answer that cannot be used")]
    Unusable,
}

/// A person's decision. `always` is none that is made by voice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This once.
    Once,
    /// For the rest of the session.
    Session,
    /// No.
    Deny,
}

impl Choice {
    /// Reads `once`, `session` or `deny`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "once" => Some(Self::Once),
            "session" => Some(Self::Session),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Deny => "deny",
        }
    }
}

/// What came of one attempt to start a run.
enum Attempt {
    Started(RunId),
    /// Nothing was started: ask again after this long.
    Later(Option<Duration>, StartError),
    /// It may have been started or not.
    Lost,
    No(StartError),
}

impl Hermes {
    /// A server at `url`, which may end with a profile's path (`/p/{profile}`).
    ///
    /// # Errors
    /// When the address cannot be one, or would carry the key in clear.
    pub fn new(url: &str, key: Secret) -> Result<Self, UrlError> {
        let parsed = Url::parse(url).map_err(|_| UrlError::NotAUrl)?;
        let bare = parsed.query().is_none() && parsed.fragment().is_none() && parsed.username().is_empty();
        if !matches!(parsed.scheme(), "http" | "https") || !bare || parsed.password().is_some() {
            return Err(UrlError::NotAUrl);
        }
        if !keeps_secrets(&parsed) {
            return Err(UrlError::Clear);
        }
        crate::tls::ensure_provider();
        let mut http = Client::builder()
            // The key must not travel elsewhere.
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT)
            .referer(false);
        if parsed.scheme() == "http" {
            // It stays on this machine, whatever proxy the environment names.
            http = http.no_proxy();
        }
        Ok(Self {
            http: http.build()?,
            base: parsed.as_str().trim_end_matches('/').into(),
            key,
            patience: Patience::default(),
            keeps_keys: Arc::default(),
        })
    }

    /// The same with other limits.
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Starts a run, once: an answer that was lost is asked for again under the same key, where the server keeps keys, and
    /// is an error where it does not. No further attempt is made once `replaced` says so.
    ///
    /// # Errors
    /// Why there is no run, or why that is not known.
    pub async fn start(&self, run: &NewRun, replaced: &mut watch::Receiver<bool>) -> Result<RunId, StartError> {
        let deadline = Instant::now() + self.patience.start;
        let mut pause = FIRST_PAUSE;
        // Whether a run may be there that we know nothing of. Then it is asked for until that is known.
        let mut lost = false;
        loop {
            let (wait, error) = match self.attempt(run).await {
                Attempt::Started(id) => return Ok(id),
                Attempt::No(error) => return Err(error),
                Attempt::Later(wait, error) => (wait, error),
                Attempt::Lost if self.keeps_keys().await => {
                    lost = true;
                    (None, StartError::Uncertain)
                }
                Attempt::Lost => return Err(StartError::Uncertain),
            };
            let wait = wait.unwrap_or_default().max(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            if Instant::now() + wait >= deadline {
                return Err(if lost { StartError::Uncertain } else { error });
            }
            tokio::select! {
                () = sleep(wait) => {}
                // A sender that is gone replaces nothing; the wait goes on in the next attempt.
                Ok(_) = replaced.wait_for(|replaced| *replaced), if !lost => return Err(StartError::Replaced),
            }
        }
    }

    async fn attempt(&self, run: &NewRun) -> Attempt {
        let body = json!({"input": run.input, "instructions": run.instructions, "session_id": run.session_id});
        let request =
            self.request(self.http.post(self.url("/v1/runs"))).header("Idempotency-Key", &run.key).json(&body);
        let answer = match timeout(self.patience.request, request.send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.is_connect() => return Attempt::Later(None, StartError::Unreachable),
            Ok(Err(_)) | Err(_) => return Attempt::Lost,
        };
        match answer.status().as_u16() {
            200..300 => {}
            status @ (429 | 503) => {
                return Attempt::Later(retry_after(answer.headers()), StartError::Busy(status));
            }
            // A proxy before it gave up; what stands behind the proxy may not have.
            502 | 504 => return Attempt::Lost,
            401 | 403 => return Attempt::No(StartError::Key),
            status => return Attempt::No(StartError::Refused(status)),
        }
        let Ok(Ok(answer)) = timeout(self.patience.request, read(answer)).await else {
            return Attempt::Lost;
        };
        if answer.get("replayed").is_some() {
            self.keeps_keys.store(true, Ordering::Relaxed);
        }
        match answer["run_id"].as_str().and_then(RunId::parse) {
            Some(id) => Attempt::Started(id),
            None => Attempt::No(StartError::Unusable),
        }
    }

    /// Whether the server keeps idempotency keys: it has said so with an earlier run, or its capabilities do. Older
    /// builds ignore the key and would start a second run (`engines.md` 6.1).
    async fn keeps_keys(&self) -> bool {
        if self.keeps_keys.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(capabilities) = self.ask(self.http.get(self.url("/v1/capabilities"))).await else { return false };
        let features = capabilities["features"].as_object();
        let keeps = features.is_some_and(|features| {
            features.iter().any(|(name, value)| {
                name.contains("idempoten") && (*value == Value::Bool(true) || value["enabled"] == Value::Bool(true))
            })
        });
        self.keeps_keys.fetch_or(keeps, Ordering::Relaxed);
        keeps
    }

    /// Opens a run's event stream. There is one, once.
    pub(super) async fn events(&self, run: &RunId) -> Result<Response, CallError> {
        let request = self.request(self.http.get(self.run_url(run, "/events"))).header("Accept", "text/event-stream");
        let answer = timeout(self.patience.request, request.send()).await;
        let answer = answer.map_err(|_| CallError::Unreachable)?.map_err(|_| CallError::Unreachable)?;
        if answer.status().is_success() { Ok(answer) } else { Err(CallError::Refused(answer.status().as_u16())) }
    }

    /// A run's status.
    pub(super) async fn status(&self, run: &RunId) -> Result<Status, CallError> {
        let status = self.ask(self.http.get(self.run_url(run, ""))).await?;
        Ok(Status::read(&status))
    }

    /// Tells a run what was decided; gives the server's status and its answer.
    ///
    /// # Errors
    /// When there is no answer that can be used.
    pub async fn approve(
        &self,
        run: &RunId,
        request_id: Option<&str>,
        choice: Choice,
    ) -> Result<(u16, Value), CallError> {
        let mut body = json!({"choice": choice.as_str()});
        if let Some(id) = request_id {
            body["request_id"] = id.into();
        }
        let request = self.request(self.http.post(self.run_url(run, "/approval"))).json(&body);
        timeout(self.patience.request, async {
            let answer = request.send().await.map_err(|_| CallError::Unreachable)?;
            Ok((answer.status().as_u16(), read(answer).await?))
        })
        .await
        .map_err(|_| CallError::Unreachable)?
    }

    /// Asks a run to stop and sees to it that it has, or until [`Patience::stop`] is over. A run that is over, or that
    /// the server does not know, is stopped.
    pub async fn stop(&self, run: &RunId) {
        let stopped = timeout(self.patience.stop, async {
            // However this is answered, the status tells what came of it.
            let asked = self.ask(self.http.post(self.run_url(run, "/stop"))).await;
            if matches!(asked, Err(CallError::Refused(404))) {
                return;
            }
            let mut pause = FIRST_PAUSE;
            loop {
                match self.status(run).await {
                    Ok(status) if status.is_terminal() => return,
                    Err(CallError::Refused(404)) => return,
                    _ => {}
                }
                sleep(pause).await;
                pause = (pause * 2).min(self.patience.poll.1);
            }
        });
        if stopped.await.is_err() {
            tracing::warn!("a run does not stop; the next one starts beside it");
        }
    }

    /// Sends a request and reads its answer.
    async fn ask(&self, request: RequestBuilder) -> Result<Value, CallError> {
        let request = self.request(request);
        timeout(self.patience.request, async {
            let answer = request.send().await.map_err(|_| CallError::Unreachable)?;
            if !answer.status().is_success() {
                return Err(CallError::Refused(answer.status().as_u16()));
            }
            read(answer).await
        })
        .await
        .map_err(|_| CallError::Unreachable)?
    }

    fn request(&self, request: RequestBuilder) -> RequestBuilder {
        request.bearer_auth(self.key.expose())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn run_url(&self, run: &RunId, path: &str) -> String {
        format!("{}/v1/runs/{}{path}", self.base, run.as_str())
    }
}

/// Reads a JSON answer, up to its limit.
async fn read(mut answer: Response) -> Result<Value, CallError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|_| CallError::Unreachable)? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(CallError::Unusable);
        }
    }
    serde_json::from_slice(&body).map_err(|_| CallError::Unusable)
}

/// When the server wants to be asked again, where it says so in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A server that is there accepts at once.
const CONNECT: Duration = Duration::from_secs(5);

/// Before a request is sent again, where the server does not say.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A status holds the whole answer of a run.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
