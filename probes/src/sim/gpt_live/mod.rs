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
mod metronome;
mod model;
mod mouth;
mod options;
mod peer;
mod record;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::net::Impairment;
pub use options::{DialectB, Faults, Happening, Network, Options, Path, RtpFaults, Timing, What};
pub use record::{Dialect, Ended, Input, Occasion, Session, Spoken};
use record::{Note, Sessions};

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

#[cfg(test)]
mod tests;
