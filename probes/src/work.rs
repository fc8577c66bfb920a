//! The work of a call: what the engine hands over, done as searches by the host or as runs by an agent.

use std::collections::HashSet;

use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use watch_audio::hermes::{Approval, Delegation, Ending, Line, Progress, RunId, Update};

use crate::dialogue::words_of;
use crate::tools::{Jobs, Tools};

/// What is under way for one engine session.
pub(crate) struct Work {
    tools: Tools,
    news: mpsc::Receiver<(String, News)>,
    tell: mpsc::Sender<(String, News)>,
    /// Delegations that have no answer yet.
    open: HashSet<String>,
    /// The one that came last: of older ones nothing is spoken any more.
    newest: Option<String>,
    tasks: JoinSet<()>,
}

/// What becomes of a delegation.
enum News {
    Found(Map<String, Value>),
    Run(Update),
}

/// What the Watch does about it.
pub(crate) enum Done {
    /// Hands this answer to the engine.
    Answer {
        /// The delegation.
        id: String,
        /// The words.
        words: String,
    },
    /// Something goes on, in words for the report.
    Goes(String),
}

impl Work {
    pub(crate) fn new(tools: Tools) -> Self {
        let (tell, news) = mpsc::channel(NEWS);
        Self { tools, news, tell, open: HashSet::new(), newest: None, tasks: JoinSet::new() }
    }

    /// Whether the engine waits for an answer.
    pub(crate) fn owes(&self) -> bool {
        !self.open.is_empty()
    }

    /// Begins what the engine asks for.
    pub(crate) fn begin(&mut self, id: &str, query: String, lines: Vec<Line>) -> Option<Done> {
        while self.tasks.try_join_next().is_some() {}
        let (tools, tell, own) = (self.tools.clone(), self.tell.clone(), id.to_owned());
        match self.tools.jobs() {
            None => {
                self.tasks.spawn(async move {
                    let found = tools.web_search(&query).await;
                    let _ = tell.send((own, News::Found(found))).await;
                });
            }
            Some(Jobs { runner, session, .. }) => {
                let delegation = Delegation { session: session.clone(), id: Some(own.clone()), lines };
                match runner.delegate(delegation) {
                    Ok(mut updates) => self.tasks.spawn(async move {
                        while let Some(update) = updates.recv().await {
                            if tell.send((own.clone(), News::Run(update))).await.is_err() {
                                break;
                            }
                        }
                    }),
                    Err(rejected) => return Some(Done::Answer { id: own, words: rejected.to_string() }),
                };
            }
        }
        self.open.insert(id.to_owned());
        self.newest = Some(id.to_owned());
        None
    }

    /// The next thing to do about what is under way. Cancel safe.
    pub(crate) async fn next(&mut self) -> Done {
        loop {
            // There is always a sender: our own.
            let Some((id, news)) = self.news.recv().await else { return std::future::pending().await };
            let words = match news {
                News::Found(found) => words_of(&found),
                News::Run(Update::Progress(run, progress)) => return Done::Goes(self.goes_on(run, progress)),
                News::Run(Update::Ended(Ending::Completed(text))) if text.trim().is_empty() => NOTHING.to_owned(),
                News::Run(Update::Ended(Ending::Completed(text))) => text,
                News::Run(Update::Ended(Ending::Ended { error, .. })) => format!("Hermes could not finish. {error}"),
                News::Run(Update::Ended(Ending::Lost(why))) => why.to_owned(),
                News::Run(Update::NotStarted(error)) => format!("I cannot ask Hermes: {error}."),
                News::Run(_) => continue,
            };
            self.open.remove(&id);
            // A search answers whatever came after it; of a run only the newest is spoken (case 33).
            if self.tools.jobs().is_none() || self.newest.as_ref() == Some(&id) {
                return Done::Answer { id, words };
            }
            return Done::Goes("an older request is dropped".to_owned());
        }
    }

    /// Says what goes on in a run, and decides what it asks.
    fn goes_on(&mut self, run: RunId, progress: Progress) -> String {
        match progress {
            Progress::ToolStarted(tool) => format!("{tool} runs"),
            Progress::ToolCompleted { tool, error: false } => format!("{tool} is done"),
            Progress::ToolCompleted { tool, error: true } => format!("{tool} failed"),
            Progress::Decided(_) => "its question is decided".to_owned(),
            Progress::Approval(Approval { request_id, command, description }) => {
                let Some(Jobs { runner, decision, .. }) = self.tools.jobs().cloned() else { return String::new() };
                self.tasks.spawn(async move {
                    if let Err(error) = runner.hermes().approve(&run, request_id.as_deref(), decision).await {
                        tracing::warn!(%error, "a decision did not reach Hermes");
                    }
                });
                format!("asks to run {command} ({description}): {}", decision.as_str())
            }
        }
    }
}

/// A call's news come a few a second.
const NEWS: usize = 64;

/// Said for a run that answers nothing.
const NOTHING: &str = "Hermes is done, and had nothing to say.";
