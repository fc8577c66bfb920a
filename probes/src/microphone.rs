//! The Watch's microphone: a recording spoken into it in real time, silence otherwise, in messages of about 100 ms.

use std::time::Duration;

use crate::speech::Speech;

/// A live microphone. It captures all the time; the caller decides what is sent. Time is a duration since it opened.
#[derive(Debug)]
pub struct Microphone {
    rate: u32,
    question: Vec<i16>,
    /// Where the question's first loud sample is, in samples.
    speech_start: usize,
    /// Where in the question's last loud sample ends, in samples; its whole length when it is quiet throughout.
    speech_end: usize,
    /// The next sample of the question to be captured, while it is spoken.
    speaking: Option<usize>,
    captured: u64,
    messages: u64,
    ends: Vec<Duration>,
    block: Vec<i16>,
}

impl Microphone {
    /// Opens a microphone of this rate in Hz, in silence.
    pub fn new(rate: u32, question: Vec<i16>) -> Self {
        let mut speech = Speech::new(rate);
        speech.push(0, &question);
        let speech_start = speech.spans().first().map_or(0, |span| samples_of(span.start, rate) as usize);
        let speech_end = speech.last_end().map_or(question.len(), |end| samples_of(end, rate) as usize);
        Self {
            rate,
            question,
            speech_start,
            speech_end,
            speaking: None,
            captured: 0,
            messages: 0,
            ends: Vec::new(),
            block: Vec::new(),
        }
    }

    /// Speaks the question from the next message on, from its beginning. Answers when its speech begins: that message has
    /// been running since the last one was complete.
    pub fn speak(&mut self) -> Duration {
        self.speaking = Some(0);
        self.time(self.captured + self.speech_start as u64)
    }

    /// Whether the question is being spoken.
    pub fn speaking(&self) -> bool {
        self.speaking.is_some()
    }

    /// When the next message is complete: absolute, so a late caller does not make the microphone slow.
    pub fn due(&self) -> Duration {
        self.time(self.captured + self.message_length())
    }

    /// The message that is complete at [`Microphone::due`].
    pub fn capture(&mut self) -> &[i16] {
        let length = self.message_length();
        self.block.clear();
        if let Some(from) = self.speaking {
            let to = (from + length as usize).min(self.question.len());
            self.block.extend_from_slice(&self.question[from..to]);
            if (from..to).contains(&self.speech_end.saturating_sub(1)) {
                self.ends.push(self.time(self.captured + (self.speech_end - from) as u64));
            }
            self.speaking = (to < self.question.len()).then_some(to);
        }
        self.block.resize(length as usize, 0);
        self.captured += length;
        self.messages += 1;
        &self.block
    }

    /// When the speech of each spoken question was over.
    pub fn speech_ends(&self) -> &[Duration] {
        &self.ends
    }

    fn message_length(&self) -> u64 {
        let length = MESSAGES[(self.messages % MESSAGES.len() as u64) as usize];
        samples_of(length, self.rate)
    }

    fn time(&self, sample: u64) -> Duration {
        Duration::from_nanos(sample * 1_000_000_000 / u64::from(self.rate))
    }
}

fn samples_of(time: Duration, rate: u32) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The lengths of a deployed Watch's messages (`watch-audio.md`).
const MESSAGES: [Duration; 2] = [Duration::from_millis(85), Duration::from_millis(107)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_absolute_times_and_silence_follows_the_question() {
        let mut question = vec![0; 1600];
        question.extend([9000; 1600]);
        question.extend([0; 800]);
        let mut microphone = Microphone::new(16_000, question.clone());
        let mut captured = Vec::new();
        assert_eq!(microphone.speak(), Duration::from_millis(100));
        for _ in 0..100 {
            let due = microphone.due();
            captured.extend_from_slice(microphone.capture());
            assert_eq!(due, Duration::from_nanos(captured.len() as u64 * 62_500));
        }
        assert_eq!(captured[..4000], question);
        assert!(captured[4000..].iter().all(|&s| s == 0));
        assert_eq!(captured.len(), 50 * (1360 + 1712));
        assert_eq!(microphone.speech_ends(), [Duration::from_millis(200)]);
    }

    #[test]
    fn a_question_can_be_spoken_twice() {
        let mut microphone = Microphone::new(24_000, vec![9000; 2400]);
        microphone.capture();
        assert_eq!(microphone.speak(), Duration::from_millis(85));
        microphone.capture();
        assert!(!microphone.speaking());
        assert_eq!(microphone.speak(), Duration::from_millis(192));
        while microphone.speaking() {
            microphone.capture();
        }
        assert_eq!(microphone.speech_ends(), [Duration::from_millis(185), Duration::from_millis(292)]);
    }
}
