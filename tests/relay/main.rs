//! The relay over real sockets: every row of `relay.md`'s tables, with limits shortened where a row is about time.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic, too")]

#[cfg(target_os = "linux")]
mod attack;
mod audio;
mod server;
mod support;
mod tools;
mod upgrade;
