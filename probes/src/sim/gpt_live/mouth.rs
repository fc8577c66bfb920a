//! The endless output: one Opus packet after the other in real time, silence where nothing is said.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use watch_audio_media::codec::{CodecError, Encode};
use watch_audio_media::opus::{Encoder, EncoderSettings};

use super::{Note, Occasion, RtpFaults, Spoken};
use crate::sim::script::{RATE, Utterance};

/// One packet to be sent.
pub(super) struct Packet {
    /// The number of the packet, counted from 1; its RTP sequence number too.
    pub(super) number: u64,
    /// At 48 kHz.
    pub(super) timestamp: u32,
    /// The first of speech.
    pub(super) marker: bool,
    pub(super) payload: Vec<u8>,
}

/// What is being said, and what will be.
pub(super) struct Mouth {
    note: Note,
    faults: RtpFaults,
    encoder: Encoder,
    /// Samples in a packet.
    frame: usize,
    start: Option<Instant>,
    /// Frames made so far, sent or not.
    frames: u64,
    packets: u64,
    queue: VecDeque<(Occasion, Utterance)>,
    current: Option<Current>,
    cut_at: Option<Instant>,
    /// Silent frames since the last speech.
    silent: u64,
}

struct Current {
    utterance: Utterance,
    words: Vec<String>,
    told: usize,
    position: usize,
    /// Its place among what was spoken.
    spoken: Option<usize>,
    occasion: Occasion,
}

impl Mouth {
    pub(super) fn new(note: Note, faults: &RtpFaults) -> Result<Self, CodecError> {
        let packet_ms = if faults.packet_ms == 0 { 20 } else { faults.packet_ms };
        Ok(Self {
            note,
            faults: faults.clone(),
            encoder: Encoder::new(RATE, &EncoderSettings::voice())?,
            frame: (packet_ms * RATE / 1_000) as usize,
            start: None,
            frames: 0,
            packets: 0,
            queue: VecDeque::new(),
            current: None,
            cut_at: None,
            silent: 0,
        })
    }

    /// The length of a packet.
    pub(super) fn period(&self) -> Duration {
        Duration::from_micros(self.frame as u64 * 1_000_000 / u64::from(RATE))
    }

    /// From now on packets are due.
    pub(super) fn start(&mut self, now: Instant) {
        self.start.get_or_insert(now);
    }

    /// When the next packet is due: an absolute time, so that no lateness adds up.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.start? + self.period() * u32::try_from(self.frames).ok()?)
    }

    /// Says something after all that is waiting.
    pub(super) fn say(&mut self, occasion: Occasion, utterance: Utterance) {
        self.queue.push_back((occasion, utterance));
    }

    /// Whether something is being said or waits to be.
    pub(super) fn speaking(&self) -> bool {
        self.current.is_some() || !self.queue.is_empty()
    }

    /// Falls silent at the given time; what waits is forgotten.
    pub(super) fn cut(&mut self, at: Instant) {
        self.cut_at = Some(self.cut_at.map_or(at, |before| before.min(at)));
    }

    /// The next packet, none when it is not sent, and the words that were said with it.
    pub(super) fn packet(&mut self, now: Instant) -> (Option<Packet>, Vec<String>) {
        let cut = self.cut_at.is_some_and(|at| at <= now);
        if self.current.is_none() && !cut {
            self.current = self.queue.pop_front().map(|(occasion, utterance)| Current::new(occasion, utterance));
        }
        let mut pcm = vec![0; self.frame];
        let (words, fresh) = self.fill(&mut pcm, now, cut);
        if cut {
            self.cut_at = None;
            self.queue.clear();
        }
        let timestamp = (self.frames * self.frame as u64 * u64::from(48_000 / RATE)) as u32;
        self.frames += 1;
        self.silent = if pcm.iter().all(|sample| *sample == 0) { self.silent + 1 } else { 0 };
        let mut payload = Vec::new();
        if self.encoder.encode(&pcm, &mut payload).is_err() || self.skipped() {
            return (None, words);
        }
        if self.faults.dtx && self.silent > DTX_AFTER {
            // A packet of nothing but its first byte: there is no sound in it (RFC 6716 section 3.2.1).
            payload.truncate(1);
        }
        self.packets += 1;
        let number = self.packets;
        self.note.with(|session| {
            session.packets = number;
            if let Some(spoken) = fresh.and_then(|index| session.spoken.get_mut(index)) {
                spoken.packet = number;
            }
        });
        (Some(Packet { number, timestamp, marker: fresh.is_some(), payload }), words)
    }

    /// A sequence number for a packet that carries nothing.
    pub(super) fn empty_number(&mut self) -> u64 {
        self.packets += 1;
        self.packets
    }

    /// Puts what is said into the frame; answers its words, and its place in the record when it begins here.
    fn fill(&mut self, pcm: &mut [i16], now: Instant, cut: bool) -> (Vec<String>, Option<usize>) {
        let Some(current) = &mut self.current else { return (Vec::new(), None) };
        let rest = &current.utterance.pcm[current.position..];
        let count = rest.len().min(pcm.len());
        pcm[..count].copy_from_slice(&rest[..count]);
        if cut {
            // Down within the frame, so that stopping makes no click.
            let length = pcm.len() as i32;
            pcm.iter_mut().zip((0..length).rev()).for_each(|(sample, left)| {
                *sample = (i32::from(*sample) * left / length) as i16;
            });
        }
        current.position += count;
        let fresh = current.spoken.is_none();
        let index = *current.spoken.get_or_insert_with(|| {
            self.note.with(|session| {
                session.spoken.push(Spoken {
                    occasion: current.occasion,
                    text: current.utterance.text.clone(),
                    from: now,
                    to: None,
                    packet: 0,
                    samples: 0,
                    cut: false,
                });
                session.spoken.len() - 1
            })
        });
        let total = current.utterance.pcm.len();
        let over = cut || current.position == total;
        self.note.with(|session| {
            let spoken = &mut session.spoken[index];
            spoken.samples = current.position as u64;
            spoken.cut = cut && current.position < total;
            spoken.to = over.then_some(now);
        });
        let told = (current.words.len() * current.position).div_ceil(total.max(1)).min(current.words.len());
        let words = current.words[current.told..told].to_vec();
        current.told = told;
        if over {
            self.current = None;
        }
        (words, fresh.then_some(index))
    }

    /// Whether this frame of silence is not sent: only one in 400 ms is.
    fn skipped(&self) -> bool {
        let every = (DTX_PERIOD_SAMPLES / self.frame as u64).max(1);
        self.faults.dtx && self.silent > DTX_AFTER && !(self.silent - DTX_AFTER).is_multiple_of(every)
    }
}

impl Current {
    fn new(occasion: Occasion, utterance: Utterance) -> Self {
        Self { words: utterance.fragments(), told: 0, position: 0, spoken: None, occasion, utterance }
    }
}

/// Frames of silence that are still sent, as an encoder's hangover.
const DTX_AFTER: u64 = 10;
/// 400 ms, the longest an Opus encoder stays silent for.
const DTX_PERIOD_SAMPLES: u64 = RATE as u64 * 400 / 1_000;
