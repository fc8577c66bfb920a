//! The root of a grant and what is derived from it.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use chacha20poly1305::{ChaCha20Poly1305, Key, KeyInit as _};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::id::random_bytes;

/// A grant's root key, 32 bytes. The Watch and the host hold it, the relay never does. Wiped when dropped.
#[derive(Clone)]
pub struct Root(Zeroizing<[u8; 32]>);

/// A root key that is not one. It says nothing of the text it was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grant's key is not 32 bytes in base64url (43 characters)")]
pub struct KeyError;

impl Root {
    /// Takes the 32 bytes over.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new root, for whoever opens a grant.
    pub fn random() -> Self {
        Self(Zeroizing::new(random_bytes()))
    }

    /// Reads the 43 base64url characters that a parent or a Watch is given.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        // Spare bits in the last character are let pass, as other readers of the same text do.
        let lenient = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
        let mut bytes = Zeroizing::new([0; 32]);
        match lenient.decode_slice(text, bytes.as_mut_slice()) {
            Ok(32) => Ok(Self(bytes)),
            _ => Err(KeyError),
        }
    }

    /// The root as 43 base64url characters, for the one place that hands it over.
    pub fn encode(&self) -> Zeroizing<String> {
        Zeroizing::new(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.0.as_slice()))
    }

    /// HKDF-SHA256 to the key of one purpose (RFC 5869).
    pub(super) fn derive(&self, salt: &str, info: &str) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(salt.as_bytes()), self.0.as_slice())
            .expand(info.as_bytes(), key.as_mut_slice())
            .expect("32 bytes are within the reach of HKDF-SHA256");
        key
    }

    /// The cipher of one purpose.
    pub(super) fn cipher(&self, salt: &str, info: &str) -> ChaCha20Poly1305 {
        let key = self.derive(salt, info);
        let key: &Key = (&*key).into();
        ChaCha20Poly1305::new(key)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[root key]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_survives_its_text_form() {
        let root = Root::random();
        let text = root.encode();
        assert_eq!(text.len(), 43);
        assert_eq!(*Root::parse(&text).unwrap().0, *root.0);
        for bad in ["", &text[1..], &format!("{}A", *text), &format!("{}=", *text), &text.replace(|_| true, "+")] {
            assert_eq!(Root::parse(bad).err(), Some(KeyError), "{bad}");
        }
    }

    #[test]
    fn case_55_a_root_prints_a_fixed_word() {
        let root = Root::new([7; 32]);
        assert_eq!(format!("{root:?} {root:#?}"), "[root key] [root key]");
        assert!(!KeyError.to_string().contains(&*root.encode()));
    }
}
