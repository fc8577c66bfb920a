//! Delay and jitter over a call, as a Watch sees them.

use std::time::Duration;

use watch_audio::engine::EngineKind;

use super::span::Span;
use crate::arrivals::{Measured, jitter};
use crate::call::Outcome;
use crate::page::plot::{Kind, Line, Plot};

/// What was measured, by name.
pub(super) fn measured(outcome: &Outcome, engine: EngineKind) -> Vec<(&'static str, Vec<Measured>)> {
    let ahead = engine == EngineKind::Grok;
    let deviations = outcome.arrivals.deviations(ahead);
    let mut all = Vec::new();
    if !ahead {
        all.push((BEHIND, outcome.arrivals.behind()));
    }
    all.extend([(WAITING, outcome.arrivals.waiting()), (JITTER, jitter(&deviations)), (DEVIATION, deviations)]);
    all
}

/// The plots below the time line, on the same time.
pub(super) fn plots(outcome: &Outcome, engine: EngineKind, span: &Span) -> String {
    let measured = measured(outcome, engine);
    if measured.iter().all(|(_, values)| values.is_empty()) {
        return String::new();
    }
    let plot = |title: &str, names: [&str; 2]| Plot {
        title: title.into(),
        x_label: "s".into(),
        y_label: "ms".into(),
        kind: Kind::Line,
        lines: measured
            .iter()
            .filter(|(name, _)| names.contains(name))
            .map(|(name, values)| line(name, values))
            .collect(),
        x: Some(span.scale()),
    };
    plot("Delay", [BEHIND, WAITING]).figure() + &plot("Jitter", [JITTER, DEVIATION]).figure()
}

/// How the figures came about.
pub(super) fn how(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::GptLive => {
            "Measured at the Watch’s end, where no clock of the engine’s is known. Behind: by how much less sound had come \
             with a message than time had passed, against the best message of the stream; it rises when sound is late and \
             stays up where sound was left out. Waiting: sound in the Watch that is still to be played. Deviation: by how \
             much the time between two messages differs from the sound in them; jitter is its running mean as RFC 3550 has it."
        }
        EngineKind::Grok => {
            "Measured at the Watch’s end. A reply comes faster than real time and is kept up to 1.5 s ahead, so the sound \
             that waits in the Watch is no delay but what a stall may last. Deviation: by how much the time between two \
             messages differs from the sound in them, once a reply is ahead; jitter is its running mean as RFC 3550 has it."
        }
    }
}

fn line(name: &str, values: &[Measured]) -> Line {
    let mut points = Vec::with_capacity(values.len());
    let mut last: Option<Duration> = None;
    for (at, value) in values {
        if last.is_some_and(|last| *at > last + BREAK) {
            points.push((at.as_secs_f64(), f64::NAN));
        }
        last = Some(*at);
        points.push((at.as_secs_f64(), value.as_secs_f64() * 1000.0));
    }
    Line { name: name.into(), points }
}

const BEHIND: &str = "behind real time";
const WAITING: &str = "waiting in the Watch";
const JITTER: &str = "jitter (RFC 3550)";
const DEVIATION: &str = "deviation of each message";
/// Over a longer pause there is nothing to draw a line through.
const BREAK: Duration = Duration::from_millis(600);
