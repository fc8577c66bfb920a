//! Placeholder until the engine lands.
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{EngineConfig, Start, StartError, Started, ToWatch};
use crate::sign_in::SignIn;

/// A session; there is none yet.
pub enum Session {}

#[allow(missing_docs, clippy::missing_errors_doc, clippy::unused_async)]
impl Session {
    pub async fn start(_: &Start, _: &SignIn, _: &EngineConfig) -> Result<(Self, Started), StartError> {
        Err(StartError::new(super::ErrorCode::Unavailable, "This engine is not there yet."))
    }
    pub async fn drive(&mut self) {
        match *self {}
    }
    pub fn watch_audio(&mut self, _: Instant, _: &[u8]) {
        match *self {}
    }
    pub fn watch_event(&mut self, _: Instant, _: &[u8]) {
        match *self {}
    }
    pub fn watch_control(&mut self, _: Instant, _: &Map<String, Value>) {
        match *self {}
    }
    pub fn poll(&mut self, _: Instant) -> Option<ToWatch> {
        match *self {}
    }
    pub fn ended(&self) -> Option<&str> {
        match *self {}
    }
    pub fn stats(&self) -> Map<String, Value> {
        match *self {}
    }
    pub async fn close(self) {
        match self {}
    }
}
