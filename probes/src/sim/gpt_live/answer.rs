//! The SDP of the call: the offer as `str0m` is to see it, and the answer as the vendor writes one.

use std::fmt::Write as _;
use std::net::SocketAddr;

/// What the answer tells.
pub(super) struct Answer {
    pub(super) ufrag: String,
    pub(super) password: String,
    /// SHA-256, `AA:BB:…`.
    pub(super) fingerprint: String,
    /// The offer's payload type for Opus.
    pub(super) payload_type: u8,
    pub(super) ssrc: u32,
    pub(super) audio_mid: String,
    pub(super) channel_mid: String,
    pub(super) udp: Option<SocketAddr>,
    pub(super) tcp: Option<SocketAddr>,
}

impl Answer {
    /// The text, as in the recorded answers of `engines.md` 3.1: DTLS client, ICE-lite, no feedback, no extensions.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |line: &str| _ = write!(text, "{line}\r\n");
        for fixed in ["v=0", "o=- 4611731400430051336 1786900000 IN IP4 0.0.0.0", "s=-", "t=0 0"] {
            line(fixed);
        }
        line("a=msid-semantic:WMS *");
        line(&format!("a=fingerprint:sha-256 {}", self.fingerprint));
        line("a=ice-lite");
        line("a=extmap-allow-mixed");
        line(&format!("a=group:BUNDLE {} {}", self.audio_mid, self.channel_mid));

        line(&format!("m=audio 9 UDP/TLS/RTP/SAVPF {}", self.payload_type));
        line("c=IN IP4 0.0.0.0");
        line("a=setup:active");
        line(&format!("a=mid:{}", self.audio_mid));
        self.credentials(&mut line);
        line("a=rtcp-mux");
        line("a=rtcp-rsize");
        line(&format!("a=rtpmap:{} opus/48000/2", self.payload_type));
        line(&format!("a=fmtp:{} minptime=10;useinbandfec=1", self.payload_type));
        for attribute in ["cname:realtimeapi", "msid:realtimeapi audio", "mslabel:realtimeapi", "label:audio"] {
            line(&format!("a=ssrc:{} {attribute}", self.ssrc));
        }
        line("a=msid:realtimeapi audio");
        line("a=sendrecv");
        self.candidates(&mut line);

        line("m=application 9 UDP/DTLS/SCTP webrtc-datachannel");
        line("c=IN IP4 0.0.0.0");
        line("a=setup:active");
        line(&format!("a=mid:{}", self.channel_mid));
        line("a=sendrecv");
        line("a=sctp-port:5000");
        line("a=max-message-size:1073741823");
        self.credentials(&mut line);
        self.candidates(&mut line);
        text
    }

    fn credentials(&self, line: &mut impl FnMut(&str)) {
        line(&format!("a=ice-ufrag:{}", self.ufrag));
        line(&format!("a=ice-pwd:{}", self.password));
    }

    fn candidates(&self, line: &mut impl FnMut(&str)) {
        let ufrag = &self.ufrag;
        if let Some(udp) = self.udp {
            let (ip, port) = (udp.ip(), udp.port());
            line(&format!("a=candidate:1 1 udp 2130706431 {ip} {port} typ host ufrag {ufrag}"));
        }
        if let Some(tcp) = self.tcp {
            let (ip, port) = (tcp.ip(), tcp.port());
            line(&format!("a=candidate:2 1 tcp 1671430143 {ip} {port} typ host tcptype passive ufrag {ufrag}"));
        }
    }
}

/// The offer as `str0m` is to see it. It would answer `actpass` as the DTLS server, where the vendor is the client; and
/// where the data channel is never to open, it must not know of one.
pub(super) fn offer_for_str0m(offer: &str, channel: bool) -> String {
    let passive = offer.replace("a=setup:actpass", "a=setup:passive");
    if channel {
        return passive;
    }
    let Some(gone) = mid_of(offer, "m=application") else { return passive };
    let mut kept = String::new();
    let mut skipping = false;
    for line in passive.split_inclusive("\r\n") {
        if line.starts_with("m=") {
            skipping = line.starts_with("m=application");
        }
        if let Some(group) = line.trim_end().strip_prefix("a=group:BUNDLE") {
            let mids: Vec<&str> = group.split_whitespace().filter(|mid| *mid != gone).collect();
            kept.push_str(&format!("a=group:BUNDLE {}\r\n", mids.join(" ")));
        } else if !skipping {
            kept.push_str(line);
        }
    }
    kept
}

/// The mid of the first media section that begins so.
pub(super) fn mid_of(sdp: &str, media: &str) -> Option<String> {
    let lines = sdp.lines().skip_while(|line| !line.starts_with(media));
    lines
        .skip(1)
        .take_while(|line| !line.starts_with("m="))
        .find_map(|line| Some(line.strip_prefix("a=mid:")?.to_owned()))
}
