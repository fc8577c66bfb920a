//! What the relay's HTTP side reads from requests and how it answers: JSON, never stored.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A refusal: `{"error": code}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) u16, pub(super) &'static str);

/// No bearer, or none that fits.
pub(super) const UNAUTHORIZED: Refusal = Refusal(401, "unauthorized");
/// Nothing is there.
pub(super) const NOT_FOUND: Refusal = Refusal(404, "not_found");
/// The grant is over, or not this gateway's.
pub(super) const GRANT_CLOSED: Refusal = Refusal(410, "grant_closed");
/// Too often in a minute.
pub(super) const RATE_LIMITED: Refusal = Refusal(429, "rate_limited");

/// An answer with a body.
pub(super) fn answer(status: StatusCode, body: impl Serialize) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, code) = self;
        let status = StatusCode::from_u16(status).expect("refusals have real statuses");
        answer(status, serde_json::json!({ "error": code }))
    }
}

/// The bearer of a request. Two of them are none: a proxy before us may have looked at the other.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (scheme, bearer) = values.next()?.to_str().ok()?.split_once(' ')?;
    if values.next().is_some() {
        return None;
    }
    scheme.eq_ignore_ascii_case("bearer").then(|| bearer.trim())
}

/// What a path names. A name that is not text is nobody's, and answered as such.
#[derive(Debug)]
pub(super) struct Named<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(named) = Path::from_request_parts(parts, state).await.map_err(|_| NOT_FOUND)?;
        Ok(Self(named))
    }
}

/// Reads a JSON object of at most `most` bytes within `wait`. Whatever is wrong with it is the same refusal.
pub(super) async fn read<T: DeserializeOwned>(
    body: Body,
    most: usize,
    wait: Duration,
    refusal: Refusal,
) -> Result<T, Refusal> {
    match tokio::time::timeout(wait, axum::body::to_bytes(body, most)).await {
        // A list of an object's values would be read as one, too.
        Ok(Ok(bytes)) if bytes.trim_ascii_start().first() == Some(&b'{') => {
            serde_json::from_slice(&bytes).map_err(|_| refusal)
        }
        _ => Err(refusal),
    }
}
