//! How the simulated Hermes behaves.

use serde::Deserialize;
use watch_audio::secret::Secret;

/// How the simulator behaves. The defaults are a server in good health, of a new build.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The port on loopback; 0 takes a free one.
    pub port: u16,
    /// The only key let in; without it any is.
    pub key: Option<Secret>,
    /// The runs in order; the last goes on for ever.
    pub jobs: Vec<Job>,
    /// What this build can do.
    pub build: Build,
    /// What goes wrong.
    pub faults: Faults,
    /// How the bytes of an event stream look.
    pub shape: Shape,
}

/// What a run does, step by step.
pub type Job = Vec<Step>;

/// A step of a run. One that ends it is the last.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Nothing happens for so many ms.
    Wait(u64),
    /// The agent writes something between tools.
    Delta(String),
    /// A tool runs.
    Tool {
        /// Its name.
        name: String,
        /// For so many ms.
        #[serde(default)]
        ms: u64,
        /// Whether it fails.
        #[serde(default)]
        error: bool,
    },
    /// The run waits for a decision.
    Approval {
        /// What would be run.
        command: String,
        /// Why it asks.
        description: String,
        /// The final text when it is denied.
        #[serde(default)]
        denied: String,
    },
    /// Any other event, with these fields.
    Event(serde_json::Value),
    /// An event of at least so many bytes.
    Huge(usize),
    /// The run is over, with this final text.
    Complete(String),
    /// It is over, and the final text stands in its status only.
    CompleteSilently(String),
    /// It failed.
    Fail(String),
    /// `run.interrupted`, as an event.
    Interrupt,
}

/// What a build can do.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Build {
    /// It keeps idempotency keys, and says so.
    pub idempotency: bool,
    /// Approvals carry `request_id` and `choices`.
    pub request_ids: bool,
    /// Approvals are announced as `approval.required`.
    pub approval_required: bool,
    /// Between two keepalive comments, in ms: 30,000 or 10,000 in the field.
    pub keepalive_ms: u64,
    /// Runs at a time.
    pub max_runs: usize,
}

impl Default for Build {
    fn default() -> Self {
        Self { idempotency: true, request_ids: true, approval_required: false, keepalive_ms: 30_000, max_runs: 10 }
    }
}

/// What goes wrong.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// What becomes of the first requests to start a run, in order.
    pub starts: Vec<StartFault>,
    /// The event stream is cut behind so many events, without a last word. The run goes on.
    pub cut_after: Option<usize>,
    /// Behind so many events the stream says nothing more, not even comments. The run goes on.
    pub mute_after: Option<usize>,
    /// There is never an event stream.
    pub no_events: bool,
    /// Approvals stand in the status only (case 65).
    pub silent_approvals: bool,
    /// An approval that nobody decides on for so many ms is over without a word, and the run goes on.
    pub approval_ms: Option<u64>,
    /// The status of a run is not known.
    pub no_status: bool,
    /// From a stop to `run.cancelled`, in ms.
    pub stop_ms: u64,
    /// From a stop to its answer, in ms.
    pub stop_answer_ms: u64,
    /// A stop is heeded by nobody: the run goes on to its end (case 63).
    pub deaf_to_stop: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            starts: Vec::new(),
            cut_after: None,
            mute_after: None,
            no_events: false,
            silent_approvals: false,
            approval_ms: None,
            no_status: false,
            stop_ms: 100,
            stop_answer_ms: 0,
            deaf_to_stop: false,
        }
    }
}

/// What becomes of one request to start a run.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFault {
    /// It is as it should be.
    None,
    /// This status, and `Retry-After` where there is a second number.
    Status(u16, Option<u64>),
    /// The run is started and its answer is lost on the way.
    LostAnswer,
    /// Nothing is started, and the connection is cut.
    LostRequest,
    /// The answer comes after so many ms.
    Slow(u64),
    /// 202, without a run's id.
    NoId,
    /// 202, with an id that leads out of the runs.
    BadId,
}

/// How the bytes of an event stream look.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Lines end with CR LF.
    pub crlf: bool,
    /// The stream begins with a byte order mark.
    pub bom: bool,
    /// An event's JSON is spread over several data lines.
    pub many_lines: bool,
    /// Bytes go out in pieces of this size; 0 for an event at a time.
    pub piece: usize,
}
