//! What a call leaves behind, over all its streams: moments, sound, counts.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use watch_audio::engine::EngineKind;
use watch_audio_media::pcm::{QUIET_PEAK, peak};

use crate::arrivals::Arrivals;
use crate::live::Sound;
use crate::live::captions::Who;
use crate::live::meter::bar;
use crate::output::OutputError;
use crate::playout::{Mark, Playout, RATE};
use crate::progress::Progress;
use crate::recording::Recording;
use crate::speech::Speech;
use crate::timeline::{Moment, Timeline, What};
use crate::waveform::Waveform;

/// The running record of a call.
#[derive(Debug)]
pub struct Journal {
    /// What happened when.
    pub timeline: Timeline,
    /// The Watch's speaker.
    pub playout: Playout,
    /// When audio above the quiet limit arrived, on the time line of the recording.
    pub loud: Speech,
    /// When each message of audio arrived, and how much waited then.
    pub arrivals: Arrivals,
    /// The outline of the microphone's sound that was sent.
    pub said: Waveform,
    /// All that was played, at 24 kHz from the first `started` on.
    pub played: Vec<i16>,
    /// Audio that arrived, in ms.
    pub received_ms: u64,
    /// Microphone audio that was sent, in ms.
    pub sent_ms: u64,
    /// The last `started`.
    pub started: Map<String, Value>,
    /// When the last answer went to the engine, on the time line.
    pub answered: Option<Duration>,
    /// Whether the last stream ended behind a whole answer.
    pub whole: bool,
    /// How often the Watch joined again after `started`.
    pub rejoins: u32,
    /// Messages that did not open.
    pub dropped: u64,
    /// Messages of the Watch that found a network standing still.
    pub lost: u64,
    /// A live call's devices.
    pub sound: Option<Sound>,
    recording: Option<Recording>,
    progress: Option<Progress>,
}

impl Journal {
    /// An empty record; `recording` gets what is played as it is played. With devices it is played there as well.
    pub fn new(
        engine: EngineKind,
        recording: Option<Recording>,
        progress: Option<Progress>,
        sound: Option<Sound>,
    ) -> Self {
        Self {
            timeline: Timeline::default(),
            playout: if sound.is_some() { Playout::adaptive(engine) } else { Playout::new(engine) },
            loud: Speech::new(RATE),
            arrivals: Arrivals::default(),
            said: Waveform::default(),
            played: Vec::new(),
            received_ms: 0,
            sent_ms: 0,
            started: Map::new(),
            answered: None,
            whole: false,
            rejoins: 0,
            dropped: 0,
            lost: 0,
            sound,
            recording,
            progress,
        }
    }

    /// A time on the call's line, which begins at the first `started`.
    pub fn time(&self, at: Instant) -> Duration {
        self.timeline.zero().map_or(Duration::ZERO, |zero| at.saturating_duration_since(zero))
    }

    /// The instant of a time on the call's line.
    pub fn instant(&self, time: Duration) -> Instant {
        self.timeline.zero().unwrap_or_else(Instant::now) + time
    }

    /// Takes in audio that came, to be played.
    pub fn arrived(&mut self, at: Instant, samples: &[i16]) {
        self.received_ms += samples.len() as u64 * 1000 / u64::from(RATE);
        let time = self.time(at);
        if peak(samples) > QUIET_PEAK {
            self.loud.note(time);
        }
        self.playout.push(time, samples);
        let length = Duration::from_secs_f64(samples.len() as f64 / f64::from(RATE));
        self.arrivals.push(time, length, self.playout.waiting());
    }

    /// Takes note of microphone audio that was sent, complete at `at`. The rate is in Hz.
    pub fn sent(&mut self, at: Instant, rate: u32, samples: &[i16]) {
        self.sent_ms += samples.len() as u64 * 1000 / u64::from(rate);
        let length = Duration::from_secs_f64(samples.len() as f64 / f64::from(rate));
        self.said.put(self.time(at).saturating_sub(length), rate, samples);
    }

    /// Plays up to now.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub fn play(&mut self, now: Instant) -> Result<(), OutputError> {
        self.playout.advance(self.time(now));
        let played = self.playout.take_played();
        if let Some(sound) = &mut self.sound {
            sound.play(&played, self.playout.take_passed());
        }
        let written = self.recording.as_mut().map_or(Ok(()), |recording| recording.write(&played));
        self.played.extend_from_slice(&played);
        written
    }

    /// The marks that were passed since the last call: on a live speaker, once their sound has left it.
    pub fn take_passed(&mut self, now: Instant) -> Vec<Mark> {
        match &mut self.sound {
            Some(sound) => sound.take_heard(now.into_std()),
            None => self.playout.take_passed(),
        }
    }

    /// Whether the microphone of a half-duplex Watch is open.
    pub fn microphone_open(&self, at: Instant) -> bool {
        self.playout.microphone_open(self.time(at))
    }

    /// When the reply to a question began to be heard: after the question, and after what the engine was last given.
    pub fn reply_since(&self, question_end: Duration) -> Option<Duration> {
        let speech = self.playout.speech();
        let Some(answered) = self.answered.filter(|answered| *answered > question_end) else {
            return speech.first_after(question_end).map(|span| span.start);
        };
        // An answer may follow its filler without a pause: then it is a reply of its own (Grok), or the stretch goes on
        // far behind the hand-over.
        let apart = self.playout.replies().iter().copied().find(|reply| *reply >= answered);
        let goes_on = || speech.at(answered).filter(|span| span.end >= answered + LONGER_THAN_A_FILLER);
        apart.or(speech.first_after(answered).map(|span| span.start)).or(goes_on().map(|_| answered))
    }

    /// Shows on the terminal what goes on, with the levels of a live call's devices.
    pub fn show_progress(&mut self, time: Duration, what: &str) {
        if let Some(progress) = &mut self.progress {
            progress.show(time, || match &mut self.sound {
                Some(sound) => {
                    let (said, heard) = sound.take_levels();
                    format!("you {}  engine {}  {what}", bar(said), bar(heard))
                }
                None => what.to_owned(),
            });
        }
    }

    /// Shows words as they are said.
    pub fn caption(&mut self, at: Instant, who: Who, words: &str, whole: bool) {
        let time = self.time(at);
        if let Some(progress) = &mut self.progress {
            progress.caption(time, who, words, whole);
        }
    }

    /// What is said next is not the end of what was said.
    pub fn end_words(&mut self) {
        self.timeline.end_words();
        if let Some(progress) = &mut self.progress {
            progress.end_caption();
        }
    }

    /// All moments in their order, the stretches of speech that were heard among them.
    pub fn moments(&mut self) -> Vec<Moment> {
        let spans = self.playout.speech().spans().to_vec();
        for span in spans {
            self.timeline.note(self.instant(span.start), What::Speech, "");
            self.timeline.note(self.instant(span.end), What::SpeechEnd, "");
        }
        for reply in self.playout.replies().to_vec() {
            self.timeline.note(self.instant(reply), What::Reply, "");
        }
        self.timeline.moments()
    }

    /// Completes the recording.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self) -> Result<(), OutputError> {
        self.recording.take().map_or(Ok(()), Recording::finish)
    }
}

/// What is said while the work is done is shorter than this.
const LONGER_THAN_A_FILLER: Duration = Duration::from_secs(3);
