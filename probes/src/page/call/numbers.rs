//! The figures of a call, in tables.

use std::fmt::Write as _;

use serde_json::Value;
use watch_audio::engine::EngineKind;

use super::delays;
use crate::call::Outcome;
use crate::figures::BargeIn;
use crate::page::scale::number;
use crate::page::{Cell, escape, table};
use crate::timeline::What;

/// What one asks first, large.
pub(super) fn steps(outcome: &Outcome) -> String {
    let figures = &outcome.figures;
    let barge_in = figures.barge_in.as_ref();
    let to_last_old = format!("{} to the last old sound", barge_in.map_or("notice", BargeIn::since));
    let mut html = String::new();
    for (name, ms) in [
        ("question end to first speech", figures.question_to_speech_ms),
        ("delegation to answer", figures.delegation_to_answer_ms),
        ("answer to first speech", figures.answer_to_speech_ms),
        ("barge-in to the engine’s notice", barge_in.and_then(|barge_in| barge_in.notice_ms)),
        (&*to_last_old, barge_in.and_then(|barge_in| barge_in.last_old_played_ms)),
    ] {
        if let Some(ms) = ms {
            let _ = writeln!(html, "<div><dt>{name}</dt><dd>{} <small>ms</small></dd></div>", number(ms as f64));
        }
    }
    if outcome.zero.is_some() {
        let played = seconds(figures.speech_ms.unsigned_abs());
        let _ = writeln!(html, "<div><dt>speech played</dt><dd>{played} <small>s</small></dd></div>");
        let _ =
            writeln!(html, "<div><dt>speaker ran dry</dt><dd>{} <small>times</small></dd></div>", outcome.underruns);
    }
    if html.is_empty() { html } else { format!("<dl class=\"steps\">\n{html}</dl>\n") }
}

/// All of them.
pub(super) fn section(outcome: &Outcome, engine: EngineKind) -> String {
    let mut html = String::new();
    if outcome.moments.iter().any(|moment| moment.what == What::Started) {
        html += &watch(outcome);
        html += &spread(outcome, engine);
    }
    let sessions = outcome.bridge.summaries.len();
    for (n, summary) in outcome.bridge.summaries.iter().enumerate() {
        let of = if sessions > 1 { format!(", session {} of {sessions}", n + 1) } else { String::new() };
        html += &bridge(summary, &of);
    }
    html += &last_words(outcome);
    if html.is_empty() {
        return html;
    }
    format!("<section><h2>Numbers</h2>\n<div class=\"numbers\">\n{html}</div></section>\n")
}

/// What the Watch counted.
fn watch(outcome: &Outcome) -> String {
    let figures = &outcome.figures;
    let ms = |ms: Option<i64>| ms.map(|ms| format!("{} ms", number(ms as f64)));
    let barge_in = figures.barge_in.as_ref();
    let since = barge_in.map_or("notice", BargeIn::since);
    let (come, played) = (format!("{since} to last old audio come"), format!("{since} to last old sound played"));
    let rows = [
        ("question end to heard", ms(figures.question_to_heard_ms)),
        ("question end to first speech", ms(figures.question_to_speech_ms)),
        ("delegation to answer", ms(figures.delegation_to_answer_ms)),
        ("answer to first speech", ms(figures.answer_to_speech_ms)),
        ("barge-in to the engine’s notice", ms(barge_in.and_then(|barge_in| barge_in.notice_ms))),
        (&*come, ms(barge_in.and_then(|barge_in| barge_in.last_old_arrived_ms))),
        (&*played, ms(barge_in.and_then(|barge_in| barge_in.last_old_played_ms))),
        ("speech played", Some(format!("{} s", seconds(figures.speech_ms.unsigned_abs())))),
        ("audio from the engine", Some(format!("{} s", seconds(outcome.received_ms)))),
        ("microphone audio sent", Some(format!("{} s", seconds(outcome.sent_ms)))),
        ("speaker ran dry", Some(outcome.underruns.to_string())),
        ("joined again", Some(outcome.rejoins.to_string())),
        ("messages that did not open", Some(outcome.dropped.to_string())),
    ];
    let rows = rows.into_iter().filter_map(|(name, value)| Some(vec![words(name), Cell::Figure(value?)]));
    table("At the Watch", &[String::new(), String::new()], &rows.collect::<Vec<_>>())
}

