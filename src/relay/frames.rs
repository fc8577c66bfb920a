//! The frames of a connection, as they come. The WebSocket library tells of whole messages only, and a message may go on for
//! ever in fragments that hold nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose incoming frames are looked at on their way to the library.
#[derive(Debug)]
pub(super) struct Frames<S> {
    stream: S,
    /// The frame's header, as far as it has come.
    header: [u8; LONGEST_HEADER],
    header_length: usize,
    /// What is to come of the frame's payload.
    payload: u64,
    came: Option<u64>,
}

impl<S> Frames<S> {
    /// A connection whose next byte begins a frame.
    pub(super) fn new(stream: S) -> Self {
        Self { stream, header: [0; LONGEST_HEADER], header_length: 0, payload: 0, came: None }
    }

    /// Whether anything has come since [`Frames::take`].
    pub(super) fn has_come(&self) -> bool {
        self.came.is_some()
    }

    /// How many frames have come since the last time that end no message.
    pub(super) fn take(&mut self) -> u64 {
        self.came.take().unwrap_or_default()
    }

    /// Looks at what came (RFC 6455 section 5.2). What is no frame is for the library to find.
    fn look(&mut self, mut bytes: &[u8]) {
        let came = self.came.get_or_insert_default();
        loop {
            let skipped = bytes.len().min(usize::try_from(self.payload).unwrap_or(usize::MAX));
            self.payload -= skipped as u64;
            let Some((byte, rest)) = bytes[skipped..].split_first() else { return };
            bytes = rest;
            self.header[self.header_length] = *byte;
            self.header_length += 1;
            let [first, second, extended @ ..] = self.header;
            let mask = if second & 0x80 == 0 { 0 } else { 4 };
            let short = u64::from(second & 0x7F);
            let [a, b, c, d, e, f, g, h, ..] = extended;
            let (length, payload) = match short {
                126 => (4, u16::from_be_bytes([a, b]).into()),
                127 => (10, u64::from_be_bytes([a, b, c, d, e, f, g, h])),
                short => (2, short),
            };
            if self.header_length >= 2 && self.header_length == length + mask {
                *came += u64::from(first & 0x80 == 0);
                (self.header_length, self.payload) = (0, payload);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Frames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.look(bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Frames<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Two bytes, eight of length and four of mask.
const LONGEST_HEADER: usize = 14;

#[cfg(test)]
mod tests {
    use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

    use super::*;

    /// A header as the library writes it, and its payload.
    fn frame(is_final: bool, mask: Option<[u8; 4]>, payload: usize) -> Vec<u8> {
        let header = FrameHeader { is_final, mask, opcode: OpCode::Data(Data::Continue), ..FrameHeader::default() };
        let mut frame = Vec::new();
        header.format(payload as u64, &mut frame).unwrap();
        frame.resize(frame.len() + payload, 0);
        frame
    }

    #[test]
    fn nothing_has_come_until_something_does() {
        let mut frames = Frames::new(());
        assert!(!frames.has_come());
        frames.look(&[0]);
        assert!(frames.has_come(), "the first byte of a header");
        assert_eq!((frames.take(), frames.has_come()), (0, false));
        frames.look(&[0]);
        assert_eq!((frames.take(), frames.take()), (1, 0));
    }

    #[test]
    fn a_length_without_end_is_waited_for() {
        let mut frames = Frames::new(());
        frames.look(&[&[2, 127][..], &[0xFF; 8]].concat());
        frames.look(&[0; 100]);
        assert_eq!(frames.take(), 1, "what follows is its payload");
    }

    proptest::proptest! {
        /// However the bytes come, each unfinished frame is counted once.
        #[test]
        fn unfinished_frames_are_counted_in_whatever_pieces_they_come(
            said: Vec<(bool, Option<[u8; 4]>, proptest::sample::Index)>,
            piece in 1_usize..3_000,
        ) {
            let lengths = [0, 1, 125, 126, 127, 2_000, 65_535, 65_536];
            let bytes: Vec<u8> = said.iter().flat_map(|(end, mask, of)| frame(*end, *mask, *of.get(&lengths))).collect();
            let mut frames = Frames::new(());
            bytes.chunks(piece).for_each(|piece| frames.look(piece));
            let unfinished = said.iter().filter(|(end, ..)| !end).count();
            assert_eq!(frames.take(), unfinished as u64);
            assert_eq!((frames.header_length, frames.payload), (0, 0));
        }
    }
}
