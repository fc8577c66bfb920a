//! The picture of a call: both sounds, the work and the moments on one time line, delay and jitter below it.

use std::fmt::Write as _;
use std::time::Duration;

use watch_audio::engine::EngineKind;

use super::delays;
use super::events::{self, Event, Side};
use super::span::Span;
use crate::call::Outcome;
use crate::page::plot::x_ticks;
use crate::playout::RATE;
use crate::timeline::What;
use crate::waveform::Waveform;

/// The section with the picture.
pub(super) fn section(outcome: &Outcome, engine: EngineKind, events: &[Event], span: &Span) -> String {
    if events.is_empty() {
        return String::new();
    }
    let mut html = String::from("<section><h2>Time line</h2>\n<ul class=\"legend\">");
    for side in Side::ALL.into_iter().filter(|side| events.iter().any(|event| event.side == *side)) {
        let _ = write!(html, "<li><i class=\"mark {}\"></i>{}</li>", side.class(), side.name());
    }
    let _ = write!(
        html,
        "</ul>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Time line\">\
         <div class=\"lanes\" style=\"min-width:{}px\">\n",
        (span.length_ms() / 1000 * PIXELS_A_SECOND).clamp(0, 20_000),
    );
    html += &marks(events, span, "wide", 1000.0);
    html += &marks(events, span, "narrow", 300.0);
    if outcome.zero.is_some() {
        let mut played = Waveform::default();
        played.put(Duration::ZERO, RATE, &outcome.played);
        html += &lane("You: the microphone as it was sent", &microphone(&outcome.said, span), LANE, events, span);
        html += &work(outcome, events, span);
        html += &lane("The engine: what the Watch played", &speaker(outcome, &played, span), LANE, events, span);
    }
    let axis = x_ticks(&span.scale(), 0, 4);
    let _ = writeln!(
        html,
        "<svg width=\"100%\" height=\"44\" aria-hidden=\"true\">{axis}\
         <text class=\"end\" x=\"100%\" y=\"40\">seconds from “started” on</text></svg>"
    );
    html += &delays::plots(outcome, engine, span);
    html + "</div></div>\n</section>\n"
}

/// The numbered moments above the lanes; those that would overlap on a page so wide stand below each other.
fn marks(events: &[Event], span: &Span, class: &str, wide: f64) -> String {
    let apart = 100.0 * 20.0 / wide.max((span.length_ms() / 1000 * PIXELS_A_SECOND) as f64);
    let mut rows: Vec<f64> = Vec::new();
    let mut drawn = String::new();
    for event in events {
        let x = span.place(event.ms);
        let free = rows.iter().position(|last| x - last >= apart);
        let row = free.unwrap_or(if rows.len() < MOST_ROWS { rows.len() } else { MOST_ROWS - 1 });
        if row == rows.len() {
            rows.push(x);
        }
        rows[row] = x;
        let y = 10 + 21 * row;
        let _ = write!(
            drawn,
            "<a href=\"#m{0}\" tabindex=\"-1\" class=\"{1}\"><circle cx=\"{x:.2}%\" cy=\"{y}\" r=\"9\"/>\
             <text class=\"mid\" x=\"{x:.2}%\" y=\"{2}\">{0}</text></a>",
            event.number,
            event.side.class(),
            y + 4,
        );
    }
    let high = 21 * rows.len() + 4;
    let mut stems = String::new();
    for (event, x) in events.iter().filter(|event| event.main).map(|event| (event, span.place(event.ms))) {
        let _ = write!(
            stems,
            "<line class=\"stem {}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"10\" y2=\"{high}\"/>",
            event.side.class()
        );
    }
    format!("<svg class=\"marks {class}\" width=\"100%\" height=\"{high}\" aria-hidden=\"true\">{stems}{drawn}</svg>\n")
}

/// One lane: its name, its drawing, and the main moments through it.
fn lane(name: &str, drawing: &(String, String), high: usize, events: &[Event], span: &Span) -> String {
    let (svg, words) = drawing;
    let mut stems = String::new();
    for event in events.iter().filter(|event| event.main) {
        let x = span.place(event.ms);
        let _ = write!(
            stems,
            "<line class=\"stem {}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"-20\" y2=\"{high}\"/>",
            event.side.class()
        );
    }
    format!(
        "<p class=\"lane\">{name}</p>\n<svg width=\"100%\" height=\"{high}\" role=\"img\" aria-label=\"{name}. {words}\">\
         {svg}{stems}</svg>\n"
    )
}

/// What was sent, and where nothing was.
fn microphone(said: &Waveform, span: &Span) -> (String, String) {
    let mut svg = String::new();
    let (mut tags, mut from) = (Vec::new(), Duration::ZERO);
    let whole = Duration::from_millis(span.to.unsigned_abs());
    for (start, end) in said.stretches().into_iter().chain([(whole, whole)]) {
        if start > from + SHORTEST_CLOSED {
            svg += &rect("closed", from, start, LANE, span);
            tags.push((from + start) / 2);
        }
        from = end;
    }
    svg += &outline(said, "user", span);
    for middle in &tags {
        let place = span.place(i64::try_from(middle.as_millis()).unwrap_or_default());
        let _ = write!(svg, "<text class=\"tag closed mid\" x=\"{place:.2}%\" y=\"{}\">closed</text>", LANE - 6);
    }
    let words = match tags.len() {
        0 => "It was open all the time.".to_owned(),
        1 => "It was closed once (shaded).".to_owned(),
        times => format!("It was closed {times} times (shaded)."),
    };
    (svg, words)
}

