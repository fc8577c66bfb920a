//! Every route of the server, over real sockets: the voice service is a simulator or a stand-in that keeps what it gets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use watch_audio::hermes::Hermes;
use watch_audio::rtc;
use watch_audio::secret::Secret;
use watch_audio::voice::{BindError, Config, Server, Setup};
use watch_audio_probes::sim::hermes::{self, Faults, StartFault, Step};
use watch_audio_probes::voice_demo::{Behind, Options};

use crate::support::{KEY, LIMIT, approval, complete, tool};

const TOKEN: &str = "access-token-not-to-be-seen";
const OPENAI_KEY: &str = "sk-openai-not-to-be-seen";
const OFFER: &str = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns= two  spaces \r\nt=0 0\r\na=ü\t\"\\\r\n";

/// A server, and what stands behind it.
struct World {
    server: Server,
    hermes: hermes::Simulator,
    vendor: Vendor,
}

/// A voice service that answers as told and keeps the bodies it gets.
struct Vendor {
    url: String,
    bodies: Arc<Mutex<Vec<(String, Bytes)>>>,
}

impl Vendor {
    async fn start(status: u16, answer: String) -> Self {
        let bodies = Arc::<Mutex<Vec<_>>>::default();
        let kept = Arc::clone(&bodies);
        let handler = async move |headers: axum::http::HeaderMap, body: Bytes| {
            let bearer = headers["authorization"].to_str().unwrap().to_owned();
            kept.lock().unwrap().push((bearer, body));
            (StatusCode::from_u16(status).unwrap(), answer)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/live/sessions", post(handler));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, bodies }
    }

    async fn good() -> Self {
        let answer = json!({"session": {"id": "live_u1_x", "more": 1}, "transport": {"type": "webrtc", "sdp": "v=0\r\nanswer\r\n"}});
        Self::start(201, answer.to_string()).await
    }

    fn last(&self) -> Value {
        serde_json::from_slice(&self.bodies.lock().unwrap().last().unwrap().1).unwrap()
    }
}

async fn world_with(vendor: Vendor, options: hermes::Options, config: Config, token: Option<&str>) -> World {
    let hermes = hermes::Simulator::start(hermes::Options { key: Some(Secret::new(KEY)), ..options }).await.unwrap();
    let server = Server::bind(Setup {
        listen: "127.0.0.1:0".parse().unwrap(),
        config: Config { openai_url: vendor.url.clone(), ..config },
        hermes: Hermes::new(&hermes.url(), Secret::new(KEY)).unwrap(),
        openai_key: Secret::new(OPENAI_KEY),
        access_token: token.map(Secret::new),
    })
    .await
    .unwrap();
    World { server, hermes, vendor }
}

async fn world() -> World {
    doing(vec![complete("Done.")]).await
}

async fn doing(steps: Vec<Step>) -> World {
    let options = hermes::Options { jobs: vec![steps], ..Default::default() };
    world_with(Vendor::good().await, options, Config::default(), None).await
}

impl World {
    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        watch_audio::tls::ensure_provider();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        http.request(method, format!("http://{}{path}", self.server.local_addr()))
    }

    async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> Response {
        self.request(Method::POST, path).json(body).send().await.unwrap()
    }

    /// The status and the error of a refusal, which is never stored.
    async fn refused(&self, path: &str, body: &Value) -> (u16, String) {
        refusal(self.post(path, body).await).await
    }
}

async fn refusal(response: Response) -> (u16, String) {
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers()["content-type"], "application/json");
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    (status, body["error"].as_str().unwrap().to_owned())
}

fn request(text: &str) -> Value {
    json!({"hermes_session": "call-1", "lines": [{"speaker": "user", "text": text}]})
}

