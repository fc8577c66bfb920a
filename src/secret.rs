//! Text that must never be seen: keys, bearers, SDP, what was said.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use zeroize::Zeroizing;

/// A secret text. It is wiped when dropped, and its `Debug` is a fixed word.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the text over.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself, for the one place that must send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The text of a file that holds a secret. Some editors begin it with a byte order mark, which nobody sees and means.
///
/// # Errors
/// When it cannot be read, or is no UTF-8.
pub fn read(path: &Path) -> io::Result<Secret> {
    let mut text = fs::read_to_string(path)?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(Secret::new(text))
}

/// Whether a text can be a bearer: it travels in a header.
pub fn is_bearer(text: &str) -> bool {
    (1..=LONGEST_BEARER).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Half of the head that a relay reads.
pub const LONGEST_BEARER: usize = 4_096;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Warns when others can read a file that holds a secret.
pub fn warn_if_shared(path: &Path) {
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "others can read this file with a secret; chmod 600 it");
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_55_a_secret_prints_a_fixed_word() {
        let secret = Secret::new("sk-1234");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "[secret] Some(\n    [secret],\n)");
        assert_eq!(secret.expose(), "sk-1234");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_secret() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (content, secret) in [("\u{feff}sk-1234\n", "sk-1234\n"), ("sk\u{feff}", "sk\u{feff}"), ("", "")] {
            fs::write(file.path(), content).unwrap();
            assert_eq!(read(file.path()).unwrap().expose(), secret);
        }
        fs::write(file.path(), [0xFF, 0xFE, b's', 0]).unwrap();
        assert_eq!(read(file.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_bearer_is_printable_ascii_that_fits_a_header() {
        assert!(is_bearer("sk-1234:~!") && is_bearer(&"x".repeat(LONGEST_BEARER)));
        for text in ["", "é", "sk-\u{feff}", "two words", "two\nlines", "\u{7f}", &"x".repeat(LONGEST_BEARER + 1)] {
            assert!(!is_bearer(text), "{text:?}");
        }
    }
}
