//! The WebRTC helper's frames on stdin and stdout (`helper-stdio.md`): one ASCII kind byte, a `u32` big-endian length of
//! at most 1 MiB, the payload.
//!
//! Both directions have a thread of their own. A frame is read and written whole there, so the call's task can stop
//! waiting for one at any time without tearing it, and neither pipe ever holds the call up.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

/// One frame, either way.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// The kind: `C A P E Q` from the plugin, `O R p e X` to it.
    pub kind: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than [`MAX_PAYLOAD`].
    #[error("a frame is longer than 1 MiB")]
    TooLong,
    /// The input ended inside a frame.
    #[error("the input ended inside a frame")]
    Torn,
    /// The input cannot be read.
    #[error("the input cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Reads one frame; `None` at the end of the input.
///
/// # Errors
/// Nothing can be read after any of them.
pub fn read_frame(input: &mut (impl Read + ?Sized)) -> Result<Option<Frame>, FrameError> {
    let mut kind = [0];
    loop {
        match input.read(&mut kind) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut length = [0; 4];
    input.read_exact(&mut length).map_err(torn)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLong);
    }
    let mut payload = vec![0; length];
    input.read_exact(&mut payload).map_err(torn)?;
    Ok(Some(Frame { kind: kind[0], payload }))
}

/// Any bytes from the plugin: frames to the end of them, and each as the configuration it may be.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(mut input: &[u8]) {
    let mut before = input.len();
    while let Ok(Some(frame)) = read_frame(&mut input) {
        assert_eq!(before - input.len(), 5 + frame.payload.len(), "each byte belongs to one frame");
        before = input.len();
        super::helper::fuzz(&frame.payload);
        let mut again = Vec::new();
        encode(&frame, &mut again);
        let read = read_frame(&mut again.as_slice());
        assert!(read.is_ok_and(|read| read.as_ref() == Some(&frame)));
    }
}

fn torn(error: io::Error) -> FrameError {
    if error.kind() == ErrorKind::UnexpectedEof { FrameError::Torn } else { FrameError::Read(error) }
}

