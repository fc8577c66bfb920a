//! JSON lines between the bridge and the plugin that spawned it (`plugin-stdio.md`).
//!
//! Reading and writing are threads of their own: a parent that does not read, or never writes, stops nothing else, and
//! the process can end while a read still waits.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroize;

use crate::engine::{ErrorCode, StartError};
use crate::secret::Secret;

/// What the plugin says.
pub enum FromParent {
    /// The first line.
    Open(Box<Open>),
    /// The answer to a `session_request`.
    Session(Box<Answer>),
    /// A `session_request` that failed.
    SessionFailed {
        /// The request's id.
        id: u64,
        /// What the Watch is to be told.
        error: StartError,
    },
    /// End the call and exit; also the end of input.
    Stop,
}

/// The first line: the grant and what may be used for it.
#[derive(Deserialize)]
pub struct Open {
    /// The protocol's version; 1.
    pub version: u64,
    /// The grant.
    pub grant: Grant,
    /// The engines the Watch may ask for, by their names on the wire.
    pub engines: Vec<String>,
    /// Where the host-wide slots are.
    #[serde(default)]
    pub slots: Slots,
    /// STUN servers, `stun:host:port`.
    #[serde(default)]
    pub stun: Vec<String>,
    /// Whether `stats` lines are wanted.
    #[serde(default)]
    pub stats: bool,
}

/// One grant as the host holds it.
#[derive(Deserialize)]
pub struct Grant {
    /// 22 base64url characters.
    pub id: String,
    /// The root key, base64url.
    pub key: Secret,
    /// `https://`, or `http://` on loopback.
    pub relay_url: String,
    /// The gateway's bearer at the relay.
    pub credential: Secret,
    /// Seconds until the grant expires.
    pub expires_in_s: f64,
}

/// The host-wide slots.
#[derive(Debug, Default, Deserialize)]
pub struct Slots {
    /// The folder of the lock files; absent means the per-user default.
    pub dir: Option<std::path::PathBuf>,
    /// How many sessions may run on this host, at most [`MOST_SLOTS`]; absent means 4.
    pub max: Option<usize>,
}

/// A `session` line. Which fields it has depends on the engine asked for.
#[derive(Deserialize)]
pub struct Answer {
    /// The request's id.
    pub id: u64,
    /// GPT-Live: the SDP answer.
    pub sdp: Option<String>,
    /// Grok: the realtime WebSocket.
    pub url: Option<String>,
    /// Grok: its bearer.
    pub bearer: Option<Secret>,
    /// Grok: the model.
    pub model: Option<String>,
    /// The voice that speaks.
    pub voice: Option<String>,
    /// GPT-Live: the briefing joined the instructions.
    #[serde(default)]
    pub briefing_applied: bool,
    /// GPT-Live: the greeting is taken care of.
    #[serde(default)]
    pub greeting_applied: bool,
}

/// Why a line ends the process (exit code 2). Never shows the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// Not JSON, or not an object.
    #[error("a line on stdin is not a JSON object")]
    NotAnObject,
    /// Over 1 MiB.
    #[error("a line on stdin is longer than 1 MiB")]
    TooLong,
    /// An `open` line without its fields.
    #[error("the open line lacks a field or has one of the wrong type")]
    BadOpen,
    /// An `open` line with more slots than can be looked through at each start.
    #[error("slots.max of the open line is above {MOST_SLOTS}")]
    TooManySlots,
}

/// Reads lines until the end of input, then says `Stop`; a bad line is the last thing said. After a `stop` line an answer
/// that is owed may still come.
pub fn read(input: impl Read + Send + 'static) -> mpsc::Receiver<Result<FromParent, BadLine>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            let (said, over) = match read_line(&mut input, &mut line) {
                Ok(true) => (parse(&line).transpose(), false),
                Ok(false) => (Some(Ok(FromParent::Stop)), true),
                Err(error) => (Some(Err(error)), true),
            };
            line.zeroize();
            let Some(said) = said else { continue };
            let last = over || said.is_err();
            if sender.blocking_send(said).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// Reads one line without its newline; `false` at the end of input. An input that fails has ended.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, BadLine> {
    let limit = MAX_LINE as u64 + 1;
    match input.take(limit).read_until(b'\n', line) {
        Ok(0) | Err(_) => Ok(false),
        Ok(_) if line.last() == Some(&b'\n') => {
            line.pop();
            Ok(true)
        }
        Ok(_) if line.len() > MAX_LINE => Err(BadLine::TooLong),
        Ok(_) => Ok(true),
    }
}

