//! A helper as a process that speaks frames on stdin and stdout (`helper-stdio.md`), whoever wrote it.

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::Failed;
use crate::subject::Subject;

/// A frame from the helper, and when it was read.
#[derive(Debug)]
pub struct Output {
    /// When its last byte was read.
    pub at: Instant,
    /// One of `O R p e X`.
    pub kind: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// A running helper. Dropping it kills it.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    /// The frames that it writes.
    pub output: Receiver<Output>,
}

impl Helper {
    /// Starts it, and gives its stdin with it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(subject: &Subject) -> Result<(Self, ChildStdin), Failed> {
        let mut child = subject
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failed::to("start the helper"))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, output) = sync_channel(QUEUE);
        std::thread::spawn(move || {
            while let Some(frame) = read(&mut stdout) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        Ok((Self { child, output }, stdin))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next frame of `kind`, passing over sound and text.
    ///
    /// # Errors
    /// When the helper ends or takes longer than [`PATIENCE`].
    pub fn expect(&self, kind: u8) -> Result<Output, Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(frame) if frame.kind == kind => return Ok(frame),
                Ok(frame) if frame.kind == b'X' => return Err(Failed("the helper ended the call".to_owned())),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failed(format!("no {} within {PATIENCE:?}", char::from(kind))));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Failed("the helper closed its stdout".to_owned())),
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes one frame to a helper.
///
/// # Errors
/// When the helper no longer reads.
pub fn write(stdin: &mut ChildStdin, kind: u8, payload: &[u8]) -> Result<(), Failed> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    frame.extend_from_slice(payload);
    stdin.write_all(&frame).map_err(Failed::to("write to the helper"))
}

fn read(stdout: &mut impl Read) -> Option<Output> {
    let mut header = [0; 5];
    stdout.read_exact(&mut header).ok()?;
    let [kind, length @ ..] = header;
    let mut payload = vec![0; (u32::from_be_bytes(length) as usize).min(MAX_PAYLOAD)];
    stdout.read_exact(&mut payload).ok()?;
    Some(Output { at: Instant::now(), kind, payload })
}

/// For the offer, and from the answer to the connection: a cold Python on a busy machine takes its time.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The most that the protocol allows.
const MAX_PAYLOAD: usize = 1 << 20;
/// Frames read and not yet looked at: twenty seconds of sound.
const QUEUE: usize = 1_000;
