//! Every limit of the relay, with the contract's default (`relay.md`).

use std::time::Duration;

use super::line;

/// Why limits cannot be together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitsError {
    #[error(
        "no grant can live --shortest-grant-s at least and --longest-grant-s at most; raise the one or lower the other"
    )]
    Grants,
    #[error(
        "a message of --message-bytes and 64 bytes around it are more than --bytes-per-s allow in --window-s; raise these or \
         lower that"
    )]
    Window,
}

/// What a relay lets its gateways and Watches do. Each is a flag and an environment variable; durations end in
/// their unit.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Connections of all kinds at once; more wait in the kernel's queue
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_MAX_CONNECTIONS",
        value_name = "N",
        default_value = "4096",
        value_parser = connections,
    )]
    pub max_connections: usize,
    /// Time for a request's head, and for an idle connection to send its next (s)
    #[arg(
        long = "head-s",
        env = "WATCH_AUDIO_RELAY_HEAD_S",
        value_name = "S",
        default_value = "10",
        value_parser = seconds,
    )]
    pub head: Duration,
    /// Time for a request's body (s)
    #[arg(
        long = "body-s",
        env = "WATCH_AUDIO_RELAY_BODY_S",
        value_name = "S",
        default_value = "10",
        value_parser = seconds,
    )]
    pub body: Duration,

    /// Grants at once per gateway; one more closes the gateway's oldest
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_GRANTS_PER_GATEWAY",
        value_name = "N",
        default_value = "256",
        value_parser = count::<usize>,
    )]
    pub grants_per_gateway: usize,
    /// Grants at once in all
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_GRANTS_PER_RELAY",
        value_name = "N",
        default_value = "4096",
        value_parser = count::<usize>,
    )]
    pub grants_per_relay: usize,
    /// Shortest life a grant may ask for (s)
    #[arg(
        long = "shortest-grant-s",
        env = "WATCH_AUDIO_RELAY_SHORTEST_GRANT_S",
        value_name = "S",
        default_value = "60",
        value_parser = seconds,
    )]
    pub shortest_grant: Duration,
    /// Longest life a grant may ask for (s)
    #[arg(
        long = "longest-grant-s",
        env = "WATCH_AUDIO_RELAY_LONGEST_GRANT_S",
        value_name = "S",
        default_value = "1800",
        value_parser = seconds,
    )]
    pub longest_grant: Duration,
    /// Most tool calls a grant may ask for
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_CALLS_PER_GRANT",
        value_name = "N",
        default_value = "120",
        value_parser = count::<u32>,
    )]
    pub calls_per_grant: u32,
    /// Time a closed grant is remembered, to tell its Watch that it is closed (s)
    #[arg(
        long = "remember-s",
        env = "WATCH_AUDIO_RELAY_REMEMBER_S",
        value_name = "S",
        default_value = "600",
        value_parser = seconds,
    )]
    pub remember: Duration,

    /// Tool calls of one grant that may wait at once
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_WAITING_CALLS",
        value_name = "N",
        default_value = "2",
        value_parser = count::<usize>,
    )]
    pub waiting_calls: usize,
    /// Time a tool call waits for its result (ms)
    #[arg(
        long = "call-wait-ms",
        env = "WATCH_AUDIO_RELAY_CALL_WAIT_MS",
        value_name = "MS",
        default_value = "25000",
        value_parser = milliseconds,
    )]
    pub call_wait: Duration,
    /// Longest time a poll is held (ms)
    #[arg(
        long = "poll-wait-ms",
        env = "WATCH_AUDIO_RELAY_POLL_WAIT_MS",
        value_name = "MS",
        default_value = "25000",
        value_parser = milliseconds,
    )]
    pub poll_wait: Duration,
    /// Time without a poll after which a host counts as offline (s)
    #[arg(
        long = "host-offline-s",
        env = "WATCH_AUDIO_RELAY_HOST_OFFLINE_S",
        value_name = "S",
        default_value = "40",
        value_parser = seconds,
    )]
    pub host_offline: Duration,

    /// New grants a minute per gateway
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_GRANT_RATE",
        value_name = "N",
        default_value = "12",
        value_parser = count::<u32>,
    )]
    pub grant_rate: u32,
    /// Tool calls a minute per grant
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_CALL_RATE",
        value_name = "N",
        default_value = "30",
        value_parser = count::<u32>,
    )]
    pub call_rate: u32,
    /// Tool calls a minute per address
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_CALL_ADDRESS_RATE",
        value_name = "N",
        default_value = "120",
        value_parser = count::<u32>,
    )]
    pub call_address_rate: u32,
    /// Polls a minute per grant
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_POLL_RATE",
        value_name = "N",
        default_value = "240",
        value_parser = count::<u32>,
    )]
    pub poll_rate: u32,
    /// Results a minute per grant
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_RESULT_RATE",
        value_name = "N",
        default_value = "120",
        value_parser = count::<u32>,
    )]
    pub result_rate: u32,
    /// Audio connects of hosts a minute per address
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_HOST_ADDRESS_RATE",
        value_name = "N",
        default_value = "120",
        value_parser = count::<u32>,
    )]
    pub host_address_rate: u32,
    /// Audio connects of Watches a minute per address
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_WATCH_ADDRESS_RATE",
        value_name = "N",
        default_value = "60",
        value_parser = count::<u32>,
    )]
    pub watch_address_rate: u32,
    /// Audio connects a minute per grant and side
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_CONNECT_RATE",
        value_name = "N",
        default_value = "30",
        value_parser = count::<u32>,
    )]
    pub connect_rate: u32,

    /// Audio bridges at once per gateway
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_BRIDGES_PER_GATEWAY",
        value_name = "N",
        default_value = "256",
        value_parser = count::<usize>,
    )]
    pub bridges_per_gateway: usize,
    /// Audio bridges at once in all
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_BRIDGES_PER_RELAY",
        value_name = "N",
        default_value = "1024",
        value_parser = count::<usize>,
    )]
    pub bridges_per_relay: usize,
    /// Largest audio message (bytes)
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_MESSAGE_BYTES",
        value_name = "N",
        default_value = "65536",
        value_parser = count::<usize>,
    )]
    pub message_bytes: usize,
    /// Bytes a second that a socket may send, averaged over a window
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_BYTES_PER_S",
        value_name = "N",
        default_value = "98304",
        value_parser = count::<u64>,
    )]
    pub bytes_per_s: u64,
    /// The window that bytes are counted in (s)
    #[arg(
        long = "window-s",
        env = "WATCH_AUDIO_RELAY_WINDOW_S",
        value_name = "S",
        default_value = "5",
        value_parser = seconds,
    )]
    pub window: Duration,
    /// Silence after which a socket is closed (s)
    #[arg(
        long = "idle-s",
        env = "WATCH_AUDIO_RELAY_IDLE_S",
        value_name = "S",
        default_value = "60",
        value_parser = seconds,
    )]
    pub idle: Duration,
    /// Time for a closing handshake (ms)
    #[arg(
        long = "close-wait-ms",
        env = "WATCH_AUDIO_RELAY_CLOSE_WAIT_MS",
        value_name = "MS",
        default_value = "2000",
        value_parser = milliseconds,
    )]
    pub close_wait: Duration,
    /// Kernel buffer each way of a connection (bytes): what waits there for a slow reader cannot be shed
    #[arg(
        long,
        env = "WATCH_AUDIO_RELAY_KERNEL_BYTES",
        value_name = "N",
        default_value = "65536",
        value_parser = count::<usize>,
    )]
    pub kernel_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4_096,
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            grants_per_gateway: 256,
            grants_per_relay: 4_096,
            shortest_grant: Duration::from_secs(60),
            longest_grant: Duration::from_secs(1_800),
            calls_per_grant: 120,
            remember: Duration::from_secs(600),
            waiting_calls: 2,
            call_wait: Duration::from_secs(25),
            poll_wait: Duration::from_secs(25),
            host_offline: Duration::from_secs(40),
            grant_rate: 12,
            call_rate: 30,
            call_address_rate: 120,
            poll_rate: 240,
            result_rate: 120,
            host_address_rate: 120,
            watch_address_rate: 60,
            connect_rate: 30,
            bridges_per_gateway: 256,
            bridges_per_relay: 1_024,
            message_bytes: 65_536,
            bytes_per_s: 96 * 1_024,
            window: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            close_wait: Duration::from_secs(2),
            kernel_bytes: 65_536,
        }
    }
}

