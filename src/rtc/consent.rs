//! Consent checks that say USE-CANDIDATE.
//!
//! Once a pair is selected, the agent of the WebRTC crate keeps its consent alive (RFC 7675) with binding requests that
//! no longer carry USE-CANDIDATE. The engine's ICE-lite servers are reported to stop answering those, and the call
//! would be given up after 30 s while its media still flows. So the requests are rebuilt where they leave: the same
//! transaction with the attribute added and signed anew. Only after the agent has nominated by itself: an attribute
//! that comes too early makes other stacks wait a second for the regular nomination.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rtc::stun::attributes::{
    ATTR_FINGERPRINT, ATTR_ICE_CONTROLLING, ATTR_MESSAGE_INTEGRITY, ATTR_USE_CANDIDATE, ATTR_USERNAME,
};
use rtc::stun::fingerprint::FINGERPRINT;
use rtc::stun::integrity::MessageIntegrity;
use rtc::stun::message::{MAGIC_COOKIE, MESSAGE_HEADER_SIZE, Message, Setter};
use webrtc::peer_connection::crypto::{RTCCryptoProvider, default_provider};

use std::sync::Arc;

/// Which of our checks have nominated, and what the remote's checks are signed with.
pub(super) struct Consent {
    crypto: Arc<dyn RTCCryptoProvider>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The remote's ICE passwords by its username fragment.
    passwords: HashMap<String, String>,
    /// USERNAMEs under which the agent has nominated.
    nominated: HashSet<Vec<u8>>,
}

impl Consent {
    pub(super) fn new() -> Result<Self, String> {
        let crypto = default_provider().map_err(|error| error.to_string())?;
        Ok(Self { crypto, known: Mutex::default() })
    }

    /// Takes the remote's credentials from its answer. Must come before the agent sees them.
    pub(super) fn learn(&self, ufrag: &str, password: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.passwords.insert(ufrag.to_owned(), password.to_owned());
    }

    /// What is to leave instead of `datagram`; `None` when it may leave as it is. The same input gives the same output,
    /// so a send that has to be repeated may ask again.
    pub(super) fn rewrite(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        if !is_binding_request(datagram) {
            return None;
        }
        let mut request = Message::new();
        request.unmarshal_binary(datagram).ok()?;
        if !request.contains(ATTR_ICE_CONTROLLING) || !request.contains(ATTR_MESSAGE_INTEGRITY) {
            return None;
        }
        let username = request.get(ATTR_USERNAME).ok()?;

        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if request.contains(ATTR_USE_CANDIDATE) {
            known.nominated.insert(username);
            return None;
        }
        if !known.nominated.contains(&username) {
            return None;
        }
        let ufrag = std::str::from_utf8(&username).ok()?.split(':').next()?;
        let password = known.passwords.get(ufrag)?.clone();
        drop(known);
        self.rebuild(&request, password)
    }

    /// The request once more, with USE-CANDIDATE, in the order RFC 8489 wants: integrity and fingerprint last.
    fn rebuild(&self, request: &Message, password: String) -> Option<Vec<u8>> {
        let mut rebuilt = Message::new();
        rebuilt.set_type(request.typ);
        rebuilt.transaction_id = request.transaction_id;
        rebuilt.write_header();
        for attribute in &request.attributes.0 {
            if attribute.typ != ATTR_MESSAGE_INTEGRITY && attribute.typ != ATTR_FINGERPRINT {
                rebuilt.add(attribute.typ, &attribute.value);
            }
        }
        rebuilt.add(ATTR_USE_CANDIDATE, &[]);
        MessageIntegrity::new_short_term_integrity_with_provider(password, self.crypto.crypto())
            .add_to(&mut rebuilt)
            .ok()?;
        FINGERPRINT.add_to(&mut rebuilt).ok()?;
        Some(rebuilt.raw)
    }
}

impl fmt::Debug for Consent {
    /// The credentials are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consent").finish_non_exhaustive()
    }
}

/// A cheap look before anything is parsed: nearly every datagram is media.
fn is_binding_request(datagram: &[u8]) -> bool {
    datagram.len() >= MESSAGE_HEADER_SIZE && datagram[..2] == [0, 1] && datagram[4..8] == MAGIC_COOKIE.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtc::stun::attributes::ATTR_PRIORITY;
    use rtc::stun::message::{BINDING_REQUEST, TransactionId};
    use rtc::stun::textattrs::TextAttribute;

    const PASSWORD: &str = "a password of the remote's";

    fn request(consent: &Consent, nominates: bool) -> Vec<u8> {
        let mut message = Message::new();
        message.build(&[Box::new(BINDING_REQUEST), Box::new(TransactionId([7; 12]))]).unwrap();
        TextAttribute { attr: ATTR_USERNAME, text: "abc/u0/x:ours".into() }.add_to(&mut message).unwrap();
        message.add(ATTR_ICE_CONTROLLING, &[1; 8]);
        message.add(ATTR_PRIORITY, &[0, 0, 0, 9]);
        if nominates {
            message.add(ATTR_USE_CANDIDATE, &[]);
        }
        MessageIntegrity::new_short_term_integrity_with_provider(PASSWORD.into(), consent.crypto.crypto())
            .add_to(&mut message)
            .unwrap();
        FINGERPRINT.add_to(&mut message).unwrap();
        message.raw
    }

    fn consent() -> Consent {
        let consent = Consent::new().unwrap();
        consent.learn("abc/u0/x", PASSWORD);
        consent
    }

    #[test]
    fn case_20_consent_checks_say_use_candidate_once_the_agent_has_nominated() {
        let consent = consent();
        let check = request(&consent, false);
        assert_eq!(consent.rewrite(&check), None, "before the nomination nothing is touched");
        assert_eq!(consent.rewrite(&request(&consent, true)), None, "the nomination itself leaves as it is");

        let rewritten = consent.rewrite(&check).unwrap();
        assert_eq!(consent.rewrite(&check).unwrap(), rewritten, "asking again gives the same bytes");
        let mut message = Message::new();
        message.unmarshal_binary(&rewritten).unwrap();
        assert_eq!(message.transaction_id, TransactionId([7; 12]));
        for attribute in [ATTR_USERNAME, ATTR_ICE_CONTROLLING, ATTR_PRIORITY, ATTR_USE_CANDIDATE] {
            assert!(message.contains(attribute), "{attribute:?} is missing");
        }
        FINGERPRINT.check(&message).unwrap();
        MessageIntegrity::check(&mut message, PASSWORD.as_bytes(), consent.crypto.crypto()).unwrap();
    }

    #[test]
    fn everything_else_leaves_as_it_is() {
        let consent = consent();
        assert_eq!(consent.rewrite(&request(&consent, true)), None);
        let mut response = request(&consent, false);
        response[0] = 1;
        assert_eq!(consent.rewrite(&response), None, "a response");
        assert_eq!(consent.rewrite(&[0x80, 111, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), None, "media");
        assert_eq!(consent.rewrite(&request(&consent, false)[..40]), None, "a torn request");
        assert_eq!(consent.rewrite(&[]), None);
    }
}
