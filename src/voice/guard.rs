//! Who may ask: the access token, the `Host` and the `Origin` of a request; and the headers that every answer carries.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use url::{Host, Url};

use super::routes::{Refusal, Shared};
use crate::secret::Secret;

/// The access token, kept as its hash.
pub(super) struct Token([u8; 32]);

impl Token {
    pub(super) fn new(token: &Secret) -> Self {
        Self(Sha256::digest(token.expose()).into())
    }

    /// Compares in constant time, whatever the length of what came.
    fn is(&self, presented: &str) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.0.ct_eq(&presented).into()
    }
}

/// Lets a request of the API in, or refuses it.
pub(super) async fn token(State(shared): State<Shared>, request: Request, next: Next) -> Result<Response, Refusal> {
    let Some(token) = &shared.token else { return Ok(next.run(request).await) };
    let bearer = bearer(request.headers());
    if bearer.is_some_and(|bearer| token.is(bearer)) {
        return Ok(next.run(request).await);
    }
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "access token required"))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, bearer) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| bearer.trim())
}

/// Of what a request is judged by there is one of each (RFC 9112 section 3.2): a proxy before us may have looked at the other.
pub(super) async fn unambiguous(request: Request, next: Next) -> Result<Response, Refusal> {
    match JUDGED.into_iter().find(|name| request.headers().get_all(*name).iter().count() > 1) {
        Some(name) => Err(Refusal::new(StatusCode::BAD_REQUEST, format!("more than one {name} header"))),
        None => Ok(next.run(request).await),
    }
}

/// Without an access token the browser itself is the door: a page of another site must neither reach this server under a
/// name of its own (DNS rebinding) nor send it requests. With one, a foreign page has no token to send.
pub(super) async fn same_site(State(shared): State<Shared>, request: Request, next: Next) -> Result<Response, Refusal> {
    if shared.token.is_none() {
        let headers = request.headers();
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !is_here(host, shared.listen) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "this server is not known under that name"));
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if !reads && !same_origin(headers, host) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "requests of other sites are refused"));
        }
    }
    Ok(next.run(request).await)
}

/// Whether a `Host` names this machine's loopback, or the address listened at. The port may be another one: that of a tunnel.
fn is_here(host: &str, listen: SocketAddr) -> bool {
    let Ok(url) = Url::parse(&format!("http://{host}/")) else { return false };
    let plain = url.path() == "/" && url.username().is_empty() && url.password().is_none();
    plain
        && match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback() || listen.ip() == address,
            Some(Host::Ipv6(address)) => address.is_loopback() || listen.ip() == address,
            None => false,
        }
}

/// Whether a request comes from a page of this server, or from no page at all.
fn same_origin(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
    let origin = text(header::ORIGIN);
    let ours = |origin: &str| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    };
    let site = text(HeaderName::from_static("sec-fetch-site"));
    origin.is_none_or(ours) && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// What every answer carries: the page takes nothing from third parties and talks to nobody but this server, apart from the
/// call's own media.
pub(super) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

const JUDGED: [&str; 4] = ["host", "origin", "sec-fetch-site", "authorization"];

const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         media-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("permissions-policy", "microphone=(self), camera=(), geolocation=(), display-capture=()"),
    ("cross-origin-resource-policy", "same-origin"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_here() {
        let listen = "192.168.1.7:8790".parse().unwrap();
        for good in
            ["localhost", "localhost:8790", "127.0.0.1:9", "[::1]:8790", "127.8.8.8", "192.168.1.7:8790", "LOCALHOST"]
        {
            assert!(is_here(good, listen), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:8790",
            "localhost.evil.example",
            "192.168.1.8",
            "127.0.0.1.evil.example",
            "evil@localhost",
            "localhost/x",
            "[::2]",
            "0.0.0.0:8790",
        ] {
            assert!(!is_here(bad, listen), "{bad}");
        }
    }

    #[test]
    fn another_sites_request_is_told_from_ours() {
        let from = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            same_origin(&headers, "localhost:8790")
        };
        assert!(from(&[]) && from(&[("origin", "http://localhost:8790")]));
        assert!(from(&[("origin", "https://localhost:8790"), ("sec-fetch-site", "same-origin")]));
        assert!(!from(&[("origin", "http://evil.example")]) && !from(&[("origin", "null")]));
        assert!(!from(&[("origin", "http://localhost:8791")]) && !from(&[("sec-fetch-site", "cross-site")]));
        assert!(!from(&[("origin", "http://localhost:8790"), ("sec-fetch-site", "same-site")]));
    }

    #[test]
    fn a_token_is_compared_whole() {
        let token = Token::new(&Secret::new("correct horse"));
        assert!(token.is("correct horse"));
        assert!(!token.is("") && !token.is("correct hors") && !token.is("correct horse "));
    }
}
