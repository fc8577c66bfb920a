//! The Watch's end of the relay socket: one sealed stream (`watch-audio.md`, Sockets and Messages).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Map, Value};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};
use watch_audio::relay::{RelayUrl, Side};
use watch_audio::seal::{GrantId, Kind, Root, SealError, Sid, Stream, hello};
use watch_audio::secret::Secret;

/// What the Watch holds of a call (`watch-audio.md`, Who is who).
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its name.
    pub id: GrantId,
    /// Its root key.
    pub root: Root,
    /// The bearer that the Watch shows to the relay.
    pub watch_key: Secret,
    /// The relay.
    pub relay: RelayUrl,
}

/// One stream to the host. A new one, with a new sid, for each connection.
#[derive(Debug)]
pub struct Watch {
    stream: Stream,
    outgoing: mpsc::Sender<Message>,
    incoming: mpsc::Receiver<(Instant, Received)>,
    lost: u64,
    _tasks: JoinSet<()>,
}

/// What came from the host, opened.
#[derive(Clone, PartialEq)]
pub enum Incoming {
    /// A message of type 1: PCM16LE at the output rate, or an Opus packet where that was agreed.
    Audio(Vec<u8>),
    /// An engine's event.
    Event(Value),
    /// A control message.
    Control(Map<String, Value>),
    /// The connection is over; nothing comes any more.
    Closed(Close),
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// The close code; none when the connection broke without a close frame. 1005 is a close frame without a code.
    pub code: Option<u16>,
    /// The other side's words, without control characters.
    pub reason: String,
}

/// Why the relay was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The relay refused the upgrade.
    #[error("the relay refused the Watch with status {0}")]
    Refused(StatusCode),
    /// No connection; it may work a second later.
    #[error("the relay cannot be reached: {0}")]
    Unreachable(String),
}

impl Watch {
    /// Connects to the relay and says hello.
    ///
    /// # Errors
    /// When the relay refuses or does not answer within 10 s.
    pub async fn join(grant: &Grant) -> Result<Self, JoinError> {
        let socket = timeout(CONNECT, connect(grant)).await;
        let socket = socket.map_err(|_| JoinError::Unreachable("no answer".into()))??;
        let (mut sink, mut source) = socket.split();
        let (outgoing, mut to_send) = mpsc::channel::<Message>(OUTGOING);
        let (received, incoming) = mpsc::channel(INCOMING);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(message) = to_send.recv().await {
                if sink.send(message).await.is_err() {
                    break;
                }
            }
            // A close frame may still be on its way; the reader sees the answer to it.
            let _ = sink.flush().await;
        });
        tasks.spawn(async move {
            loop {
                let next = source.next().await;
                let last = !matches!(&next, Some(Ok(message)) if !message.is_close());
                let item = match next {
                    Some(Ok(Message::Binary(message))) => Received::Message(message),
                    Some(Ok(Message::Close(frame))) => Received::Closed(close_of(frame)),
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => Received::Closed(broken(&error)),
                    None => Received::Closed(Close { code: None, reason: "the connection broke off".into() }),
                };
                if received.send((Instant::now(), item)).await.is_err() {
                    break;
                }
                if last {
                    // A close frame is answered as the socket is read on.
                    let _ = timeout(CLOSING, source.next()).await;
                    break;
                }
            }
        });
        let stream = Stream::watch(&grant.root, &grant.id, Sid::random());
        let mut watch = Self { outgoing, incoming, lost: 0, _tasks: tasks, stream };
        watch.send(Message::Binary(Bytes::copy_from_slice(&hello(watch.stream.sid))));
        Ok(watch)
    }

    /// Sends microphone audio: PCM16LE at the input rate, or one Opus packet where that was agreed.
    pub fn audio(&mut self, message: &[u8]) {
        self.seal(Kind::Audio, message);
    }

    /// Sends an event to the engine.
    pub fn event(&mut self, event: &Value) {
        self.seal(Kind::Event, event.to_string().as_bytes());
    }

    /// Sends a control message to the host.
    pub fn control(&mut self, control: &Value) {
        self.seal(Kind::Control, control.to_string().as_bytes());
    }

    /// Shows the relay that this side lives.
    pub fn ping(&mut self) {
        self.send(Message::Ping(Bytes::new()));
    }

    /// Closes the connection in order. [`Incoming::Closed`] follows, unless the relay is silent.
    pub fn close(&mut self) {
        self.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })));
    }

    fn seal(&mut self, kind: Kind, plain: &[u8]) {
        // A message that finds no room is not sealed: that is a network that stands still, and the counter may have
        // gaps but what is sealed must go out in order.
        let Ok(permit) = self.outgoing.try_reserve() else {
            self.lost += 1;
            return;
        };
        let mut message = Vec::new();
        match self.stream.sealer.seal(kind, plain, &mut message) {
            Ok(()) => permit.send(Message::Binary(message.into())),
            Err(SealError::TooLong(_) | SealError::Exhausted | _) => self.lost += 1,
        }
    }

    fn send(&mut self, message: Message) {
        self.lost += u64::from(self.outgoing.try_send(message).is_err());
    }

    /// What comes next, and when it arrived. After [`Incoming::Closed`] it never returns. Cancel safe.
    pub async fn next(&mut self) -> (Instant, Incoming) {
        loop {
            let (at, received) = match self.incoming.recv().await {
                Some(received) => received,
                None => std::future::pending().await,
            };
            let message = match received {
                Received::Message(message) => message,
                Received::Closed(close) => return (at, Incoming::Closed(close)),
            };
            let Ok((kind, plain)) = self.stream.opener.open(&message) else { continue };
            match (kind, plain) {
                (Kind::Audio, plain) => return (at, Incoming::Audio(plain)),
                (Kind::Event, plain) => {
                    // The Watch reads JSON only; what is none was passed on unread and means nothing to it.
                    if let Ok(event) = serde_json::from_slice(&plain) {
                        return (at, Incoming::Event(event));
                    }
                }
                (Kind::Control, plain) => {
                    if let Ok(control) = serde_json::from_slice(&plain) {
                        return (at, Incoming::Control(control));
                    }
                }
            }
        }
    }

    /// Messages that did not open.
    pub fn dropped(&self) -> u64 {
        self.stream.opener.dropped()
    }

    /// Messages of ours that found a full network.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl fmt::Debug for Incoming {
    /// What was said is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Audio(bytes) => write!(f, "Audio({} bytes)", bytes.len()),
            Self::Event(_) => f.write_str("Event"),
            Self::Control(_) => f.write_str("Control"),
            Self::Closed(close) => close.fmt(f),
        }
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.reason.as_str()) {
            (None, reason) => f.write_str(reason),
            (Some(code), "") => write!(f, "closed with {code}"),
            (Some(code), reason) => write!(f, "closed with {code}: {reason}"),
        }
    }
}

