//! What the Watch's speaker does with the audio that comes: pre-roll, stretches of speech, and when the microphone is
//! open (`watch-audio.md`, "The deployed Watch").
//!
//! No IO and no clock: time goes in, as a duration since the first `started`. Everything played comes out on that time
//! line, silence included, so that a listener hears the pauses too.

use std::collections::VecDeque;
use std::time::Duration;

use watch_audio::engine::EngineKind;
use watch_audio_media::pcm::{QUIET_PEAK, peak};

use crate::live::depth::Depth;
use crate::speech::Speech;

/// The speaker of a Watch, at 24 kHz mono.
///
/// Call [`Playout::advance`] at least every few ten milliseconds and take what was played with [`Playout::take_played`].
#[derive(Debug)]
pub struct Playout {
    engine: EngineKind,
    /// How much it holds, where that adapts.
    depth: Option<Depth>,
    queue: VecDeque<Entry>,
    queued: usize,
    /// Samples above the quiet limit that have not been played yet and count towards the pre-roll.
    waiting_speech: usize,
    /// When the audio that now waits for its pre-roll began to wait.
    waiting_since: Option<Duration>,
    playing: bool,
    /// GPT-Live: a stretch of speech is on, and how much quiet in a row it ends with so far, in samples.
    stretch: Option<usize>,
    quiet_since: Option<Duration>,
    /// The rest of a reply is not wanted; and how much quiet came in a row since, in samples.
    skipping: Option<usize>,
    position: usize,
    played: Vec<i16>,
    passed: Vec<Mark>,
    /// A new reply's first audio is the next to be played.
    at_reply: bool,
    replies: Vec<Duration>,
    last_mark: Option<(Mark, usize)>,
    speech: Speech,
    thrown_away: usize,
    underruns: u32,
}

/// A place in an item's audio (`watch-audio.md`, `playout`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The engine's item.
    pub item: String,
    /// The epoch the host was in.
    pub epoch: u64,
    /// The item's audio up to here, in milliseconds.
    pub ms: u64,
}

impl Playout {
    /// A silent speaker at time zero.
    pub fn new(engine: EngineKind) -> Self {
        Self {
            engine,
            depth: None,
            queue: VecDeque::new(),
            queued: 0,
            waiting_speech: 0,
            waiting_since: None,
            playing: false,
            stretch: None,
            quiet_since: None,
            skipping: None,
            position: 0,
            played: Vec::new(),
            passed: Vec::new(),
            at_reply: false,
            replies: Vec::new(),
            last_mark: None,
            speech: Speech::new(RATE),
            thrown_away: 0,
            underruns: 0,
        }
    }

    /// The same, but it holds only as much as the network needs, for a person who waits for the answer. What piles up in
    /// a stall is shed in GPT-Live's pauses; Grok's replies are ahead of time on purpose.
    pub fn adaptive(engine: EngineKind) -> Self {
        Self { depth: Some(Depth::default()), ..Self::new(engine) }
    }

    /// One audio message of the host, arriving now.
    pub fn push(&mut self, now: Duration, samples: &[i16]) {
        self.advance(now);
        if samples.is_empty() {
            return;
        }
        if let Some(depth) = &mut self.depth {
            depth.arrived(now, duration_of(samples.len()));
        }
        let loud = peak(samples) > QUIET_PEAK;
        if self.skips(samples.len(), loud) {
            return;
        }
        if self.engine == EngineKind::GptLive && (!self.keeps(samples.len(), loud) || self.sheds(loud)) {
            self.thrown_away += samples.len();
            return;
        }
        self.queued += samples.len();
        self.queue.push_back(Entry::Audio { samples: samples.to_vec(), played: 0 });
        if !self.playing {
            self.waiting_since.get_or_insert(now);
            if loud {
                self.waiting_speech += samples.len();
            }
            self.start_if_ready(now);
        }
        self.quiet_since = None;
    }

