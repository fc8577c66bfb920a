//! One call with an engine: waiting for a slot, starting, running, closing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::slots::Slot;
use crate::engine::{self, EngineConfig, EngineKind, ErrorCode, Session, Start, StartError, Started};
use crate::sign_in::SignIn;

/// Where the call is. There is at most one; one that ended closes beside it ([`Closing`]).
pub(super) enum Phase {
    /// No call.
    Idle,
    /// Every slot is taken, one of them by a call of our own that is still closing.
    Waiting { start: Start, since: Instant },
    /// The engine is being signed in to and connected.
    Starting {
        engine: EngineKind,
        since: Instant,
        stats: bool,
        slot: Slot,
        /// Whether the sign-in may be under way: then there may be a session soon, whoever still wants it.
        asked: bool,
        attempt: JoinSet<Attempt>,
    },
    /// Sound flows.
    Running(Box<Running>),
}

/// A start's outcome.
pub(super) type Attempt = Result<(Session, Started), StartError>;

/// A running call.
pub(super) struct Running {
    pub(super) engine: EngineKind,
    pub(super) since: Instant,
    pub(super) session: Session,
    pub(super) slot: Slot,
    pub(super) traffic: Traffic,
    /// Whether the Watch wants its figures.
    pub(super) stats: bool,
    /// Since when the engine has ended while what it said before still goes out.
    pub(super) ended_since: Option<Instant>,
}

/// What crossed the link in a call.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) audio_in: Count,
    pub(super) audio_out: Count,
    pub(super) events_in: Count,
    pub(super) events_out: Count,
}

/// Messages and their bytes in clear.
#[derive(Debug, Default)]
pub(super) struct Count {
    messages: u64,
    bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    fn figures(&self) -> Value {
        json!({"messages": self.messages, "bytes": self.bytes})
    }
}

impl Phase {
    /// Starts the engine in a task of its own, so that the Watch and the parent are heard meanwhile.
    pub(super) fn start(
        start: Start,
        since: Instant,
        slot: Slot,
        sign_in: Arc<SignIn>,
        config: Arc<EngineConfig>,
    ) -> Self {
        let (engine, stats, asked) = (start.engine, start.flag("stats"), !sign_in.is_the_plugins());
        let mut attempt = JoinSet::new();
        attempt.spawn(async move {
            let started = timeout_at(since + start_limit(engine), engine::start(&start, &sign_in, &config)).await;
            let late = |_| StartError::new(ErrorCode::Unreachable, "The voice service did not answer in time.");
            started.map_err(late)?
        });
        Self::Starting { engine, since, stats, slot, asked, attempt }
    }

    /// The call's engine.
    pub(super) fn engine(&self) -> Option<EngineKind> {
        match self {
            Self::Idle => None,
            Self::Waiting { start, .. } => Some(start.engine),
            Self::Starting { engine, .. } => Some(*engine),
            Self::Running(running) => Some(running.engine),
        }
    }

    /// Waits until the call moves on by itself; cancel safe.
    pub(super) async fn next(&mut self) -> Moved {
        match self {
            Self::Starting { attempt, .. } => match attempt.join_next().await {
                Some(Ok(attempt)) => Moved::Attempted(Box::new(attempt)),
                Some(Err(_)) => {
                    tracing::error!("a start broke off; this is a fault of ours");
                    let error = StartError::new(ErrorCode::Failed, "The host failed to start the call.");
                    Moved::Attempted(Box::new(Err(error)))
                }
                None => std::future::pending().await,
            },
            Self::Running(running) => {
                running.session.drive().await;
                Moved::Driven
            }
            Self::Idle | Self::Waiting { .. } => std::future::pending().await,
        }
    }

    /// Figures of the call so far.
    pub(super) fn summary(&self, now: Instant) -> Map<String, Value> {
        match self {
            Self::Idle => Map::new(),
            Self::Waiting { since, .. } | Self::Starting { since, .. } => duration(*since, now),
            Self::Running(running) => running.summary(now),
        }
    }
}

/// How a call moved on.
pub(super) enum Moved {
    /// A start came to its end.
    Attempted(Box<Attempt>),
    /// The session took something in: poll it.
    Driven,
}

impl Running {
    pub(super) fn new(engine: EngineKind, since: Instant, session: Session, slot: Slot, stats: bool) -> Self {
        Self { engine, since, session, slot, traffic: Traffic::default(), stats, ended_since: None }
    }

