//! The UDP proxy.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::{Impairment, Link};

/// Stands before a UDP port and lets packets through as badly as it is told. Each client gets a port of its own toward the
/// target. Dropping it ends it.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    impairments: watch::Sender<(Impairment, Impairment)>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

/// Packets counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// That came from clients, and of these the ones passed on.
    pub up: (u64, u64),
    /// That came from the target, and of these the ones passed on.
    pub down: (u64, u64),
}

#[derive(Debug, Default)]
struct Counters {
    up: (AtomicU64, AtomicU64),
    down: (AtomicU64, AtomicU64),
}

impl UdpProxy {
    /// Starts before `target`, with `up` toward it and `down` from it.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub async fn start(target: SocketAddr, up: Impairment, down: Impairment, seed: u64) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let (impairments, changes) = watch::channel((up, down));
        let counters = Arc::new(Counters::default());
        let proxy = Proxy {
            target,
            socket: Arc::new(socket),
            up: Link::new(up, seed),
            down: Link::new(down, !seed),
            start: Instant::now(),
            waiting: BinaryHeap::new(),
            entered: 0,
            clients: HashMap::new(),
            readers: JoinSet::new(),
            counters: Arc::clone(&counters),
        };
        let task = tokio::spawn(proxy.run(changes));
        Ok(Self { address, impairments, counters, task })
    }

    /// The port to send to instead of the target's.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how bad it is; packets under way are not touched.
    pub fn set(&self, up: Impairment, down: Impairment) {
        self.impairments.send_replace((up, down));
    }

    /// Lets nothing through either way, or all again as before.
    pub fn blackhole(&self, blackhole: bool) {
        self.impairments.send_modify(|(up, down)| (up.blackhole, down.blackhole) = (blackhole, blackhole));
    }

    /// What came and what was passed on.
    pub fn counts(&self) -> Counts {
        let read =
            |(came, passed): &(AtomicU64, AtomicU64)| (came.load(Ordering::Relaxed), passed.load(Ordering::Relaxed));
        Counts { up: read(&self.counters.up), down: read(&self.counters.down) }
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Proxy {
    target: SocketAddr,
    socket: Arc<UdpSocket>,
    up: Link,
    down: Link,
    start: Instant,
    waiting: BinaryHeap<Reverse<Waiting>>,
    entered: u64,
    /// The sockets toward the target, by client.
    clients: HashMap<SocketAddr, Arc<UdpSocket>>,
    readers: JoinSet<()>,
    counters: Arc<Counters>,
}

/// A packet under way: first by time, then in the order it came.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: Duration,
    entered: u64,
    up: bool,
    client: SocketAddr,
    bytes: Vec<u8>,
}

