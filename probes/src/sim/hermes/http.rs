//! The routes (`engines.md` 6.1 to 6.3).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::options::{Job, Options, StartFault, Step};
use super::record::{Decision, Entry, Run, Runs};
use super::run::Task;

#[derive(Clone)]
struct Shared {
    options: Arc<Options>,
    runs: Runs,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

pub(super) fn router(options: Options, runs: Runs) -> Router {
    let shared = Shared { options: Arc::new(options), runs, tasks: Arc::default() };
    Router::new()
        .route("/v1/runs", post(start))
        .route("/v1/runs/{id}", get(status))
        .route("/v1/runs/{id}/events", get(events))
        .route("/v1/runs/{id}/approval", post(approval))
        .route("/v1/runs/{id}/stop", post(stop))
        .route("/v1/capabilities", get(capabilities))
        .layer(middleware::from_fn_with_state(shared.clone(), authorised))
        .with_state(shared)
}

fn error(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let error = json!({"message": message, "type": "invalid_request_error", "param": null, "code": code});
    (status, Json(json!({"error": error}))).into_response()
}

fn not_found() -> Response {
    error(404, "run_not_found", "Run not found")
}

async fn authorised(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).filter(|bearer| !bearer.is_empty());
    let known = shared.options.key.as_ref().map(|key| key.expose());
    if bearer.is_none_or(|bearer| known.is_some_and(|known| known != bearer)) {
        let error = json!({"message": "Invalid gateway API key (API_SERVER_KEY)", "type": "gateway_auth_error",
            "code": "gateway_auth_failed"});
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": error}))).into_response();
    }
    next.run(request).await
}

async fn start(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    shared.runs.asked("POST /v1/runs");
    let fault = {
        let mut state = shared.runs.lock();
        state.starts += 1;
        shared.options.faults.starts.get(state.starts - 1).copied().unwrap_or(StartFault::None)
    };
    match fault {
        StartFault::Status(status, retry_after) => {
            let code = if status == 429 { "rate_limit_exceeded" } else { "gateway_draining" };
            let mut response = error(status, code, "The simulator was told to.");
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            }
            return response;
        }
        StartFault::LostRequest => return cut(),
        StartFault::Slow(ms) => sleep(Duration::from_millis(ms)).await,
        StartFault::NoId => return (StatusCode::ACCEPTED, Json(json!({"status": "started"}))).into_response(),
        StartFault::BadId => {
            return (StatusCode::ACCEPTED, Json(json!({"run_id": "..", "status": "started"}))).into_response();
        }
        StartFault::None | StartFault::LostAnswer => {}
    }
    let response = match begin(&shared, &headers, &body) {
        Ok(answer) => (StatusCode::ACCEPTED, Json(answer)).into_response(),
        Err(refusal) => *refusal,
    };
    if matches!(fault, StartFault::LostAnswer) { cut() } else { response }
}

/// An answer that breaks off: the connection is gone before it is whole.
fn cut() -> Response {
    let broken = stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut as told")) });
    (StatusCode::ACCEPTED, Body::from_stream(broken)).into_response()
}

fn begin(shared: &Shared, headers: &HeaderMap, body: &[u8]) -> Result<Value, Box<Response>> {
    let refuse = |status, code: &str, message: &str| Err(Box::new(error(status, code, message)));
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return refuse(400, "invalid_json", "The body is not JSON.");
    };
    if body["input"].as_str().is_none_or(|input| input.trim().is_empty()) {
        return refuse(400, "missing_input", "No input.");
    }
    let Options { build, jobs, .. } = &*shared.options;
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    let mut state = shared.runs.lock();
    if let Some(key) = &key
        && build.idempotency
        && let Some(entry) = state.entries.iter().find(|entry| entry.run.key.as_ref() == Some(key))
    {
        if entry.run.body != body {
            return refuse(409, "idempotency_key_conflict", "This key was used for another request.");
        }
        return Ok(json!({"run_id": entry.run.id, "status": "started", "replayed": true}));
    }
    if state.entries.iter().filter(|entry| !entry.run.over()).count() >= build.max_runs {
        return refuse(429, "rate_limit_exceeded", "Too many runs.");
    }
    let number = state.entries.len();
    let id = format!("run_{:032x}", number + 1);
    let (events, listen) = mpsc::unbounded_channel();
    let (decide, decisions) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let run = Run {
        id: id.clone(),
        at: Instant::now(),
        key,
        body,
        status: "queued",
        output: None,
        error: None,
        approval: None,
        decisions: Vec::new(),
        stops: 0,
        ended: None,
        listeners: 0,
    };
    state.entries.push(Entry { run, events: Some(listen), stop, decide });
    let task = Task {
        options: Arc::clone(&shared.options),
        runs: shared.runs.clone(),
        id: id.clone(),
        steps: job(jobs, number),
        events,
        stop: stopped,
        decisions,
        approvals: 0,
    };
    shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task.run());
    let mut answer = json!({"run_id": id, "status": "started"});
    if build.idempotency {
        answer["replayed"] = false.into();
    }
    Ok(answer)
}

fn job(jobs: &[Job], number: usize) -> Job {
    let last = jobs.len().checked_sub(1);
    last.map_or_else(|| vec![Step::Complete("Done.".into())], |last| jobs[number.min(last)].clone())
}

