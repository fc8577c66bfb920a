//! The simulator against the real peer of the process: two independent stacks meet.

mod calls;
mod faults;
mod requests;

use std::time::Duration;

use serde_json::{Value, json};
use watch_audio::engine::{EngineKind, Start};
use watch_audio::rtc;
use watch_audio::secret::Secret;
use watch_audio::sign_in::openai::{self, ChatGpt};
use watch_audio::sign_in::session::{self, session_request};
use watch_audio_media::codec::{Decode, Encode};
use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings};

use super::*;
use crate::sim::script::{Script, Turn, Utterance};

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

    /// As a Watch's own sign-in does it, in the second dialect.
    async fn call_b(simulator: &Simulator) -> Self {
        // Only the first of several tests installs it.
        watch_audio::tls::ensure_provider();
        let (mut peer, offer) = rtc::Peer::offer(&rtc::PeerConfig::default()).await.unwrap();
        let fields = json!({"briefing": "Be kind.", "history": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}]});
        let start = Start { engine: EngineKind::GptLive, fields: fields.as_object().unwrap().clone() };
        let session = session_request(session::Dialect::B, &start, None, None).session;
        let sign_in = ChatGpt { access_token: Secret::new("token"), account_id: Secret::new("account") };
        let http = openai::http_client(["http://localhost"]).unwrap();
        let answer = openai::create_with_chatgpt(&http, &simulator.url(), &sign_in, &session, &offer).await.unwrap();
        peer.accept(&answer).await.unwrap();
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
    watch_audio::tls::ensure_provider();
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
