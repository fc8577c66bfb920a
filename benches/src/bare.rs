//! The least that a relay can do: takes every upgrade, unmasks a message, sends it on. No grants, no notices, no bounds, no
//! checks. What a message costs it are the system calls, and so the floor under any relay.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// Runs it until it is killed, and says where on stderr.
///
/// # Errors
/// When it cannot listen.
pub fn run() -> io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        eprintln!("address={}", listener.local_addr()?);
        let mut waiting: HashMap<String, TcpStream> = HashMap::new();
        loop {
            let (mut socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let Ok(grant) = upgrade(&mut socket).await else { continue };
            match waiting.remove(&grant) {
                Some(other) => {
                    let ((from, to), (back_from, back_to)) = (socket.into_split(), other.into_split());
                    tokio::spawn(copy(from, back_to));
                    tokio::spawn(copy(back_from, to));
                }
                None => drop(waiting.insert(grant, socket)),
            }
        }
    })
}

/// Answers the upgrade; the grant that its path names.
async fn upgrade(socket: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    socket.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await?;
    let head = String::from_utf8_lossy(&head);
    Ok(head.split('/').nth(3).unwrap_or_default().to_owned())
}

/// Sends on what comes, frame by frame, until either side is gone. The frames are those of [`crate::sockets`].
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(READ);
    let mut frame = Vec::with_capacity(READ);
    while from.read_buf(&mut buffer).await? > 0 {
        while let [kind, _, high, low, mask @ ..] = &buffer[..]
            && let length = usize::from(u16::from_be_bytes([*high, *low]))
            && let Some((mask, payload)) = mask.split_first_chunk::<4>()
            && let Some(payload) = payload.get(..length)
        {
            frame.clear();
            frame.extend_from_slice(&[*kind, LONG, *high, *low]);
            frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
            buffer.drain(..HEADER + length);
            to.write_all(&frame).await?;
        }
    }
    Ok(())
}

/// As much as waits, usually one message.
const READ: usize = 4 * 1_024;
/// The length is in the next 16 bits.
const LONG: u8 = 126;
/// Kind, length, mask.
const HEADER: usize = 8;
