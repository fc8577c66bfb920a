//! The engine's SDP answer, made fit for the WebRTC crate (`engines.md` 3.1).
//!
//! The crate refuses an answer for one candidate line it cannot use, reads DTLS roles from one place only and never
//! opens a TCP connection for a candidate that comes with the answer. So candidates are taken out here and handed over
//! one by one, and the role is written down once.

use super::PeerError;

/// What is needed of an answer.
pub(super) struct Answer {
    /// The SDP for the crate: no candidates, one DTLS role.
    pub(super) sdp: String,
    /// ICE username fragments with their passwords.
    pub(super) credentials: Vec<(String, String)>,
    /// Candidates we may reach, each once, as `candidate:…`.
    pub(super) candidates: Vec<String>,
    /// How many candidate lines were left out: no address, another transport, an address family we lack, or too many.
    pub(super) skipped: usize,
    /// The payload type of Opus.
    pub(super) payload_type: u8,
}

impl Answer {
    /// Reads an answer. `ipv6` says whether this machine has an IPv6 address to reach one from.
    pub(super) fn parse(sdp: &str, ipv6: bool) -> Result<Self, PeerError> {
        if !sdp.starts_with("v=0") {
            return Err(PeerError::Answer("it is not SDP"));
        }
        let sections = sections(sdp);
        let (_, media) = sections.split_first().ok_or(PeerError::Answer("it is empty"))?;
        let audio = media.iter().find(|section| section.is("audio")).ok_or(PeerError::Answer("it has no audio"))?;
        if audio.rejected() {
            return Err(PeerError::Answer("it refuses audio"));
        }
        match media.iter().find(|section| section.is("application")) {
            Some(section) if !section.rejected() => {}
            _ => return Err(PeerError::Answer("it refuses the event channel")),
        }
        let payload_type = audio.opus().ok_or(PeerError::Answer("it does not choose Opus"))?;
        let credentials = credentials(&sections);
        if credentials.is_empty() {
            return Err(PeerError::Answer("it has no ICE credentials"));
        }

        let role = dtls_role(&sections);
        let mut candidates: Vec<String> = Vec::new();
        let mut skipped = 0;
        let mut out = String::with_capacity(sdp.len());
        for section in &sections {
            for line in &section.lines {
                if let Some(candidate) = line.strip_prefix("a=candidate:") {
                    match reachable(candidate, ipv6) {
                        true if candidates.iter().any(|known| known["candidate:".len()..] == *candidate) => {}
                        true if candidates.len() < MAX_CANDIDATES => candidates.push(format!("candidate:{candidate}")),
                        _ => skipped += 1,
                    }
                } else if !line.starts_with("a=setup:") && *line != "a=end-of-candidates" {
                    push_line(&mut out, line);
                }
            }
            if section.is_media() {
                push_line(&mut out, role);
            }
        }
        Ok(Self { sdp: out, credentials, candidates, skipped, payload_type })
    }
}

impl Answer {
    /// By what the candidates can be reached.
    pub(super) fn routes(&self) -> &'static str {
        let any = |transport: &str| {
            self.candidates
                .iter()
                .filter_map(|line| line.split(' ').nth(2))
                .any(|of| of.eq_ignore_ascii_case(transport))
        };
        match (any("udp"), any("tcp")) {
            (true, true) => "UDP and TCP",
            (true, false) => "UDP",
            (false, true) => "TCP",
            (false, false) => "nothing",
        }
    }
}

/// The session part first, then one for each `m=` line.
fn sections(sdp: &str) -> Vec<Section<'_>> {
    let mut sections = vec![Section { lines: Vec::new() }];
    for line in sdp.lines().map(|line| line.trim_end_matches('\r')).filter(|line| !line.is_empty()) {
        if line.starts_with("m=") {
            sections.push(Section { lines: Vec::new() });
        }
        if let Some(section) = sections.last_mut() {
            section.lines.push(line);
        }
    }
    sections
}

struct Section<'a> {
    lines: Vec<&'a str>,
}

impl<'a> Section<'a> {
    fn is_media(&self) -> bool {
        self.lines.first().is_some_and(|line| line.starts_with("m="))
    }

