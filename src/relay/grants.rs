//! The grants of a relay. They live in memory, end by themselves, and are remembered a while after.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::desk::Desk;
use super::rate::Window;
use super::seats::Seats;
use super::{Limits, Side, close};
use crate::seal::GrantId;

/// All grants, and how many bridges they have.
#[derive(Debug)]
pub(super) struct Grants {
    limits: Arc<Limits>,
    known: Mutex<Known>,
    bridges: Arc<Bridges>,
    /// Told when the next time to look may have come nearer.
    opened: Notify,
}

/// One grant.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) id: GrantId,
    pub(super) gateway: usize,
    pub(super) watch_key_sha256: [u8; 32],
    pub(super) audio: bool,
    pub(super) desk: Desk,
    pub(super) seats: Seats,
    pub(super) rates: Mutex<Rates>,
    serial: u64,
    expires: Instant,
    closed: OnceLock<Instant>,
    bridge: Mutex<Weak<Bridge>>,
}

/// What a gateway asks for.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) watch_key_sha256: [u8; 32],
    pub(super) life: Duration,
    pub(super) max_calls: u32,
    pub(super) audio: bool,
}

/// A grant's own counts of a minute.
#[derive(Debug, Default)]
pub(super) struct Rates {
    pub(super) calls: Window,
    pub(super) polls: Window,
    pub(super) results: Window,
    host_connects: Window,
    watch_connects: Window,
}

/// One of the bridges that a relay and a gateway may have, given back when dropped.
#[derive(Debug)]
pub(super) struct Bridge {
    all: Arc<Bridges>,
    gateway: usize,
}

#[derive(Debug, Default)]
struct Known {
    /// Live ones, and closed ones for as long as they are remembered.
    grants: HashMap<String, Arc<Grant>>,
    serials: u64,
    down: bool,
}

#[derive(Debug)]
struct Bridges {
    limits: Arc<Limits>,
    /// By gateway.
    counts: Mutex<Vec<usize>>,
}

impl Grants {
    /// No grants yet, of so many gateways.
    pub(super) fn new(limits: Arc<Limits>, gateways: usize) -> Self {
        let bridges = Arc::new(Bridges { limits: Arc::clone(&limits), counts: Mutex::new(vec![0; gateways]) });
        Self { limits, known: Mutex::default(), bridges, opened: Notify::new() }
    }

    /// Opens a grant, closing the gateway's oldest if it has its fill. `None` when the relay has.
    pub(super) fn open(&self, gateway: usize, terms: &Terms) -> Option<Arc<Grant>> {
        let now = Instant::now();
        let mut known = self.lock();
        let own = known.grants.values().filter(|grant| grant.is_live() && grant.gateway == gateway);
        let oldest = if own.clone().count() >= self.limits.grants_per_gateway {
            own.min_by_key(|grant| grant.serial).map(Arc::clone)
        } else {
            None
        };
        let live = known.grants.values().filter(|grant| grant.is_live()).count();
        if known.down || live - usize::from(oldest.is_some()) >= self.limits.grants_per_relay {
            return None;
        }
        if let Some(oldest) = oldest {
            oldest.close(close::GRANT_CLOSED);
        }
        known.serials += 1;
        let grant = Arc::new(Grant {
            id: GrantId::random(),
            gateway,
            watch_key_sha256: terms.watch_key_sha256,
            audio: terms.audio,
            desk: Desk::new(Arc::clone(&self.limits), terms.max_calls, now),
            seats: Seats::default(),
            rates: Mutex::default(),
            serial: known.serials,
            expires: now + terms.life,
            closed: OnceLock::new(),
            bridge: Mutex::default(),
        });
        known.grants.insert(grant.id.to_string(), Arc::clone(&grant));
        drop(known);
        self.opened.notify_one();
        Some(grant)
    }

