//! The media of one GPT-Live call: a peer, and the sound machines on both sides of it.
//!
//! Up, a packet leaves every 20 ms from the first connection to the very end, silence where nothing was said: the
//! model's clock is our audio (case 17). Down, the engine's packets are put in order and decoded at once. Both the
//! bridge's session and the plugin's helper hold their call with this. With a Watch that takes and gives Opus the packets
//! go through untouched, both ways, where they can.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};
use watch_audio_media::codec::{CodecError, Encode};
use watch_audio_media::downlink::{Downlink, RtpPacket};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings};
use watch_audio_media::pcm;
use watch_audio_media::resample::{RateError, Resampler};
use watch_audio_media::uplink::Uplink;
use watch_audio_media::uplink::passing::{Due, Passing};

use crate::engine::Codec;
use crate::engine::figures::{millis, percentiles};
use crate::rtc::{Peer, PeerConfig, PeerError, PeerEvent, Rtp};

/// What a call is made with.
#[derive(Debug, Clone)]
pub struct CallConfig {
    /// For the peer.
    pub peer: PeerConfig,
    /// Of the samples that go in, in Hz.
    pub input_rate: u32,
    /// Of the samples that come out, in Hz.
    pub output_rate: u32,
    /// What goes in and comes out: samples, or Opus packets. Those need rates that Opus has.
    pub codec: Codec,
}

/// Why there is no call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No peer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No codec.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// No resampler for one of the rates.
    #[error(transparent)]
    Rate(#[from] RateError),
}

/// What happened in a call.
pub enum CallEvent {
    /// Sound flows from now on. Comes again after an interruption.
    Connected,
    /// A text of the engine's, untouched.
    Text(Bytes),
    /// [`Call::pop`] has sound to give.
    Sound,
    /// The end, with a short reason.
    Ended(&'static str),
}

/// A stretch of the engine's sound.
#[derive(Debug, Clone, Copy)]
pub struct Sound<'a> {
    /// Mono, at the call's output rate, usually 20 ms.
    pub samples: &'a [i16],
    /// The loudest sample's magnitude.
    pub peak: u16,
    /// With [`Codec::Opus`]: the engine's packet, untouched, or empty for a lost one.
    pub packet: &'a [u8],
}

/// A GPT-Live call's media.
pub struct Call {
    peer: Peer,
    /// The zero of the sound machines' time.
    origin: Instant,
    /// The latest time any machine was told: packets carry their own, and time must not step back.
    latest: Duration,
    up: Up,
    down: Down,
}

impl Call {
    /// Makes a call and its offer.
    ///
    /// # Errors
    /// When this machine gives no sockets, or no codec for the rates.
    pub async fn offer(config: &CallConfig) -> Result<(Self, String), CallError> {
        let up = Up::new(config.input_rate, config.codec)?;
        let down = Down::new(config.output_rate, config.codec)?;
        let (peer, offer) = Peer::offer(&config.peer).await?;
        Ok((Self { peer, origin: Instant::now(), latest: Duration::ZERO, up, down }, offer))
    }

    /// Takes the engine's answer and starts connecting.
    ///
    /// # Errors
    /// When the answer is of no use.
    pub async fn accept(&mut self, answer: &str) -> Result<(), PeerError> {
        self.peer.accept(answer).await?;
        self.down.payload_type = self.peer.payload_type();
        Ok(())
    }

    /// Does what is due until there is something to tell. Cancel safe; has to be waited on all the time, or no sound
    /// leaves.
    pub async fn next(&mut self) -> CallEvent {
        loop {
            let slot = self.up.next_slot().map(|slot| self.origin + slot);
            let gap = self.down.stream.deadline().map(|deadline| self.origin + deadline);
            tokio::select! {
                // Slots first: whatever comes in, sound goes out in time. Then packets, before any is given up for lost.
                biased;
                () = until(slot) => self.send_slot(),
                event = self.peer.next() => {
                    if let Some(event) = self.take(event) {
                        return event;
                    }
                }
                () = until(gap) => {
                    let now = self.time(Instant::now());
                    self.down.stream.handle_timeout(now);
                    return CallEvent::Sound;
                }
            }
        }
    }

