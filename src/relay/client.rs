//! How a host and a Watch speak to a relay's tool routes. No redirects are followed: the bearers must not travel.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::{Deserialize, Serialize};

use super::credentials::sha256;
use super::{RelayUrl, Side};
use crate::seal::tools::{self, Envelope, ToolSealError};
use crate::seal::{GrantId, Rid, Root};
use crate::secret::Secret;

/// The host's side: opens grants, fetches calls, brings results.
#[derive(Debug, Clone)]
pub struct Host {
    http: Http,
    credential: Secret,
}

/// The Watch's side: calls tools.
#[derive(Debug, Clone)]
pub struct Watch {
    http: Http,
    grant: GrantId,
    root: Root,
    watch_key: Secret,
}

/// What a host asks for.
#[derive(Debug, Clone)]
pub struct NewGrant {
    /// The bearer that the Watch will present. Only its hash is sent.
    pub watch_key: Secret,
    /// How long the grant lives: 60 s to 30 min, whole seconds.
    pub life: Duration,
    /// Tool calls it may have, 1 to 120.
    pub max_calls: u32,
    /// Whether it may have an audio bridge.
    pub audio: bool,
}

/// A grant as the relay opened it.
#[derive(Debug, Clone, Deserialize)]
pub struct OpenGrant {
    /// Its name.
    #[serde(rename = "grant_id", deserialize_with = "parsed")]
    pub id: GrantId,
    /// When it ends, ISO 8601.
    pub expires_at: String,
    /// How long a call waits for its result, milliseconds.
    pub call_wait_ms: u64,
    /// Whether it may have an audio bridge.
    pub audio: bool,
}

/// A call as the host fetches it.
#[derive(Debug, Clone, Deserialize)]
pub struct FetchedCall {
    /// Its name, to be answered once.
    #[serde(deserialize_with = "parsed")]
    pub rid: Rid,
    /// What the Watch sealed.
    #[serde(flatten)]
    pub sealed: Envelope,
}

/// Why a request to a relay failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No answer: the relay cannot be reached, or did not answer in time. Try again later.
    #[error("the relay does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The relay refused. `grant_closed` is final; 429 and 503 may be tried again later.
    #[error("the relay refused: {status} {code}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The relay's own code, such as `grant_closed`.
        code: String,
    },
    /// It answered with something else than the contract says.
    #[error("the relay's answer is not what was agreed")]
    Answer,
    /// A call or result that cannot be sealed or opened.
    #[error(transparent)]
    Seal(#[from] ToolSealError),
}

impl Host {
    /// A client with the gateway's credential.
    pub fn new(relay: RelayUrl, credential: Secret) -> Result<Self, ClientError> {
        Ok(Self { http: Http::new(relay)?, credential })
    }

    /// Opens a grant.
    pub async fn create_grant(&self, grant: &NewGrant) -> Result<OpenGrant, ClientError> {
        let body = serde_json::json!({
            "watch_key_sha256": hex(&sha256(grant.watch_key.expose())),
            "ttl_s": grant.life.as_secs(),
            "max_calls": grant.max_calls,
            "audio": grant.audio,
        });
        read(self.request(Method::POST, &["grants"]).json(&body).timeout(SOON)).await
    }

    /// Waits up to `wait` (25 s at most) for calls. Poll again at once: after 40 s without, the host counts as offline.
    pub async fn poll_calls(&self, grant: &GrantId, wait: Duration) -> Result<Vec<FetchedCall>, ClientError> {
        #[derive(Deserialize)]
        struct Calls {
            calls: Vec<FetchedCall>,
        }
        let wait = wait.min(LONGEST_WAIT);
        let mut url = self.http.relay.tools(&["grants", grant.as_str(), "calls"]);
        url.query_pairs_mut().append_pair("wait_ms", &wait.as_millis().to_string());
        let request = self.http.client.get(url).bearer_auth(self.credential.expose());
        let Calls { calls } = read(request.timeout(wait + SOON)).await?;
        Ok(calls)
    }

    /// Brings a call's result.
    pub async fn post_result(&self, grant: &GrantId, rid: &Rid, sealed: &Envelope) -> Result<(), ClientError> {
        let path = ["grants", grant.as_str(), "results", rid.as_str()];
        send(self.request(Method::POST, &path).json(sealed).timeout(SOON)).await?;
        Ok(())
    }

