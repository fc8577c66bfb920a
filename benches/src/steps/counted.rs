//! Instructions, counted by running this very program under `valgrind --tool=callgrind` with one step to do.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Step;
use crate::Failed;

/// Set in the environment of a run whose instructions are counted.
pub(super) const COUNTED: &str = "WATCH_AUDIO_COUNTED";

/// Whether there is a valgrind to count with.
pub fn possible() -> bool {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// The instructions that one frame takes in `step`: what a run of twice as many frames takes more, so that nothing of
/// getting ready counts. Of all threads the one that works most is the subject's. `--step` and `--frames` are what the
/// program is given.
///
/// # Errors
/// When the program or valgrind fails.
pub fn instructions(step: &Step, frames: u32, folder: &Path) -> Result<f64, Failed> {
    let once = collected(step, frames, folder)?;
    let twice = collected(step, 2 * frames, folder)?;
    Ok((twice - once) / f64::from(frames))
}

fn collected(step: &Step, frames: u32, folder: &Path) -> Result<f64, Failed> {
    let folder = folder.join("callgrind");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(Failed::to("make room for callgrind"))?;
    let program = std::env::current_exe().map_err(Failed::to("find this program"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--separate-threads=yes", "--callgrind-out-file=out"])
        .arg(program)
        .args(["--step", step.name, "--frames", &frames.to_string()])
        .env(COUNTED, "1")
        .current_dir(&folder)
        .output()
        .map_err(Failed::to("run valgrind"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| !line.starts_with("==")).unwrap_or("no word of why");
        return Err(Failed(format!("{} does not run under valgrind: {line}", step.name)));
    }
    // Thread 1 is the one that runs the steps; the relay's step starts its relay first, as thread 2.
    let thread = if step.name.starts_with("relay") { 2 } else { 1 };
    let file = std::fs::read_to_string(folder.join(format!("out-{thread:02}")));
    let file = file.map_err(Failed::to("read what callgrind counted"))?;
    let total = file.lines().rev().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.and_then(|total| total.trim().parse().ok()).ok_or_else(|| Failed("callgrind counted nothing".to_owned()))
}
