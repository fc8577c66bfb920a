//! A simulated Grok: the realtime WebSocket of `engines.md` section 4.
//!
//! Replies come from the script, all their audio in a burst; speech is heard by level; on speech the running reply is
//! stopped and the service says so, or does one of the stranger things it was seen to do.

mod model;
mod reply;
mod serve;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use watch_audio::secret::Secret;

use super::record::{Event, Heard};
use super::script::Script;

/// How the simulator behaves. The defaults are a service in good health.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The port on loopback; 0 takes a free one.
    pub port: u16,
    /// The only bearer let in; without it any is.
    pub bearer: Option<Secret>,
    /// What it says and does with what it hears.
    #[serde(skip)]
    pub script: Script,
    /// How many times faster than real time a reply's audio comes.
    pub pace: f64,
    /// The length of one audio delta.
    pub delta_ms: u32,
    /// From the end of speech as the service knows it to the first of the reply.
    pub think_ms: u64,
    /// The period of the service's `ping` events; 0 for none.
    pub ping_ms: u64,
    /// What becomes of `conversation.item.truncate`.
    pub truncate: Truncate,
    /// What becomes of a reply the user speaks over.
    pub interruption: Interruption,
    /// The events at the beginning (case 43).
    pub opening: Opening,
    /// The strange things the service was seen to do.
    pub quirks: Quirks,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            bearer: None,
            script: Script::default(),
            pace: 10.0,
            delta_ms: 200,
            think_ms: 300,
            ping_ms: 10_000,
            truncate: Truncate::Ok,
            interruption: Interruption::Cancelled,
            opening: Opening::Full,
            quirks: Quirks::default(),
            faults: Faults::default(),
        }
    }
}

/// What becomes of `conversation.item.truncate` (`engines.md` 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncate {
    /// Answered at once with what was heard; an error when it goes past the item's audio.
    Ok,
    /// Answered, but only once no reply is running.
    Late,
    /// Never answered.
    Silent,
    /// Refused as an unknown event.
    Error,
}

/// What becomes of a reply the user speaks over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interruption {
    /// It ends with `response.done`, status `cancelled`.
    Cancelled,
    /// It ends with `response.done`, status `incomplete`.
    Incomplete,
    /// Nothing more comes of it, not even its end.
    Nothing,
    /// Five more of its deltas come, then its end (case 39).
    LateDeltas,
    /// As `LateDeltas`, and one more of its deltas comes in the middle of the next reply.
    Straggler,
    /// Its end comes before `speech_started`, as the local server orders it (`engines.md` 5.1).
    DoneFirst,
}

/// The events at the beginning (case 43).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    /// `session.created`, `conversation.created`; later `session.updated`.
    Full,
    /// Nothing until `session.updated`.
    UpdatedOnly,
    /// `conversation.created` alone, then `session.updated`.
    ConversationOnly,
    /// No `session.updated` ever.
    NeverUpdated,
}

/// The strange things the service was seen to do (`engines.md` 4.4), each off by default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quirks {
    /// `response.audio.delta` and `response.audio_transcript.delta` instead of today's names.
    pub old_names: bool,
    /// Replies without `response.created` and items: the first delta is the first of them (case 43).
    pub no_response_created: bool,
    /// The transcription completes several times, each with more of the text.
    pub repeated_transcription: bool,
    /// Speech after a pause goes on under the same item.
    pub same_item: bool,
    /// A response is begun and abandoned, without an end, before the real one.
    pub abandoned_response: bool,
    /// `previous_item_id` names an item never announced.
    pub unknown_previous_item: bool,
    /// `conversation.item.added` comes twice for a function call.
    pub double_function_item: bool,
    /// `conversation.item.deleted` with an empty id comes before each reply.
    pub empty_deletion: bool,
    /// `status_details` is the text `unimplemented`.
    pub status_details_text: bool,
    /// `usage` stands at the top of `response.done`.
    pub usage_on_top: bool,
    /// The voice is echoed as `xai_…`.
    pub voice_prefix: bool,
    /// Deltas are cut in the middle of a sample: one byte more, one byte less (case 7).
    pub odd_deltas: bool,
}

/// What goes wrong, and when. Times run from the open socket.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// The upgrade is refused with this status.
    pub http_status: Option<u16>,
    /// The upgrade is answered so late.
    pub answer_after_ms: u64,
    /// The delta of each reply with this number, counted from 0, is not base64.
    pub broken_base64: Option<usize>,
    /// `error` of type `max_duration`, then a close.
    pub max_duration_after_ms: Option<u64>,
    /// A close frame without code or reason.
    pub close_after_ms: Option<u64>,
    /// The TCP connection ends without a close frame.
    pub drop_after_ms: Option<u64>,
    /// Nothing is said or read any more, and the connection stays.
    pub vanish_after_ms: Option<u64>,
    /// Texts sent as they are: unknown events, what is not JSON, errors, a `speech_started` out of nothing.
    pub inject: Vec<Injection>,
}

