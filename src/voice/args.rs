//! `watch-audio voice`: its options and its life as a process.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use tokio::signal::unix::{SignalKind, signal};

use super::{BindError, Config, ConfigError, Server, Setup};
use crate::descriptors;
use crate::hermes::{Hermes, UrlError};
use crate::log::{self, LogLevel};
use crate::secret::{self, Secret, is_bearer, warn_if_shared};

/// Hold calls with GPT-Live from a page in the browser; what they ask for is done by Hermes.
#[derive(Debug, Clone, clap::Args)]
pub struct VoiceArgs {
    /// Where to listen; IPv6 in brackets, `[::]` for IPv4 too. Beyond loopback only with --access-token-file.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8790")]
    pub listen: String,
    /// The Hermes API server, such as http://127.0.0.1:8642.
    #[arg(long, value_name = "URL", required_unless_present = "demo", conflicts_with = "demo")]
    pub hermes_url: Option<String>,
    /// File with the key to it (API_SERVER_KEY).
    #[arg(long, value_name = "FILE", required_unless_present = "demo", conflicts_with = "demo")]
    pub hermes_key_file: Option<PathBuf>,
    /// File with the OpenAI API key.
    #[arg(long, value_name = "FILE", required_unless_present = "demo", conflicts_with = "demo")]
    pub openai_key_file: Option<PathBuf>,
    /// File with the token that the page asks for.
    #[arg(long, value_name = "FILE")]
    pub access_token_file: Option<PathBuf>,
    /// JSON: voice, model, idle_seconds, glossary, instructions.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Simulate GPT-Live and Hermes on this machine: a whole call without any account. Needs watch-audio-probe beside
    /// this program.
    #[arg(long)]
    pub demo: bool,
}

/// Why the server is not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VoiceError {
    /// A secret's file.
    #[error("{path} cannot be read: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// A secret's file without a secret.
    #[error("{path} must hold one secret and nothing else", path = .0.display())]
    NoSecret(PathBuf),
    /// The address to listen at.
    #[error("{0} is no address to listen at; write host:port, IPv6 in brackets")]
    Listen(String),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Hermes' address.
    #[error(transparent)]
    Hermes(#[from] UrlError),
    /// The server.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Signals cannot be listened for.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// The demonstration's program.
    #[error("--demo needs {path}, which cannot be run ({1}); build it with `cargo build --workspace`", path = .0.display())]
    Demo(PathBuf, io::Error),
}

/// Runs a server until SIGINT or SIGTERM. Exit codes: 0 stopped, 1 a fault of ours, 2 an option or file that cannot be.
pub async fn run(args: VoiceArgs, level: LogLevel) -> ExitCode {
    let done = if args.demo { Err(demo(&args, level)) } else { serve(args).await };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(format_args!("watch-audio: {error}"));
            ExitCode::from(if matches!(error, VoiceError::Signals(_)) { 1 } else { 2 })
        }
    }
}

async fn serve(args: VoiceArgs) -> Result<(), VoiceError> {
    let given = |file: Option<PathBuf>| file.expect("the command line requires it");
    let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    let url = args.hermes_url.expect("the command line requires it");
    let hermes = Hermes::new(&url, secret(&given(args.hermes_key_file))?)?;
    let openai_key = secret(&given(args.openai_key_file))?;
    let access_token = args.access_token_file.as_deref().map(secret).transpose()?;
    let listen = address(&args.listen).await?;
    run_until_signal(Setup { listen, config, hermes, openai_key, access_token }).await
}

/// Runs a server until SIGINT or SIGTERM, and says where its page is.
///
/// # Errors
/// When it does not start.
pub async fn run_until_signal(setup: Setup) -> Result<(), VoiceError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(VoiceError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(VoiceError::Signals)?;
    if let Err(error) = descriptors::raise() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let server = Server::bind(setup).await?;
    log::say(format_args!("The page is at {}", server.url()));
    log::say(NO_MICROPHONE);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    server.shutdown().await;
    Ok(())
}

/// Becomes the program that has the simulators: they are no part of this one.
fn demo(args: &VoiceArgs, level: LogLevel) -> VoiceError {
    let this = std::env::current_exe().unwrap_or_default();
    let probe = this.with_file_name("watch-audio-probe");
    let mut arguments: Vec<OsString> = vec!["voice-demo".into(), "--log-level".into(), level.as_str().into()];
    arguments.extend(["--listen".into(), args.listen.clone().into()]);
    for (option, file) in [("--access-token-file", &args.access_token_file), ("--config", &args.config)] {
        if let Some(file) = file {
            arguments.extend([option.into(), file.into()]);
        }
    }
    // It comes back only if that failed.
    let error = Command::new(&probe).args(arguments).exec();
    VoiceError::Demo(probe, error)
}

/// A secret alone in its file.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn secret(path: &Path) -> Result<Secret, VoiceError> {
    warn_if_shared(path);
    let text = secret::read(path).map_err(|error| VoiceError::Read(path.into(), error))?;
    let secret = text.expose().trim();
    if !is_bearer(secret) {
        return Err(VoiceError::NoSecret(path.into()));
    }
    Ok(Secret::new(secret))
}

/// The address that `host:port` names.
///
/// # Errors
/// When it names none.
pub async fn address(listen: &str) -> Result<SocketAddr, VoiceError> {
    let unknown = || VoiceError::Listen(listen.to_owned());
    match listen.parse() {
        Ok(address) => Ok(address),
        Err(_) => tokio::net::lookup_host(listen).await.ok().and_then(|mut found| found.next()).ok_or_else(unknown),
    }
}

const NO_MICROPHONE: &str = "\
Browsers give a page no microphone unless it comes from this machine or over HTTPS: for another device, put a proxy that \
speaks HTTPS before this server.";
