//! The simulator against the real peer of the process: two independent stacks meet.

use std::time::Duration;

use serde_json::{Value, json};
use watch_audio::rtc;
use watch_audio_media::codec::{Decode, Encode};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings};
use watch_audio_media::pcm::peak;

use super::*;

use crate::sim::script::{Turn, Utterance};

/// A caller: a peer, a microphone that never stops, and what came of it.
struct Caller {
    peer: rtc::Peer,
    encoder: Encoder,
    decoder: Decoder,
    timestamp: u32,
    next: tokio::time::Instant,
    /// Voice still to be sent, in 20 ms frames.
    voice: u32,
    events: Vec<Value>,
    audio: Vec<i16>,
    rtp: Vec<rtc::Rtp>,
    over: bool,
}

impl Caller {
    async fn call(simulator: &Simulator) -> Self {
        let (mut peer, offer) = rtc::Peer::offer(&rtc::PeerConfig::default()).await.unwrap();
        let body = json!({"session": {"model": "gpt-live-1", "delegation": {"type": "client"}},
                          "transport": {"type": "webrtc", "sdp": offer}});
        let (status, answer) = post(&simulator.url(), &body).await;
        assert_eq!(status, 201, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        peer.accept(answer["transport"]["sdp"].as_str().unwrap()).await.unwrap();
        Self::new(peer)
    }

    fn new(peer: rtc::Peer) -> Self {
        Self {
            peer,
            encoder: Encoder::new(16_000, &EncoderSettings::voice()).unwrap(),
            decoder: Decoder::new(24_000).unwrap(),
            timestamp: 0,
            next: tokio::time::Instant::now(),
            voice: 0,
            events: Vec::new(),
            audio: Vec::new(),
            rtp: Vec::new(),
            over: false,
        }
    }

    /// Runs the call until something is so.
    async fn until(&mut self, what: &str, limit: u64, done: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(limit);
        while !done(self) {
            tokio::select! {
                event = self.peer.next(), if !self.over => self.take(event),
                () = tokio::time::sleep_until(self.next) => self.speak(),
                () = tokio::time::sleep_until(deadline) => panic!("{what}: not within {limit} s; {:?}", self.kinds()),
            }
        }
    }

    async fn run(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        self.until("time passes", 60, |_| tokio::time::Instant::now() >= end).await;
    }

    fn take(&mut self, event: rtc::PeerEvent) {
        match event {
            rtc::PeerEvent::Rtp(rtp) => {
                if !rtp.payload.is_empty() {
                    self.decoder.decode(&rtp.payload, &mut self.audio).unwrap();
                }
                self.rtp.push(rtp);
            }
            rtc::PeerEvent::Text(text) => {
                self.events.push(serde_json::from_slice(&text).unwrap_or(Value::Null));
            }
            rtc::PeerEvent::Closed(_) => self.over = true,
            _ => {}
        }
    }

    fn speak(&mut self) {
        self.next += Duration::from_millis(20);
        let voiced = self.voice > 0;
        self.voice = self.voice.saturating_sub(1);
        let tone = |n: u32| ((f64::from(n) * std::f64::consts::TAU * 300.0 / 16_000.0).sin() * 9_000.0) as i16;
        let pcm: Vec<i16> = (0..320).map(|n| if voiced { tone(n) } else { 0 }).collect();
        let mut packet = Vec::new();
        self.encoder.encode(&pcm, &mut packet).unwrap();
        // Before the peer is connected there is nowhere to send to.
        let _ = self.peer.send_audio(&packet, self.timestamp, false);
        self.timestamp = self.timestamp.wrapping_add(960);
    }

    fn send(&self, event: Value) {
        self.peer.send_text(event.to_string()).unwrap();
    }

    fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event["type"].as_str().unwrap_or("?")).collect()
    }

    fn has(&self, kind: &str) -> bool {
        self.kinds().contains(&kind)
    }

    fn event(&self, kind: &str) -> &Value {
        self.events.iter().find(|event| event["type"] == kind).unwrap()
    }
}

