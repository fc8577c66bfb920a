//! How much delay the arrivals of the last seconds needed.

/// For each push, the delay at which it would have come just in time, in nanoseconds on the scale of
/// `Uplink::delay`. Remembered over the last [`BUCKETS`] half seconds *of sound*: a hold ages nothing.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Greatest and least need per half second.
    buckets: [Option<(i64, i64)>; BUCKETS],
    present: usize,
    /// Sound in the present bucket, in nanoseconds.
    filled: i64,
}

impl Arrivals {
    /// Begins with one push of `need`, taken for the earliest of a jitter of `spread`.
    pub(super) fn starting(need: i64, spread: i64) -> Self {
        let mut buckets = [None; BUCKETS];
        buckets[0] = Some((need + spread, need));
        Self { buckets, present: 0, filled: 0 }
    }

    /// A push of `length` nanoseconds arrived.
    pub(super) fn push(&mut self, need: i64, length: i64) {
        self.filled += length;
        while self.filled >= BUCKET {
            self.filled = (self.filled - BUCKET).min(BUCKET * BUCKETS as i64);
            self.present = (self.present + 1) % BUCKETS;
            self.buckets[self.present] = None;
        }
        let (most, least) = self.buckets[self.present].unwrap_or((need, need));
        self.buckets[self.present] = Some((most.max(need), least.min(need)));
    }

    /// The delay that would have been enough for all.
    pub(super) fn most(&self) -> i64 {
        self.buckets.iter().flatten().map(|bucket| bucket.0).max().unwrap_or(0)
    }

    /// The delay that would have been enough for the earliest.
    pub(super) fn least(&self) -> i64 {
        self.buckets.iter().flatten().map(|bucket| bucket.1).min().unwrap_or(0)
    }

    /// How far apart the latest and the earliest arrival were: the jitter.
    pub(super) fn spread(&self) -> i64 {
        // Past what counts as jitter, messages come slower than they play: more delay would not help.
        (self.most() - self.least()).clamp(0, MAX_JITTER)
    }
}

/// Later by more than this is no jitter but a hold or a stall.
pub(super) const MAX_JITTER: i64 = 400_000_000;
/// Six seconds: 60 messages of the deployed Watch. The rest of the ten seconds in which the target has to come down
/// again is for catching up.
const BUCKETS: usize = 12;
/// Half a second.
const BUCKET: i64 = 500_000_000;
