//! What is kept of each connection.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use watch_audio::secret::Secret;

use crate::sim::record::{Event, Heard};

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

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// The shared record.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<Vec<Session>>>);

impl Sessions {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self) -> usize {
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

    pub(super) fn with<T>(&self, index: usize, change: impl FnOnce(&mut Session) -> T) -> T {
        change(&mut self.lock()[index])
    }
}
