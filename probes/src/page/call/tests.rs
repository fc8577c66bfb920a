use std::time::Duration;

use serde_json::{Map, json};

use super::*;
use crate::arrivals::Arrivals;
use crate::figures::{BargeIn, Figures};
use crate::host::Engines;
use crate::page::tests::well_formed;
use crate::playout::RATE;
use crate::plugin::BridgeReport;
use crate::speech::Speech;
use crate::timeline::{Moment, What};
use crate::waveform::Waveform;

fn moment(ms: i64, what: What, detail: &str) -> Moment {
    Moment { ms, what, detail: detail.into() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A call that came to nothing.
fn nothing(verdict: Verdict) -> Outcome {
    Outcome {
        verdict,
        zero: None,
        moments: vec![],
        figures: Figures::default(),
        played: vec![],
        speech: Speech::new(RATE),
        arrived: Speech::new(RATE),
        arrivals: Arrivals::default(),
        said: Waveform::default(),
        received_ms: 0,
        sent_ms: 0,
        underruns: 0,
        rejoins: 0,
        dropped: 0,
        started: Map::new(),
        bridge: BridgeReport::default(),
        engines: Engines::default(),
    }
}

/// Three seconds: a question, a filler, a delegation, an answer that is spoken over.
fn whole(verdict: Verdict) -> Outcome {
    let mut outcome = nothing(verdict);
    outcome.zero = Some(tokio::time::Instant::now());
    outcome.moments = vec![
        moment(-300, What::Start, "gpt_live"),
        moment(0, What::Started, "cove"),
        moment(100, What::Question, ""),
        moment(500, What::QuestionEnd, ""),
        moment(600, What::Heard, "is 1 < 2 && \"2\" > 1?"),
        moment(700, What::Delegation, "<script>alert('x')</script>"),
        moment(1000, What::Speech, ""),
        moment(1200, What::SpeechEnd, ""),
        moment(1400, What::Answer, "</td></table>"),
        moment(2000, What::Speech, ""),
        moment(2200, What::Question, ""),
        moment(2300, What::Flush, ""),
        moment(2300, What::SpeechEnd, ""),
        moment(3000, What::Lost, "closed with 4010: \u{1}<b>gone</b>"),
    ];
    outcome.played = vec![0; 72_000];
    for (from, to) in [(1000, 1200), (2000, 2300)] {
        outcome.played[from * 24..to * 24].fill(9000);
        outcome.speech.push(from * 24, &vec![9000; (to - from) * 24]);
    }
    outcome.said.put(ms(0), 16_000, &[-4000; 12_800]);
    outcome.said.put(ms(2400), 16_000, &[100; 9600]);
    for n in 1..150 {
        outcome.arrivals.push(ms(n * 20 + u64::from(n == 75) * 15), ms(20), ms(n % 5));
    }
    outcome.figures = Figures::of(&outcome.moments, &outcome.speech, &outcome.arrived);
    outcome.bridge = BridgeReport {
        summaries: vec![json!({
            "duration_s": 3.25,
            "down": {"delay_ms": {"p50": 1.5, "p95": 2.0, "p99": 3.0, "max": 40.25}, "lost": 7},
            "<i>": "<u>",
        })],
        closed: Some("The grant <expired>.".into()),
        relay: vec!["\"refused\"".into()],
        exit: Some(3),
        ..BridgeReport::default()
    };
    outcome
}

fn about(engine: EngineKind) -> About {
    About { engine, began: SystemTime::UNIX_EPOCH }
}

#[test]
fn every_outcome_makes_a_page() {
    let verdicts = [
        Verdict::Done,
        Verdict::Fault("a <fault>".into()),
        Verdict::Refused("no".into()),
        Verdict::EngineRefused("busy".into(), "'later'".into()),
        Verdict::Broke("cut & gone".into()),
        Verdict::NoAnswer("silence".into()),
        Verdict::Interrupted(crate::verdict::Signal::Interrupt),
    ];
    for verdict in verdicts {
        let exit = format!("exit code {}", verdict.code());
        for engine in [EngineKind::GptLive, EngineKind::Grok] {
            let began = Outcome { moments: vec![moment(0, What::Grant, "")], ..nothing(verdict.clone()) };
            for outcome in [nothing(verdict.clone()), began, whole(verdict.clone())] {
                let html = html(&outcome, &about(engine));
                well_formed(&html);
                assert!(html.contains(&exit) && !html.contains("NaN"));
            }
        }
    }
    well_formed(&unfinished(&about(EngineKind::Grok)));
}

#[test]
fn what_was_said_is_text() {
    let html = html(&whole(Verdict::Done), &about(EngineKind::GptLive));
    for text in [
        "is 1 &lt; 2 &amp;&amp; &quot;2&quot; &gt; 1?",
        "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;",
        "&lt;/td&gt;&lt;/table&gt;",
        "closed with 4010: &lt;b&gt;gone&lt;/b&gt;",
        "&lt;i&gt;",
        "&lt;u&gt;",
        "The grant &lt;expired&gt;.",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn moments_are_told_as_what_they_are() {
    let html = html(&whole(Verdict::Done), &about(EngineKind::GptLive));
    for (count, words) in [(1, ">filler begins"), (1, ">speech begins"), (1, ">question begins"), (1, ">barge-in: ")] {
        assert_eq!(html.matches(words).count(), count, "{words}");
    }
    // 0.7 s of work, from 700 ms on in a call of 3.3 s that begins 300 ms before `started`.
    assert!(html.contains("0.7 s of work."));
    assert!(html.contains("<rect class=\"work done\" x=\"30.30%\" width=\"21.21%\""));
    assert!(html.contains("It was closed once (shaded)."));
    assert!(html.contains("Speech from 1.0 to 1.2 s, from 2.0 to 2.3 s."));
}

#[test]
fn the_figures_are_in_tables() {
    let html = html(&whole(Verdict::Done), &about(EngineKind::GptLive));
    let cells =
        |cells: &[&str]| cells.iter().map(|cell| format!("<td class=\"figure\">{cell}</td>")).collect::<String>();
    assert!(html.contains(&format!("<th scope=\"row\">down, delay</th>{}", cells(&["1.50", "2", "3", "40.2"]))));
    assert!(html.contains("<th scope=\"row\">duration</th><td>3.25 s</td>"), "{html}");
    let behind = format!("<th scope=\"row\">behind real time</th>{}", cells(&["0", "0", "0", "15"]));
    assert!(html.contains(&behind), "{html}");
    // Of a stream ahead of real time, nothing is behind.
    assert!(!super::html(&whole(Verdict::Done), &about(EngineKind::Grok)).contains("behind real time"));
}

#[test]
fn a_barge_in_counts_from_the_notice_where_there_is_one() {
    for (notice_ms, since) in [(Some(40), "notice"), (None, "barge-in")] {
        let mut outcome = whole(Verdict::Done);
        outcome.figures.barge_in =
            Some(BargeIn { at_ms: 1_600, notice_ms, last_old_arrived_ms: Some(10), last_old_played_ms: Some(20) });
        let html = html(&outcome, &about(EngineKind::GptLive));
        for words in ["the last old sound<", "last old audio come<", "last old sound played<"] {
            assert!(html.contains(&format!(">{since} to {words}")), "{since} to {words}");
        }
    }
}

#[test]
fn half_an_hour_is_a_page_of_its_own_width_and_not_too_large() {
    let mut outcome = whole(Verdict::Done);
    let second: Vec<i16> = (0..24_000).map(|n| if n % 2 == 0 { 5000 } else { -5000 }).collect();
    outcome.played = second.iter().copied().cycle().take(24_000 * 100).collect();
    outcome.moments.extend((0..600).map(|n| moment(3000 * n, What::Said, "some words of the engine")));
    outcome.moments.sort_by_key(|moment| moment.ms);
    for n in 150..90_000 {
        outcome.arrivals.push(ms(n * 20), ms(20), ms(n % 200));
    }
    let html = html(&outcome, &about(EngineKind::GptLive));
    well_formed(&html);
    assert!(html.len() < 1_000_000, "{}", html.len());
    assert!(html.contains("min-width:14376px"));
}
