//! The probe's command line.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Parser, ValueEnum};
use serde::Deserialize;
use serde_json::Map;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use watch_audio::descriptors;
use watch_audio::engine::EngineKind;
use watch_audio::hermes::{Choice as Decision, Hermes, Runner, SPOKEN};
use watch_audio::log::{self, LogLevel};
use watch_audio::relay::RelayUrl;
use watch_audio::seal::GrantId;
use watch_audio::secret::{Secret, warn_if_shared};
use watch_audio::sign_in::files::SignIns;
use watch_audio::voice;
use watch_audio_media::resample::Resampler;
use watch_audio_media::wav;

use crate::call::{self, Options, Outcome};
use crate::dialogue::Dialect;
use crate::host::{Engine, HostOptions, Relay, Simulated};
use crate::live::{self, Choice};
use crate::page::call::About;
use crate::page::file::PageFile;
use crate::playout::RATE;
use crate::plugin::BridgeCommand;
use crate::progress::Progress;
use crate::recording::Recording;
use crate::report;
use crate::session::Manner;
use crate::sim::script::Script;
use crate::tools::{Answers, Jobs};
use crate::verdict::{Signal, Stop, Verdict};

/// Holds a call as an Apple Watch would: speaks a WAV file to a voice engine and keeps what is answered.
///
/// Without further options the whole call stays on this machine: an own relay, the bridge, a simulated engine.
#[derive(Debug, Parser)]
#[command(name = "watch-audio-probe", version)]
struct Arguments {
    /// The question: any WAV file.
    #[arg(required_unless_present_any = ["live", "devices"])]
    question: Option<PathBuf>,
    /// Talk yourself, with the microphone and the speaker of this machine (in builds with the feature `live`). What is
    /// said appears on stdout; Ctrl-C hangs up.
    #[arg(long, conflicts_with_all = ["question", "barge_in", "tap"])]
    live: bool,
    /// List the microphones and speakers.
    #[arg(long, conflicts_with_all = ["question", "live"])]
    devices: bool,
    /// The microphone to talk into, instead of the default one.
    #[arg(long, value_name = "NAME", requires = "live", conflicts_with = "question")]
    microphone: Option<String>,
    /// The speaker to listen to, instead of the default one.
    #[arg(long, value_name = "NAME", requires = "live", conflicts_with = "question")]
    speaker: Option<String>,
    /// The engine to ask for.
    #[arg(long, value_enum, default_value_t = EngineName::GptLive)]
    engine: EngineName,
    /// GPT-Live's language: `a` with an API key, `b` with a ChatGPT sign-in, as deployed Watches speak it.
    #[arg(long, value_enum, default_value_t = DialectName::B)]
    dialect: DialectName,
    /// The relay, instead of one of our own. Needs --pairing.
    #[arg(long, value_name = "URL", requires = "pairing")]
    relay: Option<String>,
    /// The plugin's pairing with a relay: JSON with `credential` and `relay_url`.
    #[arg(long, value_name = "FILE")]
    pairing: Option<PathBuf>,
    /// Sign-ins for real engines, as `watch-audio bridge --config` takes them.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A Hermes API server, such as http://127.0.0.1:8642: what the engine hands over is run there.
    #[arg(long, value_name = "URL", requires = "hermes_key_file")]
    hermes: Option<String>,
    /// File with the key to it (API_SERVER_KEY).
    #[arg(long, value_name = "FILE", requires = "hermes")]
    hermes_key_file: Option<PathBuf>,
    /// What is answered when a run asks for an approval: nobody is there to be asked.
    #[arg(long, value_name = "CHOICE", requires = "hermes", value_parser = ["once", "session", "deny"], default_value = "deny")]
    approve: String,
    /// The bridge to start, instead of the one in this program.
    #[arg(long, value_name = "PATH")]
    bridge: Option<PathBuf>,
    /// The script of the simulated engine.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "echo"])]
    script: Option<PathBuf>,
    /// Where the answer goes: all that the Watch plays, from the first `started` on, pauses included. `answer.wav` unless
    /// said otherwise; nowhere with --live.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where a page about the call goes, for a browser: both sounds on one time line with what happened, delay and jitter,
    /// the figures. However the call ends. What was said is in it, so the file is yours alone.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The longest call: 60 s unless said otherwise, half an hour with --live. It ends by itself 3 s after the answer.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Print everything as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Have the simulated engine say back what it hears; implies --full-duplex.
    #[arg(long, conflicts_with = "config")]
    echo: bool,
    /// Send the microphone also while a reply plays; deployed Watches do not.
    #[arg(long)]
    full_duplex: bool,
    /// Speak the question again over the reply, so long after its first sound; implies --full-duplex.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    barge_in: Option<f64>,
    /// Tap the reply away, so long after its first sound.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    tap: Option<f64>,
    /// Offer the `playout` extension (Grok): the host learns exactly what was heard.
    #[arg(long)]
    playout: bool,
    /// Offer Opus between Watch and host (an extension; deployed Watches send PCM).
    #[arg(long)]
    opus: bool,
    /// What goes to stderr, from the bridge too. No level shows a secret or what was said.
    #[arg(long, value_enum, default_value_t = LogLevel::Warn)]
    log_level: LogLevel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    #[value(name = "gpt_live")]
    GptLive,
    #[value(name = "grok")]
    Grok,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DialectName {
    A,
    B,
}

/// Runs the probe.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    log::start(arguments.log_level, &["watch_audio", "watch_audio_media", "watch_audio_probes"]);
    let call = AssertUnwindSafe(|| run_call(&arguments));
    panic::catch_unwind(call).unwrap_or_else(|_| conclude(&arguments, &Verdict::Fault("a panic".into())))
}

