//! Sign-in without a plugin: the credentials are in files, named by the file given with `--config`.
//!
//! ```json
//! {"gpt_live": {"api_key_file": "/etc/watch-audio/openai.key"},
//!  "grok": {"api_key_file": "/etc/watch-audio/xai.key"}}
//! ```
//!
//! `gpt_live` takes `codex_file` (a Codex sign-in, billed to the subscription) instead of `api_key_file`; naming both is an
//! error, for one billing never stands in for another. The files are read for each call, so that a renewed key is used.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;
use zeroize::Zeroizing;

use super::openai::{self, ChatGpt, CreateError};
use super::session::{Dialect, SessionRequest, session_request};
use super::{GptLiveAnswer, GrokAccess};
use crate::address::keeps_secrets;
use crate::disk;
use crate::engine::{EngineKind, ErrorCode, Start, StartError};
use crate::secret::{self, Secret, warn_if_shared};

/// The sign-ins of a configuration file.
pub struct SignIns {
    gpt_live: Option<GptLive>,
    grok: Option<Grok>,
    http: Client,
}

/// Whom a sign-in bills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Billing {
    /// The owner of an API key.
    Key,
    /// The subscription of a Codex sign-in.
    Codex,
}

/// Why a configuration file cannot be used (exit code 2).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path} cannot be read: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// It is not the JSON it should be. The place is said, never the text.
    #[error("{path} is not a sign-in configuration (line {1})", path = .0.display())]
    Parse(PathBuf, usize),
    /// Two billings for one engine, or none.
    #[error("gpt_live needs exactly one of api_key_file and codex_file")]
    Billing,
    /// An address that would carry a credential in clear.
    #[error("{0} must be https or wss, or lead to this machine")]
    Url(&'static str),
    /// No HTTP client.
    #[error("this machine has no usable certificates to trust")]
    Http(#[from] reqwest::Error),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    gpt_live: Option<GptLive>,
    grok: Option<Grok>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GptLive {
    api_key_file: Option<PathBuf>,
    codex_file: Option<PathBuf>,
    /// Replaces the service's address, for tests and proxies.
    url: Option<String>,
    /// Replaces the address where a Codex sign-in is renewed.
    token_url: Option<String>,
    model: Option<String>,
    instructions: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grok {
    api_key_file: PathBuf,
    /// Replaces the realtime WebSocket's address.
    url: Option<String>,
    model: Option<String>,
}

impl SignIns {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read(path).map_err(|error| ConfigError::Read(path.into(), error))?;
        let config: Config =
            serde_json::from_slice(&text).map_err(|error| ConfigError::Parse(path.into(), error.line()))?;
        if let Some(gpt_live) = &config.gpt_live {
            if gpt_live.api_key_file.is_some() == gpt_live.codex_file.is_some() {
                return Err(ConfigError::Billing);
            }
            check_url("gpt_live.url", gpt_live.url.as_deref())?;
            check_url("gpt_live.token_url", gpt_live.token_url.as_deref())?;
        }
        if let Some(grok) = &config.grok {
            check_url("grok.url", grok.url.as_deref())?;
        }
        let urls = config.gpt_live.iter().flat_map(|gpt_live| [&gpt_live.url, &gpt_live.token_url]).flatten();
        let http = openai::http_client(urls.map(String::as_str))?;
        Ok(Self { gpt_live: config.gpt_live, grok: config.grok, http })
    }

    /// Whether there is a sign-in for an engine.
    pub fn has(&self, engine: EngineKind) -> bool {
        match engine {
            EngineKind::GptLive => self.gpt_live.is_some(),
            EngineKind::Grok => self.grok.is_some(),
        }
    }

    /// The file that an engine's sign-in is in, and who is billed.
    pub fn file(&self, engine: EngineKind) -> Option<(Billing, &Path)> {
        match engine {
            EngineKind::GptLive => {
                let GptLive { api_key_file, codex_file, .. } = self.gpt_live.as_ref()?;
                let key = api_key_file.as_deref().map(|file| (Billing::Key, file));
                key.or_else(|| Some((Billing::Codex, codex_file.as_deref()?)))
            }
            EngineKind::Grok => Some((Billing::Key, &self.grok.as_ref()?.api_key_file)),
        }
    }

    pub(super) async fn gpt_live(&self, offer: &str, start: &Start) -> Result<GptLiveAnswer, StartError> {
        let config = self.gpt_live.as_ref().ok_or_else(no_sign_in)?;
        let dialect = if config.codex_file.is_some() { Dialect::B } else { Dialect::A };
        let request = session_request(dialect, start, config.instructions.as_deref(), config.model.as_deref());
        let exchange = async {
            match (&config.api_key_file, &config.codex_file) {
                (Some(file), _) => {
                    let base = config.url.as_deref().unwrap_or(OPENAI_URL);
                    let key = read_key(file).await?;
                    Ok(openai::create_with_key(&self.http, base, &key, &request.session, offer).await?)
                }
                (None, Some(file)) => self.with_codex(config, file, &request, offer).await,
                (None, None) => Err(no_sign_in()),
            }
        };
        let sdp = timeout(EXCHANGE_LIMIT, exchange).await.map_err(|_| CreateError::Unreachable)??;
        let SessionRequest { voice, briefing_applied, greeting_applied, .. } = request;
        Ok(GptLiveAnswer { sdp, voice, briefing_applied, greeting_applied })
    }

    /// Creates a call on the subscription; a sign-in that ran out is renewed once.
    async fn with_codex(
        &self,
        config: &GptLive,
        file: &Path,
        request: &SessionRequest,
        offer: &str,
    ) -> Result<String, StartError> {
        let base = config.url.as_deref().unwrap_or(CHATGPT_URL);
        let codex = CodexFile::read(file).await?;
        let sign_in = codex.sign_in()?;
        match openai::create_with_chatgpt(&self.http, base, &sign_in, &request.session, offer).await {
            Err(CreateError::Status(401)) => {}
            created => return Ok(created?),
        }
        // Someone else may have renewed it in the meantime: a refresh token works once.
        let now = CodexFile::read(file).await?;
        let renewed = if now.sign_in()?.access_token.expose() == sign_in.access_token.expose() {
            let token_url = config.token_url.as_deref().unwrap_or(CODEX_TOKEN_URL);
            now.renew(&self.http, token_url).await?
        } else {
            now
        };
        Ok(openai::create_with_chatgpt(&self.http, base, &renewed.sign_in()?, &request.session, offer).await?)
    }

    pub(super) async fn grok(&self, start: &Start) -> Result<GrokAccess, StartError> {
        let config = self.grok.as_ref().ok_or_else(no_sign_in)?;
        Ok(GrokAccess {
            url: config.url.clone().unwrap_or_else(|| XAI_URL.into()),
            bearer: read_key(&config.api_key_file).await?,
            model: config.model.clone().unwrap_or_else(|| GROK_MODEL.into()),
            voice: start.text("voice").filter(|voice| !voice.is_empty()).unwrap_or(GROK_VOICE).into(),
        })
    }
}

/// A Codex sign-in file (`engines.md` 2.1), kept whole so that what we do not know of it is written back as it was.
struct CodexFile {
    path: PathBuf,
    content: Value,
}

impl CodexFile {
    async fn read(path: &Path) -> Result<Self, StartError> {
        let text = read_secret(path).await?;
        let content = serde_json::from_str(text.expose()).map_err(|_| unusable_file(path, "is not JSON"))?;
        Ok(Self { path: path.into(), content })
    }

    fn token(&self, name: &str) -> Option<&str> {
        self.content.get("tokens")?.get(name)?.as_str().filter(|token| !token.is_empty())
    }

    fn sign_in(&self) -> Result<ChatGpt, StartError> {
        let access = self.token("access_token").ok_or_else(|| unusable_file(&self.path, "has no access token"))?;
        let account = self.token("account_id").map(str::to_owned).or_else(|| account_in(access));
        let account = account.ok_or_else(|| unusable_file(&self.path, "names no account"))?;
        Ok(ChatGpt { access_token: Secret::new(access), account_id: Secret::new(account) })
    }

    /// Renews the sign-in and writes it back before it is used: the old refresh token is void from now on.
    async fn renew(mut self, http: &Client, token_url: &str) -> Result<Self, StartError> {
        let refresh = self.token("refresh_token").ok_or_else(|| unusable_file(&self.path, "has no refresh token"))?;
        let body = json!({"client_id": CODEX_CLIENT, "grant_type": "refresh_token", "refresh_token": refresh});
        let answer = openai::send(http.post(token_url).json(&body)).await.map_err(|error| match error {
            CreateError::Status(400..500) => {
                StartError::new(ErrorCode::Refused, "The sign-in has run out; sign in again with Codex.")
            }
            error => error.into(),
        })?;
        let renewed: Value = serde_json::from_slice(&answer).map_err(|_| CreateError::Unusable)?;
        for name in ["access_token", "refresh_token", "id_token"] {
            if let Some(token) = renewed.get(name).filter(|token| token.is_string()) {
                self.content["tokens"][name] = token.clone();
            }
        }
        let (path, content) = (self.path.clone(), Zeroizing::new(self.content.to_string()));
        let written = disk::away(move || write_private(&path, content.as_bytes())).await;
        if let Err(error) = written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            tracing::warn!(path = %self.path.display(), %error, "the renewed sign-in cannot be written back");
        }
        Ok(self)
    }
}

/// A ChatGPT access token's own claims (a JWT; only read, for the service checks it).
pub(crate) fn claims(access_token: &str) -> Option<Value> {
    let claims = URL_SAFE_NO_PAD.decode(access_token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// The account in them.
fn account_in(access_token: &str) -> Option<String> {
    let claims = claims(access_token)?;
    Some(claims.get("https://api.openai.com/auth")?.get("chatgpt_account_id")?.as_str()?.to_owned())
}

/// Replaces a file as one step, readable by its owner alone.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    // A link stays a link: what it points to is replaced.
    let path = fs::canonicalize(path)?;
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    })();
    if written.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&new);
    }
    written
}

