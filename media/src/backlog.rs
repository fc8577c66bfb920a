//! What waits for a Watch that is slow to take it: bounded, so that delay never only grows (cases 18 and 50).
//!
//! GPT-Live's output never ends, so there is no end of a reply to catch up at. Instead quiet is taken out of the queue
//! first, the way the deployed Watch hears it, and only far behind the oldest sound goes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::join;
use crate::pause::{self, Pause};
use crate::pcm::QUIET_PEAK;
use crate::stats::Histogram;

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
    wait: Histogram,
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
    came: Duration,
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
            wait: Histogram::new(),
            stats: BacklogStats::default(),
        }
    }

    /// Queues a piece that plays for `length` and whose loudest sample is `peak` in magnitude.
    pub fn push(&mut self, now: Duration, data: &[S], length: Duration, peak: u16) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(data);
        self.queue.push_back(Piece { data: copy, length, quiet: peak <= QUIET_PEAK, came: now });
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
        self.wait.record(now.saturating_sub(piece.came));
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

    /// How long each piece waited here.
    pub fn delay(&self) -> &Histogram {
        &self.wait
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pcm;
    use crate::testing::{curve, frequency, loudness, tone};

    const FRAME: Duration = Duration::from_millis(20);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// 20 ms at 24 kHz: a tone, or near silence.
    fn frame(n: u64, loud: bool) -> Vec<i16> {
        (n * 480..(n + 1) * 480).map(|index| if loud { tone(200.0, 24_000, index) } else { 15 }).collect()
    }

    /// What the Watch was given, as it hears it.
    #[derive(Default)]
    struct Heard {
        samples: Vec<i16>,
        /// Pauses between speech, and before and after it, in ms.
        pauses: Vec<u64>,
        pause: u64,
    }

    impl Heard {
        fn hear(&mut self, frame: &[i16]) {
            self.samples.extend_from_slice(frame);
            if pcm::peak(frame) <= QUIET_PEAK {
                self.pause += 20;
            } else if self.pause > 0 {
                self.pauses.push(std::mem::take(&mut self.pause));
            }
        }
    }

    /// Real-time frames, `loud` or not, toward a link that is open or shut; when open it takes all, or one frame per
    /// frame.
    fn run(
        frames: u64,
        loud: impl Fn(u64) -> bool,
        open: impl Fn(u64) -> bool,
        greedy: bool,
    ) -> (Heard, Vec<Duration>, BacklogStats) {
        let mut backlog = Backlog::new();
        let mut heard = Heard::default();
        let mut depths = Vec::new();
        for n in 0..frames {
            let now = FRAME * n as u32;
            let data = frame(n, loud(n));
            backlog.push(now, &data, FRAME, pcm::peak(&data));
            assert!(backlog.queued() <= LIMIT);
            let mut takes = if !open(n) {
                0
            } else if greedy {
                usize::MAX
            } else {
                1
            };
            while takes > 0
                && let Some(frame) = backlog.pop(now)
            {
                heard.hear(frame);
                takes -= 1;
            }
            depths.push(backlog.queued());
        }
        (heard, depths, backlog.stats())
    }

    #[test]
    fn case_18_a_stall_is_shed_within_one_pause() {
        // 60 s, 2 s of tone and 8 s of near silence; one stall of 400 ms at second 5 and then real time only.
        let (heard, depths, stats) = run(3_000, |n| n % 500 < 100, |n| !(250..270).contains(&n), false);
        println!("{stats:?}, {:?}", depths[500]);
        assert!(depths[100] == Duration::ZERO && depths[269] == millis(400));
        assert!(depths[500..].iter().all(|depth| *depth <= SHORT), "gone before the next speech");
        assert_eq!(stats.dropped, Duration::ZERO);
        assert!(heard.pauses.iter().all(|pause| *pause >= 700), "{:?}", heard.pauses);
    }

    #[test]
    fn case_50_a_stall_of_ten_seconds_leaves_no_lasting_delay() {
        for greedy in [true, false] {
            let (heard, depths, stats) = run(6_000, |n| n % 250 < 150, |n| !(1_000..1_500).contains(&n), greedy);
            println!("greedy {greedy}: {stats:?}");
            assert!(depths[1_499] <= LIMIT, "bounded meanwhile");
            assert!(depths[2_000..].iter().all(|depth| *depth <= SHORT));
            assert!(heard.pauses.iter().all(|pause| *pause >= 700), "{:?}", heard.pauses);
        }
    }

    #[test]
    fn case_50_an_hour_of_a_relay_that_stalls_400_ms_every_5_s_does_not_grow() {
        for greedy in [true, false] {
            let (_, depths, stats) = run(180_000, |n| n % 700 < 400, |n| n % 250 >= 20, greedy);
            println!("greedy {greedy}: {stats:?}");
            let first = depths[..30_000].iter().max().expect("depths");
            let last = depths[150_000..].iter().max().expect("depths");
            assert!(last <= first, "{first:?} {last:?}");
            assert!(!greedy || *last <= millis(400));
        }
    }

    #[test]
    fn a_pause_over_600_ms_keeps_700_and_a_short_one_its_gap() {
        // Speech, pauses of 300, 600, 640, 700 and 2,000 ms between it, all while the link is shut.
        let mut backlog = Backlog::new();
        let mut heard = Heard::default();
        let pauses = [15u64, 30, 32, 35, 100];
        let mut n = 0;
        let mut push = |backlog: &mut Backlog, frames: u64, loud: bool| {
            for _ in 0..frames {
                let data = frame(n, loud);
                backlog.push(FRAME * n as u32, &data, FRAME, pcm::peak(&data));
                n += 1;
            }
        };
        let mut kept = Vec::new();
        let edge: Vec<i16> = [frame(0, true), frame(1, false), frame(2, true)].concat();
        for pause in pauses {
            push(&mut backlog, 15, true);
            push(&mut backlog, pause, false);
            push(&mut backlog, 15, true);
            while let Some(frame) = backlog.pop(FRAME * 100_000) {
                heard.hear(frame);
            }
            kept.append(&mut heard.pauses);
        }
        println!("{pauses:?} frames kept as {kept:?} ms");
        assert!(kept[0] <= 60 && kept[1] <= 60, "short pauses close up: {kept:?}");
        assert_eq!(kept[2..], [640, 700, 700]);
        let speech: Vec<i16> =
            heard.samples.chunks(480).filter(|part| pcm::peak(part) > QUIET_PEAK).flatten().copied().collect();
        assert_eq!(speech.len(), 150 * 480, "no speech is missing");
        for stretch in speech.chunks(15 * 480) {
            let (hz, (least, most)) = (frequency(&stretch[240..], 24_000), loudness(&stretch[240..], 24_000));
            assert!((hz - 200.0).abs() < 0.5 && least > 0.95 && most < 1.05, "{hz} Hz, {least} to {most}");
        }
        assert!(curve(&heard.samples) <= curve(&edge), "no seam is harder than the edges of the speech itself");
    }

    #[test]
    fn quiet_the_watch_has_had_enough_of_goes_entirely() {
        let mut backlog = Backlog::new();
        let quiet = frame(0, false);
        for n in 0..40 {
            backlog.push(FRAME * n, &quiet, FRAME, 15);
            assert!(backlog.pop(FRAME * n).is_some());
        }
        for n in 40..140 {
            backlog.push(FRAME * n, &quiet, FRAME, 15);
        }
        assert!(backlog.queued() <= QUIET_LIMIT);
    }

    #[test]
    fn the_oldest_goes_without_a_click() {
        let (heard, _, stats) = run(2_000, |_| true, |n| !(500..1_000).contains(&n), true);
        assert_eq!(stats.dropped, millis(10_020 - 2_000));
        assert_eq!(stats.shed, Duration::ZERO);
        let natural = curve(&(0..50).flat_map(|n| frame(n, true)).collect::<Vec<_>>());
        assert!(curve(&heard.samples) <= 3 * natural);
        let (hz, (least, most)) = (frequency(&heard.samples, 24_000), loudness(&heard.samples, 24_000));
        assert!((hz - 200.0).abs() < 0.5 && least > 0.9 && most < 1.1, "{hz} Hz, {least} to {most}");
    }

    #[test]
    fn packets_pass_untouched() {
        let mut backlog: Backlog<u8> = Backlog::new();
        for n in 0..200u8 {
            backlog.push(FRAME * u32::from(n), &[n; 30], FRAME, 9_000);
        }
        assert_eq!(backlog.queued(), LIMIT);
        let packets: Vec<u8> = std::iter::from_fn(|| backlog.pop(millis(4_000)).map(|packet| packet[0])).collect();
        assert_eq!(packets, (100..200).collect::<Vec<u8>>());
        let delay = backlog.delay();
        assert_eq!((delay.count(), delay.max()), (100, millis(2_000)));
        assert!(delay.quantile(0.0).is_some_and(|least| least.abs_diff(millis(20)) < millis(1)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever comes and goes: the bound holds, order is kept and every piece is popped, queued or counted.
        #[test]
        fn any_operations_keep_the_bound_the_order_and_the_sum(
            operations in prop::collection::vec((0u64..60, any::<bool>(), 0u8..5, prop::sample::select(vec![3u64, 20, 60, 120])), 1..400),
        ) {
            let mut backlog: Backlog<u8> = Backlog::new();
            let (mut pushed, mut popped) = (Duration::ZERO, Duration::ZERO);
            let mut now = Duration::ZERO;
            let (mut number, mut last, mut quiet) = (0u32, 0, Duration::ZERO);
            for (later, push, loud, length) in operations {
                now += millis(later);
                if push {
                    number += 1;
                    let mut data = number.to_le_bytes().to_vec();
                    data.extend([length as u8, loud]);
                    let peak = if loud == 0 { 9_000 } else { 100 };
                    backlog.push(now, &data, millis(length), peak);
                    pushed += millis(length);
                    quiet += if loud == 0 { Duration::ZERO } else { millis(length) };
                } else if let Some(data) = backlog.pop(now) {
                    let number = u32::from_le_bytes(data[..4].try_into().unwrap());
                    prop_assert!(number > last);
                    last = number;
                    popped += millis(u64::from(data[4]));
                }
                let stats = backlog.stats();
                prop_assert!(backlog.queued() <= LIMIT);
                prop_assert_eq!(pushed, popped + backlog.queued() + stats.shed + stats.dropped);
                prop_assert!(stats.shed <= quiet);
            }
        }
    }
}
