//! Sessions with the simulated GPT-Live: another WebRTC stack (str0m), ICE-lite and strict about consent like the real one.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};
use watch_audio::engine::gpt_live::Session;
use watch_audio::engine::{EngineConfig, EngineKind, ErrorCode, Start, StartError, Started, ToWatch};
use watch_audio::sign_in::SignIn;
use watch_audio::sign_in::files::SignIns;
use watch_audio_media::opus::packet_samples;
use watch_audio_probes::coding::Coding;
use watch_audio_probes::sim::gpt_live::{Ended, Faults, Happening, Options, Path, RtpFaults, Simulator, Timing, What};
use watch_audio_probes::sim::script::{Script, Utterance};

#[tokio::test]
async fn sound_and_events_go_both_ways() {
    let script = Script { greeting: Some(Utterance::tone("Hello.", 440.0, Duration::from_secs(2))), ..Script::echo() };
    let mut call = Call::start(Options { script, keep_audio: true, ..Options::default() }).await.unwrap();
    assert!(call.started.fields["voice"].is_string());
    call.until(|call| call.loud > 24_000).await;
    assert_eq!(call.kinds()[0], "session.started");

    call.voice = true;
    call.until(|call| call.simulator.look(|sessions| !sessions[0].heard.is_empty() || sessions[0].input.packets > 300))
        .await;
    let text =
        json!({"type": "session.thinking.append", "delegation_id": null, "content": "ünïcödé  as it is"}).to_string();
    call.session.watch_event(Instant::now(), text.as_bytes());
    call.until(|call| call.kinds().contains(&"session.thinking.appended".to_owned())).await;
    call.simulator.look(|sessions| {
        assert!(sessions[0].received.iter().any(|event| *event.text == *text), "byte for byte");
        assert_eq!(sessions[0].input.broken + sessions[0].input.other, 0);
        assert!(few(sessions[0].input.lost, sessions[0].input.packets), "{:?}", sessions[0].input);
    });

    call.closes_in_order().await;
}

#[tokio::test]
async fn the_end_is_told_behind_more_events_than_may_wait() {
    let mut call = Call::start(Options::default()).await.unwrap();
    call.until(|call| !call.kinds().is_empty()).await;
    let text = json!({"type": "session.thinking.append", "delegation_id": null, "content": "On."}).to_string();
    // None leaves before the session is driven again.
    for _ in 0..80 {
        call.session.watch_event(Instant::now(), text.as_bytes());
    }
    call.closes_in_order().await;
}

#[tokio::test]
async fn opus_goes_through_untouched_both_ways() {
    let script = Script { greeting: Some(Utterance::tone("Hello.", 440.0, Duration::from_secs(2))), ..Script::echo() };
    let options = Options { script, ..Options::default() };
    let fields = Map::from_iter([("codecs".to_owned(), json!(["opus", "pcm16"]))]);
    let mut call = Call::start_with(options, fields).await.unwrap();
    assert_eq!(call.started.fields["codec"], "opus");
    call.until(|call| call.loud > 24_000).await;
    let down = &call.session.stats()["down"];
    let came = down["packets"].as_u64().unwrap();
    let packets = call.messages.iter().filter(|message| packet_samples(message, 24_000) == Some(480)).count() as u64;
    assert!(packets <= came && few(came - packets, came), "each as it came: {packets}, {down}");
    assert!(few(down["lost"].as_u64().unwrap(), came) && down["undecodable"].is_null(), "{down}");
    call.voice = true;
    call.until(|call| call.session.stats()["up"]["packets_passed"].as_u64() > Some(50)).await;
    let up = &call.session.stats()["up"];
    let sent = up["received_ms"].as_u64().unwrap() / 60;
    assert!(up["packets_passed"].as_u64().unwrap() * 100 >= sent * 50, "most of them, even on a busy machine: {up}");
    call.simulator.look(|sessions| {
        let input = &sessions[0].input;
        assert_eq!(input.broken + input.other, 0);
        assert!(few(input.lost, input.packets), "{input:?}");
        assert!(!sessions[0].heard.is_empty() || input.packets > 300);
    });
    call.session.close().await;
}