/// What was played, with the stretches of speech in it.
fn speaker(outcome: &Outcome, played: &Waveform, span: &Span) -> (String, String) {
    let mut svg = String::new();
    let mut words = String::from("Speech");
    for stretch in outcome.speech.spans() {
        svg += &rect("speech", stretch.start, stretch.end, LANE, span);
        let _ = write!(words, " from {:.1} to {:.1} s,", stretch.start.as_secs_f64(), stretch.end.as_secs_f64());
    }
    svg += &outline(played, "engine", span);
    for stretch in outcome.speech.spans() {
        let from = i64::try_from(stretch.start.as_millis()).unwrap_or_default();
        if events::is_filler(&outcome.moments, from) {
            let _ = write!(svg, "<text class=\"tag\" x=\"{:.2}%\" y=\"12\">filler</text>", span.place(from));
        }
    }
    let words = if outcome.speech.spans().is_empty() {
        "Silence.".to_owned()
    } else {
        words.trim_end_matches(',').to_owned() + "."
    };
    (svg, words)
}

/// The work that the engine handed over: from the delegation to its answer.
fn work(outcome: &Outcome, events: &[Event], span: &Span) -> String {
    let times = |what| outcome.moments.iter().filter(move |moment| moment.what == what).map(|moment| moment.ms);
    let mut answers: Vec<i64> = times(What::Answer).collect();
    let (mut svg, mut words) = (String::new(), String::new());
    for from in times(What::Delegation) {
        let answer = answers.iter().position(|answer| *answer >= from).map(|place| answers.remove(place));
        let (class, to) = answer.map_or(("open", span.to), |answer| ("done", answer));
        let (x, width) = (span.place(from), span.place(to) - span.place(from));
        let _ = write!(
            svg,
            "<rect class=\"work {class}\" x=\"{x:.2}%\" width=\"{width:.2}%\" y=\"20\" height=\"12\" rx=\"3\"/>"
        );
        let _ = match answer {
            Some(answer) => write!(words, "{:.1} s of work. ", (answer - from) as f64 / 1000.0),
            None => write!(words, "Work without an answer. "),
        };
    }
    if svg.is_empty() {
        return String::new();
    }
    lane("Work: from the delegation to its answer", &(svg, words.trim_end().to_owned()), WORK_LANE, events, span)
}

fn rect(class: &str, from: Duration, to: Duration, high: usize, span: &Span) -> String {
    let place = |time: Duration| span.place(i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(span.to));
    let (x, end) = (place(from), place(to));
    format!("<rect class=\"{class}\" x=\"{x:.2}%\" width=\"{:.2}%\" height=\"{high}\"/>", (end - x).max(0.0))
}

/// A sound's outline, as high as the lane where it is loudest. Quiet is a line.
fn outline(sound: &Waveform, class: &str, span: &Span) -> String {
    let column_ms = (span.length_ms() / COLUMNS).max(10) / 10 * 10;
    let columns = sound.columns(Duration::from_millis(column_ms.unsigned_abs()));
    let loudest = columns.iter().flatten().map(|(low, high)| low.unsigned_abs().max(high.unsigned_abs())).max();
    let full = f64::from(loudest.unwrap_or_default().max(QUIETEST_FULL));
    let heard =
        |column: &Option<(i16, i16)>| column.filter(|(low, high)| f64::from(*high) - f64::from(*low) > full / 50.0);
    let mut path = String::new();
    let mut place = 0;
    for run in columns.chunk_by(|one, other| heard(one).is_some() == heard(other).is_some()) {
        let at = |n: usize| ((place + n) as i64 * column_ms - span.from) / 10;
        let y = |sample: i16| 50.0 - f64::from(sample) / full * 48.0;
        let edge: Vec<(i16, i16)> = run.iter().filter_map(heard).collect();
        for (n, (_, high)) in edge.iter().enumerate() {
            let _ = write!(path, "{}{} {:.0}", if n == 0 { 'M' } else { 'L' }, at(n), y(*high));
        }
        for (n, (low, _)) in edge.iter().enumerate().rev() {
            let _ = write!(path, "L{} {:.0}", at(n), y(*low));
        }
        if !edge.is_empty() {
            path.push('Z');
        }
        place += run.len();
    }
    format!(
        "<line class=\"base\" x1=\"{:.2}%\" x2=\"100%\" y1=\"{1}\" y2=\"{1}\"/>\
         <svg width=\"100%\" height=\"{LANE}\" viewBox=\"0 0 {2} 100\" preserveAspectRatio=\"none\">\
         <path class=\"wave {class}\" d=\"{path}\"/></svg>",
        span.place(0),
        LANE / 2,
        (span.length_ms() / 10).max(1),
    )
}

/// How high the lane of a sound is, in pixels.
const LANE: usize = 84;
/// How high the lane of the work is.
const WORK_LANE: usize = 38;
/// A long call is as wide as this asks for, and scrolls.
const PIXELS_A_SECOND: i64 = 8;
/// More rows of marks are no clearer.
const MOST_ROWS: usize = 7;
/// Columns of a waveform: more are not seen.
const COLUMNS: i64 = 1200;
/// What is quieter than this throughout is drawn as the quiet that it is.
const QUIETEST_FULL: u16 = 1000;
/// A hole between two messages is none in the sound.
const SHORTEST_CLOSED: Duration = Duration::from_millis(150);