impl Limits {
    /// Whether they leave room for anything when taken together.
    pub(super) fn check(&self) -> Result<(), LimitsError> {
        if self.shortest_grant > self.longest_grant {
            return Err(LimitsError::Grants);
        }
        let longest_message = self.message_bytes as u64 + line::OVERHEAD;
        if self.bytes_per_window() < longest_message {
            return Err(LimitsError::Window);
        }
        Ok(())
    }

    /// What a socket may send in a window.
    pub(super) fn bytes_per_window(&self) -> u64 {
        self.bytes_per_s.saturating_mul(self.window.as_millis() as u64) / 1_000
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis)
}

/// A limit in time that can be added to any time of day.
fn duration(text: &str, unit: fn(u64) -> Duration) -> Result<Duration, String> {
    let limit = unit(text.parse().map_err(|error| format!("{error}"))?);
    let sensible = !limit.is_zero() && limit <= LONGEST;
    sensible.then_some(limit).ok_or_else(|| format!("must be above 0 and at most {} days", LONGEST.as_secs() / 86_400))
}

/// At least one: with none of whatever it counts the relay would be there and answer nobody.
fn count<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    within(text, MOST)
}

fn connections(text: &str) -> Result<usize, String> {
    within(text, MOST_CONNECTIONS)
}