    /// A `stats` line, for the parent and the Watch alike.
    pub(super) fn stats_line(&self, now: Instant) -> Value {
        let mut line = self.summary(now);
        line.insert("type".into(), "stats".into());
        line.insert("engine".into(), self.engine.as_str().into());
        line.into()
    }

    pub(super) fn summary(&self, now: Instant) -> Map<String, Value> {
        let mut figures = duration(self.since, now);
        figures.insert("watch_audio_in".into(), self.traffic.audio_in.figures());
        figures.insert("watch_audio_out".into(), self.traffic.audio_out.figures());
        figures.insert("watch_events_in".into(), self.traffic.events_in.figures());
        figures.insert("watch_events_out".into(), self.traffic.events_out.figures());
        figures.extend(self.session.stats());
        figures
    }
}

/// From `start` on, in seconds.
fn duration(since: Instant, now: Instant) -> Map<String, Value> {
    let seconds = now.saturating_duration_since(since).as_secs_f64();
    Map::from_iter([("duration_s".to_owned(), json!((seconds * 1e3).round() / 1e3))])
}

/// Calls that ended and still hold their slot, each for at most [`CLOSE_LIMIT`]; and the starts that nobody wants any more,
/// which may go on for longer without one.
#[derive(Default)]
pub(super) struct Closing {
    slots: JoinSet<()>,
    given_up: JoinSet<()>,
}

impl Closing {
    /// Closes a call in order, in a task of its own.
    pub(super) fn add(&mut self, phase: Phase) {
        let deadline = Instant::now() + CLOSE_LIMIT;
        match phase {
            Phase::Idle | Phase::Waiting { .. } => {}
            // Nothing was asked for yet, or what was is not billed before we are there.
            Phase::Starting { engine, asked, mut attempt, slot, .. } if !asked || engine == EngineKind::Grok => {
                // At once, so that it asks for nothing more.
                let done = attempt.try_join_next();
                attempt.abort_all();
                self.slots.spawn(async move {
                    match done {
                        Some(Ok(Ok((session, _)))) => close(session, deadline).await,
                        _ => attempt.shutdown().await,
                    }
                    drop(slot);
                });
            }
            // GPT-Live bills a session from its answer on, and one that is not connected cannot be told to close: it would
            // live until the engine gives up on it. So the start goes on to its own end, at most its 40 s, to be closed.
            Phase::Starting { mut attempt, slot, .. } => {
                let (over, is_over) = oneshot::channel::<()>();
                self.given_up.spawn(async move {
                    if let Some(Ok(Ok((session, _)))) = attempt.join_next().await {
                        close(session, Instant::now() + CLOSE_LIMIT).await;
                    }
                    drop(over);
                });
                self.slots.spawn(async move {
                    let _ = timeout_at(deadline, is_over).await;
                    drop(slot);
                });
            }
            Phase::Running(running) => {
                let Running { session, slot, .. } = *running;
                self.slots.spawn(async move {
                    close(session, deadline).await;
                    drop(slot);
                });
            }
        }
    }

    /// Whether no slot is about to be given back.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Waits until one of the slots is given back; cancel safe.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            Some(_) = self.slots.join_next() => {}
            // Only taken note of.
            Some(_) = self.given_up.join_next() => {}
            else => std::future::pending().await,
        }
    }

    /// Waits until all are closed and cancels what is not by `deadline`.
    pub(super) async fn finish(mut self, deadline: Instant) {
        let all = async {
            while self.slots.join_next().await.is_some() {}
            while self.given_up.join_next().await.is_some() {}
        };
        if timeout_at(deadline, all).await.is_err() {
            tracing::warn!("a session did not close in time and was cancelled");
        }
    }
}

/// Ends a session with its engine.
async fn close(session: Session, deadline: Instant) {
    if timeout_at(deadline, session.close()).await.is_err() {
        tracing::warn!("a session did not close in time and was cancelled");
    }
}

/// `watch-audio.md`: from `start` to `started` or `error`.
fn start_limit(engine: EngineKind) -> Duration {
    match engine {
        EngineKind::GptLive => Duration::from_secs(40),
        EngineKind::Grok => Duration::from_secs(18),
    }
}

/// `watch-audio.md`: a session that will not stop is cancelled after 5 s.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
