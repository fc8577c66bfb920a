//! RTP to ordered sound, at once (`design.md`, "The way of a sound").
//!
//! There is no playout buffer here: the Watch has one. A packet in its order comes out in the step it went in. A hole
//! waits only for the reordering this network has shown, then it is concealed. And when nothing comes at all there is a
//! clock for gaps: sound goes on, first concealed, then silent, and what it gave counts against the hole.

mod lateness;
mod order;

use std::collections::VecDeque;
use std::time::Duration;

use self::lateness::Lateness;
use self::order::{Arrival, Held, Order};
use crate::codec::Decode;
use crate::join;
use crate::pause::Pause;
use crate::pcm;
use crate::stats::{Jitter, Reception};

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
    pause: Pause,
    /// Given by the clock for gaps beyond what was missing, in ticks.
    surplus: i64,
    /// The start of what was shed, to join what follows it without a click.
    cut: Vec<i16>,
    ready: VecDeque<Ready>,
    current: Option<Ready>,
    spare: Vec<Vec<i16>>,
    stats: DownlinkStats,
}

#[derive(Debug)]
struct Ready {
    samples: Vec<i16>,
    kind: FrameKind,
    peak: u16,
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
            due: None,
            packet: FRAME,
            missing: 0,
            owed: 0,
            gap: None,
            last_played: Duration::ZERO,
            pause: Pause::default(),
            surplus: 0,
            cut: Vec::new(),
            ready: VecDeque::new(),
            current: None,
            spare: Vec::new(),
            stats: DownlinkStats::default(),
        }
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
            Arrival::Fresh(timestamp) => {
                self.stats.reception.received += 1;
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
        let next = self.ready.pop_front()?;
        if let Some(last) = self.current.replace(next) {
            self.spare.push(last.samples);
        }
        let current = self.current.as_ref()?;
        Some(Frame { samples: &current.samples, kind: current.kind, peak: current.peak })
    }

    /// How the stream fared so far.
    pub fn stats(&self) -> DownlinkStats {
        DownlinkStats {
            jitter: self.jitter.value(),
            reorder_wait: self.order.wait(),
            worst_lateness: self.lateness.worst(),
            surplus: lateness::from_ticks(self.surplus),
            ..self.stats
        }
    }

    /// Plays everything whose turn it is.
    fn release(&mut self, now: Duration) {
        while let Some(held) = self.order.next(now) {
            self.missing += held.lost;
            self.stats.reception.lost += u64::from(held.lost);
            if !held.payload.is_empty() {
                self.play(&held);
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
            self.surplus += (given - hole).max(0);
            self.fill_hole((hole - given).max(0), lost.then_some(&held.payload[..]));
        }
        let mut samples = self.spare.pop().unwrap_or_default();
        samples.clear();
        let ticks = match self.decoder.decode(&held.payload, &mut samples) {
            Ok(count) if count > 0 => {
                self.packet = self.ticks(count);
                self.fade.back(&mut samples);
                self.emit(samples, FrameKind::Decoded);
                self.packet
            }
            _ => {
                self.spare.push(samples);
                self.stats.undecodable += 1;
                self.conceal(self.packet);
                self.packet
            }
        };
        self.due = Some(held.timestamp + ticks);
    }

    /// Makes up what is missing before a packet that came, `next` when its FEC may help.
    fn fill_hole(&mut self, missing: i64, next: Option<&[u8]>) {
        let wanted = missing + self.owed;
        let fill = wanted.min(MAX_FILL) / SHORTEST * SHORTEST;
        self.owed = if wanted > MAX_FILL { 0 } else { wanted - fill };
        match next {
            Some(next) if fill >= self.packet => {
                self.conceal(fill - self.packet);
                self.recover(next);
            }
            _ => self.conceal(fill),
        }
    }

    fn recover(&mut self, next: &[u8]) {
        let mut samples = self.spare.pop().unwrap_or_default();
        samples.clear();
        match self.decoder.recover(next, self.samples(self.packet), &mut samples) {
            Ok(count) if count > 0 => {
                self.fade.back(&mut samples);
                self.emit(samples, FrameKind::Recovered);
            }
            _ => {
                self.spare.push(samples);
                self.conceal(self.packet);
            }
        }
    }

    /// Makes up `ticks` of sound, a whole number of 2.5 ms, in pieces of 20 ms; silence once it has faded.
    fn conceal(&mut self, ticks: i64) {
        let mut left = ticks;
        while left > 0 {
            let piece = self.samples(left.min(FRAME));
            left -= FRAME;
            let mut samples = self.spare.pop().unwrap_or_default();
            samples.clear();
            let kind = if self.fade.is_silent() {
                FrameKind::Silence
            } else {
                match self.decoder.conceal(piece, &mut samples) {
                    Ok(count) if count > 0 => FrameKind::Concealed,
                    _ => FrameKind::Silence,
                }
            };
            samples.resize(piece, 0);
            self.fade.out(&mut samples);
            self.emit(samples, kind);
        }
    }

    /// The clock for gaps.
    fn fill_gap(&mut self, now: Duration) {
        while let Some(deadline) = self.gap_deadline().filter(|deadline| *deadline <= now) {
            self.conceal(FRAME);
            let given = self.gap.as_ref().map_or(0, |gap| gap.given) + FRAME;
            let mut next = deadline + FRAME_TIME;
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

    /// Hands a frame out, or sheds it when it is quiet and there is a surplus to lose.
    fn emit(&mut self, mut samples: Vec<i16>, kind: FrameKind) {
        let ticks = self.ticks(samples.len());
        let length = lateness::from_ticks(ticks);
        let mut peak = pcm::peak(&samples);
        let quiet = peak <= pcm::QUIET_PEAK;
        if self.surplus >= ticks && quiet && self.pause.is_long_enough() {
            self.surplus -= ticks;
            self.stats.shed += length;
            if self.cut.is_empty() {
                self.cut.extend_from_slice(&samples[..join::length(self.decoder.rate()).min(samples.len())]);
            }
            self.spare.push(samples);
            return;
        }
        if !self.cut.is_empty() {
            join::cross(&self.cut, &mut samples);
            self.cut.clear();
            peak = pcm::peak(&samples);
        }
        self.pause.played(quiet, length);
        self.stats.reception.played += length;
        match kind {
            FrameKind::Decoded => {}
            FrameKind::Recovered => self.stats.reception.recovered += length,
            FrameKind::Concealed | FrameKind::Silence => self.stats.reception.concealed += length,
        }
        if self.ready.len() >= MAX_READY
            && let Some(oldest) = self.ready.pop_front()
        {
            self.stats.overflow += 1;
            self.spare.push(oldest.samples);
        }
        self.ready.push_back(Ready { samples, kind, peak });
    }

    fn ticks(&self, samples: usize) -> i64 {
        samples as i64 * TICKS_PER_SECOND / i64::from(self.decoder.rate())
    }

    fn samples(&self, ticks: i64) -> usize {
        (ticks * i64::from(self.decoder.rate()) / TICKS_PER_SECOND) as usize
    }
}

/// How loud made-up sound still is.
#[derive(Debug)]
struct Fade {
    rate: u32,
    /// Samples made up since real sound.
    run: usize,
}

impl Fade {
    fn new(rate: u32) -> Self {
        Self { rate, run: 0 }
    }

    fn is_silent(&self) -> bool {
        self.run >= self.samples(FADE_END)
    }

    /// Made-up sound: as it is for one frame, then down to nothing.
    fn out(&mut self, samples: &mut [i16]) {
        for sample in samples {
            *sample = (f32::from(*sample) * self.gain()) as i16;
            self.run += 1;
        }
    }

    /// Real sound again: up from where the fade was.
    fn back(&mut self, samples: &mut [i16]) {
        let start = self.gain();
        self.run = 0;
        if start >= 1.0 {
            return;
        }
        let ramp = join::length(self.rate).min(samples.len());
        for (index, sample) in samples[..ramp].iter_mut().enumerate() {
            let gain = start + (1.0 - start) * (index + 1) as f32 / ramp as f32;
            *sample = (f32::from(*sample) * gain) as i16;
        }
    }

    fn gain(&self) -> f32 {
        let (start, end) = (self.samples(FADE_START), self.samples(FADE_END));
        let left = end.saturating_sub(self.run) as f32;
        (left / (end - start) as f32).min(1.0)
    }

    fn samples(&self, time: Duration) -> usize {
        (time.as_millis() as usize * self.rate as usize) / 1_000
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
/// Concealment of one 20 ms frame keeps its level…
const FADE_START: Duration = Duration::from_millis(20);
/// …and is gone after 100 ms.
const FADE_END: Duration = Duration::from_millis(100);
/// The longest Opus packet: 6 frames of 1,275 bytes, with their lengths (RFC 6716 section 3.4), and room to spare.
const MAX_PAYLOAD: usize = 8_192;
/// Ten seconds of usual frames: nobody is taking them.
const MAX_READY: usize = 512;

#[cfg(test)]
mod tests;
