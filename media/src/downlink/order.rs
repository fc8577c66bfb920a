//! Puts RTP packets back in their order and decides how long a hole is worth waiting for.

use std::collections::VecDeque;
use std::time::Duration;

use super::RtpPacket;

/// A packet whose turn may come.
#[derive(Debug)]
pub(super) struct Held {
    /// Counts on past every wrap, jump and change of source.
    sequence: i64,
    /// RTP timestamp, unwrapped.
    pub(super) timestamp: i64,
    pub(super) arrived: Duration,
    /// How many packets just before this one never came.
    pub(super) lost: u32,
    /// The stream began anew here: its timestamps say nothing about what came before.
    pub(super) fresh: bool,
    /// Empty when the packet holds no sound (case 12).
    pub(super) payload: Vec<u8>,
}

/// What became of a packet that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It has its place in the order. All with the unwrapped timestamp.
    InTime(i64),
    /// It has, and with it the stream began anew; with the one held back for it, if there was one.
    Fresh { timestamp: i64, packets: u64 },
    /// Its place had been given up before it came.
    Late(i64),
    /// It is here already.
    Duplicate,
    /// It belongs to another stream, or is held back until the next packet explains its jump.
    Aside,
}

/// The order of one RTP stream.
#[derive(Debug, Default)]
pub(super) struct Order {
    source: Option<Source>,
    /// Rising by sequence, without doubles, at most [`MAX_HELD`].
    held: VecDeque<Held>,
    /// A packet out of all proportion; the one after it tells whether the stream jumped (RFC 3550 appendix A.1).
    jump: Option<(u16, Held)>,
    patience: Patience,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Source {
    ssrc: u32,
    /// The source before this one: what is still under way from it is no reason to go back.
    retired: Option<u32>,
    last_arrival: Duration,
    /// The next packet due, as counted on here and as written on the wire.
    next: i64,
    next_on_wire: u16,
    /// Which of the 64 before `next` came: bit 0 is `next - 1`.
    seen: u64,
    newest_timestamp: i64,
    /// Holes before this place are given up at once: the stream went on elsewhere.
    release_to: i64,
    /// How many packets in a row lay behind, none ahead.
    behind: u32,
}

impl Order {
    /// Offers a packet that arrived at `now`. `sound`: it is one of ours with something in it; others only count as
    /// having come.
    pub(super) fn push(&mut self, now: Duration, packet: &RtpPacket<'_>, sound: bool) -> Arrival {
        let Some(source) = &mut self.source else {
            return if sound { self.begin(now, packet) } else { Arrival::Aside };
        };
        if packet.ssrc != source.ssrc {
            let old = source.retired == Some(packet.ssrc) && now.saturating_sub(source.last_arrival) < RETIRED;
            return if sound && !old { self.begin(now, packet) } else { Arrival::Aside };
        }
        source.last_arrival = now;
        let ahead = packet.sequence.wrapping_sub(source.next_on_wire) as i16;
        let timestamp = unwrap_timestamp(source.newest_timestamp, packet.timestamp);
        if (0..MAX_DROPOUT).contains(&ahead) {
            source.behind = 0;
            return self.insert(now, packet, i64::from(ahead), timestamp, sound);
        }
        if !sound {
            return Arrival::Aside;
        }
        if (-MAX_MISORDER..0).contains(&ahead) && timestamp <= source.newest_timestamp {
            source.behind += 1;
            if source.behind < MAX_BEHIND {
                return self.came_late(now, ahead, timestamp);
            }
        }
        self.jumped(now, packet)
    }

    /// The next packet, when it is its turn or when the holes before it have been waited for long enough.
    pub(super) fn next(&mut self, now: Duration) -> Option<Held> {
        let source = self.source.as_mut()?;
        let front = self.held.front()?;
        if front.sequence > source.next {
            let over = front.sequence <= source.release_to
                || self.held.len() >= MAX_HELD
                || self.deadline().is_some_and(|deadline| deadline <= now);
            if !over {
                return None;
            }
        }
        let source = self.source.as_mut()?;
        let mut held = self.held.pop_front()?;
        held.lost = u32::try_from(held.sequence - source.next).unwrap_or(0);
        if held.lost > 0 {
            self.patience.gave_up(source.next, held.sequence, held.arrived);
        }
        let passed = held.lost + 1;
        source.seen = if passed < 64 { source.seen << passed | 1 } else { 1 };
        source.next = held.sequence + 1;
        source.next_on_wire = source.next_on_wire.wrapping_add(passed as u16);
        Some(held)
    }