/// The lines of a delegation's answer; the run's id is left out.
async fn lines(response: Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    let text = timeout(LIMIT, response.text()).await.unwrap().unwrap();
    assert!(text.ends_with('\n'));
    text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn config_says_what_a_page_needs() {
    let config = Config { voice: "voice_own".into(), idle_seconds: 45, ..Config::default() };
    let world = world_with(Vendor::good().await, hermes::Options::default(), config, None).await;
    let response = world.get("/config").await;
    assert_eq!((response.status().as_u16(), &response.headers()["cache-control"]), (200, &"no-store".parse().unwrap()));
    let config: Value = response.json().await.unwrap();
    assert_eq!(config["model"], "gpt-live-1");
    assert_eq!(config["voice"], "voice_own");
    assert_eq!(config["idle_seconds"], 45);
    assert_eq!(config["voices"].as_object().unwrap().len(), 32);
    assert_eq!(config.as_object().unwrap().len(), 4, "nothing else leaves the server");
}

#[tokio::test]
async fn the_offer_goes_to_the_service_byte_for_byte() {
    let world = world().await;
    let response = world.post("/session", &json!({"sdp": OFFER})).await;
    assert_eq!((response.status().as_u16(), &response.headers()["cache-control"]), (200, &"no-store".parse().unwrap()));
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer, json!({"session_id": "live_u1_x", "sdp": "v=0\r\nanswer\r\n"}));
    let asked = world.vendor.last();
    assert_eq!(asked["transport"], json!({"type": "webrtc", "sdp": OFFER}));
    assert_eq!(asked["session"]["audio"]["output"]["voice"], "marin");
    assert!(asked["session"].get("input").is_none());
    assert_eq!(world.vendor.bodies.lock().unwrap()[0].0, format!("Bearer {OPENAI_KEY}"));
}

#[tokio::test]
async fn a_voice_and_a_history_go_with_the_offer() {
    let config = Config { voice: "voice_own".into(), ..Config::default() };
    let world = world_with(Vendor::good().await, hermes::Options::default(), config, None).await;
    for (voice, sent) in [
        (json!("cedar"), json!("cedar")),
        (json!("shitan"), json!("shida")),
        (json!("voice_own"), json!({"id": "voice_own"})),
        (Value::Null, json!({"id": "voice_own"})),
        (json!(""), json!({"id": "voice_own"})),
    ] {
        let history = json!([{"speaker": "user", "text": "hello"}, {"speaker": "nobody", "text": "x"}, 7,
            {"speaker": "assistant", "text": "hi"}]);
        let body = json!({"sdp": OFFER, "voice": voice, "history": history});
        assert_eq!(world.post("/session", &body).await.status(), 200, "{voice}");
        let session = &world.vendor.last()["session"];
        assert_eq!(session["audio"]["output"]["voice"], sent);
        assert_eq!(
            session["input"],
            json!([
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
            ])
        );
    }
    let unknown = world.refused("/session", &json!({"sdp": OFFER, "voice": "nobody"})).await;
    assert_eq!(unknown, (400, "unknown voice".into()));
    for body in [json!({}), json!({"sdp": ""}), json!({"sdp": "\r\n"}), json!({"sdp": null})] {
        assert_eq!(world.refused("/session", &body).await, (400, "no offer".into()));
    }
    assert_eq!(world.vendor.bodies.lock().unwrap().len(), 5, "nothing that is billed came of those");
}

#[tokio::test]
async fn what_the_service_refuses_is_passed_on_cut_and_without_a_key() {
    let told = format!("Incorrect API key provided: {OPENAI_KEY}, sk-proj-****abcd. {}", "x ".repeat(2_000));
    let body = json!({"error": {"message": told, "type": "invalid_request_error", "code": "invalid_api_key"}});
    let world = world_with(
        Vendor::start(401, body.to_string()).await,
        hermes::Options::default(),
        Config::default(),
        Some(TOKEN),
    )
    .await;
    let response = world.request(Method::POST, "/session").bearer_auth(TOKEN).json(&json!({"sdp": OFFER})).send().await;
    let response = response.unwrap();
    assert_eq!(response.status(), 502);
    let text = response.text().await.unwrap();
    assert!(!text.contains("sk-"), "{text}");
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["status"], 401);
    let error = body["error"].as_str().unwrap();
    let said = error.strip_prefix("the voice service refused (401): ").unwrap();
    assert!(said.starts_with("Incorrect API key provided: [key]") && said.chars().count() == 800, "{said}");

    for (status, body, expected) in [
        (429, "slow\r\ndown".to_owned(), "the voice service refused (429): slow down"),
        (500, String::new(), "the voice service refused (500)"),
        (302, String::new(), "the voice service refused (302)"),
    ] {
        let vendor = Vendor::start(status, body).await;
        let world = world_with(vendor, hermes::Options::default(), Config::default(), None).await;
        let (code, error) = world.refused("/session", &json!({"sdp": OFFER})).await;
        assert_eq!((code, error.as_str()), (502, expected));
    }
    for answer in ["{}", "not json", r#"{"transport":{"sdp":"no sdp"}}"#] {
        let vendor = Vendor::start(201, answer.into()).await;
        let world = world_with(vendor, hermes::Options::default(), Config::default(), None).await;
        assert_eq!(world.refused("/session", &json!({"sdp": OFFER})).await.0, 502);
    }
    let gone = Vendor { url: "http://127.0.0.1:1".into(), bodies: Arc::default() };
    let world = world_with(gone, hermes::Options::default(), Config::default(), None).await;
    assert_eq!(world.refused("/session", &json!({"sdp": OFFER})).await.0, 502);
}

