//! Keeps what we send within the relay's limit: 96 KiB a second over windows of 5 s whose edges we do not know.
//!
//! Asked before a message is taken from where it waits: what has not been taken can still be dropped by a barge-in.

use std::time::Duration;

use tokio::time::Instant;

/// How much may be sent when. A message may overdraw the account; sound then waits until it is level.
#[derive(Debug)]
pub(super) struct Pace {
    balance: f64,
    at: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { balance: BURST, at: now }
    }

    /// When sound may go next, or something else: that is small, and what says that the sound is over must not wait behind
    /// the last of it.
    pub(super) fn next(&self, sound: bool) -> Instant {
        let credit = if sound { 0.0 } else { RESERVE };
        self.at + Duration::from_secs_f64((-self.balance - credit).max(0.0) / RATE)
    }

    /// A message of `bytes` goes at `now`.
    pub(super) fn spend(&mut self, now: Instant, bytes: usize) {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * RATE;
        self.balance = (self.balance + earned).min(BURST) - (bytes as f64 + FRAME_COST);
        self.at = now;
    }
}

/// Bytes a second in the long run, and bytes at once. Any 5 s then hold at most 368 KiB, the reserve and one message of 64 KiB
/// of the relay's 480 KiB. The rest is for a stall: what was in the kernels' buffers, our 16 KiB unsent and the relay's 64 KiB
/// unread, was sent before and comes together with what follows. GPT-Live's steady 53 KB/s never waits, catching up or a
/// lead of Grok's does a little.
const RATE: f64 = 64.0 * 1024.0;
const BURST: f64 = 48.0 * 1024.0;
/// How far what is no sound may go into the red: past a piece of Grok's, 100 ms in PCM.
const RESERVE: f64 = 6.0 * 1024.0;

/// What the relay counts for each frame besides its length, and our own frame header.
const FRAME_COST: f64 = 64.0 + 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as the relay counts them in the fullest 5 s.
    fn fullest_window(sound: bool, sizes: impl Fn(usize) -> usize) -> usize {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut sent: Vec<(Instant, usize)> = Vec::new();
        let mut now = start;
        for n in 0.. {
            now = now.max(pace.next(sound));
            if now > start + Duration::from_secs(30) {
                break;
            }
            pace.spend(now, sizes(n));
            sent.push((now, sizes(n) + 64));
        }
        let window = |from: Instant| {
            sent.iter()
                .filter(|(at, _)| *at >= from && *at < from + Duration::from_secs(5))
                .map(|(_, bytes)| bytes)
                .sum::<usize>()
        };
        sent.iter().map(|(at, _)| window(*at)).max().unwrap()
    }

    #[test]
    fn no_window_is_over_the_relays_limit() {
        for sound in [true, false] {
            assert!(fullest_window(sound, |_| 985) <= 480 * 1024);
            assert!(fullest_window(sound, |_| 4_825) <= 480 * 1024);
            assert!(fullest_window(sound, |_| 65_536) <= 480 * 1024);
            assert!(fullest_window(sound, |n| if n % 7 == 0 { 65_536 } else { 30 }) <= 480 * 1024);
        }
    }

    #[test]
    fn what_ends_the_sound_does_not_wait_behind_it() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        for _ in 0..100 {
            now = now.max(pace.next(true));
            pace.spend(now, 4_825);
            assert!(pace.next(false) <= now);
        }
        assert!(pace.next(true) > now + Duration::from_millis(50), "sound waits");
    }

    /// Bytes as the relay counts them in its fullest 5 s when nothing reached it from `from` to `to`: up to 80 KiB wait in
    /// between, then nothing more is taken from us.
    fn fullest_window_after_a_stall(from: Duration, to: Duration, size: usize) -> usize {
        let start = Instant::now();
        let (from, to) = (start + from, start + to);
        let mut pace = Pace::new(start);
        let mut came: Vec<Instant> = Vec::new();
        let (mut now, mut between) = (start, 0);
        while now < start + Duration::from_secs(30) {
            now = now.max(pace.next(true));
            let stalled = (from..to).contains(&now);
            if stalled && between + size > 80 * 1024 {
                now = to;
                continue;
            }
            pace.spend(now, size);
            between += if stalled { size } else { 0 };
            came.push(if stalled { to } else { now });
        }
        let window =
            |from: Instant| came.iter().filter(|at| (from..from + Duration::from_secs(5)).contains(at)).count();
        came.iter().map(|at| window(*at)).max().unwrap() * (size + 64)
    }

    #[test]
    fn nor_is_the_one_behind_a_stall() {
        for tenths in [5, 10, 15, 20, 30, 60, 100] {
            for size in [985, 4_825] {
                let end = Duration::from_secs(8) + Duration::from_millis(100) * tenths;
                let fullest = fullest_window_after_a_stall(Duration::from_secs(8), end, size);
                assert!(fullest <= 480 * 1024, "{tenths}, {size}: {fullest}");
            }
        }
    }

    #[test]
    fn a_live_stream_never_waits() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for n in 0..3_000 {
            let now = start + Duration::from_millis(20) * n;
            assert!(pace.next(true) <= now);
            pace.spend(now, 985);
        }
    }
}
