//! The Watch's microphone to a steady stream of 20 ms frames (`design.md`, "The way of a sound").
//!
//! Messages come when the network lets them; frames leave at slots. The stream never stops: where there is no sound,
//! silence goes out, because the engine's clock is our audio (case 17).
//!
//! Everything turns on one number, the *delay*: how much silence was put into the stream (and how far the slots moved
//! later) less what was taken out. Each message tells at which delay it would have come just in time; the greatest such
//! need of the last seconds is what the delay should be. Too little shows as an underrun, which raises it by itself; too
//! much is caught up with.

mod arrivals;
mod catch_up;
pub mod passing;
mod pitch;
mod queue;
mod tail;

use std::collections::VecDeque;
use std::time::Duration;

use self::arrivals::{Arrivals, MAX_JITTER};
use self::catch_up::CatchUp;
use self::queue::Queue;
use self::tail::Tail;
use crate::join;
use crate::pcm;
use crate::stats::{Histogram, Jitter};

/// Turns messages of any length into 20 ms frames at even slots.
///
/// Call [`Uplink::pull`] at [`Uplink::next_slot`], always, from the first moment the stream may flow.
#[derive(Debug)]
pub struct Uplink {
    rate: u32,
    /// Samples of a frame.
    frame: usize,
    queue: Queue,
    /// Samples that came, ever.
    pushed: u64,
    flow: Flow,
    /// The next slot; `None` before the first pull.
    slot: Option<Duration>,
    /// Silence put in and slots moved later, less what was taken out, in nanoseconds.
    delay: i64,
    /// How far the slots have moved earlier to meet the arrivals, in nanoseconds: given back in silence.
    lead: i64,
    arrivals: Option<Arrivals>,
    /// How far into a frame the messages begin, and in which steps that moves from one to the next (the frame itself
    /// when they are whole frames long), in samples.
    residue: usize,
    grain: usize,
    /// When the last push came, and its length in nanoseconds.
    last_push: Option<(Duration, i64)>,
    /// What the first message after a gap needed, while messages come faster than their sound lasts.
    gap: Option<i64>,
    /// The gap was counted as a hold, and may yet show to have been a stall.
    held: bool,
    /// Until when the slots may move freely.
    settle_until: Duration,
    /// Slots without sound since it last stopped short.
    starved: u64,
    catch_up: CatchUp,
    tail: Tail,
    scratch: Vec<i16>,
    /// Messages whose first sample waits: where it is, counted from the first ever, and when they came.
    waiting: VecDeque<(u64, Duration)>,
    wait: Histogram,
    jitter: Jitter,
    stats: UplinkStats,
}

/// Where the sound is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// There is none.
    Idle,
    /// It goes out from this slot on.
    From(Duration),
    /// It goes out.
    Flowing,
}

/// One frame's way into RTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Whole slots that were missed before this one (the host slept): the RTP timestamp advances over them.
    pub skipped: u32,
    /// The RTP marker: the first frame, and the first after missed slots.
    pub marker: bool,
    /// What the frame holds.
    pub kind: SlotKind,
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// Sound of the Watch.
    Sound,
    /// The end of the sound, fading: what came next is not there yet, or there is no more.
    Fading,
    /// Nothing.
    Silence,
}

/// How the stream fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UplinkStats {
    /// Sound that came.
    pub received: Duration,
    /// Frames that were pulled.
    pub frames: u64,
    /// Of them: without sound of their own (or not full of it) although the Watch was sending.
    pub concealed: u64,
    /// Slots missed because the host slept.
    pub skipped: u64,
    /// Pauses of the Watch itself (half duplex, mute).
    pub holds: u64,
    /// Stalls of the network.
    pub stalls: u64,
    /// Quiet taken out to catch up.
    pub shed: Duration,
    /// Sound compressed away, its pitch kept, to catch up.
    pub compressed: Duration,
    /// Sound thrown away, the oldest first: over two seconds behind.
    pub dropped: Duration,
    /// What waits.
    pub queued: Duration,
    /// The jitter target: how long a message that comes as early as any is held before its first sample leaves. Where
    /// messages are no whole number of frames, the rest of a frame (up to 20 ms) is part of it.
    pub target: Duration,
}

