//! RTP to ordered sound, at once (`design.md`, "The way of a sound").
//!
//! There is no playout buffer here: the Watch has one. A packet in its order comes out in the step it went in. A hole
//! waits only for the reordering this network has shown, then it is concealed. And when nothing comes at all there is a
//! clock for gaps: sound goes on, first concealed, then silent, and what it gave counts against the hole.

mod fade;
mod lateness;
mod order;
mod outlet;

use std::time::Duration;

use self::fade::Fade;
use self::lateness::Lateness;
use self::order::{Arrival, Held, Order};
use self::outlet::{Made, Outlet};
use crate::codec::Decode;
use crate::join;
use crate::opus;
use crate::stats::{Histogram, Jitter, Reception};

/// One RTP packet (RFC 3550 section 5.1), its padding already gone.
#[derive(Debug, Clone, Copy)]
pub struct RtpPacket<'a> {
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp, at 48 kHz for Opus (RFC 7587 section 4.1).
    pub timestamp: u32,
    /// Marker bit. Says nothing that sequence and timestamp do not, so it is not relied on.
    pub marker: bool,
    /// Payload type.
    pub payload_type: u8,
    /// Synchronization source.
    pub ssrc: u32,
    /// One Opus packet; empty when the network is only being probed.
    pub payload: &'a [u8],
}

/// Sound in its order.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Mono, at the decoder's rate, as long as the packet (2.5 to 120 ms) or a piece of at most 20 ms of a hole.
    pub samples: &'a [i16],
    /// When packets are passed through: the packet as it came, empty for a lost one as long as the last
    /// (`watch-audio.md`, Extensions).
    pub packet: &'a [u8],
    /// Where it comes from.
    pub kind: FrameKind,
    /// The largest magnitude in `samples`.
    pub peak: u16,
}

/// Where a frame's sound comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A packet that came.
    Decoded,
    /// A lost packet, from the in-band FEC of the one after it.
    Recovered,
    /// Made up: packet loss concealment, fading.
    Concealed,
    /// What follows concealment when nothing comes.
    Silence,
}

/// How the stream fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DownlinkStats {
    /// Packets and sound in the words of RFC 3611.
    pub reception: Reception,
    /// Interarrival jitter (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    /// How long a hole is waited for at present: the reordering this network has shown.
    pub reorder_wait: Duration,
    /// The worst lateness of the last ten seconds, against the earliest packet.
    pub worst_lateness: Duration,
    /// Sound the clock for gaps gave that turned out to be too much: late packets still came. Yet to be shed.
    pub surplus: Duration,
    /// Quiet taken out again because of it.
    pub shed: Duration,
    /// How often the stream began anew: another source, or a jump of the sequence.
    pub restarts: u64,
    /// Packets that would not decode; concealed.
    pub undecodable: u64,
    /// Frames thrown away because nobody took them.
    pub overflow: u64,
}

/// Puts one RTP stream in order, fills its holes and decodes it.
///
/// Drain [`Downlink::pop`] after every [`Downlink::push`] and [`Downlink::handle_timeout`], and call the latter at
/// [`Downlink::deadline`].
pub struct Downlink<D> {
    decoder: D,
    payload_type: Option<u8>,
    order: Order,
    lateness: Lateness,
    jitter: Jitter,
    delay: Histogram,
    /// The timestamp the stream goes on with; `None` before the first packet.
    due: Option<i64>,
    /// How long the last packet was, in ticks: what a lost one is taken for.
    packet: i64,
    /// Packets lost since the last one with sound.
    missing: u32,
    /// Less than the 2.5 ms that can be concealed, kept for the next hole.
    owed: i64,
    gap: Option<Gap>,
    /// When the last packet went out.
    last_played: Duration,
    fade: Fade,
    outlet: Outlet,
    pass_through: Option<PassThrough>,
    stats: DownlinkStats,
}

/// What the Watch's decoder is to be told of packets that did not come.
#[derive(Debug, Default)]
struct PassThrough {
    /// Lost ones in a row.
    lost: u32,
    /// The TOC byte of the last packet when it was all of it: the engine is silent, and nothing is lost.
    dtx: Option<u8>,
}

/// Nothing has come for too long.
#[derive(Debug)]
struct Gap {
    /// When the next frame is to be given.
    next: Duration,
    /// What was given, in ticks.
    given: i64,
}

impl<D: Decode> Downlink<D> {
    /// A stream without packets. With a `payload_type`, packets of others are passed over (case 12); `None` takes all.
    pub fn new(decoder: D, payload_type: Option<u8>) -> Self {
        Self {
            fade: Fade::new(decoder.rate()),
            decoder,
            payload_type,
            order: Order::default(),
            lateness: Lateness::default(),
            jitter: Jitter::new(TICKS_PER_SECOND as u32),
            delay: Histogram::new(),
            due: None,
            packet: FRAME,
            missing: 0,
            owed: 0,
            gap: None,
            last_played: Duration::ZERO,
            outlet: Outlet::default(),
            pass_through: None,
            stats: DownlinkStats::default(),
        }
    }

