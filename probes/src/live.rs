//! A live Watch: a person's microphone and speaker in the place of WAV files.
//!
//! The device's callbacks share two bounded rings with the call's task and never wait for it; [`Sound`] is the task's end
//! of both. Everything but `device` is free of IO and clocks, and is there without the feature `live`.

use std::sync::mpsc;
use std::time::Instant;

use watch_audio_media::pcm::peak;

use self::microphone::Microphone;
use self::speaker::Speaker;
use crate::playout::Mark;

pub mod captions;
pub mod depth;
#[cfg(feature = "live")]
pub mod device;
pub mod meter;
pub mod microphone;
pub mod ring;
pub mod speaker;

/// The sound devices of a call, as its task sees them. Either may be gone for a while: then nothing is heard or said.
#[derive(Debug)]
pub struct Sound {
    changes: mpsc::Receiver<Change>,
    /// Dropped with the call: then whoever holds the devices gives them back.
    _in_use: mpsc::Sender<()>,
    /// Where the devices' time begins.
    origin: Instant,
    microphone: Option<Box<Microphone>>,
    speaker: Option<Box<Speaker>>,
    heard: u16,
    said: u16,
}

/// Which devices to take; the system's default where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The microphone's name, as the list of devices has it.
    pub microphone: Option<String>,
    /// The speaker's.
    pub speaker: Option<String>,
}

/// Why there is no live call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// This program was built without the feature.
    #[error(
        "this probe was built without sound devices; build it with them: \
         sh .ci/setup --live && cargo run -p watch-audio-probes --features live -- --live"
    )]
    NotBuilt,
    /// No microphone opens.
    #[error("there is no microphone that opens ({0}); --devices lists what there is, --microphone chooses")]
    Microphone(String),
    /// No speaker opens.
    #[error("there is no speaker that opens ({0}); --devices lists what there is, --speaker chooses")]
    Speaker(String),
    /// The system does not list its devices.
    #[error("the system does not list its sound devices: {0}")]
    List(String),
}

/// Opens the devices, and keeps looking for them while the call lasts.
///
/// # Errors
/// When one of them does not open.
#[cfg(not(feature = "live"))]
pub fn open(_: &Choice) -> Result<Sound, DeviceError> {
    Err(DeviceError::NotBuilt)
}

/// The sound devices of this machine, for people.
///
/// # Errors
/// When the system does not list them.
#[cfg(not(feature = "live"))]
pub fn list() -> Result<String, DeviceError> {
    Err(DeviceError::NotBuilt)
}

#[cfg(feature = "live")]
pub use self::device::{list, open};

/// A device came or went.
#[derive(Debug)]
pub enum Change {
    /// There is a microphone now, or none any more.
    Microphone(Option<microphone::Source>),
    /// There is a speaker now, or none any more.
    Speaker(Option<Box<Speaker>>),
}

impl Sound {
    /// Devices that come and go by `changes`, on a time line that begins at `origin`. `in_use` is dropped with it.
    pub fn new(changes: mpsc::Receiver<Change>, in_use: mpsc::Sender<()>, origin: Instant) -> Self {
        Self { changes, _in_use: in_use, origin, microphone: None, speaker: None, heard: 0, said: 0 }
    }

    /// Takes note of devices that came or went. The microphone is wanted at `rate` Hz.
    pub fn refresh(&mut self, rate: u32) {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                Change::Microphone(source) => {
                    self.microphone = source.and_then(|source| Microphone::new(source, rate).ok()).map(Box::new);
                    tell("microphone", self.microphone.is_some());
                }
                Change::Speaker(speaker) => {
                    self.speaker = speaker;
                    tell("speaker", self.speaker.is_some());
                }
            }
        }
    }

    /// Forgets what was said so far: it was said to nobody.
    pub fn discard(&mut self) {
        if let Some(microphone) = &mut self.microphone {
            while microphone.message().is_some() {}
        }
    }

    /// The microphone's next message, when one is complete.
    pub fn message(&mut self) -> Option<&[i16]> {
        let message = self.microphone.as_mut()?.message()?;
        self.said = self.said.max(peak(message));
        Some(message)
    }

    /// Plays samples at 24 kHz, with the marks that stand behind them. What finds no speaker is not heard, nor are its
    /// marks passed.
    pub fn play(&mut self, samples: &[i16], marks: Vec<Mark>) {
        self.heard = self.heard.max(peak(samples));
        if let Some(speaker) = &mut self.speaker {
            speaker.play(samples);
            marks.into_iter().for_each(|mark| speaker.mark(mark));
        }
    }

    /// The marks whose sound has left the speaker by now.
    pub fn take_heard(&mut self, now: Instant) -> Vec<Mark> {
        let now = now.saturating_duration_since(self.origin);
        self.speaker.as_mut().map(|speaker| speaker.take_heard(now)).unwrap_or_default()
    }

    /// Drops the marks whose sound has not left the speaker: the answer to a flush stands for them.
    pub fn forget_marks(&mut self) {
        if let Some(speaker) = &mut self.speaker {
            speaker.forget_marks();
        }
    }

    /// The highest peaks of microphone and speaker since the last call; none where there is no device.
    pub fn take_levels(&mut self) -> (Option<u16>, Option<u16>) {
        let (said, heard) = (std::mem::take(&mut self.said), std::mem::take(&mut self.heard));
        (self.microphone.as_ref().map(|_| said), self.speaker.as_ref().map(|_| heard))
    }
}

fn tell(device: &str, there: bool) {
    if there {
        tracing::info!("there is a {device}");
    } else {
        tracing::warn!("the {device} is gone; looking for it");
    }
}
