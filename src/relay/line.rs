//! One audio socket: what comes from it goes to the other seat, what waits for its seat goes out.
//!
//! One task does both, so that nothing is lost between two halves, and every wait in it can be cancelled at any time
//! (case 47). While the other side has not taken the last message, nothing is read here, and TCP tells the sender.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::frames::Frames;
use super::rate::Window;
use super::seats::{Ending, Forward, Place, Seats};
use super::{Limits, close};

/// Serves an upgraded connection to its end: from its seat, or with the code that it was refused one with. Returns the close
/// code that it ended with, for the log.
pub(super) async fn run<S>(stream: S, seats: &Seats, seat: Result<Place, u16>, limits: &Limits) -> u16
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stream = Frames::new(stream);
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config(limits))).await;
    let end = match seat {
        Ok(mut place) => {
            let end = carry(&mut socket, seats, &mut place, limits).await;
            // At once, before the goodbye: the other side need not wait for a slow one.
            seats.leave(&place);
            end
        }
        Err(code) => End::with(code),
    };
    let code = end.code();
    // Whatever a peer does with its end of the goodbye, the socket is gone after this.
    let _ = tokio::time::timeout(limits.close_wait, finish(&mut socket, end)).await;
    code
}

/// How a socket's time on its seat ended.
enum End {
    /// This side closes it.
    Ours(Ending),
    /// The peer sent a close frame. `whole`: nothing of an earlier message is still on its way out.
    Theirs { frame: Option<CloseFrame>, whole: bool },
    /// The connection broke.
    Gone,
}

