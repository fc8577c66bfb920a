//! What the engine of a simulated call understands and says.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use watch_audio_media::resample::{RateError, Resampler};
use watch_audio_media::wav::{self, Wav, WavError};

/// The rate of everything a simulator says, in Hz.
pub const RATE: u32 = 24_000;

/// Something to be said: words, and their sound as mono PCM at [`RATE`].
#[derive(Clone)]
pub struct Utterance {
    /// The words, as a transcript has them.
    pub text: String,
    /// The sound.
    pub pcm: Arc<[i16]>,
}

impl Utterance {
    /// An utterance of given sound at [`RATE`].
    pub fn new(text: impl Into<String>, pcm: impl Into<Arc<[i16]>>) -> Self {
        Self { text: text.into(), pcm: pcm.into() }
    }

    /// An utterance that sounds as a tone, for tests that follow it by its frequency.
    pub fn tone(text: impl Into<String>, hertz: f64, length: Duration) -> Self {
        let samples = (length.as_secs_f64() * f64::from(RATE)) as usize;
        let step = std::f64::consts::TAU * hertz / f64::from(RATE);
        let pcm: Vec<i16> = (0..samples).map(|n| ((n as f64 * step).sin() * TONE_PEAK) as i16).collect();
        Self::new(text, pcm)
    }

    /// How long it takes to say.
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.pcm.len() as u64 * 1_000_000 / u64::from(RATE))
    }

    /// Its words, each with the leading space of a transcript fragment but the first.
    pub fn fragments(&self) -> Vec<String> {
        fragments(&self.text)
    }
}

impl fmt::Debug for Utterance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Utterance").field("duration", &self.duration()).finish_non_exhaustive()
    }
}

/// One question and what becomes of it.
#[derive(Debug, Clone)]
pub struct Turn {
    /// What the engine makes of what it heard, whatever that was.
    pub heard: String,
    /// Said while the agent works.
    pub filler: Option<Utterance>,
    /// The request handed to the agent; without it the engine answers by itself.
    pub delegate: Option<String>,
    /// The answer, said once the agent has answered.
    pub answer: Utterance,
}

/// A whole conversation.
#[derive(Debug, Clone)]
pub struct Script {
    /// Say back what was heard instead of following the turns.
    pub echo: bool,
    /// Said when the call begins, without a question.
    pub greeting: Option<Utterance>,
    /// The questions in order; the last goes on for ever.
    pub turns: Vec<Turn>,
    /// Said for a text that belongs to no question.
    pub remark: Utterance,
    /// A text is the answer to a question only when it begins with the same words as the answer here; any other is remarked
    /// on. Otherwise whatever the agent says first is the answer.
    pub verbatim: bool,
}

impl Script {
    /// A script that says back what it hears.
    pub fn echo() -> Self {
        Self { echo: true, ..Self::default() }
    }

    /// A conversation in a browser: a greeting, the question of the samples, then ever the week's weather, which takes an
    /// approval.
    pub fn browser() -> Self {
        let week = Turn {
            heard: WEEK_QUESTION.to_owned(),
            filler: None,
            delegate: Some(WEEK_REQUEST.to_owned()),
            answer: embedded(LONG_ANSWER, LONG_ANSWER_WAV),
        };
        let mut script = Self { greeting: Some(embedded(GREETING, GREETING_WAV)), verbatim: true, ..Self::default() };
        script.turns.push(week);
        // A remark says that it goes on.
        script.remark = embedded(FILLER, FILLER_WAV);
        script
    }

    /// Reads a script file: JSON in the shape of this type. A sample is `question`, `greeting`, `filler`, `answer` or
    /// `long-answer` for the ones of this repository, `tone:HERTZ:MILLISECONDS`, or a WAV file's path from the script.
    ///
    /// # Errors
    /// When a file cannot be read or is not what it should be.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read(path).map_err(|error| ScriptError::Read(path.to_owned(), error))?;
        let file: File = serde_json::from_slice(&text).map_err(|error| ScriptError::Json(path.to_owned(), error))?;
        file.resolve(path.parent().unwrap_or(Path::new(".")))
    }

    /// The turn for the `n`th question, counted from 0.
    pub fn turn(&self, n: usize) -> Option<&Turn> {
        self.turns.get(n.min(self.turns.len().checked_sub(1)?))
    }
}