    /// The grant of this name, live or remembered.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Grant>> {
        self.lock().grants.get(id).map(Arc::clone)
    }

    /// Takes one of the bridges, or shares the one that the grant has. `None` when there are too many.
    pub(super) fn bridge(&self, grant: &Grant) -> Option<Arc<Bridge>> {
        let mut own = grant.bridge.lock().expect("nothing panics while it counts");
        if let Some(bridge) = own.upgrade() {
            return Some(bridge);
        }
        let bridge = Arc::new(self.bridges.take(grant.gateway)?);
        *own = Arc::downgrade(&bridge);
        Some(bridge)
    }

    /// Closes grants when their time is over and forgets those that were closed. Runs until it is dropped.
    pub(super) async fn expire(&self) {
        loop {
            let opened = self.opened.notified();
            let next = self.sweep(Instant::now());
            tokio::select! {
                () = opened => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Closes everything and opens nothing any more.
    pub(super) fn shut_down(&self) {
        let mut known = self.lock();
        known.down = true;
        for grant in known.grants.values() {
            grant.close(close::SHUTTING_DOWN);
        }
    }

    /// Does what is due and says when to look again.
    fn sweep(&self, now: Instant) -> Instant {
        let mut known = self.lock();
        known.grants.retain(|_, grant| {
            if now >= grant.expires {
                grant.close(close::GRANT_CLOSED);
            }
            grant.closed.get().is_none_or(|closed| now < *closed + self.limits.remember)
        });
        let due = known.grants.values().map(|grant| match grant.closed.get() {
            Some(closed) => *closed + self.limits.remember,
            None => grant.expires,
        });
        due.min().unwrap_or(now + self.limits.longest_grant)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics while it looks grants up")
    }
}

impl Grant {
    /// Whether it was neither closed nor is over.
    pub(super) fn is_live(&self) -> bool {
        self.closed.get().is_none() && Instant::now() < self.expires
    }

    /// Ends its calls, its polls and its bridge. The first time counts.
    pub(super) fn close(&self, code: u16) {
        if self.closed.set(Instant::now()).is_ok() {
            self.desk.close();
            self.seats.close(code);
        }
    }

    /// Counts one of the minute's connects of a side.
    pub(super) fn admit_connect(&self, side: Side, most: u32) -> bool {
        let mut rates = self.rates.lock().expect("nothing panics while it counts");
        let window = match side {
            Side::Host => &mut rates.host_connects,
            Side::Watch => &mut rates.watch_connects,
        };
        window.once_a_minute(Instant::now(), most)
    }
}

impl Bridges {
    fn take(self: &Arc<Self>, gateway: usize) -> Option<Bridge> {
        let mut counts = self.counts.lock().expect("nothing panics while it counts");
        let all: usize = counts.iter().sum();
        if counts[gateway] >= self.limits.bridges_per_gateway || all >= self.limits.bridges_per_relay {
            return None;
        }
        counts[gateway] += 1;
        Some(Bridge { all: Arc::clone(self), gateway })
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.all.counts.lock().expect("nothing panics while it counts")[self.gateway] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(limits: Limits) -> Grants {
        Grants::new(Arc::new(limits), 2)
    }

    fn terms() -> Terms {
        Terms { watch_key_sha256: [0; 32], life: Duration::from_secs(60), max_calls: 1, audio: true }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_at_its_bound_closes_its_oldest_and_no_one_elses() {
        let grants = grants(Limits { grants_per_gateway: 2, grants_per_relay: 3, ..Limits::default() });
        let other = grants.open(1, &terms()).unwrap();
        let own: Vec<_> = (0..3).map(|_| grants.open(0, &terms()).unwrap()).collect();
        let live: Vec<_> = own.iter().map(|grant| grant.is_live()).collect();
        assert_eq!(live, [false, true, true]);
        assert!(other.is_live());
        assert!(grants.open(1, &terms()).is_none(), "the relay has its fill");
        own[1].close(4010);
        assert!(grants.open(1, &terms()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_ends_by_itself_and_is_remembered_a_while() {
        let grants = Arc::new(grants(Limits::default()));
        let expiry = Arc::clone(&grants);
        let expiry = tokio::spawn(async move { expiry.expire().await });
        tokio::time::sleep(Duration::from_secs(7)).await;
        let grant = grants.open(0, &terms()).unwrap();
        let mut host = grant.seats.join(Side::Host).unwrap();
        let start = Instant::now();
        assert_eq!((&mut host.ended).await.unwrap().code, 4010);
        assert!(start.elapsed() <= Duration::from_millis(60_010), "{:?}", start.elapsed());
        assert!(!grant.is_live());
        assert!(grants.get(grant.id.as_str()).is_some());
        tokio::time::sleep(Duration::from_secs(599)).await;
        assert!(grants.get(grant.id.as_str()).is_some());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(grants.get(grant.id.as_str()).is_none());
        expiry.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn bridges_are_counted_per_gateway_and_in_all_and_given_back() {
        let grants = grants(Limits { bridges_per_gateway: 2, bridges_per_relay: 3, ..Limits::default() });
        let of = |gateway| grants.open(gateway, &terms()).unwrap();
        let (one, two, three) = (of(0), of(0), of(0));
        let held = grants.bridge(&one).unwrap();
        let again = grants.bridge(&one).unwrap();
        let _two = grants.bridge(&two).unwrap();
        assert!(grants.bridge(&three).is_none(), "the gateway has its fill");
        drop(held);
        assert!(grants.bridge(&three).is_none(), "a newer host shares its grant's bridge");
        let _four = grants.bridge(&of(1)).unwrap();
        assert!(grants.bridge(&of(1)).is_none(), "the relay has its fill");
        drop(again);
        assert!(grants.bridge(&three).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn after_shutting_down_nothing_opens() {
        let grants = grants(Limits::default());
        let grant = grants.open(0, &terms()).unwrap();
        let mut host = grant.seats.join(Side::Host).unwrap();
        grants.shut_down();
        assert_eq!(host.ended.try_recv().unwrap().code, 1001);
        assert!(grants.open(0, &terms()).is_none());
    }
}
