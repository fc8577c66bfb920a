//! `watch-audio voice --demo`: the browser call's page and server with a simulated GPT-Live and a simulated Hermes, all on
//! this machine. `watch-audio` becomes this program for it, since it has no simulators.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use watch_audio::hermes::{Hermes, UrlError};
use watch_audio::log::{self, LogLevel};
use watch_audio::secret::Secret;
use watch_audio::voice::args::{self, VoiceError};
use watch_audio::voice::{BindError, Config, ConfigError, Server, Setup};

use crate::sim::script::{ANSWER, LONG_ANSWER, Script, ScriptError};
use crate::sim::{gpt_live, hermes};

/// Show the browser call with everything behind it simulated.
#[derive(Debug, Parser)]
#[command(name = "watch-audio voice --demo", version)]
struct Arguments {
    /// Where to listen. Beyond loopback only with --access-token-file.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8790")]
    listen: String,
    /// File with the token that the page asks for.
    #[arg(long, value_name = "FILE")]
    access_token_file: Option<PathBuf>,
    /// JSON: voice, model, idle_seconds, glossary, instructions.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The script of the simulated GPT-Live.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// The simulated Hermes: JSON with `jobs`, `build`, `faults`.
    #[arg(long, value_name = "FILE")]
    hermes: Option<PathBuf>,
    /// What goes to stderr. No level shows a secret or what was said.
    #[arg(long, value_enum, default_value_t = LogLevel::Warn)]
    log_level: LogLevel,
}

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// A simulator does not start.
    #[error("cannot start a simulator: {0}")]
    Simulator(#[from] std::io::Error),
    /// The simulated GPT-Live's script.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The simulated Hermes' file.
    #[error("{path} is no description of a simulated Hermes: {1}", path = .0.display())]
    Hermes(PathBuf, serde_json::Error),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An option.
    #[error(transparent)]
    Voice(#[from] VoiceError),
    /// The simulated Hermes cannot be spoken to.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The server does not start.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// What stands behind the page.
pub struct Behind {
    /// The simulated GPT-Live.
    pub gpt_live: gpt_live::Simulator,
    /// The simulated Hermes.
    pub hermes: hermes::Simulator,
}

/// How they behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// GPT-Live.
    pub gpt_live: gpt_live::Options,
    /// Hermes.
    pub hermes: hermes::Options,
}

impl Default for Options {
    /// The conversation of [`Script::browser`], and an agent that knows it.
    fn default() -> Self {
        let key = || Some(Secret::new(KEY));
        Self {
            gpt_live: gpt_live::Options { bearer: key(), script: Script::browser(), ..Default::default() },
            hermes: hermes::Options { key: key(), jobs: jobs(), ..Default::default() },
        }
    }
}

impl Behind {
    /// Starts both.
    ///
    /// # Errors
    /// When one does not start.
    pub async fn start(options: Options) -> std::io::Result<Self> {
        Ok(Self {
            gpt_live: gpt_live::Simulator::start(options.gpt_live).await?,
            hermes: hermes::Simulator::start(options.hermes).await?,
        })
    }

    /// A server before them.
    ///
    /// # Errors
    /// When the simulated Hermes cannot be spoken to.
    pub fn setup(&self, listen: SocketAddr, config: Config, access_token: Option<Secret>) -> Result<Setup, UrlError> {
        Ok(Setup {
            listen,
            config: Config { openai_url: self.gpt_live.url(), demonstration: true, ..config },
            hermes: Hermes::new(&self.hermes.url(), Secret::new(KEY))?,
            openai_key: Secret::new(KEY),
            access_token,
        })
    }

    /// A server of its own on loopback, without a token.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn serve(&self, config: Config) -> Result<Server, DemoError> {
        Ok(Server::bind(self.setup(([127, 0, 0, 1], 0).into(), config, None)?).await?)
    }

    /// Ends both.
    pub async fn shutdown(self) {
        self.gpt_live.shutdown().await;
        self.hermes.shutdown().await;
    }
}

/// Runs the demonstration until SIGINT or SIGTERM.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = Arguments::parse_from(arguments);
    log::start(arguments.log_level, &["watch_audio", "watch_audio_media", "watch_audio_probes"]);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::say(format_args!("watch-audio: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let shown = runtime.block_on(show(arguments));
    runtime.shutdown_background();
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(format_args!("watch-audio: {error}"));
            ExitCode::from(2)
        }
    }
}

async fn show(arguments: Arguments) -> Result<(), DemoError> {
    let mut options = Options::default();
    if let Some(script) = &arguments.script {
        options.gpt_live.script = Script::load(script)?;
    }
    if let Some(file) = &arguments.hermes {
        options.hermes = hermes::Options { key: options.hermes.key, ..described(file)? };
    }
    let config = arguments.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    let access_token = arguments.access_token_file.as_deref().map(args::secret).transpose()?;
    let listen = args::address(&arguments.listen).await?;
    let behind = Behind::start(options).await?;
    log::say(
        "A demonstration: GPT-Live and Hermes are simulated on this machine, and understand no words. Speak, then pause.",
    );
    Box::pin(args::run_until_signal(behind.setup(listen, config, access_token)?)).await?;
    behind.shutdown().await;
    Ok(())
}

fn described(file: &Path) -> Result<hermes::Options, DemoError> {
    let text = std::fs::read(file)?;
    serde_json::from_slice(&text).map_err(|error| DemoError::Hermes(file.into(), error))
}

/// What the simulated agent does for [`Script::browser`]: it looks something up, and from then on it needs an approval.
pub fn jobs() -> Vec<hermes::Job> {
    use hermes::Step;
    let tool = |name: &str, ms| Step::Tool { name: name.into(), ms, error: false };
    let approval = Step::Approval {
        command: "curl https://weather.example/week".into(),
        description: "load this week's forecast from weather.example".into(),
        denied: "Without it I cannot say what the week will be.".into(),
    };
    vec![
        vec![
            Step::Wait(300),
            Step::Delta("Let me look.".into()),
            tool("web_search", 1_500),
            Step::Complete(format!("{ANSWER}.")),
        ],
        vec![
            Step::Wait(300),
            tool("read_file", 800),
            approval,
            tool("terminal", 1_000),
            Step::Complete(format!("{LONG_ANSWER}.")),
        ],
    ]
}

/// Both simulators' key; it opens nothing else.
const KEY: &str = "sk-demonstration-0123456789";