fn run_call(arguments: &Arguments) -> ExitCode {
    if arguments.devices {
        return devices(arguments);
    }
    let (options, page) = match options(arguments) {
        Ok(prepared) => prepared,
        Err(verdict) => return conclude(arguments, &verdict),
    };
    let page = match page.map(PageFile::begin).transpose() {
        Ok(page) => page,
        Err(error) => return conclude(arguments, &Verdict::BadUse(error.to_string())),
    };
    if let Err(error) = descriptors::ensure() {
        return conclude(arguments, &Verdict::Fault(error.to_string()));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return conclude(arguments, &Verdict::Fault(error.to_string())),
    };
    let mut outcome = runtime.block_on(async {
        let (stop, stopped) = watch::channel(None);
        tokio::spawn(signals(stop));
        Box::pin(call::run(options, stopped)).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let mut written = arguments.report.as_deref();
    if let Some(Err(error)) = page.map(|page| page.write(&outcome)) {
        log::say(format_args!("watch-audio-probe: {error}"));
        written = None;
        // What else became of the call is worth more than that its page is missing.
        if outcome.verdict == Verdict::Done {
            outcome.verdict = Verdict::Fault(error.to_string());
        }
    }
    let mut stdout = io::stdout();
    // A reader that went away misses the report; the exit code still tells.
    let _ = if arguments.json {
        writeln!(stdout, "{}", report::json(&outcome, arguments.answer(), written))
    } else {
        writeln!(stdout, "{}{}", report::text(&outcome), outcome_line(&outcome, arguments.answer(), written))
    };
    ExitCode::from(outcome.verdict.code())
}

fn devices(arguments: &Arguments) -> ExitCode {
    match live::list() {
        Ok(list) => {
            let _ = writeln!(io::stdout(), "{list}");
            ExitCode::SUCCESS
        }
        Err(error) => conclude(arguments, &Verdict::BadUse(error.to_string())),
    }
}

/// Says the one outcome line of a call that did not come about.
fn conclude(arguments: &Arguments, verdict: &Verdict) -> ExitCode {
    let line = verdict.to_string();
    let mut stdout = io::stdout();
    let _ = if arguments.json {
        writeln!(stdout, "{}", serde_json::json!({"outcome": line, "exit_code": verdict.code()}))
    } else {
        writeln!(stdout, "outcome: {}", report::one_line(&line))
    };
    ExitCode::from(verdict.code())
}

fn outcome_line(outcome: &Outcome, answer: Option<&Path>, report: Option<&Path>) -> String {
    let mut line = format!("outcome: {}", outcome.verdict);
    if let Some(answer) = answer.filter(|_| !outcome.speech.spans().is_empty()) {
        let which = if outcome.verdict == Verdict::Done { "the answer" } else { "a partial answer" };
        let length = outcome.played.len() as f64 / f64::from(RATE);
        line += &format!("; {which} is in {} ({length:.1} s)", answer.display());
    }
    if let Some(report) = report {
        line += &format!("; the report is in {}", report.display());
    }
    report::one_line(&line)
}

/// Everything that can be wrong with the use is found here, before anything is connected.
fn options(arguments: &Arguments) -> Result<(Options, Option<PageFile>), Verdict> {
    let engine = arguments.engine.kind();
    let dialect = match arguments.dialect {
        DialectName::A => Dialect::A,
        DialectName::B => Dialect::B,
    };
    let bad = |error: &dyn std::fmt::Display| Verdict::BadUse(error.to_string());
    let question = match &arguments.question {
        Some(path) => question(path, engine.input_rate())?,
        None => vec![],
    };
    let relay =
        arguments.pairing.as_deref().map_or(Ok(Relay::Own), |path| pairing(path, arguments.relay.as_deref()))?;
    // The bridge reads it again; here its mistakes are told as what they are.
    if let Some(path) = &arguments.config {
        SignIns::read(path).map_err(|error| bad(&error))?;
    }
    let script = match &arguments.script {
        _ if arguments.echo => Script::echo(),
        Some(path) => Script::load(path).map_err(|error| bad(&error))?,
        None => Script::default(),
    };
    let engine_at = if arguments.config.is_some() {
        Engine::OfTheBridge
    } else {
        Engine::Simulated(Box::new(Simulated::with_script(script)))
    };
    let manner = Manner {
        engine,
        dialect,
        question,
        half_duplex: !arguments.full_duplex && !arguments.echo && arguments.barge_in.is_none(),
        barge_in: arguments.barge_in.map(Duration::from_secs_f64),
        tap: arguments.tap.map(Duration::from_secs_f64),
        playout: arguments.playout,
        opus: arguments.opus,
        start: Map::new(),
        longest: Duration::from_secs_f64(arguments.seconds.unwrap_or(if arguments.live { LONGEST } else { 60.0 })),
    };
    let page = page(arguments)?;
    let recording = arguments.answer().map(|path| Recording::create(path, &arguments.inputs(), RATE)).transpose();
    let recording = recording.map_err(|error| bad(&error))?;
    let choice = Choice { microphone: arguments.microphone.clone(), speaker: arguments.speaker.clone() };
    let sound = arguments.live.then(|| live::open(&choice)).transpose().map_err(|error| bad(&error))?;
    let options = Options {
        manner,
        host: HostOptions {
            answers: answers(arguments)?,
            relay,
            engine: engine_at,
            dialect,
            bridge: bridge(arguments)?,
        },
        recording,
        progress: if arguments.live && !arguments.json {
            Some(Progress::with_captions())
        } else {
            Progress::on_terminal()
        },
        sound,
    };
    Ok((options, page))
}

/// Who does what the engine hands over.
fn answers(arguments: &Arguments) -> Result<Answers, Verdict> {
    let bad = |error: &dyn std::fmt::Display| Verdict::BadUse(error.to_string());
    let (Some(url), Some(key)) = (&arguments.hermes, &arguments.hermes_key_file) else {
        // A simulated engine asks for what the script has, behind whatever relay.
        let real = arguments.pairing.is_some() && arguments.config.is_some();
        return Ok(if real { Answers::Unsupported } else { Answers::scripted(SEARCH) });
    };
    let key = voice::args::secret(key).map_err(|error| bad(&error))?;
    let hermes = Hermes::new(url, key).map_err(|error| bad(&error))?;
    let decision = Decision::parse(&arguments.approve).expect("the command line takes no other word");
    // A call of the probe is a conversation of its own.
    let session = format!("probe-{}", GrantId::random());
    Ok(Answers::Hermes(Jobs { runner: Runner::new(hermes, SPOKEN.to_owned()), session, decision }))
}

/// The page about the call, where one is wanted.
fn page(arguments: &Arguments) -> Result<Option<PageFile>, Verdict> {
    let Some(path) = &arguments.report else { return Ok(None) };
    let others: Vec<&Path> = arguments.inputs().into_iter().chain(arguments.answer()).collect();
    let about = About { engine: arguments.engine.kind(), began: SystemTime::now() };
    PageFile::create(path, &others, about).map(Some).map_err(|error| Verdict::BadUse(error.to_string()))
}

impl EngineName {
    fn kind(self) -> EngineKind {
        match self {
            Self::GptLive => EngineKind::GptLive,
            Self::Grok => EngineKind::Grok,
        }
    }
}

impl Arguments {
    /// The files that are read: none of them is written over.
    fn inputs(&self) -> Vec<&Path> {
        [&self.question, &self.pairing, &self.config, &self.script, &self.hermes_key_file]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect()
    }

    /// Where the answer is kept. What a person hears is not, unless they want it.
    fn answer(&self) -> Option<&Path> {
        self.out.as_deref().or((!self.live).then_some(Path::new("answer.wav")))
    }
}

fn bridge(arguments: &Arguments) -> Result<BridgeCommand, Verdict> {
    let program = match &arguments.bridge {
        Some(program) => program.clone(),
        None => std::env::current_exe()
            .map_err(|error| Verdict::Fault(format!("cannot find this very program: {error}")))?,
    };
    let mut bridge_arguments = vec!["bridge".into(), "--log-level".into(), arguments.log_level.as_str().into()];
    if let Some(config) = &arguments.config {
        bridge_arguments.extend(["--config".into(), config.into()]);
    }
    Ok(BridgeCommand { program, arguments: bridge_arguments, slots: None, stun: vec![] })
}

/// Reads the question and brings it to the engine's rate.
fn question(path: &Path, rate: u32) -> Result<Vec<i16>, Verdict> {
    let bad = |error: &dyn std::fmt::Display| Verdict::BadUse(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| bad(&error))?;
    let wav = wav::read(BufReader::new(file)).map_err(|error| bad(&error))?;
    for warning in &wav.warnings {
        tracing::warn!("{}: {warning}", path.display());
    }
    if wav.samples.is_empty() {
        return Err(bad(&"there is no sound in it"));
    }
    if wav.rate == rate {
        return Ok(wav.samples);
    }
    let mut resampler = Resampler::new(wav.rate, rate).map_err(|error| bad(&error))?;
    let mut samples = Vec::new();
    resampler.push(&wav.samples, &mut samples);
    resampler.flush(&mut samples);
    Ok(samples)
}

/// The plugin's pairing, as far as a call needs it.
#[derive(Deserialize)]
struct Pairing {
    credential: Secret,
    #[serde(default)]
    installation_id: String,
    #[serde(default)]
    gateway_id: String,
    relay_url: Option<String>,
}

fn pairing(path: &Path, relay: Option<&str>) -> Result<Relay, Verdict> {
    let bad = |error: &dyn std::fmt::Display| Verdict::BadUse(format!("{}: {error}", path.display()));
    warn_if_shared(path);
    let text = std::fs::read(path).map_err(|error| bad(&error))?;
    // The parser's own words would repeat what is in the file.
    let pairing: Pairing = serde_json::from_slice(&text)
        .map_err(|error| bad(&format!("not a pairing (line {}, column {})", error.line(), error.column())))?;
    let url = relay.or(pairing.relay_url.as_deref()).ok_or_else(|| bad(&"no relay_url; give --relay"))?;
    // The relay knows a gateway by three parts; a pairing may hold the secret one alone.
    let whole = pairing.credential.expose().contains('.') || pairing.installation_id.is_empty();
    let credential = if whole {
        pairing.credential
    } else {
        let Pairing { installation_id, gateway_id, credential, .. } = pairing;
        Secret::new(format!("{installation_id}.{gateway_id}.{}", credential.expose()))
    };
    RelayUrl::parse(url).map_err(|error| bad(&error))?;
    Ok(Relay::At { url: url.to_owned(), credential })
}

/// The first signal ends the call in order; a second one does not wait for that.
async fn signals(stop: watch::Sender<Stop>) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals do what they always do, and the recording is valid to the last second.
        return std::future::pending().await;
    };
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
        };
        if stop.borrow().is_some() {
            std::process::exit(Verdict::Interrupted(signal).code().into());
        }
        stop.send_replace(Some(signal));
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.0..=LONGEST).contains(&seconds) { Ok(seconds) } else { Err(format!("not between 0 and {LONGEST}")) }
}

/// An agent is not faster either; and the simulated engine gets to say what it says meanwhile.
const SEARCH: Duration = Duration::from_secs(2);
/// A grant lives half an hour (`watch-audio.md`).
const LONGEST: f64 = 1800.0;
