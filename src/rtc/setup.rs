//! How the stack is set up: one Opus track, one channel, the settings that measuring showed to be needed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rtc::ice::mdns::MulticastDnsMode;
use rtc::ice::url::Url;
use rtc::interceptor::{SenderReportBuilder, Slot};
use rtc::media_stream::MediaStreamTrack;
use rtc::peer_connection::configuration::setting_engine::SctpMaxMessageSize;
use rtc::rtp_transceiver::rtp_sender::{
    RTCRtpCodec, RTCRtpCodecParameters, RTCRtpCodingParameters, RTCRtpEncodingParameters, RtpCodecKind,
};
use tokio::sync::broadcast;
use webrtc::peer_connection::{
    MediaEngine, PeerConnection, PeerConnectionBuilder, PeerConnectionEventHandler, RTCConfigurationBuilder,
    RTCIceServer, Registry, SettingEngine, SettingEngineBuilder,
};

use super::listener::Listener;
use super::runtime::PeerRuntime;
use super::{PeerConfig, Rtp};

pub(super) async fn connection(
    config: &PeerConfig,
    addresses: &[SocketAddr],
    runtime: Arc<PeerRuntime>,
    handler: Arc<dyn PeerConnectionEventHandler>,
    audio: broadcast::Sender<Rtp>,
    settings: SettingEngine,
) -> webrtc::error::Result<Arc<dyn PeerConnection>> {
    let mut media = MediaEngine::default();
    media.register_codec(
        RTCRtpCodecParameters { rtp_codec: opus(), payload_type: OPUS_PAYLOAD_TYPE },
        RtpCodecKind::Audio,
    )?;
    let mut configuration = RTCConfigurationBuilder::new();
    let stun = usable_servers(&config.stun);
    if !stun.is_empty() {
        configuration = configuration.with_ice_servers(vec![RTCIceServer { urls: stun, ..RTCIceServer::default() }]);
    }
    let building = PeerConnectionBuilder::new()
        .with_configuration(configuration.build())
        .with_media_engine(media)
        .with_setting_engine(settings)
        // Sender and receiver reports, and nothing that would want feedback in the SDP.
        .with_interceptor_registry(
            Registry::new()
                .with(Slot::SenderReport, SenderReportBuilder::new().build())
                .with(Slot::ReceiverReport, Listener::new(audio)),
        )
        .with_handler(handler)
        .with_runtime(runtime)
        .with_udp_addrs(addresses.to_vec())
        .with_tcp_addrs(addresses.to_vec())
        .with_data_channel_send_buffer_limit(SEND_BUFFER)
        .build();
    Ok(Arc::new(Box::pin(building).await?))
}

pub(super) fn settings() -> SettingEngineBuilder {
    SettingEngineBuilder::new()
        // On by default, and then a machine without a multicast route cannot make a peer at all.
        .with_multicast_dns_mode(MulticastDnsMode::Disabled)
        .with_include_loopback_candidate(true)
        .with_ice_timeouts(Some(QUIET), Some(LOST_AFTER_QUIET), Some(CONSENT_INTERVAL))
        .with_ice_connection_attempts(Some(CHECK_INTERVAL), Some(MAX_CHECKS))
        .with_sctp_max_message_size(SctpMaxMessageSize::Unbounded)
        .with_sctp_mtu(SCTP_MTU)
}

/// The servers the stack can use. It would refuse the whole call for one that it cannot read.
fn usable_servers(servers: &[String]) -> Vec<String> {
    let usable = |server: &&String| {
        // TURN servers want a sign-in, which nobody gives us.
        let usable = server.starts_with("stun:") && Url::parse_url(server).is_ok();
        if !usable {
            tracing::warn!("a STUN server was left out: it is not written stun:host:port");
        }
        usable
    };
    servers.iter().filter(usable).cloned().collect()
}

pub(super) fn opus() -> RTCRtpCodec {
    RTCRtpCodec {
        mime_type: "audio/opus".to_owned(),
        clock_rate: 48_000,
        channels: 2,
        sdp_fmtp_line: "minptime=10;useinbandfec=1".to_owned(),
        rtcp_feedback: Vec::new(),
    }
}

pub(super) fn microphone(ssrc: u32) -> MediaStreamTrack {
    let encoding = RTCRtpEncodingParameters {
        rtp_coding_parameters: RTCRtpCodingParameters { ssrc: Some(ssrc), ..Default::default() },
        codec: opus(),
        ..Default::default()
    };
    MediaStreamTrack::new(
        "call".to_owned(),
        "microphone".to_owned(),
        "microphone".to_owned(),
        RtpCodecKind::Audio,
        vec![encoding],
    )
}

/// The offer without candidates that are none: nobody is let in by TCP (see [`super::runtime`]), and with rtcp-mux there is no
/// second component.
pub(super) fn only_usable_candidates(offer: &str) -> String {
    let usable = |line: &&str| match line.strip_prefix("a=candidate:") {
        Some(candidate) => candidate.split(' ').nth(1) == Some("1") && !candidate.contains("tcptype passive"),
        None => true,
    };
    offer.split_inclusive('\n').filter(usable).collect()
}

/// What browsers use; the engine echoes it.
pub(super) const OPUS_PAYLOAD_TYPE: u8 = 111;

/// Connecting takes 25 ms with checks this close together, 45 ms at 20 ms, and 200 to 500 ms at the crate's 200 ms.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Checks go on for the 8 s that a connection has: the engine may start answering late.
const MAX_CHECKS: u16 = 800;

/// One request for consent every 2 s; without an answer for 5 s the engine is quiet, which at heavy loss passes again.
const CONSENT_INTERVAL: Duration = Duration::from_secs(2);
const QUIET: Duration = Duration::from_secs(5);

/// Then 25 s more: 30 s after the last answer the path is lost (RFC 7675 section 5.1).
const LOST_AFTER_QUIET: Duration = Duration::from_secs(25);

/// Plus DTLS this stays below 1,200 bytes a datagram, which also fits VPN paths of 1,280.
const SCTP_MTU: u32 = 1_150;

/// Text handed to SCTP and not yet acknowledged; beyond it the outbox waits.
const SEND_BUFFER: usize = 1 << 20;
