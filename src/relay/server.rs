//! The relay's server: it listens, serves each connection within its limits, and stops in a bounded time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{any, delete, get, post};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::{NOT_FOUND, Refusal, UNAUTHORIZED, answer, bearer};
use super::credentials::Credentials;
use super::grants::Grants;
use super::rate::{Addresses, Window};
use super::{Limits, audio, tools};
use crate::idle::{Idle, Place};

/// How a relay is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether a reverse proxy that speaks TLS stands before it. Without one it listens on loopback only, because
    /// bearers would travel in plain text.
    pub behind_tls: bool,
    /// The header in which that proxy names the client, such as `x-forwarded-for`; its last entry counts. Without it,
    /// rates per address are those of the connection's own address.
    pub address_header: Option<HeaderName>,
    /// The gateways it serves.
    pub credentials: Credentials,
    /// What it allows.
    pub limits: Limits,
}

/// A running relay. Dropped, it ends at once; [`Server::shutdown`] says goodbye first.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    relay: Arc<Relay>,
    stop: watch::Sender<bool>,
    /// Accepts connections and closes grants.
    keepers: JoinSet<()>,
}

/// Why a relay does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// It would take bearers in plain text from other machines.
    #[error("{0} is not loopback; put a proxy that speaks TLS before the relay and say so (--behind-tls)")]
    NotLoopback(SocketAddr),
    /// The system refuses the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// What all requests share.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) limits: Arc<Limits>,
    pub(super) credentials: Credentials,
    pub(super) grants: Grants,
    /// By address: tool calls, and audio connects of either side.
    pub(super) calls: Addresses,
    pub(super) hosts: Addresses,
    pub(super) watches: Addresses,
    /// New grants, by gateway.
    opened: Mutex<Vec<Window>>,
    address_header: Option<HeaderName>,
    /// Connections and sockets.
    tasks: Mutex<JoinSet<()>>,
}

/// The connection that a request came on, and its place among all connections, which an upgraded socket keeps.
#[derive(Debug, Clone)]
pub(super) struct Client {
    address: IpAddr,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Client {
    pub(super) fn new(address: IpAddr, permit: OwnedSemaphorePermit) -> Self {
        Self { address, _permit: Arc::new(permit) }
    }
}

impl Server {
    /// Starts to listen and to serve.
    pub async fn bind(config: Config) -> Result<Self, BindError> {
        let Config { listen, behind_tls, address_header, credentials, limits } = config;
        if !behind_tls && !listen.ip().is_loopback() {
            return Err(BindError::NotLoopback(listen));
        }
        let failed = |source| BindError::Listen { address: listen, source };
        let listener = listener(listen, limits.kernel_bytes).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;

        let gateways = credentials.len();
        let relay = Arc::new(Relay::new(credentials, limits, address_header));
        let (stop, stopped) = watch::channel(false);
        let mut keepers = JoinSet::new();
        keepers.spawn(accept(listener, Arc::clone(&relay), stopped));
        let expiring = Arc::clone(&relay);
        keepers.spawn(async move { expiring.grants.expire().await });
        tracing::info!(%address, gateways, "relay listens");
        Ok(Self { address, relay, stop, keepers })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes every grant, its calls and its sockets (1001), and is over after the closing handshakes' limit at most.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        self.keepers.shutdown().await;
        self.relay.grants.shut_down();
        let mut tasks = std::mem::take(&mut *self.relay.tasks());
        let all = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.relay.limits.close_wait + AFTER_CLOSE, all).await;
        tracing::info!("relay stopped");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.relay.tasks().abort_all();
    }
}

impl Relay {
    /// A relay without grants and connections.
    pub(super) fn new(credentials: Credentials, limits: Limits, address_header: Option<HeaderName>) -> Self {
        let limits = Arc::new(limits);
        let gateways = credentials.len();
        Self {
            grants: Grants::new(Arc::clone(&limits), gateways),
            calls: Addresses::default(),
            hosts: Addresses::default(),
            watches: Addresses::default(),
            opened: Mutex::new((0..gateways).map(|_| Window::default()).collect()),
            address_header,
            tasks: Mutex::default(),
            credentials,
            limits,
        }
    }

    /// The gateway that a request's bearer belongs to.
    pub(super) fn gateway(&self, headers: &HeaderMap) -> Result<usize, Refusal> {
        bearer(headers).and_then(|bearer| self.credentials.find(bearer)).ok_or(UNAUTHORIZED)
    }

