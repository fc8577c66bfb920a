//! A simulated Grok: the realtime WebSocket of `engines.md` section 4.
//!
//! Replies come from the script, all their audio in a burst; speech is heard by level; on speech the running reply is
//! stopped and the service says so, or does one of the stranger things it was seen to do.

mod model;
mod options;
mod record;
mod reply;
mod serve;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use options::{Faults, Injection, Interruption, Opening, Options, Quirks, Truncate};
use record::Sessions;
pub use record::{Reply, Session, TruncateSeen};

/// A running simulator. Dropping it ends it.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    sessions: Sessions,
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
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve::listen(listener, Arc::new(options), sessions.clone(), stopped));
        Ok(Self { address, sessions, stop, task })
    }

    /// The realtime URL, without the model.
    pub fn url(&self) -> String {
        format!("ws://{}/v1/realtime", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far, one entry per upgrade asked for.
    pub fn record(&self) -> Vec<Session> {
        self.sessions.lock().clone()
    }

    /// Looks at what happened so far, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&[Session]) -> T) -> T {
        look(&self.sessions.lock())
    }

    /// Ends every connection and stops listening.
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
