//! How late packets come, against the earliest of the last ten seconds.

use std::time::Duration;

/// Transit (arrival less timestamp) of the last [`SECONDS`] seconds. Sender's and our clock share no origin, so only
/// differences mean anything. All in ticks of 48 kHz.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Least and greatest transit per second, and which second.
    seconds: [Option<(u64, i64, i64)>; SECONDS],
}

impl Lateness {
    /// A packet of `timestamp` arrived at `now`.
    pub(super) fn push(&mut self, now: Duration, timestamp: i64) {
        let transit = to_ticks(now) - timestamp;
        if self.extremes().is_some_and(|(least, most)| transit < least - MAX_EARLY || transit > most + MAX_LATE) {
            // No network does that: the sender's timestamps jumped.
            self.reset();
        }
        let second = now.as_secs();
        for slot in &mut self.seconds {
            if slot.is_some_and(|(at, ..)| at + (SECONDS as u64) <= second) {
                *slot = None;
            }
        }
        let slot = &mut self.seconds[(second % SECONDS as u64) as usize];
        let (_, least, most) = slot.unwrap_or((second, transit, transit));
        *slot = Some((second, least.min(transit), most.max(transit)));
    }

    /// When the packet of `timestamp` is due: the moment a packet as quick as the quickest would come.
    pub(super) fn due(&self, timestamp: i64) -> Option<Duration> {
        self.extremes().map(|(least, _)| from_ticks(timestamp + least))
    }

    /// How much later than due the latest packet came.
    pub(super) fn worst(&self) -> Duration {
        self.extremes().map_or(Duration::ZERO, |(least, most)| from_ticks(most - least))
    }

    /// Forgets all: the stream began anew.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    fn extremes(&self) -> Option<(i64, i64)> {
        let known = || self.seconds.iter().flatten();
        Some((known().map(|second| second.1).min()?, known().map(|second| second.2).max()?))
    }
}

/// In ticks of the 48 kHz RTP clock of Opus (RFC 7587 section 4.1).
pub(super) fn to_ticks(time: Duration) -> i64 {
    (time.as_nanos() * 48 / 1_000_000) as i64
}

/// Back from ticks; nothing below zero.
pub(super) fn from_ticks(ticks: i64) -> Duration {
    Duration::from_nanos(u64::try_from(i128::from(ticks) * 1_000_000 / 48).unwrap_or(0))
}

/// The memory: long enough to hold the worst of a jittery network, short enough that clock drift (5 ms at 500 ppm)
/// does not show.
const SECONDS: usize = 10;
/// Half a second earlier than the earliest.
const MAX_EARLY: i64 = 24_000;
/// Ten seconds later than the latest.
const MAX_LATE: i64 = 480_000;