/// Delay and jitter, as ranks.
fn spread(outcome: &Outcome, engine: EngineKind) -> String {
    let ranks = |values: &[f64]| RANKS.map(|share| Cell::Figure(number(rank(values, share))));
    let rows: Vec<Vec<Cell>> = delays::measured(outcome, engine)
        .into_iter()
        .filter(|(_, measured)| !measured.is_empty())
        .map(|(name, measured)| {
            let mut values: Vec<f64> = measured.iter().map(|(_, value)| value.as_secs_f64() * 1000.0).collect();
            values.sort_by(f64::total_cmp);
            [words(name)].into_iter().chain(ranks(&values)).collect()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table("Delay and jitter at the Watch, ms", &COLUMNS.map(str::to_owned), &rows)
        + &format!("<p class=\"note\">{}</p>\n", delays::how(engine))
}

/// A session's summary as the bridge gave it: percentiles in one table, the rest in another.
fn bridge(summary: &Value, of: &str) -> String {
    let (mut spreads, mut rest) = (Vec::new(), Vec::new());
    flatten("", summary, &mut spreads, &mut rest);
    let mut html = String::new();
    if !spreads.is_empty() {
        html += &table(&format!("Delay and jitter at the bridge, ms{of}"), &COLUMNS.map(str::to_owned), &spreads);
    }
    html + &table(&format!("Counted at the bridge{of}"), &[String::new(), String::new()], &rest)
}

fn flatten(path: &str, value: &Value, spreads: &mut Vec<Vec<Cell>>, rest: &mut Vec<Vec<Cell>>) {
    let named = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}, {name}") };
    match value {
        Value::Object(fields) if fields.contains_key("p50") => {
            let rank =
                |name: &str| Cell::Figure(fields.get(name).and_then(Value::as_f64).map_or_else(|| "–".into(), number));
            let ranks = COLUMNS[1..].iter().map(|name| rank(name));
            spreads.push([words(path.trim_end_matches(" ms"))].into_iter().chain(ranks).collect());
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&named(&name.replace('_', " ")), value, spreads, rest);
            }
        }
        Value::Number(figure) => {
            let (name, unit) =
                [" ms", " s"].into_iter().find_map(|unit| Some((path.strip_suffix(unit)?, unit))).unwrap_or((path, ""));
            let figure = figure.as_f64().map_or_else(|| "–".into(), number);
            rest.push(vec![words(name), Cell::Figure(format!("{figure}{unit}"))]);
        }
        Value::String(text) => rest.push(vec![words(path), words(text)]),
        other => rest.push(vec![words(path), words(&other.to_string())]),
    }
}

/// How the bridge ended, and what it said of the relay.
fn last_words(outcome: &Outcome) -> String {
    let bridge = &outcome.bridge;
    let troubles = bridge.relay.iter().map(|trouble| format!("The relay: {trouble}"));
    let closed = bridge.closed.iter().map(|reason| format!("The bridge’s last word: {reason}"));
    let exit = bridge.exit.iter().map(|code| format!("The bridge’s exit code: {code}"));
    let mut html = String::new();
    for line in troubles.chain(closed).chain(exit) {
        let _ = write!(html, "<li><bdi>{}</bdi></li>", escape(&line));
    }
    if html.is_empty() { html } else { format!("<ul class=\"last\">{html}</ul>\n") }
}

fn words(text: &str) -> Cell {
    Cell::Words(text.to_owned())
}

fn seconds(ms: u64) -> String {
    format!("{:.1}", ms as f64 / 1000.0)
}

/// The value that a `share` of the sorted `values` does not exceed.
fn rank(values: &[f64], share: f64) -> f64 {
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

const COLUMNS: [&str; 5] = ["", "p50", "p95", "p99", "max"];
const RANKS: [f64; 4] = [0.5, 0.95, 0.99, 1.0];
