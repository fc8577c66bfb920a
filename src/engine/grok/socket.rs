//! The WebSocket to Grok: dialling it, and a task each for reading and writing.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use rustix::io::Errno;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_tls_with_config};
use url::{Host, Url};
use zeroize::Zeroizing;

use crate::dial;
use crate::engine::{ErrorCode, StartError};
use crate::sign_in::GrokAccess;

/// An open socket. Dropping it ends both tasks and the connection.
pub(super) struct Socket {
    /// What comes from the engine. Reading stops while this is full; the session takes everything in at once and holds
    /// it, so that happens only while it is not driven at all.
    pub(super) events: mpsc::Receiver<FromEngine>,
    /// What goes to the engine.
    pub(super) out: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
}

/// What the reader tells.
pub(super) enum FromEngine {
    /// A text message.
    Text(Bytes),
    /// A sign of life without content for us.
    Alive,
    /// The end, with its reason; nothing follows.
    Closed(String),
}

type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Socket {
    /// Dials `url?model=`. The caller limits how long.
    pub(super) async fn open(access: &GrokAccess) -> Result<Self, StartError> {
        let stream = Box::pin(dial(access)).await?;
        let (sink, stream) = stream.split();
        let (to_session, events) = mpsc::channel(INBOUND);
        let (out, from_session) = mpsc::channel(OUTBOUND);
        let mut tasks = JoinSet::new();
        tasks.spawn(read(stream, to_session.clone()));
        tasks.spawn(write(sink, from_session, to_session));
        Ok(Self { events, out, tasks })
    }

    /// Ends the tasks and waits until they are gone.
    pub(super) async fn shut_down(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn dial(access: &GrokAccess) -> Result<Stream, StartError> {
    let unusable = || StartError::new(ErrorCode::Failed, "The sign-in gave an unusable address for Grok.");
    let mut url = Url::parse(&access.url).map_err(|_| unusable())?;
    match url.scheme() {
        "wss" => {}
        "ws" if is_loopback(&url) => {}
        _ => return Err(unusable()),
    }
    url.query_pairs_mut().append_pair("model", &access.model);

    let mut request = url.as_str().into_client_request().map_err(|_| unusable())?;
    let bearer = Zeroizing::new(format!("Bearer {}", access.bearer.expose()));
    let mut bearer = HeaderValue::from_str(&bearer)
        .map_err(|_| StartError::new(ErrorCode::Failed, "The sign-in gave an unusable key for Grok."))?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(header::AUTHORIZATION, bearer);

    let host = match url.host().ok_or_else(unusable)? {
        Host::Domain(name) => name.to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    let port = url.port_or_known_default().ok_or_else(unusable)?;
    let unreachable = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        // Nobody else can help that, and no other network.
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL) => {
            StartError::new(ErrorCode::Failed, "This host has no socket left for a call.")
        }
        _ => StartError::new(ErrorCode::Unreachable, "Grok cannot be reached."),
    };
    let addresses = lookup_host((host, port)).await.map_err(unreachable)?;
    let tcp = dial::first(addresses, TcpStream::connect).await.map_err(unreachable)?;
    // Appends are small and late ones are heard as a pause: they must not wait for the acknowledgement of the last.
    tcp.set_nodelay(true).map_err(unreachable)?;

    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_INBOUND))
        .max_frame_size(Some(MAX_INBOUND));
    crate::tls::ensure_provider();
    match client_async_tls_with_config(request, tcp, Some(config), None).await {
        Ok((stream, _)) => Ok(stream),
        // A redirect is an answer like any other: the bearer goes nowhere else.
        Err(Error::Http(answer)) => Err(refusal(answer.status().as_u16())),
        Err(Error::Io(_) | Error::Tls(_) | Error::ConnectionClosed) => {
            Err(StartError::new(ErrorCode::Unreachable, "The connection to Grok broke while it was opened."))
        }
        Err(_) => Err(StartError::new(ErrorCode::Unreachable, "Grok's address did not answer as a realtime service.")),
    }
}

