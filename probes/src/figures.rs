//! The figures of a call: how long each step took, as its user felt it.

use serde::Serialize;

use crate::speech::{Span, Speech};
use crate::timeline::{Moment, What};

/// What a call took, in milliseconds. A step that did not happen is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// From the end of the question to the last of the engine's transcript of it.
    pub question_to_heard_ms: Option<i64>,
    /// From the end of the question to the first speech that is played.
    pub question_to_speech_ms: Option<i64>,
    /// From the delegation to the answer given to the engine.
    pub delegation_to_answer_ms: Option<i64>,
    /// From that answer to the first speech, or reply of Grok's, that begins after it.
    pub answer_to_speech_ms: Option<i64>,
    /// Speech played, pauses within it included.
    pub speech_ms: i64,
    /// The barge-in, if there was one.
    pub barge_in: Option<BargeIn>,
}

/// A barge-in, in milliseconds from the moment the user began to speak over the reply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BargeIn {
    /// When the user began, on the call's time line.
    pub at_ms: i64,
    /// When the engine's notice of it was there (Grok's `speech_started`).
    pub notice_ms: Option<i64>,
    /// From the notice to the last audio of the old reply that still arrived; 0 when none did. Without a notice, from
    /// the user's beginning to the last of it that was no quiet.
    pub last_old_arrived_ms: Option<i64>,
    /// From the notice to the last sound of the old reply that was played; 0 when none was. Without a notice, from the
    /// user's beginning.
    pub last_old_played_ms: Option<i64>,
}

impl BargeIn {
    /// What the time to the old reply's end counts from.
    pub fn since(&self) -> &'static str {
        if self.notice_ms.is_some() { "notice" } else { "barge-in" }
    }
}

impl Figures {
    /// Works the figures out of a call's moments, of what was played, and of what arrived.
    pub fn of(moments: &[Moment], played: &Speech, arrived: &Speech) -> Self {
        let first = |what| moments.iter().find(|moment| moment.what == what).map(|moment| moment.ms);
        let question_end = first(What::QuestionEnd);
        let delegation = first(What::Delegation);
        let answer = first(What::Answer);
        let speech_after = |after: Option<i64>| {
            after.and_then(|after| played.spans().iter().map(|span| ms(span.start)).find(|start| *start >= after))
        };
        let reply_after = |after: Option<i64>| {
            let replies = moments.iter().filter(|moment| moment.what == What::Reply).map(|moment| moment.ms);
            replies.chain(speech_after(after)).filter(|reply| after.is_some_and(|after| *reply >= after)).min()
        };
        let first_speech = speech_after(question_end);
        let heard_by = delegation.or(first_speech).unwrap_or(i64::MAX);
        let heard = moments.iter().rev().find(|moment| moment.what == What::Heard && moment.ms <= heard_by);
        Self {
            question_to_heard_ms: question_end.and_then(|end| Some(heard?.ms - end)),
            question_to_speech_ms: question_end.and_then(|end| Some(first_speech? - end)),
            delegation_to_answer_ms: delegation.and_then(|delegation| Some(answer? - delegation)),
            answer_to_speech_ms: answer.and_then(|answer| Some(reply_after(Some(answer))? - answer)),
            speech_ms: i64::try_from(played.total().as_millis()).unwrap_or(i64::MAX),
            barge_in: BargeIn::of(moments, played, arrived),
        }
    }
}

impl BargeIn {
    fn of(moments: &[Moment], played: &Speech, arrived: &Speech) -> Option<Self> {
        let at = moments.iter().filter(|moment| moment.what == What::Question).nth(1)?.ms;
        let notice =
            moments.iter().find(|moment| moment.what == What::Notice && moment.ms >= at).map(|moment| moment.ms);
        let from = notice.unwrap_or(at);
        // What was on when the user began is the old reply; the next stretch is another.
        let last_of = |speech: &Speech| {
            let old: Option<Span> = speech.spans().iter().copied().rfind(|span| ms(span.start) <= at);
            old.map(|span| (ms(span.end) - from).max(0))
        };
        Some(Self {
            at_ms: at,
            notice_ms: notice.map(|notice| notice - at),
            last_old_arrived_ms: last_of(arrived),
            last_old_played_ms: last_of(played),
        })
    }
}

fn ms(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(ms: i64, what: What) -> Moment {
        Moment { ms, what, detail: String::new() }
    }

    fn speech(spans: &[(usize, usize)]) -> Speech {
        let mut speech = Speech::new(1000);
        for (start, end) in spans {
            speech.push(*start, &vec![5000; end - start]);
        }
        speech
    }

    #[test]
    fn a_call_with_a_filler_and_a_delegation() {
        let moments = [
            moment(0, What::Question),
            moment(2000, What::QuestionEnd),
            moment(2600, What::Heard),
            moment(2700, What::Delegation),
            moment(2900, What::Answer),
            moment(6000, What::Heard),
        ];
        let figures = Figures::of(&moments, &speech(&[(2850, 3700), (5000, 8000)]), &speech(&[]));
        let expected = Figures {
            question_to_heard_ms: Some(600),
            question_to_speech_ms: Some(850),
            delegation_to_answer_ms: Some(200),
            answer_to_speech_ms: Some(2100),
            speech_ms: 3850,
            barge_in: None,
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn a_barge_in_counts_from_the_notice_and_leaves_the_next_reply_out() {
        let moments = [
            moment(0, What::Question),
            moment(2000, What::QuestionEnd),
            moment(5000, What::Question),
            moment(5200, What::Notice),
        ];
        let figures =
            Figures::of(&moments, &speech(&[(3000, 5230), (9000, 9500)]), &speech(&[(2800, 5190), (8900, 9500)]));
        let expected =
            BargeIn { at_ms: 5000, notice_ms: Some(200), last_old_arrived_ms: Some(0), last_old_played_ms: Some(30) };
        assert_eq!(figures.barge_in, Some(expected));
    }
}