/// Reads one line; `None` for what is to be ignored.
fn parse(line: &[u8]) -> Result<Option<FromParent>, BadLine> {
    let fields: Map<String, Value> = serde_json::from_slice(line).map_err(|_| BadLine::NotAnObject)?;
    let id = fields.get("id").and_then(Value::as_u64);
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    Ok(match (text("type"), id) {
        (Some("open"), _) => {
            let open: Open = serde_json::from_value(Value::Object(fields)).map_err(|_| BadLine::BadOpen)?;
            if open.slots.max.is_some_and(|max| max > MOST_SLOTS) {
                return Err(BadLine::TooManySlots);
            }
            Some(FromParent::Open(Box::new(open)))
        }
        (Some("session"), Some(id)) => Some(match serde_json::from_value(Value::Object(fields)) {
            Ok(answer) => FromParent::Session(Box::new(answer)),
            Err(_) => FromParent::SessionFailed { id, error: unusable_answer() },
        }),
        (Some("session_failed"), Some(id)) => {
            let code = text("code").and_then(ErrorCode::parse).unwrap_or(ErrorCode::Failed);
            let message = text("message").map_or_else(|| "The sign-in failed.".into(), sentence);
            Some(FromParent::SessionFailed { id, error: StartError::new(code, message) })
        }
        (Some("stop"), _) => Some(FromParent::Stop),
        _ => None,
    })
}

/// Any bytes from the plugin: lines to the end of them, and what each leads to.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(mut input: &[u8]) {
    let mut line = Vec::new();
    while let Ok(true) = read_line(&mut input, &mut line) {
        match parse(&line) {
            Ok(Some(FromParent::Open(open))) => {
                if let (Ok(grant), Ok(_)) = (open.grant.id.parse(), crate::seal::Root::parse(open.grant.key.expose())) {
                    let _ = crate::bridge::link::Target::host(&open.grant.relay_url, &grant, &open.grant.credential);
                }
            }
            Ok(Some(FromParent::SessionFailed { error, .. })) => {
                assert!(error.message.len() <= 4 * MAX_SENTENCE && !error.message.contains(char::is_control));
            }
            _ => {}
        }
        line.clear();
    }
    assert!(line.len() <= MAX_LINE + 1);
}

/// What the Watch is told when the plugin's answer cannot be used.
pub(crate) fn unusable_answer() -> StartError {
    StartError::new(ErrorCode::Failed, "The host's sign-in gave an answer that cannot be used.")
}

/// A short sentence for a person: no control characters, and not longer than one.
fn sentence(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_SENTENCE).collect()
}

/// Writes lines; the only owner of the protocol's output.
pub struct Writer {
    lines: mpsc::Sender<Vec<u8>>,
    done: oneshot::Receiver<()>,
}

/// The parent closed its end, or has not read for 256 lines.
#[derive(Debug, thiserror::Error)]
#[error("the parent does not read our lines")]
pub struct ParentGone;

impl Writer {
    /// Writes to `output`, one write a line.
    pub fn new(mut output: impl Write + Send + 'static) -> Self {
        let (lines, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING_LINES);
        let (finished, done) = oneshot::channel();
        thread::spawn(move || {
            while let Some(line) = waiting.blocking_recv() {
                if write(&mut output, &line).is_err() {
                    return;
                }
            }
            // Whoever waits may have given up already.
            let _ = finished.send(());
        });
        Self { lines, done }
    }

    /// A writer whose lines a test reads, without a thread: a thread would not keep virtual time.
    #[cfg(test)]
    pub(crate) fn to_test() -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (lines, receiver) = mpsc::channel(WAITING_LINES);
        (Self { lines, done: oneshot::channel().1 }, receiver)
    }

    /// Queues one line.
    ///
    /// # Errors
    /// When the parent does not read.
    pub fn send(&self, line: &Value) -> Result<(), ParentGone> {
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        self.lines.try_send(bytes).map_err(|_| ParentGone)
    }

    /// Queues one line unless half the room is taken: for figures that the next ones replace.
    pub fn send_if_read(&self, line: &Value) {
        if self.lines.capacity() > WAITING_LINES / 2 {
            // A parent that is gone is noticed by the lines that matter.
            let _ = self.send(line);
        }
    }

    /// Waits until everything is written, at most `limit`.
    pub async fn finish(self, limit: Duration) {
        drop(self.lines);
        // Late or gone: there is nobody left to tell.
        let _ = tokio::time::timeout(limit, self.done).await;
    }
}

fn write(output: &mut impl Write, line: &[u8]) -> io::Result<()> {
    output.write_all(line)?;
    output.flush()
}

