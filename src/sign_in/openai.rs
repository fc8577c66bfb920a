//! Creating a GPT-Live call over HTTP: dialect A with an API key (`engines.md` 1.1), dialect B with a ChatGPT sign-in (2.1).

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, redirect};
use serde_json::{Value, json};

use crate::address::in_clear;
use crate::engine::{ErrorCode, StartError};
use crate::secret::Secret;

/// Why a call was not created. Never holds what the service answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The service refused with this HTTP status.
    #[error("the voice service refused ({0})")]
    Status(u16),
    /// No answer in time.
    #[error("the voice service did not answer")]
    Unreachable,
    /// An answer without what it should hold, or too long.
    #[error("the voice service gave an answer that cannot be used")]
    Unusable,
}

impl From<CreateError> for StartError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Status(429) => {
                Self::new(ErrorCode::RateLimited, "The voice service has too much to do, or the allowance is used up.")
            }
            CreateError::Status(401) => Self::new(ErrorCode::Refused, "The voice service did not accept the sign-in."),
            CreateError::Status(400..500) => Self::new(ErrorCode::Refused, "The voice service refused the call."),
            CreateError::Status(_) | CreateError::Unreachable => {
                Self::new(ErrorCode::Unreachable, "The voice service cannot be reached.")
            }
            CreateError::Unusable => {
                Self::new(ErrorCode::Failed, "The voice service gave an answer that cannot be used.")
            }
        }
    }
}

/// The client for every call creation: follows no redirect, for a credential must not travel; 30 s in all. Where
/// one of the `urls` it is for is http on this machine it takes no proxy, which would get the credential to read.
///
/// # Errors
/// When the machine has no usable trust store.
pub fn http_client<'a>(urls: impl IntoIterator<Item = &'a str>) -> reqwest::Result<Client> {
    crate::tls::ensure_provider();
    let client = Client::builder().redirect(redirect::Policy::none()).timeout(CREATE_LIMIT).referer(false);
    if urls.into_iter().any(in_clear) { client.no_proxy() } else { client }.build()
}

/// Creates a call with an API key (dialect A) and gives the SDP answer. `base_url` is `https://api.openai.com`.
///
/// # Errors
/// What the service said or did not say.
pub async fn create_with_key(
    http: &Client,
    base_url: &str,
    key: &Secret,
    session: &Value,
    offer: &str,
) -> Result<String, CreateError> {
    let answer = send(creation_with_key(http, base_url, key, session, offer)).await?;
    Ok(Created::read(&answer)?.sdp)
}

/// The request that creates a call with an API key (dialect A). The offer goes out byte for byte.
pub fn creation_with_key(http: &Client, base_url: &str, key: &Secret, session: &Value, offer: &str) -> RequestBuilder {
    let body = json!({"session": session, "transport": {"type": "webrtc", "sdp": offer}});
    http.post(format!("{base_url}/v1/live/sessions")).bearer_auth(key.expose()).json(&body)
}

/// A call that was created with an API key.
pub struct Created {
    /// The session's id, whole; empty when the service gave none.
    pub session_id: String,
    /// The SDP answer, byte for byte.
    pub sdp: String,
}

impl Created {
    /// Reads the service's answer.
    ///
    /// # Errors
    /// [`CreateError::Unusable`] without an SDP answer in it.
    pub fn read(answer: &[u8]) -> Result<Self, CreateError> {
        let answer: Value = serde_json::from_slice(answer).map_err(|_| CreateError::Unusable)?;
        let sdp = answer["transport"]["sdp"].as_str().ok_or(CreateError::Unusable)?;
        let session_id = answer["session"]["id"].as_str().unwrap_or_default().to_owned();
        Ok(Self { session_id, sdp: usable(sdp.to_owned())? })
    }
}

/// A ChatGPT sign-in as it goes with a call.
#[derive(Debug, Clone)]
pub struct ChatGpt {
    /// The OAuth access token.
    pub access_token: Secret,
    /// The account's id.
    pub account_id: Secret,
}

/// Creates a call with a ChatGPT sign-in (dialect B) and gives the SDP answer. `base_url` is `https://chatgpt.com`.
///
/// # Errors
/// What the service said or did not say.
pub async fn create_with_chatgpt(
    http: &Client,
    base_url: &str,
    sign_in: &ChatGpt,
    session: &Value,
    offer: &str,
) -> Result<String, CreateError> {
    let request = http
        .post(format!("{base_url}/backend-api/codex/realtime/calls?intent=quicksilver&architecture=avas"))
        .bearer_auth(sign_in.access_token.expose())
        .header("ChatGPT-Account-Id", sign_in.account_id.expose())
        .header("OpenAI-Alpha", "quicksilver=v2")
        .header("originator", "watch_audio")
        .header("session-id", uuid())
        .header("x-session-id", uuid())
        .header("thread-id", uuid())
        .json(&json!({"sdp": offer, "session": session}));
    let answer = send(request).await?;
    usable(String::from_utf8(answer).map_err(|_| CreateError::Unusable)?)
}

/// Sends a request and reads its answer, up to its limit.
pub(super) async fn send(request: RequestBuilder) -> Result<Vec<u8>, CreateError> {
    let mut answer = request.send().await.map_err(|_| CreateError::Unreachable)?;
    if !answer.status().is_success() {
        return Err(CreateError::Status(answer.status().as_u16()));
    }
    read(&mut answer).await
}

/// Reads an answer's body, up to its limit.
pub(crate) async fn read(answer: &mut Response) -> Result<Vec<u8>, CreateError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|_| CreateError::Unreachable)? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(CreateError::Unusable);
        }
    }
    Ok(body)
}

fn usable(sdp: String) -> Result<String, CreateError> {
    if sdp.starts_with("v=0") { Ok(sdp) } else { Err(CreateError::Unusable) }
}

/// A random UUID (RFC 9562, version 4).
fn uuid() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system's random source works once the system is up");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// `watch-audio.md`: the SDP exchange has 30 s.
const CREATE_LIMIT: Duration = Duration::from_secs(30);

/// An SDP answer is a few KB; the services' own clients stop at 256 KiB too.
const MAX_ANSWER: usize = 256 * 1024;