#[derive(Debug)]
enum Received {
    Message(Bytes),
    Closed(Close),
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn connect(grant: &Grant) -> Result<Socket, JoinError> {
    let unreachable = |error: &dyn fmt::Display| JoinError::Unreachable(plain_words(&error.to_string()));
    let url = grant.relay.audio(&grant.id, Side::Watch);
    let mut request = url.as_str().into_client_request().map_err(|error| unreachable(&error))?;
    let mut bearer =
        HeaderValue::from_str(&format!("Bearer {}", grant.watch_key.expose())).map_err(|error| unreachable(&error))?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(header::AUTHORIZATION, bearer);
    watch_audio::tls::ensure_provider();
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER);
    match connect_async_tls_with_config(request, Some(config), true, None).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(JoinError::Refused(response.status())),
        Err(error) => Err(unreachable(&error)),
    }
}

fn close_of(frame: Option<CloseFrame>) -> Close {
    match frame {
        Some(frame) => Close { code: Some(frame.code.into()), reason: plain_words(&frame.reason) },
        None => Close { code: Some(1005), reason: String::new() },
    }
}

fn broken(error: &tungstenite::Error) -> Close {
    Close { code: None, reason: format!("the connection broke off: {}", plain_words(&error.to_string())) }
}

/// Another's words for a terminal: no control characters, no end of line, not endless.
pub(crate) fn plain_words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

/// A relay that does not answer the upgrade by then is not there.
const CONNECT: Duration = Duration::from_secs(10);
/// An answered close frame is followed by the end of the connection at once, or never.
const CLOSING: Duration = Duration::from_secs(1);
/// Messages on their way out: 3 s of microphone; more means that the network stands still.
const OUTGOING: usize = 32;
/// Messages that came and were not looked at yet; then the relay is left waiting.
const INCOMING: usize = 256;
/// The default of 128 KiB is more than two messages of the largest size.
const READ_BUFFER: usize = 16 * 1024;
