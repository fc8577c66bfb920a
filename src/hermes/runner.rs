//! Delegations as runs: one run at a time in each conversation, and a newer request in the place of the older (cases 32, 33).

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::client::{Hermes, NewRun, RunId, StartError};
use super::follow::{Ending, Progress};

/// Who said a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The person.
    User,
    /// The voice.
    Assistant,
}

/// What every run of a call is told: what it gets, and what becomes of its answer (`hermes-voice.md`).
pub const SPOKEN: &str = "\
The input is a transcript of speech: expect misheard words, and take them for what was meant. Your answer will be spoken \
aloud. Answer in a few plain sentences in the user's language, the result first; no Markdown, no lists, no tables, no code, \
no URLs spelt out.";

/// A spoken line.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Who said it.
    pub speaker: Speaker,
    /// What was said.
    pub text: String,
}

impl fmt::Debug for Line {
    /// What was said stays out of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("speaker", &self.speaker).finish_non_exhaustive()
    }
}

/// A request to the agent.
pub struct Delegation {
    /// The Hermes session, which is the conversation: 1 to 64 of `A-Za-z0-9_-`.
    pub session: String,
    /// The delegation's own id, where it has one: the same one is never run twice.
    pub id: Option<String>,
    /// What was said since the last request, newest last.
    pub lines: Vec<Line>,
}

/// What becomes of a delegation, in order. After [`Update::Ended`] or [`Update::NotStarted`] there is nothing more.
#[derive(Clone, PartialEq, Eq)]
pub enum Update {
    /// The run has begun.
    Started(RunId),
    /// There is no run.
    NotStarted(StartError),
    /// Something goes on in it.
    Progress(RunId, Progress),
    /// It is over. A request that a newer one replaced ends as cancelled, whatever its run still says.
    Ended(Ending),
}

/// Why a delegation is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// It was taken before.
    #[error("this request was taken already")]
    Repeated,
    /// Too many conversations have a run.
    #[error("too many conversations have work running; ask again when one is done")]
    Full,
}

/// Runs delegations. Who asked may go away: the run goes on, and a later request of the conversation still replaces it.
/// Dropping the last clone leaves the runs to Hermes.
#[derive(Clone)]
pub struct Runner {
    shared: Arc<Shared>,
    /// One for each conversation that has a run.
    workers: Arc<Mutex<JoinSet<()>>>,
}

struct Shared {
    hermes: Hermes,
    instructions: String,
    conversations: Mutex<HashMap<String, Conversation>>,
}

#[derive(Default)]
struct Conversation {
    /// Delegations taken, newest last.
    taken: VecDeque<String>,
    /// Tells the worker that its run is replaced; none when nothing runs.
    running: Option<watch::Sender<bool>>,
    /// The one request that waits for the run before it to stop.
    waiting: Option<Job>,
    /// What was said in requests that never became a run: the next one begins with it.
    unheard: Vec<Line>,
    used: Option<Instant>,
}

struct Job {
    lines: Vec<Line>,
    asker: mpsc::Sender<Update>,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runner")
    }
}

impl Runner {
    /// A runner on a server. `instructions` go with every run.
    pub fn new(hermes: Hermes, instructions: String) -> Self {
        let shared = Shared { hermes, instructions, conversations: Mutex::default() };
        Self { shared: Arc::new(shared), workers: Arc::default() }
    }

    /// The server.
    pub fn hermes(&self) -> &Hermes {
        &self.shared.hermes
    }

    /// Takes a delegation. Its run starts as soon as the one before it in the same conversation has stopped.
    ///
    /// # Errors
    /// When it was taken before, or too many conversations have a run.
    pub fn delegate(&self, delegation: Delegation) -> Result<mpsc::Receiver<Update>, Rejected> {
        let Delegation { session, id, lines } = delegation;
        let mut conversations = self.shared.conversations();
        make_room(&mut conversations, &session)?;
        let conversation = conversations.entry(session.clone()).or_default();
        conversation.take(id)?;
        let (asker, updates) = mpsc::channel(UPDATES);
        let job = Job { lines, asker };
        match &conversation.running {
            Some(running) => {
                running.send_replace(true);
                if let Some(replaced) = conversation.waiting.replace(job) {
                    replaced.tell(Update::Ended(replaced_by_newer()));
                    conversation.unheard.extend(replaced.lines);
                    newest(&mut conversation.unheard);
                }
            }
            None => {
                let replaced = conversation.begin();
                let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
                while workers.try_join_next().is_some() {}
                workers.spawn(work(Arc::clone(&self.shared), session, job, replaced));
            }
        }
        Ok(updates)
    }
}

impl Conversation {
    fn take(&mut self, id: Option<String>) -> Result<(), Rejected> {
        self.used = Some(Instant::now());
        let Some(id) = id else { return Ok(()) };
        if self.taken.contains(&id) {
            return Err(Rejected::Repeated);
        }
        self.taken.push_back(id);
        if self.taken.len() > REMEMBERED {
            self.taken.pop_front();
        }
        Ok(())
    }

    /// A run begins; the receiver says when it is replaced.
    fn begin(&mut self) -> watch::Receiver<bool> {
        let (running, replaced) = watch::channel(false);
        self.running = Some(running);
        replaced
    }
}