/// Why a script could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The script is not valid JSON, or a field is wrong or unknown.
    #[error("{0} is not a script: {1}")]
    Json(PathBuf, #[source] serde_json::Error),
    /// A sample is not a WAV file.
    #[error("{0}: {1}")]
    Wav(PathBuf, #[source] WavError),
    /// A sample has a strange rate.
    #[error("{0}: {1}")]
    Rate(PathBuf, #[source] RateError),
    /// A tone is written wrongly.
    #[error("{0:?} is no tone; write tone:HERTZ:MILLISECONDS")]
    Tone(String),
}

/// The file's form of a [`Script`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    echo: bool,
    greeting: Option<Line>,
    #[serde(default)]
    turns: Vec<FileTurn>,
    remark: Option<Line>,
    #[serde(default)]
    verbatim: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTurn {
    heard: String,
    filler: Option<Line>,
    delegate: Option<String>,
    answer: Line,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: String,
    sample: String,
}

impl File {
    fn resolve(self, folder: &Path) -> Result<Script, ScriptError> {
        let default = Script::default();
        let turns = self.turns.into_iter().map(|turn| {
            Ok(Turn {
                heard: turn.heard,
                filler: turn.filler.map(|line| line.resolve(folder)).transpose()?,
                delegate: turn.delegate,
                answer: turn.answer.resolve(folder)?,
            })
        });
        Ok(Script {
            echo: self.echo,
            greeting: self.greeting.map(|line| line.resolve(folder)).transpose()?,
            turns: turns.collect::<Result<_, _>>()?,
            remark: self.remark.map_or(Ok(default.remark), |line| line.resolve(folder))?,
            verbatim: self.verbatim,
        })
    }
}

impl Line {
    fn resolve(self, folder: &Path) -> Result<Utterance, ScriptError> {
        if let Some(tone) = self.sample.strip_prefix("tone:") {
            let tone = tone.split_once(':').and_then(|(hertz, ms)| Some((hertz.parse().ok()?, ms.parse().ok()?)));
            let (hertz, ms) = tone.ok_or_else(|| ScriptError::Tone(self.sample.clone()))?;
            return Ok(Utterance::tone(self.text, hertz, Duration::from_millis(ms)));
        }
        if let Some((_, bytes)) = SAMPLES.iter().find(|(name, _)| *name == self.sample) {
            return Ok(embedded(&self.text, bytes));
        }
        let path = folder.join(&self.sample);
        let file = std::fs::File::open(&path).map_err(|error| ScriptError::Read(path.clone(), error))?;
        let wav = wav::read(file).map_err(|error| ScriptError::Wav(path.clone(), error))?;
        let pcm = at_our_rate(&wav).map_err(|error| ScriptError::Rate(path, error))?;
        Ok(Utterance::new(self.text, pcm))
    }
}

/// A sample's sound at [`RATE`].
fn at_our_rate(wav: &Wav) -> Result<Vec<i16>, RateError> {
    let mut resampler = Resampler::new(wav.rate, RATE)?;
    let mut pcm = Vec::new();
    resampler.push(&wav.samples, &mut pcm);
    resampler.flush(&mut pcm);
    Ok(pcm)
}

fn embedded(text: &str, bytes: &[u8]) -> Utterance {
    let wav = wav::parse(bytes).expect("the samples of this repository are whole");
    Utterance::new(text, at_our_rate(&wav).expect("their rates are usual ones"))
}

/// The words of a text, each but the first with its leading space.
pub(crate) fn fragments(text: &str) -> Vec<String> {
    let words = text.split_whitespace().enumerate();
    words.map(|(n, word)| if n == 0 { word.to_owned() } else { format!(" {word}") }).collect()
}

impl Default for Script {
    /// Every question is handed to the agent, with a filler meanwhile; the words are those of the samples.
    fn default() -> Self {
        let turn = Turn {
            heard: QUESTION.to_owned(),
            filler: Some(embedded(FILLER, FILLER_WAV)),
            delegate: Some(REQUEST.to_owned()),
            answer: embedded(ANSWER, ANSWER_WAV),
        };
        let remark = embedded(GREETING, GREETING_WAV);
        Self { echo: false, greeting: None, turns: vec![turn], remark, verbatim: false }
    }
}

const QUESTION: &str = "what is the weather in tokyo today";
const REQUEST: &str = "find out what the weather in tokyo is today";
const FILLER: &str = "one moment let me look";
/// The words of the answer's sample.
pub const ANSWER: &str = "it is sunny in tokyo twenty one degrees";
/// The words of the long answer's sample.
pub const LONG_ANSWER: &str = "here is the weather for the week on monday it is sunny and warm on tuesday clouds come in \
    from the west and in the evening there may be some rain on wednesday the wind is strong in the morning and on thursday it \
    is cold but dry on friday the sun is back and the weekend will be fine with a clear sky and a light wind from the sea";
const WEEK_QUESTION: &str = "and what will the weather be this week";
const WEEK_REQUEST: &str = "find out what the weather will be this week";
const GREETING: &str = "hello how can i help you";
const FILLER_WAV: &[u8] = include_bytes!("../../../samples/filler.wav");
const ANSWER_WAV: &[u8] = include_bytes!("../../../samples/answer.wav");
const LONG_ANSWER_WAV: &[u8] = include_bytes!("../../../samples/long-answer.wav");
const GREETING_WAV: &[u8] = include_bytes!("../../../samples/greeting.wav");
/// The samples a script file can name.
const SAMPLES: [(&str, &[u8]); 5] = [
    ("question", include_bytes!("../../../samples/question.wav")),
    ("greeting", GREETING_WAV),
    ("filler", FILLER_WAV),
    ("answer", ANSWER_WAV),
    ("long-answer", LONG_ANSWER_WAV),
];
/// Loud enough to be speech to everyone, and far from clipping.
const TONE_PEAK: f64 = 9_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_file_names_samples_tones_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = wav::header(8_000, 8_000).to_vec();
        file.extend([0; 16_000]);
        std::fs::write(folder.path().join("own.wav"), file).unwrap();
        let script = folder.path().join("script.json");
        let text = r#"{"turns": [
            {"heard": "a", "delegate": "b", "filler": {"text": "c", "sample": "filler"},
             "answer": {"text": "d", "sample": "tone:440:1500"}},
            {"heard": "e", "answer": {"text": "f", "sample": "own.wav"}}]}"#;
        std::fs::write(&script, text).unwrap();
        let script = Script::load(&script).unwrap();
        assert_eq!(script.turns[0].answer.duration(), Duration::from_millis(1_500));
        assert!(script.turns[1].answer.duration().abs_diff(Duration::from_secs(1)) < Duration::from_millis(1));
        assert!(script.turns[0].filler.as_ref().unwrap().duration() > Duration::from_secs(2));
        assert_eq!(script.turn(7).unwrap().heard, "e");
    }

    #[test]
    fn a_wrong_script_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        for (text, complaint) in [
            (r#"{"turn": []}"#, "unknown field"),
            (r#"{"remark": {"text": "", "sample": "tone:high"}}"#, "no tone"),
            (r#"{"remark": {"text": "", "sample": "none.wav"}}"#, "none.wav"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Script::load(&path).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