    /// Whether these samples belong to a reply that is not wanted. GPT-Live has no replies: there it is over with the
    /// quiet that ends a stretch.
    fn skips(&mut self, samples: usize, loud: bool) -> bool {
        let Some(quiet) = &mut self.skipping else { return false };
        *quiet = if loud { 0 } else { *quiet + samples };
        if self.engine == EngineKind::GptLive && *quiet >= samples_of(STRETCH_END) {
            self.skipping = None;
        }
        true
    }

    /// Follows GPT-Live's stretches of speech; says whether these samples belong to one.
    fn keeps(&mut self, samples: usize, loud: bool) -> bool {
        match &mut self.stretch {
            None if !loud => return false,
            None => self.stretch = Some(0),
            Some(quiet) if loud => *quiet = 0,
            Some(quiet) => {
                *quiet += samples;
                if *quiet >= samples_of(STRETCH_END) {
                    self.stretch = None;
                }
            }
        }
        true
    }

    /// Whether a pause is shortened, because more is held than the network needs. Words do not run together.
    fn sheds(&self, loud: bool) -> bool {
        let surplus = |depth: &Depth| duration_of(self.queued) > depth.target() + SURPLUS;
        let pause = self.stretch.is_some_and(|quiet| quiet > samples_of(SHORTEST_PAUSE));
        !loud && pause && self.depth.as_ref().is_some_and(surplus)
    }

    /// What it begins with: so much speech, or so much audio of any kind, or whatever came in so much time.
    fn pre_roll(&self) -> (Duration, Duration, Duration) {
        match &self.depth {
            Some(depth) => (depth.target(), depth.target(), depth.target()),
            None => (PRE_ROLL_SPEECH, PRE_ROLL_AUDIO, LONGEST_WAIT),
        }
    }

    fn start_if_ready(&mut self, now: Duration) {
        let (speech, audio, longest) = self.pre_roll();
        let waited = self.waiting_since.is_some_and(|since| now >= since + longest);
        if self.waiting_speech >= samples_of(speech) || self.queued >= samples_of(audio) || waited {
            self.playing = true;
            self.waiting_speech = 0;
            self.waiting_since = None;
        }
    }

    /// A mark behind the audio pushed so far.
    pub fn mark(&mut self, now: Duration, mark: Mark) {
        self.advance(now);
        self.queue.push_back(Entry::Mark(mark));
        self.pass_marks();
    }

    /// Stops at once: what was not played is dropped. Answers where it stopped, when marks say so.
    pub fn flush(&mut self, now: Duration) -> Option<Mark> {
        self.advance(now);
        let mut ahead = 0;
        let stopped = self.queue.iter().find_map(|entry| match entry {
            Entry::Audio { samples, played } => {
                ahead += samples.len() - played;
                None
            }
            Entry::Reply => None,
            Entry::Mark(mark) => Some(Mark { ms: mark.ms.saturating_sub(ms_of(ahead)), ..mark.clone() }),
        });
        let stopped = stopped.or_else(|| {
            let (mark, position) = self.last_mark.as_ref()?;
            // Beyond the last mark only as much was played as the queue gave out, not the silence after it.
            let since = if self.queue.is_empty() { 0 } else { ms_of(self.position - position) };
            Some(Mark { ms: mark.ms + since, ..mark.clone() })
        });
        if self.active() {
            self.quiet_since = Some(now);
        }
        self.queue.clear();
        self.at_reply = false;
        self.queued = 0;
        self.waiting_speech = 0;
        self.waiting_since = None;
        self.playing = false;
        self.stretch = None;
        stopped
    }

    /// Leaves out what else comes of this reply.
    pub fn skip_reply(&mut self) {
        self.skipping = Some(0);
    }

    /// A new reply begins behind the audio pushed so far: it is played, whatever became of the one before.
    pub fn next_reply(&mut self) {
        self.skipping = None;
        if let Some(depth) = &mut self.depth {
            depth.restart();
        }
        self.queue.push_back(Entry::Reply);
        self.pass_marks();
    }

