//! What happened in a call, and when.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// The moments of a call as they happen. Times are told from the first `started`, where the recording begins too.
#[derive(Debug, Default)]
pub struct Timeline {
    zero: Option<Instant>,
    moments: Vec<(Instant, What, String)>,
    /// The last words of a running text.
    last_words: Option<Instant>,
}

/// One moment, for reports and tests.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Milliseconds since the first `started`; what came before it is negative.
    pub ms: i64,
    /// What it was.
    pub what: What,
    /// More about it, for a person.
    pub detail: String,
}

/// The kinds of moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The relay gave a grant and the bridge took it.
    Grant,
    /// The Watch is on the relay and asked for the engine.
    Start,
    /// The relay or the host was not ready; the Watch tries again.
    Retry,
    /// The engine is there.
    Started,
    /// The user begins to speak.
    Question,
    /// The user has spoken.
    QuestionEnd,
    /// The engine understood the user, up to here.
    Heard,
    /// The engine hands work over.
    Delegation,
    /// The agent uses a tool, or asks for an approval.
    Work,
    /// The answer of that work went to the engine.
    Answer,
    /// The engine's transcript of itself begins.
    Said,
    /// The Watch begins to play speech.
    Speech,
    /// The speech is over.
    SpeechEnd,
    /// A reply that the engine set apart begins to be played (Grok).
    Reply,
    /// The engine says that the user speaks over its reply.
    Notice,
    /// What was not played was dropped.
    Flush,
    /// A tap on the Watch.
    Tap,
    /// The engine complains; the call goes on.
    Complaint,
    /// The host says `error`.
    Error,
    /// The connection to the relay is gone.
    Lost,
    /// The Watch says `end`.
    End,
    /// The host says `ended`.
    Ended,
}

impl Timeline {
    /// Notes a moment.
    pub fn note(&mut self, at: Instant, what: What, detail: impl Into<String>) {
        self.moments.push((at, what, detail.into()));
    }

    /// Sets the time that is told as zero; only the first call counts.
    pub fn start(&mut self, at: Instant) -> Instant {
        *self.zero.get_or_insert(at)
    }

    /// When the first `started` came.
    pub fn zero(&self) -> Option<Instant> {
        self.zero
    }

    /// Notes words of a running text: joined to the ones before as long as nobody else spoke and nothing else began; a
    /// fragment that goes on carries its own space. What the user said is placed where it was complete, what the engine
    /// says where it began.
    pub fn words(&mut self, at: Instant, what: What, words: &str, whole: bool) {
        let since = self.last_words.replace(at).map(|last| at - last);
        let pause = if words.starts_with(' ') { PAUSE } else { PAUSE_BEFORE_A_BEGINNING };
        let goes_on = since.is_some_and(|since| whole || since < pause) && !self.begins_anew(what, words);
        let last = self.moments.iter_mut().rev().find(|(_, what, _)| matches!(what, What::Heard | What::Said));
        let Some((last_at, _, text)) = last.filter(|(_, last, _)| goes_on && *last == what) else {
            return self.note(at, what, words.trim_start());
        };
        if whole {
            words.clone_into(text);
        } else {
            text.push_str(words);
        }
        if what == What::Heard {
            *last_at = at;
        }
    }

    /// Whether the last words of this kind were whole, and these begin another sentence without the space that goes on.
    fn begins_anew(&self, what: What, words: &str) -> bool {
        let last = self.moments.iter().rev().find(|(_, last, _)| *last == what);
        let whole = last.is_some_and(|(.., text)| text.trim_end().ends_with(['.', '?', '!']));
        whole && words.starts_with(char::is_uppercase)
    }

    /// Ends a running text: what comes next is another.
    pub fn end_words(&mut self) {
        self.last_words = None;
    }

    /// All moments in their order in time.
    pub fn moments(&self) -> Vec<Moment> {
        let zero = self.zero.or(self.moments.last().map(|(at, ..)| *at));
        let mut moments: Vec<Moment> = self
            .moments
            .iter()
            .map(|(at, what, detail)| Moment {
                ms: zero.map_or(0, |zero| signed_ms(*at, zero)),
                what: *what,
                detail: detail.clone(),
            })
            .collect();
        moments.sort_by_key(|moment| moment.ms);
        moments
    }
}

fn signed_ms(at: Instant, zero: Instant) -> i64 {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    if at >= zero { ms(at - zero) } else { -ms(zero - at) }
}

impl What {
    /// The words for a report.
    pub fn words(self) -> &'static str {
        match self {
            Self::Grant => "grant taken",
            Self::Start => "start asked for",
            Self::Retry => "trying again",
            Self::Started => "started",
            Self::Question => "question begins",
            Self::QuestionEnd => "question ends",
            Self::Heard => "engine heard",
            Self::Delegation => "delegation",
            Self::Work => "agent",
            Self::Answer => "answer handed over",
            Self::Said => "engine says",
            Self::Speech => "speech begins",
            Self::SpeechEnd => "speech ends",
            Self::Reply => "reply begins",
            Self::Notice => "engine notices the user",
            Self::Flush => "playing stopped",
            Self::Tap => "tap",
            Self::Complaint => "engine complains",
            Self::Error => "error",
            Self::Lost => "connection lost",
            Self::End => "end said",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Debug for Moment {
    /// With its detail where that says why something went wrong; others may be speech.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Retry | What::Error | What::Lost | What::Ended => {
                write!(f, "{} {:?} ({})", self.ms, self.what, self.detail)
            }
            _ => write!(f, "{} {:?}", self.ms, self.what),
        }
    }
}

/// Fragments of one utterance come closer together than this.
const PAUSE: Duration = Duration::from_millis(1500);
/// A fragment without a space may be the rest of a word, but then it comes with the next slot of 200 ms.
const PAUSE_BEFORE_A_BEGINNING: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_join_and_moments_come_in_order() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut timeline = Timeline::default();
        timeline.note(at(0), What::Start, "");
        timeline.start(at(500));
        timeline.words(at(600), What::Heard, " what", false);
        timeline.words(at(700), What::Said, "Well", false);
        timeline.words(at(900), What::Said, ", yes", false);
        timeline.words(at(800), What::Heard, " and", false);
        timeline.words(at(950), What::Heard, " more", false);
        timeline.words(at(1000), What::Said, "One moment", false);
        timeline.words(at(1010), What::Said, ".", false);
        timeline.words(at(1020), What::Said, "Sunny", false);
        timeline.words(at(1030), What::Said, ".", false);
        timeline.end_words();
        timeline.words(at(1040), What::Said, " and", false);
        let moments: Vec<_> =
            timeline.moments().into_iter().map(|moment| (moment.ms, moment.what, moment.detail)).collect();
        let expected = [
            (-500, What::Start, ""),
            (100, What::Heard, "what"),
            (200, What::Said, "Well, yes"),
            (450, What::Heard, "and more"),
            (500, What::Said, "One moment."),
            (520, What::Said, "Sunny."),
            (540, What::Said, "and"),
        ];
        assert_eq!(moments, expected.map(|(ms, what, detail)| (ms, what, detail.to_owned())));
    }
}
