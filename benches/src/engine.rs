//! The engine's side of a call: answers the helper's offer as an ICE-lite server, plays a sound, takes down what it hears.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use str0m::change::SdpOffer;
use str0m::media::{Mid, Pt};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{RtpPacket, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc};
use watch_audio_media::codec::{CodecError, Decode, Encode};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings};

use crate::follow::Heard;
use crate::network::{Network, Path};
use crate::{FRAME, Failed};

/// The answering side of one call.
pub struct Engine {
    pub(crate) rtc: Rtc,
    pub(crate) socket: UdpSocket,
    pub(crate) address: SocketAddr,
    pub(crate) track: Option<(Mid, Pt)>,
}

/// What the engine has to say of a call.
#[derive(Debug)]
pub struct Taken {
    /// When each frame of the sound was handed to the track.
    pub sent: Vec<Instant>,
    /// What the helper sent, decoded.
    pub heard: Heard,
}

impl Engine {
    /// Answers `offer`.
    ///
    /// # Errors
    /// When there is no socket to be had, or the offer is not understood.
    pub fn answer(offer: &str) -> Result<(Self, String), Failed> {
        let socket = UdpSocket::bind((own_address(), 0)).map_err(Failed::to("open a socket"))?;
        let address = socket.local_addr().map_err(Failed::to("open a socket"))?;
        let mut rtc = Rtc::builder()
            .set_ice_lite(true)
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_opus(true, false)
            .build(Instant::now());
        rtc.add_local_candidate(Candidate::host(address, "udp").map_err(Failed::to("offer an address"))?);
        let offer = SdpOffer::from_sdp_string(offer).map_err(Failed::to("read the offer"))?;
        let answer = rtc.sdp_api().accept_offer(offer).map_err(Failed::to("answer the offer"))?;
        Ok((Self { rtc, socket, address, track: None }, answer.to_sdp_string()))
    }