    /// Plays on up to now.
    pub fn advance(&mut self, now: Duration) {
        let until = samples_of(now);
        let (_, _, longest) = self.pre_roll();
        if !self.playing
            && self.queued > 0
            && let Some(since) = self.waiting_since
            && now >= since + longest
        {
            self.silence_to(samples_of(since + longest));
            self.start_if_ready(now);
        }
        while self.playing && self.position < until {
            match self.queue.front_mut() {
                Some(Entry::Audio { samples, played }) => {
                    let rest = &samples[*played..];
                    let n = rest.len().min(until - self.position);
                    if std::mem::take(&mut self.at_reply) {
                        self.replies.push(duration_of(self.position));
                    }
                    self.speech.push(self.position, &rest[..n]);
                    self.played.extend_from_slice(&rest[..n]);
                    self.position += n;
                    self.queued -= n;
                    *played += n;
                    if *played == samples.len() {
                        self.queue.pop_front();
                    }
                }
                Some(Entry::Mark(_) | Entry::Reply) => {}
                None => {
                    self.playing = false;
                    self.underruns += u32::from(self.stretch.is_some());
                    self.quiet_since = Some(duration_of(self.position));
                }
            }
            self.pass_marks();
        }
        self.silence_to(until);
    }

    /// Takes what stands between audio and is reached.
    fn pass_marks(&mut self) {
        while let Some(entry) = self.queue.pop_front_if(|entry| !matches!(entry, Entry::Audio { .. })) {
            match entry {
                Entry::Mark(mark) => {
                    self.last_mark = Some((mark.clone(), self.position));
                    self.passed.push(mark);
                }
                _ => self.at_reply = true,
            }
        }
    }

    fn silence_to(&mut self, until: usize) {
        if until > self.position {
            self.played.resize(self.played.len() + until - self.position, 0);
            self.position = until;
        }
    }

    /// What was played since the last call, silence included.
    pub fn take_played(&mut self) -> Vec<i16> {
        std::mem::take(&mut self.played)
    }

    /// When the replies that were told apart began to be played.
    pub fn replies(&self) -> &[Duration] {
        &self.replies
    }

    /// The marks played past since the last call.
    pub fn take_passed(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.passed)
    }

    /// How much sound is there to be played.
    pub fn waiting(&self) -> Duration {
        duration_of(self.queued)
    }

    /// Whether a reply plays or is about to.
    pub fn active(&self) -> bool {
        self.queued > 0 || self.stretch.is_some()
    }

    /// Whether a half-duplex Watch sends its microphone now: no reply plays, nor did one in the last 0.35 s.
    pub fn microphone_open(&self, now: Duration) -> bool {
        !self.active() && self.quiet_since.is_none_or(|since| now >= since + HOLD_AFTER_REPLY)
    }

    /// What was heard so far, as stretches of sound.
    pub fn speech(&self) -> &Speech {
        &self.speech
    }

    /// Audio that no speech was in and that was not played, as GPT-Live's silence is.
    pub fn thrown_away(&self) -> Duration {
        duration_of(self.thrown_away)
    }

    /// How often a stretch of speech ran dry before its end.
    pub fn underruns(&self) -> u32 {
        self.underruns
    }
}

#[derive(Debug)]
enum Entry {
    Audio {
        samples: Vec<i16>,
        played: usize,
    },
    Mark(Mark),
    /// A new reply begins.
    Reply,
}

/// The speaker's rate in Hz: both engines' output.
pub const RATE: u32 = 24_000;

fn samples_of(time: Duration) -> usize {
    usize::try_from(time.as_nanos() * u128::from(RATE) / 1_000_000_000).unwrap_or(usize::MAX)
}

fn duration_of(samples: usize) -> Duration {
    Duration::from_nanos(samples as u64 * 1_000_000_000 / u64::from(RATE))
}