impl Proxy {
    async fn run(mut self, mut changes: watch::Receiver<(Impairment, Impairment)>) {
        let (from_target, mut answers) = mpsc::channel(QUEUE);
        let socket = Arc::clone(&self.socket);
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let due = self.waiting.peek().map(|waiting| self.start + waiting.0.due);
            tokio::select! {
                received = socket.recv_from(&mut buffer) => {
                    // An error only says that some client's port is gone.
                    let Ok((size, client)) = received else { continue };
                    if self.client(client, &from_target).await.is_ok() {
                        self.enter(true, client, &buffer[..size]);
                    }
                }
                Some((client, bytes)) = answers.recv() => self.enter(false, client, &bytes),
                () = sleep_until(due) => {}
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    (self.up.impairment, self.down.impairment) = *changes.borrow_and_update();
                }
            }
            self.leave();
        }
    }

    /// Makes sure that a client has its socket.
    async fn client(&mut self, client: SocketAddr, answers: &mpsc::Sender<(SocketAddr, Vec<u8>)>) -> io::Result<()> {
        if self.clients.contains_key(&client) {
            return Ok(());
        }
        let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        socket.connect(self.target).await?;
        // Until then a send that must not wait fails.
        socket.writable().await?;
        self.clients.insert(client, Arc::clone(&socket));
        self.readers.spawn(read(socket, client, answers.clone()));
        Ok(())
    }

    fn enter(&mut self, up: bool, client: SocketAddr, bytes: &[u8]) {
        let (link, counter) =
            if up { (&mut self.up, &self.counters.up) } else { (&mut self.down, &self.counters.down) };
        counter.0.fetch_add(1, Ordering::Relaxed);
        let fates = link.pass(self.start.elapsed());
        counter.1.fetch_add(u64::from(!fates.is_empty()), Ordering::Relaxed);
        for due in fates {
            self.entered += 1;
            self.waiting.push(Reverse(Waiting { due, entered: self.entered, up, client, bytes: bytes.to_vec() }));
        }
    }

    fn leave(&mut self) {
        let now = self.start.elapsed();
        while self.waiting.peek().is_some_and(|waiting| waiting.0.due <= now) {
            let Some(Reverse(packet)) = self.waiting.pop() else { return };
            // A full buffer loses it, as a network would.
            if !packet.up {
                let _ = self.socket.try_send_to(&packet.bytes, packet.client);
            } else if let Some(socket) = self.clients.get(&packet.client) {
                let _ = socket.try_send(&packet.bytes);
            }
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

async fn read(socket: Arc<UdpSocket>, client: SocketAddr, answers: mpsc::Sender<(SocketAddr, Vec<u8>)>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        // An error only says that the target's port is gone; it may come back.
        if let Ok(size) = socket.recv(&mut buffer).await
            && answers.send((client, buffer[..size].to_vec())).await.is_err()
        {
            return;
        }
    }
}

/// Packets between a reader and the proxy.
const QUEUE: usize = 256;
/// Larger than any datagram on loopback that matters here.
const MAX_DATAGRAM: usize = 9_216;

#[cfg(test)]
mod tests {
    use super::super::Loss;
    use super::*;

    /// Echoes until dropped.
    async fn echo() -> (SocketAddr, JoinSet<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut buffer = [0; 100];
            while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
                socket.send_to(&buffer[..size], from).await.unwrap();
            }
        });
        (address, tasks)
    }

    async fn answers(socket: &UdpSocket, wait: Duration) -> Vec<u8> {
        let mut buffer = [0; 100];
        let mut all = Vec::new();
        while let Ok(Ok(1)) = tokio::time::timeout(wait, socket.recv(&mut buffer)).await {
            all.push(buffer[0]);
        }
        all
    }

    #[tokio::test]
    async fn packets_go_there_and_back_as_the_links_say() {
        let (target, _echo) = echo().await;
        let loss = Impairment { loss: Loss::Random(0.5), ..Impairment::default() };
        let proxy = UdpProxy::start(target, Impairment::default(), loss, 5).await.unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(proxy.address()).await.unwrap();
        for n in 0..100 {
            client.send(&[n]).await.unwrap();
        }
        let back = answers(&client, Duration::from_millis(500)).await;
        let counts = proxy.counts();
        assert_eq!((counts.up, counts.down.0), ((100, 100), 100));
        assert_eq!(counts.down.1, back.len() as u64);
        assert!((30..70).contains(&back.len()), "{}", back.len());
        assert!(back.is_sorted());
    }

    #[tokio::test]
    async fn a_blackhole_swallows_and_lets_go_again() {
        let (target, _echo) = echo().await;
        let slow = Impairment { delay_ms: 50.0, ..Impairment::default() };
        let proxy = UdpProxy::start(target, slow, slow, 5).await.unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(proxy.address()).await.unwrap();
        proxy.blackhole(true);
        client.send(&[1]).await.unwrap();
        assert!(answers(&client, Duration::from_millis(300)).await.is_empty());
        proxy.blackhole(false);
        let sent = Instant::now();
        client.send(&[2]).await.unwrap();
        let mut buffer = [0; 100];
        client.recv(&mut buffer).await.unwrap();
        assert!(sent.elapsed() >= Duration::from_millis(100));
        assert_eq!(buffer[0], 2);
    }
}
