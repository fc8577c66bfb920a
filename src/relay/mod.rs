//! Our relay, and how its two clients speak to it (`relay.md`).
//!
//! The relay is a rendezvous: it copies sealed messages between a host and its Watch and passes sealed tool calls,
//! within limits, and can open neither. [`Server`] is the relay; [`RelayUrl`] says where a relay's routes are.

mod answer;
pub mod args;
mod audio;
pub mod client;
mod close;
mod credentials;
mod desk;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod grants;
mod limits;
mod line;
mod rate;
mod seats;
mod server;
mod tools;
mod url;

pub use self::credentials::{Credentials, CredentialsError};
pub use self::limits::Limits;
pub use self::server::{BindError, Config, Server};
pub use self::url::{RelayUrl, RelayUrlError, Side};