    /// The same, with each frame's packet beside its samples. Holes are then whole packets, at most 5 in a row.
    pub fn passing_packets(self) -> Self {
        Self { pass_through: Some(PassThrough::default()), ..self }
    }

    /// Takes in a packet that arrived at `now`.
    pub fn push(&mut self, now: Duration, packet: RtpPacket<'_>) {
        let ours = self.payload_type.is_none_or(|ours| ours == packet.payload_type);
        let sound = ours && !packet.payload.is_empty() && packet.payload.len() <= MAX_PAYLOAD;
        match self.order.push(now, &packet, sound) {
            Arrival::InTime(timestamp) if sound => {
                self.stats.reception.received += 1;
                self.lateness.push(now, timestamp);
                self.jitter.push(now, packet.timestamp);
            }
            Arrival::Fresh { timestamp, packets } => {
                self.stats.reception.received += packets;
                self.lateness.reset();
                self.lateness.push(now, timestamp);
                self.jitter.restart();
            }
            Arrival::Late(timestamp) => {
                // It came after all: not lost, but of no use.
                self.stats.reception.lost = self.stats.reception.lost.saturating_sub(1);
                self.stats.reception.discarded += 1;
                self.lateness.push(now, timestamp);
            }
            Arrival::Duplicate => self.stats.reception.discarded += 1,
            Arrival::InTime(_) | Arrival::Aside => {}
        }
        self.release(now);
    }