    /// Closes a grant. The relay does not say whether there was one.
    pub async fn close_grant(&self, grant: &GrantId) -> Result<(), ClientError> {
        send(self.request(Method::DELETE, &["grants", grant.as_str()]).timeout(SOON)).await?;
        Ok(())
    }

    /// The host's socket of a grant's audio bridge, to be dialled with the same credential.
    pub fn audio_url(&self, grant: &GrantId) -> url::Url {
        self.http.relay.audio(grant, Side::Host)
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        self.http.request(method, path, &self.credential)
    }
}

impl Watch {
    /// A client with what a Watch is given.
    pub fn new(relay: RelayUrl, grant: GrantId, root: Root, watch_key: Secret) -> Result<Self, ClientError> {
        Ok(Self { http: Http::new(relay)?, grant, root, watch_key })
    }

    /// Calls a tool: `{"tool","args"}` goes sealed, and what comes back is opened.
    pub async fn call_tool(&self, call: &[u8]) -> Result<Vec<u8>, ClientError> {
        #[derive(Serialize)]
        struct Call<'a> {
            rid: &'a str,
            #[serde(flatten)]
            sealed: Envelope,
        }
        let rid = Rid::random();
        let sealed = tools::seal_call(&self.root, &self.grant, &rid, call)?;
        let request = self
            .http
            .request(Method::POST, &["grants", self.grant.as_str(), "calls"], &self.watch_key)
            .json(&Call { rid: rid.as_str(), sealed })
            .timeout(LONGEST_WAIT + SOON);
        let result: Envelope = read(request).await?;
        Ok(tools::open_result(&self.root, &self.grant, &rid, &result)?)
    }

    /// The Watch's socket of the audio bridge, to be dialled with `watch_key`.
    pub fn audio_url(&self) -> url::Url {
        self.http.relay.audio(&self.grant, Side::Watch)
    }
}

/// A connection pool to one relay.
#[derive(Debug, Clone)]
struct Http {
    client: reqwest::Client,
    relay: RelayUrl,
}

impl Http {
    fn new(relay: RelayUrl) -> Result<Self, ClientError> {
        crate::tls::ensure_provider();
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(SOON);
        Ok(Self { client: builder.build().map_err(ClientError::Unreachable)?, relay })
    }

    fn request(&self, method: Method, path: &[&str], bearer: &Secret) -> RequestBuilder {
        self.client.request(method, self.relay.tools(path)).bearer_auth(bearer.expose())
    }
}

/// Sends, and reads the answer's JSON.
async fn read<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T, ClientError> {
    let body = bounded(send(request).await?).await?;
    serde_json::from_slice(&body).map_err(|_| ClientError::Answer)
}

/// Sends, and makes a refusal an error.
async fn send(request: RequestBuilder) -> Result<Response, ClientError> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    if matches!(status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT) {
        return Ok(response);
    }
    let refusal: Option<Refusal> = bounded(response).await.ok().and_then(|body| serde_json::from_slice(&body).ok());
    // A code of the contract is a word; anything else may be a proxy's page and is not repeated.
    let is_code =
        |text: &String| text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let code = refusal.map(|refusal| refusal.error).filter(is_code).unwrap_or_default();
    Err(ClientError::Refused { status: status.as_u16(), code })
}

/// Reads a body that is no larger than the contract's largest.
async fn bounded(mut response: Response) -> Result<Vec<u8>, ClientError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > MOST_BODY {
            return Err(ClientError::Answer);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The URL names the grant, and stays out of the log.
fn unreachable(error: reqwest::Error) -> ClientError {
    ClientError::Unreachable(error.without_url())
}

fn parsed<'de, D: serde::Deserializer<'de>, T: std::str::FromStr>(deserializer: D) -> Result<T, D::Error>
where
    T::Err: std::fmt::Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The relay's longest wait, for a poll and for a call.
const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// Time for an answer that waits for nobody.
const SOON: Duration = Duration::from_secs(10);

/// Two waiting calls, or one result of 24,000 characters, with room to spare.
const MOST_BODY: usize = 64 * 1_024;
