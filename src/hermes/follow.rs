//! Following a run to its end: over its event stream, and by its status where the stream is gone (case 62).

use tokio::time::{Instant, sleep, sleep_until};

use super::client::{CallError, Hermes, RunId};
use super::event::{Approval, Event, Status};
use super::sse::Sse;

/// What goes on in a run.
#[derive(Clone, PartialEq, Eq)]
pub enum Progress {
    /// A tool begins.
    ToolStarted(String),
    /// A tool is done: well, or with an error.
    ToolCompleted {
        /// The tool's name.
        tool: String,
        /// Whether it failed.
        error: bool,
    },
    /// The run waits for a decision.
    Approval(Approval),
    /// It does not wait for that one any more, whoever decided: the one of this id, without an id the oldest.
    Decided(Option<String>),
}

/// How a run ended, or was lost.
#[derive(Clone, PartialEq, Eq)]
pub enum Ending {
    /// It has answered: the final text, which may be empty.
    Completed(String),
    /// It is over without an answer.
    Ended {
        /// `failed`, `cancelled` or `interrupted`.
        reason: &'static str,
        /// Why, in words.
        error: String,
    },
    /// What becomes of it cannot be known.
    Lost(&'static str),
}

/// The part of following that the stream and the status have in common.
struct Follower<'a, F> {
    hermes: &'a Hermes,
    run: &'a RunId,
    tell: F,
    /// The decisions that the run waits for and that have been told, oldest first.
    told: Vec<Told>,
}

struct Told {
    approval: Approval,
    /// The run has gone on since. Without an id it may be over, and the next like it another one.
    passed: bool,
}

impl Hermes {
    /// Follows a run to its end and tells what goes on. There is no limit to how long a run may take, only to how long
    /// the server may say nothing.
    pub async fn follow(&self, run: &RunId, tell: impl FnMut(Progress)) -> Ending {
        let mut follower = Follower { hermes: self, run, tell, told: Vec::new() };
        // The stream may have been cut by the network alone: one more try. Most servers have let go of it by then.
        for _ in 0..2 {
            if let Some(ending) = follower.by_stream().await {
                return ending;
            }
            match follower.look().await {
                Ok(Some(ending)) => return ending,
                Err(CallError::Refused(404)) => return Ending::Lost(UNKNOWN),
                _ => {}
            }
        }
        follower.by_status().await
    }
}