/// A key alone in its file.
async fn read_key(path: &Path) -> Result<Secret, StartError> {
    let text = read_secret(path).await?;
    match text.expose().trim() {
        "" => Err(unusable_file(path, "is empty")),
        key => Ok(Secret::new(key)),
    }
}

async fn read_secret(path: &Path) -> Result<Secret, StartError> {
    let file = path.to_owned();
    let read = disk::away(move || {
        warn_if_shared(&file);
        secret::read(&file)
    });
    let text = read.await.ok_or_else(|| unusable_file(path, "does not answer"))?;
    text.map_err(|_| unusable_file(path, "cannot be read"))
}

/// The log names the file; the Watch is told no path.
fn unusable_file(path: &Path, what: &str) -> StartError {
    tracing::error!(path = %path.display(), "the sign-in file {what}");
    StartError::new(ErrorCode::Failed, "The host's sign-in cannot be used.")
}

fn no_sign_in() -> StartError {
    StartError::new(ErrorCode::Unavailable, "The host has no sign-in for this voice service.")
}

fn check_url(name: &'static str, url: Option<&str>) -> Result<(), ConfigError> {
    match url {
        Some(url) if !Url::parse(url).is_ok_and(|url| keeps_secrets(&url)) => Err(ConfigError::Url(name)),
        _ => Ok(()),
    }
}

/// The services' addresses (`engines.md` 1.1, 2.1, 4.1).
const OPENAI_URL: &str = "https://api.openai.com";
const CHATGPT_URL: &str = "https://chatgpt.com";
const CODEX_TOKEN_URL: &str = "https://auth.openai.com/oauth/token";
const XAI_URL: &str = "wss://api.x.ai/v1/realtime";

/// Codex' own client id, which its sign-ins belong to.
const CODEX_CLIENT: &str = "app_EMoamEEZ73f0CkXaXp7hrann";

/// The model that follows the service's newest, and the voice it speaks with by default.
const GROK_MODEL: &str = "grok-voice-latest";
const GROK_VOICE: &str = "eve";

/// Both tries and a renewal between them; the bridge's own limit for a sign-in.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(32);

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
