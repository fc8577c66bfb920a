//! `watch-audio relay`: the relay's options and its life as a process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use axum::http::HeaderName;
use tokio::signal::unix::{SignalKind, signal};

use super::{Config, Credentials, Limits, Server};
use crate::descriptors;

/// Run a relay: it passes sealed messages between hosts and Watches and can open none of them
#[derive(Debug, Clone, clap::Args)]
pub struct RelayArgs {
    /// Where to listen; beyond loopback only with --behind-tls
    #[arg(long, env = "WATCH_AUDIO_RELAY_LISTEN", default_value = "127.0.0.1:8787", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// File with one gateway credential per line, or `name: credential`
    #[arg(long, env = "WATCH_AUDIO_RELAY_CREDENTIALS", value_name = "FILE")]
    pub credentials: PathBuf,
    /// A reverse proxy that speaks TLS stands before this relay
    #[arg(long, env = "WATCH_AUDIO_RELAY_BEHIND_TLS")]
    pub behind_tls: bool,
    /// Header in which that proxy names the client, such as x-forwarded-for (its last entry counts)
    #[arg(long, env = "WATCH_AUDIO_RELAY_ADDRESS_HEADER", value_name = "NAME")]
    pub address_header: Option<HeaderName>,
    /// What the relay allows.
    #[command(flatten)]
    pub limits: Limits,
}

/// Runs a relay until SIGINT or SIGTERM. Exit codes: 0 stopped, 1 a fault of ours, 2 an option or file that cannot be.
pub async fn run(args: RelayArgs) -> ExitCode {
    if let Err(error) = args.limits.check() {
        return refuse(&error);
    }
    let credentials = match Credentials::load(&args.credentials) {
        Ok(credentials) => credentials,
        Err(error) => return refuse(&error),
    };
    let (mut interrupt, mut terminate) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot listen for signals");
            return ExitCode::FAILURE;
        }
    };
    // The usual 1,024 are fewer than the relay's own limit.
    if let Err(error) = descriptors::raise() {
        tracing::warn!(%error, "cannot raise the limit of open sockets");
    }
    let RelayArgs { listen, behind_tls, address_header, limits, .. } = args;
    let server = match Server::bind(Config { listen, behind_tls, address_header, credentials, limits }).await {
        Ok(server) => server,
        Err(error) => return refuse(&error),
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    server.shutdown().await;
    ExitCode::SUCCESS
}

/// Says why the relay does not start, with what lies behind it.
fn refuse(error: &dyn std::error::Error) -> ExitCode {
    match error.source() {
        Some(source) => tracing::error!("{error}: {source}"),
        None => tracing::error!("{error}"),
    }
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        relay: RelayArgs,
    }

    #[test]
    fn a_relay_needs_only_credentials() {
        let args = Command::parse_from(["relay", "--credentials", "/etc/relay/credentials"]).relay;
        assert!(args.listen.ip().is_loopback() && !args.behind_tls);
        assert!(Command::try_parse_from(["relay"]).is_err());
        let named = ["relay", "--credentials", "c", "--behind-tls", "--address-header", "X-Forwarded-For"];
        assert_eq!(Command::parse_from(named).relay.address_header.unwrap(), "x-forwarded-for");
    }

    #[tokio::test]
    async fn a_relay_that_could_serve_nobody_or_beyond_loopback_does_not_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let args = Command::parse_from(["relay", "--credentials", path]).relay;
        assert_eq!(run(args).await, ExitCode::from(2), "an empty file");
        std::fs::write(path, "secret").unwrap();
        for limits in ["--shortest-grant-s=1801", "--bytes-per-s=1"] {
            let args = Command::parse_from(["relay", "--credentials", path, limits]).relay;
            assert_eq!(run(args).await, ExitCode::from(2), "{limits}");
        }
        let args = Command::parse_from(["relay", "--credentials", path, "--listen", "0.0.0.0:0"]).relay;
        assert_eq!(run(args).await, ExitCode::from(2));
    }
}