/// Reads frames on a thread until the input ends or fails; then the channel closes after what was last sent. At most 64
/// frames wait, then the pipe holds the other side back. The receiving end is cancel safe.
///
/// # Errors
/// When no thread can be had.
pub fn spawn_reader(mut input: impl Read + Send + 'static) -> io::Result<mpsc::Receiver<Result<Frame, FrameError>>> {
    let (frames, receiver) = mpsc::channel(MAX_UNREAD);
    std::thread::Builder::new().name("frames-in".into()).spawn(move || {
        loop {
            let frame = match read_frame(&mut input) {
                Ok(Some(frame)) => Ok(frame),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let last = frame.is_err();
            if frames.blocking_send(frame).is_err() || last {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// The one owner of the output. Frames leave in order, each in one write. Sound that the other side does not take is
/// dropped, the oldest first, past two seconds of it; nothing else is.
pub struct FrameWriter {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    written: Condvar,
    queued: Condvar,
    broken: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Frame>,
    sound: usize,
    dropped: u64,
    writing: bool,
    broken: bool,
    finished: bool,
}

impl FrameWriter {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn spawn(output: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        std::thread::Builder::new().name("frames-out".into()).spawn(move || writer.run(output))?;
        Ok(Self { shared })
    }

    /// Queues a frame. Payloads over 1 MiB cannot be framed and are left out.
    pub fn send(&self, kind: u8, payload: impl Into<Vec<u8>>) {
        let frame = Frame { kind, payload: payload.into() };
        let mut state = self.shared.lock();
        if state.broken || state.finished || frame.payload.len() > MAX_PAYLOAD {
            return;
        }
        if kind == SOUND {
            if state.sound == MAX_SOUND
                && let Some(oldest) = state.waiting.iter().position(|frame| frame.kind == SOUND)
            {
                state.waiting.remove(oldest);
                state.sound -= 1;
                state.dropped += 1;
            }
            state.sound += 1;
        }
        state.waiting.push_back(frame);
        if state.waiting.len() > MAX_WAITING {
            // Nobody reads, and this can not be shed: as good as a closed output.
            state.broken = true;
            self.shared.broken.notify_one();
        }
        drop(state);
        self.shared.queued.notify_one();
    }

    /// Frames of sound that were dropped.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// Waits until the other side no longer reads. Cancel safe.
    pub async fn broken(&self) {
        loop {
            if self.shared.lock().broken {
                return;
            }
            self.shared.broken.notified().await;
        }
    }

    /// Waits until everything queued is written, or for `limit`; nothing is written afterwards.
    pub fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        while !(state.waiting.is_empty() && !state.writing || state.broken) {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                break;
            };
            state = self.shared.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.finished = true;
        drop(state);
        self.shared.queued.notify_one();
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        self.shared.lock().finished = true;
        self.shared.queued.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut output: impl Write) {
        let mut bytes = Vec::new();
        while let Some(frame) = self.take() {
            encode(&frame, &mut bytes);
            let written = output.write_all(&bytes).and_then(|()| output.flush());
            let mut state = self.lock();
            state.writing = false;
            if written.is_err() {
                state.broken = true;
                self.broken.notify_one();
            }
            let over = state.broken;
            drop(state);
            self.written.notify_all();
            if over {
                return;
            }
        }
    }

    fn take(&self) -> Option<Frame> {
        let mut state = self.lock();
        loop {
            if state.finished {
                return None;
            }
            if let Some(frame) = state.waiting.pop_front() {
                state.sound -= usize::from(frame.kind == SOUND);
                state.writing = true;
                return Some(frame);
            }
            state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn encode(frame: &Frame, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.push(frame.kind);
    bytes.extend_from_slice(&(frame.payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&frame.payload);
}

/// The longest payload of a frame.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Model sound, the one kind that may be dropped.
const SOUND: u8 = b'p';

/// Frames from the plugin that may wait to be taken.
const MAX_UNREAD: usize = 64;

/// Sound that may wait for a plugin that does not read: two seconds, 20 ms a frame, as toward a slow Watch.
const MAX_SOUND: usize = 100;

/// A plugin that left this many frames lying is gone.
const MAX_WAITING: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn framed(frames: &[Frame]) -> Vec<u8> {
        let mut all = Vec::new();
        for frame in frames {
            let mut bytes = Vec::new();
            encode(frame, &mut bytes);
            all.extend(bytes);
        }
        all
    }

    fn frame(n: usize) -> Frame {
        Frame { kind: b"CAPEQ"[n % 5], payload: (0..n % 40).map(|i| (n + i) as u8).collect() }
    }

    /// Gives one byte at a time.
    struct Dribble(VecDeque<u8>);

    impl Read for Dribble {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                Some(byte) => {
                    buffer[0] = byte;
                    Ok(1)
                }
                None => Ok(0),
            }
        }
    }

    #[tokio::test]
    async fn case_47_a_reader_that_is_interrupted_all_the_time_loses_nothing() {
        let sent: Vec<Frame> = (0..10_000).map(frame).collect();
        let mut frames = spawn_reader(Dribble(framed(&sent).into())).unwrap();
        let mut ticker = tokio::time::interval(Duration::from_millis(1));
        let mut received = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = ticker.tick() => {}
                frame = frames.recv() => match frame {
                    Some(frame) => received.push(frame.unwrap()),
                    None => break,
                },
            }
        }
        assert!(received == sent);
    }

    #[test]
    fn what_cannot_be_a_frame_is_an_error() {
        let mut long = vec![b'P'];
        long.extend((MAX_PAYLOAD as u32 + 1).to_be_bytes());
        assert!(matches!(read_frame(&mut &long[..]), Err(FrameError::TooLong)));
        assert!(matches!(read_frame(&mut &b"P\0\0"[..]), Err(FrameError::Torn)));
        assert!(matches!(read_frame(&mut &b"P\0\0\0\x02x"[..]), Err(FrameError::Torn)));
        assert!(matches!(read_frame(&mut &b""[..]), Ok(None)));
        let longest = framed(&[Frame { kind: b'E', payload: vec![7; MAX_PAYLOAD] }]);
        assert!(read_frame(&mut &longest[..]).unwrap().is_some());
    }

    /// An output that says what each write held, and waits for leave before each.
    struct Slow(Sender<Vec<u8>>, Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.recv().map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
            self.0.send(bytes.to_vec()).map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn case_58_two_senders_and_every_frame_is_one_write() {
        let (written, writes) = channel();
        let (leave, leaves) = channel();
        for _ in 0..20_000 {
            leave.send(()).unwrap();
        }
        let writer = FrameWriter::spawn(Slow(written, leaves)).unwrap();
        std::thread::scope(|scope| {
            for sender in 0..2u8 {
                let writer = &writer;
                scope.spawn(move || {
                    for n in 0..10_000u32 {
                        while writer.shared.lock().waiting.len() > MAX_WAITING / 2 {
                            std::thread::yield_now();
                        }
                        writer.send(b'e', [&[sender][..], &n.to_be_bytes()].concat());
                    }
                });
            }
        });
        writer.finish(Duration::from_secs(20));
        let mut next = [0u32; 2];
        for write in writes.try_iter() {
            let read = read_frame(&mut &write[..]).unwrap().unwrap();
            let sender = usize::from(read.payload[0]);
            assert_eq!(read.payload[1..], next[sender].to_be_bytes());
            assert_eq!(write.len(), 5 + read.payload.len(), "one write, one frame");
            next[sender] += 1;
        }
        assert_eq!(next, [10_000; 2]);
    }

    #[test]
    fn only_old_sound_is_dropped_for_a_plugin_that_does_not_read() {
        let (written, writes) = channel();
        let (leave, leaves) = channel();
        let writer = FrameWriter::spawn(Slow(written, leaves)).unwrap();
        writer.send(b'R', []);
        for n in 0..200u8 {
            writer.send(b'p', [n]);
            assert!(n >= 100 || writer.dropped() == 0, "two seconds are kept");
        }
        writer.send(b'e', *b"{}");
        leave.send(()).unwrap();
        for _ in 0..200 {
            let _ = leave.send(());
        }
        writer.finish(Duration::from_secs(10));
        let kinds: Vec<u8> = writes.try_iter().map(|write| write[0]).collect();
        assert_eq!((kinds[0], kinds.last().copied()), (b'R', Some(b'e')));
        assert_eq!(kinds.iter().filter(|kind| **kind == b'p').count() as u64 + writer.dropped(), 200);
        assert!(writer.dropped() >= 99, "{}", writer.dropped());
    }

    #[tokio::test]
    async fn a_closed_output_is_noticed() {
        let (written, writes) = channel();
        let (leave, leaves) = channel();
        drop(writes);
        leave.send(()).unwrap();
        let writer = FrameWriter::spawn(Slow(written, leaves)).unwrap();
        writer.send(b'R', []);
        tokio::time::timeout(Duration::from_secs(10), writer.broken()).await.unwrap();
        writer.finish(Duration::from_secs(10));
    }
}