/// A text sent at a given time.
#[derive(Clone, Deserialize)]
pub struct Injection {
    /// When.
    pub after_ms: u64,
    /// What.
    pub text: String,
}

impl std::fmt::Debug for Injection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injection").field("after_ms", &self.after_ms).finish_non_exhaustive()
    }
}

/// What happened in one connection.
#[derive(Debug, Clone)]
pub struct Session {
    /// When the upgrade was asked for.
    pub at: Instant,
    /// The status it was answered with: 101 when it was let in.
    pub status: u16,
    /// The `model` of the query.
    pub model: Option<String>,
    /// The bearer that came.
    pub bearer: Option<Secret>,
    /// When the connection was over, and how: a close code, 1005 for none, 1006 for a lost connection.
    pub ended: Option<(Instant, u16)>,
    /// All events received but `input_audio_buffer.append`.
    pub received: Vec<Event>,
    /// All events sent but audio deltas, at the instant they were handed to the writer.
    pub sent: Vec<Event>,
    /// Samples appended.
    pub samples: u64,
    /// Appends, and those among them whose audio was cut in the middle of a sample or was not base64.
    pub appends: u64,
    /// See `appends`.
    pub bad_appends: u64,
    /// When the first audio came.
    pub first_append: Option<Instant>,
    /// When `session.updated` was sent.
    pub updated: Option<Instant>,
    /// Speech heard.
    pub heard: Vec<Heard>,
    /// Replies spoken.
    pub replies: Vec<Reply>,
    /// Truncations asked for.
    pub truncates: Vec<TruncateSeen>,
}

/// One spoken reply.
#[derive(Clone)]
pub struct Reply {
    /// Its response.
    pub response: String,
    /// Its item.
    pub item: String,
    /// Its words.
    pub text: String,
    /// When its first audio was sent.
    pub first_audio: Option<Instant>,
    /// When its last audio so far was sent.
    pub last_audio: Option<Instant>,
    /// Samples sent, at 24 kHz.
    pub samples: u64,
    /// Samples it has in all.
    pub total: u64,
    /// When it was stopped because the user spoke or the client cancelled it.
    pub stopped: Option<Instant>,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("item", &self.item).field("samples", &self.samples).finish_non_exhaustive()
    }
}

/// A `conversation.item.truncate` received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruncateSeen {
    /// When.
    pub at: Instant,
    /// The item.
    pub item: String,
    /// `audio_end_ms`.
    pub ms: u64,
    /// Its `event_id`.
    pub event_id: Option<String>,
    /// The audio of that item sent by then, in ms; none for an unknown item.
    pub sent_ms: Option<u64>,
}

/// A running simulator. Dropping it ends it.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    sessions: Sessions,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Simulator {
    /// Starts listening.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub async fn start(options: Options) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let address = listener.local_addr()?;
        let sessions = Sessions::default();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve::listen(listener, Arc::new(options), sessions.clone(), stopped));
        Ok(Self { address, sessions, stop, task })
    }

    /// The realtime URL, without the model.
    pub fn url(&self) -> String {
        format!("ws://{}/v1/realtime", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far, one entry per upgrade asked for.
    pub fn record(&self) -> Vec<Session> {
        self.sessions.lock().clone()
    }

    /// Looks at what happened so far, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&[Session]) -> T) -> T {
        look(&self.sessions.lock())
    }

    /// Ends every connection and stops listening.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        // It can only fail by a panic of the task, which then has been reported already.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The shared record.
#[derive(Debug, Clone, Default)]
struct Sessions(Arc<Mutex<Vec<Session>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> usize {
        let mut sessions = self.lock();
        sessions.push(Session {
            at: Instant::now(),
            status: 0,
            model: None,
            bearer: None,
            ended: None,
            received: Vec::new(),
            sent: Vec::new(),
            samples: 0,
            appends: 0,
            bad_appends: 0,
            first_append: None,
            updated: None,
            heard: Vec::new(),
            replies: Vec::new(),
            truncates: Vec::new(),
        });
        sessions.len() - 1
    }

    fn with<T>(&self, index: usize, change: impl FnOnce(&mut Session) -> T) -> T {
        change(&mut self.lock()[index])
    }
}

#[cfg(test)]
mod tests;
