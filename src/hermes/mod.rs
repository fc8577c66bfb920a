//! Work for the agent: runs on the Hermes API server (`hermes-voice.md`, "Delegation to Hermes"; `engines.md` section 6).
//!
//! [`Hermes`] speaks with the server; [`Runner`] makes delegations of a voice call into runs: one at a time in each
//! conversation, a newer one in the place of the older.

mod client;
mod event;
mod follow;
mod runner;
mod sse;

pub use client::{CallError, Choice, Hermes, NewRun, Patience, RunId, StartError, UrlError};
pub use event::Approval;
pub use follow::{Ending, Progress};
pub use runner::{Delegation, Line, Rejected, Runner, SPOKEN, Speaker, Update};
#[cfg(any(test, fuzzing))]
pub(crate) use sse::fuzz;
