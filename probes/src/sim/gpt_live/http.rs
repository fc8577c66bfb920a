//! The HTTP side: takes an offer, checks the request as the vendor is known to, and answers with the peer's SDP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use watch_audio::secret::Secret;

use super::check::{self, Complaint, Request};
use super::peer::Peer;
use super::{Dialect, Network, Note, Options, Sessions};

/// Serves until told to stop; then every session ends.
pub(super) async fn listen(listener: TcpListener, mut shared: Shared, mut stop: watch::Receiver<bool>) {
    let (peers, mut created) = mpsc::channel(16);
    shared.peers = Some(peers);
    let router = Router::new()
        .route("/v1/live/sessions", post(dialect_a))
        .route("/backend-api/codex/realtime/calls", post(dialect_b))
        .with_state(shared);
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(peer) = created.recv() => {
                running.spawn(Peer::run(peer, stop.clone()));
            }
            _ = running.join_next(), if !running.is_empty() => {}
            _ = stop.changed() => break,
        }
    }
    serving.abort_all();
    // Peers watch the same word; one that does not come to its end is cut off.
    let _ = tokio::time::timeout(LAST_WORDS, async { while running.join_next().await.is_some() {} }).await;
}

/// What every request is answered from.
#[derive(Clone)]
pub(super) struct Shared {
    options: Arc<Options>,
    sessions: Sessions,
    network: watch::Receiver<Network>,
    peers: Option<mpsc::Sender<Box<Peer>>>,
}

impl Shared {
    pub(super) fn new(options: Options, sessions: Sessions, network: watch::Receiver<Network>) -> Self {
        Self { options: Arc::new(options), sessions, network, peers: None }
    }
}

async fn dialect_a(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let checked = check::bearer(&shared.options, &headers).and_then(|()| check::dialect_a(&headers, &body));
    Box::pin(create(&shared, Dialect::A, &headers, checked)).await
}

async fn dialect_b(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let checked =
        check::bearer(&shared.options, &headers).and_then(|()| check::dialect_b(query.as_deref(), &headers, &body));
    Box::pin(create(&shared, Dialect::B, &headers, checked)).await
}

/// Creates a session, or says why not.
async fn create(
    shared: &Shared,
    dialect: Dialect,
    headers: &HeaderMap,
    checked: Result<Request, Complaint>,
) -> Response {
    let note = shared.sessions.begin(dialect);
    keep_headers(&note, headers);
    let due = Instant::now() + Duration::from_millis(shared.options.timing.answer_ms);
    let answer = async {
        if let Some(status) = shared.options.faults.http_status {
            return Err(Complaint::told(status));
        }
        let request = checked?;
        note.with(|session| session.request = request.session.clone());
        let network = shared.options.network.is_some().then(|| shared.network.clone());
        Peer::answer(Arc::clone(&shared.options), note.clone(), dialect, &request, network).await
    };
    let answer = answer.await;
    tokio::time::sleep_until(due.into()).await;
    match answer {
        Ok((peer, sdp)) => {
            note.with(|session| session.status = 201);
            let response = created(&shared.options, dialect, &note, sdp);
            // Only a simulator that is being shut down takes no more peers.
            if let Some(peers) = &shared.peers {
                let _ = peers.send(peer).await;
            }
            response
        }
        Err(complaint) => {
            note.with(|session| {
                session.status = complaint.status;
                session.complaint = Some(complaint.message.clone());
            });
            refusal(&complaint)
        }
    }
}

fn keep_headers(note: &Note, headers: &HeaderMap) {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let kept = headers.iter().filter(|(name, _)| *name != header::AUTHORIZATION);
    let kept = kept.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let bearer = headers.get(header::AUTHORIZATION).map(text);
    note.with(|session| {
        session.headers = kept;
        session.bearer = bearer.as_deref().and_then(|value| value.strip_prefix("Bearer ")).map(Secret::new);
    });
}

fn created(options: &Options, dialect: Dialect, note: &Note, sdp: String) -> Response {
    let id = session_id(dialect, note);
    if dialect == Dialect::A {
        let body = json!({"session": {"id": id}, "transport": {"type": "webrtc", "sdp": sdp}});
        return (StatusCode::CREATED, axum::Json(body)).into_response();
    }
    let mut response = (StatusCode::CREATED, sdp).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/sdp"));
    let location = options.dialect_b.location.replace("{id}", &id);
    if let Ok(location) = HeaderValue::try_from(location).map_err(drop)
        && !location.is_empty()
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The id of a session: the same from run to run.
pub(super) fn session_id(dialect: Dialect, note: &Note) -> String {
    match dialect {
        Dialect::A => format!("live_u1_sim{:04}", note.number()),
        Dialect::B => format!("rtc_u0_sim{:04}", note.number()),
    }
}

fn refusal(complaint: &Complaint) -> Response {
    let status = StatusCode::from_u16(complaint.status).unwrap_or(StatusCode::BAD_REQUEST);
    let error = json!({"message": complaint.message, "type": "invalid_request_error", "param": complaint.param,
                       "code": complaint.code});
    (status, axum::Json(json!({"error": error}))).into_response()
}

/// For peers to say goodbye in.
const LAST_WORDS: Duration = Duration::from_secs(2);
