//! The browser call without a browser (`hermes-voice.md`): runs on a simulated Hermes, every route over real sockets, the
//! process. The page itself is tested in `tests/browser`.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic, too")]

mod process;
mod routes;
mod runner;
mod runs;
mod support;
