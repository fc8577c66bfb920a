//! The WebSocket side: lets clients in, and carries texts between them and the [`Model`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use watch_audio::secret::Secret;

use super::model::{Model, Out};
use super::{Options, Sessions};

/// Takes connections until told to stop; then all of them end.
pub(super) async fn listen(
    listener: TcpListener,
    options: Arc<Options>,
    sessions: Sessions,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let index = sessions.begin();
                connections.spawn(connection(stream, Arc::clone(&options), sessions.clone(), index));
            },
            _ = connections.join_next(), if !connections.is_empty() => {}
            _ = stop.changed() => break,
        }
    }
}

async fn connection(stream: TcpStream, options: Arc<Options>, sessions: Sessions, index: usize) {
    tokio::time::sleep(Duration::from_millis(options.faults.answer_after_ms)).await;
    // Deltas are to leave at once; a socket that refuses is slow, not wrong.
    let _ = stream.set_nodelay(true);
    let Ok(socket) = accept(stream, &options, &sessions, index).await else { return };
    let code = converse(socket, options, &sessions, index).await;
    sessions.with(index, |session| session.ended.get_or_insert((Instant::now(), code)).1);
}

async fn accept(
    stream: TcpStream,
    options: &Options,
    sessions: &Sessions,
    index: usize,
) -> Result<WebSocketStream<TcpStream>, tokio_tungstenite::tungstenite::Error> {
    #[allow(clippy::result_large_err, reason = "the shape tungstenite asks for")]
    let upgrade = |request: &Request, response: Response| {
        let bearer = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(Secret::new);
        let query = url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
        let model = query.into_iter().find(|(name, _)| name == "model").map(|(_, value)| value.into_owned());
        let status = verdict(options, request.uri().path(), bearer.as_ref(), model.as_deref());
        sessions.with(index, |session| {
            session.status = status;
            session.bearer = bearer;
            session.model = model;
        });
        if status == 101 { Ok(response) } else { Err(refusal(status)) }
    };
    accept_hdr_async(stream, upgrade).await
}

/// The status for an upgrade (`engines.md` 4.6).
fn verdict(options: &Options, path: &str, bearer: Option<&Secret>, model: Option<&str>) -> u16 {
    let known = options.bearer.as_ref().map(Secret::expose);
    let admitted = bearer.is_some_and(|bearer| known.is_none_or(|known| known == bearer.expose()));
    match options.faults.http_status {
        Some(status) => status,
        None if path != "/v1/realtime" => 404,
        None if !admitted => 401,
        None if model.is_none_or(str::is_empty) => 400,
        None => 101,
    }
}

fn refusal(status: u16) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(format!("{{\"error\":\"The simulator answers {status}.\"}}")));
    *response.status_mut() = status.try_into().unwrap_or_default();
    response
}

/// Runs one session to its end and answers its close code.
async fn converse(socket: WebSocketStream<TcpStream>, options: Arc<Options>, sessions: &Sessions, index: usize) -> u16 {
    let start = Instant::now();
    let vanish = options.faults.vanish_after_ms.map(Duration::from_millis);
    let mut model = Model::new(options, sessions.clone(), index);
    let (sink, mut source) = socket.split();
    // One message in hand, so that a barge-in finds the others still unsent.
    let (writer, texts) = mpsc::channel(1);
    let mut writing = JoinSet::new();
    writing.spawn(write(sink, texts));
    loop {
        let due = model.due().map_or(IDLE, |due| due.saturating_sub(start.elapsed()));
        tokio::select! {
            message = source.next() => match message {
                Some(Ok(Message::Text(text))) => model.receive(start.elapsed(), &text),
                Some(Ok(Message::Close(frame))) => return frame.map_or(1005, |frame| frame.code.into()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return 1006,
            },
            permit = async { tokio::time::sleep(due).await; writer.reserve().await } => {
                let Ok(permit) = permit else { return 1006 };
                match model.pop(start.elapsed()) {
                    Some(Out::Drop) => return 1006,
                    Some(out) => permit.send(out),
                    None => {}
                }
            }
            () = until(start, vanish) => std::future::pending().await,
        }
    }
}

async fn until(start: Instant, after: Option<Duration>) {
    match after {
        Some(after) => tokio::time::sleep_until((start + after).into()).await,
        None => std::future::pending().await,
    }
}

async fn write(mut sink: SplitSink<WebSocketStream<TcpStream>, Message>, mut texts: mpsc::Receiver<Out>) {
    while let Some(out) = texts.recv().await {
        let message = match out {
            Out::Text(text) => Message::text(text),
            Out::Close(None) => Message::Close(None),
            Out::Close(Some(code)) => {
                Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: "".into() }))
            }
            Out::Drop => return,
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

/// A wake-up without a reason is harmless.
const IDLE: Duration = Duration::from_secs(60);
