//! Who may open grants: the gateways' credentials, kept as hashes.

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::secret::{self, LONGEST_BEARER, is_bearer, warn_if_shared};

/// The gateways a relay serves. Only the hash of each credential is kept.
#[derive(Clone)]
pub struct Credentials(Vec<Gateway>);

#[derive(Clone)]
struct Gateway {
    name: String,
    sha256: [u8; 32],
}

/// Why a file of credentials cannot be used. It never repeats a line of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read the credentials in {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nobody could open a grant.
    #[error("no credential is given; write one gateway credential per line")]
    Empty,
    /// White space within a credential, or nothing after a name.
    #[error("line {0} of the credentials is neither `credential` nor `name: credential`")]
    Malformed(usize),
    /// No request could bring it.
    #[error(
        "line {0} of the credentials cannot travel in a header; a credential is at most {LONGEST_BEARER} printable ASCII \
         characters"
    )]
    NoBearer(usize),
    /// The same credential twice.
    #[error("line {0} of the credentials repeats an earlier one")]
    Repeated(usize),
}

impl Credentials {
    /// Reads a file as [`Credentials::parse`] does.
    pub fn load(path: &Path) -> Result<Self, CredentialsError> {
        warn_if_shared(path);
        let text = secret::read(path).map_err(|source| CredentialsError::Read { path: path.to_owned(), source })?;
        Self::parse(text.expose())
    }

    /// One gateway a line: its credential, or `name: credential`. Empty lines and those that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, CredentialsError> {
        let mut gateways: Vec<Gateway> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), index + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, credential) = match line.split_once(": ") {
                Some((name, credential)) => (name.trim().to_owned(), credential.trim()),
                None => (format!("gateway {}", gateways.len() + 1), line),
            };
            if credential.is_empty() || credential.contains(char::is_whitespace) || line.ends_with(": ") {
                return Err(CredentialsError::Malformed(number));
            }
            if !is_bearer(credential) {
                return Err(CredentialsError::NoBearer(number));
            }
            let sha256 = sha256(credential);
            if gateways.iter().any(|gateway| gateway.sha256 == sha256) {
                return Err(CredentialsError::Repeated(number));
            }
            gateways.push(Gateway { name, sha256 });
        }
        if gateways.is_empty() { Err(CredentialsError::Empty) } else { Ok(Self(gateways)) }
    }

    /// Which gateway a bearer belongs to. Every one is compared, so the time taken tells nothing.
    pub(super) fn find(&self, bearer: &str) -> Option<usize> {
        let presented = sha256(bearer);
        let (mut found, mut which) = (Choice::from(0), 0_u64);
        for (index, gateway) in self.0.iter().enumerate() {
            let same = gateway.sha256.ct_eq(&presented);
            which.conditional_assign(&(index as u64), same);
            found |= same;
        }
        bool::from(found).then_some(which as usize)
    }

    /// A gateway's name in the log.
    pub(super) fn name(&self, gateway: usize) -> &str {
        &self.0[gateway].name
    }

    /// How many gateways there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({} gateways)", self.0.len())
    }
}

/// Whether a bearer is the one whose hash was given, in constant time.
pub(super) fn matches(bearer: &str, hash: &[u8; 32]) -> bool {
    sha256(bearer).ct_eq(hash).into()
}

/// The hash that stands for a credential or a `watch_key`: of its text.
pub(super) fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_gateways_or_numbers_them() {
        let credentials = Credentials::parse("# ours\n\nalpha-secret\n home: beta-secret \r\nc:d\n").unwrap();
        assert_eq!(credentials.len(), 3);
        assert_eq!(credentials.find("alpha-secret"), Some(0));
        assert_eq!(credentials.find("beta-secret"), Some(1));
        assert_eq!(credentials.find("c:d"), Some(2));
        assert_eq!(credentials.find("home: beta-secret"), None);
        assert_eq!(credentials.find(""), None);
        assert_eq!((credentials.name(0), credentials.name(1)), ("gateway 1", "home"));
    }

    #[test]
    fn a_file_that_is_wrong_says_where_but_not_what() {
        let error = |text| Credentials::parse(text).unwrap_err();
        assert!(matches!(error("# nobody\n"), CredentialsError::Empty));
        for (text, number) in [("one\ntwo words\n", 2), ("home: two words", 1)] {
            let error = error(text);
            assert!(matches!(error, CredentialsError::Malformed(line) if line == number), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("words"));
        }
        let long = format!("one\n{}", "words".repeat(20_000));
        for text in ["one\nwörds-é", "one\nhome: \u{feff}words", "one\nwords\u{7f}", &long] {
            let error = Credentials::parse(text).unwrap_err();
            assert!(matches!(error, CredentialsError::NoBearer(2)), "{error:?}");
            assert!(error.to_string().starts_with("line 2 of the credentials cannot travel in a header"), "{error}");
        }
        assert!(matches!(error("same\nhome: same"), CredentialsError::Repeated(2)));
        let missing = Credentials::load(Path::new("/nonexistent/credentials")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/credentials"));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_credential() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\u{feff}alpha-secret\r\nhome: beta-secret\r\n").unwrap();
        let credentials = Credentials::load(file.path()).unwrap();
        assert_eq!((credentials.find("alpha-secret"), credentials.find("beta-secret")), (Some(0), Some(1)));
    }

    #[test]
    fn case_55_credentials_print_a_count() {
        let credentials = Credentials::parse("home: very-secret").unwrap();
        assert_eq!(format!("{credentials:?}"), "Credentials(1 gateways)");
    }
}