/// The whole of the consent rule: checks without USE-CANDIDATE are not answered, 15 s without any stop the engine, and
/// one answer is lost.
#[tokio::test]
async fn case_20_a_call_outlives_strict_consent() {
    let faults = Faults { lost_consent: 1, ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    let started = Instant::now();
    call.run(Duration::from_secs(47)).await;
    assert_eq!(call.session.ended(), None);
    call.simulator.look(|sessions| {
        let session = &sessions[0];
        assert!(session.ended.is_none(), "{:?}", session.ended);
        assert!(session.consents >= 47 / 6, "{} consents", session.consents);
        assert_eq!(session.ignored_checks, 0, "every check says USE-CANDIDATE");
        let sent = session.input.samples as f64 / 48_000.0;
        let run = started.elapsed().as_secs_f64();
        assert!((sent - run).abs() < 3.0, "{sent} s of sound in {run} s");
    });
    let given = call.samples as f64 / 24_000.0;
    assert!((given - started.elapsed().as_secs_f64()).abs() < 3.0, "{given} s of sound came");
}

#[tokio::test]
async fn case_17_silence_is_sent_for_ever_while_the_watch_says_nothing() {
    let mut call = Call::start(Options::default()).await.unwrap();
    call.run(Duration::from_secs(5)).await;
    call.simulator.look(|sessions| {
        let input = &sessions[0].input;
        assert!(input.samples > 48_000 * 4, "{} samples", input.samples);
        assert!(few(input.lost, input.packets), "{input:?}");
    });
}

#[tokio::test]
async fn case_24_tcp_carries_the_call_where_udp_is_dead() {
    let faults = Faults { udp: Path::Dead, ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    call.run(Duration::from_secs(20)).await;
    call.simulator.look(|sessions| {
        assert!(sessions[0].tcp);
        assert!(sessions[0].ended.is_none(), "consent holds over TCP too: {:?}", sessions[0].ended);
        assert!(sessions[0].input.samples > 48_000 * 17);
    });
    assert!(call.samples > 24_000 * 17);
}

#[tokio::test]
async fn case_24_no_way_at_all_is_an_error_that_names_what_was_tried() {
    let refused = async |faults: Faults| {
        let started = Instant::now();
        let error = Call::start(Options { faults, ..Options::default() }).await.map(|_| ()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Unreachable);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        error.message
    };
    let (udp, both, no_dtls, nothing) = tokio::join!(
        refused(Faults { udp: Path::Dead, tcp: Path::Absent, ..Faults::default() }),
        refused(Faults { udp: Path::Dead, tcp: Path::Dead, ..Faults::default() }),
        refused(Faults { no_dtls: true, ..Faults::default() }),
        refused(Faults { no_candidates: true, ..Faults::default() }),
    );
    assert!(udp.contains("tried UDP.") || udp.contains("lost"), "{udp}");
    assert!(both.contains("UDP and TCP"), "{both}");
    assert!(no_dtls.contains("UDP and TCP"), "{no_dtls}");
    assert!(nothing.contains("no way"), "{nothing}");
}

#[tokio::test]
async fn case_29_a_long_event_comes_whole() {
    let faults = Faults { at: vec![Happening { after_ms: 200, what: What::Huge(200_000) }], ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    call.until(|call| call.events.iter().any(|event| event.len() >= 200_000)).await;
}

#[tokio::test]
async fn case_30_an_error_is_passed_on_and_session_closed_is_the_end() {
    let error = json!({"type": "error", "error": {"type": "invalid_request_error", "code": "x"}}).to_string();
    let at = vec![
        Happening { after_ms: 0, what: What::Text(error.clone()) },
        Happening { after_ms: 2_000, what: What::Closed("expired".into()) },
    ];
    let mut call =
        Call::start(Options { faults: Faults { at, ..Faults::default() }, ..Options::default() }).await.unwrap();
    call.until(|call| call.session.ended().is_some()).await;
    assert_eq!(call.session.ended(), Some("expired"));
    assert_eq!(call.kinds()[..2], ["error", "session.started"]);
    assert_eq!(call.kinds().last().map(String::as_str), Some("session.closed"), "passed on as well");
    assert!(call.samples > 24_000, "sound went on after the error");
}

#[tokio::test]
async fn case_12_probes_without_payload_are_no_loss() {
    let rtp = RtpFaults { empty_every: Some(5), ..RtpFaults::default() };
    let mut call =
        Call::start(Options { faults: Faults { rtp, ..Faults::default() }, ..Options::default() }).await.unwrap();
    call.run(Duration::from_secs(5)).await;
    let down = &call.session.stats()["down"];
    let figure = |name: &str| down[name].as_u64().unwrap();
    assert!(few(figure("lost"), figure("packets")) && few(figure("concealed_ms"), figure("played_ms")), "{down}");
    assert!(call.samples > 24_000 * 3);
}

/// The engine may take another SSRC at any time (RFC 3550 section 8.2), with numbers and a clock of its own.
#[tokio::test]
async fn sound_goes_on_under_another_ssrc() {
    let at = vec![Happening { after_ms: 2_000, what: What::NewSsrc }];
    let script =
        Script { greeting: Some(Utterance::tone("Hello.", 440.0, Duration::from_secs(10))), ..Script::default() };
    let options = Options { script, faults: Faults { at, ..Faults::default() }, ..Options::default() };
    let mut call = Call::start(options).await.unwrap();
    call.until(|call| call.simulator.look(|sessions| sessions[0].ssrcs.len() == 2)).await;
    let before = call.loud;
    call.until(|call| call.loud > before + 24_000 * 3).await;
    let down = &call.session.stats()["down"];
    assert!(few(down["lost"].as_u64().unwrap(), down["packets"].as_u64().unwrap()), "{down}");
    assert!(call.step < 4_000, "a click of {}; the tone's own steps are 1,400", call.step);
}

#[tokio::test]
async fn case_28_a_channel_that_never_opens_is_the_end() {
    let faults = Faults { no_channel: true, ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    call.until(|call| call.session.ended().is_some()).await;
    assert_eq!(call.session.ended(), Some("the engine's event channel did not open"));
}

#[tokio::test]
async fn a_vanished_engine_is_noticed() {
    let faults = Faults { at: vec![Happening { after_ms: 500, what: What::Vanish }], ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    call.until(|call| call.session.ended().is_some()).await;
    assert_eq!(call.session.ended(), Some("the connection to the engine was lost"));
}

#[tokio::test]
async fn an_engine_that_does_not_confirm_the_end_is_left_after_2_s() {
    let faults = Faults { at: vec![Happening { after_ms: 300, what: What::Vanish }], ..Faults::default() };
    let mut call = Call::start(Options { faults, ..Options::default() }).await.unwrap();
    call.run(Duration::from_secs(1)).await;
    let closing = Instant::now();
    call.session.close().await;
    let took = closing.elapsed();
    assert!((Duration::from_millis(1_900)..Duration::from_millis(4_500)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn what_the_service_refuses_is_told() {
    let faults = Faults { http_status: Some(429), ..Faults::default() };
    let error = Call::start(Options { faults, ..Options::default() }).await.map(|_| ()).unwrap_err();
    assert_eq!(error.code, ErrorCode::RateLimited);
}

/// Whether `some` are no more of `all` than a machine that builds other things meanwhile may cost.
fn few(some: u64, all: u64) -> bool {
    some * 10 <= all
}

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(90);

/// A session, its engine, and a Watch that takes everything at once.
struct Call {
    simulator: Simulator,
    session: Session,
    started: Started,
    events: Vec<String>,
    samples: usize,
    loud: usize,
    coding: Coding,
    /// With Opus, what came.
    messages: Vec<Bytes>,
    /// The furthest that one sample was from the one before.
    step: u16,
    last: i16,
    /// Whether the Watch sends sound, in 100 ms messages.
    voice: bool,
    spoken: u64,
    next: Instant,
}

impl Call {
    async fn start(options: Options) -> Result<Self, StartError> {
        Self::start_with(options, Map::new()).await
    }

    async fn start_with(options: Options, fields: Map<String, Value>) -> Result<Self, StartError> {
        watch_audio::tls::ensure_provider();
        let options = Options { timing: Timing { answer_ms: 20, ..options.timing.clone() }, ..options };
        let simulator = Simulator::start(options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (key, config) = (folder.path().join("key"), folder.path().join("config.json"));
        std::fs::write(&key, "sk-test").unwrap();
        std::fs::write(&config, json!({"gpt_live": {"api_key_file": key, "url": simulator.url()}}).to_string())
            .unwrap();
        let sign_in = SignIn::Files(Box::new(SignIns::read(&config).unwrap()));
        let start = Start { engine: EngineKind::GptLive, fields };
        let (session, started) = Box::pin(Session::start(&start, &sign_in, &EngineConfig::default())).await?;
        let coding = Coding::agreed(started.fields.get("codec").and_then(Value::as_str), 16_000).unwrap();
        Ok(Self {
            simulator,
            session,
            started,
            events: Vec::new(),
            samples: 0,
            loud: 0,
            coding,
            messages: Vec::new(),
            step: 0,
            last: 0,
            voice: false,
            spoken: 0,
            next: Instant::now(),
        })
    }

    async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let limit = timeout(LIMIT, async {
            while !done(self) {
                self.step().await;
            }
        });
        if limit.await.is_err() {
            panic!("not within {LIMIT:?}: {:?}, ended {:?}", self.kinds(), self.session.ended());
        }
    }

    /// Ends the session, and sees that the engine was told to.
    async fn closes_in_order(self) {
        let closing = Instant::now();
        self.session.close().await;
        assert!(closing.elapsed() < Duration::from_secs(10), "{:?}", closing.elapsed());
        // The engine notes its own end a moment after it said so.
        let noted = async {
            while self.simulator.look(|sessions| sessions[0].ended.is_none()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(5), noted).await.unwrap();
        assert_eq!(self.simulator.look(|sessions| sessions[0].ended.map(|(_, how)| how)), Some(Ended::Closed));
    }

    async fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.until(|_| Instant::now() >= end).await;
    }

    async fn step(&mut self) {
        tokio::select! {
            () = self.session.drive() => {}
            () = tokio::time::sleep_until(self.next) => {
                self.next += Duration::from_millis(100);
                if self.voice {
                    // Words of half a second, and pauses as long.
                    self.spoken += 1;
                    let loud = if self.spoken % 10 < 5 { 8_000.0 } else { 0.0 };
                    let tone: Vec<i16> = (0..1_600).map(|n| ((n as f64 * 0.2).sin() * loud) as i16).collect();
                    for message in self.coding.write(&tone).unwrap() {
                        // PCM is cut in the middle of a sample.
                        let whole = if let Coding::Pcm16 = self.coding { 1_001 } else { message.len() };
                        for part in [&message[..whole], &message[whole..]].iter().filter(|part| !part.is_empty()) {
                            self.session.watch_audio(Instant::now(), part);
                        }
                    }
                }
            }
        }
        while let Some(message) = self.session.poll(Instant::now()) {
            match message {
                ToWatch::Audio(bytes) => {
                    let mut samples = Vec::new();
                    self.coding.read(&bytes, &mut samples);
                    if let Coding::Opus(_) = self.coding {
                        self.messages.push(bytes);
                    }
                    self.samples += samples.len();
                    for sample in &samples {
                        self.step = self.step.max(sample.abs_diff(self.last));
                        self.last = *sample;
                    }
                    self.loud += samples.iter().filter(|sample| sample.unsigned_abs() > 600).count();
                }
                ToWatch::Event(event) => self.events.push(String::from_utf8(event.to_vec()).unwrap()),
                ToWatch::Control(control) => panic!("{control}"),
            }
        }
    }

    fn kinds(&self) -> Vec<String> {
        let kind = |event: &String| {
            serde_json::from_str::<Value>(event).ok().and_then(|event| event["type"].as_str().map(str::to_owned))
        };
        self.events.iter().filter_map(kind).collect()
    }
}
