//! What waits for a Watch that is slow to take it: bounded, so that delay never only grows (cases 18 and 50).
//!
//! GPT-Live's output never ends, so there is no end of a reply to catch up at. Instead quiet is taken out of the queue
//! first, the way the deployed Watch hears it, and only far behind the oldest sound goes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::join;
use crate::pause::{self, Pause};
use crate::pcm::QUIET_PEAK;

/// A bounded queue of pieces: PCM (`i16`, 2.5 to 120 ms each) or, passed through untouched, Opus packets (`u8`).
#[derive(Debug)]
pub struct Backlog<S = i16> {
    queue: VecDeque<Piece<S>>,
    queued: Duration,
    /// What the Watch was given last.
    pause: Pause,
    /// Since when the queue has not been short.
    standing: Option<Duration>,
    current: Vec<S>,
    spare: Vec<Vec<S>>,
    stats: BacklogStats,
}

/// What the queue did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BacklogStats {
    /// Quiet taken out.
    pub shed: Duration,
    /// Sound thrown away, the oldest first: the queue was at its bound.
    pub dropped: Duration,
    /// The most that ever waited.
    pub deepest: Duration,
}

#[derive(Debug)]
struct Piece<S> {
    data: Vec<S>,
    length: Duration,
    quiet: bool,
}

/// What pieces are made of.
pub trait Element: Copy {
    /// Makes `after` follow on from where `removed` was taken out.
    fn join(removed: &[Self], after: &mut [Self]);
}

impl Element for i16 {
    fn join(removed: &[Self], after: &mut [Self]) {
        // A quarter of a piece: 5 ms of the usual 20.
        join::cross(&removed[..removed.len().min(after.len()).div_ceil(4)], after);
    }
}

impl Element for u8 {
    /// A packet is what it is; the decoder smooths the seam.
    fn join(_removed: &[Self], _after: &mut [Self]) {}
}

impl<S: Element> Default for Backlog<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Element> Backlog<S> {
    /// Nothing waits.
    pub fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: Duration::ZERO,
            pause: Pause::default(),
            standing: None,
            current: Vec::new(),
            spare: Vec::new(),
            stats: BacklogStats::default(),
        }
    }

    /// Queues a piece that plays for `length` and whose loudest sample is `peak` in magnitude.
    pub fn push(&mut self, now: Duration, data: &[S], length: Duration, peak: u16) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(data);
        self.queue.push_back(Piece { data: copy, length, quiet: peak <= QUIET_PEAK });
        self.queued += length;
        self.note_standing(now);
        if self.standing.is_some_and(|since| now.saturating_sub(since) >= STANDING_FOR) {
            self.shed_quiet(SHORT);
        } else if self.queued > QUIET_LIMIT {
            self.shed_quiet(QUIET_LIMIT);
        }
        self.drop_oldest();
        self.stats.deepest = self.stats.deepest.max(self.queued);
    }

    /// Takes the next piece: only when it will be sent now.
    pub fn pop(&mut self, now: Duration) -> Option<&[S]> {
        let piece = self.queue.pop_front()?;
        self.queued -= piece.length;
        self.pause.played(piece.quiet, piece.length);
        self.note_standing(now);
        self.spare.push(std::mem::replace(&mut self.current, piece.data));
        Some(&self.current)
    }

    /// How much waits.
    pub fn queued(&self) -> Duration {
        self.queued
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What the queue did so far.
    pub fn stats(&self) -> BacklogStats {
        self.stats
    }

    /// A queue that is never short although the Watch keeps taking is delay that would stay.
    fn note_standing(&mut self, now: Duration) {
        if self.queued <= SHORT {
            self.standing = None;
        } else {
            self.standing.get_or_insert(now);
        }
    }

    /// Takes quiet out, the oldest first, until no more than `limit` waits or every pause is as short as it may be.
    fn shed_quiet(&mut self, limit: Duration) {
        let mut start = 0;
        while self.queued > limit && start < self.queue.len() {
            if !self.queue[start].quiet {
                start += 1;
                continue;
            }
            let run = self.queue.range(start..).take_while(|piece| piece.quiet);
            let (count, length) = run.fold((0, Duration::ZERO), |(count, sum), piece| (count + 1, sum + piece.length));
            // A pause that began before the queue does counts whole.
            let before = if start == 0 { self.pause.given() } else { Duration::ZERO };
            let ended = start + count < self.queue.len();
            let kept = if ended && before + length <= pause::ENDS_STRETCH { WORD_GAP } else { pause::KEPT };
            let spare = (before + length).saturating_sub(kept).min(length);
            let removed = self.remove_from_run(start, count, self.queued - limit, spare);
            start += count - removed;
        }
    }

    /// Takes pieces out of a run of `count` quiet ones until `wanted` is gone, `most` at most. The last piece before
    /// speech goes last: words begin softly.
    fn remove_from_run(&mut self, start: usize, count: usize, wanted: Duration, most: Duration) -> usize {
        let mut removed = 0;
        let mut gone = Duration::ZERO;
        let at = start + count.saturating_sub(2);
        let mut seam: Option<Vec<S>> = None;
        while removed < count && gone < wanted {
            let index = at.saturating_sub(removed).max(start);
            if self.queue.get(index).is_none_or(|piece| gone + piece.length > most) {
                break;
            }
            let Some(piece) = self.queue.remove(index) else { break };
            removed += 1;
            gone += piece.length;
            if let Some(later) = seam.replace(piece.data) {
                self.spare.push(later);
            }
        }
        if let Some(first) = seam {
            let after = (at + 1).saturating_sub(removed).max(start);
            if let Some(next) = self.queue.get_mut(after) {
                S::join(&first, &mut next.data);
            }
            self.spare.push(first);
        }
        self.queued -= gone;
        self.stats.shed += gone;
        removed
    }

    fn drop_oldest(&mut self) {
        while self.queued > LIMIT {
            let Some(oldest) = self.queue.pop_front() else { return };
            self.queued -= oldest.length;
            self.stats.dropped += oldest.length;
            if let Some(next) = self.queue.front_mut() {
                S::join(&oldest.data, &mut next.data);
            }
            self.spare.push(oldest.data);
        }
    }
}

/// Past this, quiet goes.
const QUIET_LIMIT: Duration = Duration::from_millis(400);
/// Past this, the oldest goes.
const LIMIT: Duration = Duration::from_secs(2);
/// What waits for a moment in a call that is well.
const SHORT: Duration = Duration::from_millis(60);
/// A queue that has not been short for so long will not become so by itself.
const STANDING_FOR: Duration = Duration::from_secs(1);
/// What a short pause keeps, so that words do not run together.
const WORD_GAP: Duration = Duration::from_millis(60);
