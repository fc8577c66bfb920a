//! The beat of the output.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Ticks once per packet from a thread of its own: a sleeping thread is a tenth of a millisecond late, tokio's timers are
/// one and a half.
pub(super) struct Metronome {
    tick: Arc<Notify>,
    stop: Arc<AtomicBool>,
}

impl Metronome {
    /// Ticks until dropped.
    pub(super) fn start(period: Duration) -> Self {
        let this = Self { tick: Arc::default(), stop: Arc::default() };
        let (tick, stop) = (Arc::clone(&this.tick), Arc::clone(&this.stop));
        std::thread::spawn(move || {
            let mut next = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                next += period;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                tick.notify_one();
            }
        });
        this
    }

    /// Waits for the next tick; ticks that nobody waited for are one. Cancel safe.
    pub(super) async fn tick(&self) {
        self.tick.notified().await;
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
