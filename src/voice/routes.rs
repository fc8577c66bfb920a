//! The routes (`hermes-voice.md`, "Routes" and "Delegation to Hermes"): JSON in, JSON or one JSON object a line out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use reqwest::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::guard::{self, Token};
use super::session::session;
use super::{Config, page};
use crate::hermes::{CallError, Choice, Delegation, Ending, Line, Progress, Rejected, RunId, Runner, Update};
use crate::secret::Secret;
use crate::sign_in::openai::{self, CreateError, Created};

/// What every request is answered from.
pub(super) type Shared = Arc<Desk>;

pub(super) struct Desk {
    pub(super) listen: SocketAddr,
    pub(super) token: Option<Token>,
    pub(super) config: Config,
    pub(super) voices: BTreeMap<String, String>,
    pub(super) openai_key: Secret,
    pub(super) http: Client,
    pub(super) runner: Runner,
    /// Says that the server stops: streams end.
    pub(super) stopped: watch::Receiver<bool>,
}

/// Every route.
pub(super) fn routes(desk: Shared) -> Router {
    let api = Router::new()
        .route("/config", get(config))
        .route("/session", post(create_session))
        .route("/delegate", post(delegate))
        .route("/approve", post(approve))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&desk), guard::token));
    Router::new()
        .route("/", get(page::index))
        .route("/app.js", get(page::script))
        .route("/style.css", get(page::style))
        .merge(api)
        .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "not found") })
        .method_not_allowed_fallback(|| async { Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed") })
        .layer(middleware::from_fn_with_state(Arc::clone(&desk), guard::same_site))
        .layer(middleware::from_fn(guard::unambiguous))
        .layer(middleware::from_fn(guard::headers))
        .with_state(desk)
}

/// A refusal: `{"error": …}`, where a service behind us refused with its status.
pub(super) struct Refusal {
    status: StatusCode,
    error: String,
    of_service: Option<u16>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into(), of_service: None }
    }

    fn bad(error: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    fn gateway(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = json!({"error": self.error});
        if let Some(status) = self.of_service {
            body["status"] = status.into();
        }
        answer(self.status, &body)
    }
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

/// Reads a JSON body. Whatever is wrong with it is a 400 (`hermes-voice.md`).
async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    match timeout(BODY_LIMIT, axum::body::to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) if bytes.is_empty() => Err(Refusal::bad("the body is empty")),
        // The parser's own words would repeat what is in it.
        Ok(Ok(bytes)) => {
            serde_json::from_slice(&bytes).map_err(|_| Refusal::bad("the body is not the JSON it should be"))
        }
        Ok(Err(_)) => Err(Refusal::bad("the body is too large, or was cut off")),
        Err(_) => Err(Refusal::bad("the body did not come in time")),
    }
}

/// `GET /config`.
async fn config(State(desk): State<Shared>) -> Response {
    let Config { model, voice, idle_seconds, demonstration, .. } = &desk.config;
    let mut config = json!({"model": model, "voice": voice, "voices": desk.voices, "idle_seconds": idle_seconds});
    if *demonstration {
        config["demonstration"] = true.into();
    }
    answer(StatusCode::OK, &config)
}

#[derive(Deserialize)]
struct SessionBody {
    sdp: Option<String>,
    #[serde(default)]
    history: Option<Vec<Value>>,
    voice: Option<String>,
}

