//! Whole calls in one process but the bridge: what the Watch plays is what the engine said, whole, once, in time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Map;
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};
use watch_audio::engine::EngineKind;
use watch_audio_media::wav;
use watch_audio_probes::call::{self, Options, Outcome};
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::host::{Engine, HostOptions, Relay, Simulated};
use watch_audio_probes::likeness::heard_once;
use watch_audio_probes::playout::RATE;
use watch_audio_probes::plugin::BridgeCommand;
use watch_audio_probes::session::Manner;
use watch_audio_probes::sim::script::{Script, Turn, Utterance};
use watch_audio_probes::timeline::What;
use watch_audio_probes::tools::Answers;
use watch_audio_probes::verdict::Verdict;

/// Calls are in real time: more of them at once than a small machine can hold would test the machine.
static AT_ONCE: Semaphore = Semaphore::const_new(4);

fn sample(name: &str) -> wav::Wav {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples").join(name);
    wav::parse(&std::fs::read(path).unwrap()).unwrap()
}

fn said(text: &str, name: &str) -> Utterance {
    let sample = sample(name);
    assert_eq!(sample.rate, 24_000);
    Utterance::new(text, sample.samples)
}

/// A question that is delegated and answered with `answer`; what follows is answered directly.
fn script(answer: &str) -> Script {
    let delegated = Turn {
        heard: "What is the weather?".into(),
        filler: None,
        delegate: Some("the weather".into()),
        answer: said("It is fine.", answer),
    };
    let direct = Turn { heard: "And now?".into(), filler: None, delegate: None, answer: said("Fine.", "answer.wav") };
    Script { turns: vec![delegated, direct], ..Script::default() }
}

fn manner(engine: EngineKind, dialect: Dialect) -> Manner {
    let question = sample("question.wav");
    let samples = match engine {
        EngineKind::GptLive => question.samples,
        // Twice two samples for three: the right rate is all that matters here.
        EngineKind::Grok => {
            let mut resampler = watch_audio_media::resample::Resampler::new(16_000, 24_000).unwrap();
            let mut samples = Vec::new();
            resampler.push(&question.samples, &mut samples);
            resampler.flush(&mut samples);
            samples
        }
    };
    Manner {
        engine,
        dialect,
        question: samples,
        half_duplex: true,
        barge_in: None,
        tap: None,
        playout: false,
        opus: false,
        start: Map::new(),
        longest: Duration::from_secs(60),
    }
}

async fn call(manner: Manner, script: Script) -> Outcome {
    call_to(manner, Simulated::with_script(script)).await
}

async fn call_to(manner: Manner, engines: Simulated) -> Outcome {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let slots = TempDir::new().unwrap();
    let host = HostOptions {
        relay: Relay::Own,
        engine: Engine::Simulated(Box::new(engines)),
        dialect: manner.dialect,
        bridge: BridgeCommand {
            program: PathBuf::from(env!("CARGO_BIN_EXE_watch-audio-probe")),
            arguments: vec![OsString::from("bridge")],
            slots: Some(slots.path().to_owned()),
            stun: vec![],
        },
        answers: Answers::scripted(Duration::from_millis(300)),
    };
    watch_audio::tls::ensure_provider();
    // Nobody says stop.
    let (_stop, stopped) = watch::channel(None);
    let options = Options { manner, host, recording: None, progress: None, sound: None };
    let outcome = Box::pin(call::run(options, stopped)).await;
    assert_eq!(outcome.bridge.exit, Some(0), "the bridge ends in order");
    assert_eq!(outcome.rejoins, 0, "{:?}; the bridge: {:?}", outcome.moments, outcome.bridge.relay);
    outcome
}

/// The answer is in what was played: whole, at its own speed, and once.
fn heard(outcome: &Outcome, answer: &[i16]) {
    heard_once(answer, &outcome.played, RATE).unwrap();
}

/// Two calls at once, each on a thread of its own: looking at one must not hold up the other.
fn both<F: Future<Output = ()> + Send + 'static>(one: F, other: F) -> impl Future<Output = ()> {
    let calls = [tokio::spawn(one), tokio::spawn(other)];
    async {
        for call in calls {
            call.await.unwrap();
        }
    }
}

