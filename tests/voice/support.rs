//! A simulated Hermes with a runner on it, and what becomes of delegations.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use watch_audio::hermes::{Delegation, Ending, Hermes, Line, Patience, Progress, Runner, Speaker, StartError, Update};
use watch_audio::secret::Secret;
use watch_audio_probes::sim::hermes::{Options, Simulator, Step};

/// Longer than anything here takes, on a machine that is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const KEY: &str = "hermes-key-not-to-be-seen";

/// Limits for tests that wait for them.
pub(crate) fn patience() -> Patience {
    Patience {
        stall: Duration::from_millis(1_500),
        quiet: Duration::from_millis(200),
        poll: (Duration::from_millis(50), Duration::from_millis(200)),
        gone: Duration::from_millis(800),
        stop: Duration::from_millis(800),
        ..Patience::default()
    }
}

pub(crate) struct World {
    pub(crate) hermes: Simulator,
    pub(crate) runner: Runner,
}

pub(crate) async fn world(options: Options) -> World {
    world_with(options, |_| ()).await
}

pub(crate) async fn world_with(options: Options, change: impl FnOnce(&mut Patience)) -> World {
    let mut patience = patience();
    change(&mut patience);
    let hermes = Simulator::start(Options { key: Some(Secret::new(KEY)), ..options }).await.unwrap();
    let client = Hermes::new(&hermes.url(), Secret::new(KEY)).unwrap().with_patience(patience);
    World { hermes, runner: Runner::new(client, "Be brief.".into()) }
}

/// A Hermes whose runs do this.
pub(crate) async fn doing(steps: Vec<Step>) -> World {
    world(Options { jobs: vec![steps], ..Options::default() }).await
}

pub(crate) fn complete(text: &str) -> Step {
    Step::Complete(text.into())
}

pub(crate) fn tool(name: &str, ms: u64) -> Step {
    Step::Tool { name: name.into(), ms, error: false }
}

pub(crate) fn approval() -> Step {
    Step::Approval { command: "rm -rf build".into(), description: "clean up".into(), denied: "I left it.".into() }
}

pub(crate) fn said(text: &str) -> Vec<Line> {
    vec![Line { speaker: Speaker::User, text: text.into() }]
}

impl World {
    pub(crate) fn delegate(&self, id: &str, text: &str) -> mpsc::Receiver<Update> {
        let delegation = Delegation { session: "call-1".into(), id: Some(id.into()), lines: said(text) };
        self.runner.delegate(delegation).unwrap()
    }

    /// Waits until the simulator's record is as it should be.
    pub(crate) async fn until(&self, what: impl Fn(&Simulator) -> bool) {
        let wait = async {
            while !what(&self.hermes) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, wait).await.unwrap();
    }
}

/// The next update.
pub(crate) async fn next(updates: &mut mpsc::Receiver<Update>) -> Option<String> {
    timeout(LIMIT, updates.recv()).await.unwrap().map(word)
}

/// All updates to the end, in words.
pub(crate) async fn all(mut updates: mpsc::Receiver<Update>) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(word) = next(&mut updates).await {
        words.push(word);
    }
    words
}

/// An update in words, for comparing; a run's id is left out.
fn word(update: Update) -> String {
    match update {
        Update::Started(_) => "started".into(),
        Update::NotStarted(error) => not_started(error),
        Update::Progress(_, Progress::ToolStarted(tool)) => format!("{tool} runs"),
        Update::Progress(_, Progress::ToolCompleted { tool, error }) => {
            format!("{tool} {}", if error { "failed" } else { "done" })
        }
        Update::Progress(_, Progress::Approval(approval)) => {
            let id = if approval.request_id.is_some() { "with id" } else { "without id" };
            format!("asks {id}: {} ({})", approval.command, approval.description)
        }
        Update::Progress(_, Progress::Decided(id)) => {
            format!("decided {}", if id.is_some() { "with id" } else { "without id" })
        }
        Update::Ended(Ending::Completed(text)) => format!("answer: {text}"),
        Update::Ended(Ending::Ended { reason, error }) => format!("{reason}: {error}"),
        Update::Ended(Ending::Lost(why)) => format!("lost: {why}"),
    }
}

pub(crate) fn not_started(error: StartError) -> String {
    format!("not started: {error:?}")
}

pub(crate) const REPLACED: &str = "cancelled: A newer request took its place.";
