//! What the benches measure with: a sound of which every 20 ms can be found again, the engine's side of a call, a bad
//! network, the helpers and bridges to compare, and the report.
//!
//! Everything here runs on plain threads that sleep to absolute deadlines: a runtime's timer is late by more than what
//! is measured.

pub mod bare;
pub mod barge_in;
pub mod baseline;
pub mod bridge;
pub mod call;
pub mod cores;
pub mod crowd;
pub mod engine;
pub mod follow;
pub mod helper;
pub mod machine;
pub mod marks;
pub mod network;
pub mod page;
pub mod record;
pub mod relays;
pub mod report;
pub mod sockets;
pub mod steps;
pub mod subject;
pub mod watch;

use std::process::ExitCode;
use std::time::Duration;

/// Why a measurement could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub String);

impl Failed {
    /// For `map_err`: `what` could not be done.
    pub fn to<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self(format!("cannot {what}: {error}"))
    }
}

/// How a bench ends: what went wrong is said on stderr.
pub fn exit_code(bench: &str, outcome: Result<(), Failed>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{bench}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How long one frame of sound is: marks, microphone chunks and RTP packets alike.
pub const FRAME: Duration = Duration::from_millis(20);