impl Uplink {
    /// A stream at `rate` Hz (8000 to 48,000) without sound.
    pub fn new(rate: u32) -> Self {
        let frame = (rate / FRAMES_PER_SECOND).max(1) as usize;
        Self {
            rate,
            frame,
            queue: Queue::with_capacity(rate as usize * 4),
            pushed: 0,
            flow: Flow::Idle,
            slot: None,
            delay: 0,
            lead: 0,
            arrivals: None,
            residue: 0,
            grain: frame,
            last_push: None,
            gap: None,
            held: false,
            settle_until: Duration::ZERO,
            starved: 0,
            catch_up: CatchUp::new(rate),
            tail: Tail::new(rate),
            scratch: Vec::new(),
            waiting: VecDeque::with_capacity(WAITING),
            wait: Histogram::new(),
            jitter: Jitter::new(rate),
            stats: UplinkStats::default(),
        }
    }

    /// Takes in one message of the Watch, of any length, that arrived at `now`.
    pub fn push(&mut self, now: Duration, samples: &[i16]) {
        if samples.is_empty() {
            return;
        }
        let length = self.nanos(samples.len());
        self.stats.received += Duration::from_nanos(length as u64);
        self.note_arrival(now, length, samples.len());
        self.last_push = Some((now, length));
        self.jitter.push(now, self.pushed as u32);
        if self.waiting.len() < WAITING {
            self.waiting.push_back((self.pushed, now));
        }
        self.queue.push(samples);
        self.pushed += samples.len() as u64;
        self.drop_oldest(length);
    }

    /// When the next frame is to leave, an absolute time; at once before the first.
    pub fn next_slot(&self) -> Duration {
        self.slot.unwrap_or(Duration::ZERO)
    }

    /// Fills `frame` (cleared first) with exactly 20 ms for the slot that is due at `now`.
    pub fn pull(&mut self, now: Duration, frame: &mut Vec<i16>) -> Slot {
        let first = self.slot.is_none();
        let mut slot = self.slot.unwrap_or(now);
        let skipped = u32::try_from(now.saturating_sub(slot).as_nanos() / FRAME_TIME.as_nanos()).unwrap_or(u32::MAX);
        if skipped > 0 {
            slot += FRAME_TIME * skipped;
            self.delay += FRAME_NANOS * i64::from(skipped);
            self.stats.skipped += u64::from(skipped);
        }
        frame.clear();
        let kind = self.fill(slot, frame);
        self.note_waits(now);
        self.stats.frames += 1;
        self.slot = Some(slot + FRAME_TIME);
        match self.flow {
            Flow::From(from) if first => self.meet(now, from),
            _ => self.move_slots(slot, kind),
        }
        Slot { skipped, marker: first || skipped > 0, kind }
    }

    /// Appends so many more frames to the one just pulled: they leave in one packet with it, and the next slot is so much
    /// later.
    fn pull_more(&mut self, frames: u32, out: &mut Vec<i16>) {
        let samples = (frames as usize * self.frame).min(self.queue.len());
        let more = &self.queue.as_slice()[..samples];
        out.extend_from_slice(more);
        self.tail.remember(more);
        self.catch_up.sent(pcm::peak(more), samples);
        self.queue.skip(samples);
        self.slot = self.slot.map(|slot| slot + FRAME_TIME * frames);
        self.stats.frames += u64::from(frames);
    }

    /// Leaves out the next `samples`, which are quiet and followed by at least a frame.
    fn leave_out(&mut self, samples: usize) {
        self.cut(samples, join::length(self.rate));
        self.stats.shed += Duration::from_nanos(self.nanos(samples) as u64);
    }

