//! Each step of the way of a sound, to be run by itself: how long a frame takes in it, and how many instructions.

pub mod counted;
mod network;
mod sound;
mod words;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Failed;

/// One step.
#[derive(Clone, Copy)]
pub struct Step {
    /// Which bench it belongs to.
    pub group: Group,
    /// What it does.
    pub name: &'static str,
    /// Whose part it is.
    pub part_of: &'static [Call],
    /// Does it for so many frames of 20 ms; answers the processor time they took.
    pub run: fn(u32) -> Result<Duration, Failed>,
    /// Whether frames come in real time, through sockets.
    pub live: bool,
}

/// What a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// libopus.
    Codec,
    /// Keys and messages.
    Seal,
    /// Everything else that is done to sound.
    Core,
    /// WebRTC and the relay, with their sockets.
    Network,
}

/// A kind of call, as a sum of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// GPT-Live with a Watch that speaks PCM.
    Pcm,
    /// GPT-Live with a Watch that speaks Opus.
    Opus,
    /// Grok with a Watch that speaks PCM, while a reply plays and the microphone is open.
    Grok,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Codec, Self::Seal, Self::Core, Self::Network];

    /// As the tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Codec => "codec",
            Self::Seal => "seal",
            Self::Core => "core",
            Self::Network => "network",
        }
    }
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pcm, Self::Opus, Self::Grok];

    /// As the tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcm => "GPT-Live, PCM",
            Self::Opus => "GPT-Live, Opus",
            Self::Grok => "Grok, PCM",
        }
    }
}

/// A step that does its frames as fast as it can.
const fn step(
    group: Group,
    name: &'static str,
    part_of: &'static [Call],
    run: fn(u32) -> Result<Duration, Failed>,
) -> Step {
    Step { group, name, part_of, run, live: false }
}

/// What this thread has used of its processor: what else the machine does is not in it. Nothing where instructions are
/// counted: the clock, asked without libc, does not work under valgrind.
fn cpu() -> Duration {
    if std::env::var_os(counted::COUNTED).is_some() {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Every step, in the order in which a sound meets them.
pub fn all() -> Vec<Step> {
    [&sound::CODEC[..], &words::SEAL, &sound::CORE, &words::CORE, &network::STEPS].concat()
}
