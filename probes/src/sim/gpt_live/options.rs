//! How the simulator behaves.

use std::fmt;

use serde::Deserialize;
use watch_audio::secret::Secret;

use crate::net::Impairment;
use crate::sim::script::Script;

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
    /// Keep all received audio ([`Session::audio`](super::Session::audio)).
    pub keep_audio: bool,
    /// The network in front of the UDP candidate; [`Simulator::impair`](super::Simulator::impair) changes it while calls run.
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