fn within<N: TryFrom<u64>>(text: &str, most: u64) -> Result<N, String> {
    let limit = text.parse().map_err(|error| format!("{error}"))?;
    let sensible = (1..=most).contains(&limit).then(|| N::try_from(limit).ok()).flatten();
    sensible.ok_or_else(|| format!("must be from 1 to {most}"))
}

/// Nothing here is meant to last longer, and a clock cannot be set as far ahead as a number can.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// More descriptors than a process is given anywhere.
const MOST_CONNECTIONS: u64 = 1 << 20;

/// More than any of the others is good for, and little enough to be added up and to be handed to the kernel.
const MOST: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        limits: Limits,
    }

    #[test]
    fn the_flags_defaults_are_the_contracts() {
        assert_eq!(Command::parse_from(["relay"]).limits, Limits::default());
    }

    #[test]
    fn a_limit_is_a_flag() {
        let limits =
            Command::parse_from(["relay", "--idle-s", "7", "--call-wait-ms", "50", "--grant-rate", "9"]).limits;
        assert_eq!(limits.idle, Duration::from_secs(7));
        assert_eq!(limits.call_wait, Duration::from_millis(50));
        assert_eq!(limits.grant_rate, 9);
    }

    #[test]
    fn a_limit_that_cannot_be_is_refused_and_named() {
        let command = Command::command();
        let flags: Vec<String> =
            command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        assert!(flags.len() >= 29 && flags.contains(&"--message-bytes".to_owned()), "{flags:?}");
        for flag in flags {
            for value in ["0", "-1", "1.5", "9223372036854775808", "18446744073709551615", ""] {
                let argument = format!("{flag}={value}");
                let error = Command::try_parse_from(["relay", argument.as_str()]).err().expect(&argument);
                assert!(error.exit_code() == 2 && error.to_string().contains(&flag), "{error}");
            }
            assert!(Command::try_parse_from(["relay", &format!("{flag}=1")]).is_ok(), "{flag}");
        }
    }

    #[test]
    fn the_largest_limits_overflow_nothing() {
        let sizes = ["--message-bytes", "--bytes-per-s", "--kernel-bytes"].map(|flag| format!("{flag}={MOST}"));
        let window = format!("--window-s={}", LONGEST.as_secs());
        let arguments = ["relay".to_owned(), window].into_iter().chain(sizes);
        let limits = Command::parse_from(arguments).limits;
        assert_eq!(limits.check(), Ok(()));
        assert!(line::config(&limits).max_write_buffer_size > limits.message_bytes);
        assert!(i32::try_from(limits.kernel_bytes).is_ok(), "as the kernel takes it");
    }

    #[test]
    fn limits_that_leave_no_room_together_are_refused() {
        let check =
            |arguments: &str| Command::parse_from(["relay"].into_iter().chain(arguments.split(' '))).limits.check();
        assert_eq!(check("--shortest-grant-s=500 --longest-grant-s=100"), Err(LimitsError::Grants));
        assert_eq!(check("--shortest-grant-s=100 --longest-grant-s=100"), Ok(()));
        assert_eq!(check("--bytes-per-s=13119"), Err(LimitsError::Window), "less than 65,600 in 5 s");
        assert_eq!(check("--bytes-per-s=13120"), Ok(()));
        assert_eq!(check("--window-s=1 --message-bytes=98241"), Err(LimitsError::Window));
        assert_eq!(check("--window-s=1 --message-bytes=98240"), Ok(()));
    }
}
