//! What is measured: a program, and the way sound takes through it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Something to measure.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What the tables call it.
    pub name: &'static str,
    /// The way sound takes.
    pub way: Way,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Between the engine and whoever speaks and listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through a helper's stdin and stdout.
    Helper,
    /// Through a bridge and a relay, sealed, to a Watch, in PCM or in Opus.
    Bridge {
        /// Opus at the Watch.
        opus: bool,
    },
}

impl Subject {
    /// The ways through our `program`.
    pub fn ours(program: &Path) -> [Self; 3] {
        let subject = |name, way, mode: &str| Self { name, way, command: vec![program.into(), mode.into()] };
        [
            subject("ours", Way::Helper, "helper"),
            subject("ours, bridge, PCM", Way::Bridge { opus: false }, "bridge"),
            subject("ours, bridge, Opus", Way::Bridge { opus: true }, "bridge"),
        ]
    }

    /// The same, on one core only.
    pub fn on_core(mut self, core: usize) -> Self {
        let pinned = ["taskset".into(), "-c".into(), core.to_string().into()];
        self.command.splice(0..0, pinned);
        self
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let (program, arguments) = self.command.split_first().expect("a subject has a program");
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }
}
