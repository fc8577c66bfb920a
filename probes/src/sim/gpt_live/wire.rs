//! The call's sockets: UDP, and TCP with its frames (RFC 4571); and the bytes that tell one packet from another.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Network, Path};
use crate::net::UdpProxy;

/// A datagram that arrived.
pub(super) struct Arrival {
    pub(super) tcp: bool,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

/// The sockets of one call.
pub(super) struct Wire {
    udp: UdpSocket,
    tcp: TcpListener,
    udp_path: Path,
    tcp_path: Path,
    udp_address: SocketAddr,
    tcp_address: SocketAddr,
    /// The bad network in front of the UDP port, and what is told of its weather.
    proxy: Option<(UdpProxy, watch::Receiver<Network>)>,
    connections: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>,
    arrivals: (mpsc::Sender<Arrival>, mpsc::Receiver<Arrival>),
    tasks: JoinSet<()>,
}

impl Wire {
    pub(super) async fn open(
        udp_path: Path,
        tcp_path: Path,
        network: Option<watch::Receiver<Network>>,
    ) -> io::Result<Self> {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        // Until then a send that must not wait fails.
        udp.writable().await?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (udp_address, tcp_address) = (udp.local_addr()?, tcp.local_addr()?);
        let proxy = match network {
            Some(weather) => {
                let Network { up, down, seed } = *weather.borrow();
                Some((UdpProxy::start(udp_address, up, down, seed).await?, weather))
            }
            None => None,
        };
        let (connections, arrivals, tasks) = (HashMap::new(), mpsc::channel(64), JoinSet::new());
        Ok(Self { udp, tcp, udp_path, tcp_path, udp_address, tcp_address, proxy, connections, arrivals, tasks })
    }

    /// Where UDP arrives.
    pub(super) fn udp_address(&self) -> SocketAddr {
        self.udp_address
    }

    /// Where callers are to send UDP to.
    pub(super) fn udp_candidate(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.udp_address, |(proxy, _)| proxy.address())
    }

    /// Where TCP arrives.
    pub(super) fn tcp_address(&self) -> SocketAddr {
        self.tcp_address
    }

    /// The next datagram. Cancel safe.
    pub(super) async fn next(&mut self) -> Arrival {
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                received = self.udp.recv_from(&mut buffer) => match received {
                    Ok((size, from)) if self.udp_path != Path::Dead => {
                        buffer.truncate(size);
                        return Arrival { tcp: false, from, bytes: buffer };
                    }
                    // Dead, or the other side's port is gone: nothing came.
                    Ok(_) | Err(_) => {}
                },
                accepted = self.tcp.accept(), if self.tcp_path != Path::Dead => {
                    if let Ok((stream, from)) = accepted {
                        self.take(stream, from);
                    }
                }
                Some(arrival) = self.arrivals.1.recv() => return arrival,
                () = weather(&mut self.proxy) => {}
            }
        }
    }

    fn take(&mut self, stream: TcpStream, from: SocketAddr) {
        // Media waits for nothing; a socket that refuses is slow, not wrong.
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        let (sender, frames) = mpsc::channel(256);
        self.connections.insert(from, sender);
        self.tasks.spawn(read_frames(read, from, self.arrivals.0.clone()));
        self.tasks.spawn(write_frames(write, frames));
    }

    /// Sends a datagram, or loses it where the network would.
    pub(super) fn send(&self, tcp: bool, to: SocketAddr, bytes: &[u8]) {
        if !tcp {
            // A full buffer loses it, as a network would.
            let _ = self.udp.try_send_to(bytes, to);
        } else if let Some(connection) = self.connections.get(&to) {
            let _ = connection.try_send(bytes.to_vec());
        }
    }
}

/// Waits for a change of the weather and passes it on.
async fn weather(proxy: &mut Option<(UdpProxy, watch::Receiver<Network>)>) {
    if let Some((proxy, weather)) = proxy
        && weather.changed().await.is_ok()
    {
        let Network { up, down, .. } = *weather.borrow_and_update();
        return proxy.set(up, down);
    }
    std::future::pending().await
}

async fn read_frames(read: OwnedReadHalf, from: SocketAddr, arrivals: mpsc::Sender<Arrival>) {
    let mut read = BufReader::new(read);
    while let Ok(size) = read.read_u16().await {
        let mut bytes = vec![0; size.into()];
        if read.read_exact(&mut bytes).await.is_err()
            || arrivals.send(Arrival { tcp: true, from, bytes }).await.is_err()
        {
            return;
        }
    }
}

async fn write_frames(mut write: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        let mut framed = Vec::with_capacity(frame.len() + 2);
        framed.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        framed.extend_from_slice(&frame);
        if write.write_all(&framed).await.is_err() {
            return;
        }
    }
}

/// What a datagram is, by its first bytes (RFC 7983).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// A STUN binding request, whether it nominates, and its transaction.
    Check {
        nominates: bool,
        transaction: [u8; 12],
    },
    /// A successful answer to one.
    CheckAnswer {
        transaction: [u8; 12],
    },
    Dtls,
    Rtp,
    Other,
}

impl Packet {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let transaction = bytes.get(8..20).and_then(|bytes| bytes.try_into().ok());
        match (bytes, transaction) {
            ([0, 1, ..], Some(transaction)) => Self::Check { nominates: nominates(&bytes[20..]), transaction },
            ([1, 1, ..], Some(transaction)) => Self::CheckAnswer { transaction },
            ([20..=63, ..], _) => Self::Dtls,
            // 64 to 95 behind the marker bit are RTCP (RFC 5761).
            ([128..=191, second, ..], _) if !(64..96).contains(&(second & 0x7f)) => Self::Rtp,
            _ => Self::Other,
        }
    }
}

/// Whether USE-CANDIDATE (0x0025) is among a STUN message's attributes.
fn nominates(mut attributes: &[u8]) -> bool {
    while let [kind_high, kind_low, length_high, length_low, rest @ ..] = attributes {
        if [*kind_high, *kind_low] == [0x00, 0x25] {
            return true;
        }
        let length = usize::from(u16::from_be_bytes([*length_high, *length_low])).next_multiple_of(4);
        attributes = rest.get(length..).unwrap_or_default();
    }
    false
}

/// Larger than any datagram of WebRTC.
const MAX_DATAGRAM: usize = 2_048;
