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
use super::seats::Place;
use super::server::{Client, Relay};
use super::{Limits, Side, line};

/// Checks an upgrade in the contract's order and, when it may be, seats the socket: before it is told so, for whoever hears
/// of the answer may act on it at once.
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
    let seat = grant.seats.join(side);
    let socket = Socket { grant, side, _bridge: bridge, _client: client };
    relay.spawn(socket.run(seat, Arc::clone(&relay.limits), upgrade));
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

/// A socket, with what it holds on to for as long as it lives.
struct Socket {
    grant: Arc<Grant>,
    side: Side,
    _bridge: Option<Arc<Bridge>>,
    _client: Client,
}

impl Socket {
    async fn run(self, seat: Result<Place, u16>, limits: Arc<Limits>, upgrade: hyper::upgrade::OnUpgrade) {
        let Ok(Ok(upgraded)) = tokio::time::timeout(limits.head, upgrade).await else {
            if let Ok(place) = seat {
                self.grant.seats.leave(&place);
            }
            return;
        };
        tracing::debug!(grant = ?self.grant.id, side = self.side.as_str(), "socket joined");
        let code = line::run(TokioIo::new(upgraded), &self.grant.seats, seat, &limits).await;
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::http::header::AUTHORIZATION;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use tokio::sync::Semaphore;

    use super::super::Credentials;
    use super::super::credentials::sha256;
    use super::super::grants::Terms;
    use super::super::server::routes;
    use super::*;

    /// Asks for an upgrade on a connection that will not live to see it. It is answered 101 before any other task has its turn.
    async fn ask(service: &TowerToHyperService<Router>, grant: &Grant, side: Side) {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let request = Request::get(format!("/v1/watch-audio/{}/{}", grant.id.as_str(), side.as_str()))
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
            .header(AUTHORIZATION, if side == Side::Host { "Bearer credential" } else { "Bearer watch-key" })
            .extension(Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), permit))
            .body(Body::empty())
            .unwrap();
        assert_eq!(service.call(request).await.unwrap().status(), StatusCode::SWITCHING_PROTOCOLS);
    }

    #[tokio::test]
    async fn a_seat_is_taken_before_the_answer_and_given_back_when_the_socket_never_comes() {
        let credentials = Credentials::parse("credential").unwrap();
        let relay = Arc::new(Relay::new(credentials, Limits::default(), None));
        let life = Duration::from_secs(60);
        let terms = Terms { watch_key_sha256: sha256("watch-key"), life, max_calls: 1, audio: true };
        let grant = relay.grants.open(0, &terms).unwrap();
        let service = TowerToHyperService::new(routes(Arc::clone(&relay)));

        let mut first = grant.seats.join(Side::Host).unwrap();
        ask(&service, &grant, Side::Host).await;
        assert_eq!(first.ended.try_recv().unwrap().code, 4000, "the newer host sits there");
        let mut watch = grant.seats.join(Side::Watch).expect("a Watch that comes at once finds it");
        assert_eq!(tokio::time::timeout(life, &mut watch.ended).await.unwrap().unwrap().code, 4503, "it is gone again");
        assert_eq!(grant.seats.join(Side::Watch).unwrap_err(), 4503);

        let host = grant.seats.join(Side::Host).unwrap();
        ask(&service, &grant, Side::Watch).await;
        assert_eq!(grant.seats.next(&host).unwrap()[..], [0, 1]);
        let told = async {
            loop {
                match grant.seats.next(&host) {
                    Some(notice) => break notice,
                    None => host.ready.notified().await,
                }
            }
        };
        assert_eq!(tokio::time::timeout(life, told).await.unwrap()[..], [0, 2]);
    }
}
