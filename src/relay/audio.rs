//! `/v1/watch-audio/{grant}/{host|watch}`: who may join a bridge.

use std::sync::Arc;

use axum::Extension;
use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::answer::{GRANT_CLOSED, NOT_FOUND, Named, RATE_LIMITED, Refusal, UNAUTHORIZED, bearer};
use super::credentials::matches;
use super::grants::{Bridge, Grant};
use super::server::{Client, Relay};
use super::{Limits, Side, line};

/// Checks an upgrade in the contract's order and, when it may be, seats the socket.
pub(super) async fn join(
    State(relay): State<Arc<Relay>>,
    Named((id, side)): Named<(String, String)>,
    Extension(client): Extension<Client>,
    mut request: Request,
) -> Result<Response, Refusal> {
    let side = [Side::Host, Side::Watch].into_iter().find(|known| known.as_str() == side).ok_or(NOT_FOUND)?;
    let accept = accept_key(&request).ok_or(Refusal(400, "bad_upgrade"))?;
    let (grant, bridge) = match side {
        Side::Host => {
            let (grant, bridge) = admit_host(&relay, &client, request.headers(), &id)?;
            (grant, Some(bridge))
        }
        Side::Watch => (admit_watch(&relay, &client, request.headers(), &id)?, None),
    };
    if !grant.admit_connect(side, relay.limits.connect_rate) {
        return Err(RATE_LIMITED);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let socket = Socket { grant, side, _bridge: bridge, _client: client };
    relay.spawn(socket.run(Arc::clone(&relay.limits), upgrade));
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, "websocket"), (SEC_WEBSOCKET_ACCEPT, accept.as_str())];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

fn admit_host(
    relay: &Relay,
    client: &Client,
    headers: &HeaderMap,
    id: &str,
) -> Result<(Arc<Grant>, Arc<Bridge>), Refusal> {
    let address = relay.address(client, headers);
    if !relay.hosts.admit(Instant::now(), address, relay.limits.host_address_rate) {
        return Err(RATE_LIMITED);
    }
    let gateway = relay.gateway(headers)?;
    let grant = relay.grants.get(id).filter(|grant| grant.gateway == gateway && grant.is_live());
    let grant = grant.ok_or(GRANT_CLOSED)?;
    check_audio(&grant)?;
    // A bridge is there for as long as a host is; a Watch only ever joins one.
    let bridge = relay.grants.bridge(&grant).ok_or(Refusal(503, "watch_audio_capacity"))?;
    Ok((grant, bridge))
}

fn admit_watch(relay: &Relay, client: &Client, headers: &HeaderMap, id: &str) -> Result<Arc<Grant>, Refusal> {
    let address = relay.address(client, headers);
    if !relay.watches.admit(Instant::now(), address, relay.limits.watch_address_rate) {
        return Err(RATE_LIMITED);
    }
    let grant = relay.grants.get(id).filter(|grant| grant.is_live()).ok_or(UNAUTHORIZED)?;
    if !bearer(headers).is_some_and(|key| matches(key, &grant.watch_key_sha256)) {
        return Err(UNAUTHORIZED);
    }
    check_audio(&grant)?;
    Ok(grant)
}

fn check_audio(grant: &Grant) -> Result<(), Refusal> {
    if grant.audio { Ok(()) } else { Err(Refusal(403, "audio_not_granted")) }
}

/// A socket on its way to a seat, with what it holds on to for as long as it lives.
struct Socket {
    grant: Arc<Grant>,
    side: Side,
    _bridge: Option<Arc<Bridge>>,
    _client: Client,
}

impl Socket {
    async fn run(self, limits: Arc<Limits>, upgrade: hyper::upgrade::OnUpgrade) {
        let Ok(Ok(upgraded)) = tokio::time::timeout(limits.head, upgrade).await else { return };
        tracing::debug!(grant = ?self.grant.id, side = self.side.as_str(), "socket joined");
        let code = line::run(TokioIo::new(upgraded), &self.grant.seats, self.side, &limits).await;
        tracing::debug!(grant = ?self.grant.id, side = self.side.as_str(), code, "socket left");
    }
}

/// The answer's key, if the request is a well-formed upgrade (RFC 6455 section 4.2.1).
fn accept_key(request: &Request) -> Option<String> {
    let headers = request.headers();
    // What follows the head is the socket's: a body would be taken for frames.
    let bare = request.body().is_end_stream();
    let get = request.method() == Method::GET && request.version() == Version::HTTP_11 && bare;
    let asks = has_token(headers, &CONNECTION, "upgrade") && has_token(headers, &UPGRADE, "websocket");
    let version = only(headers, &SEC_WEBSOCKET_VERSION)? == "13";
    let key = only(headers, &SEC_WEBSOCKET_KEY)?;
    let nonce = STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16);
    (get && asks && version && nonce).then(|| derive_accept_key(key.as_bytes()))
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// A header that stands there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then(|| value.trim())
}