impl Shared {
    fn conversations(&self) -> MutexGuard<'_, HashMap<String, Conversation>> {
        self.conversations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes after a run: the request that waited, or nothing.
    fn next(&self, session: &str) -> Option<(Job, watch::Receiver<bool>)> {
        let mut conversations = self.conversations();
        let conversation = conversations.get_mut(session)?;
        match conversation.waiting.take() {
            Some(job) => Some((job, conversation.begin())),
            None => {
                conversation.running = None;
                None
            }
        }
    }

    /// The request with what was said before it and never became one.
    fn with_unheard(&self, session: &str, job: &mut Job) {
        if let Some(conversation) = self.conversations().get_mut(session) {
            let mut lines = std::mem::take(&mut conversation.unheard);
            lines.append(&mut job.lines);
            newest(&mut lines);
            job.lines = lines;
        }
    }

    /// It never became a run: what was said in it goes with the next one.
    fn was_not_heard(&self, session: &str, lines: Vec<Line>) {
        if let Some(conversation) = self.conversations().get_mut(session) {
            // One that came meanwhile is newer.
            conversation.unheard.splice(0..0, lines);
            newest(&mut conversation.unheard);
        }
    }

    /// Runs one request to its end, or until it is replaced and has stopped.
    async fn run(&self, session: &str, mut job: Job, mut replaced: watch::Receiver<bool>) {
        self.with_unheard(session, &mut job);
        let run = NewRun {
            input: input(&job.lines),
            instructions: self.instructions.clone(),
            session_id: session.to_owned(),
            key: key(),
        };
        let run = match self.hermes.start(&run, &mut replaced).await {
            Ok(run) => run,
            Err(error) => {
                if error.is_refusal() {
                    self.was_not_heard(session, std::mem::take(&mut job.lines));
                }
                return match error {
                    StartError::Replaced => job.tell(Update::Ended(replaced_by_newer())),
                    error => job.tell(Update::NotStarted(error)),
                };
            }
        };
        job.tell(Update::Started(run.clone()));
        let tell = |progress| job.tell(Update::Progress(run.clone(), progress));
        let ending = tokio::select! {
            ending = self.hermes.follow(&run, tell) => Some(ending),
            Ok(_) = replaced.wait_for(|replaced| *replaced) => None,
        };
        match ending {
            Some(ending) => tokio::select! {
                () = job.finish(ending) => {}
                Ok(_) = replaced.wait_for(|replaced| *replaced) => {}
            },
            None => {
                // What it says from now on is late, and nobody is to hear it.
                job.tell(Update::Ended(replaced_by_newer()));
                drop(job);
                self.hermes.stop(&run).await;
            }
        }
    }
}

/// Runs a conversation's requests until none is left.
async fn work(shared: Arc<Shared>, session: String, job: Job, replaced: watch::Receiver<bool>) {
    let mut next = Some((job, replaced));
    while let Some((job, replaced)) = next {
        shared.run(&session, job, replaced).await;
        next = shared.next(&session);
    }
}

impl Job {
    /// Tells who asked. One who went away, or who does not read, misses it.
    fn tell(&self, update: Update) {
        let _ = self.asker.try_send(update);
    }

    /// Tells the ending, which waits a little for a slow reader.
    async fn finish(&self, ending: Ending) {
        let _ = timeout(READ_LIMIT, self.asker.send(Update::Ended(ending))).await;
    }
}

/// Makes room for a conversation: the one without a run that was used longest ago is forgotten.
fn make_room(conversations: &mut HashMap<String, Conversation>, session: &str) -> Result<(), Rejected> {
    if conversations.len() < CONVERSATIONS || conversations.contains_key(session) {
        return Ok(());
    }
    let idle = conversations.iter().filter(|(_, conversation)| conversation.running.is_none());
    let oldest = idle.min_by_key(|(_, conversation)| conversation.used).map(|(session, _)| session.clone());
    let oldest = oldest.ok_or(Rejected::Full)?;
    conversations.remove(&oldest);
    Ok(())
}

/// What a run is asked (`hermes-voice.md`): the lines since the last request, so that Hermes takes the rest from its session.
fn input(lines: &[Line]) -> String {
    let mut input = "Spoken conversation since the last request, newest last:".to_owned();
    for line in lines {
        let speaker = match line.speaker {
            Speaker::User => "User",
            Speaker::Assistant => "Assistant",
        };
        // Line breaks within a line would look like another speaker's.
        let words: Vec<&str> = line.text.split_whitespace().collect();
        // Writing to a string cannot fail.
        let _ = write!(input, "\n{speaker}: {}", words.join(" "));
    }
    input
}

/// Leaves the newest lines, as many as a request may have: they say what is wanted. One is always left.
fn newest(lines: &mut Vec<Line>) {
    let mut room = MAX_INPUT;
    let fits = |line: &&Line| {
        let left = room.checked_sub(line.text.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = lines.iter().rev().take_while(fits).count().max(1);
    lines.drain(..lines.len().saturating_sub(kept));
}

fn replaced_by_newer() -> Ending {
    Ending::Ended { reason: "cancelled", error: "A newer request took its place.".into() }
}

/// A name for a request that no other has.
fn key() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system's random source works once the system is up");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Conversations remembered: each is a call, or a browser tab.
const CONVERSATIONS: usize = 64;

/// Delegations of a conversation remembered: far more than a call has.
const REMEMBERED: usize = 1_024;

/// Bytes of speech in one request, where earlier ones are part of it.
const MAX_INPUT: usize = 256 * 1024;

/// Updates held for who asked: tools come a few a second at most.
const UPDATES: usize = 64;

/// A reader that has not taken an update for so long does not read.
const READ_LIMIT: Duration = Duration::from_secs(10);
