//! What goes to the engine: the microphone as appends, the Watch's events, the host's own; in order and bounded.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use watch_audio_media::stats::{Histogram, Jitter};

use crate::engine::EngineKind;

/// A queue of JSON texts. Until the session is configured the microphone's audio waits here as well.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: VecDeque<Entry>,
    /// Audio from before `session.updated`, and until when it waits; `None`: it waits no more.
    held: VecDeque<(Duration, Vec<u8>)>,
    held_bytes: usize,
    hold_until: Option<Duration>,
    /// Half a sample from the end of the last message.
    half: Option<u8>,
    audio_bytes: usize,
    event_bytes: usize,
    next_id: u64,
    /// How long appends wait, and how unevenly the microphone's messages come.
    delay: Histogram,
    jitter: Jitter,
    /// When the last of them came, and how long it was.
    last: Option<(Duration, Duration)>,
    stats: OutboxStats,
}

/// Samples of the microphone since the beginning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OutboxStats {
    /// Taken in.
    pub(super) taken: u64,
    /// Dropped, because the engine took none for too long: the oldest.
    pub(super) lost: u64,
}

/// The engine reads so slowly that events would have to be dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stuck;

#[derive(Debug)]
struct Entry {
    text: String,
    /// Samples of an append; zero for an event.
    samples: u64,
    came: Duration,
}

impl Outbox {
    /// Empty; audio waits until [`Outbox::release`], at most until `hold_until`.
    pub(super) fn new(hold_until: Duration) -> Self {
        Self {
            queue: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            hold_until: Some(hold_until),
            half: None,
            audio_bytes: 0,
            event_bytes: 0,
            next_id: 1,
            delay: Histogram::new(),
            jitter: Jitter::new(EngineKind::Grok.input_rate()),
            last: None,
            stats: OutboxStats::default(),
        }
    }

    /// Takes microphone audio: PCM16LE, cut anywhere; what goes out is whole samples.
    pub(super) fn audio(&mut self, now: Duration, bytes: &[u8]) {
        let mut pcm = Vec::with_capacity(bytes.len() + 1);
        pcm.extend(self.half.take());
        pcm.extend_from_slice(bytes);
        if pcm.len() % 2 == 1 {
            self.half = pcm.pop();
        }
        if pcm.is_empty() {
            return;
        }
        self.note_arrival(now, pcm.len() as u64 / 2);
        self.handle_timeout(now);
        if self.hold_until.is_none() {
            return self.append(now, &pcm);
        }
        self.held_bytes += pcm.len();
        self.held.push_back((now, pcm));
        while self.held_bytes > HELD_BYTES {
            let Some((_, oldest)) = self.held.pop_front() else { break };
            self.held_bytes -= oldest.len();
            self.stats.lost += oldest.len() as u64 / 2;
        }
    }

    /// Takes an event as it is.
    pub(super) fn event(&mut self, text: String) -> Result<(), Stuck> {
        if self.event_bytes + text.len() > EVENT_BYTES {
            return Err(Stuck);
        }
        self.event_bytes += text.len();
        self.queue.push_back(Entry { text, samples: 0, came: Duration::ZERO });
        Ok(())
    }

    /// Takes an event of the host's own and answers the `event_id` it was given.
    pub(super) fn own_event(&mut self, mut event: Map<String, Value>) -> Result<String, Stuck> {
        let id = self.own_id();
        event.insert("event_id".into(), Value::String(id.clone()));
        self.event(Value::Object(event).to_string())?;
        Ok(id)
    }

    /// Whether an `event_id` was given here.
    pub(super) fn is_own(&self, event_id: &str) -> bool {
        let number = event_id.strip_prefix(OWN_PREFIX).and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| (1..self.next_id).contains(&number))
    }

    /// The audio held so far goes, and none is held from now on.
    pub(super) fn release(&mut self) {
        self.hold_until = None;
        self.held_bytes = 0;
        for (came, pcm) in std::mem::take(&mut self.held) {
            self.append(came, &pcm);
        }
    }

    /// When held audio goes at the latest.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.hold_until.filter(|_| !self.held.is_empty())
    }

    /// Lets held audio go if its time is over.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if self.hold_until.is_some_and(|until| until <= now) {
            self.release();
        }
    }

    /// Nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next text, which is sent at `now`.
    pub(super) fn pop(&mut self, now: Duration) -> Option<String> {
        let entry = self.queue.pop_front()?;
        match entry.samples {
            0 => self.event_bytes -= entry.text.len(),
            _ => {
                self.audio_bytes -= entry.text.len();
                self.delay.record(now.saturating_sub(entry.came));
            }
        }
        Some(entry.text)
    }

    /// Counts since the beginning.
    pub(super) fn stats(&self) -> OutboxStats {
        self.stats
    }

    /// How long each append waited here.
    pub(super) fn delay(&self) -> &Histogram {
        &self.delay
    }

    /// How unevenly the microphone's messages came; a pause is none.
    pub(super) fn jitter(&self) -> &Histogram {
        self.jitter.differences()
    }

    fn note_arrival(&mut self, now: Duration, samples: u64) {
        if self.last.is_some_and(|(came, length)| now > came + length + PAUSE) {
            self.jitter.restart();
        }
        self.jitter.push(now, self.stats.taken as u32);
        self.stats.taken += samples;
        let length = Duration::from_micros(samples * 1_000_000 / u64::from(EngineKind::Grok.input_rate()));
        self.last = Some((now, length));
    }

    fn append(&mut self, came: Duration, pcm: &[u8]) {
        let id = self.own_id();
        let audio = STANDARD.encode(pcm);
        let text = format!(r#"{{"type":"input_audio_buffer.append","event_id":"{id}","audio":"{audio}"}}"#);
        self.audio_bytes += text.len();
        self.queue.push_back(Entry { text, samples: pcm.len() as u64 / 2, came });
        while self.audio_bytes > AUDIO_BYTES {
            let Some(oldest) = self.queue.iter().position(|entry| entry.samples > 0) else { break };
            let Some(lost) = self.queue.remove(oldest) else { break };
            self.audio_bytes -= lost.text.len();
            self.stats.lost += lost.samples;
        }
    }

    fn own_id(&mut self) -> String {
        let id = format!("{OWN_PREFIX}{}", self.next_id);
        self.next_id += 1;
        id
    }
}

