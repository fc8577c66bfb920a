//! One call with an engine: waiting for a slot, starting, running, closing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

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
    Starting { engine: EngineKind, since: Instant, stats: bool, attempt: JoinSet<Attempt> },
    /// Sound flows.
    Running(Box<Running>),
}

/// A start's outcome; a session comes with the slot it holds.
pub(super) type Attempt = Result<(Session, Started, Slot), StartError>;

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
        let (engine, stats) = (start.engine, start.flag("stats"));
        let mut attempt = JoinSet::new();
        attempt.spawn(async move {
            let started = timeout_at(since + start_limit(engine), engine::start(&start, &sign_in, &config)).await;
            let late = |_| StartError::new(ErrorCode::Unreachable, "The voice service did not answer in time.");
            let (session, started) = started.map_err(late)??;
            Ok((session, started, slot))
        });
        Self::Starting { engine, since, stats, attempt }
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

/// Calls that ended and still hold their slot, each for at most [`CLOSE_LIMIT`].
#[derive(Default)]
pub(super) struct Closing(JoinSet<()>);

impl Closing {
    /// Closes a call in order, in a task of its own.
    pub(super) fn add(&mut self, phase: Phase) {
        let deadline = Instant::now() + CLOSE_LIMIT;
        match phase {
            Phase::Idle | Phase::Waiting { .. } => {}
            Phase::Starting { engine, mut attempt, .. } => {
                self.0.spawn(async move {
                    let attempted = match timeout(linger(engine), attempt.join_next()).await {
                        Ok(attempted) => attempted,
                        Err(_) => {
                            attempt.abort_all();
                            attempt.join_next().await
                        }
                    };
                    if let Some(Ok(Ok((session, _, slot)))) = attempted {
                        close(session, slot, deadline).await;
                    }
                });
            }
            Phase::Running(running) => {
                let Running { session, slot, .. } = *running;
                self.0.spawn(close(session, slot, deadline));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until one of them is closed; cancel safe.
    pub(super) async fn next(&mut self) {
        if self.0.join_next().await.is_none() {
            std::future::pending().await
        }
    }

    /// Waits until all are closed and cancels what is not by `deadline`.
    pub(super) async fn finish(mut self, deadline: Instant) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if timeout_at(deadline, all).await.is_err() {
            tracing::warn!("a session did not close in time and was cancelled");
        }
    }
}

/// Ends a session with its engine; then its slot is free.
async fn close(session: Session, slot: Slot, deadline: Instant) {
    if timeout_at(deadline, session.close()).await.is_err() {
        tracing::warn!("a session did not close in time and was cancelled");
    }
    drop(slot);
}

/// How long a start that nobody wants any more may go on. GPT-Live bills a session from its answer on, and one that is
/// not connected cannot be told to close: it would live on until the engine gives up on it, some 30 s later. This leaves
/// as long for its goodbye.
fn linger(engine: EngineKind) -> Duration {
    match engine {
        EngineKind::GptLive => CLOSE_LIMIT / 2,
        EngineKind::Grok => Duration::ZERO,
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
