//! The sockets and tasks of one peer, as the WebRTC crate asks for them.
//!
//! Wrapped around tokio for four reasons: consent checks are mended where they leave ([`Consent`]), a TCP path must
//! never hold up the task that also keeps ICE and DTLS alive, its end has to be noticed ([`Carrier`]), and every task has
//! to be gone when the peer is.

use std::collections::HashSet;
use std::future::{Future, ready};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use webrtc::runtime::{
    AsyncInterval, AsyncTcpListener, AsyncTcpStream, AsyncUdpSocket, JoinHandle, RecvMeta, Runtime, TokioRuntime,
    Transmit,
};

use super::carrier::{Carrier, Transport, UDP};
use super::consent::Consent;

/// The runtime of one peer.
#[derive(Debug)]
pub(super) struct PeerRuntime {
    tokio: TokioRuntime,
    consent: Arc<Consent>,
    carrier: Arc<Carrier>,
    tasks: Mutex<Vec<AbortHandle>>,
    #[cfg(test)]
    listening: bool,
}

impl PeerRuntime {
    pub(super) fn new(consent: Arc<Consent>) -> Self {
        Self {
            tokio: TokioRuntime,
            consent,
            carrier: Arc::new(Carrier::new()),
            tasks: Mutex::default(),
            #[cfg(test)]
            listening: false,
        }
    }

    /// For the answering side of a test: lets TCP in.
    #[cfg(test)]
    pub(super) fn listening(consent: Arc<Consent>) -> Self {
        Self { listening: true, ..Self::new(consent) }
    }

    /// Ends every task that was started through this runtime; with them go their sockets.
    pub(super) fn abort_all(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }

    /// Waits until the connection that carries the call is gone, for ever when none does; cancel safe.
    pub(super) async fn lost(&self) {
        self.carrier.lost().await;
    }

    fn guard_stream(&self, stream: TcpStream) -> io::Result<Arc<dyn AsyncTcpStream>> {
        // Without this a packet waits up to 18 ms for the acknowledgement of the one before.
        stream.set_nodelay(true)?;
        socket2::SockRef::from(&stream).set_send_buffer_size(TCP_SEND_BUFFER)?;
        Ok(Arc::new(PeerTcpStream {
            local: stream.local_addr()?,
            remote: stream.peer_addr()?,
            stream,
            consent: Arc::clone(&self.consent),
            carrier: Arc::clone(&self.carrier),
            name: self.carrier.tcp(),
            unsent: Mutex::default(),
        }))
    }
}

impl Runtime for PeerRuntime {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Box<dyn JoinHandle> {
        let handle = tokio::spawn(future);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle.abort_handle());
        Box::new(Task(handle))
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let loopback = socket.local_addr()?.ip().is_loopback();
        let socket = self.tokio.wrap_udp_socket(socket)?;
        #[cfg(test)]
        let socket = Arc::new(super::tests::wire::Wire(socket));
        Ok(Arc::new(PeerUdpSocket {
            loopback,
            socket,
            consent: Arc::clone(&self.consent),
            carrier: Arc::clone(&self.carrier),
            unreachable: Mutex::default(),
        }))
    }

    fn wrap_tcp_listener(&self, listener: std::net::TcpListener) -> io::Result<Arc<dyn AsyncTcpListener>> {
        let listener = self.tokio.wrap_tcp_listener(listener)?;
        #[cfg(test)]
        if self.listening {
            return Ok(listener);
        }
        Ok(Arc::new(PeerTcpListener(listener)))
    }

    fn connect_tcp<'a>(&'a self, remote: SocketAddr) -> BoxFuture<'a, io::Result<Arc<dyn AsyncTcpStream>>> {
        Box::pin(async move {
            let stream = timeout(TCP_CONNECT_LIMIT, TcpStream::connect(remote)).await??;
            self.guard_stream(stream)
        })
    }

    fn resolve_host<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        // The crate resolves on the task that drives the whole connection.
        Box::pin(async move { timeout(RESOLVE_LIMIT, self.tokio.resolve_host(host)).await? })
    }

    fn now(&self) -> std::time::Instant {
        self.tokio.now()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>> {
        self.tokio.sleep(duration)
    }

    fn interval(&self, period: Duration) -> Box<dyn AsyncInterval> {
        self.tokio.interval(period)
    }

    fn block_on(&self, future: Pin<Box<dyn Future<Output = ()> + '_>>) {
        self.tokio.block_on(future);
    }

    fn yield_now(&self) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>> {
        self.tokio.yield_now()
    }

    fn name(&self) -> &'static str {
        self.tokio.name()
    }
}

struct Task(tokio::task::JoinHandle<()>);

impl JoinHandle for Task {
    fn detach(&self) {}

    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

#[derive(Debug)]
struct PeerUdpSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    loopback: bool,
    consent: Arc<Consent>,
    carrier: Arc<Carrier>,
    /// Where sending failed, so that it is said once for each.
    unreachable: Mutex<HashSet<SocketAddr>>,
}