    /// Plays `packets`, one each 20 ms from the moment of connecting, over a `network` that is bad in both directions to
    /// RTP and to nothing else, until `stop`.
    ///
    /// # Errors
    /// When WebRTC or the socket fails.
    pub fn run(
        mut self,
        packets: &[Arc<[u8]>],
        network: Network,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Taken, Failed> {
        let mut down = Path::new(network, seed);
        let mut up = Path::new(network.toward_engine(), !seed);
        let (mut under_way, mut handed) = (BTreeMap::new(), 0u64);
        let mut start = None;
        let mut sent = Vec::with_capacity(packets.len());
        let mut received: BTreeMap<u64, RtpPacket> = BTreeMap::new();
        let mut buffer = [0; 2_000];
        while !stop.load(Ordering::Relaxed) {
            let deadline = loop {
                match self.rtc.poll_output().map_err(Failed::to("go on with WebRTC"))? {
                    Output::Timeout(deadline) => break deadline,
                    Output::Transmit(datagram) => {
                        let now = Instant::now();
                        let due = match start {
                            Some(start) if is_rtp(&datagram.contents) => {
                                down.pass(since(now, start)).map(|due| start + due)
                            }
                            _ => Some(now),
                        };
                        if let Some(due) = due {
                            // Numbered: two at one time keep their order.
                            handed += 1;
                            under_way.insert((due, handed), datagram);
                        }
                    }
                    Output::Event(Event::MediaAdded(added)) => {
                        let payload_type = self.rtc.media(added.mid).and_then(|media| media.remote_pts().first());
                        self.track = payload_type.map(|payload_type| (added.mid, *payload_type));
                    }
                    Output::Event(Event::Connected) => start = Some(Instant::now()),
                    Output::Event(Event::RtpPacket(packet)) => {
                        received.entry(*packet.seq_no).or_insert(packet);
                    }
                    Output::Event(_) => {}
                }
            };
            let now = Instant::now();
            while let Some(first) = under_way.first_entry().filter(|first| first.key().0 <= now) {
                let datagram = first.remove();
                // A port that is gone is the helper's end, which shows elsewhere.
                let _ = self.socket.send_to(&datagram.contents, datagram.destination);
            }
            let slot = start.map(|start| start + FRAME * (sent.len() as u32 + 1));
            if slot.is_some_and(|slot| slot <= now) && sent.len() < packets.len() {
                sent.push(now);
                self.play(&packets[sent.len() - 1], sent.len(), now)?;
                // str0m sends on a time-out, not on a write.
                self.rtc.handle_input(Input::Timeout(now)).map_err(Failed::to("go on with WebRTC"))?;
                continue;
            }
            let next = [Some(deadline), slot.filter(|slot| *slot > now), under_way.keys().next().map(|key| key.0)];
            let next = next.into_iter().flatten().min().unwrap_or(deadline);
            let Some((length, source)) = self.receive(&mut buffer, next)? else {
                self.rtc.handle_input(Input::Timeout(Instant::now())).map_err(Failed::to("go on with WebRTC"))?;
                continue;
            };
            let (now, datagram) = (Instant::now(), &buffer[..length]);
            let lost = start.is_some_and(|start| is_rtp(datagram) && up.pass(since(now, start)).is_none());
            if let (false, Ok(contents)) = (lost, datagram.try_into()) {
                let datagram = Receive { proto: Protocol::Udp, source, destination: self.address, contents };
                self.rtc.handle_input(Input::Receive(now, datagram)).map_err(Failed::to("take a datagram"))?;
            }
        }
        let heard = decode(received.values()).map_err(Failed::to("decode the helper's sound"))?;
        Ok(Taken { sent, heard })
    }

    pub(crate) fn play(&mut self, packet: &Arc<[u8]>, count: usize, now: Instant) -> Result<(), Failed> {
        let (mid, payload_type) = self.track.ok_or_else(|| Failed("the offer has no Opus track".to_owned()))?;
        let mut api = self.rtc.direct_api();
        let track = api.stream_tx_by_mid(mid, None).ok_or_else(|| Failed("the track is gone".to_owned()))?;
        let timestamp = RTP_FRAME_TICKS * count as u32;
        track.write_rtp(RtpWrite::new(payload_type, (count as u64).into(), timestamp, now, packet.clone()));
        Ok(())
    }

    /// One datagram, or none until `deadline`. A socket's own time-out is as coarse as the kernel's tick.
    pub(crate) fn receive(&self, buffer: &mut [u8], deadline: Instant) -> Result<Option<(usize, SocketAddr)>, Failed> {
        let wait = deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait)).map_err(Failed::to("wait"))?;
        if ready == 0 {
            return Ok(None);
        }
        // A refused datagram of before is reported here; it says nothing.
        Ok(self.socket.recv_from(buffer).ok())
    }
}

/// `pcm` at `rate` as the Opus packets of an engine.
///
/// # Errors
/// When libopus refuses.
pub fn encode(rate: u32, pcm: &[i16]) -> Result<Vec<Arc<[u8]>>, CodecError> {
    let mut encoder = Encoder::new(rate, &EncoderSettings::voice())?;
    let frames = pcm.chunks_exact(rate as usize / 50);
    frames
        .map(|frame| {
            let mut packet = Vec::new();
            encoder.encode(frame, &mut packet)?;
            Ok(packet.into())
        })
        .collect()
}

/// Decodes as an engine with FEC and concealment does, but after the call: each packet's sound counts from its arrival.
fn decode<'a>(packets: impl Iterator<Item = &'a RtpPacket>) -> Result<Heard, CodecError> {
    let mut decoder = Decoder::new(HEARD_RATE)?;
    let mut heard = Heard::new(HEARD_RATE);
    let mut pcm = Vec::new();
    let mut before: Option<&RtpPacket> = None;
    for packet in packets.filter(|packet| !packet.payload.is_empty()) {
        pcm.clear();
        let lost = before.map_or(0, |before| *packet.seq_no - *before.seq_no - 1).min(LONGEST_HOLE);
        for left in (0..lost).rev() {
            if left == 0 {
                decoder.recover(&packet.payload, HEARD_FRAME_SAMPLES, &mut pcm)?;
            } else {
                decoder.conceal(HEARD_FRAME_SAMPLES, &mut pcm)?;
            }
        }
        decoder.decode(&packet.payload, &mut pcm)?;
        heard.push(packet.timestamp, &pcm);
        before = Some(packet);
    }
    Ok(heard)
}