async fn post(url: &str, body: &Value) -> (u16, String) {
    // Only the first of several tests installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let request = reqwest::Client::new().post(format!("{url}/v1/live/sessions")).bearer_auth("key").json(body);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

fn quick() -> Options {
    let timing = Timing {
        answer_ms: 0,
        silence_ms: 300,
        transcript_ms: 100,
        append_ms: (100, 0),
        think_ms: 100,
        filler_ms: 0,
        speak_ms: 100,
        ..Timing::default()
    };
    let turn = Turn {
        heard: "What is the weather in Oslo?".to_owned(),
        filler: Some(Utterance::tone("Okay.", 330.0, Duration::from_millis(400))),
        delegate: Some("Find out the weather in Oslo".to_owned()),
        answer: Utterance::tone("It is cold and clear in Oslo.", 440.0, Duration::from_millis(1_500)),
    };
    Options { timing, script: Script { turns: vec![turn], ..Script::default() }, ..Options::default() }
}

#[tokio::test]
async fn a_question_is_delegated_and_the_answer_spoken() {
    let simulator = Simulator::start(quick()).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 50;
    caller.until("delegates", 5, |caller| caller.has("session.delegation.created")).await;
    let id = caller.event("session.delegation.created")["delegation"]["id"].clone();
    caller
        .send(json!({"type": "session.commentary.append", "event_id": "c7", "delegation_id": id, "content": "Cold."}));
    caller.until("takes it", 5, |caller| caller.has("session.commentary.appended")).await;
    assert_eq!(caller.event("session.commentary.appended")["client_event_id"], "c7");
    caller.until("speaks", 5, |_| simulator.record()[0].spoken.get(1).is_some_and(|spoken| spoken.to.is_some())).await;
    caller.run(Duration::from_millis(300)).await;
    caller.send(json!({"type": "session.close"}));
    caller.until("closes", 5, |caller| caller.has("session.closed")).await;
    assert_eq!(caller.event("session.closed")["reason"], "close_requested");
    caller.peer.close().await;

    let words = |kind: &str| -> String {
        caller
            .events
            .iter()
            .filter(|event| event["type"] == kind)
            .map(|event| event["delta"].as_str().unwrap())
            .collect()
    };
    assert_eq!(words("session.input_transcript.delta"), "What is the weather in Oslo?");
    assert!(words("session.output_transcript.delta").ends_with("It is cold and clear in Oslo."));
    let session = &simulator.record()[0];
    let occasions: Vec<_> = session.spoken.iter().map(|spoken| spoken.occasion).collect();
    assert_eq!(occasions, [Occasion::Filler, Occasion::Answer]);
    assert_eq!(session.heard.len(), 1);
    let heard = session.heard[0].end_ms.unwrap() - session.heard[0].start_ms;
    assert!((980..1_040).contains(&heard), "heard {heard} ms of 1000");
    assert!(!session.tcp);
    assert_eq!((session.input.lost, session.input.broken), (0, 0));
    let voiced = caller.audio.chunks(240).filter(|block| peak(block) > 600).count();
    assert!((140..210).contains(&voiced), "{voiced} blocks of 10 ms were heard of 190 said");
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_24_without_udp_the_call_goes_over_tcp() {
    for udp in [Path::Dead, Path::Absent] {
        let simulator =
            Simulator::start(Options { faults: Faults { udp, ..Faults::default() }, ..quick() }).await.unwrap();
        let mut caller = Caller::call(&simulator).await;
        caller.until("starts", 10, |caller| caller.has("session.started")).await;
        caller.until("is heard", 5, |_| simulator.look(|all| all[0].input.packets > 20)).await;
        assert!(simulator.record()[0].tcp);
        caller.peer.close().await;
        simulator.shutdown().await;
    }
}

#[tokio::test]
async fn barge_in_silences_the_answer_without_an_event() {
    let mut options = quick();
    options.script.turns[0].delegate = None;
    options.script.turns[0].answer = Utterance::tone("On and on.", 440.0, Duration::from_secs(20));
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller.voice = 25;
    caller.until("speaks", 5, |_| simulator.record()[0].spoken.len() == 1).await;
    caller.run(Duration::from_millis(500)).await;
    caller.voice = 25;
    caller.until("stops", 5, |_| simulator.record()[0].spoken[0].cut).await;
    let session = simulator.record().remove(0);
    let took = session.spoken[0].to.unwrap().saturating_duration_since(session.heard[1].from);
    assert!((Duration::from_millis(200)..Duration::from_millis(400)).contains(&took), "{took:?}");
    assert!(session.sent.iter().all(|event| event.kind.starts_with("session.")));
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_29_30_errors_and_huge_events_leave_the_session_alive() {
    let at = |what| Happening { after_ms: 100, what };
    let happenings = vec![
        at(What::Huge(200 * 1024)),
        at(What::Text("not json".to_owned())),
        at(What::Text(json!({"type": "error", "error": {"message": "no"}}).to_string())),
    ];
    let options = Options { faults: Faults { at: happenings, ..Faults::default() }, ..quick() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("has all", 5, |caller| caller.has("error")).await;
    assert_eq!(caller.kinds(), ["session.started", "session.sim.huge", "?", "error"]);
    let long = "word ".repeat(500);
    caller.send(json!({"type": "session.commentary.append", "event_id": "c1", "delegation_id": null, "content": long}));
    caller.send(json!({"type": "session.context.append", "event_id": "c2"}));
    caller.until("refuses both", 5, |caller| caller.kinds().iter().filter(|kind| **kind == "error").count() == 3).await;
    let errors: Vec<_> = caller.events.iter().filter(|event| event["type"] == "error").skip(1).collect();
    assert_eq!(errors[0]["error"]["message"], "Context append text must not exceed 500 tokens.");
    assert_eq!(errors[0]["error"]["client_event_id"], "c1");
    assert!(errors[1]["error"]["message"].as_str().unwrap().contains("session.commentary.append"));
    caller.peer.close().await;
    caller.until("is over", 5, |_| simulator.record()[0].ended.is_some()).await;
    assert_eq!(simulator.record()[0].ended.unwrap().1, Ended::Hangup);
    simulator.shutdown().await;
}

#[tokio::test]
async fn case_17_without_audio_nothing_moves_and_the_session_expires() {
    let mut options = quick();
    options.timing.expire_ms = 1_500;
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.next += Duration::from_secs(60);
    caller.until("starts", 5, |caller| caller.has("session.started")).await;
    caller
        .send(json!({"type": "session.commentary.append", "event_id": "c1", "delegation_id": null, "content": "Hi."}));
    caller.until("expires", 5, |caller| caller.has("session.closed")).await;
    assert_eq!(caller.event("session.closed")["reason"], "expired");
    assert_eq!(caller.event("error")["error"]["code"], "context_injection_incomplete");
    assert!(!caller.has("session.commentary.appended"));
    caller.peer.close().await;
    simulator.shutdown().await;
}

#[tokio::test]
async fn packets_get_lost_doubled_swapped_and_empty_as_asked() {
    let rtp = RtpFaults {
        lose: vec![(11, 2)],
        swap_every: Some(20),
        empty_every: Some(30),
        packet_ms: 10,
        ..RtpFaults::default()
    };
    let options = Options { faults: Faults { rtp, ..Faults::default() }, ..quick() };
    let simulator = Simulator::start(options).await.unwrap();
    let mut caller = Caller::call(&simulator).await;
    caller.until("has many", 5, |caller| caller.rtp.len() > 60).await;
    let numbers: Vec<u16> = caller.rtp.iter().map(|rtp| rtp.sequence).collect();
    let from = numbers.iter().position(|number| *number == 13).expect("13 came");
    assert!(!numbers.contains(&11) && !numbers.contains(&12));
    assert_eq!(numbers[from + 6..from + 9], [19, 21, 20]);
    let empty: Vec<u16> = caller.rtp.iter().filter(|rtp| rtp.payload.is_empty()).map(|rtp| rtp.sequence).collect();
    assert_eq!(empty[0], 31);
    let first = caller.rtp[from].timestamp;
    assert_eq!(caller.rtp[from + 1].timestamp.wrapping_sub(first), 480);
    caller.peer.close().await;
    simulator.shutdown().await;
}

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
