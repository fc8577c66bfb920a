//! `/v1/watch-tools/`: grants, and the tool calls that pass through them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::answer::{GRANT_CLOSED, Named, RATE_LIMITED, Refusal, UNAUTHORIZED, answer, bearer, read};
use super::close;
use super::credentials::matches;
use super::desk::{Call, CallRefused, ResultRefused};
use super::grants::{Grant, Rates, Terms};
use super::rate::Window;
use super::server::{Client, Relay};
use crate::seal::Rid;
use crate::seal::tools::Envelope;

type Answer = Result<Response, Refusal>;

/// `POST grants`: a host opens a grant.
pub(super) async fn open(State(relay): State<Arc<Relay>>, headers: HeaderMap, body: Body) -> Answer {
    let gateway = relay.gateway(&headers)?;
    if !relay.admit_grant(gateway) {
        return Err(RATE_LIMITED);
    }
    let invalid = Refusal(400, "invalid_grant");
    let request: GrantRequest = read(body, GRANT_BODY, relay.limits.body, invalid).await?;
    let terms = request.terms(&relay).ok_or(invalid)?;
    let grant = relay.grants.open(gateway, &terms).ok_or(Refusal(503, "watch_grant_capacity"))?;
    tracing::info!(gateway = relay.credentials.name(gateway), grant = ?grant.id, "grant opened");
    let body = json!({
        "grant_id": grant.id.as_str(),
        "expires_at": iso8601(SystemTime::now() + terms.life),
        "call_wait_ms": relay.limits.call_wait.as_millis() as u64,
        "audio": grant.audio,
    });
    Ok(answer(StatusCode::CREATED, body))
}

/// `POST grants/{id}/calls`: a Watch calls a tool and waits.
pub(super) async fn call(
    State(relay): State<Arc<Relay>>,
    Named(id): Named<String>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    // What costs least comes first, and nobody's body is read before they are known.
    let now = Instant::now();
    if !relay.calls.admit(now, relay.address(&client, &headers), relay.limits.call_address_rate) {
        return Err(RATE_LIMITED);
    }
    let grant = relay.grants.get(&id).ok_or(UNAUTHORIZED)?;
    if !bearer(&headers).is_some_and(|key| matches(key, &grant.watch_key_sha256)) {
        return Err(UNAUTHORIZED);
    }
    admit(&grant, |rates| &mut rates.calls, relay.limits.call_rate)?;
    if !grant.is_live() {
        return Err(GRANT_CLOSED);
    }
    let invalid = Refusal(400, "invalid_call");
    let request: CallRequest = read(body, CALL_BODY, relay.limits.body, invalid).await?;
    let sealed = envelope(request.n, request.ct, CALL_CT).ok_or(invalid)?;
    let rid: Rid = request.rid.parse().map_err(|_| invalid)?;
    match grant.desk.call(Call { rid: rid.to_string(), sealed }).await {
        Ok(result) => Ok(answer(StatusCode::OK, result)),
        Err(refused) => Err(match refused {
            CallRefused::GrantClosed => GRANT_CLOSED,
            CallRefused::DuplicateCall => Refusal(409, "duplicate_call"),
            CallRefused::GrantExhausted => Refusal(429, "grant_exhausted"),
            CallRefused::TooManyCalls => Refusal(429, "too_many_calls"),
            CallRefused::HostOffline => Refusal(503, "host_offline"),
            CallRefused::HostTimeout => Refusal(504, "host_timeout"),
        }),
    }
}

/// `GET grants/{id}/calls`: a host waits for calls.
pub(super) async fn poll(
    State(relay): State<Arc<Relay>>,
    Named(id): Named<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let grant = hosts_grant(&relay, &headers, &id)?;
    admit(&grant, |rates| &mut rates.polls, relay.limits.poll_rate)?;
    let calls = grant.desk.poll(wait(query.as_deref())).await.ok_or(GRANT_CLOSED)?;
    Ok(answer(StatusCode::OK, json!({ "calls": calls })))
}

/// `POST grants/{id}/results/{rid}`: a host brings a result.
pub(super) async fn result(
    State(relay): State<Arc<Relay>>,
    Named((id, rid)): Named<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let grant = hosts_grant(&relay, &headers, &id)?;
    admit(&grant, |rates| &mut rates.results, relay.limits.result_rate)?;
    let invalid = Refusal(400, "invalid_result");
    let request: ResultRequest = read(body, RESULT_BODY, relay.limits.body, invalid).await?;
    let sealed = envelope(request.n, request.ct, RESULT_CT).ok_or(invalid)?;
    match grant.desk.answer(&rid, sealed) {
        Ok(()) => Ok(answer(StatusCode::OK, json!({ "status": "delivered" }))),
        Err(ResultRefused::GrantClosed) => Err(GRANT_CLOSED),
        Err(ResultRefused::UnknownCall) => Err(Refusal(404, "unknown_call")),
    }
}

