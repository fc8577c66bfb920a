//! The page about one call: how it came out, what was said when, how it sounded, what it took.

use std::fmt::Write as _;
use std::time::SystemTime;

use watch_audio::engine::EngineKind;

use self::events::Event;
use self::span::Span;
use super::{date_and_time, escape, page};
use crate::call::Outcome;
use crate::verdict::Verdict;

mod delays;
mod events;
mod numbers;
mod span;
mod time_line;

/// What the page says of a call besides its outcome.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The engine that was asked for.
    pub engine: EngineKind,
    /// When the call began.
    pub began: SystemTime,
}

/// The page about a call, however it came out. What was said is in it.
pub fn html(outcome: &Outcome, about: &About) -> String {
    let engine = name_of(about.engine);
    let events = events::of(outcome);
    let span = Span::of(outcome);
    let mut body = header(outcome, about, &span);
    body += &numbers::steps(outcome);
    body += &time_line::section(outcome, about.engine, &events, &span);
    body += &what_happened(&events);
    body += &numbers::section(outcome, about.engine);
    let _ = writeln!(
        body,
        "<footer>watch-audio-probe {}. What was said in this call is on this page: keep it as you keep the recording.</footer>",
        env!("CARGO_PKG_VERSION"),
    );
    page(&format!("Call with {engine}: {}", outcome.verdict), &body)
}

/// What stands in the file until the call is over, and stays if the probe does not live that long.
pub fn unfinished(about: &About) -> String {
    let body = format!(
        "<header><p class=\"kind\">Call with {}</p>\n<h1>The call is on, or the probe was killed in it</h1>\n\
         <p class=\"about\">Began {} UTC. The report takes the place of this page when the call is over.</p></header>\n",
        name_of(about.engine),
        date_and_time(about.began),
    );
    page("A call without an end", &body)
}

fn header(outcome: &Outcome, about: &About, span: &Span) -> String {
    let (class, words) = match &outcome.verdict {
        Verdict::Done => ("good", "The answer was heard to its end".to_owned()),
        verdict => ("bad", capital(&verdict.to_string())),
    };
    let length =
        if outcome.zero.is_some() { format!("{:.1} s", span.seconds_from_zero()) } else { "not started".into() };
    format!(
        "<header><p class=\"kind\">Call with {}</p>\n<h1 class=\"{class}\"><bdi>{}</bdi></h1>\n\
         <p class=\"about\">{} UTC, {length}, exit code {}{}</p></header>\n",
        name_of(about.engine),
        escape(&words),
        date_and_time(about.began),
        outcome.verdict.code(),
        meaning(&outcome.verdict),
    )
}

/// What the exit code means, and what to look at next.
fn meaning(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Done => "",
        Verdict::Fault(_) => ": a fault of ours; with --log-level debug the bridge says more",
        Verdict::BadUse(_) => ": bad use",
        Verdict::Refused(_) => ": the relay or the grant was refused; look at the relay’s address and the pairing",
        Verdict::EngineRefused(..) => ": the engine refused; look at the sign-in, or try again where it was busy",
        Verdict::Broke(_) => ": the call broke; the time line shows where",
        Verdict::NoAnswer(_) => ": no answer was heard to its end; --seconds gives it longer",
        Verdict::Interrupted(_) => ": ended by a signal, in order",
    }
}

/// Every moment in its order: the time line in words.
fn what_happened(events: &[Event]) -> String {
    if events.is_empty() {
        return "<p>Nothing had happened by then: the call did not get as far as the relay.</p>\n".to_owned();
    }
    let mut html = String::from(
        "<section><h2>What happened</h2>\n<div class=\"scroll\"><table class=\"moments\">\n<thead><tr><th scope=\"col\">No.</th>\
         <th scope=\"col\" class=\"figure\">Time, s</th><th scope=\"col\">What</th></tr></thead>\n<tbody>\n",
    );
    for event in events {
        let _ = write!(
            html,
            "<tr id=\"m{0}\"><th scope=\"row\"><span class=\"mark {1}\">{0}</span></th><td class=\"figure\">{2}</td><td>{3}",
            event.number,
            event.side.class(),
            seconds(event.ms),
            escape(event.name),
        );
        if !event.detail.is_empty() {
            let class = if event.words { "said" } else { "detail" };
            let _ = write!(html, " <bdi class=\"{class}\">{}</bdi>", escape(event.detail));
        }
        html += "</td></tr>\n";
    }
    html + "</tbody></table></div></section>\n"
}

fn seconds(ms: i64) -> String {
    format!("{}{:.2}", if ms <= -5 { "−" } else { "" }, ms.unsigned_abs() as f64 / 1000.0)
}

fn name_of(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::GptLive => "GPT-Live",
        EngineKind::Grok => "Grok",
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests;