/// `plugin-stdio.md`: at most 1 MiB a line.
const MAX_LINE: usize = 1 << 20;

/// Each start may have to look at all of them.
pub const MOST_SLOTS: usize = 1_024;

/// Lines read ahead of the bridge; it takes them at once, so this is only room for a burst.
const READ_AHEAD: usize = 16;

/// Lines that wait for the parent. It writes a few per call and one a second with `stats`.
const WAITING_LINES: usize = 256;

/// Characters of a sentence that goes on to the Watch.
const MAX_SENTENCE: usize = 300;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;

    fn all(input: &[u8]) -> Vec<Result<FromParent, BadLine>> {
        let mut lines = read(io::Cursor::new(input.to_vec()));
        std::iter::from_fn(|| lines.blocking_recv()).collect()
    }

    #[test]
    fn end_of_input_means_stop() {
        assert!(matches!(all(b"")[..], [Ok(FromParent::Stop)]));
        assert!(matches!(all(b"{\"type\":\"news\"}\n{}\n")[..], [Ok(FromParent::Stop)]), "unknown types are ignored");
    }

    #[test]
    fn what_is_not_an_object_is_the_last_line() {
        for bad in [&b"[]\n{\"type\":\"stop\"}\n"[..], b"\n", b"hello\n", b"{\"a\":\n", b"\xff\xfe\n", b"\"text\"\n"] {
            assert!(matches!(all(bad)[..], [Err(BadLine::NotAnObject)]));
        }
        assert!(matches!(all(b"{\"type\":\"open\"}\n")[..], [Err(BadLine::BadOpen)]));
    }

    #[test]
    fn slots_have_a_bound() {
        let open = |max: u64| {
            let grant = json!({"id": "", "key": "", "relay_url": "", "credential": "", "expires_in_s": 60});
            let open = json!({"type": "open", "version": 1, "grant": grant, "engines": [], "slots": {"max": max}});
            all(format!("{open}\n").as_bytes()).swap_remove(0)
        };
        assert!(matches!(open(MOST_SLOTS as u64), Ok(FromParent::Open(_))));
        for max in [MOST_SLOTS as u64 + 1, u64::MAX] {
            assert!(matches!(open(max), Err(BadLine::TooManySlots)), "{max}");
        }
    }

    #[test]
    fn a_line_has_a_bound() {
        let mut line = format!("{{\"type\":\"news\",\"text\":\"{}\"}}", "x".repeat(MAX_LINE - 25)).into_bytes();
        assert_eq!(line.len(), MAX_LINE);
        line.push(b'\n');
        assert!(matches!(all(&line)[..], [Ok(FromParent::Stop)]));
        line.insert(5, b' ');
        assert!(matches!(all(&line)[..], [Err(BadLine::TooLong)]));
    }

    #[test]
    fn a_failed_session_keeps_code_and_message() {
        let said =
            all(b"{\"type\":\"session_failed\",\"id\":3,\"code\":\"rate_limited\",\"message\":\"Not now.\\n\"}\n");
        let Ok(FromParent::SessionFailed { id: 3, error }) = &said[0] else { panic!() };
        assert_eq!(*error, StartError::new(ErrorCode::RateLimited, "Not now."));
        let said = all(b"{\"type\":\"session\",\"id\":4,\"sdp\":17}\n");
        assert!(matches!(&said[0], Ok(FromParent::SessionFailed { id: 4, error }) if error.code == ErrorCode::Failed));
    }

    /// An output that keeps each write apart.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn case_58_one_write_for_each_line() {
        let writes = Writes::default();
        let writer = Writer::new(writes.clone());
        for n in 0..100 {
            writer.send(&json!({"type": "stats", "n": n, "text": "line\nbreak"})).unwrap();
        }
        writer.finish(Duration::from_secs(5)).await;
        let writes = writes.0.lock().unwrap();
        assert_eq!(writes.len(), 100);
        for (n, line) in writes.iter().enumerate() {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let line: Value = serde_json::from_slice(line).unwrap();
            assert_eq!(line["n"], n);
        }
    }

    #[tokio::test]
    async fn a_parent_that_does_not_read_is_noticed() {
        /// An output whose pipe is full for good.
        struct Stuck;
        impl Write for Stuck {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                loop {
                    thread::park();
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writer = Writer::new(Stuck);
        let line = json!({"type": "stats"});
        let sent = (0..2 * WAITING_LINES).take_while(|_| writer.send(&line).is_ok()).count();
        assert!((WAITING_LINES..=WAITING_LINES + 1).contains(&sent), "{sent}");
        writer.finish(Duration::from_millis(10)).await;
    }
}
