//! The sign-ins in files against a service in the test.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response};
use serde_json::Map;

use super::*;

/// A request as the service saw it.
#[derive(Clone)]
struct Seen {
    path: String,
    headers: HeaderMap,
    body: Value,
}

/// What the service answers, in order, and what it saw.
#[derive(Clone, Default)]
struct Service {
    answers: Arc<Mutex<Vec<(u16, String)>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Service {
    async fn answering(answers: &[(u16, &str)]) -> (String, Self) {
        let service = Self::default();
        *service.answers.lock().unwrap() = answers.iter().rev().map(|(s, b)| (*s, (*b).to_owned())).collect();
        let router = Router::new().fallback(answer).with_state(service.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (url, service)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(State(service): State<Service>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&body).unwrap();
    service.seen.lock().unwrap().push(Seen { path: parts.uri.to_string(), headers: parts.headers, body });
    let (status, body) = service.answers.lock().unwrap().pop().expect("an answer for each request");
    Response::builder().status(status).header("location", "/elsewhere").body(body.into()).unwrap()
}

/// Files in a folder of the test, and the sign-ins they make.
fn sign_ins(files: &[(&str, &str)], config: Value) -> (tempfile::TempDir, Result<SignIns, ConfigError>) {
    // Another test may have been first.
    crate::tls::ensure_provider();
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = config.to_string().replace("DIR", dir.path().to_str().unwrap());
    fs::write(dir.path().join("config.json"), config).unwrap();
    let sign_ins = SignIns::read(&dir.path().join("config.json"));
    (dir, sign_ins)
}

fn start(engine: EngineKind) -> Start {
    let Value::Object(fields) = json!({"greeting": "", "briefing": "The user is Ada."}) else { panic!() };
    Start { engine, fields }
}

async fn gpt_live(sign_ins: &SignIns) -> Result<GptLiveAnswer, StartError> {
    sign_ins.gpt_live(OFFER, &start(EngineKind::GptLive)).await
}

fn config_a(url: &str) -> Value {
    json!({"gpt_live": {"api_key_file": "DIR/openai.key", "url": url}})
}

fn config_b(url: &str) -> Value {
    json!({"gpt_live": {"codex_file": "DIR/auth.json", "url": url, "token_url": format!("{url}/oauth/token")}})
}

const OFFER: &str = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\n";
const CREATED: &str = "{\"session\":{\"id\":\"live_u1_A\"},\"transport\":{\"type\":\"webrtc\",\"sdp\":\"v=0\\r\\nanswer\\r\\n\"},\"more\":1}";
const AUTH: &str = "{\"OPENAI_API_KEY\":null,\"tokens\":{\"access_token\":\"old\",\"refresh_token\":\"r1\",\"account_id\":\"acct\"},\"last_refresh\":\"2026-01-01\"}";

#[tokio::test]
async fn an_api_key_speaks_dialect_a() {
    let (url, service) = Service::answering(&[(201, CREATED)]).await;
    let (_dir, sign_ins) = sign_ins(&[("openai.key", "sk-test\n")], config_a(&url));
    let answer = gpt_live(&sign_ins.unwrap()).await.unwrap();
    assert_eq!(answer.sdp, "v=0\r\nanswer\r\n");
    assert_eq!((answer.voice.as_str(), answer.briefing_applied, answer.greeting_applied), ("marin", true, true));
    let seen = &service.seen()[0];
    assert_eq!(seen.path, "/v1/live/sessions");
    assert_eq!(seen.headers["authorization"], "Bearer sk-test");
    assert_eq!(seen.body["transport"], json!({"type": "webrtc", "sdp": OFFER}));
    assert_eq!(seen.body["session"]["model"], "gpt-live-1");
}

#[tokio::test]
async fn a_codex_sign_in_speaks_dialect_b() {
    let (url, service) = Service::answering(&[(201, "v=0\r\nanswer\r\n")]).await;
    let (_dir, sign_ins) = sign_ins(&[("auth.json", AUTH)], config_b(&url));
    let answer = gpt_live(&sign_ins.unwrap()).await.unwrap();
    assert_eq!((answer.sdp.as_str(), answer.voice.as_str()), ("v=0\r\nanswer\r\n", "cove"));
    let seen = &service.seen()[0];
    assert_eq!(seen.path, "/backend-api/codex/realtime/calls?intent=quicksilver&architecture=avas");
    assert_eq!(seen.headers["authorization"], "Bearer old");
    assert_eq!(seen.headers["chatgpt-account-id"], "acct");
    assert_eq!(seen.headers["openai-alpha"], "quicksilver=v2");
    let ids: std::collections::HashSet<_> =
        ["session-id", "x-session-id", "thread-id"].map(|name| seen.headers[name].to_str().unwrap()).into();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.len() == 36));
    assert_eq!(seen.body["sdp"], OFFER);
    assert_eq!(seen.body["session"]["model"], "gpt-live-1-codex");
}

#[tokio::test]
async fn a_sign_in_that_ran_out_is_renewed_once_and_written_back() {
    let renewed = "{\"access_token\":\"new\",\"refresh_token\":\"r2\",\"id_token\":7}";
    let (url, service) = Service::answering(&[(401, "old is bad"), (200, renewed), (201, "v=0\r\n")]).await;
    let (dir, sign_ins) = sign_ins(&[("auth.json", AUTH)], config_b(&url));
    assert!(gpt_live(&sign_ins.unwrap()).await.is_ok());
    let seen = service.seen();
    assert_eq!(seen[1].path, "/oauth/token");
    assert_eq!((&seen[1].body["refresh_token"], &seen[1].body["grant_type"]), (&json!("r1"), &json!("refresh_token")));
    assert_eq!(seen[2].headers["authorization"], "Bearer new");

    let file = dir.path().join("auth.json");
    let written: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let tokens = json!({"access_token": "new", "refresh_token": "r2", "account_id": "acct"});
    assert_eq!(written, json!({"OPENAI_API_KEY": null, "tokens": tokens, "last_refresh": "2026-01-01"}));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no file is left over");
}

#[tokio::test]
async fn a_renewal_is_tried_once() {
    let (url, service) = Service::answering(&[(401, ""), (200, "{\"access_token\":\"new\"}"), (401, "")]).await;
    let (_dir, sign_ins) = sign_ins(&[("auth.json", AUTH)], config_b(&url));
    assert_eq!(gpt_live(&sign_ins.unwrap()).await.unwrap_err().code, ErrorCode::Refused);
    assert_eq!(service.seen().len(), 3);
}

#[tokio::test]
async fn case_55_refusals_have_their_codes_and_never_the_services_words() {
    use ErrorCode::{Failed, RateLimited, Refused, Unreachable};
    let echo = "Incorrect API key provided: sk-test";
    for (status, body, code) in [
        (400, echo, Refused),
        (401, echo, Refused),
        (403, echo, Refused),
        (404, echo, Refused),
        (429, echo, RateLimited),
        (500, echo, Unreachable),
        (307, echo, Unreachable),
        (201, echo, Failed),
        (201, "{\"transport\":{\"sdp\":\"\"}}", Failed),
    ] {
        let (url, service) = Service::answering(&[(status, body)]).await;
        let (_dir, sign_ins) = sign_ins(&[("openai.key", "sk-test")], config_a(&url));
        let error = gpt_live(&sign_ins.unwrap()).await.unwrap_err();
        assert_eq!(error.code, code, "{status}");
        assert!(!error.message.contains("sk-test"));
        assert_eq!(service.seen().len(), 1, "no redirect is followed and nothing is tried twice");
    }
    let (_dir, sign_ins) = sign_ins(&[("openai.key", "sk-test")], config_a("http://127.0.0.1:9"));
    assert_eq!(gpt_live(&sign_ins.unwrap()).await.unwrap_err().code, Unreachable);
}

#[tokio::test]
async fn an_answer_has_a_bound() {
    let large = format!("v=0{}", "x".repeat(MAX_SDP));
    let (url, _) = Service::answering(&[(201, &large)]).await;
    let (_dir, sign_ins) = sign_ins(&[("auth.json", AUTH)], config_b(&url));
    assert_eq!(gpt_live(&sign_ins.unwrap()).await.unwrap_err().code, ErrorCode::Failed);
}

#[tokio::test(start_paused = true)]
async fn an_exchange_not_answered_in_30_s_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (_dir, sign_ins) = sign_ins(&[("auth.json", AUTH)], config_b(&url));
    let begun = tokio::time::Instant::now();
    assert_eq!(gpt_live(&sign_ins.unwrap()).await.unwrap_err().code, ErrorCode::Unreachable);
    assert_eq!(begun.elapsed().as_secs(), 30);
}

