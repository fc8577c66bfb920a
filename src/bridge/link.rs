//! The host's socket at the relay: dialled again whenever it drops, until the relay refuses the grant.
//!
//! One task owns the link and reads; each connection's writer is a task of its own, fed through a channel of one
//! message, so that what the bridge has not handed over can still be dropped, and so that a slow relay stops nothing
//! else. A new connection comes with a new channel: nothing meant for an old one can reach it (case 51).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_tls_with_config};
use url::Url;

use crate::relay::{RelayUrl, RelayUrlError, Side};
use crate::seal::{GrantId, MAX_MESSAGE};
use crate::secret::{LONGEST_BEARER, Secret};

/// Where the host's socket is, and with which credential.
pub struct Target {
    url: Url,
    credential: HeaderValue,
}

/// Why a grant's relay cannot be dialled at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not an address of a relay.
    #[error(transparent)]
    Url(#[from] RelayUrlError),
    /// Not a bearer.
    #[error("the relay credential is empty, too long or has characters that a header cannot carry")]
    Credential,
}

/// What happens on the link.
pub enum LinkEvent {
    /// A connection is up; what goes into the sender goes out, in order.
    Connected(mpsc::Sender<Bytes>),
    /// A binary message came.
    Message(Bytes),
    /// The connection dropped, or a dial failed; it is dialled again.
    Down(String),
    /// The relay refused the grant. The last event.
    Over(String),
}

/// The link; dropping it ends everything at once.
pub struct Link {
    events: mpsc::Receiver<LinkEvent>,
    stop: mpsc::Sender<()>,
    task: JoinSet<()>,
}

impl Target {
    /// The host's socket of a grant (`watch-audio.md`, Sockets).
    ///
    /// # Errors
    /// When the address would carry the credential in clear over a network, or is none.
    pub fn host(relay_url: &str, grant: &GrantId, credential: &Secret) -> Result<Self, TargetError> {
        let url = RelayUrl::parse(relay_url)?.audio(grant, Side::Host);
        let text = credential.expose();
        // A header can carry more than ASCII; no relay would know it.
        if !(1..=LONGEST_BEARER).contains(&text.len()) || !text.is_ascii() {
            return Err(TargetError::Credential);
        }
        let bearer = format!("Bearer {text}");
        let mut credential = HeaderValue::try_from(bearer).map_err(|_| TargetError::Credential)?;
        credential.set_sensitive(true);
        Ok(Self { url, credential })
    }
}

impl Link {
    /// Starts dialling.
    pub fn open(target: Target) -> Self {
        Self::start(|events, stop| keep_up(target, events, stop))
    }

    /// Starts a link that `run` keeps up until its second argument is closed.
    pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
        run: impl FnOnce(mpsc::Sender<LinkEvent>, mpsc::Receiver<()>) -> F,
    ) -> Self {
        let (events, receiver) = mpsc::channel(EVENTS);
        let (stop, stopped) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(run(events, stopped));
        Self { events: receiver, stop, task }
    }

    /// The next event; cancel safe. Waits for ever after `Over`.
    pub async fn next(&mut self) -> LinkEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Drops the connection, for the relay takes too little, and dials again.
    pub fn give_up_connection(&self) {
        // A full channel means that it is being dropped already.
        let _ = self.stop.try_send(());
    }

    /// Sends what was handed over, closes the socket in order and ends. Drop the connection's sender first. Bounded by
    /// `limit`.
    pub async fn close(self, limit: Duration) {
        let Self { mut events, stop, mut task } = self;
        drop(stop);
        let drained = async {
            // The reader must not wait for room while it waits for the relay's close.
            while events.recv().await.is_some() {}
            task.join_next().await;
        };
        if timeout(limit, drained).await.is_err() {
            tracing::debug!("the relay did not answer the close in time");
        }
    }
}