    /// When the packets behind a hole have waited long enough.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let front = self.held.front()?;
        let source = self.source.as_ref()?;
        // Packets arrive out of order, so the first in the order need not be the first that came.
        let first = self.held.iter().map(|held| held.arrived).min()?;
        (front.sequence > source.next).then(|| first + self.patience.wait())
    }

    /// Whether packets wait behind a hole.
    pub(super) fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// How long a hole is waited for now.
    pub(super) fn wait(&self) -> Duration {
        self.patience.wait()
    }

    /// Takes a played packet's memory back.
    pub(super) fn recycle(&mut self, held: Held) {
        self.spare.push(held.payload);
    }

    /// A new source, or the first.
    fn begin(&mut self, now: Duration, packet: &RtpPacket<'_>) -> Arrival {
        let next = match (&self.source, self.held.back()) {
            (_, Some(last)) => last.sequence + 1,
            (Some(source), None) => source.next,
            (None, None) => 0,
        };
        let retired = self.source.as_ref().map(|source| source.ssrc).filter(|ssrc| *ssrc != packet.ssrc);
        let timestamp = i64::from(packet.timestamp);
        let held = Held { fresh: true, ..self.hold(now, packet, next, timestamp) };
        // What the old source still owes is given up: `next` itself stays behind until its packets are out.
        let (due, due_on_wire) = match &self.source {
            Some(source) => (source.next, packet.sequence.wrapping_sub((next - source.next) as u16)),
            None => (next, packet.sequence),
        };
        self.source = Some(Source {
            ssrc: packet.ssrc,
            retired,
            last_arrival: now,
            next: due,
            next_on_wire: due_on_wire,
            seen: 0,
            newest_timestamp: timestamp,
            release_to: next,
            behind: 0,
        });
        self.jump = None;
        self.held.push_back(held);
        Arrival::Fresh { timestamp, packets: 1 }
    }

    fn insert(&mut self, now: Duration, packet: &RtpPacket<'_>, ahead: i64, timestamp: i64, sound: bool) -> Arrival {
        let Some(source) = &mut self.source else { return Arrival::Aside };
        let sequence = source.next + ahead;
        let place = self.held.partition_point(|held| held.sequence < sequence);
        if self.held.get(place).is_some_and(|held| held.sequence == sequence) {
            return Arrival::Duplicate;
        }
        if sound {
            source.newest_timestamp = source.newest_timestamp.max(timestamp);
        }
        if let Some(first) = self.held.range(place..).map(|held| held.arrived).min() {
            self.patience.overtaken(now, now.saturating_sub(first));
        }
        let mut held = self.hold(now, packet, sequence, timestamp);
        if !sound {
            held.payload.clear();
        }
        self.held.insert(place, held);
        Arrival::InTime(timestamp)
    }

    /// A packet that lies behind the next one due.
    fn came_late(&mut self, now: Duration, ahead: i16, timestamp: i64) -> Arrival {
        let Some(source) = &mut self.source else { return Arrival::Aside };
        let back = u32::from(ahead.unsigned_abs() - 1);
        let bit = 1u64.checked_shl(back).unwrap_or(0);
        if source.seen & bit != 0 {
            return Arrival::Duplicate;
        }
        source.seen |= bit;
        self.patience.too_late(now, source.next + i64::from(ahead));
        Arrival::Late(timestamp)
    }

    /// A packet far from where the stream is: the second one in a row proves that the stream went on there.
    fn jumped(&mut self, now: Duration, packet: &RtpPacket<'_>) -> Arrival {
        match self.jump.take() {
            Some((sequence, first)) if packet.sequence == sequence.wrapping_add(1) => {
                let first_timestamp = first.timestamp as u32;
                let before = RtpPacket { sequence, timestamp: first_timestamp, payload: &first.payload, ..*packet };
                self.begin(first.arrived, &before);
                self.spare.push(first.payload);
                let timestamp = unwrap_timestamp(i64::from(first_timestamp), packet.timestamp);
                let Some(source) = &self.source else { return Arrival::Aside };
                let ahead = packet.sequence.wrapping_sub(source.next_on_wire) as i16;
                self.insert(now, packet, i64::from(ahead), timestamp, true);
                Arrival::Fresh { timestamp, packets: 2 }
            }
            other => {
                if let Some((_, dropped)) = other {
                    self.spare.push(dropped.payload);
                }
                let held = self.hold(now, packet, 0, i64::from(packet.timestamp));
                self.jump = Some((packet.sequence, held));
                Arrival::Aside
            }
        }
    }

