//! What the probe prints about a call: for people, or as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::call::Outcome;
use crate::timeline::What;

/// The time line and the figures, for people. The outcome line is not part of it.
pub fn text(outcome: &Outcome) -> String {
    let mut report = String::new();
    for moment in &outcome.moments {
        let words = moment.what.words();
        let _ = match moment.detail.as_str() {
            "" => writeln!(report, "{:>8.2} s  {words}", seconds(moment.ms)),
            detail => writeln!(report, "{:>8.2} s  {words}: {}", seconds(moment.ms), one_line(detail)),
        };
    }
    if !outcome.moments.iter().any(|moment| moment.what == What::Started) {
        return report;
    }
    report.push('\n');
    let figures = &outcome.figures;
    let mut line = |name: &str, value: String| {
        let _ = writeln!(report, "{name:<36}{value}");
    };
    let mut step = |name: &str, ms: Option<i64>| {
        if let Some(ms) = ms {
            line(name, format!("{ms} ms"));
        }
    };
    step("question end to heard", figures.question_to_heard_ms);
    step("question end to first speech", figures.question_to_speech_ms);
    step("delegation to answer", figures.delegation_to_answer_ms);
    step("answer to first speech", figures.answer_to_speech_ms);
    if let Some(barge_in) = &figures.barge_in {
        step("barge-in to the engine's notice", barge_in.notice_ms);
        let from = barge_in.since();
        step(&format!("{from} to last old audio come"), barge_in.last_old_arrived_ms);
        step(&format!("{from} to last old sound played"), barge_in.last_old_played_ms);
    }
    let audio = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    line("speech played", audio(figures.speech_ms.unsigned_abs()));
    line("audio from the engine", audio(outcome.received_ms));
    line("microphone audio sent", audio(outcome.sent_ms));
    for (name, count) in [
        ("speaker ran dry", u64::from(outcome.underruns)),
        ("joined again", u64::from(outcome.rejoins)),
        ("messages that did not open", outcome.dropped),
    ] {
        if count > 0 {
            line(name, format!("{count}"));
        }
    }
    for summary in &outcome.bridge.summaries {
        for (name, value) in bridge_lines(summary) {
            line(&format!("bridge: {name}"), value);
        }
    }
    report
}

/// The summary's numbers, objects of percentiles on one line.
fn bridge_lines(summary: &Value) -> Vec<(String, String)> {
    let Some(fields) = summary.as_object() else { return vec![] };
    fields.iter().map(|(name, value)| (name.replace('_', " "), words_of(value))).collect()
}

fn words_of(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name} {}", words_of(value))).collect();
            fields.join(", ")
        }
        Value::Number(number) if number.is_f64() => format!("{:.1}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Everything as one JSON object on one line, the outcome included.
pub fn json(outcome: &Outcome, answer: Option<&Path>, report: Option<&Path>) -> Value {
    json!({
        "outcome": outcome.verdict.to_string(),
        "exit_code": outcome.verdict.code(),
        "answer": answer.map(|path| path.display().to_string()),
        "report": report.map(|path| path.display().to_string()),
        "answer_ms": outcome.played.len() * 1000 / crate::playout::RATE as usize,
        "timeline": outcome.moments,
        "figures": outcome.figures,
        "received_ms": outcome.received_ms,
        "sent_ms": outcome.sent_ms,
        "underruns": outcome.underruns,
        "rejoins": outcome.rejoins,
        "dropped": outcome.dropped,
        "bridge": {
            "summaries": outcome.bridge.summaries,
            "stats": outcome.bridge.stats,
            "closed": outcome.bridge.closed,
        },
    })
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

/// Text from elsewhere as one line of a terminal.
pub fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_control()).collect::<Vec<_>>().join(" ")
}