fn ms_of(samples: usize) -> u64 {
    samples as u64 * 1000 / u64::from(RATE)
}

/// Speech begins to play once this much of it is there (`watch-audio.md`) …
const PRE_ROLL_SPEECH: Duration = Duration::from_millis(150);
/// … or this much audio of any kind.
const PRE_ROLL_AUDIO: Duration = Duration::from_millis(200);
/// A reply's last words can be shorter than the pre-roll: no audio waits longer than this.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// An adaptive playout may hold this much too much: less than one hears.
const SURPLUS: Duration = Duration::from_millis(40);
/// So much of a pause is kept.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// This much quiet in a row ends a stretch of GPT-Live's speech (`watch-audio.md`).
const STRETCH_END: Duration = Duration::from_millis(600);
/// The microphone stays closed for this long after a reply (`watch-audio.md`).
const HOLD_AFTER_REPLY: Duration = Duration::from_millis(350);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn frame(level: i16) -> Vec<i16> {
        vec![level; 480]
    }

    /// Pushes 20 ms frames of one level from `from` for `count` frames, in real time.
    fn stream(playout: &mut Playout, from: u64, count: u64, level: i16) {
        for n in 0..count {
            playout.push(ms(from + n * 20), &frame(level));
        }
    }

    #[test]
    fn gpt_live_silence_is_thrown_away_and_leaves_the_microphone_open() {
        let mut playout = Playout::new(EngineKind::GptLive);
        stream(&mut playout, 0, 50, 600);
        playout.advance(ms(1000));
        assert!(playout.microphone_open(ms(1000)));
        assert_eq!(playout.thrown_away(), ms(1000));
        assert_eq!(playout.take_played(), vec![0; 24_000]);
    }

    #[test]
    fn speech_starts_after_its_pre_roll_and_ends_after_quiet() {
        let mut playout = Playout::new(EngineKind::GptLive);
        stream(&mut playout, 1000, 25, 5000);
        assert!(!playout.microphone_open(ms(1020)));
        stream(&mut playout, 1500, 60, 0);
        playout.advance(ms(2700));
        let played = playout.take_played();
        // Eight frames make 160 ms of speech; the eighth comes at 1,140 ms.
        let first = played.iter().position(|&s| s != 0).unwrap();
        assert_eq!(first, 1140 * 24);
        assert_eq!(played.iter().filter(|&&s| s != 0).count(), 500 * 24);
        // 0.5 s of speech and 0.6 s of quiet from 1,140 on, then 0.35 s.
        assert!(!playout.microphone_open(ms(2240 + 340)));
        assert!(playout.microphone_open(ms(2240 + 360)));
    }

    #[test]
    fn a_pause_below_the_end_of_a_stretch_is_played_whole() {
        let mut playout = Playout::new(EngineKind::GptLive);
        stream(&mut playout, 0, 20, 5000);
        stream(&mut playout, 400, 25, 0);
        stream(&mut playout, 900, 20, 7000);
        stream(&mut playout, 1300, 40, 0);
        let played = playout.take_played();
        let last_old = played.iter().rposition(|&s| s == 5000).unwrap();
        let first_new = played.iter().position(|&s| s == 7000).unwrap();
        assert_eq!(first_new - last_old - 1, 500 * 24);
        assert_eq!(playout.underruns(), 0);
    }

    #[test]
    fn an_underrun_waits_for_the_pre_roll_again() {
        let mut playout = Playout::new(EngineKind::GptLive);
        stream(&mut playout, 0, 10, 5000);
        stream(&mut playout, 1000, 20, 7000);
        playout.advance(ms(2000));
        let played = playout.take_played();
        assert_eq!(playout.underruns(), 2);
        assert_eq!(played.iter().position(|&s| s == 7000).unwrap(), 1140 * 24);
        // The stretch never ended: nothing quiet came.
        assert!(!playout.microphone_open(ms(9000)));
    }

    #[test]
    fn a_short_grok_tail_is_played() {
        let mut playout = Playout::new(EngineKind::Grok);
        playout.push(ms(100), &frame(300));
        playout.advance(ms(500));
        let played = playout.take_played();
        assert_eq!(played.iter().position(|&s| s != 0).unwrap(), 300 * 24);
        assert_eq!(played.iter().filter(|&&s| s != 0).count(), 480);
        assert!(playout.microphone_open(ms(320 + 351)));
    }

    #[test]
    fn a_reply_behind_another_begins_where_that_one_ends() {
        let mut playout = Playout::new(EngineKind::Grok);
        playout.next_reply();
        playout.push(ms(0), &vec![1000; 24_000]);
        playout.next_reply();
        playout.push(ms(100), &vec![2000; 24_000]);
        playout.advance(ms(5000));
        assert_eq!(playout.replies(), [ms(0), ms(1000)]);
        assert_eq!(playout.speech().spans().len(), 1);
    }

    #[test]
    fn a_flush_says_where_it_stopped() {
        let mut playout = Playout::new(EngineKind::Grok);
        let mark = |ms| Mark { item: "a".into(), epoch: 0, ms };
        for n in 1..=10 {
            playout.push(ms(0), &vec![1000; 2400]);
            playout.mark(ms(0), mark(n * 100));
        }
        playout.advance(ms(340));
        assert_eq!(playout.take_passed(), [mark(100), mark(200), mark(300)]);
        assert_eq!(playout.flush(ms(350)), Some(mark(350)));
        playout.advance(ms(1000));
        assert_eq!(playout.take_played().iter().filter(|&&s| s != 0).count(), 350 * 24);
        assert!(playout.take_passed().is_empty());
        assert!(playout.microphone_open(ms(701)));
    }

    #[test]
    fn an_adaptive_speaker_begins_early_and_holds_more_after_a_late_message() {
        let mut playout = Playout::adaptive(EngineKind::GptLive);
        stream(&mut playout, 0, 50, 0);
        stream(&mut playout, 1000, 50, 5000);
        stream(&mut playout, 2000, 50, 0);
        playout.advance(ms(3000));
        let played = playout.take_played();
        let first = played.iter().position(|&s| s != 0).unwrap();
        assert_eq!(first, 1040 * 24, "three frames of 20 ms");
        assert_eq!(playout.underruns(), 0);
        // A stall of 200 ms in the middle of speech, made up for at once.
        stream(&mut playout, 3000, 10, 5000);
        playout.push(ms(3400), &vec![5000; 4800]);
        stream(&mut playout, 3400, 10, 5000);
        assert_eq!(playout.underruns(), 1);
        // In the pause behind it, what has piled up is shed; the next speech finds the depth that the stall asked for.
        stream(&mut playout, 3600, 50, 0);
        stream(&mut playout, 4600, 50, 7000);
        playout.advance(ms(5600));
        let played = playout.take_played();
        let second = played.iter().position(|&s| s == 7000).unwrap() + 3000 * 24;
        assert!((4800 * 24..=4860 * 24).contains(&second), "{} ms", second / 24);
        assert_eq!(playout.underruns(), 1);
    }

    #[test]
    fn an_adaptive_speaker_sheds_pauses_of_gpt_live_but_never_sound_of_grok() {
        // Of the pause of 400 ms, GPT-Live's keeps 100.
        for (engine, expected) in [(EngineKind::GptLive, 1300), (EngineKind::Grok, 1600)] {
            let mut playout = Playout::adaptive(engine);
            // One second of speech at once, then in real time a pause and the rest.
            playout.push(ms(0), &vec![5000; 24_000]);
            stream(&mut playout, 0, 20, 0);
            stream(&mut playout, 400, 10, 7000);
            playout.advance(ms(3000));
            let end = playout.take_played().iter().rposition(|&s| s == 7000).unwrap() + 1;
            assert_eq!(end, expected * 24, "{engine:?}");
        }
    }
}
