//! A peer against a second stack in the same process. Other stacks are met in `tests/interop`.

use super::*;

#[tokio::test]
async fn the_offer_is_what_the_engine_wants() {
    let started = Instant::now();
    let (mut peer, offer) = Peer::offer(&PeerConfig::default()).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    for line in
        ["a=rtpmap:111 opus/48000/2", "a=setup:actpass", "a=sendrecv", "a=rtcp-mux", "a=max-message-size:262144"]
    {
        assert!(offer.contains(&format!("{line}\r\n")), "{line}");
    }
    assert!(offer.ends_with("\r\n"));
    assert!(offer.contains("a=candidate:") && offer.contains(" 127.0.0.1 "));
    assert!(!offer.contains("rtcp-fb") && !offer.contains("m=video") && !offer.contains("passive"));
    assert_eq!(offer.lines().filter(|line| line.starts_with("m=")).count(), 2);
    peer.close().await;
    peer.close().await;
    assert!(matches!(peer.next().await, PeerEvent::Closed("closed")));
}

#[tokio::test]
async fn a_dead_stun_server_costs_300_ms() {
    let config = PeerConfig { stun: vec!["stun:192.0.2.77:9".into(), "stun:no.such.name.invalid:3478".into()] };
    let started = Instant::now();
    let (_peer, offer) = Peer::offer(&config).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(offer.contains(" typ host"));
}