    /// Where in all the sound that ever came the next frame begins, in samples.
    fn position(&self) -> u64 {
        self.pushed - self.queue.len() as u64
    }

    /// The sound that waits.
    fn ahead(&self) -> &[i16] {
        self.queue.as_slice()
    }

    /// Samples of a frame.
    fn frame(&self) -> usize {
        self.frame
    }

    /// How the stream fared so far.
    pub fn stats(&self) -> UplinkStats {
        let jitter = self.arrivals.as_ref().map_or(0, Arrivals::spread);
        let target = jitter + margin(jitter) + self.nanos(self.frame - self.grain);
        UplinkStats {
            queued: Duration::from_nanos(self.nanos(self.queue.len()) as u64),
            target: Duration::from_nanos(target as u64),
            ..self.stats
        }
    }

    /// How long each message waited here until its first sample left.
    pub fn delay(&self) -> &Histogram {
        &self.wait
    }

    /// How unevenly the messages came (see [`Jitter::differences`]); a gap is none.
    pub fn jitter(&self) -> &Histogram {
        self.jitter.differences()
    }

    /// The first samples of these messages left with the frame just filled. Of a message that lost its own to catching
    /// up, it is the first one left.
    fn note_waits(&mut self, now: Duration) {
        while let Some((_, came)) =
            self.waiting.pop_front_if(|(first, _)| *first < self.pushed - self.queue.len() as u64)
        {
            self.wait.record(now.saturating_sub(came));
        }
    }

