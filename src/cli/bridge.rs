//! `watch-audio bridge`: from the `open` line to a running bridge.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::{BAD_INPUT, FAULT, REFUSED};
use crate::bridge::link::{Link, Target, TargetError};
use crate::bridge::slots::{DEFAULT_SLOTS, GrantLockError, Slots};
use crate::bridge::{self, Exit, Parent, Setup};
use crate::disk;
use crate::engine::{EngineConfig, EngineKind};
use crate::log;
use crate::parent::lines::{self, BadLine, FromParent, Open, Writer};
use crate::parent::{parent_gone, take_stdout};
use crate::seal::{GrantId, IdError, KeyError, Root};
use crate::sign_in::files::{ConfigError, SignIns};
use crate::sign_in::{SignIn, plugin};

/// Why no bridge was run.
#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error(transparent)]
    Line(#[from] BadLine),
    #[error("the first line must be an open line, within {} s", OPEN_LIMIT.as_secs())]
    NoOpen,
    #[error("version {0} of the protocol is not ours; this is version 1")]
    Version(u64),
    #[error(transparent)]
    Grant(#[from] IdError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("expires_in_s must be above 0")]
    Expiry,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Lock(#[from] GrantLockError),
    #[error("the folder of the slots cannot be used: {0}")]
    Slots(std::io::Error),
    #[error("{path} does not answer; see to the disk that it is on", path = .0.display())]
    Disk(PathBuf),
    #[error("stdio cannot be used: {0}")]
    Stdio(std::io::Error),
}

pub(super) async fn run(config: Option<PathBuf>) -> ExitCode {
    match run_bridge(config).await {
        Ok(Exit::Over) => ExitCode::SUCCESS,
        Ok(Exit::Refused) => ExitCode::from(REFUSED),
        Ok(Exit::BadInput(error)) => fail(&error.into()),
        Err(error) => fail(&error),
    }
}

/// One line on stderr, whatever the log level.
fn fail(error: &SetupError) -> ExitCode {
    log::say(format_args!("watch-audio: {error}"));
    match error {
        SetupError::Stdio(_) => ExitCode::from(FAULT),
        _ => ExitCode::from(BAD_INPUT),
    }
}

async fn run_bridge(config: Option<PathBuf>) -> Result<Exit, SetupError> {
    let writer = Writer::new(take_stdout().map_err(SetupError::Stdio)?);
    let mut gone = Box::pin(told_to_end().map_err(SetupError::Stdio)?);
    let files = match config {
        Some(path) => {
            let file = path.clone();
            tokio::select! {
                read = disk::away(move || SignIns::read(&file)) => Some(read.ok_or(SetupError::Disk(path))??),
                () = &mut gone => return Ok(given_up(writer).await),
            }
        }
        None => None,
    };

    let mut lines = lines::read(std::io::stdin());
    let first = tokio::select! {
        first = timeout(OPEN_LIMIT, lines.recv()) => first.map_err(|_| SetupError::NoOpen)?,
        () = &mut gone => None,
    };
    let open = match first.transpose()? {
        Some(FromParent::Open(open)) => *open,
        // A parent that changed its mind.
        None | Some(FromParent::Stop) => return Ok(given_up(writer).await),
        Some(_) => return Err(SetupError::NoOpen),
    };

    let (sign_in, clerk) = match files {
        Some(files) => (SignIn::Files(Box::new(files)), None),
        None => {
            let (desk, clerk) = plugin::desk();
            (SignIn::Plugin(desk), Some(clerk))
        }
    };
    let (setup, link) = prepare(open, sign_in)?;
    // If it is not read, the bridge notices with its next line.
    let _ = writer.send(&json!({"type": "ready", "version": 1, "build": env!("CARGO_PKG_VERSION")}));
    let parent = Parent { lines, writer, clerk, gone };
    Ok(bridge::run(setup, Link::open(link), parent).await)
}

/// The parent is told, if it is still there.
async fn given_up(writer: Writer) -> Exit {
    let _ = writer.send(&json!({"type": "closed", "reason": "The host ended the call."}));
    writer.finish(LAST_LINE).await;
    Exit::Over
}

/// Checks the `open` line and takes the grant.
fn prepare(open: Open, sign_in: SignIn) -> Result<(Setup, Target), SetupError> {
    if open.version != 1 {
        return Err(SetupError::Version(open.version));
    }
    let grant: GrantId = open.grant.id.parse()?;
    let root = Root::parse(open.grant.key.expose())?;
    let target = Target::host(&open.grant.relay_url, &grant, &open.grant.credential)?;
    let expires_in = Duration::try_from_secs_f64(open.grant.expires_in_s.min(MAX_GRANT.as_secs_f64()));
    let expires_in = expires_in.ok().filter(|time| !time.is_zero()).ok_or(SetupError::Expiry)?;

    let mut engines: Vec<EngineKind> = open.engines.iter().filter_map(|name| EngineKind::parse(name)).collect();
    if let SignIn::Files(files) = &sign_in {
        engines.retain(|engine| files.has(*engine));
    }
    let slots = Slots::open(open.slots.dir, open.slots.max.unwrap_or(DEFAULT_SLOTS)).map_err(SetupError::Slots)?;
    let setup = Setup {
        lock: slots.take_grant(&grant)?,
        grant,
        root,
        expires: Instant::now() + expires_in,
        engines,
        slots,
        sign_in,
        engine: EngineConfig { stun: open.stun },
        stats: open.stats,
        wall_clock: SystemTime::now,
    };
    Ok((setup, target))
}

/// Resolves when the parent is gone, or when the process is asked to end.
fn told_to_end() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            () = parent_gone() => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// `watch-audio.md`: a grant lives at most 30 minutes.
const MAX_GRANT: Duration = Duration::from_secs(1_800);

/// A plugin writes the line at once; a process nobody talks to must not stay.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// For the one line of a bridge that never was.
const LAST_LINE: Duration = Duration::from_secs(1);
