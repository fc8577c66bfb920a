//! The browser call (`hermes-voice.md`): a page holds a WebRTC session with GPT-Live itself, and this server keeps both
//! secrets, the OpenAI key and the key to Hermes, out of the browser. Real work goes to Hermes as a run.

pub mod args;
mod config;
mod guard;
mod page;
mod routes;
mod server;
mod session;
mod voices;

pub use config::{Config, ConfigError, Term};
pub use server::{BindError, Server, Setup};
