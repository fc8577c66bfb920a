//! The stand-in for the Watch, and for the plugin: `watch-audio-probe question.wav`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The bridge is this same program, so that one file is a whole call.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "bridge") {
        return watch_audio::cli::run(std::env::args_os());
    }
    // What `watch-audio voice --demo` becomes.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "voice-demo") {
        return watch_audio_probes::voice_demo::run(std::env::args_os().skip(1));
    }
    watch_audio_probes::cli::run()
}
