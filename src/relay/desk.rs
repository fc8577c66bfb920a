//! A grant's tool calls: the Watch leaves one, the host fetches it and brings the result (`relay.md`, "Grants and tool
//! calls"). What is sealed in them is not opened here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Limits;
use crate::seal::tools::Envelope;

/// Where the calls of one grant wait.
#[derive(Debug)]
pub(super) struct Desk {
    limits: Arc<Limits>,
    most_calls: u32,
    state: Mutex<State>,
    /// Told when a poll may have something to say.
    changed: Notify,
}

/// A call as the host fetches it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Call {
    pub(super) rid: String,
    #[serde(flatten)]
    pub(super) sealed: Envelope,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallRefused {
    GrantClosed,
    DuplicateCall,
    GrantExhausted,
    TooManyCalls,
    HostOffline,
    HostTimeout,
}

/// Why a result reached nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultRefused {
    GrantClosed,
    UnknownCall,
}

#[derive(Debug)]
struct State {
    closed: bool,
    /// Every rid that was ever let in: one is answered once.
    taken: HashSet<String>,
    /// Calls that no poll has fetched yet.
    queue: VecDeque<Call>,
    waiting: HashMap<String, oneshot::Sender<Envelope>>,
    /// When a poll last began or ended.
    seen: Instant,
    polls: usize,
    /// The number of the newest poll; an older one ends.
    newest: u64,
}

impl Desk {
    /// The desk of a new grant. Its host counts as just seen.
    pub(super) fn new(limits: Arc<Limits>, most_calls: u32, now: Instant) -> Self {
        let state = State {
            closed: false,
            taken: HashSet::new(),
            queue: VecDeque::new(),
            waiting: HashMap::new(),
            seen: now,
            polls: 0,
            newest: 0,
        };
        Self { limits, most_calls, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Leaves a call and waits for its result. Dropped, it takes the call back.
    pub(super) async fn call(&self, call: Call) -> Result<Envelope, CallRefused> {
        let rid = call.rid.clone();
        let result = self.leave(call)?;
        let _waiting = Waiting { desk: self, rid };
        match tokio::time::timeout(self.limits.call_wait, result).await {
            Ok(Ok(envelope)) => Ok(envelope),
            Ok(Err(_)) => Err(CallRefused::GrantClosed),
            Err(_) => Err(CallRefused::HostTimeout),
        }
    }

    /// Fetches what waits, or waits for it. `None` on a closed grant.
    pub(super) async fn poll(&self, wait: Duration) -> Option<Vec<Call>> {
        let polling = Polling::begin(self);
        let deadline = tokio::time::sleep(wait.min(self.limits.poll_wait));
        tokio::pin!(deadline);
        loop {
            // Listening begins before looking, so nothing falls between the two.
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if state.newest != polling.number || !state.queue.is_empty() {
                    let mine = state.newest == polling.number;
                    return Some(if mine { state.queue.drain(..).collect() } else { Vec::new() });
                }
            }
            tokio::select! {
                () = changed => {}
                () = &mut deadline => return Some(Vec::new()),
            }
        }
    }

    /// Brings a call's result, once.
    pub(super) fn answer(&self, rid: &str, result: Envelope) -> Result<(), ResultRefused> {
        let mut state = self.lock();
        if state.closed {
            return Err(ResultRefused::GrantClosed);
        }
        let waiting = state.waiting.remove(rid).ok_or(ResultRefused::UnknownCall)?;
        waiting.send(result).map_err(|_| ResultRefused::UnknownCall)
    }

    /// Ends every call and poll.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.waiting.clear();
        drop(state);
        self.changed.notify_waiters();
    }

    fn leave(&self, call: Call) -> Result<oneshot::Receiver<Envelope>, CallRefused> {
        let mut state = self.lock();
        if state.closed {
            return Err(CallRefused::GrantClosed);
        }
        if state.taken.contains(&call.rid) {
            return Err(CallRefused::DuplicateCall);
        }
        if state.taken.len() >= self.most_calls as usize {
            return Err(CallRefused::GrantExhausted);
        }
        if state.waiting.len() >= self.limits.waiting_calls {
            return Err(CallRefused::TooManyCalls);
        }
        if state.polls == 0 && state.seen.elapsed() >= self.limits.host_offline {
            return Err(CallRefused::HostOffline);
        }
        let (send, receive) = oneshot::channel();
        state.taken.insert(call.rid.clone());
        state.waiting.insert(call.rid.clone(), send);
        state.queue.push_back(call);
        drop(state);
        self.changed.notify_waiters();
        Ok(receive)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it moves calls")
    }
}

/// A call in wait. However the wait ends, nothing of it stays.
struct Waiting<'a> {
    desk: &'a Desk,
    rid: String,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.waiting.remove(&self.rid);
        state.queue.retain(|call| call.rid != self.rid);
    }
}

/// A poll in progress: while there is one, the host is there.
struct Polling<'a> {
    desk: &'a Desk,
    number: u64,
}