/// `POST /session`: the page's offer for the service's answer.
async fn create_session(State(desk): State<Shared>, body: Body) -> Result<Response, Refusal> {
    let body: SessionBody = read(body).await?;
    let offer = body.sdp.filter(|sdp| !sdp.trim().is_empty()).ok_or_else(|| Refusal::bad("no offer"))?;
    let voice = match body.voice.as_deref() {
        None | Some("") => &desk.config.voice,
        // The vendor's own documents spell this one in two ways (`engines.md` 1.1).
        Some("shitan") => "shida",
        Some(voice) if desk.voices.contains_key(voice) => voice,
        Some(_) => return Err(Refusal::bad("unknown voice")),
    };
    // What is no line is left out: a call is worth more than its history.
    let history: Vec<Line> =
        body.history.unwrap_or_default().into_iter().filter_map(|line| serde_json::from_value(line).ok()).collect();
    let wanted = session(&desk.config, voice, &history);
    let request = openai::creation_with_key(&desk.http, &desk.config.openai_url, &desk.openai_key, &wanted, &offer);
    let mut created = request.send().await.map_err(|_| Refusal::gateway(CreateError::Unreachable.to_string()))?;
    let status = created.status();
    let body = openai::read(&mut created).await;
    if !status.is_success() {
        let said = said_by_service(&body.unwrap_or_default(), &desk.openai_key);
        let status = status.as_u16();
        tracing::warn!(status, "the voice service refused a session");
        let error = format!("the voice service refused ({status}){}{said}", if said.is_empty() { "" } else { ": " });
        return Err(Refusal { of_service: Some(status), ..Refusal::gateway(error) });
    }
    let created = body.and_then(|body| Created::read(&body)).map_err(|error| Refusal::gateway(error.to_string()))?;
    Ok(answer(StatusCode::OK, &json!({"session_id": created.session_id, "sdp": created.sdp})))
}

/// What the service said about its refusal, at most 800 characters, without anything that looks like a key.
fn said_by_service(body: &[u8], key: &Secret) -> String {
    let text = String::from_utf8_lossy(body);
    let message = serde_json::from_str::<Value>(&text).ok();
    let message = message.as_ref().and_then(|body| body["error"]["message"].as_str()).unwrap_or(&text);
    let message = message.replace(key.expose(), "[key]");
    let words = message.split_whitespace().map(|word| if word.contains("sk-") { "[key]" } else { word });
    let said: String = words.collect::<Vec<_>>().join(" ").chars().filter(|c| !c.is_control()).collect();
    said.chars().take(MAX_SAID).collect()
}

#[derive(Deserialize)]
struct DelegateBody {
    hermes_session: Option<String>,
    #[serde(default)]
    lines: Vec<Line>,
    /// The engine's id of the delegation. With it, a request that is sent twice is run once.
    delegation_id: Option<String>,
}

/// `POST /delegate`: one run, and what becomes of it, line by line.
async fn delegate(State(desk): State<Shared>, body: Body) -> Result<Response, Refusal> {
    let body: DelegateBody = read(body).await?;
    let session = body.hermes_session.filter(|id| is_session(id)).ok_or_else(|| Refusal::bad("bad hermes_session"))?;
    let lines: Vec<Line> = body.lines.into_iter().filter(|line| !line.text.trim().is_empty()).collect();
    if lines.is_empty() {
        return Err(Refusal::bad("no lines"));
    }
    let id = match body.delegation_id {
        Some(id) if RunId::parse(&id).is_none() => return Err(Refusal::bad("bad delegation_id")),
        id => id,
    };
    let delegated = desk.runner.delegate(Delegation { session, id, lines });
    let mut updates = delegated.map_err(|rejected| match rejected {
        Rejected::Repeated => Refusal::new(StatusCode::CONFLICT, rejected.to_string()),
        Rejected::Full => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, rejected.to_string()),
    })?;
    let first = match updates.recv().await {
        Some(Update::NotStarted(error)) => return Err(Refusal::gateway(error.to_string())),
        first => first,
    };
    let stream = Lines { next: first, updates, stopped: desk.stopped.clone() };
    let body = Body::from_stream(stream::unfold(stream, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok::<_, Infallible>(line), lines))
    }));
    let headers = [
        (CONTENT_TYPE, "application/x-ndjson"),
        (CACHE_CONTROL, "no-store"),
        // A proxy must not hold lines back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, body).into_response())
}

/// The lines of a delegation's answer.
struct Lines {
    next: Option<Update>,
    updates: mpsc::Receiver<Update>,
    stopped: watch::Receiver<bool>,
}

impl Lines {
    /// The next lines; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let update = match self.next.take() {
                Some(update) => update,
                None => tokio::select! {
                    update = self.updates.recv() => update?,
                    // An empty line keeps the connection alive, and shows that it is.
                    () = sleep(QUIET) => return Some(Bytes::from_static(b"\n")),
                    _ = self.stopped.wait_for(|stopped| *stopped) => return None,
                },
            };
            let lines = lines_of(update);
            if !lines.is_empty() {
                let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
                return Some(lines.into());
            }
        }
    }
}