/// What an HTTP status in place of the upgrade means for the Watch. The body is not for people, and is not shown.
fn refusal(status: u16) -> StartError {
    let (code, message) = match status {
        401 | 403 => (ErrorCode::Refused, "Grok refused the sign-in.".to_owned()),
        404 => (ErrorCode::Refused, "Grok does not know this address or model.".to_owned()),
        429 => (ErrorCode::RateLimited, "Grok takes no more calls right now; try again later.".to_owned()),
        400..=499 => (ErrorCode::Refused, format!("Grok refused the call (HTTP {status}).")),
        500..=599 => (ErrorCode::Unreachable, format!("Grok is out of order right now (HTTP {status}).")),
        _ => (ErrorCode::Failed, format!("Grok's address leads elsewhere (HTTP {status}).")),
    };
    StartError::new(code, message)
}

async fn read(mut stream: SplitStream<Stream>, session: mpsc::Sender<FromEngine>) {
    let mut reason = None;
    loop {
        // Reading on is what sends the answer to the close. The end of the connection may be long in coming.
        let next = match reason {
            None => stream.next().await,
            Some(_) => timeout(CLOSE_ANSWER, stream.next()).await.unwrap_or(None),
        };
        let said = match next {
            Some(Ok(Message::Text(text))) => FromEngine::Text(text.into()),
            Some(Ok(Message::Close(frame))) => {
                reason = Some(close_reason(frame));
                continue;
            }
            Some(Ok(_)) => FromEngine::Alive,
            Some(Err(Error::Capacity(_))) => {
                reason.get_or_insert_with(|| "The engine sent a message that is too large.".to_owned());
                break;
            }
            Some(Err(_)) | None => break,
        };
        if session.send(said).await.is_err() {
            return;
        }
    }
    let reason = reason.unwrap_or_else(|| CONNECTION_LOST.to_owned());
    // Nobody listens any more: then nobody needs to know.
    let _ = session.send(FromEngine::Closed(reason)).await;
}

async fn write(
    mut sink: SplitSink<Stream, Message>,
    mut messages: mpsc::Receiver<Message>,
    session: mpsc::Sender<FromEngine>,
) {
    while let Some(message) = messages.recv().await {
        let last = message.is_close();
        match timeout(WRITE_LIMIT, sink.send(message)).await {
            Ok(Ok(())) if last => return,
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                // The engine may have said why it ends before it went: then the reader tells, and first.
                sleep(LAST_WORD).await;
                let _ = session.send(FromEngine::Closed(CONNECTION_LOST.to_owned())).await;
                return;
            }
            Err(_) => {
                let _ = session.send(FromEngine::Closed("The engine stopped reading.".to_owned())).await;
                return;
            }
        }
    }
}

/// The engine's own words, as far as they are a short sentence.
fn close_reason(frame: Option<CloseFrame>) -> String {
    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
    let reason: String = reason.chars().filter(|char| !char.is_control()).take(MAX_REASON).collect();
    match reason.trim() {
        "" => "The engine ended the call.".to_owned(),
        reason => reason.to_owned(),
    }
}

/// Whether the URL names this machine. A name other than `localhost` may resolve to anything.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).to_canonical().is_loopback(),
        None => false,
    }
}

const CONNECTION_LOST: &str = "The connection to the engine was lost.";

/// Messages between reader and session. The session takes each in at once; this only evens out the scheduler.
const INBOUND: usize = 8;

/// Messages between session and writer. More would be audio that can no longer be dropped.
const OUTBOUND: usize = 4;

/// A burst of deltas is read in 16 KiB steps; the library's default would be 128 KiB a socket.
const READ_BUFFER: usize = 16 << 10;

/// The largest message taken from the engine: a minute of audio in one delta. Deltas of 0.1 to 0.5 s are known.
const MAX_INBOUND: usize = 4 << 20;

/// For our answer to a close to leave, and for the connection to end. Less than [`LAST_WORD`], so that the reason is told.
const CLOSE_ANSWER: Duration = Duration::from_millis(100);

/// For the reader to come to the end of what the engine sent.
const LAST_WORD: Duration = Duration::from_millis(250);

/// How long one message may take to leave before the connection counts as dead.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// The most characters of a close reason that are shown.
const MAX_REASON: usize = 100;
