//! The streams of a call, one after the other: when a deployed Watch tries again, and what comes out in the end.

use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use crate::journal::Journal;
use crate::session::{self, Because, End, Manner};
use crate::timeline::What;
use crate::tools::Tools;
use crate::verdict::{Signal, Stop, Verdict};
use crate::watch::Grant;

/// Holds stream after stream, as a deployed Watch tries again, until the call has come out.
pub async fn hold(
    journal: &mut Journal,
    manner: &Manner,
    grant: &Grant,
    tools: &Tools,
    stop: &mut Receiver<Stop>,
) -> Verdict {
    let mut tries = 1;
    loop {
        let end = Box::pin(session::run(journal, manner, grant, tools, stop)).await;
        if let Some(verdict) = come_out(journal, &end, *stop.borrow()) {
            return verdict;
        }
        let rejoining = journal.timeline.zero().is_some();
        if rejoining && journal.rejoins < REJOINS {
            journal.rejoins += 1;
        } else if !rejoining && tries < TRIES {
            tries += 1;
        } else if rejoining {
            return Verdict::Broke(words(&end));
        } else {
            return Verdict::Refused(words(&end));
        }
        journal.timeline.note(Instant::now(), What::Retry, words(&end));
        tokio::select! {
            () = sleep(BETWEEN_TRIES) => {}
            signal = stopped(stop) => return Verdict::Interrupted(signal),
        }
    }
}

/// The verdict on a stream's end, unless the Watch tries again.
fn come_out(journal: &Journal, end: &End, stop: Stop) -> Option<Verdict> {
    let started = journal.timeline.zero().is_some();
    let verdict = match end {
        _ if journal.whole => Verdict::Done,
        End::HungUp(Because::Stopped) => Verdict::Interrupted(stop.unwrap_or(Signal::Terminate)),
        End::HungUp(_) if journal.playout.speech().spans().is_empty() => {
            Verdict::NoAnswer("nothing but silence was heard".into())
        }
        End::HungUp(_) => Verdict::NoAnswer("it was not heard to its end before the longest call was over".into()),
        End::GaveUp => Verdict::NoAnswer("the host did not answer `start`".into()),
        End::Recording(error) => Verdict::Fault(error.to_string()),
        End::Codec(error) => Verdict::Fault(error.to_string()),
        End::Error(code, _) if started && matches!(code.as_str(), "unreachable" | "failed") => return None,
        End::Error(code, message) => Verdict::EngineRefused(code.clone(), message.clone()),
        End::Ended(reason) => Verdict::Broke(format!("the host ended it: {reason}")),
        End::NotStarted(close) | End::Lost(close) if close.code == Some(HOST_OFFLINE) => return None,
        End::NotStarted(close) => Verdict::Refused(close.to_string()),
        // A close code of the relay's own, or of whoever stands there, is meant; a break or a plain close is not.
        End::Lost(close) if close.code.is_some_and(|code| code >= 4000) => Verdict::Broke(close.to_string()),
        End::Lost(_) => return None,
        End::NotJoined(_) if !started => Verdict::Refused(words(end)),
        End::NotJoined(_) => return None,
    };
    Some(verdict)
}

fn words(end: &End) -> String {
    match end {
        End::NotJoined(error) => error.to_string(),
        End::NotStarted(close) | End::Lost(close) => close.to_string(),
        End::Error(code, message) => format!("{code}: {message}"),
        other => format!("{other:?}"),
    }
}

/// Returns once the call shall stop; never when whoever could say so is gone.
pub(crate) async fn stopped(stop: &mut Receiver<Stop>) -> Signal {
    let said = stop.wait_for(Option::is_some).await.map(|signal| signal.unwrap_or(Signal::Terminate));
    match said {
        Ok(signal) => signal,
        Err(_) => std::future::pending().await,
    }
}

/// The relay's close code for "the host is not there" (`watch-audio.md`).
const HOST_OFFLINE: u16 = 4503;
/// So often does a Watch try before the first `started` …
const TRIES: u32 = 8;
/// … and so often afterwards …
const REJOINS: u32 = 3;
/// … with so much time between.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