fn count(outcome: &Outcome, what: What) -> usize {
    outcome.moments.iter().filter(|moment| moment.what == what).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn gpt_live_answers_in_both_dialects() {
    let answers = |dialect: Dialect| async move {
        let outcome = call(manner(EngineKind::GptLive, dialect), script("answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        heard(&outcome, &sample("answer.wav").samples);
        assert_eq!((count(&outcome, What::Delegation), count(&outcome, What::Answer)), (1, 1));
        assert_eq!(outcome.underruns, 0);
        // Half duplex: no microphone while the answer plays, nor 0.35 s after; messages are up to 107 ms long.
        let played_ms = outcome.played.len() as u64 / 24;
        let closed_ms = outcome.figures.speech_ms as u64 + 350 - 107;
        assert!(outcome.sent_ms + closed_ms <= played_ms, "{} + {closed_ms} of {played_ms} ms", outcome.sent_ms);
        // Case 18: nothing says that the answer is over; the probe hangs up 3 s after it.
        let end = outcome.moments.iter().find(|moment| moment.what == What::End).unwrap();
        let last = outcome.speech.last_end().unwrap().as_millis() as i64;
        assert!((3000..4000).contains(&(end.ms - last)), "{} ms", end.ms - last);
        // Case 17: the engine's clock, which is our audio, ran while the Watch was silent.
        let session = &outcome.engines.gpt_live[0];
        assert!(session.input.longest_gap < Duration::from_millis(500), "{:?}", session.input);
    };
    both(answers(Dialect::B), answers(Dialect::A)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grok_answers_to_the_sample() {
    let outcome = call(manner(EngineKind::Grok, Dialect::B), script("answer.wav")).await;
    assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
    let answer = sample("answer.wav").samples;
    assert!(outcome.played.windows(answer.len()).any(|played| played == answer), "PCM all the way: not a bit changes");
    heard(&outcome, &answer);
    let session = &outcome.engines.grok[0];
    let count = |kind| session.received.iter().filter(|event| event.kind == kind).count();
    assert_eq!((session.bad_appends, count("response.create")), (0, 1));
    assert_eq!(count("session.update"), 1, "the Watch's own; the host sends none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barge_in_on_grok_cuts_the_reply_within_100_ms_and_truncates_within_250_ms_of_what_was_played() {
    let barges_in = |playout: bool| async move {
        let manner = Manner {
            half_duplex: false,
            barge_in: Some(Duration::from_secs(3)),
            playout,
            ..manner(EngineKind::Grok, Dialect::B)
        };
        let outcome = call(manner, script("long-answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        heard(&outcome, &sample("answer.wav").samples);
        assert_eq!(outcome.underruns, 0, "so what was played is known from when it began and when it stopped");

        // The engine's notice, on the call's time line.
        let session = &outcome.engines.grok[0];
        let zero = outcome.zero.unwrap().into_std();
        let barge_in = outcome.figures.barge_in.as_ref().expect("the question was spoken twice");
        let said = session
            .sent
            .iter()
            .filter(|event| event.kind == "input_audio_buffer.speech_started")
            .map(|event| event.at.saturating_duration_since(zero).as_millis() as i64);
        let notice = said.filter(|ms| *ms >= barge_in.at_ms).min();
        let notice = notice.unwrap_or_else(|| panic!("no notice after {} ms: {:?}", barge_in.at_ms, outcome.moments));
        let stopped = first_after(&outcome, What::Flush, barge_in.at_ms);
        assert!(stopped - notice < 100, "noticed at {notice} ms, silent at {stopped} ms");
        let began = last_before(&outcome, What::Reply, barge_in.at_ms);
        let [truncate] = &session.truncates[..] else { panic!("{:?}", session.truncates) };
        let (heard, played) = (truncate.ms as i64, stopped - began);
        assert!((heard - played).abs() < 250, "told {heard} ms, played {played} ms");
    };
    both(barges_in(false), barges_in(true)).await;
}

fn first_after(outcome: &Outcome, what: What, after: i64) -> i64 {
    outcome.moments.iter().find(|moment| moment.what == what && moment.ms >= after).unwrap().ms
}

fn last_before(outcome: &Outcome, what: What, before: i64) -> i64 {
    outcome.moments.iter().rfind(|moment| moment.what == what && moment.ms <= before).unwrap().ms
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barge_in_on_gpt_live_is_the_models_own_and_counted_where_it_says_so() {
    let barges_in = |says_so: bool| async move {
        let manner = Manner {
            half_duplex: false,
            barge_in: Some(Duration::from_secs(3)),
            ..manner(EngineKind::GptLive, Dialect::B)
        };
        let mut engines = Simulated::with_script(script("long-answer.wav"));
        engines.gpt_live.dialect_b.cleared = says_so;
        let outcome = call_to(manner, engines).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        let barge_in = outcome.figures.barge_in.as_ref().expect("the question was spoken twice");
        // The simulated model falls silent 300 ms after it hears the user; the rest is the way there and back.
        assert_eq!(barge_in.notice_ms.is_some(), says_so);
        assert!(barge_in.last_old_arrived_ms.is_some_and(|ms| ms < 1000), "{barge_in:?}");
        assert!(barge_in.last_old_played_ms.is_some_and(|ms| ms < 1200), "{barge_in:?}");
        heard(&outcome, &sample("answer.wav").samples);
        assert!(outcome.engines.gpt_live[0].spoken.iter().any(|spoken| spoken.cut));
        let counted = outcome.bridge.summaries[0].get("barge_ins").and_then(serde_json::Value::as_u64);
        assert_eq!(counted, says_so.then_some(1), "absent where nobody tells");
    };
    both(barges_in(false), barges_in(true)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_engines_answer_in_opus() {
    let answers = |engine: EngineKind| async move {
        let manner = Manner { opus: true, ..manner(engine, Dialect::B) };
        let outcome = call(manner, script("answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        assert_eq!(outcome.started["codec"], "opus");
        heard(&outcome, &sample("answer.wav").samples);
    };
    both(answers(EngineKind::Grok), answers(EngineKind::GptLive)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_stops_locally() {
    let taps = |engine: EngineKind| async move {
        let manner = Manner { tap: Some(Duration::from_secs(2)), ..manner(engine, Dialect::B) };
        let outcome = call(manner, script("long-answer.wav")).await;
        assert_eq!(count(&outcome, What::Tap), 1);
        let spoken = outcome.speech.spans().iter().map(|span| span.end - span.start).sum::<Duration>();
        assert!(spoken < Duration::from_secs(4), "{spoken:?}");
    };
    both(taps(EngineKind::GptLive), taps(EngineKind::Grok)).await;
}