#[tokio::test]
async fn a_delegation_is_told_line_by_line() {
    let world = doing(vec![
        Step::Delta("Let me see.".into()),
        tool("web_search", 10),
        Step::Tool { name: "terminal".into(), ms: 0, error: true },
        approval(),
        complete("Sunny.\n21 degrees."),
    ])
    .await;
    let mut response = world.post("/delegate", &request("the weather")).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let mut text = String::new();
    while !text.contains("approval") {
        let piece = timeout(LIMIT, response.chunk()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    let so_far: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let run = &world.hermes.record()[0];
    let request_id = format!("{}.approval-1", run.id);
    let tool = |status, label| json!({"type": "tool", "status": status, "label": label});
    assert_eq!(
        so_far,
        [
            tool("running", "web_search"),
            tool("completed", "web_search"),
            tool("running", "terminal"),
            tool("error", "terminal"),
            json!({"type": "approval", "run_id": run.id, "request_id": request_id, "command": "rm -rf build",
            "description": "clean up"}),
        ]
    );
    let decided = json!({"run_id": run.id, "request_id": request_id, "choice": "session"});
    let answer = world.post("/approve", &decided).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["cache-control"]), (200, &"no-store".parse().unwrap()));
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["object"], "hermes.run.approval_response");
    assert_eq!(
        lines(response).await,
        [
            json!({"type": "decided", "request_id": request_id}),
            json!({"type": "delta", "text": "Sunny.\n21 degrees."}),
            json!({"type": "done", "finish_reason": "stop"}),
        ]
    );
    assert!(run.body["instructions"].as_str().unwrap().contains("spoken aloud"));
    assert_eq!(run.body["session_id"], "call-1");
}

#[tokio::test]
async fn each_end_of_a_run_has_its_line() {
    for (step, expected) in [
        (Step::Fail("No model.".into()), json!({"type": "done", "finish_reason": "failed", "error": "No model."})),
        (
            Step::Interrupt,
            json!({"type": "done", "finish_reason": "interrupted",
            "error": "Hermes was restarted, and the run was interrupted."}),
        ),
        (complete(""), json!({"type": "done", "finish_reason": "stop"})),
    ] {
        let world = doing(vec![step]).await;
        assert_eq!(lines(world.post("/delegate", &request("go")).await).await, [expected]);
    }
    let faults = Faults { cut_after: Some(2), no_status: true, ..Faults::default() };
    let jobs = vec![vec![tool("t", 0), Step::Wait(60_000)]];
    let options = hermes::Options { jobs, faults, ..Default::default() };
    let world = world_with(Vendor::good().await, options, Config::default(), None).await;
    let told = lines(world.post("/delegate", &request("go")).await).await;
    assert_eq!(told.last().unwrap()["type"], "error");
    assert!(told.last().unwrap()["message"].as_str().unwrap().starts_with("Hermes does not know"));
}

#[tokio::test]
async fn a_newer_delegation_ends_the_older_ones_stream() {
    let options =
        hermes::Options { jobs: vec![vec![tool("slow", 60_000)], vec![complete("B.")]], ..Default::default() };
    let world = world_with(Vendor::good().await, options, Config::default(), None).await;
    let older = world.post("/delegate", &request("ask A")).await;
    let newer = world.post("/delegate", &request("ask B")).await;
    let cancelled = json!({"type": "done", "finish_reason": "cancelled", "error": "A newer request took its place."});
    assert_eq!(lines(older).await.last().unwrap(), &cancelled);
    assert_eq!(lines(newer).await[0], json!({"type": "delta", "text": "B."}));
    assert_eq!(world.hermes.record()[0].stops, 1);
}

