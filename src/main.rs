//! The process of one Watch call.

use std::process::ExitCode;

fn main() -> ExitCode {
    watch_audio::cli::run(std::env::args_os())
}