    /// Learns from an arrival, and decides when sound that resumes goes out.
    fn note_arrival(&mut self, now: Duration, length: i64, samples: usize) {
        let slot = self.slot.unwrap_or(now);
        // The first sample of this message is due after those that wait. Had the delay been less by the time until
        // then, the message would have come just in time.
        let need = self.delay + nanos_between(slot, now) - self.nanos(self.queue.len());
        self.residue = self.queue.len() % self.frame;
        self.grain = common(self.frame, samples);
        let known = self.arrivals.as_ref();
        let spread = known.map_or(FIRST_JITTER, Arrivals::spread);
        if known.is_none_or(|arrivals| need - arrivals.most() > MAX_JITTER) {
            self.after_gap(now, need, spread);
            return;
        }
        let quick = self.last_push.is_some_and(|(at, last)| nanos_between(at, now) < last * 9 / 10);
        if let Some(gap) = self.gap
            && quick
            && known.is_none_or(|arrivals| need < arrivals.least())
        {
            // Came with less delay than all since the gap: the network gives back what it had held up.
            if gap - need > spread + SURELY_A_STALL && self.starved > 0 {
                // Once for each gap, though the slots before its first sound may still be silent.
                if std::mem::take(&mut self.held) {
                    self.stats.holds -= 1;
                    self.stats.stalls += 1;
                }
                self.stats.concealed += std::mem::take(&mut self.starved);
            }
            self.arrivals = Some(Arrivals::starting(need, spread));
            return;
        }
        if self.gap.take().is_some() {
            self.held = false;
            if self.flow != Flow::Idle {
                self.starved = 0;
            }
        }
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.push(need, length);
        }
        if self.flow == Flow::Idle {
            self.stats.concealed += std::mem::take(&mut self.starved);
            self.flow = Flow::From(slot);
        }
    }

    /// Sound after a gap: a hold of the Watch or a stall of the network; which, only what follows can tell.
    fn after_gap(&mut self, now: Duration, need: i64, spread: i64) {
        if self.flow == Flow::Idle {
            // Held as long as a message that comes as early as any has to be.
            let hold = spread + margin(spread) + self.nanos(self.raggedness());
            let from = now + Duration::from_nanos(hold as u64);
            self.meet(now, from);
            self.flow = Flow::From(from);
            self.settle_until = from + SETTLE;
            self.held = self.arrivals.is_some();
            self.stats.holds += u64::from(self.held);
        }
        self.arrivals = Some(Arrivals::starting(need, spread));
        self.gap = Some(need);
        self.jitter.restart();
    }

    /// Moves the slots, by less than a frame, so that one falls on `from`: earlier when the next is still to come then.
    fn meet(&mut self, now: Duration, from: Duration) {
        let Some(slot) = self.slot else { return };
        let later = nanos_between(slot, from).rem_euclid(FRAME_NANOS);
        let earlier = FRAME_NANOS - later;
        let by = if earlier <= nanos_between(now, slot) { -earlier } else { later };
        self.shift(by);
        self.lead -= by;
    }

    fn shift(&mut self, nanos: i64) {
        if let Some(slot) = &mut self.slot {
            let step = Duration::from_nanos(nanos.unsigned_abs());
            *slot = if nanos < 0 { slot.saturating_sub(step) } else { *slot + step };
            self.delay += nanos;
        }
    }

    /// Writes the 20 ms of `slot` to the empty `out`.
    fn fill(&mut self, slot: Duration, out: &mut Vec<i16>) -> SlotKind {
        let resumes = match self.flow {
            Flow::From(from) if from > slot + EARLY => {
                self.delay += FRAME_NANOS;
                return self.fade(self.frame, out);
            }
            Flow::Idle => {
                self.delay += FRAME_NANOS;
                return self.fade(self.frame, out);
            }
            Flow::From(_) => true,
            Flow::Flowing => false,
        };
        self.lose_surplus();
        let there = self.queue.len().min(self.frame);
        out.extend_from_slice(&self.queue.as_slice()[..there]);
        self.queue.skip(there);
        if resumes && there > 0 {
            self.tail.resume(out, &mut self.scratch);
        }
        self.tail.remember(out);
        self.catch_up.sent(pcm::peak(out), there);
        if there == self.frame {
            self.flow = Flow::Flowing;
            return SlotKind::Sound;
        }
        self.tail.start();
        if self.flow == Flow::Flowing {
            self.starved = 0;
        }
        self.flow = Flow::Idle;
        self.delay += self.nanos(self.frame - there);
        self.fade(self.frame - there, out)
    }

    /// Appends what is left of the sound that stopped short, then silence.
    fn fade(&mut self, samples: usize, out: &mut Vec<i16>) -> SlotKind {
        let kind = if self.tail.is_over() { SlotKind::Silence } else { SlotKind::Fading };
        self.tail.append(samples, out);
        self.catch_up.sent(0, samples);
        // Before the first message there is nothing to miss.
        self.starved += u64::from(self.arrivals.is_some());
        kind
    }

    /// Moves the slots a little toward where the arrivals want them, so that drift between the two clocks costs nothing.
    fn move_slots(&mut self, slot: Duration, kind: SlotKind) {
        if self.flow == Flow::Flowing {
            let most = if slot < self.settle_until { SETTLE_STEP } else { SLEW };
            let by = (-self.surplus()).clamp(-most, most);
            self.shift(by);
        } else if kind == SlotKind::Silence && self.flow == Flow::Idle {
            let by = self.lead.clamp(-REPAY_STEP, REPAY_STEP);
            self.shift(by);
            self.lead -= by;
        }
    }

    /// Delay beyond what the arrivals need, in nanoseconds: how much earlier the slots could be.
    fn surplus(&self) -> i64 {
        self.spare() - self.nanos(self.raggedness())
    }

    /// How many samples could be taken out. A frame leaves whole: taking out moves its end to another message, so not
    /// every cut that looks small enough is.
    fn removable(&self) -> usize {
        let residue = self.residue % self.grain;
        let spare = self.samples(self.spare()).checked_sub(self.frame - self.grain + residue);
        spare.map_or(0, |spare| residue + spare / self.grain * self.grain)
    }

    /// Delay beyond what single samples would need, in nanoseconds.
    fn spare(&self) -> i64 {
        self.arrivals.as_ref().map_or(0, |arrivals| self.delay - arrivals.most() - margin(arrivals.spread()))
    }

    /// How much sooner than its own time the first sample of a message is needed, at worst, because it belongs to a
    /// frame that begins before it; in samples.
    fn raggedness(&self) -> usize {
        self.frame - self.grain + self.residue % self.grain
    }

    fn lose_surplus(&mut self) {
        let Some(cut) = self.catch_up.next(self.queue.as_slice(), self.removable(), self.frame) else { return };
        self.cut(cut.samples, cut.blend);
        let lost = Duration::from_nanos(self.nanos(cut.samples) as u64);
        if cut.speech {
            self.stats.compressed += lost;
        } else {
            self.stats.shed += lost;
        }
    }

    fn drop_oldest(&mut self, length: i64) {
        let spread = self.arrivals.as_ref().map_or(0, Arrivals::spread);
        let most = self.samples(MAX_BACKLOG + spread + length.min(MAX_JITTER));
        let Some(surplus) = self.queue.len().checked_sub(most).filter(|surplus| *surplus > 0) else { return };
        self.cut(surplus, join::length(self.rate));
        self.stats.dropped += Duration::from_nanos(self.nanos(surplus) as u64);
    }

    /// Takes the first `samples` out of the queue and blends over the seam.
    fn cut(&mut self, samples: usize, blend: usize) {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.queue.as_slice()[..blend]);
        self.queue.skip(samples);
        join::cross(&self.scratch, &mut self.queue.as_mut_slice()[..blend]);
        self.delay -= self.nanos(samples);
        self.residue = (self.residue + samples * (self.frame - 1)) % self.frame;
    }

    fn nanos(&self, samples: usize) -> i64 {
        (samples as u64 * 1_000_000_000 / u64::from(self.rate)) as i64
    }

    fn samples(&self, nanos: i64) -> usize {
        (nanos.max(0) as u64 * u64::from(self.rate) / 1_000_000_000) as usize
    }
}