impl<'a> Polling<'a> {
    fn begin(desk: &'a Desk) -> Self {
        let mut state = desk.lock();
        state.polls += 1;
        state.newest += 1;
        state.seen = Instant::now();
        let number = state.newest;
        drop(state);
        desk.changed.notify_waiters();
        Self { desk, number }
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.polls -= 1;
        state.seen = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk(most_calls: u32) -> Arc<Desk> {
        Arc::new(Desk::new(Arc::default(), most_calls, Instant::now()))
    }

    fn call(rid: &str) -> Call {
        Call { rid: rid.into(), sealed: envelope("call") }
    }

    fn envelope(ct: &str) -> Envelope {
        Envelope { n: "n".into(), ct: ct.into() }
    }

    fn spawn(desk: &Arc<Desk>, rid: &str) -> tokio::task::JoinHandle<Result<Envelope, CallRefused>> {
        let (desk, call) = (Arc::clone(desk), call(rid));
        tokio::spawn(async move { desk.call(call).await })
    }

    /// A poll that comes back at once.
    async fn fetch(desk: &Desk) -> Option<Vec<Call>> {
        desk.poll(Duration::ZERO).await
    }

    const TEN: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_call_finds_a_waiting_poll_and_its_result_finds_the_call() {
        let desk = desk(9);
        let host = Arc::clone(&desk);
        let poll = tokio::spawn(async move { host.poll(TEN).await });
        tokio::time::sleep(Duration::from_secs(3)).await;
        let asked = spawn(&desk, "r");
        assert_eq!(poll.await.unwrap(), Some(vec![call("r")]));
        assert_eq!(desk.answer("r", envelope("result")), Ok(()));
        assert_eq!(asked.await.unwrap(), Ok(envelope("result")));
        assert_eq!(desk.answer("r", envelope("again")), Err(ResultRefused::UnknownCall));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_times_out_after_25_s_and_leaves_nothing_behind() {
        let (desk, start) = (desk(9), Instant::now());
        assert_eq!(spawn(&desk, "r").await.unwrap(), Err(CallRefused::HostTimeout));
        assert_eq!(start.elapsed().as_secs(), 25);
        assert_eq!(fetch(&desk).await, Some(vec![]));
        assert_eq!(desk.answer("r", envelope("late")), Err(ResultRefused::UnknownCall));
        assert_eq!(spawn(&desk, "r").await.unwrap(), Err(CallRefused::DuplicateCall));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_offline_40_s_after_its_last_poll() {
        let desk = desk(9);
        assert_eq!(desk.poll(TEN).await, Some(vec![]));
        tokio::time::sleep(Duration::from_millis(39_900)).await;
        assert_eq!(spawn(&desk, "a").await.unwrap(), Err(CallRefused::HostTimeout), "let in, but nobody came");
        assert_eq!(spawn(&desk, "b").await.unwrap(), Err(CallRefused::HostOffline));
        fetch(&desk).await;
        assert_eq!(spawn(&desk, "b").await.unwrap(), Err(CallRefused::HostTimeout), "a refused rid is not used up");
    }

    #[tokio::test(start_paused = true)]
    async fn two_calls_wait_at_most_and_a_grant_has_so_many() {
        let desk = desk(3);
        let (one, two) = (spawn(&desk, "1"), spawn(&desk, "2"));
        tokio::task::yield_now().await;
        assert_eq!(spawn(&desk, "3").await.unwrap(), Err(CallRefused::TooManyCalls));
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
        assert_eq!(fetch(&desk).await, Some(vec![call("2")]), "a Watch that left takes its call along");
        let three = spawn(&desk, "3");
        tokio::task::yield_now().await;
        desk.answer("2", envelope("2")).unwrap();
        assert!(two.await.unwrap().is_ok());
        assert_eq!(spawn(&desk, "4").await.unwrap(), Err(CallRefused::GrantExhausted));
        assert_eq!(three.await.unwrap(), Err(CallRefused::HostTimeout));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_poll_ends_the_older_with_an_empty_list() {
        let (desk, start) = (desk(9), Instant::now());
        let host = Arc::clone(&desk);
        let older = tokio::spawn(async move { host.poll(TEN).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let host = Arc::clone(&desk);
        let newer = tokio::spawn(async move { host.poll(TEN).await });
        assert_eq!(older.await.unwrap(), Some(vec![]));
        assert_eq!(start.elapsed().as_secs(), 1);
        let _asked = spawn(&desk, "r");
        assert_eq!(newer.await.unwrap(), Some(vec![call("r")]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_is_held_25_s_at_most() {
        let (desk, start) = (desk(9), Instant::now());
        assert_eq!(desk.poll(Duration::MAX).await, Some(vec![]));
        assert_eq!(start.elapsed().as_secs(), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_calls_and_polls() {
        let (desk, start) = (desk(9), Instant::now());
        let asked = spawn(&desk, "r");
        tokio::task::yield_now().await;
        fetch(&desk).await;
        let host = Arc::clone(&desk);
        let poll = tokio::spawn(async move { host.poll(TEN).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        desk.close();
        assert_eq!(asked.await.unwrap(), Err(CallRefused::GrantClosed));
        assert_eq!(poll.await.unwrap(), None);
        assert_eq!(start.elapsed().as_secs(), 1);
        assert_eq!(desk.answer("r", envelope("late")), Err(ResultRefused::GrantClosed));
        assert_eq!(spawn(&desk, "s").await.unwrap(), Err(CallRefused::GrantClosed));
    }
}
