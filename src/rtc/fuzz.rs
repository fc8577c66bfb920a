//! Any text as the engine's answer, up to a peer that has made its offer; without sockets.

use std::time::Instant;

use rtc::peer_connection::RTCPeerConnectionBuilder;
use rtc::rtp_transceiver::rtp_sender::{RTCRtpCodecParameters, RtpCodecKind};
use webrtc::peer_connection::{MediaEngine, RTCIceCandidateInit, RTCSessionDescription};

use super::answer::{Answer, MAX_CANDIDATES};
use super::setup::{OPUS_PAYLOAD_TYPE, microphone, opus, settings};

pub(crate) fn answer(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(answer) = Answer::parse(text, true) else { return };
    assert!(!answer.credentials.is_empty() && !answer.sdp.lines().any(|line| line.starts_with("a=candidate:")));
    assert!(answer.candidates.len() <= MAX_CANDIDATES);
    // An answer without IPv6 has fewer candidates and is otherwise the same.
    assert!(Answer::parse(text, false).is_ok_and(|same| same.sdp == answer.sdp));

    let Ok(description) = RTCSessionDescription::answer(answer.sdp) else { return };
    let now = Instant::now();
    let mut media = MediaEngine::default();
    let codec = RTCRtpCodecParameters { rtp_codec: opus(), payload_type: OPUS_PAYLOAD_TYPE };
    media.register_codec(codec, RtpCodecKind::Audio).expect("a codec");
    let mut peer = RTCPeerConnectionBuilder::new()
        .with_media_engine(media)
        .with_setting_engine(settings().build())
        .build(now)
        .expect("a peer");
    peer.add_track(microphone(7)).expect("a track");
    peer.create_data_channel("oai-events", None).expect("a channel");
    let offer = peer.create_offer(None).expect("an offer");
    peer.set_local_description(now, offer).expect("its own offer");
    if peer.set_remote_description(now, description).is_ok() {
        for candidate in answer.candidates {
            // One it cannot use is passed over.
            let _ = peer.add_remote_candidate(RTCIceCandidateInit { candidate, ..RTCIceCandidateInit::default() });
        }
    }
}