/// How the `event_id` of the host's own events begins.
const OWN_PREFIX: &str = "host-";

/// A message later than this after the one before had ended is no jitter: the Watch was holding its microphone.
const PAUSE: Duration = Duration::from_millis(400);

/// Audio held before the session is configured: 4 s, though it is held for 1 s only; a Watch may have a surplus.
const HELD_BYTES: usize = 4 * 48_000;

/// Appends waiting for the engine to read: 10 s. What was said longer ago is no longer worth an answer.
const AUDIO_BYTES: usize = 10 * 64_000;

/// Events waiting for the engine to read. They cannot be left out, so past this the session is over.
const EVENT_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn pcm_of(text: &str) -> Vec<u8> {
        let event: Value = serde_json::from_str(text).unwrap();
        assert_eq!(event["type"], "input_audio_buffer.append");
        STANDARD.decode(event["audio"].as_str().unwrap()).unwrap()
    }

    fn ready() -> Outbox {
        Outbox::new(Duration::ZERO)
    }

    #[test]
    fn case_7_an_append_never_holds_half_a_sample() {
        let mut outbox = ready();
        let ramp: Vec<u8> = (0..4_800_i16).flat_map(i16::to_le_bytes).collect();
        for part in [&ramp[..4_801], &ramp[4_801..4_802], &ramp[4_802..4_803], &[], &ramp[4_803..]] {
            outbox.audio(Duration::ZERO, part);
        }
        let mut sent = Vec::new();
        while let Some(text) = outbox.pop(Duration::ZERO) {
            let pcm = pcm_of(&text);
            assert!(pcm.len().is_multiple_of(2) && !pcm.is_empty());
            sent.extend(pcm);
        }
        assert_eq!(sent, ramp);
    }

    #[test]
    fn delay_is_what_appends_waited_and_jitter_knows_a_pause_from_lateness() {
        let mut outbox = Outbox::new(Duration::from_secs(1));
        let ms = Duration::from_millis;
        // Held until 100, 30 ms late, and after a pause of ten seconds.
        outbox.audio(ms(0), &[0; 4_800]);
        outbox.release();
        outbox.audio(ms(130), &[0; 4_800]);
        outbox.audio(ms(10_000), &[0; 4_800]);
        for now in [100, 130, 10_007] {
            assert!(outbox.pop(ms(now)).is_some());
        }
        let (delay, jitter) = (outbox.delay(), outbox.jitter());
        assert_eq!((delay.count(), delay.max(), jitter.count()), (3, ms(100), 1));
        assert!(jitter.max().abs_diff(ms(30)) < Duration::from_micros(1));
    }

    #[test]
    fn an_engine_that_does_not_read_loses_the_oldest_audio_and_no_event() {
        let mut outbox = ready();
        outbox.event("{}".into()).unwrap();
        for n in 0..200_u8 {
            outbox.audio(Duration::ZERO, &[n; 4_800]);
        }
        assert_eq!(outbox.pop(Duration::ZERO).as_deref(), Some("{}"));
        let first = pcm_of(&outbox.pop(Duration::ZERO).unwrap());
        assert_eq!(outbox.stats().lost, u64::from(first[0]) * 2_400);
        assert!((9_000..=10_000).contains(&((200 - u64::from(first[0])) * 100)), "about 10 s are kept");
    }

    #[test]
    fn events_past_their_bound_are_refused() {
        let mut outbox = ready();
        for _ in 0..16 {
            outbox.event("x".repeat(60_000)).unwrap();
        }
        assert_eq!(outbox.event("x".repeat(100_000)), Err(Stuck));
        outbox.pop(Duration::ZERO);
        assert_eq!(outbox.event("x".repeat(100_000)), Ok(()));
    }

    #[test]
    fn only_numbers_that_were_given_are_own() {
        let mut outbox = ready();
        let id = outbox.own_event(Map::new()).unwrap();
        assert_eq!(id, "host-1");
        assert!(outbox.is_own("host-1"));
        for other in ["host-0", "host-2", "host-", "host-x", "1", "watch-1"] {
            assert!(!outbox.is_own(other), "{other}");
        }
    }
}
