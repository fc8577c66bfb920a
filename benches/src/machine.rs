//! What a process costs: its processor time, its memory, how often it wakes. Linux only.

use std::path::Path;
use std::time::Duration;

use crate::Failed;

/// What a process has used since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, in user and in kernel mode.
    pub cpu: Duration,
    /// How often it had waited and was let run again.
    pub wakes: u64,
}

/// Memory that a process holds now, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of its resident pages.
    pub rss: u64,
    /// The same, pages that it shares counted in shares.
    pub pss: u64,
}

impl Usage {
    /// Of all threads of `pid` that live.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> Result<Self, Failed> {
        let mut usage = Self::default();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(Failed::to("look at the subject"))?;
        for task in tasks.filter_map(Result::ok) {
            // A thread may end just now.
            let (Ok(times), Ok(status)) = (read(task.path().join("schedstat")), read(task.path().join("status")))
            else {
                continue;
            };
            let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
            usage.cpu += Duration::from_nanos(nanos);
            let wakes = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            usage.wakes += wakes.and_then(|wakes| wakes.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(usage)
    }

    /// What was used since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), wakes: self.wakes.saturating_sub(before.wakes) }
    }
}

impl Memory {
    /// Of `pid`.
    ///
    /// # Errors
    /// When there is no such process, or it is another user's.
    pub fn of(pid: u32) -> Result<Self, Failed> {
        let maps = read(format!("/proc/{pid}/smaps_rollup"))?;
        let field = |name: &str| {
            let line = maps.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            kib.map(|kib| kib * 1_024).ok_or_else(|| Failed(format!("the kernel does not tell {name}")))
        };
        Ok(Self { rss: field("Rss:")?, pss: field("Pss:")? })
    }
}

/// The bytes that the files under `path` take.
pub fn disk(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else {
        return std::fs::symlink_metadata(path).map_or(0, |file| file.len());
    };
    let entries = entries.filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
        .map(|entry| disk(&entry.path()))
        .sum()
}

fn read(file: impl AsRef<Path>) -> Result<String, Failed> {
    std::fs::read_to_string(file).map_err(Failed::to("look at the subject"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn work_and_memory_are_seen() {
        let before = Usage::of(std::process::id()).unwrap();
        let held = vec![1u8; 32 << 20];
        let mut sum = 0u64;
        for _ in 0..20 {
            sum = held.iter().fold(sum, |sum, byte| std::hint::black_box(sum + u64::from(*byte)));
        }
        assert_eq!(sum, 20 * (32 << 20));
        let used = Usage::of(std::process::id()).unwrap().since(before);
        assert!(used.cpu > Duration::from_millis(5), "{used:?}");
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.rss >= 32 << 20 && memory.pss >= 32 << 20 && memory.pss <= memory.rss, "{memory:?}");
    }

    #[test]
    fn a_folder_is_as_large_as_its_files() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(disk(&sources.join("src")) > disk(&sources.join("src/machine.rs")));
        assert_eq!(disk(&sources.join("none")), 0);
    }
}