/// What is held on top of the jitter: a little always, and more where the greatest of a few arrivals says less about
/// the next.
fn margin(spread: i64) -> i64 {
    MARGIN + spread / 16
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

/// From `start` to `end`, negative when `end` is earlier.
fn nanos_between(start: Duration, end: Duration) -> i64 {
    end.as_nanos() as i64 - start.as_nanos() as i64
}

/// More messages than these wait only when they are tiny; then not each wait is counted.
const WAITING: usize = 256;
const FRAMES_PER_SECOND: u32 = 50;
const FRAME_TIME: Duration = Duration::from_millis(20);
const FRAME_NANOS: i64 = 20_000_000;
/// Timers fire within a millisecond or two; a message that comes at its time should not miss its slot for that.
const MARGIN: i64 = 1_000_000;
/// What the jitter is taken for before anything is known.
const FIRST_JITTER: i64 = 3_000_000;
/// After a gap, arrivals that catch up by this much (and more than the jitter) show that the network had stalled.
const SURELY_A_STALL: i64 = 100_000_000;
/// More than this is never kept waiting.
const MAX_BACKLOG: i64 = 2_000_000_000;
/// A slot may be this much before the moment from which sound is to go out: rounding.
const EARLY: Duration = Duration::from_micros(50);
/// How long after sound resumes the slots may still move freely to meet the arrivals.
const SETTLE: Duration = Duration::from_secs(1);
/// How far a slot may move then, in nanoseconds.
const SETTLE_STEP: i64 = 1_000_000;
/// How far a slot may move otherwise: 1 ms a second, which absorbs 500 ppm and more.
const SLEW: i64 = 20_000;
/// In silence, how much of its lead over the wall clock the stream gives back per slot.
const REPAY_STEP: i64 = 1_000_000;

#[cfg(test)]
mod tests;
