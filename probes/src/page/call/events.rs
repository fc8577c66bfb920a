//! The moments of a call as a reader understands them: what was a filler, what was a barge-in.

use std::time::Duration;

use crate::call::Outcome;
use crate::timeline::{Moment, What};

/// One moment.
#[derive(Debug)]
pub(super) struct Event<'a> {
    pub(super) number: usize,
    /// On the call's time line.
    pub(super) ms: i64,
    pub(super) side: Side,
    pub(super) name: &'static str,
    pub(super) detail: &'a str,
    /// The detail is what somebody said.
    pub(super) words: bool,
    /// It is drawn through all lanes.
    pub(super) main: bool,
}

/// Whose moment it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    User,
    Engine,
    Work,
    Stop,
    Trouble,
    Plumbing,
}

impl Side {
    pub(super) const ALL: [Self; 6] = [Self::User, Self::Engine, Self::Work, Self::Stop, Self::Trouble, Self::Plumbing];

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Engine => "engine",
            Self::Work => "work",
            Self::Stop => "stop",
            Self::Trouble => "trouble",
            Self::Plumbing => "plumbing",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => "the user",
            Self::Engine => "the engine",
            Self::Work => "work handed over",
            Self::Stop => "playing stops",
            Self::Trouble => "trouble",
            Self::Plumbing => "the connection",
        }
    }
}

/// What the engine says while the work is done, before the answer of that work: the speech that begins between a question
/// and the answer handed over, unless an answer is still owed its speech.
pub(super) fn is_filler(moments: &[Moment], speech_ms: i64) -> bool {
    let last = |what: What, from: i64| {
        moments.iter().rev().find(|moment| moment.what == what && moment.ms < from).map(|moment| moment.ms)
    };
    let Some(asked) = last(What::QuestionEnd, speech_ms) else { return false };
    let owed = last(What::Answer, speech_ms) > last(What::Speech, speech_ms);
    let since = |what: What, from: i64| moments.iter().any(|moment| moment.what == what && moment.ms >= from);
    let never_answered = since(What::Delegation, asked) && !since(What::Answer, asked);
    !owed && (since(What::Answer, speech_ms) || never_answered)
}

/// The moments of a call, in their order.
pub(super) fn of(outcome: &Outcome) -> Vec<Event<'_>> {
    outcome.moments.iter().enumerate().map(|(n, moment)| event(outcome, n + 1, moment)).collect()
}

fn event<'a>(outcome: &Outcome, number: usize, moment: &'a Moment) -> Event<'a> {
    let (side, name, main) = match moment.what {
        What::Question if plays(outcome, moment.ms) => (Side::User, "barge-in: the user speaks over the reply", true),
        What::Speech if is_filler(&outcome.moments, moment.ms) => (Side::Engine, "filler begins", true),
        What::Speech => (Side::Engine, "speech begins", true),
        What::QuestionEnd | What::Tap => (Side::User, moment.what.words(), true),
        What::Question | What::Heard => (Side::User, moment.what.words(), false),
        What::Said | What::SpeechEnd | What::Reply | What::Notice => (Side::Engine, moment.what.words(), false),
        What::Delegation | What::Answer => (Side::Work, moment.what.words(), true),
        What::Work => (Side::Work, moment.what.words(), false),
        What::Flush => (Side::Stop, moment.what.words(), true),
        What::Complaint | What::Error | What::Lost | What::Retry => (Side::Trouble, moment.what.words(), true),
        What::Grant | What::Start | What::Started | What::End | What::Ended => {
            (Side::Plumbing, moment.what.words(), false)
        }
    };
    let words = matches!(moment.what, What::Heard | What::Said);
    Event { number, ms: moment.ms, side, name, detail: &moment.detail, words, main }
}

/// Whether speech is played at a moment.
fn plays(outcome: &Outcome, at_ms: i64) -> bool {
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    outcome.speech.spans().iter().any(|span| (ms(span.start)..ms(span.end)).contains(&at_ms))
}