#[tokio::test]
async fn hanging_up_only_detaches() {
    let options = hermes::Options {
        jobs: vec![vec![Step::Wait(500), complete("Alone.")], vec![Step::Wait(60_000)], vec![complete("C.")]],
        ..Default::default()
    };
    let world = world_with(Vendor::good().await, options, Config::default(), None).await;
    let until = async |what: &dyn Fn(&[hermes::Run]) -> bool| {
        let wait = async {
            while !what(&world.hermes.record()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, wait).await.unwrap();
    };
    drop(world.post("/delegate", &request("ask A")).await);
    until(&|runs| runs[0].status == "completed").await;
    drop(world.post("/delegate", &request("ask B")).await);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.hermes.record()[1].stops, 0);
    // It is registered all the same.
    assert_eq!(lines(world.post("/delegate", &request("ask C")).await).await[0]["text"], "C.");
    let runs = world.hermes.record();
    assert_eq!((runs[0].stops, runs[1].stops, runs[1].status), (0, 1, "cancelled"));
}

#[tokio::test]
async fn a_bad_delegation_is_refused() {
    let world = world().await;
    let line = json!([{"speaker": "user", "text": "go"}]);
    let longest = "x".repeat(64);
    for (session, good) in [
        ("a", true),
        ("A-b_9", true),
        (longest.as_str(), true),
        ("", false),
        ("a b", false),
        ("ä", false),
        ("a/b", false),
        ("a.b", false),
        (&"x".repeat(65), false),
    ] {
        let response = world.post("/delegate", &json!({"hermes_session": session, "lines": line})).await;
        assert_eq!(response.status().as_u16(), if good { 200 } else { 400 }, "{session}");
    }
    let body = |lines: Value| json!({"hermes_session": "b", "lines": lines});
    for lines in [json!([]), json!([{"speaker": "user", "text": " "}]), Value::Null] {
        let refused = refusal(world.post("/delegate", &body(lines.clone())).await).await;
        assert_eq!(refused.0, 400, "{lines}");
    }
    for lines in [json!("go"), json!([{"speaker": "system", "text": "go"}]), json!([{"text": "go"}])] {
        assert_eq!(world.refused("/delegate", &body(lines)).await.0, 400);
    }
    assert_eq!(world.refused("/delegate", &json!({"lines": line})).await, (400, "bad hermes_session".into()));
    assert_eq!(world.hermes.record().len(), 3);

    // With the engine's id of the delegation it is run once.
    let with_id = json!({"hermes_session": "c", "lines": line, "delegation_id": "item_1"});
    assert_eq!(world.post("/delegate", &with_id).await.status(), 200);
    assert_eq!(world.refused("/delegate", &with_id).await.0, 409);
    let bad = json!({"hermes_session": "c", "lines": line, "delegation_id": "a b"});
    assert_eq!(world.refused("/delegate", &bad).await.0, 400);
}

#[tokio::test]
async fn a_hermes_that_refuses_or_is_gone_is_502() {
    for (fault, told) in [
        (StartFault::Status(401, None), "did not accept the key"),
        (StartFault::Status(400, None), "refused the request (400)"),
        (StartFault::NoId, "cannot be used"),
    ] {
        let faults = Faults { starts: vec![fault], ..Faults::default() };
        let options = hermes::Options { faults, ..Default::default() };
        let world = world_with(Vendor::good().await, options, Config::default(), None).await;
        let (status, error) = world.refused("/delegate", &request("go")).await;
        assert!(status == 502 && error.contains(told), "{error}");
    }
    let world = world().await;
    let World { server, hermes, vendor } = world;
    hermes.shutdown().await;
    let hermes = hermes::Simulator::start(hermes::Options::default()).await.unwrap();
    let world = World { server, hermes, vendor };
    let decided = json!({"run_id": "run_1", "choice": "once"});
    assert_eq!(world.refused("/approve", &decided).await, (502, "Hermes cannot be reached".into()));
}

