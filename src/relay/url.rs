//! Where a relay's two route families are, from the one URL that a host or a Watch is given.

use std::fmt;

use url::Url;

use crate::address::keeps_secrets;
use crate::seal::GrantId;

/// A relay's base URL, checked: TLS, or plain text to this very machine.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayUrl(Url);

/// The two ends of a bridge, as they stand in its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The machine that runs the engine sessions.
    Host,
    /// The Watch.
    Watch,
}

/// Why a relay's URL cannot be used. It does not repeat the URL, which may hold a name or a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayUrlError {
    /// It does not parse.
    #[error("the relay's URL is not a URL")]
    NotAUrl,
    /// Neither of the four schemes.
    #[error("the relay's URL must start with https:// (or http:// for this machine)")]
    Scheme,
    /// Plain text to another machine.
    #[error("plain http:// and ws:// are for this machine only; the relay's URL must start with https://")]
    NotLoopback,
    /// A user, a query or a fragment.
    #[error("the relay's URL must have no user, query or fragment")]
    Extra,
}

impl RelayUrl {
    /// Takes `https://`, `wss://`, and for loopback `http://` and `ws://`, with or without a path to go below.
    pub fn parse(text: &str) -> Result<Self, RelayUrlError> {
        let url = Url::parse(text.trim()).map_err(|_| RelayUrlError::NotAUrl)?;
        if !matches!(url.scheme(), "https" | "wss" | "http" | "ws") {
            return Err(RelayUrlError::Scheme);
        }
        if !keeps_secrets(&url) {
            return Err(RelayUrlError::NotLoopback);
        }
        let bare = url.username().is_empty() && url.password().is_none();
        if !bare || url.query().is_some() || url.fragment().is_some() {
            return Err(RelayUrlError::Extra);
        }
        Ok(Self(url))
    }

    /// The WebSocket of one side of a grant's bridge.
    pub fn audio(&self, grant: &GrantId, side: Side) -> Url {
        self.below("ws", &["v1", "watch-audio", grant.as_str(), side.as_str()])
    }

    /// A request of the tool family, such as `["grants"]`.
    pub(super) fn tools(&self, path: &[&str]) -> Url {
        self.below("http", &[&["v1", "watch-tools"], path].concat())
    }

    /// Where the relay says whether it is well.
    pub fn health(&self) -> Url {
        self.below("http", &["healthz"])
    }

    /// The URL of `path` below the base, in `http` or `ws`, with TLS where the base has it.
    fn below(&self, scheme: &str, path: &[&str]) -> Url {
        let secure = if matches!(self.0.scheme(), "https" | "wss") { "s" } else { "" };
        let mut url = self.0.clone();
        url.set_scheme(&format!("{scheme}{secure}")).expect("all four schemes are of the same kind");
        url.path_segments_mut().expect("a URL with a host has a path").pop_if_empty().extend(path);
        url
    }
}

impl Side {
    /// The last segment of its path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Watch => "watch",
        }
    }
}

impl fmt::Debug for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelayUrl({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_url(base: &str) -> String {
        let grant = "GGGGGGGGGGGGGGGGGGGGGG".parse().unwrap();
        RelayUrl::parse(base).unwrap().audio(&grant, Side::Host).to_string()
    }

    #[test]
    fn secure_schemes_become_wss_and_plain_ones_ws() {
        let path = "v1/watch-audio/GGGGGGGGGGGGGGGGGGGGGG/host";
        for base in
            ["https://relay.example", "https://relay.example/", "wss://relay.example", " https://relay.example\n"]
        {
            assert_eq!(host_url(base), format!("wss://relay.example/{path}"));
        }
        assert_eq!(host_url("https://relay.example:8443/sub/"), format!("wss://relay.example:8443/sub/{path}"));
        for host in ["127.0.0.1:9", "localhost:9", "[::1]:9"] {
            assert_eq!(host_url(&format!("http://{host}")), format!("ws://{host}/{path}"));
            assert_eq!(host_url(&format!("ws://{host}")), format!("ws://{host}/{path}"));
        }
        let tools = RelayUrl::parse("wss://relay.example/").unwrap().tools(&["grants"]);
        assert_eq!(tools.as_str(), "https://relay.example/v1/watch-tools/grants");
    }

    #[test]
    fn a_credential_never_goes_in_plain_text_to_another_machine() {
        for url in ["http://relay.example", "ws://10.0.0.1", "http://localhost.example", "http://127.0.0.1.example"] {
            assert_eq!(RelayUrl::parse(url), Err(RelayUrlError::NotLoopback), "{url}");
        }
        assert_eq!(RelayUrl::parse("ftp://relay.example"), Err(RelayUrlError::Scheme));
        assert_eq!(RelayUrl::parse("relay.example"), Err(RelayUrlError::NotAUrl));
        for url in ["https://me:word@relay.example", "https://relay.example/?a=b", "https://relay.example/#a"] {
            assert_eq!(RelayUrl::parse(url), Err(RelayUrlError::Extra), "{url}");
        }
    }
}
