//! The two ends of many bridges through a relay: prepared messages at a steady rate, and how long each was under way.
//!
//! A WebSocket of a few lines, so that the load costs little beside what it loads: one header, one mask, no copies.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

use crate::Failed;

/// One end of a bridge, to be opened.
#[derive(Debug, Clone)]
pub struct End {
    /// The path of its socket, from `/` on.
    pub path: String,
    /// What it shows.
    pub bearer: String,
}

/// What came of a load.
#[derive(Debug, Default)]
pub struct Carried {
    /// How many messages were to be sent.
    pub due: u64,
    /// How long each took that came out in time, in µs.
    pub delays: Vec<f64>,
}

/// Many bridges, open.
pub struct Bridges {
    origin: Instant,
    /// Host and Watch of each in turn.
    writers: Vec<Writer>,
    heard: Rc<RefCell<Heard>>,
    _readers: JoinSet<()>,
}

/// What all sockets hear together.
#[derive(Default)]
struct Heard {
    /// Messages sent from then on count.
    from: u64,
    delays: Vec<f64>,
}

impl Bridges {
    /// Opens both ends of each bridge, hosts first. To be called within a `LocalSet`.
    ///
    /// # Errors
    /// When the relay refuses one.
    pub async fn open(relay: SocketAddr, bridges: &[[End; 2]]) -> Result<Self, Failed> {
        let origin = Instant::now();
        let heard = Rc::new(RefCell::new(Heard::default()));
        let (mut writers, mut readers) = (Vec::new(), JoinSet::new());
        for end in bridges.iter().flatten() {
            let (reader, writer) = connect(relay, end).await?.into_split();
            writers.push(Writer { socket: writer, unsent: Vec::new() });
            readers.spawn_local(listen(reader, origin, Rc::clone(&heard)));
        }
        Ok(Self { origin, writers, heard, _readers: readers })
    }

    /// Sends `rate` messages a second into each end for `time`, spread evenly, and answers what came out at the others.
    pub async fn load(&mut self, rate: u32, time: Duration) -> Carried {
        let ends = self.writers.len();
        let interval = Duration::from_secs(1) / rate / ends as u32;
        let due = u64::from(rate) * ends as u64 * time.as_millis() as u64 / 1_000;
        let start = Instant::now();
        *self.heard.borrow_mut() = Heard { from: self.nanos(), delays: Vec::with_capacity(due as usize) };
        let mut message = [0; MESSAGE];
        message[0] = 1;
        for n in 0..due {
            let at = start + interval * n as u32;
            if at > Instant::now() {
                tokio::time::sleep_until(at.into()).await;
            } else if n % BURST == 0 {
                // Late: what has come in is looked at all the same.
                tokio::task::yield_now().await;
            }
            message[1..9].copy_from_slice(&self.nanos().to_be_bytes());
            self.writers[n as usize % ends].send(&message);
        }
        tokio::time::sleep(LAST).await;
        Carried { due, delays: std::mem::take(&mut self.heard.borrow_mut().delays) }
    }

    fn nanos(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

struct Writer {
    socket: OwnedWriteHalf,
    /// The rest of a frame that the kernel had no room for.
    unsent: Vec<u8>,
}

impl Writer {
    /// Sends one message, or leaves it out while an earlier one is stuck.
    fn send(&mut self, message: &[u8; MESSAGE]) {
        if self.unsent.is_empty() {
            self.unsent.extend_from_slice(&[BINARY, MASKED | LONG]);
            self.unsent.extend_from_slice(&(MESSAGE as u16).to_be_bytes());
            self.unsent.extend_from_slice(&MASK.to_be_bytes());
            let mask = MASK.to_be_bytes();
            self.unsent.extend(message.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        }
        match self.socket.try_write(&self.unsent) {
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Its messages will be missing.
            Err(_) => {}
        }
    }
}

/// Upgrades a connection (RFC 6455 section 4.1).
async fn connect(relay: SocketAddr, end: &End) -> Result<TcpStream, Failed> {
    let failed = Failed::to::<std::io::Error>("open a bridge");
    let mut socket = TcpStream::connect(relay).await.map_err(&failed)?;
    socket.set_nodelay(true).map_err(&failed)?;
    let End { path, bearer } = end;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {relay}\r\nAuthorization: Bearer {bearer}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bWVhc3VyZWQgaGVyZSAhIQ==\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.map_err(&failed)?;
    let mut head = Vec::new();
    // A byte at a time: frames may follow the head at once.
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.map_err(&failed)?);
    }
    if head.starts_with(b"HTTP/1.1 101") {
        return Ok(socket);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    Err(Failed(format!("the relay refuses a bridge: {line}")))
}

/// Reads until the relay closes, noting when each message came.
async fn listen(mut socket: OwnedReadHalf, origin: Instant, heard: Rc<RefCell<Heard>>) {
    let mut buffer = Vec::with_capacity(READ);
    while socket.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {
        let now = origin.elapsed().as_nanos() as u64;
        let mut read = 0;
        while let Some((header, length)) = header(&buffer[read..])
            && let Some(message) = buffer[read..].get(header..header + length)
        {
            read += header + length;
            // Anything shorter is the relay's own.
            if let Some(sent) = message.get(1..9).filter(|_| length == MESSAGE) {
                let sent = u64::from_be_bytes(sent.try_into().expect("eight bytes"));
                let mut heard = heard.borrow_mut();
                if sent >= heard.from {
                    heard.delays.push((now - sent) as f64 / 1_000.0);
                }
            }
        }
        buffer.drain(..read);
    }
}

/// The length of a server's frame header, and that of what follows it (RFC 6455 section 5.2).
fn header(frame: &[u8]) -> Option<(usize, usize)> {
    match frame {
        [_, 126, high, low, ..] => Some((4, usize::from(u16::from_be_bytes([*high, *low])))),
        [_, length @ 0..=125, ..] => Some((2, usize::from(*length))),
        _ => None,
    }
}

/// What 20 ms of 24 kHz are when sealed: kind, counter, samples, tag.
pub const MESSAGE: usize = 1 + 8 + 960 + 16;
const BINARY: u8 = 0x82;
const MASKED: u8 = 0x80;
/// The length follows in 16 bits.
const LONG: u8 = 126;
/// Any but zero, for which `ws` would take a short cut.
const MASK: u32 = 0x5AC3_0F96;
/// A read takes all that waits, usually one message.
const READ: usize = 16 * 1_024;
/// Messages to send at a time when late.
const BURST: u64 = 16;
/// What takes longer counts as lost.
const LAST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_lengths() {
        assert_eq!(header(&[BINARY, 2, 0, 1]), Some((2, 2)));
        assert_eq!(header(&[BINARY, 126, 3, 0xD9, 7]), Some((4, MESSAGE)));
        assert_eq!(header(&[BINARY, 126, 3]), None);
        assert_eq!(header(&[]), None);
    }
}
