//! Stand-ins for the two engines and for Hermes' API server, as `engines.md` section 7 has them: used by the probe, by tests and by benches.
//!
//! Each simulator listens on loopback, follows a [`script::Script`], keeps a record of all it received and sent with
//! the instant of each, and does the faults it is told to. What it keeps is speech and secrets: it writes none of it
//! anywhere, and none of its types shows any in `Debug`.

pub mod ear;
pub mod gpt_live;
pub mod grok;
pub mod hermes;
pub mod record;
pub mod script;
