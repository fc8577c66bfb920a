//! Takes every packet of the engine's off the stack where it has just been decrypted.
//!
//! The crate's own tracks belong to the one SSRC that came first: once the engine changes it (RFC 3550 section 8.2 lets
//! it at any time), nothing of the new stream would ever reach us. So this last link of the crate's chain keeps the sound
//! for us, whatever its SSRC, and lets the receiver reports follow it.

use std::time::Instant;

use rtc::interceptor::{
    Interceptor, Packet, ReceiverReportBuilder, ReceiverReportInterceptor, StreamInfo, TaggedPacket,
};
use rtc::sansio::Protocol;
use rtc::shared::error::Error;
use tokio::sync::broadcast;

use super::Rtp;

/// Stands in the chain where receiver reports are made.
pub(super) struct Listener {
    reports: ReceiverReportInterceptor,
    /// The stream that is reported on.
    ssrc: Option<u32>,
    audio: broadcast::Sender<Rtp>,
}

impl Listener {
    pub(super) fn new(audio: broadcast::Sender<Rtp>) -> Self {
        Self { reports: ReceiverReportBuilder::new().build(), ssrc: None, audio }
    }

    fn follow(&mut self, ssrc: u32) {
        if self.ssrc == Some(ssrc) {
            return;
        }
        let stream = |ssrc| StreamInfo { ssrc, clock_rate: CLOCK_RATE, ..StreamInfo::default() };
        if let Some(old) = self.ssrc.replace(ssrc) {
            self.reports.unbind_remote_stream(&stream(old));
        }
        self.reports.bind_remote_stream(&stream(ssrc));
    }
}

impl Protocol<TaggedPacket, TaggedPacket, ()> for Listener {
    type Rout = TaggedPacket;
    type Wout = TaggedPacket;
    type Eout = ();
    type Error = Error;
    type Time = Instant;

    fn handle_read(&mut self, packet: TaggedPacket) -> Result<(), Error> {
        if let Packet::Rtp(rtp) = &packet.message.packet {
            self.follow(rtp.header.ssrc);
        }
        self.reports.handle_read(packet)
    }

    /// Stamps the sound and keeps it; what is left is for the rest of the chain.
    fn poll_read(&mut self) -> Option<TaggedPacket> {
        loop {
            let packet = self.reports.poll_read()?;
            let Packet::Rtp(rtp) = packet.message.packet else { return Some(packet) };
            let _ = self.audio.send(Rtp {
                arrived: tokio::time::Instant::now(),
                sequence: rtp.header.sequence_number,
                timestamp: rtp.header.timestamp,
                marker: rtp.header.marker,
                payload_type: rtp.header.payload_type,
                ssrc: rtp.header.ssrc,
                payload: rtp.payload,
            });
        }
    }

    fn handle_write(&mut self, packet: TaggedPacket) -> Result<(), Error> {
        self.reports.handle_write(packet)
    }

    fn poll_write(&mut self) -> Option<TaggedPacket> {
        self.reports.poll_write()
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.reports.handle_timeout(now)
    }

    fn poll_timeout(&mut self) -> Option<Instant> {
        self.reports.poll_timeout()
    }
}

impl Interceptor for Listener {
    fn bind_local_stream(&mut self, stream: &StreamInfo) {
        self.reports.bind_local_stream(stream);
    }

    fn unbind_local_stream(&mut self, stream: &StreamInfo) {
        self.reports.unbind_local_stream(stream);
    }

    /// The crate's own idea of a stream says nothing that the packets do not.
    fn bind_remote_stream(&mut self, _: &StreamInfo) {}

    fn unbind_remote_stream(&mut self, _: &StreamInfo) {}
}

/// Opus' RTP clock, in Hz (RFC 7587 section 4.1).
const CLOCK_RATE: u32 = 48_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rtc::interceptor::AttributedPacket;
    use rtc::rtcp::receiver_report::ReceiverReport;
    use rtc::rtp;
    use rtc::shared::TransportContext;

    use super::*;

    #[test]
    fn another_ssrc_is_heard_and_reported_on_alike() {
        let (audio, mut heard) = broadcast::channel(8);
        let mut listener = Listener::new(audio);
        let now = Instant::now();
        for (ssrc, sequence_number) in [(7, 100), (7, 101), (9, 5), (9, 6), (9, 8)] {
            let header = rtp::header::Header { ssrc, sequence_number, ..Default::default() };
            let rtp = Packet::Rtp(rtp::Packet { header, payload: vec![1].into() });
            let transport = TransportContext::default();
            listener.handle_read(TaggedPacket { now, transport, message: AttributedPacket::new(rtp) }).unwrap();
            assert!(listener.poll_read().is_none(), "the rest of the chain has no use for it");
            let packet = heard.try_recv().unwrap();
            assert_eq!((packet.ssrc, packet.sequence), (ssrc, sequence_number));
        }

        listener.handle_timeout(now + Duration::from_secs(2)).unwrap();
        let mut reported = Vec::new();
        while let Some(packet) = listener.poll_write() {
            let Packet::Rtcp(packets) = packet.message.packet else { panic!("a report") };
            for packet in packets {
                let report = packet.as_any().downcast_ref::<ReceiverReport>().unwrap();
                reported.extend(report.reports.iter().map(|block| (block.ssrc, block.total_lost)));
            }
        }
        assert_eq!(reported, [(9, 1)]);
    }
}