    fn is(&self, kind: &str) -> bool {
        self.lines.first().and_then(|line| line.strip_prefix("m=")).is_some_and(|media| media.starts_with(kind))
    }

    /// Port 0 refuses a media section (RFC 3264 section 6).
    fn rejected(&self) -> bool {
        self.lines.first().and_then(|line| line.split(' ').nth(1)) == Some("0")
    }

    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.lines.iter().find_map(|line| line.strip_prefix("a=")?.strip_prefix(name)?.strip_prefix(':'))
    }

    fn opus(&self) -> Option<u8> {
        self.lines.iter().find_map(|line| {
            let (payload_type, codec) = line.strip_prefix("a=rtpmap:")?.split_once(' ')?;
            codec.to_ascii_lowercase().starts_with("opus/48000").then(|| payload_type.parse().ok())?
        })
    }
}

/// The session's credentials, and those of each media section that has its own.
fn credentials(sections: &[Section<'_>]) -> Vec<(String, String)> {
    let session = sections.first();
    let session_wide = |name| session.and_then(|section| section.attribute(name));
    let mut credentials = Vec::new();
    for section in sections {
        let ufrag = section.attribute("ice-ufrag").or_else(|| session_wide("ice-ufrag"));
        let password = section.attribute("ice-pwd").or_else(|| session_wide("ice-pwd"));
        if let (Some(ufrag), Some(password)) = (ufrag, password) {
            credentials.push((ufrag.to_owned(), password.to_owned()));
        }
    }
    credentials
}

/// The answerer is the DTLS client unless it says `passive`. An answer that says nothing, or the illegal `actpass`, is
/// taken for `active`: that is what an answerer is to choose (RFC 8842 section 5.3), and waiting for its ClientHello
/// also works when both sides start.
fn dtls_role(sections: &[Section<'_>]) -> &'static str {
    let said = sections.iter().skip(1).chain(sections.first()).find_map(|section| section.attribute("setup"));
    match said {
        Some("passive") => "a=setup:passive",
        _ => "a=setup:active",
    }
}

/// Whether a candidate line (`foundation component transport priority address port typ …`) names something we can send
/// to. Names (`….local`, privacy of browsers) are skipped: the peer behind one reaches us, and is then reflexive.
fn reachable(candidate: &str, ipv6: bool) -> bool {
    let mut fields = candidate.split_ascii_whitespace();
    let (Some(component), Some(transport)) = (fields.nth(1), fields.next()) else { return false };
    let (Some(address), Some(port)) = (fields.nth(1), fields.next()) else { return false };
    if component != "1" || port.parse::<u16>().is_err() {
        return false;
    }
    let address = match address.parse::<std::net::IpAddr>() {
        Ok(address) => address,
        Err(_) => return false,
    };
    let transport_fits = match transport.to_ascii_lowercase().as_str() {
        "udp" => true,
        "tcp" => candidate.contains("tcptype passive"),
        _ => false,
    };
    transport_fits && (address.is_ipv4() || ipv6)
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push_str("\r\n");
}

/// An engine offers a handful, one or two for each of its addresses; each is checked for as long as connecting takes.
pub(super) const MAX_CANDIDATES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of `engines.md` 3.1.
    fn answer(setup: &str, candidates: &[&str]) -> String {
        let candidates: String = candidates.iter().map(|line| format!("a=candidate:{line}\r\n")).collect();
        format!(
            "v=0\r\no=- 4611731400430051336 1786900000 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=ice-lite\r\n\
             a=group:BUNDLE 0 1\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\n{setup}a=mid:0\r\n\
             a=ice-ufrag:abcDEF/u0/aBc\r\na=ice-pwd:secret\r\na=rtpmap:111 opus/48000/2\r\n{candidates}\
             m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\n{setup}a=mid:1\r\n\
             a=ice-ufrag:abcDEF/u0/aBc\r\na=ice-pwd:secret\r\n{candidates}"
        )
    }

    const UDP: &str = "1 1 udp 2130706431 203.0.113.10 3478 typ host ufrag abcDEF/u0/aBc";
    const TCP: &str = "2 1 tcp 1671430143 203.0.113.10 443 typ host tcptype passive ufrag abcDEF/u0/aBc";

    #[test]
    fn the_vendor_s_answer_is_taken_apart() {
        let parsed = Answer::parse(&answer("a=setup:active\r\n", &[UDP, TCP]), false).unwrap();
        assert_eq!(parsed.candidates, [format!("candidate:{UDP}"), format!("candidate:{TCP}")], "each once");
        assert_eq!(parsed.payload_type, 111);
        assert!(parsed.credentials.contains(&("abcDEF/u0/aBc".into(), "secret".into())));
        assert!(!parsed.sdp.contains("candidate"));
        assert!(parsed.sdp.ends_with("\r\n"));
        assert_eq!(parsed.skipped, 0);
        assert_eq!(parsed.routes(), "UDP and TCP");
    }

    #[test]
    fn case_25_one_place_decides_who_is_dtls_client() {
        let role = |setup: &str| {
            let parsed = Answer::parse(&answer(setup, &[UDP]), false).unwrap();
            let roles: Vec<String> =
                parsed.sdp.lines().filter(|line| line.starts_with("a=setup")).map(str::to_owned).collect();
            assert_eq!(roles.len(), 2, "one for each media section");
            assert_eq!(roles[0], roles[1]);
            roles[0].clone()
        };
        assert_eq!(role("a=setup:active\r\n"), "a=setup:active");
        assert_eq!(role("a=setup:passive\r\n"), "a=setup:passive");
        assert_eq!(role(""), "a=setup:active");
        assert_eq!(role("a=setup:actpass\r\n"), "a=setup:active");
    }

    #[test]
    fn case_23_names_and_case_21_foreign_families_are_skipped() {
        let local = "1 1 udp 2130706431 9d3d7e6e-4785-4c4b.local 52743 typ host";
        let v6 = "3 1 udp 2130706431 2001:db8::1 3478 typ host";
        let parsed = Answer::parse(&answer("", &[local, v6, UDP]), false).unwrap();
        assert_eq!(parsed.candidates, [format!("candidate:{UDP}")]);
        assert_eq!(parsed.skipped, 4, "two lines in each of two sections");
        let parsed = Answer::parse(&answer("", &[v6]), true).unwrap();
        assert_eq!(parsed.candidates, [format!("candidate:{v6}")]);
        assert!(Answer::parse(&answer("", &[local]), true).unwrap().candidates.is_empty(), "never fatal");
    }

    #[test]
    fn candidates_we_cannot_use_are_skipped() {
        for line in [
            "1 2 udp 1 203.0.113.10 3478 typ host",
            "1 1 tcp 1 203.0.113.10 9 typ host tcptype active",
            "1 1 sctp 1 203.0.113.10 9 typ host",
            "1 1 udp 1 203.0.113.10 99999 typ host",
            "1 1",
            "",
        ] {
            assert!(!reachable(line, true), "{line}");
        }
    }

    #[test]
    fn more_candidates_than_can_be_checked_are_left_out() {
        let many: Vec<String> = (0..100).map(|n| format!("1 1 udp 1 203.0.113.{n} 3478 typ host")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let parsed = Answer::parse(&answer("", &many), false).unwrap();
        assert_eq!(parsed.candidates.len(), MAX_CANDIDATES);
        assert_eq!(parsed.skipped, 2 * (100 - MAX_CANDIDATES), "two lines in each of two sections");
    }

    #[test]
    fn refusals_are_told_apart() {
        let error = |sdp: &str| Answer::parse(sdp, false).map(|_| ()).unwrap_err().to_string();
        let good = answer("", &[UDP]);
        assert!(error("<html>").contains("not SDP"));
        assert!(error("v=0\r\n").contains("no audio"));
        assert!(error(&good.replace("m=audio 9", "m=audio 0")).contains("refuses audio"));
        assert!(error(&good.replace("m=application 9", "m=application 0")).contains("event channel"));
        assert!(error(&good.replace("opus", "pcmu")).contains("Opus"));
        assert!(error(&good.replace("a=ice-pwd:secret\r\n", "")).contains("ICE"));
    }
}
