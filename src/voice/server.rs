//! The server: it listens, serves each connection within its limits, and stops in a bounded time.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::guard::Token;
use super::routes::{Desk, routes};
use super::session::run_instructions;
use super::{Config, voices};
use crate::hermes::{Hermes, Runner};
use crate::idle::{Idle, Place};
use crate::secret::Secret;
use crate::sign_in::openai;

/// What a server is made of.
pub struct Setup {
    /// Where it listens; port 0 takes a free one. Beyond loopback only with an access token.
    pub listen: SocketAddr,
    /// What is said about the calls.
    pub config: Config,
    /// The agent.
    pub hermes: Hermes,
    /// The key to the voice service.
    pub openai_key: Secret,
    /// What a page has to show, where it has to show anything.
    pub access_token: Option<Secret>,
}

/// A running server. Dropped, it ends at once; [`Server::shutdown`] lets answers out first. Runs go on at Hermes.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Anybody who reaches it could drive the agent.
    #[error(
        "{0} is not loopback: whoever can use this server can drive the agent; give it an access token (--access-token-file)"
    )]
    NotLoopback(SocketAddr),
    /// The system refuses the address.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// No HTTP client.
    #[error("this machine has no usable certificates to trust")]
    Http(#[from] reqwest::Error),
}

impl Server {
    /// Starts to listen and to serve.
    ///
    /// # Errors
    /// When it must not, or cannot.
    pub async fn bind(setup: Setup) -> Result<Self, BindError> {
        let Setup { listen, config, hermes, openai_key, access_token } = setup;
        if access_token.is_none() && !listen.ip().is_loopback() {
            return Err(BindError::NotLoopback(listen));
        }
        let failed = |error| BindError::Listen(listen, error);
        let listener = listener(listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let desk = Desk {
            listen: address,
            token: access_token.as_ref().map(Token::new),
            voices: voices::voices(&config.voice),
            runner: Runner::new(hermes, run_instructions(&config)),
            http: openai::http_client([config.openai_url.as_str()])?,
            openai_key,
            config,
            stopped: stopped.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, routes(Arc::new(desk)), stopped));
        Ok(Self { address, stop, tasks })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The page's address on this machine.
    pub fn url(&self) -> String {
        let here = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        format!("http://{}/", SocketAddr::new(here, self.address.port()))
    }

    /// Stops to listen, ends the streams of runs, and lets the answers under way out, within 2 s.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        // It can only fail by a panic of the task, which has been reported already.
        let _ = tokio::time::timeout(LAST_ANSWERS, self.tasks.join_next()).await;
    }
}

/// Takes connections until the server stops; then it sees them out. Where there is no room for one more, an idle one has to
/// go; where all the others are at work, it waits for one of them to end.
async fn accept(listener: TcpListener, router: Router, stopped: watch::Receiver<bool>) {
    let mut told = stopped.clone();
    let service = TowerToHyperService::new(router);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let idle = Arc::new(Idle::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let (stream, _) = listener.accept().await?;
            if room.available_permits() == 0 {
                idle.make_room();
            }
            let permit = Arc::clone(&room).acquire_owned().await.expect("nobody closes the semaphore");
            Ok::<_, io::Error>((stream, permit))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = until(&mut told) => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, permit)) => {
                let (service, stopped, place) = (service.clone(), stopped.clone(), idle.enter());
                connections.spawn(async move {
                    serve(stream, place, service, stopped).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: some will be given back.
                tracing::warn!(%error, "cannot accept a connection");
                idle.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection until it ends.
async fn serve(
    stream: TcpStream,
    place: Place,
    service: TowerToHyperService<Router>,
    mut stopped: watch::Receiver<bool>,
) {
    // Lines of a stream go out one by one. A connection that is gone already fails by itself.
    let _ = stream.set_nodelay(true);
    let place = Arc::new(place);
    let at_work = Arc::clone(&place);
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        at_work.work();
        let (answer, place) = (service.call(request), Arc::clone(&at_work));
        async move { Ok::<_, Infallible>(answer.await?.map(|body| Answer { body, place })) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(REQUEST_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // How a client left is its own affair.
        _ = connection.as_mut() => return,
        () = place.sent_away() => return,
        () = until(&mut stopped) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// An answer on its way out: its connection is at work until all of it is, and the lines of a run take a while.
struct Answer {
    body: Body,
    place: Arc<Place>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.place.rest();
    }
}

/// Returns once the server stops, or is gone.
async fn until(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Listens; on IPv6's unspecified address for IPv4 too.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking().cloexec(),
        Some(socket2::Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A page holds one or two connections; this is for a household, not for the public.
const MAX_CONNECTIONS: usize = 128;

/// Time for a request's head, and for an idle connection to send its next.
const HEAD: Duration = Duration::from_secs(30);

/// A request's head.
const REQUEST_BUFFER: usize = 64 * 1024;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 128;

/// Time for descriptors to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For answers that are under way when the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