#[tokio::test]
async fn only_a_persons_decisions_are_passed_on() {
    let world = doing(vec![Step::Wait(60_000)]).await;
    let _running = world.post("/delegate", &request("go")).await;
    let run = world.hermes.record()[0].id.clone();
    for body in [
        json!({"run_id": run, "choice": "always"}),
        json!({"run_id": run, "choice": "approve"}),
        json!({"run_id": run}),
        json!({"choice": "once"}),
        json!({"run_id": "", "choice": "once"}),
        json!({"run_id": "a/../b", "choice": "once"}),
        json!({"run_id": ".", "choice": "once"}),
        json!({"run_id": "..", "choice": "once"}),
        json!({"run_id": "x".repeat(257), "choice": "once"}),
        json!({"run_id": run, "request_id": "", "choice": "once"}),
        json!({"run_id": run, "request_id": "a b", "choice": "once"}),
        json!({"run_id": run, "request_id": 7, "choice": "once"}),
    ] {
        assert_eq!(world.refused("/approve", &body).await.0, 400, "{body}");
    }
    assert_eq!(world.hermes.requests("POST /v1/runs/{id}/approval"), 0);
    // Hermes' own answers come through: nothing waits, no such run.
    let response = world.post("/approve", &json!({"run_id": run, "request_id": null, "choice": "deny"})).await;
    assert_eq!(response.status(), 409);
    let said: Value = response.json().await.unwrap();
    assert_eq!(said["error"]["code"], "approval_not_active");
    assert_eq!(world.post("/approve", &json!({"run_id": "run_none", "choice": "once"})).await.status(), 404);
}

#[tokio::test]
async fn a_key_of_ours_that_is_refused_is_not_a_page_without_a_token() {
    let hermes = hermes::Simulator::start(hermes::Options { key: Some(Secret::new("other")), ..Default::default() });
    let hermes = hermes.await.unwrap();
    let vendor = Vendor::good().await;
    let server = Server::bind(Setup {
        listen: "127.0.0.1:0".parse().unwrap(),
        config: Config { openai_url: vendor.url.clone(), ..Config::default() },
        hermes: Hermes::new(&hermes.url(), Secret::new(KEY)).unwrap(),
        openai_key: Secret::new(OPENAI_KEY),
        access_token: None,
    });
    let world = World { server: server.await.unwrap(), hermes, vendor };
    let decided = json!({"run_id": "run_1", "choice": "once"});
    assert_eq!(world.refused("/approve", &decided).await.0, 502);
    assert_eq!(world.refused("/delegate", &request("go")).await.0, 502);
}

#[tokio::test]
async fn a_body_that_is_not_json_or_too_large_is_400() {
    let world = world().await;
    for path in ["/session", "/delegate", "/approve"] {
        for body in ["", "{", "[]", "7", "\u{0}"] {
            let response = world.request(Method::POST, path).body(body).send().await.unwrap();
            assert_eq!(refusal(response).await.0, 400, "{path} {body:?}");
        }
    }
    let body = |bytes: usize| {
        let empty = json!({"hermes_session": "a", "lines": [{"speaker": "user", "text": ""}]}).to_string();
        json!({"hermes_session": "a", "lines": [{"speaker": "user", "text": "x".repeat(bytes - empty.len())}]})
    };
    assert_eq!(world.post("/delegate", &body(256 * 1024)).await.status(), 200);
    let (status, error) = world.refused("/delegate", &body(256 * 1024 + 1)).await;
    assert_eq!((status, error.as_str()), (400, "the body is too large, or was cut off"));
    assert_eq!(world.hermes.record().len(), 1);
}

