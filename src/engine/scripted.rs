//! A session that a test scripts: what it says and when, and what it heard.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{EngineKind, Start, StartError, Started, ToWatch};

/// Starts one session for each plan, in order.
pub struct Engine(Mutex<VecDeque<Plan>>);

/// How one session goes.
pub(crate) struct Plan {
    pub(crate) start_takes: Duration,
    pub(crate) outcome: Result<(), StartError>,
    pub(crate) close_takes: Duration,
    steps: mpsc::UnboundedReceiver<Step>,
    heard: mpsc::UnboundedSender<Heard>,
}

/// The test's hold on a session.
pub(crate) struct Handle {
    pub(crate) steps: mpsc::UnboundedSender<Step>,
    pub(crate) heard: mpsc::UnboundedReceiver<Heard>,
}

/// What the engine does.
pub(crate) enum Step {
    Say(ToWatch),
    End(&'static str),
}

/// What the session saw.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Started(EngineKind),
    Audio(Vec<u8>),
    Event(Vec<u8>),
    Control(Map<String, Value>),
    Closing,
    Closed,
    /// Nothing of the session is left.
    Gone,
}

/// A session as its plan says.
pub struct Session {
    plan: Plan,
    said: VecDeque<ToWatch>,
    ended: Option<&'static str>,
}

impl Engine {
    pub(crate) fn new(plans: impl IntoIterator<Item = Plan>) -> Self {
        Self(Mutex::new(plans.into_iter().collect()))
    }

    pub(crate) async fn start(&self, start: &Start) -> Result<(Session, Started), StartError> {
        let plan = self.0.lock().unwrap().pop_front().expect("a plan for each start");
        let session = Session { plan, said: VecDeque::new(), ended: None };
        session.heard(Heard::Started(start.engine));
        sleep(session.plan.start_takes).await;
        session.plan.outcome.clone()?;
        Ok((session, Started { fields: Map::from_iter([("voice".to_owned(), json!("eve"))]) }))
    }
}

impl Plan {
    pub(crate) fn new() -> (Self, Handle) {
        let (steps, script) = mpsc::unbounded_channel();
        let (heard, hearing) = mpsc::unbounded_channel();
        let (start_takes, close_takes) = (Duration::from_millis(100), Duration::from_millis(100));
        (Self { start_takes, outcome: Ok(()), close_takes, steps: script, heard }, Handle { steps, heard: hearing })
    }
}

impl Session {
    fn heard(&self, heard: Heard) {
        let _ = self.plan.heard.send(heard);
    }

    pub(crate) async fn drive(&mut self) {
        match self.plan.steps.recv().await {
            Some(Step::Say(message)) => self.said.push_back(message),
            Some(Step::End(reason)) => self.ended = Some(reason),
            None => std::future::pending().await,
        }
    }

    pub(crate) fn watch_audio(&mut self, payload: &[u8]) {
        self.heard(Heard::Audio(payload.to_vec()));
    }

    pub(crate) fn watch_event(&mut self, json: &[u8]) {
        self.heard(Heard::Event(json.to_vec()));
    }

    pub(crate) fn watch_control(&mut self, control: &Map<String, Value>) {
        self.heard(Heard::Control(control.clone()));
    }

    pub(crate) fn poll(&mut self) -> Option<ToWatch> {
        self.said.pop_front()
    }

    pub(crate) fn next_is_sound(&self) -> bool {
        matches!(self.said.front(), Some(ToWatch::Audio(_)))
    }

    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended
    }

    pub(crate) fn stats(&self) -> Map<String, Value> {
        Map::from_iter([("barge_ins".to_owned(), json!(0))])
    }

    pub(crate) async fn close(self) {
        self.heard(Heard::Closing);
        sleep(self.plan.close_takes).await;
        self.heard(Heard::Closed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.heard(Heard::Gone);
    }
}