    /// Does what is due at `now`: gives up holes, and keeps sound going through a gap.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.release(now);
        self.fill_gap(now);
    }

    /// When [`Downlink::handle_timeout`] is next needed; `None` before the first packet.
    pub fn deadline(&self) -> Option<Duration> {
        self.order.deadline().or_else(|| self.gap_deadline())
    }

    /// The next frame in order, if there is one.
    pub fn pop(&mut self) -> Option<Frame<'_>> {
        self.outlet.pop()
    }

    /// How the stream fared so far.
    pub fn stats(&self) -> DownlinkStats {
        DownlinkStats {
            jitter: self.jitter.value(),
            reorder_wait: self.order.wait(),
            worst_lateness: self.lateness.worst(),
            surplus: lateness::from_ticks(self.outlet.surplus),
            shed: self.outlet.shed,
            overflow: self.outlet.overflow,
            ..self.stats
        }
    }

    /// How long each packet waited here for its turn.
    pub fn delay(&self) -> &Histogram {
        &self.delay
    }

    /// How unevenly the packets came (see [`Jitter::differences`]).
    pub fn jitter(&self) -> &Histogram {
        self.jitter.differences()
    }

    /// Plays everything whose turn it is.
    fn release(&mut self, now: Duration) {
        while let Some(held) = self.order.next(now) {
            self.missing += held.lost;
            self.stats.reception.lost += u64::from(held.lost);
            if !held.payload.is_empty() {
                self.play(&held);
                self.delay.record(now.saturating_sub(held.arrived));
                self.last_played = now;
            }
            self.order.recycle(held);
        }
    }

    fn play(&mut self, held: &Held) {
        let given = self.gap.take().map_or(0, |gap| gap.given);
        let lost = std::mem::take(&mut self.missing) > 0;
        if held.fresh {
            self.stats.restarts += u64::from(self.due.is_some());
            self.owed = 0;
        } else {
            // A timestamp that steps back is the sender's own affair: play on.
            let hole = self.due.map_or(0, |due| held.timestamp - due).max(0);
            self.outlet.surplus += (given - hole).max(0);
            self.fill_hole((hole - given).max(0), lost.then_some(&held.payload[..]));
        }
        let mut made = self.outlet.blank();
        match self.decoder.decode(&held.payload, &mut made.samples) {
            Ok(count) if count > 0 => {
                self.packet = self.ticks(count);
                self.fade.back(&mut made.samples);
                if let Some(pass) = &mut self.pass_through {
                    made.packet.extend_from_slice(&held.payload);
                    pass.lost = 0;
                    pass.dtx = held.payload.first().copied().filter(|_| opus::is_dtx(&held.payload));
                }
                self.put(made, FrameKind::Decoded);
            }
            _ => {
                self.outlet.recycle(made);
                self.stats.undecodable += 1;
                self.conceal(self.packet);
            }
        }
        self.due = Some(held.timestamp + self.packet);
    }

    /// Makes up what is missing before a packet that came, `next` when its FEC may help.
    fn fill_hole(&mut self, missing: i64, next: Option<&[u8]>) {
        let wanted = missing + self.owed;
        // The Watch's decoder can only be told of whole packets, and finds the FEC itself.
        let grain = if self.pass_through.is_some() { self.packet.max(SHORTEST) } else { SHORTEST };
        let fill = wanted.min(MAX_FILL.max(grain)) / grain * grain;
        self.owed = if wanted > MAX_FILL { 0 } else { wanted - fill };
        match next {
            Some(next) if fill >= self.packet && self.pass_through.is_none() => {
                self.conceal(fill - self.packet);
                self.recover(next);
            }
            _ => {
                self.conceal(fill);
            }
        }
    }

    fn recover(&mut self, next: &[u8]) {
        let mut made = self.outlet.blank();
        match self.decoder.recover(next, self.samples(self.packet), &mut made.samples) {
            Ok(count) if count > 0 => {
                self.fade.back(&mut made.samples);
                self.put(made, FrameKind::Recovered);
            }
            _ => {
                self.outlet.recycle(made);
                self.conceal(self.packet);
            }
        }
    }

    /// Makes up `ticks` of sound, a whole number of 2.5 ms, in pieces; silence once it has faded. Answers how much was
    /// given out.
    fn conceal(&mut self, ticks: i64) -> i64 {
        let piece = self.piece();
        let mut given = 0;
        while given < ticks {
            let mut made = self.outlet.blank();
            if let Some(pass) = &mut self.pass_through {
                if let Some(toc) = pass.dtx {
                    made.packet.push(toc);
                } else if pass.lost >= MAX_LOST_IN_A_ROW {
                    self.outlet.recycle(made);
                    break;
                }
                pass.lost += 1;
            }
            let length = piece.min(ticks - given);
            given += length;
            let samples = self.samples(length);
            let concealed =
                !self.fade.is_silent() && self.decoder.conceal(samples, &mut made.samples).is_ok_and(|count| count > 0);
            made.samples.resize(samples, 0);
            self.fade.out(&mut made.samples);
            self.put(made, if concealed { FrameKind::Concealed } else { FrameKind::Silence });
        }
        given
    }

    /// How much is made up at a time, in ticks.
    fn piece(&self) -> i64 {
        if self.pass_through.is_some() { self.packet } else { FRAME }
    }

    /// The clock for gaps.
    fn fill_gap(&mut self, now: Duration) {
        while let Some(deadline) = self.gap_deadline().filter(|deadline| *deadline <= now) {
            let piece = self.piece();
            let given = self.gap.as_ref().map_or(0, |gap| gap.given) + self.conceal(piece);
            let mut next = deadline + lateness::from_ticks(piece);
            if now > deadline + MAX_CATCH_UP {
                // Our own host slept: what was missed is missed, a burst helps nobody.
                next = now + FRAME_TIME;
            }
            self.gap = Some(Gap { next, given });
        }
    }

    /// When the clock for gaps gives its next frame.
    fn gap_deadline(&self) -> Option<Duration> {
        if self.order.is_waiting() {
            return None;
        }
        match &self.gap {
            Some(gap) => Some(gap.next),
            None => {
                let due = self.lateness.due(self.due?)? + self.lateness.worst().max(MIN_PATIENCE);
                // Timestamps that make no sense may place that in the past.
                Some(due.max(self.last_played + FRAME_TIME))
            }
        }
    }

    fn put(&mut self, mut made: Made, kind: FrameKind) {
        made.kind = kind;
        let ticks = self.ticks(made.samples.len());
        self.outlet.put(made, ticks, join::length(self.decoder.rate()), &mut self.stats.reception);
    }

    fn ticks(&self, samples: usize) -> i64 {
        samples as i64 * TICKS_PER_SECOND / i64::from(self.decoder.rate())
    }

    fn samples(&self, ticks: i64) -> usize {
        (ticks * i64::from(self.decoder.rate()) / TICKS_PER_SECOND) as usize
    }
}

/// RFC 7587 section 4.1.
const TICKS_PER_SECOND: i64 = 48_000;
/// 20 ms in ticks: the usual packet, and what the clock for gaps gives at a time.
const FRAME: i64 = 960;
/// The same as a time.
const FRAME_TIME: Duration = Duration::from_millis(20);
/// 2.5 ms in ticks: Opus conceals nothing shorter.
const SHORTEST: i64 = 120;
/// 100 ms in ticks: what is concealed at once when the stream returns. More would only be delay at the Watch.
const MAX_FILL: i64 = 4_800;
/// The clock for gaps starts no sooner than this after the next packet was due.
const MIN_PATIENCE: Duration = Duration::from_millis(60);
/// How much the clock for gaps makes up for when it was called late.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);
/// `watch-audio.md`, Extensions: more lost packets than this in a row are not told.
const MAX_LOST_IN_A_ROW: u32 = 5;
/// The longest Opus packet: 6 frames of 1,275 bytes, with their lengths (RFC 6716 section 3.4), and room to spare.
const MAX_PAYLOAD: usize = 8_192;

#[cfg(test)]
mod tests;
