//! What is said in a call, as lines on a terminal while it is said.

use std::time::Duration;

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The person on the call.
    User,
    /// The engine.
    Engine,
}

/// Puts fragments of two running texts into lines. No IO: [`Captions::words`] gives what to print.
#[derive(Debug, Default)]
pub struct Captions {
    line: Option<(Who, Duration)>,
}

impl Captions {
    /// What to print for words that came now. A fragment goes on its speaker's line; another speaker, a pause or a `whole`
    /// utterance begins a new one.
    pub fn words(&mut self, now: Duration, who: Who, words: &str, whole: bool) -> String {
        let words = words.split(|c: char| c.is_control()).collect::<Vec<_>>().join(" ");
        if words.trim().is_empty() {
            return String::new();
        }
        let goes_on = !whole && self.line.is_some_and(|(last, at)| last == who && now < at + PAUSE);
        let mut text = String::new();
        if !goes_on {
            text.push_str(self.end());
            text.push_str(match who {
                Who::User => "you:    ",
                Who::Engine => "engine: ",
            });
        }
        text.push_str(if goes_on { &words } else { words.trim_start() });
        self.line = Some((who, now));
        text
    }

    /// What to print before anything else goes on the terminal.
    pub fn end(&mut self) -> &'static str {
        if self.line.take().is_some() { "\n" } else { "" }
    }

    /// What to print once the words of the last line are over.
    pub fn handle_timeout(&mut self, now: Duration) -> &'static str {
        if self.line.is_some_and(|(_, at)| now >= at + PAUSE) { self.end() } else { "" }
    }

    /// Whether a line is begun and not ended.
    pub fn in_line(&self) -> bool {
        self.line.is_some()
    }
}

/// Fragments of one utterance come closer together than this.
const PAUSE: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_share_a_line_and_speakers_do_not() {
        let mut captions = Captions::default();
        let mut printed = String::new();
        for (ms, who, words) in [
            (0, Who::User, " what is"),
            (200, Who::User, " the weather"),
            (900, Who::Engine, "It is"),
            (1100, Who::Engine, " fine.\u{1b}"),
            (4000, Who::Engine, "Yes."),
        ] {
            printed += &captions.words(Duration::from_millis(ms), who, words, false);
        }
        printed += captions.end();
        printed += captions.end();
        assert_eq!(printed, "you:    what is the weather\nengine: It is fine. \nengine: Yes.\n");
    }

    #[test]
    fn whole_utterances_have_lines_of_their_own() {
        let mut captions = Captions::default();
        let now = Duration::ZERO;
        assert_eq!(captions.words(now, Who::User, "", true), "");
        assert_eq!(captions.words(now, Who::User, "one", true), "you:    one");
        assert_eq!(captions.words(now, Who::User, "two", true), "\nyou:    two");
    }
}
