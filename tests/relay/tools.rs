//! `/v1/watch-tools/`: grants and tool calls.

use std::time::{Duration, Instant};

use serde_json::json;
use watch_audio::relay::client::{ClientError, Host, NewGrant, Watch};
use watch_audio::relay::{Limits, RelayUrl};
use watch_audio::seal::{Root, tools};
use watch_audio::secret::Secret;

use crate::support::*;

#[tokio::test]
async fn a_grant_is_opened() {
    let relay = relay().await;
    let reply = relay.open(terms(60, 1, true)).await;
    assert_eq!((reply.status, reply.no_store), (201, true));
    assert_eq!(reply.body["grant_id"].as_str().unwrap().len(), 22);
    assert_eq!(reply.body["call_wait_ms"], 25_000);
    assert_eq!(reply.body["audio"], true);
    let expires = reply.body["expires_at"].as_str().unwrap();
    assert!(expires.len() == 20 && expires.ends_with('Z') && expires.contains('T'), "{expires}");

    let mut without_audio = terms(1_800, 120, true);
    without_audio.as_object_mut().unwrap().remove("audio");
    assert_eq!(relay.open(without_audio).await.body["audio"], false);
}

#[tokio::test]
async fn an_invalid_grant_is_refused() {
    let relay = relay_with(Limits { grant_rate: 100, ..Limits::default() }).await;
    let mut short_hash = terms(60, 1, true);
    short_hash["watch_key_sha256"] = json!("ab");
    let mut huge = terms(60, 1, true);
    huge["more"] = json!("x".repeat(5_000));
    let bad = [terms(59, 1, true), terms(1_801, 1, true), terms(60, 0, true), terms(60, 121, true), short_hash, huge];
    for body in bad.into_iter().chain([json!({}), json!(null), json!({ "ttl_s": "60" })]) {
        assert_eq!(relay.open(body.clone()).await.refusal(), (400, "invalid_grant"), "{body}");
    }
}

#[tokio::test]
async fn a_grant_needs_a_gateways_credential() {
    let relay = relay().await;
    for bearer in ["", "wrong", WATCH] {
        let reply = relay.request("POST", "/v1/watch-tools/grants", bearer, Some(terms(60, 1, true))).await;
        assert_eq!(reply.refusal(), (401, "unauthorized"));
    }
}

#[tokio::test]
async fn a_full_relay_has_no_grant_left_but_a_full_gateway_gives_up_its_oldest() {
    let relay = relay_with(Limits { grants_per_gateway: 2, grants_per_relay: 3, ..Limits::default() }).await;
    let (oldest, second) = (relay.grant().await, relay.grant().await);
    let mut host = relay.host(&oldest).await;
    let third = relay.grant().await;
    assert_eq!(host.closed().await, 4010);
    assert_eq!(relay.poll(&oldest, 0).await.refusal(), (410, "grant_closed"));
    assert_eq!((relay.poll(&second, 0).await.status, relay.poll(&third, 0).await.status), (200, 200));

    let other = |body| relay.request("POST", "/v1/watch-tools/grants", OTHER_HOST, Some(body));
    assert_eq!(other(terms(60, 1, true)).await.status, 201);
    assert_eq!(other(terms(60, 1, true)).await.refusal(), (503, "watch_grant_capacity"));
}

#[tokio::test]
async fn grants_are_12_a_minute_per_gateway() {
    let relay = relay().await;
    for _ in 0..12 {
        relay.grant().await;
    }
    assert_eq!(relay.open(terms(60, 1, true)).await.refusal(), (429, "rate_limited"));
    let other = relay.request("POST", "/v1/watch-tools/grants", OTHER_HOST, Some(terms(60, 1, true))).await;
    assert_eq!(other.status, 201);
}

#[tokio::test]
async fn a_call_is_held_until_the_host_answers() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let host = async {
        let polled = relay.poll(&grant, 20_000).await;
        assert_eq!((polled.status, polled.no_store), (200, true));
        assert_eq!(polled.body, json!({ "calls": [call(&rid(1))] }));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let delivered = relay.result(&grant, &rid(1)).await;
        assert_eq!((delivered.status, delivered.body), (200, json!({ "status": "delivered" })));
        assert_eq!(relay.result(&grant, &rid(1)).await.refusal(), (404, "unknown_call"), "answered once");
    };
    let watch = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        relay.call(&grant, &rid(1)).await
    };
    let ((), reply) = tokio::join!(host, watch);
    assert_eq!((reply.status, reply.no_store, reply.body), (200, true, sealed(30)));
    assert_eq!(relay.call(&grant, &rid(1)).await.refusal(), (409, "duplicate_call"));
}

