//! Carries an Apple Watch's call to a realtime voice engine: one process per call.

pub mod address;
pub mod bridge;
pub mod cli;
pub mod descriptors;
mod dial;
mod disk;
pub mod doctor;
pub mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hermes;
mod idle;
pub mod log;
pub mod parent;
pub mod relay;
pub mod rtc;
pub mod seal;
pub mod secret;
pub mod sign_in;
pub mod tls;
pub mod voice;
