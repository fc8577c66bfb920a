//! How the simulator behaves.

use std::fmt;

use serde::Deserialize;
use watch_audio::secret::Secret;

use crate::sim::script::Script;

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

impl fmt::Debug for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Injection").field("after_ms", &self.after_ms).finish_non_exhaustive()
    }
}
