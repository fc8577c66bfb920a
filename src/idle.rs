//! Connections on which nothing is being done: their head has not come, or they were answered and say nothing more. When
//! a server is full, the one that has been so for longest makes room: a crowd that connects and asks for nothing must not
//! keep those out who come for a call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

/// All of them, by the time since when they are.
#[derive(Debug, Default)]
pub(crate) struct Idle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// A connection's place among them. It begins idle, and is not when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    idle: Arc<Idle>,
    since: Mutex<Option<u64>>,
    go: Arc<Notify>,
}

impl Idle {
    /// A connection that has just come.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        let place = Place { idle: Arc::clone(self), since: Mutex::default(), go: Arc::default() };
        place.rest();
        place
    }

    /// Sends the one away that has been idle for longest, if there is any.
    pub(crate) fn make_room(&self) {
        let oldest = self.lock().waiting.pop_first();
        if let Some((_, go)) = oldest {
            go.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it looks connections up")
    }
}

impl Place {
    /// Something is asked for on this connection.
    pub(crate) fn work(&self) {
        let since = self.since.lock().expect("nothing panics while it is set").take();
        if let Some(since) = since {
            self.idle.lock().waiting.remove(&since);
        }
    }

    /// It is answered: the connection is idle, from now on.
    pub(crate) fn rest(&self) {
        self.work();
        let mut state = self.idle.lock();
        let since = state.next;
        state.next += 1;
        state.waiting.insert(since, Arc::clone(&self.go));
        drop(state);
        *self.since.lock().expect("nothing panics while it is set") = Some(since);
    }

    /// Waits until the connection is to make room.
    pub(crate) async fn sent_away(&self) {
        self.go.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.work();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn who_has_been_idle_for_longest_makes_room_and_who_works_stays() {
        let idle = Arc::new(Idle::default());
        let places: Vec<Place> = (0..4).map(|_| idle.enter()).collect();
        let away = |n: usize| places[n].sent_away().now_or_never().is_some();
        places[0].work();
        places[1].work();
        places[1].rest();
        idle.make_room();
        assert_eq!([away(0), away(1), away(2), away(3)], [false, false, true, false]);
        for _ in 0..9 {
            idle.make_room();
        }
        assert_eq!([away(0), away(1), away(3)], [false, true, true], "one that works is never sent away");
        places[0].rest();
        drop(places);
        assert!(idle.lock().waiting.is_empty(), "nothing of a connection stays");
    }
}
