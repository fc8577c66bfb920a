//! The TCP proxy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// How a [`TcpProxy`] treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything goes on so much later.
    Open {
        /// Each way.
        delay: Duration,
    },
    /// Nothing goes on, not even an end: a half-open connection, as after sleep (case 49). What was sent meanwhile goes on
    /// when it opens again.
    Frozen,
    /// At most so many bytes a second go to the client, in small pieces (case 50).
    Slow {
        /// Bytes a second.
        rate: u32,
    },
    /// New connections are closed at once.
    Refusing,
}

/// Stands before a TCP port. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// What the connections are told. Those of an older cut are over.
#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    cuts: u64,
}

impl TcpProxy {
    /// Starts before `target`.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (state, told) = watch::channel(State { mode: Mode::Open { delay: Duration::ZERO }, cuts: 0 });
        let open = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(listen(listener, target, told, Arc::clone(&open)));
        Ok(Self { address, state, open, task })
    }

    /// The port to connect to instead of the target's.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how connections are treated, old and new.
    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    /// Resets all present connections, both sides.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, target: SocketAddr, told: watch::Receiver<State>, open: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted
                && told.borrow().mode != Mode::Refusing
            {
                connections.spawn(connection(client, target, told.clone(), Counted::new(&open)));
            },
            _ = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(mut client: TcpStream, target: SocketAddr, mut told: watch::Receiver<State>, _counted: Counted) {
    let cuts = told.borrow().cuts;
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // Pieces go on as they came; a socket that refuses is slow, not wrong.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (up, down) = (told.clone(), told.clone());
    let cut = {
        let (mut client_read, mut client_write) = client.split();
        let (mut server_read, mut server_write) = server.split();
        tokio::select! {
            // Each way ends by itself; the connection is over when both have.
            _ = async {
                tokio::join!(
                    pump(&mut client_read, &mut server_write, up, false),
                    pump(&mut server_read, &mut client_write, down, true),
                )
            } => false,
            _ = told.wait_for(|state| state.cuts != cuts) => true,
        }
    };
    if cut {
        // A reset, not an orderly end; where that cannot be set an end is what there is.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Carries one way until it ends or breaks.
async fn pump(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    told: watch::Receiver<State>,
    to_client: bool,
) -> io::Result<()> {
    let (pieces, mut waiting) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let mut mode = told.clone();
    let taking = async {
        let mut buffer = vec![0; PIECE];
        loop {
            let size = read.read(&mut buffer).await?;
            thawed(&mut mode).await;
            let delay = if let Mode::Open { delay } = mode.borrow().mode { delay } else { Duration::ZERO };
            // The end is an empty piece.
            if pieces.send((Instant::now() + delay, buffer[..size].to_vec())).await.is_err() || size == 0 {
                return Ok(());
            }
        }
    };
    let mut mode = told.clone();
    let giving = async {
        while let Some((due, piece)) = waiting.recv().await {
            tokio::time::sleep_until(due).await;
            if piece.is_empty() {
                break;
            }
            let mut rest = piece.as_slice();
            while !rest.is_empty() {
                thawed(&mut mode).await;
                let rate = match mode.borrow().mode {
                    Mode::Slow { rate } if to_client => Some(rate.max(1)),
                    _ => None,
                };
                let size = rate.map_or(rest.len(), |rate| (rate as usize / SLOW_STEPS).clamp(1, rest.len()));
                write.write_all(&rest[..size]).await?;
                rest = &rest[size..];
                if let Some(rate) = rate {
                    tokio::time::sleep(Duration::from_secs_f64(size as f64 / f64::from(rate))).await;
                }
            }
        }
        write.shutdown().await
    };
    tokio::try_join!(taking, giving).map(|_| ())
}

/// Waits while everything is frozen.
async fn thawed(told: &mut watch::Receiver<State>) {
    // It can only fail once the proxy is gone, and then the task is too.
    let _ = told.wait_for(|state| state.mode != Mode::Frozen).await;
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Small enough that a slow connection is not a bursty one.
const PIECE: usize = 4_096;
/// Pieces under way each way: 64 KiB.
const PIECES: usize = 16;
/// A slow connection gives so many pieces a second.
const SLOW_STEPS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection through a proxy, both ends of it.
    async fn pair() -> (TcpProxy, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = TcpProxy::start(listener.local_addr().unwrap()).await.unwrap();
        let client = TcpStream::connect(proxy.address()).await.unwrap();
        let server = listener.accept().await.unwrap().0;
        (proxy, client, server)
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(5), future).await.unwrap()
    }

    #[tokio::test]
    async fn it_carries_both_ways_and_ends_with_either() {
        let (proxy, mut client, mut server) = pair().await;
        client.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 5];
        soon(server.read_exact(&mut buffer)).await.unwrap();
        server.write_all(b"there").await.unwrap();
        soon(client.read_exact(&mut buffer)).await.unwrap();
        assert_eq!(&buffer, b"there");
        drop(client);
        assert_eq!(soon(server.read(&mut buffer)).await.unwrap(), 0);
        drop(server);
        soon(async {
            while proxy.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_cut_resets_both_ends() {
        let (proxy, mut client, mut server) = pair().await;
        client.write_all(b"x").await.unwrap();
        let mut buffer = [0; 1];
        soon(server.read_exact(&mut buffer)).await.unwrap();
        proxy.cut();
        for end in [&mut client, &mut server] {
            let error = soon(end.read(&mut buffer)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn case_49_a_frozen_connection_says_nothing_at_all() {
        let (proxy, mut client, mut server) = pair().await;
        proxy.set(Mode::Frozen);
        client.write_all(b"x").await.unwrap();
        let mut buffer = [0; 1];
        let waited = tokio::time::timeout(Duration::from_millis(300), server.read(&mut buffer)).await;
        assert!(waited.is_err(), "nothing may come, not even an end");
        proxy.set(Mode::Open { delay: Duration::ZERO });
        soon(server.read_exact(&mut buffer)).await.unwrap();
        assert_eq!(&buffer, b"x");
    }

    #[tokio::test]
    async fn case_50_a_slow_connection_keeps_its_rate_and_a_late_one_its_delay() {
        let (proxy, mut client, mut server) = pair().await;
        proxy.set(Mode::Slow { rate: 20_000 });
        server.write_all(&[7; 10_000]).await.unwrap();
        let started = Instant::now();
        soon(client.read_exact(&mut [0; 10_000])).await.unwrap();
        assert!(started.elapsed() > Duration::from_millis(350), "{:?}", started.elapsed());
        proxy.set(Mode::Open { delay: Duration::from_millis(200) });
        let started = Instant::now();
        client.write_all(b"x").await.unwrap();
        soon(server.read_exact(&mut [0; 1])).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(200));
        proxy.set(Mode::Refusing);
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(soon(refused.read(&mut [0; 1])).await.unwrap(), 0);
    }
}