async fn status(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    shared.runs.asked("GET /v1/runs/{id}");
    if shared.options.faults.no_status {
        return not_found();
    }
    let body = shared.runs.with(&id, |entry| entry.run.status_body());
    body.map_or_else(not_found, |body| Json(body).into_response())
}

async fn events(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    shared.runs.asked("GET /v1/runs/{id}/events");
    let taken = shared.runs.with(&id, |entry| {
        entry.run.listeners += 1;
        entry.events.take()
    });
    let Some(Some(events)) = taken.filter(|_| !shared.options.faults.no_events) else { return not_found() };
    let stream = Stream { options: shared.options, events, told: 0, rest: VecDeque::new(), over: false, begun: false };
    let body = Body::from_stream(stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    }));
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], body).into_response()
}

/// The bytes of an event stream.
struct Stream {
    options: Arc<Options>,
    events: mpsc::UnboundedReceiver<Value>,
    told: usize,
    rest: VecDeque<Bytes>,
    over: bool,
    begun: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.rest.pop_front() {
                return Some(piece);
            }
            if self.over {
                return None;
            }
            let faults = &self.options.faults;
            if faults.cut_after.is_some_and(|after| self.told >= after) {
                return None;
            }
            if faults.mute_after.is_some_and(|after| self.told >= after) {
                std::future::pending::<()>().await;
            }
            let keepalive = Duration::from_millis(self.options.build.keepalive_ms.max(1));
            match timeout(keepalive, self.events.recv()).await {
                Err(_) => self.write(": keepalive\n\n"),
                Ok(Some(event)) => {
                    self.told += 1;
                    let text = self.event(&event);
                    self.write(&text);
                    let name = event["event"].as_str().unwrap_or_default();
                    let terminal = ["run.completed", "run.failed", "run.cancelled", "run.interrupted"];
                    if terminal.contains(&name) {
                        self.write(": stream closed\n\n");
                        self.over = true;
                    }
                }
                Ok(None) => self.over = true,
            }
        }
    }

    fn event(&self, event: &Value) -> String {
        if !self.options.shape.many_lines {
            return format!("data: {event}\n\n");
        }
        // Line breaks are allowed between JSON's fields.
        let lines = serde_json::to_string_pretty(event).unwrap_or_default();
        lines.lines().map(|line| format!("data: {line}\n")).collect::<String>() + "\n"
    }

    fn write(&mut self, text: &str) {
        let shape = &self.options.shape;
        let mut text = if shape.crlf { text.replace('\n', "\r\n") } else { text.to_owned() };
        if shape.bom && !self.begun {
            text.insert(0, '\u{feff}');
        }
        self.begun = true;
        let piece = if shape.piece == 0 { text.len() } else { shape.piece };
        self.rest.extend(text.as_bytes().chunks(piece.max(1)).map(Bytes::copy_from_slice));
    }
}

async fn approval(State(shared): State<Shared>, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    shared.runs.asked("POST /v1/runs/{id}/approval");
    let choice = match body["choice"].as_str().unwrap_or_default() {
        "approve" | "approved" | "allow" => "once",
        choice @ ("once" | "session" | "always" | "deny") => choice,
        _ => return error(400, "invalid_approval_choice", "There is no such choice."),
    };
    let request_id = body["request_id"].as_str().map(str::to_owned);
    let decision = Decision { choice: choice.to_owned(), request_id: request_id.clone() };
    let done = shared.runs.with(&id, |entry| {
        let waits = entry.run.approval.as_ref().map(|asked| asked["request_id"].as_str().map(str::to_owned));
        match waits {
            None => Err(("approval_not_active", "Nothing waits for a decision.")),
            Some(waits) if request_id.is_some() && waits != request_id => {
                Err(("approval_not_pending", "Another request waits."))
            }
            Some(_) => {
                entry.run.decisions.push(decision.clone());
                entry.run.approval = None;
                // The run's task is there for as long as it waits.
                let _ = entry.decide.send(decision);
                Ok(())
            }
        }
    });
    match done {
        None => not_found(),
        Some(Err((code, message))) => error(409, code, message),
        Some(Ok(())) => {
            let mut answer =
                json!({"object": "hermes.run.approval_response", "run_id": id, "choice": choice, "resolved": 1});
            if let Some(id) = request_id {
                answer["request_id"] = id.into();
            }
            Json(answer).into_response()
        }
    }
}

async fn stop(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    shared.runs.asked("POST /v1/runs/{id}/stop");
    let over = shared.runs.with(&id, |entry| {
        entry.run.stops += 1;
        entry.stop.send_replace(true);
        entry.run.over()
    });
    sleep(Duration::from_millis(shared.options.faults.stop_answer_ms)).await;
    match over {
        None => not_found(),
        Some(true) => error(409, "run_not_active", "The run is over."),
        Some(false) => Json(json!({"run_id": id, "status": "stopping"})).into_response(),
    }
}

async fn capabilities(State(shared): State<Shared>) -> Response {
    shared.runs.asked("GET /v1/capabilities");
    let mut features = json!({"run_submission": true, "run_status": true, "run_events_sse": true, "run_stop": true,
        "run_approval_response": true});
    if shared.options.build.idempotency {
        features["runs_idempotency"] = json!({"enabled": true, "durable": true, "retention_seconds": 86_400});
    }
    Json(json!({"object": "hermes.api_server.capabilities", "features": features})).into_response()
}
