//! Where a stream is loud: the stretches of speech in it.

use std::time::Duration;

use watch_audio_media::pcm::QUIET_PEAK;

/// The stretches of sound in a stream, with the quiet between them.
#[derive(Debug, Clone)]
pub struct Speech {
    rate: u32,
    spans: Vec<Span>,
}

/// One stretch of sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its first loud sample.
    pub start: Duration,
    /// The end of its last loud sample.
    pub end: Duration,
}

impl Speech {
    /// Nothing heard so far, in a stream of this rate in Hz.
    pub fn new(rate: u32) -> Self {
        Self { rate, spans: Vec::new() }
    }

    /// Looks through samples that stand at `position`, in samples since the stream's beginning. Positions rise.
    pub fn push(&mut self, position: usize, samples: &[i16]) {
        let block = self.rate as usize / 100;
        for (n, block_samples) in samples.chunks(block).enumerate() {
            let loud = |sample: &i16| sample.unsigned_abs() > QUIET_PEAK;
            let Some(first) = block_samples.iter().position(loud) else { continue };
            let last = block_samples.iter().rposition(loud).unwrap_or(first);
            let base = position + n * block;
            self.loud(self.time(base + first), self.time(base + last + 1));
        }
    }

    /// Takes note of sound at a moment. Moments rise.
    pub fn note(&mut self, at: Duration) {
        self.loud(at, at);
    }

    fn loud(&mut self, start: Duration, end: Duration) {
        match self.spans.last_mut() {
            Some(span) if start <= span.end + PAUSE => span.end = end.max(span.end),
            _ => self.spans.push(Span { start, end }),
        }
    }

    fn time(&self, sample: usize) -> Duration {
        Duration::from_nanos(sample as u64 * 1_000_000_000 / u64::from(self.rate))
    }

    /// All stretches, oldest first.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The first stretch that begins at or after a time.
    pub fn first_after(&self, time: Duration) -> Option<Span> {
        self.spans.iter().copied().find(|span| span.start >= time)
    }

    /// The stretch that is on at a time, pauses inside it included.
    pub fn at(&self, time: Duration) -> Option<Span> {
        self.spans.iter().copied().find(|span| span.start <= time && time < span.end)
    }

    /// The end of the last stretch.
    pub fn last_end(&self) -> Option<Duration> {
        self.spans.last().map(|span| span.end)
    }

    /// How long it was loud in all, pauses inside the stretches included.
    pub fn total(&self) -> Duration {
        self.spans.iter().map(|span| span.end - span.start).sum()
    }
}

/// Quiet up to this long is a pause within speech, as it is for the Watch (`watch-audio.md`).
const PAUSE: Duration = Duration::from_millis(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_join_and_longer_quiet_parts() {
        let mut speech = Speech::new(1000);
        let mut samples = vec![0; 3000];
        samples[100..200].fill(-5000);
        samples[700..800].fill(601);
        samples[2000..2001].fill(i16::MIN);
        samples[2500..2600].fill(600);
        speech.push(0, &samples[..750]);
        speech.push(750, &samples[750..]);
        let span = |start, end| Span { start: Duration::from_millis(start), end: Duration::from_millis(end) };
        assert_eq!(speech.spans(), [span(100, 800), span(2000, 2001)]);
        assert_eq!(speech.first_after(Duration::from_millis(101)), Some(span(2000, 2001)));
        assert_eq!(speech.at(Duration::from_millis(500)), Some(span(100, 800)));
    }
}