/// `DELETE grants/{id}`: either side closes the grant. The answer is always the same.
pub(super) async fn delete(
    State(relay): State<Arc<Relay>>,
    id: Result<Named<String>, Refusal>,
    headers: HeaderMap,
) -> Response {
    let bearer = bearer(&headers).unwrap_or_default();
    if let Ok(Named(id)) = id
        && let Some(grant) = relay.grants.get(&id)
    {
        let host = relay.credentials.find(bearer) == Some(grant.gateway);
        let watch = matches(bearer, &grant.watch_key_sha256);
        if host | watch {
            grant.close(close::GRANT_CLOSED);
            tracing::info!(grant = ?grant.id, "grant closed");
        }
    }
    (StatusCode::NO_CONTENT, [(axum::http::header::CACHE_CONTROL, "no-store")]).into_response()
}

#[derive(Deserialize)]
struct GrantRequest {
    watch_key_sha256: String,
    ttl_s: u64,
    max_calls: u32,
    #[serde(default)]
    audio: bool,
}

#[derive(Deserialize)]
struct CallRequest {
    rid: String,
    n: String,
    ct: String,
}

#[derive(Deserialize)]
struct ResultRequest {
    n: String,
    ct: String,
}

impl GrantRequest {
    fn terms(&self, relay: &Relay) -> Option<Terms> {
        let limits = &relay.limits;
        let life = Duration::from_secs(self.ttl_s);
        let within = (limits.shortest_grant..=limits.longest_grant).contains(&life)
            && (1..=limits.calls_per_grant).contains(&self.max_calls);
        let watch_key_sha256 = unhex(&self.watch_key_sha256)?;
        within.then_some(Terms { watch_key_sha256, life, max_calls: self.max_calls, audio: self.audio })
    }
}

/// A live grant of the gateway that asks.
fn hosts_grant(relay: &Relay, headers: &HeaderMap, id: &str) -> Result<Arc<Grant>, Refusal> {
    let gateway = relay.gateway(headers)?;
    let grant = relay.grants.get(id).filter(|grant| grant.gateway == gateway && grant.is_live());
    grant.ok_or(GRANT_CLOSED)
}

fn admit(grant: &Grant, window: impl Fn(&mut Rates) -> &mut Window, most: u32) -> Result<(), Refusal> {
    let mut rates = grant.rates.lock().expect("nothing panics while it counts");
    if window(&mut rates).once_a_minute(Instant::now(), most) { Ok(()) } else { Err(RATE_LIMITED) }
}

/// A sealed call or result, checked for its lengths and letters only.
fn envelope(n: String, ct: String, lengths: std::ops::RangeInclusive<usize>) -> Option<Envelope> {
    let is_base64url = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let fits = n.len() == N_CHARS && lengths.contains(&ct.len()) && is_base64url(&n) && is_base64url(&ct);
    fits.then_some(Envelope { n, ct })
}

/// `wait_ms` of a poll; missing or odd, the longest wait.
fn wait(query: Option<&str>) -> Duration {
    url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .find(|(name, _)| name == "wait_ms")
        .and_then(|(_, value)| value.parse().ok())
        .map_or(Duration::MAX, Duration::from_millis)
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A time as `2026-01-31T23:59:59Z`, from days counted in the civil calendar of 400-year eras that begin in March.
fn iso8601(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// 12 bytes in base64url.
const N_CHARS: usize = 16;

/// A tag alone, up to 4 KiB with one.
const CALL_CT: std::ops::RangeInclusive<usize> = 22..=5_483;

/// A tag alone, up to the contract's bound.
const RESULT_CT: std::ops::RangeInclusive<usize> = 22..=24_000;

/// Bodies have room for the fields above and for white space and fields of a later version, and no more.
const GRANT_BODY: usize = 4_096;
const CALL_BODY: usize = 8_192;
const RESULT_BODY: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_8601() {
        let at = |seconds| iso8601(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z", "2100 has no 29 February");
    }

    #[test]
    fn a_poll_without_a_wait_waits_longest() {
        assert_eq!(wait(None), Duration::MAX);
        assert_eq!(wait(Some("wait_ms=")), Duration::MAX);
        assert_eq!(wait(Some("a=b&wait_ms=250")), Duration::from_millis(250));
    }

    #[test]
    fn hashes_are_64_hex_digits() {
        assert_eq!(unhex(&"0F".repeat(32)), Some([15; 32]));
        for bad in ["", &"0".repeat(63), &"0".repeat(65), &"+f".repeat(32), &"é".repeat(32)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
