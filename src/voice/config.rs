//! The configuration file of the browser call (`hermes-voice.md`, "Command line").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use url::Url;

use crate::address::keeps_secrets;

/// What can be said about the calls. Every field has its default.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The voice, where the page asks for none. One that is not among the known voices joins them.
    pub voice: String,
    /// The model.
    pub model: String,
    /// The page closes a session without activity after so many seconds: every open second is billed.
    pub idle_seconds: u32,
    /// Words that are easily misheard.
    pub glossary: Vec<Term>,
    /// Further instructions for the voice.
    pub instructions: String,
    /// Replaces the voice service's address, for tests and proxies.
    pub openai_url: String,
    /// Whether the services are simulated, so that the page says so. Not in the file.
    #[serde(skip)]
    pub demonstration: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            voice: "marin".into(),
            model: "gpt-live-1".into(),
            idle_seconds: 90,
            glossary: Vec::new(),
            instructions: String::new(),
            openai_url: "https://api.openai.com".into(),
            demonstration: false,
        }
    }
}

/// A word of the glossary.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Term {
    /// The word alone.
    Word(String),
    /// The word, and what it sounds like.
    Sounding {
        /// The word.
        term: String,
        /// What it sounds like.
        #[serde(default)]
        sounds_like: Option<String>,
    },
}

impl Term {
    /// The line for it: `term`, or `term (sounds like "…")`.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Word(term) | Self::Sounding { term, sounds_like: None } => term.clone(),
            Self::Sounding { term, sounds_like: Some(sound) } => format!("{term} (sounds like \"{sound}\")"),
        }
    }
}

/// Why a configuration file cannot be used (exit code 2).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path} cannot be read: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// It is not the JSON it should be.
    #[error("{path} is not a configuration of the browser call: {1}", path = .0.display())]
    Parse(PathBuf, serde_json::Error),
    /// A value that cannot be.
    #[error("{path}: {1}", path = .0.display())]
    Value(PathBuf, &'static str),
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read(path).map_err(|error| ConfigError::Read(path.into(), error))?;
        let mut config: Self = serde_json::from_slice(&text).map_err(|error| ConfigError::Parse(path.into(), error))?;
        let wrong = |what| Err(ConfigError::Value(path.into(), what));
        if config.voice.trim().is_empty() || config.model.trim().is_empty() {
            return wrong("voice and model must not be empty");
        }
        if !(5..=3_600).contains(&config.idle_seconds) {
            return wrong("idle_seconds must be from 5 to 3600");
        }
        if !Url::parse(&config.openai_url).is_ok_and(|url| keeps_secrets(&url)) {
            return wrong("openai_url must be https, or lead to this machine");
        }
        config.openai_url.truncate(config.openai_url.trim_end_matches('/').len());
        Ok(config)
    }
}
