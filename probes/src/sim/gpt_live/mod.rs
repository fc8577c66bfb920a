//! A simulated GPT-Live: both ways to create a session (`engines.md` sections 1 and 2), and the WebRTC peer and the model
//! behind them (section 3).
//!
//! The peer is strict where the vendor's is known or reported to be: ICE-lite, DTLS client, no answer to a connectivity
//! check without USE-CANDIDATE once a pair is nominated, and nothing more sent after 15 s without consent. The model's
//! clock is the audio it receives; what it says comes as an endless stream in real time, silence included.

mod answer;
mod check;
mod events;
mod http;
mod model;
mod mouth;
mod peer;
mod wire;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use watch_audio::secret::Secret;

use super::record::{Event, Heard};
use super::script::{RATE, Script};
use crate::net::Impairment;

/// How the simulator behaves. The defaults are a service in good health.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The port of the HTTP side on loopback; 0 takes a free one.
    pub port: u16,
    /// The only bearer let in; without it any is.
    pub bearer: Option<Secret>,
    /// What it says and does with what it hears.
    #[serde(skip)]
    pub script: Script,
    /// How long things take.
    pub timing: Timing,
    /// The variants of the second dialect.
    pub dialect_b: DialectB,
    /// What goes wrong.
    pub faults: Faults,
    /// Keep all received audio ([`Session::audio`]).
    pub keep_audio: bool,
    /// The network in front of the UDP candidate; [`Simulator::impair`] changes it while calls run.
    pub network: Option<Network>,
}

/// A bad network between the caller and the service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Toward the service.
    pub up: Impairment,
    /// From the service.
    pub down: Impairment,
    /// Decides what chance does.
    pub seed: u64,
}

/// How long things take, in ms: on the timeline, which is received audio, where nothing else is said.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timing {
    /// From the HTTP request to its answer (wall clock).
    pub answer_ms: u64,
    /// Quiet that ends a question.
    pub silence_ms: u64,
    /// From the end of a transcript's slot to its event.
    pub transcript_ms: u64,
    /// From the end of a question, as it is known, to the delegation or to a direct answer.
    pub think_ms: u64,
    /// From the delegation to the filler.
    pub filler_ms: u64,
    /// From an append to its acknowledgement, at the next slot: at least, and so much more by turns.
    pub append_ms: (u64, u64),
    /// From the acknowledgement to the speech it causes.
    pub speak_ms: u64,
    /// From the first voice of the user to silence.
    pub barge_in_ms: u64,
    /// Between two usage events.
    pub usage_ms: u64,
    /// A session without any received audio for so long is closed as expired (wall clock).
    pub expire_ms: u64,
    /// Without consent for so long nothing more is sent (wall clock). RFC 7675 says 30 s; the vendor is reported to be
    /// quicker.
    pub consent_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            answer_ms: 300,
            silence_ms: 600,
            transcript_ms: 600,
            think_ms: 200,
            filler_ms: 200,
            append_ms: (600, 360),
            speak_ms: 400,
            barge_in_ms: 300,
            usage_ms: 15_000,
            expire_ms: 31_000,
            consent_ms: 15_000,
        }
    }
}

/// The variants of the second dialect (`engines.md` section 2).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DialectB {
    /// The `Location` of the answer; `{id}` stands for the call's id, an empty text for none.
    pub location: String,
    /// Whether turns are projected.
    pub turns: bool,
    /// Whether an append over 500 bytes is an error.
    pub byte_limit: bool,
    /// Whether `output_audio_buffer.cleared` is said on a barge-in.
    pub cleared: bool,
}

impl Default for DialectB {
    fn default() -> Self {
        Self { location: "/v1/realtime/calls/{id}".to_owned(), turns: true, byte_limit: false, cleared: false }
    }
}