/// Keeps a connection up until the relay refuses the grant, the bridge stops the link or lets it go.
async fn keep_up(target: Target, events: mpsc::Sender<LinkEvent>, mut stop: mpsc::Receiver<()>) {
    let mut failures = 0;
    loop {
        let dialled = tokio::select! {
            dialled = timeout(DIAL_LIMIT, dial(&target)) => dialled,
            () = stopped(&mut stop) => return,
        };
        let down = match dialled {
            Ok(Ok(socket)) => {
                let since = Instant::now();
                let down = live(socket, &events, &mut stop).await;
                if since.elapsed() >= LIVED {
                    failures = 0;
                } else {
                    failures += 1;
                }
                down
            }
            Ok(Err(down)) => {
                failures += 1;
                down
            }
            Err(_) => {
                failures += 1;
                Down::Lost("The relay did not answer.".into())
            }
        };
        let (event, over) = match down {
            Down::Stopped => return,
            Down::Lost(detail) => (LinkEvent::Down(detail), false),
            Down::Refused(reason) => (LinkEvent::Over(reason), true),
        };
        if events.send(event).await.is_err() || over {
            return;
        }
        tokio::select! {
            () = sleep(backoff(failures, jitter())) => {}
            () = stopped(&mut stop) => return,
        }
    }
}

/// Waits until the link is closed; a wish to drop a connection that is gone already is void.
async fn stopped(stop: &mut mpsc::Receiver<()>) {
    while stop.recv().await.is_some() {}
}

/// Why there is no connection any more.
#[derive(Debug, PartialEq, Eq)]
enum Down {
    /// We closed it.
    Stopped,
    /// It dropped, or could not be made; worth another try.
    Lost(String),
    /// The relay refuses the grant; no other try will do.
    Refused(String),
}

/// The wait before the next dial: `failures` dials or connections too short in a row.
fn backoff(failures: u32, jitter: f64) -> Duration {
    match failures.checked_sub(1) {
        None => RECONNECT,
        Some(doublings) => (RETRY_FIRST * 2_u32.pow(doublings.min(8))).min(RETRY_MOST),
    }
    .mul_f64(jitter)
}

/// From 0.9 to 1.1, so that the hosts of a relay that restarted do not all come at once.
fn jitter() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    0.9 + 0.2 * f64::from(random) / f64::from(u32::MAX)
}

async fn dial(target: &Target) -> Result<WebSocketStream<MaybeTlsStream<TcpStream>>, Down> {
    let lost = |what: &str| Down::Lost(what.to_owned());
    let host = target.url.host_str().ok_or_else(|| lost("The relay has no name."))?;
    let port = target.url.port_or_known_default().ok_or_else(|| lost("The relay has no port."))?;
    // Brackets belong to the URL, not to the address.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = lookup_host((host, port)).await.map_err(|_| lost("The relay's name cannot be resolved."))?;
    let socket = crate::dial::first(addresses, connect).await.map_err(|_| lost("The relay cannot be reached."))?;

    let mut request =
        target.url.as_str().into_client_request().map_err(|_| lost("The relay's address cannot be dialled."))?;
    request.headers_mut().insert("authorization", target.credential.clone());
    crate::tls::ensure_provider();
    match client_async_tls_with_config(request, socket, Some(websocket_config()), None).await {
        Ok((socket, _)) => Ok(socket),
        Err(WsError::Http(answer)) => Err(match answer.status().as_u16() {
            status @ (401 | 403 | 404 | 410) => Down::Refused(format!("The relay refused the grant ({status}).")),
            status => Down::Lost(format!("The relay answered {status}.")),
        }),
        // How the TLS library's errors come through the stream.
        Err(WsError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Err(lost("The relay's certificate cannot be trusted."))
        }
        Err(WsError::Tls(_)) => Err(lost("The relay's certificate cannot be trusted.")),
        Err(_) => Err(lost("The relay did not complete the upgrade.")),
    }
}

/// Connects with little room in the kernel: what waits there cannot be dropped any more.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(KERNEL_UNSENT)?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    socket.set_send_buffer_size(KERNEL_UNSENT)?;
    socket.connect(address).await
}

fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// One connection, from its upgrade to its end.
async fn live<S>(socket: WebSocketStream<S>, events: &mpsc::Sender<LinkEvent>, stop: &mut mpsc::Receiver<()>) -> Down
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sink, stream) = socket.split();
    // One message: the bridge seals the next one only when the last one went to the kernel.
    let (outgoing, messages) = mpsc::channel(1);
    let mut writer = JoinSet::new();
    writer.spawn(write(sink, messages));
    if events.send(LinkEvent::Connected(outgoing)).await.is_err() {
        return Down::Stopped;
    }
    tokio::select! {
        down = read(stream, events) => {
            // Once the link is being closed, the relay's close is only its answer to ours.
            if stop.is_closed() { Down::Stopped } else { down }
        }
        Some(Ok(down)) = writer.join_next() => down,
        Some(()) = stop.recv() => Down::Lost("The relay reads too slowly.".into()),
    }
}

/// Reads until the connection ends. Anything that comes in is a sign of life, a pong as good as a message.
async fn read<S>(mut stream: SplitStream<WebSocketStream<S>>, events: &mpsc::Sender<LinkEvent>) -> Down
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match timeout(DEAD_AFTER, stream.next()).await {
            Ok(Some(Ok(Message::Binary(message)))) => {
                if events.send(LinkEvent::Message(message)).await.is_err() {
                    return Down::Stopped;
                }
            }
            Ok(Some(Ok(Message::Close(frame)))) => return closed(frame.as_ref()),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(_)) | None) => return Down::Lost("The relay's connection broke.".into()),
            Err(_) => return Down::Lost("The relay's connection went silent.".into()),
        }
    }
}

fn closed(frame: Option<&CloseFrame>) -> Down {
    match frame.map(|frame| u16::from(frame.code)) {
        Some(GRANT_CLOSED) => Down::Refused(format!("The relay closed the grant ({GRANT_CLOSED}).")),
        Some(code) => Down::Lost(format!("The relay closed the connection ({code}).")),
        None => Down::Lost("The relay closed the connection.".into()),
    }
}

/// Writes messages as they come, and pings. Ends with the connection, or in order once the bridge drops its sender.
async fn write<S>(mut sink: SplitSink<WebSocketStream<S>, Message>, mut messages: mpsc::Receiver<Bytes>) -> Down
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut pings = interval_at(Instant::now() + PING, PING);
    // After a sleep one ping is enough.
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            _ = pings.tick() => Message::Ping(Bytes::new()),
            message = messages.recv() => match message {
                Some(message) => Message::Binary(message),
                None => break,
            },
        };
        match timeout(DEAD_AFTER, sink.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Down::Lost("The relay's connection broke.".into()),
            Err(_) => return Down::Lost("The relay stopped reading.".into()),
        }
    }
    let close = Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }));
    if sink.send(close).await.is_ok() {
        // The reader sees the relay's own close; whoever closes the link bounds this wait.
        std::future::pending::<()>().await;
    }
    Down::Stopped
}

/// `relay.md`: the grant expired or was closed.
const GRANT_CLOSED: u16 = 4010;

/// `watch-audio.md`: the host pings every 20 s.
const PING: Duration = Duration::from_secs(20);

/// Two pings without any answer and a bit: a connection that says nothing for so long is dead, and so is one that takes
/// nothing.
const DEAD_AFTER: Duration = Duration::from_secs(45);

/// `watch-audio.md`: reconnect after 0.5 s if the socket had lived 5 s.
const RECONNECT: Duration = Duration::from_millis(500);
const LIVED: Duration = Duration::from_secs(5);

/// `watch-audio.md`: otherwise 1 s doubling to 10 s.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// From the name to the upgrade's answer.
const DIAL_LIMIT: Duration = Duration::from_secs(12);

/// `watch-audio.md`: little unsent in the kernel, about 16 KB.
const KERNEL_UNSENT: u32 = 16 * 1024;

/// The Watch's messages have at most 5 KB as deployed ones send them. The library clears the whole buffer for each read.
const READ_BUFFER: usize = 6 * 1024;

/// Messages read ahead of the bridge, which takes them at once.
const EVENTS: usize = 32;

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
