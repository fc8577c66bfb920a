//! Creating a session, and being refused.

use super::*;

#[tokio::test]
async fn requests_are_refused_for_what_is_wrong_with_them() {
    let simulator = Simulator::start(quick()).await.unwrap();
    let (mut peer, offer) = rtc::Peer::offer(&rtc::PeerConfig::default()).await.unwrap();
    let good = json!({"session": {"model": "gpt-live-1"}, "transport": {"type": "webrtc", "sdp": offer}});
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 6] = [
        (|body| body["session"]["type"] = json!("quicksilver"), "session.type"),
        (|body| body["session"]["model"] = json!("gpt-live-9"), "no such model"),
        (|body| body["session"]["audio"] = json!({"output": {"voice": "cove"}}), "voice"),
        (
            |body| body["session"]["input"] = json!([{"type": "message", "role": "user", "content": []}]),
            "one content part",
        ),
        (|body| body["transport"]["type"] = json!("websocket"), "webrtc"),
        (|body| body["transport"]["sdp"] = json!(body["transport"]["sdp"].as_str().unwrap().trim_end()), "line break"),
    ];
    for (change, complaint) in changes {
        let mut body = good.clone();
        change(&mut body);
        let (status, answer) = post(&simulator.url(), &body).await;
        assert_eq!(status, 400);
        assert!(answer.contains(complaint), "{answer}");
    }
    peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_second_dialect_is_refused_by_its_own_rules() {
    // Only the first of several tests installs it.
    watch_audio::tls::ensure_provider();
    let simulator = Simulator::start(quick()).await.unwrap();
    let url = format!("{}/backend-api/codex/realtime/calls", simulator.url());
    let (mut peer, offer) = rtc::Peer::offer(&rtc::PeerConfig::default()).await.unwrap();
    let headers = [
        ("authorization", "Bearer token"),
        ("chatgpt-account-id", "account"),
        ("openai-alpha", "quicksilver=v2"),
        ("session-id", "1"),
        ("x-session-id", "2"),
        ("thread-id", "3"),
        ("originator", "test"),
    ];
    let query = "intent=quicksilver&architecture=avas";
    let good = json!({"sdp": offer, "session": {"model": "gpt-live-1-codex", "audio": {"output": {"voice": "cove"}}}});
    let ask = async |query: &str, left_out: &str, body: &Value| {
        let mut request = reqwest::Client::new().post(format!("{url}?{query}")).json(body);
        for (name, value) in headers.iter().filter(|(name, _)| *name != left_out) {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    };
    let answer = ask(query, "", &good).await;
    assert_eq!(answer.status(), 201);
    assert_eq!(answer.headers()["location"], "/v1/realtime/calls/rtc_u0_sim0001");
    assert!(answer.text().await.unwrap().starts_with("v=0\r\n"));
    let mut voice = good.clone();
    voice["session"]["audio"]["output"]["voice"] = json!("marin");
    let mut kind = good.clone();
    kind["session"]["type"] = json!("quicksilver");
    let cases = [
        ("architecture=avas&intent=quicksilver", "", &good, 400),
        (query, "authorization", &good, 401),
        (query, "openai-alpha", &good, 403),
        (query, "thread-id", &good, 400),
        (query, "", &voice, 403),
        (query, "", &kind, 400),
    ];
    for (query, left_out, body, status) in cases {
        assert_eq!(ask(query, left_out, body).await.status(), status, "{query} without {left_out:?}");
    }
    assert!(!format!("{:?}", simulator.record()).contains("token"));
    peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn any_status_can_be_had_and_only_the_known_bearer_comes_in() {
    let body = json!({});
    for status in [401, 403, 429, 500] {
        let faults = Faults { http_status: Some(status), ..Faults::default() };
        let simulator = Simulator::start(Options { faults, ..quick() }).await.unwrap();
        assert_eq!(post(&simulator.url(), &body).await.0, status);
        assert_eq!(simulator.record()[0].status, status);
        simulator.shutdown().await;
    }
    let simulator = Simulator::start(Options { bearer: Some(Secret::new("another")), ..quick() }).await.unwrap();
    assert_eq!(post(&simulator.url(), &body).await.0, 401);
    simulator.shutdown().await;
}

#[test]
fn options_are_read_from_json() {
    let options: Options = serde_json::from_value(json!({
        "timing": {"answer_ms": 5}, "faults": {"udp": "dead", "at": [{"after_ms": 3000, "what": "vanish"},
        {"after_ms": 10, "what": {"text": "x"}}]}, "network": {"down": {"loss": {"random": 0.05}, "jitter_ms": 60.0}}}))
    .unwrap();
    assert_eq!(options.timing.answer_ms, 5);
    assert_eq!(options.faults.udp, Path::Dead);
    assert!(matches!(options.faults.at[0].what, What::Vanish));
    assert!(serde_json::from_value::<Options>(json!({"fault": {}})).is_err());
}