impl<F: FnMut(Progress)> Follower<'_, F> {
    /// Follows the event stream; none when it is gone.
    async fn by_stream(&mut self) -> Option<Ending> {
        let mut stream = self.hermes.events(self.run).await.ok()?;
        let patience = self.hermes.patience;
        let mut sse = Sse::default();
        let mut heard = Instant::now();
        let mut looked = Instant::now();
        // How the run ended, as its status has it: the stream still has its last words to say.
        let mut ended = None;
        loop {
            let piece = tokio::select! {
                piece = stream.chunk() => piece.ok()??,
                () = sleep_until(heard + patience.stall) => return None,
                () = sleep_until(looked + patience.quiet) => {
                    // Not every build says on the stream that it waits (case 65).
                    if ended.is_some() {
                        return ended;
                    }
                    ended = self.look().await.ok().flatten();
                    looked = Instant::now();
                    continue;
                }
            };
            heard = Instant::now();
            for data in sse.push(&piece) {
                looked = heard;
                if let Some(ending) = self.event(Event::read(&data)).await {
                    return Some(ending);
                }
            }
        }
    }

    async fn event(&mut self, event: Event) -> Option<Ending> {
        match event {
            Event::ToolStarted(tool) => {
                self.goes_on();
                (self.tell)(Progress::ToolStarted(tool));
            }
            Event::ToolCompleted { tool, error } => {
                self.goes_on();
                (self.tell)(Progress::ToolCompleted { tool, error });
            }
            Event::Approval(approval) => {
                let again = approval.request_id.is_some() && self.knows(&approval);
                if !again {
                    self.leave_older(&approval).await;
                    self.ask(approval);
                }
            }
            Event::Decided(id) => self.decided(id),
            Event::Completed(Some(output)) => return Some(Ending::Completed(output)),
            // It may stand in the status only.
            Event::Completed(None) => return Some(self.answer_of_status().await),
            Event::Ended(outcome, error) => return Some(Ending::Ended { reason: outcome.as_str(), error }),
            Event::Other => {}
        }
        None
    }

    fn ask(&mut self, approval: Approval) {
        self.told.retain(|told| !(told.passed && same(&told.approval, &approval)));
        if self.told.len() == MAX_TOLD {
            self.told.remove(0);
        }
        self.told.push(Told { approval: approval.clone(), passed: false });
        (self.tell)(Progress::Approval(approval));
    }

    /// Whether a decision that the run waits for has been told.
    fn knows(&self, approval: &Approval) -> bool {
        self.told.iter().any(|told| !told.passed && same(&told.approval, approval))
    }

    /// A tool was used: what has no id may have been decided.
    fn goes_on(&mut self) {
        for told in &mut self.told {
            told.passed |= told.approval.request_id.is_none();
        }
    }

    /// Takes back what has been decided: the one of this id, else the oldest without one.
    fn decided(&mut self, id: Option<String>) {
        let which = self.told.iter().position(|told| told.approval.request_id == id);
        if let Some(which) = which.or_else(|| self.told.iter().position(|told| told.approval.request_id.is_none())) {
            let told = self.told.remove(which);
            (self.tell)(Progress::Decided(told.approval.request_id));
        }
    }

    /// Without ids a decision goes to the request that has waited longest: before a newer one is told, those go that are over
    /// and have not said so. Nobody must decide on what they do not see.
    async fn leave_older(&mut self, newer: &Approval) {
        if newer.request_id.is_some() || !self.told.iter().any(|told| told.approval.request_id.is_none()) {
            return;
        }
        let waits = match self.hermes.status(self.run).await {
            Ok(Status::Waiting(first)) => first,
            // It does not tell: they stay, in their order.
            _ => return,
        };
        while let Some(oldest) = self.told.iter().find(|told| told.approval.request_id.is_none()) {
            if same(&oldest.approval, &waits) || !same(newer, &waits) {
                return;
            }
            self.decided(None);
        }
    }

    async fn answer_of_status(&mut self) -> Ending {
        match self.hermes.status(self.run).await {
            Ok(Status::Completed(Some(output))) => Ending::Completed(output),
            _ => Ending::Completed(String::new()),
        }
    }

    /// Looks at the run's status; an ending when it is over.
    async fn look(&mut self) -> Result<Option<Ending>, CallError> {
        Ok(match self.hermes.status(self.run).await? {
            Status::Running => {
                for told in std::mem::take(&mut self.told) {
                    (self.tell)(Progress::Decided(told.approval.request_id));
                }
                None
            }
            Status::Waiting(approval) => {
                if !self.knows(&approval) {
                    self.ask(approval);
                }
                None
            }
            Status::Completed(output) => Some(Ending::Completed(output.unwrap_or_default())),
            Status::Ended(outcome, error) => Some(Ending::Ended { reason: outcome.as_str(), error }),
        })
    }

    /// Looks at the status again and again, until the run is over or the server has not answered for too long.
    async fn by_status(&mut self) -> Ending {
        let patience = self.hermes.patience;
        let (mut pause, longest) = patience.poll;
        let mut answered = Instant::now();
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
            match self.look().await {
                Ok(Some(ending)) => return ending,
                Ok(None) => answered = Instant::now(),
                Err(CallError::Refused(404)) => return Ending::Lost(UNKNOWN),
                Err(_) if answered.elapsed() >= patience.gone => return Ending::Lost(GONE),
                Err(_) => {}
            }
        }
    }
}

/// Whether both are the same request, as far as can be told. A status may say no more than that there is one.
fn same(one: &Approval, other: &Approval) -> bool {
    let silent = |approval: &Approval| approval.command.is_empty() && approval.description.is_empty();
    match (&one.request_id, &other.request_id) {
        (Some(one), Some(other)) => one == other,
        _ => silent(one) || silent(other) || (one.command == other.command && one.description == other.description),
    }
}

/// Decisions that a run waits for at once: as many as the page keeps.
const MAX_TOLD: usize = 10;

const UNKNOWN: &str = "Hermes does not know this request any more; what became of it is not known.";
const GONE: &str = "Hermes does not answer any more; what becomes of the request is not known.";