    /// The engine's next stretch of sound, in order. To be taken until there is none after each [`CallEvent::Sound`].
    pub fn pop(&mut self) -> Option<Sound<'_>> {
        self.down.pop()
    }

    /// Sound from the microphone, any length, as it comes. Before the first connection nobody is there to hear it.
    pub fn push_microphone(&mut self, now: Instant, samples: &[i16]) {
        let now = self.time(now);
        self.up.push(now, samples);
    }

    /// With [`Codec::Opus`], instead: a packet from the microphone as it comes, empty for a lost one.
    pub fn push_packet(&mut self, now: Instant, packet: &[u8]) {
        let now = self.time(now);
        self.up.push_packet(now, packet);
    }

    /// A text for the engine; leaves when the event channel is open.
    ///
    /// # Errors
    /// When too much waits: the oldest was dropped.
    pub fn send_text(&self, text: impl Into<String>) -> Result<(), PeerError> {
        self.peer.send_text(text)
    }

    /// While `hold`, the engine's texts stay with it.
    pub fn hold_text(&mut self, hold: bool) {
        self.peer.hold_text(hold);
    }

    /// What was tried, or is used, to reach the engine: `UDP`, `TCP`, `UDP and TCP`.
    pub fn routes(&self) -> &'static str {
        self.peer.routes()
    }

    /// Figures so far, in RFC 3611 words; times in milliseconds.
    pub fn stats(&self) -> Map<String, Value> {
        let down = self.down.stream.stats();
        let reception = down.reception;
        let mut stats = Map::new();
        stats.insert(
            "down".into(),
            json!({
                "packets": reception.received,
                "lost": reception.lost,
                "discarded": reception.discarded + self.peer.audio_dropped(),
                "played_ms": millis(reception.played),
                "concealed_ms": millis(reception.concealed),
                "recovered_ms": millis(reception.recovered),
                "delay_ms": percentiles(self.down.stream.delay()),
                "jitter_ms": percentiles(self.down.stream.jitter()),
                "lateness_ms": millis(down.worst_lateness),
                "shed_ms": millis(down.shed),
            }),
        );
        stats.insert("up".into(), self.up.stats());
        stats
    }

    /// Ends the connection. At most 2 s, and once more does no harm.
    pub async fn close(&mut self) {
        self.peer.close().await;
    }

    /// Takes in one of the peer's events; answers what is to be told of it.
    fn take(&mut self, event: PeerEvent) -> Option<CallEvent> {
        match event {
            PeerEvent::Connected => {
                self.up.start();
                Some(CallEvent::Connected)
            }
            PeerEvent::Rtp(packet) => {
                let now = self.time(packet.arrived);
                self.down.push(now, &packet);
                Some(CallEvent::Sound)
            }
            PeerEvent::Text(text) => Some(CallEvent::Text(text)),
            PeerEvent::Closed(reason) => Some(CallEvent::Ended(reason)),
            PeerEvent::Disconnected => {
                tracing::info!("the engine has not answered for a while");
                None
            }
            PeerEvent::ChannelOpen => None,
        }
    }

    fn send_slot(&mut self) {
        let now = self.time(Instant::now());
        if let Some((packet, timestamp, marker)) = self.up.pull(now) {
            // Full or gone: the packet is lost, as on any network, and the peer's own event tells which.
            let _ = self.peer.send_audio(packet, timestamp, marker);
        }
    }

    fn time(&mut self, instant: Instant) -> Duration {
        self.latest = self.latest.max(instant.saturating_duration_since(self.origin));
        self.latest
    }
}

/// From the microphone to Opus packets with their RTP timestamps.
struct Up {
    source: Source,
    started: bool,
    /// Of the next packet, in 1/48,000 s.
    timestamp: u32,
    unencodable: u64,
}

/// What the microphone gives.
enum Source {
    Samples(Box<Samples>),
    Packets(Box<Passing<Decoder, Encoder>>),
}

/// Samples at the input rate, encoded slot by slot.
struct Samples {
    resampler: Option<Resampler>,
    uplink: Uplink,
    encoder: Encoder,
    at_opus_rate: Vec<i16>,
    frame: Vec<i16>,
    packet: Vec<u8>,
}

impl Up {
    fn new(rate: u32, codec: Codec) -> Result<Self, CallError> {
        let voice = EncoderSettings::voice();
        let source = match codec {
            Codec::Pcm16 => Source::Samples(Box::new(Samples::new(rate, &voice)?)),
            Codec::Opus => Source::Packets(Box::new(Passing::new(Decoder::new(rate)?, Encoder::new(rate, &voice)?))),
        };
        Ok(Self { source, started: false, timestamp: 0, unencodable: 0 })
    }

    /// Lets the stream flow, from the next slot on: at once.
    fn start(&mut self) {
        self.started = true;
    }

    fn next_slot(&self) -> Option<Duration> {
        self.started.then(|| match &self.source {
            Source::Samples(samples) => samples.uplink.next_slot(),
            Source::Packets(packets) => packets.next_slot(),
        })
    }

    fn push(&mut self, now: Duration, samples: &[i16]) {
        if let (true, Source::Samples(source)) = (self.started, &mut self.source) {
            source.push(now, samples);
        }
    }

    fn push_packet(&mut self, now: Duration, packet: &[u8]) {
        if let (true, Source::Packets(source)) = (self.started, &mut self.source) {
            source.push(now, packet);
        }
    }

    /// One packet with its timestamp and marker.
    fn pull(&mut self, now: Duration) -> Option<(&[u8], u32, bool)> {
        let Due { slot, packet, frames, .. } = match &mut self.source {
            Source::Samples(samples) => samples.pull(now),
            Source::Packets(packets) => packets.pull(now),
        };
        // Slots that were missed are a hole in the stream, never a burst: time goes on by them.
        let timestamp = self.timestamp.wrapping_add(slot.skipped.wrapping_mul(SLOT_TICKS));
        self.timestamp = timestamp.wrapping_add(frames.wrapping_mul(SLOT_TICKS));
        if packet.is_empty() {
            self.unencodable += 1;
            return None;
        }
        Some((packet, timestamp, slot.marker))
    }