#[tokio::test]
async fn with_an_access_token_every_api_route_needs_it() {
    let world = world_with(Vendor::good().await, hermes::Options::default(), Config::default(), Some(TOKEN)).await;
    for (method, path) in
        [(Method::GET, "/config"), (Method::POST, "/session"), (Method::POST, "/delegate"), (Method::POST, "/approve")]
    {
        for header in [None, Some(format!("Bearer {TOKEN}x")), Some("Bearer".into()), Some(format!("Basic {TOKEN}"))] {
            let mut request = world.request(method.clone(), path).body("{}");
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            assert_eq!(refusal(request.send().await.unwrap()).await, (401, "access token required".into()));
        }
        // Never in a URL.
        let response = world.request(method.clone(), &format!("{path}?access_token={TOKEN}")).body("{}").send().await;
        assert_eq!(response.unwrap().status(), 401);
        let response = world.request(method, path).bearer_auth(TOKEN).body("{}").send().await.unwrap();
        assert_ne!(response.status(), 401);
    }
    for path in ["/", "/app.js", "/style.css"] {
        assert_eq!(world.get(path).await.status(), 200, "the page asks for the token, so it comes without one");
    }
    // The name it is reached by is the user's affair then.
    let response =
        world.request(Method::GET, "/config").bearer_auth(TOKEN).header("host", "voice.example").send().await;
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn without_a_token_other_names_and_other_sites_are_refused() {
    let world = world().await;
    let port = world.server.local_addr().port();
    for (host, good) in [
        (format!("localhost:{port}"), true),
        (format!("127.0.0.1:{port}"), true),
        ("[::1]:8080".into(), true),
        (format!("evil.example:{port}"), false),
        ("127.0.0.1.evil.example".into(), false),
    ] {
        for path in ["/config", "/"] {
            let response = world.request(Method::GET, path).header("host", &host).send().await.unwrap();
            assert_eq!(response.status().as_u16(), if good { 200 } else { 403 }, "{host} {path}");
        }
    }
    let own = format!("http://127.0.0.1:{port}");
    for (origin, good) in
        [(own.as_str(), true), ("http://evil.example", false), ("null", false), ("http://localhost", false)]
    {
        let sent = world.request(Method::POST, "/delegate").header("origin", origin).json(&request("go")).send().await;
        assert_eq!(sent.unwrap().status().as_u16(), if good { 200 } else { 403 }, "{origin}");
    }
    let sent = world.request(Method::POST, "/delegate").header("sec-fetch-site", "cross-site").json(&request("go"));
    assert_eq!(sent.send().await.unwrap().status(), 403);
    assert_eq!(world.hermes.record().len(), 1);
}

/// Sends a request as it is, and gives what comes until the server closes.
async fn raw(world: &World, request: &str) -> String {
    let mut connection = TcpStream::connect(world.server.local_addr()).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn a_header_that_a_request_is_judged_by_comes_once() {
    for token in [None, Some(TOKEN)] {
        let world = world_with(Vendor::good().await, hermes::Options::default(), Config::default(), token).await;
        let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
        let get = async |more: &str| {
            raw(&world, &format!("GET /config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n")).await
        };
        let once = get(&bearer).await;
        assert!(once.starts_with("HTTP/1.1 200 "), "{once}");
        for twice in ["Host: localhost\r\n", "Host: evil.example\r\n", &bearer, "Authorization: Bearer x\r\n"] {
            let answer = get(&format!("{bearer}{twice}")).await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("more than one"), "{twice}: {answer}");
        }
        for (name, value) in [("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin")] {
            let answer = get(&format!("{bearer}{name}: {value}\r\n{name}: {value}\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{name}: {answer}");
        }
    }
}

#[tokio::test]
async fn connections_that_ask_for_nothing_make_room_and_a_stream_stays() {
    let world = doing(vec![Step::Wait(2_000), complete("Done.")]).await;
    let mut run = world.post("/delegate", &request("go")).await;
    let address = world.server.local_addr();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let asked = Instant::now();
    for path in ["/config", "/"] {
        assert_eq!(timeout(LIMIT, world.get(path)).await.unwrap().status(), 200);
    }
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let mut said = String::new();
    while let Some(piece) = timeout(LIMIT, run.chunk()).await.unwrap().unwrap() {
        said += std::str::from_utf8(&piece).unwrap();
    }
    assert!(said.contains("Done."), "its connection is at work: {said}");
}

#[tokio::test]
async fn every_answer_carries_the_pages_policy() {
    let world = world().await;
    for (method, path, status) in [
        (Method::GET, "/", 200),
        (Method::GET, "/app.js", 200),
        (Method::GET, "/style.css", 200),
        (Method::GET, "/config", 200),
        (Method::GET, "/nothing", 404),
        (Method::DELETE, "/config", 405),
        (Method::GET, "/session", 405),
        (Method::POST, "/approve", 400),
    ] {
        let response = world.request(method, path).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
        let headers = response.headers();
        let policy = headers["content-security-policy"].to_str().unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'));
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["referrer-policy"], "no-referrer");
        assert!(headers["permissions-policy"].to_str().unwrap().contains("microphone=(self)"));
        assert!(headers.get("access-control-allow-origin").is_none());
    }
    let page = world.get("/").await;
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let page = page.text().await.unwrap();
    assert!(!page.contains("http://") || !page.contains("src=\"http"), "nothing of third parties");
    assert_eq!(world.get("/app.js").await.headers()["content-type"], "text/javascript; charset=utf-8");
}

#[tokio::test]
async fn it_listens_beyond_loopback_only_with_a_token() {
    let setup = |listen: &str, token: Option<&str>| Setup {
        listen: listen.parse().unwrap(),
        config: Config::default(),
        hermes: Hermes::new("http://127.0.0.1:1", Secret::new(KEY)).unwrap(),
        openai_key: Secret::new(OPENAI_KEY),
        access_token: token.map(Secret::new),
    };
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:127.0.0.1]:0"] {
        let error = Server::bind(setup(listen, None)).await.unwrap_err();
        assert!(matches!(error, BindError::NotLoopback(_)) && error.to_string().contains("--access-token-file"));
    }
    // Both families, where the machine has them.
    if let Ok(server) = Server::bind(setup("[::]:0", Some(TOKEN))).await {
        let port = server.local_addr().port();
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(server.url(), format!("http://[::1]:{port}/"));
    }
    let taken = Server::bind(setup("127.0.0.1:0", None)).await.unwrap();
    let again = format!("127.0.0.1:{}", taken.local_addr().port());
    assert!(matches!(Server::bind(setup(&again, None)).await, Err(BindError::Listen(..))));
}

