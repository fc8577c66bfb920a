//! `watch-audio doctor`: what this host has for a call and what it lacks.
//!
//! Every check looks at one thing, leaves nothing behind, ends within 5 s, and says what to do next when something is wrong.
//! No secret is shown: of a sign-in only that it is there and for how long, of an address on the network none.

mod host;
mod network;
mod report;
mod sign_ins;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::report::{Check, Outcome, Report};
use crate::bridge::slots::DEFAULT_SLOTS;
use crate::log;
use crate::parent::lines::MOST_SLOTS;
use crate::relay::RelayUrl;

/// Look at what this host has and lacks for a call
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// The sign-ins that `bridge --config` is given
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The relay that calls go through
    #[arg(long, value_name = "URL")]
    pub relay: Option<String>,
    /// Where to see whether UDP gets out and back
    #[arg(long, value_name = "stun:HOST:PORT", default_value = "stun:stun.l.google.com:19302")]
    pub stun: String,
    /// Where to see whether TCP gets out, for calls without UDP
    #[arg(long, value_name = "HOST:PORT", default_value = "api.openai.com:443")]
    pub ice_tcp: String,
    /// The folder of the slots, if the plugin names another than the usual one
    #[arg(long, value_name = "DIR")]
    pub slots: Option<PathBuf>,
    /// How many sessions may run, if the plugin names another number
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SLOTS,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_SLOTS as u64))]
    pub most_slots: usize,
    /// Look at this machine alone: nothing is sent anywhere
    #[arg(long)]
    pub offline: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Looks and tells. Exit codes: 0 a call can be held, warnings or not; 4 something that a call needs is missing; 2 an option
/// that cannot be; 1 a fault of ours.
pub async fn run(args: DoctorArgs) -> ExitCode {
    let (stun, ice_tcp) = match (network::stun_server(&args.stun), network::host_and_port(&args.ice_tcp, None)) {
        (Some(stun), Some(ice_tcp)) => (stun, ice_tcp),
        (None, _) => return refuse("--stun must be stun:HOST:PORT"),
        (_, None) => return refuse("--ice-tcp must be HOST:PORT"),
    };
    let relay = match args.relay.as_deref().map(RelayUrl::parse).transpose() {
        Ok(relay) => relay,
        Err(error) => return refuse(&format!("--relay: {error}")),
    };
    let DoctorArgs { config, slots, most_slots, offline, json, .. } = args;
    let online = !offline;
    let (sign_ins, network, host) = tokio::join!(
        local("sign-ins", move || sign_ins::look(config.as_deref())),
        async {
            let (webrtc, relay, udp, tcp) = tokio::join!(
                bounded("webrtc", network::webrtc()),
                when(online, "relay", network::relay(relay.as_ref())),
                when(online, "udp", network::udp(&stun)),
                when(online, "ice-tcp", network::tcp(&ice_tcp)),
            );
            let tcp = network::with_neither(&udp, tcp);
            vec![webrtc, relay, udp, tcp]
        },
        local("host", move || host::look(slots, most_slots)),
    );
    let report = Report::new([vec![host::version()], sign_ins, network, host].concat());
    let text = if json { report.json() } else { report.table() };
    if let Err(error) = io::stdout().write_all(text.as_bytes()) {
        log::say(format_args!("watch-audio: the report cannot be written: {error}"));
        return ExitCode::FAILURE;
    }
    if report.ready() { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) }
}

fn refuse(what: &str) -> ExitCode {
    log::say(format_args!("watch-audio: {what}"));
    ExitCode::from(2)
}

/// Checks that only look at files, which may be on a disk that does not answer.
async fn local(name: &'static str, look: impl FnOnce() -> Vec<Check> + Send + 'static) -> Vec<Check> {
    match timeout(LIMIT, spawn_blocking(look)).await {
        Ok(Ok(checks)) => checks,
        Ok(Err(_)) => vec![Check::new(name, Outcome::Fail, "a fault of ours").next("report it")],
        Err(_) => vec![Check::new(name, Outcome::Fail, NO_ANSWER).next("see to the disk that the folders are on")],
    }
}

async fn when(online: bool, name: &'static str, check: impl Future<Output = Check>) -> Check {
    if online { bounded(name, check).await } else { Check::new(name, Outcome::Skipped, "not looked at (--offline)") }
}

async fn bounded(name: &'static str, check: impl Future<Output = Check>) -> Check {
    let late =
        || Check::new(name, Outcome::Fail, NO_ANSWER).next("see to the network or the firewall, then look again");
    timeout(LIMIT, check).await.unwrap_or_else(|_| late())
}

const NO_ANSWER: &str = "no answer within 5 s";

/// For each check; they run side by side.
const LIMIT: Duration = Duration::from_secs(5);

/// Something that a call needs is missing.
const NOT_READY: u8 = 4;