#[tokio::test]
async fn an_invalid_call_is_refused() {
    let relay = relay_with(Limits { call_wait: Duration::from_millis(50), ..Limits::default() }).await;
    let grant = relay.grant().await;
    let path = format!("/v1/watch-tools/grants/{grant}/calls");
    let with = |name: &str, value: &str| {
        let mut body = call(&rid(1));
        body[name] = json!(value);
        body
    };
    let bad = [
        json!({}),
        with("rid", "short"),
        with("rid", &"/".repeat(22)),
        with("n", "short"),
        with("ct", &"c".repeat(21)),
        with("ct", &"c".repeat(5_484)),
        with("ct", &"c".repeat(100_000)),
        with("ct", &"=".repeat(30)),
    ];
    for body in bad {
        let reply = relay.request("POST", &path, WATCH, Some(body)).await;
        assert_eq!(reply.refusal(), (400, "invalid_call"));
    }
    for (n, length) in [22, 5_483].into_iter().enumerate() {
        let mut body = call(&rid(n));
        body["ct"] = json!("c".repeat(length));
        assert_eq!(relay.request("POST", &path, WATCH, Some(body)).await.refusal(), (504, "host_timeout"));
    }
}

#[tokio::test]
async fn a_call_needs_the_watchs_key_and_nothing_tells_whether_a_grant_is_there() {
    let relay = relay().await;
    let grant = relay.grant().await;
    for (id, bearer) in [(grant.as_str(), "wrong"), (&grant, HOST), (&rid(0), WATCH), ("odd", WATCH)] {
        let reply =
            relay.request("POST", &format!("/v1/watch-tools/grants/{id}/calls"), bearer, Some(call(&rid(1)))).await;
        assert_eq!(reply.refusal(), (401, "unauthorized"));
    }
}

#[tokio::test]
async fn a_grant_has_so_many_calls() {
    let relay = relay_with(Limits { call_wait: Duration::from_millis(20), ..Limits::default() }).await;
    let reply = relay.open(terms(60, 2, false)).await;
    let grant = reply.body["grant_id"].as_str().unwrap();
    for n in 0..2 {
        assert_eq!(relay.call(grant, &rid(n)).await.refusal(), (504, "host_timeout"));
    }
    assert_eq!(relay.call(grant, &rid(2)).await.refusal(), (429, "grant_exhausted"));
}

#[tokio::test]
async fn two_calls_wait_at_once() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let (one, two) = (rid(1), rid(2));
    let third = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let third = relay.call(&grant, &rid(3)).await;
        assert_eq!(third.refusal(), (429, "too_many_calls"));
        assert_eq!(relay.poll(&grant, 0).await.body["calls"].as_array().unwrap().len(), 2);
        relay.delete(&grant, HOST).await
    };
    let (one, two, third) = tokio::join!(relay.call(&grant, &one), relay.call(&grant, &two), third);
    assert_eq!(third, 204);
    assert_eq!((one.refusal(), two.refusal()), ((410, "grant_closed"), (410, "grant_closed")), "waiting calls end");
}

