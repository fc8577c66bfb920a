//! Whole calls in one process but the bridge: what the Watch plays is what the engine said, whole, once, in time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Map;
use tempfile::TempDir;
use tokio::sync::watch;
use watch_audio::engine::EngineKind;
use watch_audio_media::wav;
use watch_audio_probes::call::{self, Options, Outcome};
use watch_audio_probes::dialogue::Dialect;
use watch_audio_probes::host::{Engine, HostOptions, Relay, Simulated};
use watch_audio_probes::likeness::find;
use watch_audio_probes::plugin::BridgeCommand;
use watch_audio_probes::session::Manner;
use watch_audio_probes::sim::script::{Script, Turn, Utterance};
use watch_audio_probes::timeline::What;
use watch_audio_probes::tools::Answers;
use watch_audio_probes::verdict::Verdict;

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
    let slots = TempDir::new().unwrap();
    let host = HostOptions {
        relay: Relay::Own,
        engine: Engine::Simulated(Box::new(Simulated::with_script(script))),
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
    let outcome = call::run(Options { manner, host, recording: None, progress: None }, stopped).await;
    assert_eq!(outcome.bridge.exit, Some(0), "the bridge ends in order");
    outcome
}

/// The answer is in what was played: whole, at its own speed, and once.
fn heard_once(outcome: &Outcome, answer: &[i16]) {
    let rate = 24_000;
    let whole = find(answer, &outcome.played, rate).unwrap();
    assert!(whole.loudness > 0.95 && whole.waveform > 0.8, "{whole:?}");
    // Its halves stand where they stand in the sample: nothing was left out, put in or stretched.
    let half = answer.len() / 2;
    let (first, second) = (find(&answer[..half], &outcome.played, rate), find(&answer[half..], &outcome.played, rate));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.at.abs_diff(whole.at) < 240, "{first:?} {whole:?}");
    assert!(second.at.abs_diff(whole.at + half) < 240, "{second:?} {whole:?}");
    let mut rest = outcome.played.clone();
    rest[whole.at..whole.at + answer.len()].fill(0);
    assert!(find(answer, &rest, rate).unwrap().waveform < 0.5, "it is heard a second time");
}

fn count(outcome: &Outcome, what: What) -> usize {
    outcome.moments.iter().filter(|moment| moment.what == what).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn gpt_live_answers_in_both_dialects() {
    for dialect in [Dialect::B, Dialect::A] {
        let outcome = call(manner(EngineKind::GptLive, dialect), script("answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        heard_once(&outcome, &sample("answer.wav").samples);
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
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grok_answers_to_the_sample() {
    let outcome = call(manner(EngineKind::Grok, Dialect::B), script("answer.wav")).await;
    assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
    let answer = sample("answer.wav").samples;
    assert!(outcome.played.windows(answer.len()).any(|played| played == answer), "PCM all the way: not a bit changes");
    heard_once(&outcome, &answer);
    let session = &outcome.engines.grok[0];
    let creates = session.received.iter().filter(|event| event.kind == "response.create").count();
    assert_eq!((session.bad_appends, creates), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barge_in_on_grok_stops_the_reply_and_truncates_it() {
    for playout in [false, true] {
        let manner = Manner {
            half_duplex: false,
            barge_in: Some(Duration::from_secs(3)),
            playout,
            ..manner(EngineKind::Grok, Dialect::B)
        };
        let outcome = call(manner, script("long-answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        let barge_in = outcome.figures.barge_in.as_ref().expect("the question was spoken twice");
        assert!(barge_in.notice_ms.is_some_and(|ms| ms < 2000), "{barge_in:?}");
        assert!(barge_in.last_old_played_ms.is_some_and(|ms| ms < 300), "{barge_in:?}");
        heard_once(&outcome, &sample("answer.wav").samples);
        // What the engine is told was heard is what was played, to within the Watch's own buffer.
        let [truncate] = &outcome.engines.grok[0].truncates[..] else {
            panic!("{:?}", outcome.engines.grok[0].truncates)
        };
        let old = outcome.speech.at(Duration::from_millis(barge_in.at_ms as u64)).unwrap();
        let played = (old.end - old.start).as_millis() as i64;
        let heard = truncate.ms as i64;
        assert!((heard - played).abs() < 500, "heard {heard} ms, played {played} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barge_in_on_gpt_live_is_the_models_own() {
    let manner = Manner {
        half_duplex: false,
        barge_in: Some(Duration::from_secs(3)),
        ..manner(EngineKind::GptLive, Dialect::B)
    };
    let outcome = call(manner, script("long-answer.wav")).await;
    assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
    let barge_in = outcome.figures.barge_in.as_ref().expect("the question was spoken twice");
    // The simulated model falls silent 300 ms after it hears the user; the rest is the way there and back.
    assert_eq!(barge_in.notice_ms, None);
    assert!(barge_in.last_old_arrived_ms.is_some_and(|ms| ms < 1000), "{barge_in:?}");
    assert!(barge_in.last_old_played_ms.is_some_and(|ms| ms < 1200), "{barge_in:?}");
    heard_once(&outcome, &sample("answer.wav").samples);
    assert!(outcome.engines.gpt_live[0].spoken.iter().any(|spoken| spoken.cut));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_engines_answer_in_opus() {
    for engine in [EngineKind::Grok, EngineKind::GptLive] {
        let manner = Manner { opus: true, ..manner(engine, Dialect::B) };
        let outcome = call(manner, script("answer.wav")).await;
        assert_eq!(outcome.verdict, Verdict::Done, "{:?}", outcome.moments);
        assert_eq!(outcome.started["codec"], "opus");
        heard_once(&outcome, &sample("answer.wav").samples);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_stops_locally() {
    for engine in [EngineKind::GptLive, EngineKind::Grok] {
        let manner = Manner { tap: Some(Duration::from_secs(2)), ..manner(engine, Dialect::B) };
        let outcome = call(manner, script("long-answer.wav")).await;
        assert_eq!(count(&outcome, What::Tap), 1);
        let spoken = outcome.speech.spans().iter().map(|span| span.end - span.start).sum::<Duration>();
        assert!(spoken < Duration::from_secs(4), "{spoken:?}");
    }
}
