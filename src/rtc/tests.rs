//! A peer against an answering one in the same process. Other stacks are met in `tests/`.

pub(super) mod wire;

use super::*;
use rtc::peer_connection::transport::RTCDtlsRole;
use webrtc::peer_connection::{PeerConnectionEventHandler, RTCIceGatheringState, SettingEngineBuilder};

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
    let more = timeout(Duration::from_millis(50), peer.next()).await;
    assert!(more.is_err(), "the end is said once, or whoever waits on it would spin");
}

#[tokio::test]
async fn a_dead_stun_server_costs_300_ms() {
    let config = PeerConfig { stun: vec!["stun:192.0.2.77:9".into(), "stun:no.such.name.invalid:3478".into()] };
    let started = Instant::now();
    let (_peer, offer) = Peer::offer(&config).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(offer.contains(" typ host"));
}

#[tokio::test]
async fn sound_and_text_flow_both_ways() {
    let mut call = Connected::new(|answer| answer).await;
    assert_eq!(call.peer.payload_type(), OPUS_PAYLOAD_TYPE);
    for n in 0..20u16 {
        call.peer.send_audio(&[0x48, n as u8], 960 * u32::from(n), n == 0).unwrap();
    }
    let heard = call.engine.heard(20).await;
    for (n, packet) in heard.iter().enumerate() {
        assert_eq!(packet.payload[..], [0x48, n as u8]);
        assert_eq!(packet.sequence, heard[0].sequence.wrapping_add(n as u16));
        assert_eq!(packet.timestamp, 960 * n as u32);
        assert_eq!(packet.marker, n == 0);
    }

    let large = "é".repeat(100_000);
    call.peer.send_text(r#"{"type":"first"}"#).unwrap();
    call.peer.send_text(large.clone()).unwrap();
    assert_eq!(call.text().await, r#"{"type":"first"}"#, "echoed, in order");
    assert_eq!(call.text().await, large, "200 KB each way");
    call.peer.close().await;
    let largest = wire::largest();
    assert!((1_000..=1_200).contains(&largest), "a datagram of {largest} bytes does not fit every path");
}

#[tokio::test]
async fn case_12_every_packet_is_handed_on_with_its_payload_type() {
    let mut call = Connected::new(|answer| answer).await;
    let packets: [&[u8]; 3] = [&[0x48, 1], &[], &[0x48, 2]];
    for (n, payload) in packets.iter().enumerate() {
        call.engine.say(n as u16, payload).await;
    }
    for (n, payload) in packets.iter().enumerate() {
        let packet = call.packet().await;
        assert_eq!((packet.sequence, &packet.payload[..]), (n as u16, *payload));
        assert_eq!(packet.payload_type, OPUS_PAYLOAD_TYPE);
    }
}

#[tokio::test]
async fn case_24_tcp_alone_carries_the_call() {
    let mut call = Connected::new(|answer| without(&answer, " udp ")).await;
    call.peer.send_audio(&[0x48, 7], 0, true).unwrap();
    assert_eq!(call.engine.heard(1).await[0].payload[..], [0x48, 7]);
    call.peer.send_text("x".repeat(200_000)).unwrap();
    assert_eq!(call.text().await.len(), 200_000);
}

#[tokio::test]
async fn the_end_of_the_tcp_connection_that_carries_the_call_is_told_at_once() {
    let mut call = Connected::new(|answer| without(&answer, " udp ")).await;
    call.peer.send_audio(&[0x48, 7], 0, true).unwrap();
    call.engine.heard(1).await;
    let since = Instant::now();
    // As when its process is killed: no word of DTLS, SCTP or ICE.
    drop(call.engine);
    let end = async {
        loop {
            if let PeerEvent::Closed(reason) = call.peer.next().await {
                return reason;
            }
        }
    };
    assert_eq!(timeout(LIMIT, end).await.unwrap(), "the connection to the engine was lost");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}: consent alone takes 30 s", since.elapsed());
}

#[tokio::test]
async fn a_stun_server_that_cannot_be_is_left_out() {
    let stun =
        ["", "stun", "stun:", "http://127.0.0.1", "stun:127.0.0.1:99999", "stun://127.0.0.1:9", "turn:127.0.0.1:9"];
    let config = PeerConfig { stun: stun.map(str::to_owned).to_vec() };
    let (_peer, offer) = Peer::offer(&config).await.unwrap();
    assert!(offer.contains(" typ host"));
}

#[tokio::test]
async fn case_25_the_other_side_may_choose_either_dtls_role_or_none() {
    // What the engine plays is what it says first; the crate answers `active`.
    for said in ["a=setup:active", "a=setup:actpass", ""] {
        let mut call = Connected::new(|answer| answer.replace("a=setup:active", said)).await;
        call.peer.close().await;
    }
}

#[tokio::test]
async fn case_25_we_start_dtls_when_the_other_side_waits() {
    let (mut peer, offer) = Peer::offer(&PeerConfig::default()).await.unwrap();
    let passive = settings().with_answering_dtls_role(RTCDtlsRole::Server);
    let (engine, answer) = Engine::answer_with(&offer, passive).await;
    assert!(answer.contains("a=setup:passive\r\n"));
    peer.accept(&answer).await.unwrap();
    let mut call = Connected { peer, engine };
    assert_eq!(call.text().await, "started");
}

#[tokio::test]
async fn sound_that_nobody_takes_is_dropped_the_oldest_first() {
    let mut call = Connected::new(|answer| answer).await;
    for n in 0..150 {
        call.engine.say(n, &[0x48]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let first = call.packet().await.sequence;
    assert!(first >= 22, "{first}: a power of two above {AUDIO_QUEUE} is kept");
    assert_eq!(call.peer.audio_dropped(), u64::from(first));
    for n in first + 1..150 {
        assert_eq!(call.packet().await.sequence, n);
    }
}

#[tokio::test]
async fn case_21_and_23_unusable_candidates_do_no_harm() {
    let extra = "a=candidate:9 1 udp 99 2001:db8::1 9 typ host\r\n\
                 a=candidate:8 1 udp 98 9d3d7e6e-4785-4c4b.local 52743 typ host\r\n\
                 a=candidate:7 1 udp nonsense 127.0.0.1 9 typ host\r\na=candidate:\r\n\
                 a=candidate:6 1 udp 97 203.0.113.9 3478 typ host ufrag a/b/c\r\na=mid:0\r\n";
    let mut call = Connected::new(|answer| answer.replace("a=mid:0\r\n", extra)).await;
    call.peer.close().await;
}

/// 97 is an address family that is not there, 101 a network.
#[tokio::test]
async fn case_21_an_address_that_cannot_be_sent_to_fails_alone() {
    let dead: String =
        [97, 101].map(|errno| format!("a=candidate:{errno} 1 udp 2130706431 127.0.0.{errno} 9 typ host\r\n")).concat();
    let mut call = Connected::new(|answer| answer.replacen("a=mid:0\r\n", &format!("{dead}a=mid:0\r\n"), 1)).await;
    let tried = |address: &str| wire::refused().contains(&address.parse().unwrap());
    assert!(tried("127.0.0.97:9") && tried("127.0.0.101:9"));
    call.peer.send_audio(&[0x48, 7], 0, true).unwrap();
    assert_eq!(call.engine.heard(1).await[0].payload[..], [0x48, 7]);
    call.peer.close().await;
}

#[tokio::test]
async fn case_28_text_around_the_opening_is_kept() {
    let (mut peer, offer) = Peer::offer(&PeerConfig::default()).await.unwrap();
    for n in 0..TEXT_QUEUE {
        peer.send_text(format!("{n}")).unwrap();
    }
    assert_eq!(peer.send_text("one too many"), Err(PeerError::Text));
    let (engine, answer) = Engine::answer(&offer).await;
    peer.accept(&answer).await.unwrap();
    let mut call = Connected { peer, engine };
    assert_eq!(call.text().await, "started", "sent by the engine the moment it saw the channel");
    for n in 1..TEXT_QUEUE {
        assert_eq!(call.text().await, format!("{n}"), "only the oldest is gone");
    }
    assert_eq!(call.text().await, "one too many");
}

#[tokio::test]
async fn held_text_is_not_lost_and_sound_goes_on() {
    let mut call = Connected::new(|answer| answer).await;
    call.peer.hold_text(true);
    for n in 0..1_000 {
        call.engine.send(format!("{n}")).await;
    }
    call.engine.say(5, &[0x48]).await;
    assert_eq!(call.packet().await.sequence, 5);
    call.peer.hold_text(false);
    for n in 0..1_000 {
        assert_eq!(call.text().await, format!("{n}"));
    }
}

#[tokio::test]
async fn what_is_no_text_is_ignored() {
    let mut call = Connected::new(|answer| answer).await;
    let channel = call.engine.channel.borrow().clone().unwrap();
    channel.send(b"bytes, though they read as text"[..].into()).await.unwrap();
    call.engine.send("text".into()).await;
    assert_eq!(call.text().await, "text");
}

#[tokio::test]
async fn a_closed_channel_is_the_hang_up() {
    let mut call = Connected::new(|answer| answer).await;
    call.engine.hang_up().await;
    assert_eq!(call.end().await, "the engine hung up");
    assert_eq!(call.peer.send_text("late"), Err(PeerError::Closed));
}

fn without(answer: &str, what: &str) -> String {
    answer.split_inclusive('\n').filter(|line| !(line.starts_with("a=candidate:") && line.contains(what))).collect()
}

/// A peer of ours in a call with an engine.
struct Connected {
    peer: Peer,
    engine: Engine,
}

impl Connected {
    async fn new(change: impl Fn(String) -> String) -> Self {
        let (mut peer, offer) = Box::pin(Peer::offer(&PeerConfig::default())).await.unwrap();
        let (engine, answer) = Box::pin(Engine::answer(&offer)).await;
        peer.accept(&change(answer)).await.unwrap();
        let mut call = Self { peer, engine };
        let mut connected = false;
        while !connected || call.text().await != "started" {
            connected |= matches!(call.event().await, PeerEvent::Connected);
        }
        call
    }

    async fn event(&mut self) -> PeerEvent {
        timeout(LIMIT, self.peer.next()).await.expect("an event within the limit")
    }

    async fn text(&mut self) -> String {
        loop {
            match self.event().await {
                PeerEvent::Text(text) => return String::from_utf8(text.into()).unwrap(),
                PeerEvent::Closed(reason) => panic!("{reason}"),
                _ => {}
            }
        }
    }

    async fn packet(&mut self) -> Rtp {
        loop {
            match self.event().await {
                PeerEvent::Rtp(packet) => return packet,
                PeerEvent::Closed(reason) => panic!("{reason}"),
                _ => {}
            }
        }
    }

    async fn end(&mut self) -> &'static str {
        loop {
            if let PeerEvent::Closed(reason) = self.event().await {
                return reason;
            }
        }
    }
}

/// The answering side: says "started" when it sees the channel, echoes every text.
struct Engine {
    connection: Arc<dyn PeerConnection>,
    track: Arc<TrackLocalStaticRTP>,
    channel: watch::Receiver<Option<Arc<dyn DataChannel>>>,
    heard: broadcast::Receiver<Rtp>,
    _tasks: Tasks,
}

struct EngineHandler {
    runtime: Arc<PeerRuntime>,
    gathered: watch::Sender<bool>,
    channel: watch::Sender<Option<Arc<dyn DataChannel>>>,
}

impl Engine {
    async fn answer(offer: &str) -> (Self, String) {
        Self::answer_with(offer, settings()).await
    }

    async fn answer_with(offer: &str, settings: SettingEngineBuilder) -> (Self, String) {
        let consent = Arc::new(Consent::new().unwrap());
        let runtime = Arc::new(PeerRuntime::listening(consent));
        let tasks = Tasks(Arc::clone(&runtime));
        let (gathered, mut gathered_rx) = watch::channel(false);
        let (channel, channel_rx) = watch::channel(None);
        let (heard, heard_rx) = broadcast::channel(1_000);
        let handler = Arc::new(EngineHandler { runtime: Arc::clone(&runtime), gathered, channel });
        let addresses = ["127.0.0.1:0".parse().unwrap()];
        let config = PeerConfig::default();
        let connection = connection(&config, &addresses, runtime, handler, heard, settings.build());
        let connection = Box::pin(connection).await.unwrap();
        let track = Arc::new(TrackLocalStaticRTP::new(microphone(7)));
        connection.add_track(Arc::clone(&track) as Arc<dyn TrackLocal>).await.unwrap();
        connection.set_remote_description(RTCSessionDescription::offer(offer.to_owned()).unwrap()).await.unwrap();
        let answer = connection.create_answer(None).await.unwrap();
        connection.set_local_description(answer).await.unwrap();
        timeout(LIMIT, gathered_rx.wait_for(|gathered| *gathered)).await.unwrap().unwrap();
        let answer = connection.local_description().await.unwrap().sdp;
        (Self { connection, track, channel: channel_rx, heard: heard_rx, _tasks: tasks }, answer)
    }

    async fn say(&self, sequence_number: u16, payload: &[u8]) {
        let header = rtp::header::Header {
            version: 2,
            payload_type: OPUS_PAYLOAD_TYPE,
            sequence_number,
            ssrc: 7,
            ..Default::default()
        };
        self.track.write_rtp(rtp::Packet { header, payload: payload.to_vec().into() }).await.unwrap();
    }

    async fn heard(&mut self, packets: usize) -> Vec<Rtp> {
        let mut heard = Vec::new();
        while heard.len() < packets {
            heard.push(timeout(LIMIT, self.heard.recv()).await.unwrap().unwrap());
        }
        heard
    }

    async fn send(&mut self, text: String) {
        let channel = timeout(LIMIT, self.channel.wait_for(Option::is_some)).await.unwrap().unwrap().clone();
        channel.unwrap().send_text(&text).await.unwrap();
    }

    async fn hang_up(&mut self) {
        let channel = self.channel.borrow().clone();
        if let Some(channel) = channel {
            let _ = channel.close().await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.connection.close().await.unwrap();
    }
}

#[async_trait::async_trait]
impl PeerConnectionEventHandler for EngineHandler {
    async fn on_ice_gathering_state_change(&self, state: RTCIceGatheringState) {
        self.gathered.send_replace(state == RTCIceGatheringState::Complete);
    }

    async fn on_data_channel(&self, channel: Arc<dyn DataChannel>) {
        self.channel.send_replace(Some(Arc::clone(&channel)));
        let echo = async move {
            channel.send_text("started").await.unwrap();
            while let Some(event) = channel.poll().await {
                if let DataChannelEvent::OnMessage(message) = event {
                    let text = String::from_utf8(message.data.to_vec()).unwrap();
                    if channel.send_text(&text).await.is_err() {
                        return;
                    }
                }
            }
        };
        self.runtime.spawn(Box::pin(echo)).detach();
    }
}

const LIMIT: Duration = Duration::from_secs(20);