#[tokio::test]
async fn a_call_of_a_host_that_does_not_poll_is_refused_or_times_out() {
    let limits =
        Limits { call_wait: Duration::from_millis(100), host_offline: Duration::from_secs(3), ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant().await;
    assert_eq!(relay.call(&grant, &rid(1)).await.refusal(), (504, "host_timeout"));
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    assert_eq!(relay.call(&grant, &rid(2)).await.refusal(), (503, "host_offline"));
    relay.poll(&grant, 0).await;
    assert_eq!(relay.call(&grant, &rid(2)).await.refusal(), (504, "host_timeout"));
}

#[tokio::test]
async fn calls_are_limited_per_grant_and_per_address_before_their_body_is_read() {
    let limits = Limits { call_rate: 3, call_address_rate: 8, ..Limits::default() };
    let relay = relay_with(limits).await;
    let (grant, other) = (relay.grant().await, relay.grant().await);
    let path = format!("/v1/watch-tools/grants/{grant}/calls");
    for _ in 0..2 {
        let reply = relay.request("POST", &path, "wrong", Some(json!({}))).await;
        assert_eq!(reply.refusal(), (401, "unauthorized"), "the key comes before the body and the grant's rate");
    }
    for _ in 0..3 {
        assert_eq!(relay.request("POST", &path, WATCH, Some(json!({}))).await.refusal(), (400, "invalid_call"));
    }
    let reply = relay.request("POST", &path, WATCH, Some(json!({}))).await;
    assert_eq!(reply.refusal(), (429, "rate_limited"));
    let path = format!("/v1/watch-tools/grants/{other}/calls");
    for expected in [400, 400, 429] {
        assert_eq!(relay.request("POST", &path, WATCH, Some(json!({}))).await.status, expected, "8 per address");
    }
}

#[tokio::test]
async fn a_poll_is_held_as_long_as_it_asks_and_no_longer_than_the_limit() {
    let relay = relay_with(Limits { poll_wait: Duration::from_millis(600), ..Limits::default() }).await;
    let grant = relay.grant().await;
    for (query, at_least) in [("?wait_ms=0", 0), ("?wait_ms=300", 300), ("?wait_ms=99999999", 600), ("", 600)] {
        let start = Instant::now();
        let reply = relay.request("GET", &format!("/v1/watch-tools/grants/{grant}/calls{query}"), HOST, None).await;
        assert_eq!((reply.status, reply.body), (200, json!({ "calls": [] })));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(at_least) && took < LIMIT, "{query}: {took:?}");
    }
}

#[tokio::test]
async fn a_newer_poll_ends_the_older_with_an_empty_list() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let newer = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        relay.poll(&grant, 300).await
    };
    let start = Instant::now();
    let (older, _) = tokio::join!(relay.poll(&grant, 25_000), newer);
    assert_eq!((older.status, older.body), (200, json!({ "calls": [] })));
    assert!(start.elapsed() < LIMIT);
}

#[tokio::test]
async fn polls_and_results_are_the_gateways_own_and_end_with_the_grant() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let calls = format!("/v1/watch-tools/grants/{grant}/calls");
    let result = format!("/v1/watch-tools/grants/{grant}/results/{}", rid(1));
    for (bearer, refusal) in [("wrong", (401, "unauthorized")), (WATCH, (401, "unauthorized"))] {
        assert_eq!(relay.request("GET", &calls, bearer, None).await.refusal(), refusal);
        assert_eq!(relay.request("POST", &result, bearer, Some(sealed(30))).await.refusal(), refusal);
    }
    let closed = (410, "grant_closed");
    assert_eq!(relay.request("GET", &calls, OTHER_HOST, None).await.refusal(), closed);
    assert_eq!(relay.request("POST", &result, OTHER_HOST, Some(sealed(30))).await.refusal(), closed);

    let close = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        relay.delete(&grant, HOST).await
    };
    let (poll, _) = tokio::join!(relay.poll(&grant, 25_000), close);
    assert_eq!(poll.refusal(), closed, "a poll in wait ends");
    assert_eq!(relay.result(&grant, &rid(1)).await.refusal(), closed);
    assert_eq!(relay.poll(&rid(0), 0).await.refusal(), closed);
}

#[tokio::test]
async fn polls_are_240_and_results_120_a_minute() {
    let relay = relay().await;
    let grant = relay.grant().await;
    for _ in 0..240 {
        assert_eq!(relay.poll(&grant, 0).await.status, 200);
    }
    assert_eq!(relay.poll(&grant, 0).await.refusal(), (429, "rate_limited"));
    for _ in 0..120 {
        assert_eq!(relay.result(&grant, &rid(1)).await.refusal(), (404, "unknown_call"));
    }
    assert_eq!(relay.result(&grant, &rid(1)).await.refusal(), (429, "rate_limited"));
}

