//! `watch-audio helper`: the process the plugin spawns for GPT-Live today, a drop-in (`helper-stdio.md`).
//!
//! One call for one process. It ends by itself when the engine hangs up, when the plugin says so, and when the plugin
//! is gone: its end of a pipe closed, or another process has become our parent.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use watch_audio_media::pcm::{self, OddByte};

use super::frames::{Frame, FrameError, FrameWriter, spawn_reader};
use super::{parent_gone, take_stdout};
use crate::engine::Codec;
use crate::engine::gpt_live::call::{Call, CallConfig, CallEvent};
use crate::rtc::PeerConfig;

/// Whether a process called `name` (its argument 0) was started as the Python that the plugin runs today's helper with:
/// then it is the helper, whatever the other arguments ([`super::install`]).
pub fn invoked_as_helper(name: &OsStr) -> bool {
    Path::new(name).file_name().is_some_and(|name| name == "python")
}

/// Holds one call as the plugin's frames on stdin say, and answers on stdout. Logs go to stderr.
///
/// Exit codes: 0 after `X`; 2 when the first frame is no usable configuration; 1 when this machine gives no pipes or
/// threads. Standard output is taken away from the rest of the process: what anything else prints goes to stderr.
pub async fn run() -> ExitCode {
    let frames = spawn_reader(io::stdin());
    let writer = take_stdout().and_then(FrameWriter::spawn);
    match (frames, writer) {
        (Ok(frames), Ok(writer)) => hold(frames, writer).await,
        (Err(error), _) | (_, Err(error)) => {
            complain(&format!("the helper cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

type Frames = mpsc::Receiver<Result<Frame, FrameError>>;

async fn hold(mut frames: Frames, writer: FrameWriter) -> ExitCode {
    let mut parent_gone = pin!(parent_gone());
    let first = tokio::select! {
        first = frames.recv() => first,
        () = &mut parent_gone => return ExitCode::SUCCESS,
    };
    let config = match first {
        Some(Ok(Frame { kind: b'C', payload })) => match parse_config(&payload) {
            Some(config) => config,
            None => {
                complain("config isn't usable");
                return ExitCode::from(2);
            }
        },
        _ => {
            complain("the first frame has to be the configuration");
            return ExitCode::from(2);
        }
    };

    let reason = match Box::pin(Call::offer(&config)).await {
        Ok((mut call, offer)) => {
            writer.send(b'O', offer);
            let reason = converse(&mut call, &mut frames, &writer, parent_gone).await;
            call.close().await;
            reason
        }
        Err(error) => {
            complain(&error.to_string());
            error.to_string()
        }
    };
    if writer.dropped() > 0 {
        complain(&format!("{} frames of sound were dropped: they were not read", writer.dropped()));
    }
    writer.send(b'X', json!({ "reason": reason }).to_string());
    writer.finish(FINISH_LIMIT);
    ExitCode::SUCCESS
}

/// Carries frames and the call's events to and fro until either side ends it; answers why.
async fn converse(
    call: &mut Call,
    frames: &mut Frames,
    writer: &FrameWriter,
    mut parent_gone: Pin<&mut impl Future<Output = ()>>,
) -> String {
    let mut plugin = Plugin::default();
    let mut model = Vec::new();
    let mut connected = false;
    loop {
        tokio::select! {
            event = call.next() => match event {
                CallEvent::Connected if !connected => {
                    connected = true;
                    writer.send(b'R', []);
                }
                CallEvent::Connected => {}
                CallEvent::Text(text) => writer.send(b'e', text),
                CallEvent::Sound => while let Some(sound) = call.pop() {
                    model.clear();
                    pcm::to_bytes(sound.samples, &mut model);
                    writer.send(b'p', model.as_slice());
                },
                CallEvent::Ended(reason) => return reason.to_owned(),
            },
            frame = frames.recv() => match plugin.take(frame, call).await {
                Ok(()) => {}
                Err(reason) => return reason,
            },
            () = writer.broken() => return "the plugin no longer reads".to_owned(),
            () = &mut parent_gone => return "the plugin is gone".to_owned(),
        }
    }
}

/// What is kept between the plugin's frames.
#[derive(Default)]
struct Plugin {
    odd: OddByte,
    microphone: Vec<i16>,
    answered: bool,
}

impl Plugin {
    /// Does what one frame says; `Err` is the end, with its reason.
    async fn take(&mut self, frame: Option<Result<Frame, FrameError>>, call: &mut Call) -> Result<(), String> {
        let frame = match frame {
            None => return Err("the plugin closed the input".to_owned()),
            Some(Err(error)) => {
                complain(&error.to_string());
                return Err(error.to_string());
            }
            Some(Ok(frame)) => frame,
        };
        match frame.kind {
            b'P' => {
                self.microphone.clear();
                self.odd.push(&frame.payload, &mut self.microphone);
                call.push_microphone(Instant::now(), &self.microphone);
            }
            b'E' => match String::from_utf8(frame.payload) {
                Ok(text) => {
                    if let Err(error) = call.send_text(text) {
                        complain(&error.to_string());
                    }
                }
                Err(_) => complain("an event that is not UTF-8 was left out"),
            },
            b'A' if self.answered => complain("a second answer was left out"),
            b'A' => {
                self.answered = true;
                let answer = String::from_utf8_lossy(&frame.payload);
                if let Err(error) = call.accept(&answer).await {
                    complain(&error.to_string());
                    return Err(error.to_string());
                }
            }
            b'Q' => return Err("the plugin ended the call".to_owned()),
            kind => {
                let reason = format!("a frame of unknown kind {kind:#04x} came");
                complain(&reason);
                return Err(reason);
            }
        }
        Ok(())
    }
}

/// `{"input_rate":16000,"output_rate":24000,"stun":["stun:host:port"]}`, every field optional.
fn parse_config(payload: &[u8]) -> Option<CallConfig> {
    let fields: Map<String, Value> = serde_json::from_slice(payload).ok()?;
    let rate = |name: &str, default: u32| match fields.get(name) {
        None => Some(default),
        Some(rate) => rate.as_u64().and_then(|rate| u32::try_from(rate).ok()).filter(|rate| RATES.contains(rate)),
    };
    let stun = match fields.get("stun") {
        None => Vec::new(),
        Some(Value::Array(servers)) => servers.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(_) => return None,
    };
    Some(CallConfig {
        peer: PeerConfig { stun },
        input_rate: rate("input_rate", 16_000)?,
        output_rate: rate("output_rate", 24_000)?,
        codec: Codec::Pcm16,
    })
}

/// Any payload as a configuration.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(payload: &[u8]) {
    if let Some(config) = parse_config(payload) {
        assert!(RATES.contains(&config.input_rate) && RATES.contains(&config.output_rate));
    }
}

/// One short line on stderr, which must not end the call when it is closed.
fn complain(line: &str) {
    crate::log::say(line);
}

/// What a rate may be, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 8_000..=48_000;

/// The plugin kills 3 s after it said `Q`; closing the peer takes up to 2.
const FINISH_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Option<(u32, u32, usize)> {
        parse_config(json.as_bytes()).map(|config| (config.input_rate, config.output_rate, config.peer.stun.len()))
    }

    #[test]
    fn only_python_is_the_helper_by_name() {
        assert!(invoked_as_helper(OsStr::new("/home/me/.hermes/conduit_push/watch-audio-env/bin/python")));
        assert!(invoked_as_helper(OsStr::new("python")));
        assert!(!invoked_as_helper(OsStr::new("/usr/bin/watch-audio")));
        assert!(!invoked_as_helper(OsStr::new("python/watch-audio")));
    }

    #[test]
    fn a_configuration_is_usable_or_not() {
        assert_eq!(
            config(r#"{"input_rate":16000,"output_rate":24000,"stun":["stun:h:1"]}"#),
            Some((16_000, 24_000, 1))
        );
        assert_eq!(config("{}"), Some((16_000, 24_000, 0)));
        assert_eq!(config(r#"{"input_rate":8000,"output_rate":48000,"new":1}"#), Some((8_000, 48_000, 0)));
        for unusable in [
            "",
            "[]",
            "1",
            "{",
            "\"C\"",
            r#"{"input_rate":7999}"#,
            r#"{"output_rate":48001}"#,
            r#"{"input_rate":16000.5}"#,
            r#"{"input_rate":"16000"}"#,
            r#"{"input_rate":true}"#,
            r#"{"input_rate":null}"#,
            r#"{"input_rate":-16000}"#,
            r#"{"output_rate":1e99}"#,
            r#"{"stun":"stun:h:1"}"#,
            r#"{"stun":{}}"#,
            r#"{"stun":null}"#,
        ] {
            assert_eq!(config(unusable), None, "{unusable}");
        }
    }
}
