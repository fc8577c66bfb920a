//! The names of grants, streams and calls, checked where they come in.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A grant's name: 22 base64url characters (16 bytes). It is bound into what is sealed as text, so it is kept as text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GrantId(String);

/// A tool call's name: 22 base64url characters, chosen by the Watch and answered once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Rid(String);

/// A stream's name: 16 random bytes, in clear in the hello, base64url in keys and associated data.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sid([u8; 16]);

/// A name that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a name of 22 base64url characters")]
pub struct IdError;

impl GrantId {
    /// A new name that nobody can guess.
    pub fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(random_bytes::<16>()))
    }

    /// The name as it stands in paths and associated data.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Rid {
    /// A new name, one for each call.
    pub fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(random_bytes::<16>()))
    }

    /// The name as it stands in paths and associated data.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Sid {
    /// A new name, one for each connection of the Watch: its keys follow from it.
    pub fn random() -> Self {
        Self(random_bytes())
    }

    /// Takes the 16 bytes of a hello.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes of a hello.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl FromStr for GrantId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if is_name(text) { Ok(Self(text.to_owned())) } else { Err(IdError) }
    }
}

impl FromStr for Rid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if is_name(text) { Ok(Self(text.to_owned())) } else { Err(IdError) }
    }
}

impl FromStr for Sid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| IdError)?;
        bytes.try_into().map(Self).map_err(|_| IdError)
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// Names are no secrets, but a log shall not join a call to a person: the first characters tell two apart well enough.
impl fmt::Debug for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantId({}…)", &self.0[..6])
    }
}

impl fmt::Debug for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rid({}…)", &self.0[..6])
    }
}

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sid({}…)", &self.to_string()[..6])
    }
}

/// Whether the text has a name's length and letters. The last character's spare bits are not looked at: peers in the
/// field choose names of 22 letters, and what is bound is the text.
fn is_name(text: &str) -> bool {
    text.len() == NAME_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Bytes from the system's own source.
pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system's random source works once the system is up");
    bytes
}

/// 16 bytes in base64url without padding.
const NAME_CHARS: usize = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!("GGGGGGGGGGGGGGGGGGGGGG".parse::<GrantId>().is_ok(), "spare bits set, as in the vectors");
        assert_eq!("ZGVmZ2hpamtsbW5vcHFycw".parse::<Sid>().unwrap().as_bytes(), b"defghijklmnopqrs");
        for bad in
            ["", "GGGGGGGGGGGGGGGGGGGGG", "GGGGGGGGGGGGGGGGGGGGGGG", "GGGGGGGGGGG/GGGGGGGGGG", "GGGGGGGGGGGGGGGGGGGGG="]
        {
            assert!(bad.parse::<GrantId>().is_err(), "{bad}");
            assert!(bad.parse::<Rid>().is_err(), "{bad}");
            assert!(bad.parse::<Sid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn new_names_are_names_and_differ() {
        let (one, two) = (GrantId::random(), GrantId::random());
        assert_ne!(one, two);
        assert_eq!(one.as_str().parse(), Ok(one.clone()));
        assert_ne!(Sid::random(), Sid::random());
        assert_ne!(Rid::random(), Rid::random());
    }
}
