//! Sealing of tool calls and their results, which the relay passes on without opening (`relay.md`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::AeadInOut as _;
use chacha20poly1305::{Nonce, Tag};
use serde::{Deserialize, Serialize};

use super::id::random_bytes;
use super::{GrantId, Rid, Root};

/// A sealed call or result as it stands in the relay's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The nonce: 12 random bytes, 16 base64url characters.
    pub n: String,
    /// Ciphertext and tag, base64url without padding.
    pub ct: String,
}

/// Why a call or a result was not sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolSealError {
    /// More than the relay carries: 4,096 bytes of a call, 17,984 of a result.
    #[error("the call or its result is larger than the relay carries")]
    TooLong,
    /// Not base64url of the right lengths.
    #[error("not a sealed call or result")]
    Malformed,
    /// Not sealed for this grant, this call and this way.
    #[error("the call or its result does not verify")]
    Forged,
}

/// Seals a call, compact JSON `{"tool","args"}`, under a new random nonce.
pub fn seal_call(root: &Root, grant: &GrantId, rid: &Rid, plain: &[u8]) -> Result<Envelope, ToolSealError> {
    Way::Call.seal(root, grant, rid, random_bytes(), plain)
}

/// Opens a call on the host. A rid is answered once, which is the host's to see to.
pub fn open_call(root: &Root, grant: &GrantId, rid: &Rid, sealed: &Envelope) -> Result<Vec<u8>, ToolSealError> {
    Way::Call.open(root, grant, rid, sealed)
}

/// Seals a result, compact JSON `{"ok":true,…}` or `{"ok":false,"status","detail"}`, under a new random nonce.
pub fn seal_result(root: &Root, grant: &GrantId, rid: &Rid, plain: &[u8]) -> Result<Envelope, ToolSealError> {
    Way::Result.seal(root, grant, rid, random_bytes(), plain)
}

/// Opens a result on the Watch.
pub fn open_result(root: &Root, grant: &GrantId, rid: &Rid, sealed: &Envelope) -> Result<Vec<u8>, ToolSealError> {
    Way::Result.open(root, grant, rid, sealed)
}

/// A call goes up, its result comes down, each with a key of its own.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Call,
    Result,
}

impl Way {
    pub(super) fn seal(
        self,
        root: &Root,
        grant: &GrantId,
        rid: &Rid,
        nonce: [u8; 12],
        plain: &[u8],
    ) -> Result<Envelope, ToolSealError> {
        if plain.len() > self.most() {
            return Err(ToolSealError::TooLong);
        }
        let mut sealed = plain.to_vec();
        let tag = root
            .cipher(SALT, self.info())
            .encrypt_inout_detached(
                &Nonce::from(nonce),
                self.associated(grant, rid).as_bytes(),
                sealed.as_mut_slice().into(),
            )
            .expect("a few KiB are within the cipher's reach");
        sealed.extend_from_slice(&tag);
        Ok(Envelope { n: URL_SAFE_NO_PAD.encode(nonce), ct: URL_SAFE_NO_PAD.encode(sealed) })
    }

    fn open(self, root: &Root, grant: &GrantId, rid: &Rid, sealed: &Envelope) -> Result<Vec<u8>, ToolSealError> {
        let malformed = |_| ToolSealError::Malformed;
        let nonce: [u8; 12] =
            URL_SAFE_NO_PAD.decode(&sealed.n).map_err(malformed)?.try_into().map_err(|_| ToolSealError::Malformed)?;
        let mut plain = URL_SAFE_NO_PAD.decode(&sealed.ct).map_err(malformed)?;
        if plain.len() > self.most() + TAG {
            return Err(ToolSealError::TooLong);
        }
        let tag = *plain.last_chunk::<TAG>().ok_or(ToolSealError::Malformed)?;
        plain.truncate(plain.len() - TAG);
        root.cipher(SALT, self.info())
            .decrypt_inout_detached(
                &Nonce::from(nonce),
                self.associated(grant, rid).as_bytes(),
                plain.as_mut_slice().into(),
                &Tag::from(tag),
            )
            .map_err(|_| ToolSealError::Forged)?;
        Ok(plain)
    }

    pub(super) fn info(self) -> &'static str {
        match self {
            Self::Call => "conduit-watch-tools-v1 call watch-to-host",
            Self::Result => "conduit-watch-tools-v1 result host-to-watch",
        }
    }

    fn associated(self, grant: &GrantId, rid: &Rid) -> String {
        let way = match self {
            Self::Call => "call",
            Self::Result => "result",
        };
        format!("conduit-watch-tools/1\n{way}\ngrant={grant}\nrid={rid}")
    }

    /// The largest plaintext, bytes.
    fn most(self) -> usize {
        match self {
            // 4 KiB sealed with its tag are the 5,483 characters that the relay lets a call have.
            Self::Call => 4_096,
            // 24,000 characters are 18,000 bytes, 16 of them the tag.
            Self::Result => 17_984,
        }
    }
}

/// Poly1305's tag.
const TAG: usize = 16;

/// Sets these keys apart from all others of the same root.
pub(super) const SALT: &str = "conduit-watch-tools-v1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_call_and_result_have_the_relays_lengths() {
        let (root, grant, rid) = (Root::random(), GrantId::random(), Rid::random());
        let call = seal_call(&root, &grant, &rid, &[b' '; 4_096]).unwrap();
        assert_eq!((call.n.len(), call.ct.len()), (16, 5_483));
        assert_eq!(open_call(&root, &grant, &rid, &call).unwrap().len(), 4_096);
        assert_eq!(seal_call(&root, &grant, &rid, &[b' '; 4_097]), Err(ToolSealError::TooLong));
        let result = seal_result(&root, &grant, &rid, &[b' '; 17_984]).unwrap();
        assert_eq!(result.ct.len(), 24_000);
        assert_eq!(open_result(&root, &grant, &rid, &result).unwrap().len(), 17_984);
        assert_eq!(seal_result(&root, &grant, &rid, &[b' '; 17_985]), Err(ToolSealError::TooLong));
        // A result's length is too much for a call, before anything is made of it.
        assert_eq!(open_call(&root, &grant, &rid, &result), Err(ToolSealError::TooLong));
    }

    #[test]
    fn case_54_a_call_is_bound_to_its_grant_its_rid_and_its_way() {
        let (root, grant, rid) = (Root::random(), GrantId::random(), Rid::random());
        let call = seal_call(&root, &grant, &rid, b"{}").unwrap();
        let forged = Err(ToolSealError::Forged);
        assert_eq!(open_result(&root, &grant, &rid, &call), forged, "sent back as its own result");
        assert_eq!(open_call(&root, &grant, &Rid::random(), &call), forged);
        assert_eq!(open_call(&root, &GrantId::random(), &rid, &call), forged);
        assert_eq!(open_call(&Root::random(), &grant, &rid, &call), forged);
        let short = Envelope { n: call.n.clone(), ct: "AAAA".into() };
        assert_eq!(open_call(&root, &grant, &rid, &short), Err(ToolSealError::Malformed));
        assert_eq!(open_call(&root, &grant, &rid, &call).as_deref(), Ok(&b"{}"[..]));
        assert_ne!(seal_call(&root, &grant, &rid, b"{}"), Ok(call), "a nonce comes once");
    }
}
