//! A run as it goes: its script's steps, the decisions it waits for, the stop.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::options::{Options, Step};
use super::record::{Decision, Runs};

/// One run's task.
pub(super) struct Task {
    pub(super) options: Arc<Options>,
    pub(super) runs: Runs,
    pub(super) id: String,
    pub(super) steps: Vec<Step>,
    pub(super) events: mpsc::UnboundedSender<Value>,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) decisions: mpsc::UnboundedReceiver<Decision>,
    pub(super) approvals: usize,
}

impl Task {
    /// Runs to the end.
    pub(super) async fn run(mut self) {
        self.set("running");
        let mut stop = self.stop.clone();
        let deaf = self.options.faults.deaf_to_stop;
        let stopped = tokio::select! {
            () = self.follow() => false,
            () = async { let _ = stop.wait_for(|stop| *stop).await; }, if !deaf => true,
        };
        if stopped {
            self.set("stopping");
            sleep(Duration::from_millis(self.options.faults.stop_ms)).await;
            self.end("cancelled", json!({"event": "run.cancelled"}), None);
        }
    }

    async fn follow(&mut self) {
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                Step::Delta(text) => self.tell(json!({"event": "message.delta", "delta": text})),
                Step::Tool { name, ms, error } => {
                    self.tell(json!({"event": "tool.started", "tool": name, "preview": "…"}));
                    sleep(Duration::from_millis(ms)).await;
                    let seconds = ms as f64 / 1000.0;
                    self.tell(json!({"event": "tool.completed", "tool": name, "duration": seconds, "error": error}));
                }
                Step::Approval { command, description, denied } => {
                    if !self.approved(&command, &description).await {
                        return self.complete(denied, false);
                    }
                }
                Step::Event(event) => self.tell(event),
                Step::Huge(bytes) => self.tell(json!({"event": "reasoning.delta", "text": "x".repeat(bytes)})),
                Step::Complete(text) => return self.complete(text, false),
                Step::CompleteSilently(text) => return self.complete(text, true),
                Step::Fail(error) => {
                    let event = json!({"event": "run.failed", "error": error});
                    return self.end("failed", event, Some(error));
                }
                Step::Interrupt => return self.end("interrupted", json!({"event": "run.interrupted"}), None),
            }
        }
        self.complete(String::new(), false);
    }

    /// Waits for a decision; false when it is no.
    async fn approved(&mut self, command: &str, description: &str) -> bool {
        self.approvals += 1;
        let build = &self.options.build;
        let name = if build.approval_required { "approval.required" } else { "approval.request" };
        let mut asked = json!({"event": name, "command": command, "description": description,
            "pattern_key": "sim", "allow_session": true});
        let id = format!("{}.approval-{}", self.id, self.approvals);
        if build.request_ids {
            asked["request_id"] = id.clone().into();
            asked["choices"] = json!(["once", "session", "deny"]);
        }
        self.runs.with(&self.id, |entry| {
            entry.run.status = "waiting_for_approval";
            entry.run.approval = Some(asked.clone());
        });
        if !self.options.faults.silent_approvals {
            self.tell(asked);
        }
        let decision = match self.options.faults.approval_ms {
            Some(ms) => timeout(Duration::from_millis(ms), self.decisions.recv()).await,
            None => Ok(self.decisions.recv().await),
        };
        self.runs.with(&self.id, |entry| {
            entry.run.status = "running";
            entry.run.approval = None;
        });
        let Ok(decision) = decision else { return true };
        // The senders are in the record for as long as the run is.
        let Some(decision) = decision else { return false };
        let mut told = json!({"event": "approval.responded", "choice": decision.choice, "resolved": 1});
        if self.options.build.request_ids {
            told["request_id"] = id.into();
        }
        self.tell(told);
        decision.choice != "deny"
    }

    fn complete(&mut self, text: String, silently: bool) {
        self.runs.with(&self.id, |entry| entry.run.output = Some(text.clone()));
        let usage = json!({"input_tokens": 1, "output_tokens": 2, "total_tokens": 3});
        let mut event = json!({"event": "run.completed", "output": text, "usage": usage});
        if silently {
            event["output"] = Value::Null;
        }
        self.end("completed", event, None);
    }

    fn end(&mut self, status: &'static str, event: Value, error: Option<String>) {
        self.runs.with(&self.id, |entry| {
            entry.run.status = status;
            entry.run.error = error;
            entry.run.approval = None;
            entry.run.ended = Some(Instant::now());
        });
        self.tell(event);
    }

    fn set(&self, status: &'static str) {
        self.runs.with(&self.id, |entry| entry.run.status = status);
    }

    fn tell(&self, mut event: Value) {
        event["run_id"] = self.id.clone().into();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        event["timestamp"] = now.as_secs_f64().into();
        // Nobody listens any more, or never will: there is no replay.
        let _ = self.events.send(event);
    }
}