impl PeerUdpSocket {
    fn report(&self, remote: SocketAddr, error: &io::Error) {
        let mut unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        if unreachable.len() < MAX_REPORTS && unreachable.insert(remote) {
            tracing::info!("{remote} cannot be reached by UDP from one of this machine's addresses: {error}");
        }
    }
}

impl AsyncUdpSocket for PeerUdpSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<usize>> {
        if self.loopback && !transmit.destination.ip().is_loopback() {
            return Poll::Ready(Err(ErrorKind::NetworkUnreachable.into()));
        }
        self.carrier.carries(UDP, transmit.contents);
        let sent = match self.consent.rewrite(transmit.contents) {
            None => self.socket.poll_send(cx, transmit),
            Some(contents) => {
                let rewritten = Transmit {
                    destination: transmit.destination,
                    ecn: transmit.ecn,
                    contents: &contents,
                    segment_size: None,
                    src_ip: transmit.src_ip,
                };
                self.socket.poll_send(cx, &rewritten).map_ok(|_| transmit.contents.len())
            }
        };
        if let Poll::Ready(Err(error)) = &sent {
            self.report(transmit.destination, error);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(cx, bufs, meta)
    }

    fn max_gro_segments(&self) -> usize {
        self.socket.max_gro_segments()
    }
}

/// ICE-TCP is for us to open: what is listened on only gives the crate its local candidates, and nobody is let in.
#[derive(Debug)]
struct PeerTcpListener(Arc<dyn AsyncTcpListener>);

impl AsyncTcpListener for PeerTcpListener {
    fn accept<'a>(&'a self) -> BoxFuture<'a, io::Result<(Arc<dyn AsyncTcpStream>, SocketAddr)>> {
        Box::pin(std::future::pending())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[derive(Debug)]
struct PeerTcpStream {
    stream: TcpStream,
    local: SocketAddr,
    remote: SocketAddr,
    consent: Arc<Consent>,
    carrier: Arc<Carrier>,
    name: Transport,
    /// The rest of a frame the kernel took only in part.
    unsent: Mutex<Vec<u8>>,
}

impl PeerTcpStream {
    /// Sends one RFC 4571 frame, or drops it whole when the kernel takes nothing: like a datagram on a full link.
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.carrier.carries(self.name, frame.get(2..).unwrap_or_default());
        let rewritten = frame.get(2..).and_then(|packet| self.consent.rewrite(packet)).map(|packet| {
            let length = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            [&length.to_be_bytes()[..], &packet].concat()
        });
        let frame = rewritten.as_deref().unwrap_or(frame);

        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.push(&unsent)?;
        unsent.drain(..sent);
        if !unsent.is_empty() {
            return Ok(());
        }
        let sent = self.push(frame)?;
        if sent > 0 {
            unsent.extend_from_slice(&frame[sent..]);
        }
        Ok(())
    }

    /// How much of `bytes` the kernel took without waiting.
    fn push(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.try_write(&bytes[sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

impl AsyncTcpStream for PeerTcpStream {
    fn read<'a, 'b>(&'a self, buf: &'b mut [u8]) -> BoxFuture<'b, io::Result<usize>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            loop {
                self.stream.readable().await?;
                match self.stream.try_read(buf) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(read) if read > 0 => return Ok(read),
                    end => {
                        self.carrier.ended(self.name);
                        return end;
                    }
                }
            }
        })
    }

    fn write_all<'a, 'b>(&'a self, buf: &'b [u8]) -> BoxFuture<'b, io::Result<()>>
    where
        'a: 'b,
    {
        Box::pin(ready(self.send(buf)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.remote)
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The whole time a connection has from the answer on.
const TCP_CONNECT_LIMIT: Duration = Duration::from_secs(8);

/// Less than the gathering waits for STUN, so that a dead resolver only costs the STUN candidates.
const RESOLVE_LIMIT: Duration = Duration::from_millis(250);

/// What may wait in the kernel on a TCP path cannot be taken back; this is a few seconds of speech, and room for a burst
/// of a large event.
const TCP_SEND_BUFFER: usize = 64 * 1024;

/// More unreachable addresses than an answer has candidates say nothing new.
const MAX_REPORTS: usize = 32;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::task::Waker;

    use super::*;

    #[tokio::test]
    async fn case_21_what_cannot_be_reached_is_said_once_for_each() {
        let runtime = PeerRuntime::new(Arc::new(Consent::new().unwrap()));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = runtime.wrap_udp_socket(socket).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        for _ in 0..10 {
            for destination in ["127.0.0.97:10", "127.0.0.101:10", "192.0.2.1:10"] {
                let destination = destination.parse().unwrap();
                let transmit = Transmit { destination, ecn: None, contents: &[1], segment_size: None, src_ip: None };
                let sent = socket.poll_send(&mut Context::from_waker(Waker::noop()), &transmit);
                assert!(matches!(sent, Poll::Ready(Err(_))));
            }
        }
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.lines().count(), 2, "{log}");
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