    fn hold(&mut self, now: Duration, packet: &RtpPacket<'_>, sequence: i64, timestamp: i64) -> Held {
        let mut payload = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PACKET_ROOM));
        payload.clear();
        payload.extend_from_slice(packet.payload);
        Held { sequence, timestamp, arrived: now, lost: 0, fresh: false, payload }
    }
}

/// The reordering this network has shown, over the last half to whole minute.
#[derive(Debug)]
struct Patience {
    /// The longest wait that would have paid, in the present and the past half minute.
    present: Duration,
    past: Duration,
    turn: Duration,
    /// Holes given up lately: first and last sequence, and when they had been revealed.
    given_up: VecDeque<(i64, i64, Duration)>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { present: FIRST_WAIT, past: Duration::ZERO, turn: MEMORY, given_up: VecDeque::with_capacity(GIVEN_UP) }
    }
}

impl Patience {
    fn wait(&self) -> Duration {
        self.present.max(self.past)
    }

    /// A packet came `by` after one that belongs behind it.
    fn overtaken(&mut self, now: Duration, by: Duration) {
        self.turn_over(now);
        // A wait that would have been in vain anyway is not worth its delay.
        if by <= MAX_WAIT {
            self.present = self.present.max((by + by / 4 + WAIT_MARGIN).min(MAX_WAIT));
        }
    }

    fn gave_up(&mut self, first: i64, end: i64, revealed: Duration) {
        self.turn_over(revealed);
        if self.given_up.len() == GIVEN_UP {
            self.given_up.pop_front();
        }
        self.given_up.push_back((first, end, revealed));
    }

    /// The packet of a hole that had been given up came after all.
    fn too_late(&mut self, now: Duration, sequence: i64) {
        let hole = self.given_up.iter().rev().find(|(first, end, _)| (*first..*end).contains(&sequence));
        if let Some((_, _, revealed)) = hole {
            self.overtaken(now, now.saturating_sub(*revealed));
        }
    }

    fn turn_over(&mut self, now: Duration) {
        if now >= self.turn {
            self.past = if now < self.turn + MEMORY { self.present } else { Duration::ZERO };
            self.present = Duration::ZERO;
            self.turn = now + MEMORY;
        }
    }
}

/// The timestamp nearest to `near` that is written `timestamp` on the wire.
fn unwrap_timestamp(near: i64, timestamp: u32) -> i64 {
    near + i64::from(timestamp.wrapping_sub(near as u32) as i32)
}

/// Before anything is known: one packet of 20 ms may be overtaken by the next.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Past this a concealed frame is better than the delay.
const MAX_WAIT: Duration = Duration::from_millis(60);
/// On top of what was seen, so that the same again is in time.
const WAIT_MARGIN: Duration = Duration::from_millis(1);
/// Half of how long a reordering is remembered.
const MEMORY: Duration = Duration::from_secs(30);
/// More holes than [`MAX_WAIT`] can see at the usual packet length.
const GIVEN_UP: usize = 16;
/// More than a packet of speech ever has, so that its memory need not grow under the next.
const PACKET_ROOM: usize = 512;
/// 250 packets of 20 ms are 5 s that came in one burst behind a hole; the wait ends sooner.
const MAX_HELD: usize = 256;
/// RFC 3550 appendix A.1: a jump of more than this is no loss.
const MAX_DROPOUT: i16 = 3_000;
/// RFC 3550 appendix A.1: a packet further back than this is no late one.
const MAX_MISORDER: i16 = 100;
/// This many in a row behind the stream, and none ahead, are the stream (half a second of packets of 20 ms).
const MAX_BEHIND: u32 = 25;
/// A source that was left stays left unless the new one is silent for so long.
const RETIRED: Duration = Duration::from_secs(1);
