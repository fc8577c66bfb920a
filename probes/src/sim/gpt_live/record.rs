//! What is kept of each session.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use watch_audio::secret::Secret;

use crate::sim::record::{Event, Heard};
use crate::sim::script::RATE;

/// Which of the two dialects a session speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// The public `live/sessions`.
    A,
    /// The one of a ChatGPT sign-in.
    B,
}

/// What happened with one request to create a session.
#[derive(Clone)]
pub struct Session {
    /// When it was asked for.
    pub at: Instant,
    /// Which dialect was asked for.
    pub dialect: Dialect,
    /// The status of the answer; 0 until there is one.
    pub status: u16,
    /// What was wrong with the request, when it was refused.
    pub complaint: Option<String>,
    /// The bearer that came.
    pub bearer: Option<Secret>,
    /// The headers that came, but the bearer.
    pub headers: Vec<(String, String)>,
    /// The `session` of the request.
    pub request: Value,
    /// When the peer was connected: ICE and DTLS.
    pub connected: Option<Instant>,
    /// Whether it is connected over TCP.
    pub tcp: bool,
    /// When the data channel opened.
    pub opened: Option<Instant>,
    /// When it was over, and how.
    pub ended: Option<(Instant, Ended)>,
    /// Checks that were ignored because they came without USE-CANDIDATE.
    pub ignored_checks: u64,
    /// Checks that renewed the consent.
    pub consents: u64,
    /// Texts received on the data channel.
    pub received: Vec<Event>,
    /// Texts sent on it.
    pub sent: Vec<Event>,
    /// Audio received.
    pub input: Input,
    /// All audio received, at 24 kHz, with [`Options::keep_audio`](super::Options::keep_audio).
    pub audio: Vec<i16>,
    /// Speech heard.
    pub heard: Vec<Heard>,
    /// What was said.
    pub spoken: Vec<Spoken>,
    /// RTP packets made, of which faults may have taken some.
    pub packets: u64,
    /// The SSRCs they went out under, in order.
    pub ssrcs: Vec<u32>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Session");
        f.field("dialect", &self.dialect).field("status", &self.status).field("complaint", &self.complaint);
        f.field("ended", &self.ended).field("input", &self.input).finish_non_exhaustive()
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client sent `session.close` and got `session.closed`.
    Closed,
    /// The simulator said `session.closed` by itself: expired, or told to.
    ByService,
    /// The client closed its peer without `session.close`.
    Hangup,
    /// 15 s without consent.
    ConsentLost,
    /// It never connected.
    NeverConnected,
    /// It vanished as it was told to.
    Vanished,
    /// The simulator was shut down.
    Shutdown,
}

/// The audio a session received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Input {
    /// RTP packets.
    pub packets: u64,
    /// Sequence numbers that never came.
    pub lost: u64,
    /// Packets that came behind a later one.
    pub late: u64,
    /// Packets that are not Opus.
    pub broken: u64,
    /// Packets that carry nothing or belong to another payload type.
    pub other: u64,
    /// Samples at 48 kHz: the timeline.
    pub samples: u64,
    /// When the first came.
    pub first: Option<Instant>,
    /// When the last came.
    pub last: Option<Instant>,
    /// The longest time between two.
    pub longest_gap: Duration,
}

/// Something that was said.
#[derive(Clone)]
pub struct Spoken {
    /// On what occasion.
    pub occasion: Occasion,
    /// The words.
    pub text: String,
    /// When its first packet was handed to the socket.
    pub from: Instant,
    /// When its last was; none while it goes on.
    pub to: Option<Instant>,
    /// The RTP packet that carried its beginning, counted from 1.
    pub packet: u64,
    /// The samples said so far, at 24 kHz.
    pub samples: u64,
    /// Whether the user spoke over it.
    pub cut: bool,
}

impl Spoken {
    /// When a sample of it was sent, give or take the packet it was in.
    pub fn sent(&self, sample: u64) -> Instant {
        self.from + Duration::from_micros(sample * 1_000_000 / u64::from(RATE))
    }
}

impl fmt::Debug for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Spoken");
        f.field("occasion", &self.occasion).field("samples", &self.samples).field("cut", &self.cut);
        f.finish_non_exhaustive()
    }
}

/// Why something was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The call began.
    Greeting,
    /// A delegation was made.
    Filler,
    /// The agent answered, or the engine did by itself.
    Answer,
    /// A text was appended that belongs to no delegation.
    Remark,
    /// What was heard is said back.
    Echo,
}

/// The shared record.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<Vec<Session>>>);

impl Sessions {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, dialect: Dialect) -> Note {
        let mut sessions = self.lock();
        sessions.push(Session {
            at: Instant::now(),
            dialect,
            status: 0,
            complaint: None,
            bearer: None,
            headers: Vec::new(),
            request: Value::Null,
            connected: None,
            tcp: false,
            opened: None,
            ended: None,
            ignored_checks: 0,
            consents: 0,
            received: Vec::new(),
            sent: Vec::new(),
            input: Input::default(),
            audio: Vec::new(),
            heard: Vec::new(),
            spoken: Vec::new(),
            packets: 0,
            ssrcs: Vec::new(),
        });
        Note { sessions: self.clone(), index: sessions.len() - 1 }
    }
}

/// One session's place in the record.
#[derive(Debug, Clone)]
pub(super) struct Note {
    sessions: Sessions,
    index: usize,
}

impl Note {
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        change(&mut self.sessions.lock()[self.index])
    }

    pub(super) fn number(&self) -> usize {
        self.index + 1
    }
}