    fn stats(&self) -> Value {
        let uplink = match &self.source {
            Source::Samples(samples) => &samples.uplink,
            Source::Packets(packets) => packets.uplink(),
        };
        let stats = uplink.stats();
        let mut figures = json!({
            "received_ms": millis(stats.received),
            "frames": stats.frames,
            "concealed_ms": stats.concealed * SLOT_MS,
            "delay_ms": percentiles(uplink.delay()),
            "jitter_ms": percentiles(uplink.jitter()),
            "skipped": stats.skipped,
            "holds": stats.holds,
            "stalls": stats.stalls,
            "shed_ms": millis(stats.shed),
            "compressed_ms": millis(stats.compressed),
            "dropped_ms": millis(stats.dropped),
            "queued_ms": millis(stats.queued),
            "target_ms": millis(stats.target),
            "unencodable": self.unencodable,
        });
        if let Source::Packets(packets) = &self.source {
            let messages = packets.messages();
            figures["packets_passed"] = packets.passed().into();
            figures["packets_concealed"] = messages.concealed.into();
            figures["packets_undecodable"] = messages.undecodable.into();
        }
        figures
    }
}

impl Samples {
    fn new(rate: u32, settings: &EncoderSettings) -> Result<Self, CallError> {
        let (opus_rate, resampler) = match opus_rate(rate) {
            same if same == rate => (rate, None),
            other => (other, Some(Resampler::new(rate, other)?)),
        };
        Ok(Self {
            resampler,
            uplink: Uplink::new(opus_rate),
            encoder: Encoder::new(opus_rate, settings)?,
            at_opus_rate: Vec::new(),
            frame: Vec::new(),
            packet: Vec::new(),
        })
    }

    fn push(&mut self, now: Duration, samples: &[i16]) {
        match &mut self.resampler {
            None => self.uplink.push(now, samples),
            Some(resampler) => {
                self.at_opus_rate.clear();
                resampler.push(samples, &mut self.at_opus_rate);
                self.uplink.push(now, &self.at_opus_rate);
            }
        }
    }

    fn pull(&mut self, now: Duration) -> Due<'_> {
        let slot = self.uplink.pull(now, &mut self.frame);
        self.packet.clear();
        if self.encoder.encode(&self.frame, &mut self.packet).is_err() {
            self.packet.clear();
        }
        Due { slot, packet: &self.packet, frames: 1, untouched: false }
    }
}

/// From RTP to samples at the output rate.
struct Down {
    stream: Downlink<Decoder>,
    payload_type: u8,
    resampler: Option<Resampler>,
    at_output_rate: Vec<i16>,
}

impl Down {
    fn new(rate: u32, codec: Codec) -> Result<Self, CallError> {
        let (opus_rate, resampler) = match opus_rate(rate) {
            same if same == rate => (rate, None),
            other => (other, Some(Resampler::new(other, rate)?)),
        };
        let mut stream = Downlink::new(Decoder::new(opus_rate)?, None);
        if codec == Codec::Opus {
            stream = stream.passing_packets();
        }
        Ok(Self { stream, payload_type: 0, resampler, at_output_rate: Vec::new() })
    }

    fn push(&mut self, now: Duration, packet: &Rtp) {
        // Another codec's payload is no sound to us, but its sequence number did arrive (case 12).
        let payload = if packet.payload_type == self.payload_type { &packet.payload[..] } else { &[] };
        self.stream.push(
            now,
            RtpPacket {
                sequence: packet.sequence,
                timestamp: packet.timestamp,
                marker: packet.marker,
                payload_type: packet.payload_type,
                ssrc: packet.ssrc,
                payload,
            },
        );
    }

    fn pop(&mut self) -> Option<Sound<'_>> {
        match &mut self.resampler {
            None => {
                self.stream.pop().map(|frame| Sound { samples: frame.samples, peak: frame.peak, packet: frame.packet })
            }
            Some(resampler) => {
                let frame = self.stream.pop()?;
                self.at_output_rate.clear();
                resampler.push(frame.samples, &mut self.at_output_rate);
                let peak = pcm::peak(&self.at_output_rate);
                Some(Sound { samples: &self.at_output_rate, peak, packet: frame.packet })
            }
        }
    }
}

/// The rate Opus is run at for samples of `rate`: the next one it knows, which loses nothing.
fn opus_rate(rate: u32) -> u32 {
    [8_000, 12_000, 16_000, 24_000].into_iter().find(|known| rate <= *known).unwrap_or(48_000)
}

/// Waits for a deadline, for ever when there is none.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// 20 ms at Opus' RTP clock of 48 kHz (RFC 7587 section 4.1).
const SLOT_TICKS: u32 = 960;
/// The same in milliseconds.
const SLOT_MS: u64 = 20;
