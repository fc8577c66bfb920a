//! `/v1/watch-audio/{grant}/{host|watch}`: the checks before a socket is seated, in their order.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use watch_audio::relay::Limits;

use crate::support::*;

/// Sends a request as it is and gives the answer's status and body.
async fn raw(relay: &Relay, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(relay.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 2_000];
    let length = tokio::time::timeout(LIMIT, stream.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
    (answer[9..12].parse().unwrap(), body)
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_request_that_is_no_upgrade_is_refused_first_of_all() {
    let relay = relay_with(Limits { host_address_rate: 0, ..Limits::default() }).await;
    let head = |method: &str, version: &str, upgrade: &str| {
        format!("{method} /v1/watch-audio/{}/host {version}\r\n{upgrade}", rid(0))
    };
    let bad = [
        head("GET", "HTTP/1.1", "host: relay\r\n\r\n"),
        head("POST", "HTTP/1.1", UPGRADE),
        head("GET", "HTTP/1.0", UPGRADE),
        head("GET", "HTTP/1.1", &UPGRADE.replace("upgrade: websocket", "upgrade: h2c")),
        head("GET", "HTTP/1.1", &UPGRADE.replace("keep-alive, Upgrade", "keep-alive")),
        head("GET", "HTTP/1.1", &UPGRADE.replace("version: 13", "version: 8")),
        head("GET", "HTTP/1.1", &UPGRADE.replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhl")),
        head("GET", "HTTP/1.1", &UPGRADE.replace("\r\n\r\n", "\r\ncontent-length: 4\r\n\r\nbody")),
        head("GET", "HTTP/1.1", &UPGRADE.replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")),
        head(
            "GET",
            "HTTP/1.1",
            &UPGRADE.replace("\r\n\r\n", "\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"),
        ),
    ];
    for request in bad {
        let (status, body) = raw(&relay, &request).await;
        assert_eq!((status, body.as_str()), (400, r#"{"error":"bad_upgrade"}"#), "{request}");
    }
    let (status, body) = raw(&relay, &head("GET", "HTTP/1.1", UPGRADE)).await;
    assert_eq!((status, body.as_str()), (429, r#"{"error":"rate_limited"}"#), "then the rate, before the credential");
}

#[tokio::test]
async fn any_other_path_is_not_found() {
    let relay = relay().await;
    let grant = relay.grant().await;
    for side in ["other", "host/", "Host", "host/more", ""] {
        assert_eq!(relay.join(&grant, side, HOST).await.unwrap_err().0, 404, "{side}");
    }
    for path in ["/", "/v1", "/v1/watch-audio", "/v1/watch-tools/grants/x/other"] {
        assert_eq!(relay.request("GET", path, HOST, None).await.refusal(), (404, "not_found"), "{path}");
    }
    assert_eq!(relay.request("PUT", "/v1/watch-tools/grants", HOST, None).await.status, 405);
}

#[tokio::test]
async fn a_host_needs_its_credential_then_its_own_grant_then_audio() {
    let relay = relay().await;
    let grant = relay.grant().await;
    for bearer in ["", "wrong", WATCH] {
        assert_eq!(relay.join(&grant, "host", bearer).await.unwrap_err(), refused(401, "unauthorized"));
        assert_eq!(relay.join(&rid(0), "host", bearer).await.unwrap_err(), refused(401, "unauthorized"));
    }
    assert_eq!(relay.join(&grant, "host", OTHER_HOST).await.unwrap_err(), refused(410, "grant_closed"));
    assert_eq!(relay.join(&rid(0), "host", HOST).await.unwrap_err(), refused(410, "grant_closed"));
    assert_eq!(relay.join("odd", "host", HOST).await.unwrap_err(), refused(410, "grant_closed"));
    let silent = relay.open(terms(60, 1, false)).await.body["grant_id"].as_str().unwrap().to_owned();
    assert_eq!(relay.join(&silent, "host", HOST).await.unwrap_err(), refused(403, "audio_not_granted"));
    relay.delete(&grant, HOST).await;
    assert_eq!(relay.join(&grant, "host", HOST).await.unwrap_err(), refused(410, "grant_closed"));
}

#[tokio::test]
async fn a_watch_needs_its_key_then_audio() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _host = relay.host(&grant).await;
    for bearer in ["", "wrong", HOST] {
        assert_eq!(relay.join(&grant, "watch", bearer).await.unwrap_err(), refused(401, "unauthorized"));
    }
    assert_eq!(relay.join(&rid(0), "watch", WATCH).await.unwrap_err(), refused(401, "unauthorized"));
    let silent = relay.open(terms(60, 1, false)).await.body["grant_id"].as_str().unwrap().to_owned();
    assert_eq!(relay.join(&silent, "watch", WATCH).await.unwrap_err(), refused(403, "audio_not_granted"));
    relay.delete(&grant, HOST).await;
    assert_eq!(relay.join(&grant, "watch", WATCH).await.unwrap_err(), refused(401, "unauthorized"));
}

#[tokio::test]
async fn connects_are_limited_per_address() {
    let limits = Limits { host_address_rate: 2, watch_address_rate: 3, ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    for _ in 0..2 {
        assert_eq!(relay.join(&grant, "host", "wrong").await.unwrap_err().0, 401);
    }
    assert_eq!(relay.join(&grant, "host", HOST).await.unwrap_err(), refused(429, "rate_limited"));
    for _ in 0..3 {
        assert_eq!(relay.join(&grant, "watch", "wrong").await.unwrap_err().0, 401);
    }
    assert_eq!(relay.join(&grant, "watch", WATCH).await.unwrap_err(), refused(429, "rate_limited"));
}

#[tokio::test]
async fn connects_are_30_a_minute_per_grant_and_side() {
    let relay = relay().await;
    let (grant, other) = (relay.grant().await, relay.grant().await);
    for _ in 0..30 {
        relay.host(&grant).await;
    }
    assert_eq!(relay.join(&grant, "host", HOST).await.unwrap_err(), refused(429, "rate_limited"));
    relay.watch(&grant).await;
    relay.host(&other).await;
}

#[tokio::test]
async fn a_full_relay_or_gateway_seats_no_more_hosts() {
    let limits = Limits { bridges_per_gateway: 1, bridges_per_relay: 1, ..Limits::default() };
    let relay = relay_with(limits).await;
    let (one, two) = (relay.grant().await, relay.grant().await);
    let mut first = relay.host(&one).await;
    let second = relay.host(&one).await;
    assert_eq!(first.closed().await, 4000, "a newer host takes its own grant's bridge");
    assert_eq!(relay.join(&two, "host", HOST).await.unwrap_err(), refused(503, "watch_audio_capacity"));
    second.leave().await;
    drop(first);
    // The bridge is given back when the goodbye is over.
    let start = tokio::time::Instant::now();
    while relay.join(&two, "host", HOST).await.is_err() {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