fn lines_of(update: Update) -> Vec<Value> {
    let tool = |status: &str, label: String| vec![json!({"type": "tool", "status": status, "label": label})];
    match update {
        Update::Started(_) => vec![],
        Update::Progress(_, Progress::ToolStarted(label)) => tool("running", label),
        Update::Progress(_, Progress::ToolCompleted { tool: label, error: false }) => tool("completed", label),
        Update::Progress(_, Progress::ToolCompleted { tool: label, error: true }) => tool("error", label),
        Update::Progress(run, Progress::Approval(approval)) => vec![json!({
            "type": "approval", "run_id": run.as_str(), "request_id": approval.request_id,
            "command": approval.command, "description": approval.description,
        })],
        // An addition of ours: a page that does not know it leaves it out.
        Update::Progress(_, Progress::Decided(id)) => vec![json!({"type": "decided", "request_id": id})],
        Update::Ended(Ending::Completed(text)) => {
            let done = json!({"type": "done", "finish_reason": "stop"});
            if text.trim().is_empty() { vec![done] } else { vec![json!({"type": "delta", "text": text}), done] }
        }
        Update::Ended(Ending::Ended { reason, error }) => {
            vec![json!({"type": "done", "finish_reason": reason, "error": error})]
        }
        Update::Ended(Ending::Lost(message)) => vec![json!({"type": "error", "message": message})],
        Update::NotStarted(error) => vec![json!({"type": "error", "message": error.to_string()})],
    }
}

#[derive(Deserialize)]
struct ApproveBody {
    run_id: Option<String>,
    request_id: Option<String>,
    choice: Option<String>,
}

/// `POST /approve`: a person's decision, and what Hermes says to it.
async fn approve(State(desk): State<Shared>, body: Body) -> Result<Response, Refusal> {
    let body: ApproveBody = read(body).await?;
    let run = body.run_id.as_deref().and_then(RunId::parse).ok_or_else(|| Refusal::bad("bad run_id"))?;
    let request = match body.request_id.as_deref() {
        Some(id) if RunId::parse(id).is_none() => return Err(Refusal::bad("bad request_id")),
        request => request,
    };
    let choice = body.choice.as_deref().and_then(Choice::parse);
    let choice = choice.ok_or_else(|| Refusal::bad("choice must be once, session or deny"))?;
    match desk.runner.hermes().approve(&run, request, choice).await {
        // Our key was refused, not the page's token.
        Ok((401 | 403, _)) => Err(Refusal::gateway("Hermes did not accept the key; look at the file with its key")),
        Ok((status, said)) => Ok(answer(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), &said)),
        Err(error @ (CallError::Unreachable | CallError::Refused(_) | CallError::Unusable)) => {
            Err(Refusal::gateway(error.to_string()))
        }
    }
}

/// `hermes-voice.md`: 1 to 64 of `A-Za-z0-9_-`.
fn is_session(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// `hermes-voice.md`: bodies are at most 256 KiB.
const MAX_BODY: usize = 256 * 1024;

/// For a body to come in.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// Proxies and phones cut connections that say nothing for a minute or so.
const QUIET: Duration = Duration::from_secs(15);

/// `hermes-voice.md`: at most 800 characters of what the vendor says.
const MAX_SAID: usize = 800;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_quiet_run_says_an_empty_line_now_and_then() {
        let (run, updates) = mpsc::channel(4);
        let (stop, stopped) = watch::channel(false);
        let mut lines = Lines { next: None, updates, stopped };
        let before = tokio::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(lines.next().await.unwrap(), "\n");
        }
        assert_eq!(before.elapsed(), QUIET * 3);
        run.send(Update::Ended(Ending::Completed("So.".into()))).await.unwrap();
        let said = lines.next().await.unwrap();
        let said: Vec<Value> =
            said.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(said, [json!({"type": "delta", "text": "So."}), json!({"type": "done", "finish_reason": "stop"})]);
        stop.send_replace(true);
        assert!(lines.next().await.is_none());
    }
}