#[tokio::test]
async fn it_stops_in_a_bounded_time_and_ends_its_streams() {
    let world = doing(vec![tool("slow", 60_000)]).await;
    let mut response = world.post("/delegate", &request("go")).await;
    let first = timeout(LIMIT, response.chunk()).await.unwrap().unwrap().unwrap();
    assert!(std::str::from_utf8(&first).unwrap().contains("slow"));
    let address = world.server.local_addr();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let before = Instant::now();
    world.server.shutdown().await;
    assert!(before.elapsed() < Duration::from_secs(5));
    let text = timeout(LIMIT, response.text()).await.unwrap();
    assert_eq!(text.unwrap(), "", "the stream ends, it is not cut");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    assert_eq!((world.hermes.record()[0].status, world.hermes.record()[0].stops), ("running", 0), "the run goes on");
    let mut rest = Vec::new();
    let _ = timeout(LIMIT, idle.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn a_session_through_the_server_is_held_by_whoever_asked() {
    let behind = Behind::start(Options::default()).await.unwrap();
    let server = behind.serve(Config::default()).await.unwrap();
    watch_audio::tls::ensure_provider();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mut peer, offer) = rtc::Peer::offer(&rtc::PeerConfig::default()).await.unwrap();
    let history = json!([{"speaker": "user", "text": "hello"}]);
    let body = json!({"sdp": offer, "voice": "gleam", "history": history});
    let url = format!("http://{}/session", server.local_addr());
    let answer: Value = http.post(url).json(&body).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["session_id"], "live_u1_sim0001");
    peer.accept(answer["sdp"].as_str().unwrap()).await.unwrap();

    let mut kinds = Vec::new();
    let wait = async {
        loop {
            match peer.next().await {
                rtc::PeerEvent::Text(text) => {
                    let event: Value = serde_json::from_slice(&text).unwrap();
                    let kind = event["type"].as_str().unwrap().to_owned();
                    if kind == "session.started" {
                        assert_eq!(event["session"]["audio"]["output"]["voice"], "gleam");
                        // The page may not: the session's data channel was made so.
                        peer.send_text(r#"{"type":"session.instructions.append","content":"x","delegation_id":null}"#)
                            .unwrap();
                        peer.send_text(r#"{"type":"session.close"}"#).unwrap();
                    }
                    kinds.push((kind, event["code"].as_str().unwrap_or_default().to_owned()));
                    if kinds.last().unwrap().0 == "session.closed" {
                        break;
                    }
                }
                rtc::PeerEvent::Closed(_) => panic!("{kinds:?}"),
                _ => {}
            }
        }
    };
    timeout(LIMIT, wait).await.unwrap();
    assert!(kinds.contains(&("info".into(), "data_channel_permissions".into())), "{kinds:?}");
    let session = &behind.gpt_live.record()[0];
    assert_eq!((session.status, &session.complaint), (201, &None::<String>));
    assert_eq!(session.request["input"].as_array().unwrap().len(), 1);
    assert_eq!(session.received[0].kind, "session.instructions.append");
    server.shutdown().await;
    behind.shutdown().await;
}
