//! Where a session's credentials come from: the plugin, an API key, a Codex sign-in.
//!
//! Whoever it is, it stays the only one: a failed sign-in is an error, never a reason to bill someone else.

pub mod files;
pub mod openai;
pub mod plugin;
pub mod session;

use std::fmt;

use crate::engine::{Start, StartError};
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
pub enum SignIn {
    /// The plugin that spawned us does, and keeps its secrets but Grok's bearer.
    Plugin(plugin::Desk),
    /// We do, with the sign-ins in files.
    Files(Box<files::SignIns>),
    /// Nobody: a test's own engine needs none.
    #[cfg(test)]
    Scripted(crate::engine::scripted::Engine),
}

impl SignIn {
    /// Whether the plugin signs in, which takes a request that the bridge passes on.
    pub fn is_the_plugins(&self) -> bool {
        matches!(self, Self::Plugin(_))
    }

    /// Has GPT-Live answer an offer, which goes out byte for byte. At most 32 s.
    ///
    /// # Errors
    /// What the Watch is to be told.
    pub async fn gpt_live(&self, offer: &str, start: &Start) -> Result<GptLiveAnswer, StartError> {
        match self {
            Self::Plugin(desk) => desk.gpt_live(offer, start).await,
            Self::Files(files) => files.gpt_live(offer, start).await,
            #[cfg(test)]
            Self::Scripted(_) => panic!("a scripted engine signs in nowhere"),
        }
    }

    /// Gets what it takes to open Grok's socket. At most 32 s.
    ///
    /// # Errors
    /// What the Watch is to be told.
    pub async fn grok(&self, start: &Start) -> Result<GrokAccess, StartError> {
        match self {
            Self::Plugin(desk) => desk.grok(start).await,
            Self::Files(files) => files.grok(start).await,
            #[cfg(test)]
            Self::Scripted(_) => panic!("a scripted engine signs in nowhere"),
        }
    }
}