/// `engines.md` 2.1: clients stop at 256 KiB.
const MAX_SDP: usize = 256 * 1024;

#[tokio::test]
async fn grok_takes_the_key_and_the_defaults() {
    let config = json!({"grok": {"api_key_file": "DIR/xai.key"}});
    let (_dir, sign_ins) = sign_ins(&[("xai.key", " xai-test\n")], config);
    let sign_ins = sign_ins.unwrap();
    let access = sign_ins.grok(&start(EngineKind::Grok)).await.unwrap();
    assert_eq!(access.bearer.expose(), "xai-test");
    assert_eq!((access.url.as_str(), access.model.as_str()), ("wss://api.x.ai/v1/realtime", "grok-voice-latest"));
    assert_eq!(access.voice, "eve");
    let fields = Map::from_iter([("voice".to_owned(), json!("ara"))]);
    assert_eq!(sign_ins.grok(&Start { engine: EngineKind::Grok, fields }).await.unwrap().voice, "ara");
    assert!(sign_ins.has(EngineKind::Grok) && !sign_ins.has(EngineKind::GptLive));
}

#[tokio::test]
async fn no_billing_stands_in_for_another() {
    let both = json!({"gpt_live": {"api_key_file": "DIR/openai.key", "codex_file": "DIR/auth.json"}});
    let (_dir, refused) = sign_ins(&[], both);
    assert!(matches!(refused, Err(ConfigError::Billing)));
    assert!(matches!(sign_ins(&[], json!({"gpt_live": {}})).1, Err(ConfigError::Billing)));

    // A key lies beside the sign-in; it is not looked at.
    let (url, service) = Service::answering(&[(403, "")]).await;
    let (_dir, codex) = sign_ins(&[("auth.json", AUTH), ("openai.key", "sk-test")], config_b(&url));
    assert_eq!(gpt_live(&codex.unwrap()).await.unwrap_err().code, ErrorCode::Refused);
    assert_eq!(service.seen().len(), 1);
}

