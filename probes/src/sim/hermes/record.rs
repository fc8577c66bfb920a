//! What is kept of each run.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// A run, as it was asked for and as it went.
#[derive(Clone)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// When it was started.
    pub at: Instant,
    /// The idempotency key that came with it.
    pub key: Option<String>,
    /// The body it was asked for with.
    pub body: Value,
    /// Its status, as the API has it.
    pub status: &'static str,
    /// The final text.
    pub output: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The decision it waits for.
    pub approval: Option<Value>,
    /// The decisions that came.
    pub decisions: Vec<Decision>,
    /// How often it was asked to stop.
    pub stops: usize,
    /// When it was over.
    pub ended: Option<Instant>,
    /// How often its events were asked for.
    pub listeners: usize,
}

impl Run {
    /// What was asked.
    pub fn input(&self) -> &str {
        self.body["input"].as_str().unwrap_or_default()
    }

    /// Whether it is over.
    pub fn over(&self) -> bool {
        matches!(self.status, "completed" | "failed" | "cancelled" | "interrupted")
    }

    pub(super) fn status_body(&self) -> Value {
        json!({
            "object": "hermes.run", "run_id": self.id, "status": self.status, "session_id": self.body["session_id"],
            "output": self.output, "error": self.error, "approval": self.approval,
        })
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).field("status", &self.status).finish_non_exhaustive()
    }
}

/// A decision that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// `once`, `session`, `always` or `deny`.
    pub choice: String,
    /// The request it named.
    pub request_id: Option<String>,
}

/// A run's ends that its requests work on.
pub(super) struct Entry {
    pub(super) run: Run,
    /// For the one listener.
    pub(super) events: Option<mpsc::UnboundedReceiver<Value>>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) decide: mpsc::UnboundedSender<Decision>,
}

/// The shared record.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: Vec<Entry>,
    pub(super) starts: usize,
    requests: Vec<String>,
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runs")
    }
}

impl Runs {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Run> {
        self.lock().entries.iter().map(|entry| entry.run.clone()).collect()
    }

    pub(super) fn requests(&self, route: &str) -> usize {
        self.lock().requests.iter().filter(|request| *request == route).count()
    }

    pub(super) fn asked(&self, route: impl Into<String>) {
        self.lock().requests.push(route.into());
    }

    /// Changes a run that is there.
    pub(super) fn with<T>(&self, id: &str, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.lock().entries.iter_mut().find(|entry| entry.run.id == id).map(change)
    }
}