/// What goes wrong.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// The creation is answered with this status.
    pub http_status: Option<u16>,
    /// The answer has no candidates.
    pub no_candidates: bool,
    /// The UDP candidate.
    pub udp: Path,
    /// The TCP candidate.
    pub tcp: Path,
    /// DTLS never comes about.
    pub no_dtls: bool,
    /// The data channel never opens.
    pub no_channel: bool,
    /// Checks without USE-CANDIDATE keep being answered, and nothing is stopped for want of consent.
    pub lenient_consent: bool,
    /// So many checks are left unanswered once the peer is connected (case 20).
    pub lost_consent: u32,
    /// What becomes of the sent RTP packets.
    pub rtp: RtpFaults,
    /// The delegation comes before the transcript of its question (case 34).
    pub late_transcript: bool,
    /// Each delegation comes twice (case 32).
    pub double_delegation: bool,
    /// Things that happen at a given time after the data channel opened; those at 0 come before `session.started`.
    pub at: Vec<Happening>,
}

/// A candidate of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// It works.
    #[default]
    Open,
    /// It is there, and nothing comes of it.
    Dead,
    /// It is not offered.
    Absent,
}

/// What becomes of the sent RTP packets. They are counted from 1.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RtpFaults {
    /// The length of a packet: 10, 20, 40 or 60; 0 means 20.
    pub packet_ms: u32,
    /// Holes: the first lost packet, and how many are.
    pub lose: Vec<(u64, u64)>,
    /// Every so many packets one is lost.
    pub lose_every: Option<u64>,
    /// Every so many packets one comes after its successor.
    pub swap_every: Option<u64>,
    /// Every so many packets one comes twice.
    pub double_every: Option<u64>,
    /// Every so many packets one more without payload comes, with a sequence number of its own (case 12).
    pub empty_every: Option<u64>,
    /// Silence is sent as one packet in 400 ms (case 13).
    pub dtx: bool,
}

/// Something that happens at a given time.
#[derive(Debug, Clone, Deserialize)]
pub struct Happening {
    /// When, after the data channel opened.
    pub after_ms: u64,
    /// What.
    pub what: What,
}

/// See [`Happening`].
#[derive(Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// This text goes out on the data channel as it is.
    Text(String),
    /// An event of so many bytes goes out (case 29).
    Huge(usize),
    /// `session.closed` with this reason, then the peer is closed.
    Closed(String),
    /// Nothing more is sent or answered; sockets stay.
    Vanish,
    /// The output goes on under another SSRC.
    NewSsrc,
    /// The output pauses for so many ms: a stall of the service, made good for in a burst afterwards.
    Stall(u64),
}

impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "Text",
            Self::Huge(_) => "Huge",
            Self::Closed(_) => "Closed",
            Self::Vanish => "Vanish",
            Self::NewSsrc => "NewSsrc",
            Self::Stall(_) => "Stall",
        })
    }
}

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
    /// All audio received, at 24 kHz, with [`Options::keep_audio`].
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

/// A running simulator. Dropping it ends it.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    sessions: Sessions,
    network: watch::Sender<Network>,
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
        let (network, weather) = watch::channel(options.network.unwrap_or_default());
        let (stop, stopped) = watch::channel(false);
        let shared = http::Shared::new(options, sessions.clone(), weather);
        let task = tokio::spawn(http::listen(listener, shared, stopped));
        Ok(Self { address, sessions, network, stop, task })
    }

    /// The base URL: `/v1/live/sessions` (dialect A) and `/backend-api/codex/realtime/calls` (dialect B) are below it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the network of all calls, when [`Options::network`] put one there.
    pub fn impair(&self, up: Impairment, down: Impairment) {
        self.network.send_modify(|network| (network.up, network.down) = (up, down));
    }

    /// What happened so far, one entry per session asked for.
    pub fn record(&self) -> Vec<Session> {
        self.sessions.lock().clone()
    }

    /// Looks at what happened so far, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&[Session]) -> T) -> T {
        look(&self.sessions.lock())
    }

    /// Ends every session and stops listening.
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

    fn begin(&self, dialect: Dialect) -> Note {
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
struct Note {
    sessions: Sessions,
    index: usize,
}

impl Note {
    fn with<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        change(&mut self.sessions.lock()[self.index])
    }

    fn number(&self) -> usize {
        self.index + 1
    }
}

#[cfg(test)]
mod tests;