    /// Counts one of a gateway's new grants of the minute.
    pub(super) fn admit_grant(&self, gateway: usize) -> bool {
        let mut opened = self.opened.lock().expect("nothing panics while it counts");
        opened[gateway].once_a_minute(Instant::now(), self.limits.grant_rate)
    }

    /// The address that a request's rate is counted for.
    pub(super) fn address(&self, client: &Client, headers: &HeaderMap) -> IpAddr {
        let named = self.address_header.as_ref().and_then(|name| {
            // Only the last entry is the proxy's own; those before it are the client's to invent.
            let value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
            value.rsplit(',').next()?.trim().parse().ok()
        });
        named.unwrap_or(client.address)
    }

    /// Owns a task for as long as the server lives.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!("a connection's task panicked");
            }
        }
        tasks.spawn(task);
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().expect("nothing panics while it starts a task")
    }
}

/// Every route of the relay.
pub(super) fn routes(relay: Arc<Relay>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { answer(StatusCode::OK, serde_json::json!({ "status": "ok" })) }))
        .route("/v1/watch-tools/grants", post(tools::open))
        .route("/v1/watch-tools/grants/{id}", delete(tools::delete))
        .route("/v1/watch-tools/grants/{id}/calls", post(tools::call).get(tools::poll))
        .route("/v1/watch-tools/grants/{id}/results/{rid}", post(tools::result))
        .route("/v1/watch-audio/{id}/{side}", any(audio::join))
        .fallback(|| async { NOT_FOUND })
        .method_not_allowed_fallback(|| async { Refusal(405, "method_not_allowed") })
        .with_state(relay)
}

/// Takes connections. Where there is no room for one more, an idle one has to go.
async fn accept(listener: TcpListener, relay: Arc<Relay>, stopped: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(routes(Arc::clone(&relay)));
    let room = Arc::new(Semaphore::new(relay.limits.max_connections));
    let idle = Arc::new(Idle::default());
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: some will be given back.
                tracing::warn!(%error, "cannot accept a connection");
                idle.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if tune(&stream).is_err() {
            continue; // It is gone already.
        }
        if room.available_permits() == 0 {
            idle.make_room();
        }
        // Where all the others are at work, it waits for one of them to end.
        let permit = Arc::clone(&room).acquire_owned().await.expect("nobody closes the semaphore");
        let client = Client::new(address.ip(), permit);
        relay.spawn(serve(stream, client, idle.enter(), service.clone(), relay.limits.head, stopped.clone()));
    }
}

/// Serves one connection until it ends or is upgraded.
pub(super) async fn serve<S>(
    stream: S,
    client: Client,
    place: Place,
    service: TowerToHyperService<Router>,
    head: Duration,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = &place;
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        place.work();
        request.extensions_mut().insert(client.clone());
        let answer = is_framed(request.headers()).then(|| service.call(request));
        async move {
            let answer = match answer {
                Some(answer) => answer.await,
                None => Ok(([(CONNECTION, "close")], Refusal(400, "bad_request")).into_response()),
            };
            place.rest();
            answer
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(REQUEST_BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // How a client left is its own affair.
        _ = connection.as_mut() => return,
        () = place.sent_away() => return,
        _ = stopped.wait_for(|stopped| *stopped) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Whether it is clear where a request's body ends. A proxy before us might read two codings, or another than `chunked`, in
/// its own way, and take for a body what we take for the next request (RFC 9112 section 6.3).
fn is_framed(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => {
            coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !headers.contains_key(CONTENT_LENGTH)
        }
        (Some(_), Some(_)) => false,
    }
}

/// Listens with bounded kernel buffers, which accepted connections inherit.
fn listener(address: SocketAddr, kernel_bytes: usize) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking().cloexec(),
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(kernel_bytes)?;
    socket.set_send_buffer_size(kernel_bytes)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Sends small messages at once, and keeps little unsent in the kernel.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOT_SENT)?;
    Ok(())
}

/// A head and the start of a body; the smallest that hyper allows.
const REQUEST_BUFFER: usize = 8 * 1_024;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1_024;

/// Time for descriptors to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What may wait unsent in the kernel before the writer is paused: a third of a second of PCM.
#[cfg(target_os = "linux")]
const NOT_SENT: u32 = 16 * 1_024;

/// Time for answers that were on their way when the relay stopped.
const AFTER_CLOSE: Duration = Duration::from_secs(1);
