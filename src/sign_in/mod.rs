//! Where a session's credentials come from: the plugin, an API key, a Codex sign-in.

use std::fmt;

use crate::engine::{ErrorCode, Start, StartError};
use crate::secret::Secret;

/// What GPT-Live answered to our offer.
pub struct GptLiveAnswer {
    /// The SDP answer, byte for byte.
    pub sdp: String,
    /// The voice that speaks.
    pub voice: String,
    /// Whether the briefing joined the instructions.
    pub briefing_applied: bool,
    /// Whether the greeting is taken care of.
    pub greeting_applied: bool,
}

impl fmt::Debug for GptLiveAnswer {
    /// The SDP holds credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GptLiveAnswer").field("voice", &self.voice).finish_non_exhaustive()
    }
}

/// What it takes to open Grok's socket.
#[derive(Debug)]
pub struct GrokAccess {
    /// The realtime WebSocket's URL, without the model.
    pub url: String,
    /// The bearer.
    pub bearer: Secret,
    /// The model, for the query and for `started`.
    pub model: String,
    /// The voice, for `started`.
    pub voice: String,
}

/// Who signs in.
pub enum SignIn {}

impl SignIn {
    /// Has GPT-Live answer an offer. At most 32 s.
    ///
    /// # Errors
    /// What the Watch is to be told.
    pub async fn gpt_live(&self, _offer: &str, _start: &Start) -> Result<GptLiveAnswer, StartError> {
        Err(StartError::new(ErrorCode::Unavailable, "No sign-in."))
    }

    /// Gets what it takes to open Grok's socket. At most 32 s.
    ///
    /// # Errors
    /// What the Watch is to be told.
    pub async fn grok(&self, _start: &Start) -> Result<GrokAccess, StartError> {
        Err(StartError::new(ErrorCode::Unavailable, "No sign-in."))
    }
}