#[tokio::test]
async fn an_invalid_result_is_refused() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let path = format!("/v1/watch-tools/grants/{grant}/results/{}", rid(1));
    for body in [json!({}), sealed(21), sealed(24_001), sealed(100_000), json!({ "n": "n", "ct": "c".repeat(30) })] {
        let reply = relay.request("POST", &path, HOST, Some(body)).await;
        assert_eq!(reply.refusal(), (400, "invalid_result"));
    }
    for length in [22, 24_000] {
        let reply = relay.request("POST", &path, HOST, Some(sealed(length))).await;
        assert_eq!(reply.refusal(), (404, "unknown_call"));
    }
}

#[tokio::test]
async fn either_side_closes_a_grant_and_the_answer_is_always_the_same() {
    let relay = relay().await;
    let (one, two) = (relay.grant().await, relay.grant().await);
    for (grant, bearer) in [(one.as_str(), "wrong"), (&one, ""), (&one, OTHER_HOST), (&rid(0), HOST), ("odd", HOST)] {
        assert_eq!(relay.delete(grant, bearer).await, 204);
    }
    assert_eq!(relay.poll(&one, 0).await.status, 200, "none of these closed it");
    for (grant, bearer) in [(&one, HOST), (&two, WATCH)] {
        let mut host = relay.host(grant).await;
        assert_eq!((relay.delete(grant, bearer).await, relay.delete(grant, bearer).await), (204, 204));
        assert_eq!(host.closed().await, 4010);
        assert_eq!(relay.call(grant, &rid(1)).await.refusal(), (410, "grant_closed"));
    }
}

#[tokio::test]
async fn a_grant_that_is_over_ends_its_calls() {
    let limits = Limits { shortest_grant: Duration::from_secs(1), ..Limits::default() };
    let relay = relay_with(limits).await;
    let grant = relay.grant_of(1).await;
    assert_eq!(relay.call(&grant, &rid(1)).await.refusal(), (410, "grant_closed"), "it waited, then the grant ended");
    assert_eq!(relay.call(&grant, &rid(2)).await.refusal(), (410, "grant_closed"));
}

#[tokio::test]
async fn a_host_and_a_watch_call_a_tool_through_it() {
    let relay = relay_with(Limits { call_wait: Duration::from_secs(2), ..Limits::default() }).await;
    let url = RelayUrl::parse(&format!("http://{}", relay.address())).unwrap();
    let host = Host::new(url.clone(), Secret::new(HOST)).unwrap();
    let grant = NewGrant { watch_key: Secret::new(WATCH), life: Duration::from_secs(60), max_calls: 2, audio: true };
    let open = host.create_grant(&grant).await.unwrap();
    assert!(open.audio && open.call_wait_ms == 2_000);
    let root = Root::random();
    let watch = Watch::new(url.clone(), open.id.clone(), root.clone(), Secret::new(WATCH)).unwrap();

    let serve = async {
        let calls = host.poll_calls(&open.id, LIMIT).await.unwrap();
        let [call] = &calls[..] else { panic!("{calls:?}") };
        let plain = tools::open_call(&root, &open.id, &call.rid, &call.sealed).unwrap();
        assert_eq!(plain, br#"{"tool":"web_search","args":{}}"#);
        let sealed = tools::seal_result(&root, &open.id, &call.rid, br#"{"ok":true}"#).unwrap();
        host.post_result(&open.id, &call.rid, &sealed).await.unwrap();
    };
    let (result, ()) = tokio::join!(watch.call_tool(br#"{"tool":"web_search","args":{}}"#), serve);
    assert_eq!(result.unwrap(), br#"{"ok":true}"#);

    let error = watch.call_tool(b"{}").await.unwrap_err();
    assert!(matches!(&error, ClientError::Refused { status: 504, code } if code == "host_timeout"), "{error}");
    host.close_grant(&open.id).await.unwrap();
    let error = host.poll_calls(&open.id, Duration::ZERO).await.unwrap_err();
    assert!(matches!(&error, ClientError::Refused { status: 410, code } if code == "grant_closed"), "{error}");

    relay.server.shutdown().await;
    let error = host.create_grant(&grant).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable(_)));
    assert!(!format!("{error:?}").contains("watch-tools"), "the URL stays out of it: {error:?}");
}