/// Carries messages both ways until something ends it.
async fn carry<S>(socket: &mut WebSocketStream<Frames<S>>, seats: &Seats, place: &mut Place, limits: &Limits) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let most_bytes = limits.bytes_per_window();
    let mut sent = Window::default();
    let mut idle = pin!(tokio::time::sleep(limits.idle));
    let mut writing = false;
    let mut arrived: Option<Bytes> = None;
    let mut held: Option<Held> = None;
    loop {
        if !writing && let Some(message) = seats.next(place) {
            if socket.start_send_unpin(Message::Binary(message)).is_err() {
                return End::Gone;
            }
            writing = true;
        }
        if let Some(message) = arrived.take() {
            match seats.forward(place, &message) {
                Forward::Done | Forward::Stale => {}
                Forward::Full(room) => held = Some(Held { message, room: Box::pin(room), since: Instant::now() }),
            }
        }
        let message = tokio::select! {
            ending = &mut place.ended => return ending.map_or(End::Gone, End::Ours),
            step = step(socket, writing, held.is_none()) => match step {
                Step::Written(Ok(())) => {
                    writing = false;
                    continue;
                }
                Step::Written(Err(_)) => return End::Gone,
                Step::Part => None,
                Step::Read(Some(Ok(message))) => Some(message),
                Step::Read(Some(Err(error))) => return End::after(&error),
                Step::Read(None) => return End::Gone,
            },
            () = place.ready.notified(), if !writing => continue,
            () = room(&mut held), if held.is_some() => {
                if let Some(Held { message, since, .. }) = held.take() {
                    // The wait was not the sender's: neither is its silence, nor what has come together behind it.
                    let now = Instant::now();
                    idle.as_mut().reset(now + limits.idle);
                    sent.excuse(now - since);
                    arrived = Some(message);
                }
                continue;
            }
            () = &mut idle, if held.is_none() => return End::with(close::IDLE),
        };

        let now = Instant::now();
        idle.as_mut().reset(now + limits.idle);
        // A message counts its length when it is whole; each frame that it comes in counts at once.
        let unfinished = socket.get_mut().take() * OVERHEAD;
        let whole = message.as_ref().map_or(0, |message| message.len() as u64 + OVERHEAD);
        if !sent.admit(now, limits.window, unfinished + whole, most_bytes) {
            return End::with(close::TOO_FAST);
        }
        let Some(message) = message else { continue };
        match message {
            Message::Binary(message) if message.first().is_none_or(|first| *first == 0) => {
                return End::with(close::PROTOCOL);
            }
            Message::Binary(message) => arrived = Some(message),
            Message::Text(_) => return End::with(close::TEXT),
            Message::Close(frame) => return End::Theirs { frame, whole: !writing },
            // The library answers a ping on its next turn.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

/// A message that the other side has no room for yet.
struct Held {
    message: Bytes,
    room: Pin<Box<OwnedNotified>>,
    since: Instant,
}

async fn room(held: &mut Option<Held>) {
    match held {
        Some(held) => held.room.as_mut().await,
        None => std::future::pending().await,
    }
}

enum Step {
    Written(Result<(), Error>),
    /// Something came, and no message is whole.
    Part,
    Read(Option<Result<Message, Error>>),
}

/// Goes on writing and, unless reading is paused, reading. What is half done stays in the socket when this is dropped.
async fn step<S>(socket: &mut WebSocketStream<Frames<S>>, writing: bool, reading: bool) -> Step
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    std::future::poll_fn(|context| {
        if writing && let Poll::Ready(result) = socket.poll_flush_unpin(context) {
            return Poll::Ready(Step::Written(result));
        }
        if reading && let Poll::Ready(message) = socket.poll_next_unpin(context) {
            return Poll::Ready(Step::Read(message));
        }
        if socket.get_ref().has_come() {
            return Poll::Ready(Step::Part);
        }
        Poll::Pending
    })
    .await
}

/// Says goodbye as the end asks for, and reads on until the peer is gone: a socket closed with bytes unread would take
/// the close code back on its way.
async fn finish<S>(socket: &mut WebSocketStream<Frames<S>>, end: End) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match end {
        End::Gone => return Ok(()),
        End::Ours(Ending { rest, code }) => {
            // The library would send a pong that it owes behind the close. Where there was no room for it, the first time makes
            // some.
            socket.flush().await?;
            socket.flush().await?;
            for message in rest {
                socket.feed(Message::Binary(message)).await?;
            }
            let frame = CloseFrame { code: code.into(), reason: "".into() };
            socket.send(Message::Close(Some(frame))).await?;
            while let Some(Ok(message)) = socket.next().await {
                if message.is_close() {
                    break;
                }
            }
        }
        // The library would answer a frame without a code by one without; the contract says 1000.
        End::Theirs { frame: None, whole: true } => socket.get_mut().write_all(&CLOSE_NORMAL).await?,
        // Its answer is ready: the peer's own code, or 1002 for one that may not go on the wire.
        End::Theirs { .. } => socket.flush().await?,
    }
    let stream = socket.get_mut();
    stream.shutdown().await?;
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

impl End {
    fn with(code: u16) -> Self {
        Self::Ours(Ending { rest: VecDeque::new(), code })
    }

    /// What the WebSocket library makes of what came.
    fn after(error: &Error) -> Self {
        match error {
            Error::Capacity(_) => Self::with(close::TOO_BIG),
            Error::Utf8(_) => Self::with(close::TEXT),
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Self::Gone,
            Error::Protocol(_) => Self::with(close::PROTOCOL),
            _ => Self::Gone,
        }
    }

    /// The close code, where there was one; else 1005 or 1006, as a peer would see it.
    fn code(&self) -> u16 {
        match self {
            Self::Ours(ending) => ending.code,
            Self::Theirs { frame, .. } => frame.as_ref().map_or(1005, |frame| frame.code.into()),
            Self::Gone => 1006,
        }
    }
}

pub(super) fn config(limits: &Limits) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        // One message and its header, and as many pongs: a peer that pings and never reads is cut off by this.
        .max_write_buffer_size(2 * limits.message_bytes + READ_BUFFER)
        .max_message_size(Some(limits.message_bytes))
        .max_frame_size(Some(limits.message_bytes))
}

/// Most of what an open bridge holds in memory, twice, and the library clears it for each read. 20 ms of PCM fit in with
/// what waits behind them; a longer message gets the room it needs.
const READ_BUFFER: usize = 2 * 1_024;

/// Counted with each frame, for what goes around it on the wire.
pub(super) const OVERHEAD: u64 = 64;

/// A close frame with code 1000.
const CLOSE_NORMAL: [u8; 4] = [0x88, 2, 0x03, 0xE8];