/// Whether a datagram is RTP, and not STUN, DTLS or RTCP (RFC 7983 section 7, RFC 5761 section 4).
fn is_rtp(datagram: &[u8]) -> bool {
    matches!(datagram, [128..=191, kind, ..] if !(64..=95).contains(&(kind & 0x7F)))
}

/// An address of this machine that helpers which leave out loopback can reach. Nothing is sent to find it.
fn own_address() -> IpAddr {
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    routed.map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}

fn since(now: Instant, start: Instant) -> Duration {
    now.saturating_duration_since(start)
}

/// 20 ms of Opus' RTP clock of 48 kHz (RFC 7587 section 4.1).
const RTP_FRAME_TICKS: u32 = 960;
/// The helper's sound is looked through at 8 kHz.
const HEARD_RATE: u32 = 8_000;
const HEARD_FRAME_SAMPLES: usize = 160;
/// One second: a longer hole is another stream.
const LONGEST_HOLE: u64 = 50;
/// So that `stop` is seen.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::follow;
    use crate::marks::Marks;

    /// The share of the marks in `which` frames that is found in `heard`, each with the packet that it was sent in.
    fn found(marks: &Marks, sent: &[Instant], heard: &Heard, which: impl Fn(usize) -> bool) -> f64 {
        let all: Vec<_> = follow(marks, sent, heard).into_iter().filter(|mark| which(mark.frame)).collect();
        let found: Vec<_> = all.iter().filter_map(|mark| mark.delay).collect();
        assert!(found.iter().all(|delay| *delay == FRAME), "a mark was taken for another: {found:?}");
        found.len() as f64 / all.len() as f64
    }

    #[test]
    fn opus_leaves_the_marks_to_be_found() {
        let marks = Marks::new(600);
        let packets = encode(24_000, &marks.pcm(24_000)).unwrap();
        let start = Instant::now();
        let sent: Vec<_> = (0..packets.len() as u32).map(|n| start + FRAME * n).collect();
        let mut decoder = Decoder::new(HEARD_RATE).unwrap();
        // Of ten packets one comes back from FEC, one is concealed.
        let mut damaged = Decoder::new(HEARD_RATE).unwrap();
        let (mut whole, mut holed) = (Heard::new(HEARD_RATE), Heard::new(HEARD_RATE));
        let mut pcm = Vec::new();
        for (n, (packet, sent)) in packets.iter().zip(&sent).enumerate() {
            pcm.clear();
            decoder.decode(packet, &mut pcm).unwrap();
            whole.push(*sent + FRAME, &pcm);
            pcm.clear();
            match n % 10 {
                3 => damaged.recover(&packets[n + 1], HEARD_FRAME_SAMPLES, &mut pcm).unwrap(),
                7 => damaged.conceal(HEARD_FRAME_SAMPLES, &mut pcm).unwrap(),
                _ => damaged.decode(packet, &mut pcm).unwrap(),
            };
            holed.push(*sent + FRAME, &pcm);
        }
        assert!(found(&marks, &sent, &whole, |_| true) >= 0.99);
        assert!(found(&marks, &sent, &holed, |n| !matches!(n % 10, 3 | 7)) >= 0.97);
        assert!(found(&marks, &sent, &holed, |n| n % 10 == 3) >= 0.9, "FEC brings marks back");
        assert!(found(&marks, &sent, &holed, |n| n % 10 == 7) <= 0.2, "concealment does not");
    }

    #[test]
    fn only_rtp_is_rtp() {
        assert!(is_rtp(&[0x80, 96, 0, 0]));
        assert!(is_rtp(&[0x90, 0x80 | 111, 0, 0]));
        for other in [&[0x80, 200, 0, 0][..], &[0, 1, 0, 0], &[22, 254, 253, 0], &[]] {
            assert!(!is_rtp(other));
        }
    }
}
