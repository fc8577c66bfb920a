//! Which addresses may be told a secret.

use url::{Host, Url};

/// Whether what is sent to `url` is encrypted or stays on this machine.
pub fn keeps_secrets(url: &Url) -> bool {
    match url.scheme() {
        "https" | "wss" => true,
        "http" | "ws" => match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        },
        _ => false,
    }
}

/// Whether what is sent to `url` is not encrypted: a proxy would read it.
pub(crate) fn in_clear(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "ws"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_text_only_to_this_machine() {
        for good in
            ["https://relay.example", "wss://relay.example", "http://127.0.0.1:80", "ws://[::1]:9", "http://localhost"]
        {
            assert!(keeps_secrets(&Url::parse(good).unwrap()), "{good}");
        }
        for bad in [
            "http://relay.example",
            "ws://10.0.0.1",
            "http://localhost.example",
            "ftp://localhost",
            "http://127.0.0.1.example",
        ] {
            assert!(!keeps_secrets(&Url::parse(bad).unwrap()), "{bad}");
        }
    }
}