#[tokio::test]
async fn unusable_files_and_configurations() {
    for content in ["", "{}", "no json", "{\"tokens\":{\"access_token\":\"a\"}}"] {
        let (_dir, sign_ins) = sign_ins(&[("auth.json", content)], config_b("http://127.0.0.1:9"));
        let error = gpt_live(&sign_ins.unwrap()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Failed);
        assert!(!error.message.contains('/'), "the Watch is told no path");
    }
    assert!(matches!(sign_ins(&[], json!([])).1, Err(ConfigError::Parse(..))));
    assert!(matches!(sign_ins(&[], json!({"openai": 1})).1, Err(ConfigError::Parse(..))));
    assert!(matches!(sign_ins(&[], config_a("http://api.openai.com")).1, Err(ConfigError::Url("gpt_live.url"))));
    assert!(matches!(SignIns::read(Path::new("/nowhere/config.json")), Err(ConfigError::Read(..))));
}

#[test]
fn the_account_may_be_in_the_token() {
    let claims = URL_SAFE_NO_PAD.encode("{\"https://api.openai.com/auth\":{\"chatgpt_account_id\":\"acct-7\"}}");
    assert_eq!(account_in(&format!("e30.{claims}.sig")).as_deref(), Some("acct-7"));
    for bad in ["", "a.b.c", "e30.e30.sig"] {
        assert_eq!(account_in(bad), None);
    }
}

#[test]
fn a_file_behind_a_link_is_replaced_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_private(&link, b"new").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}
