//! A relay and a bridge as processes, with the plugin's side of the bridge's lines (`plugin-stdio.md`).

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use watch_audio::relay::RelayUrl;
use watch_audio::relay::client::{self, NewGrant};
use watch_audio::seal::Root;
use watch_audio::secret::Secret;
use watch_audio_probes::watch::Grant;

use crate::Failed;
use crate::helper::PATIENCE;
use crate::subject::Subject;

/// A relay of our own program on loopback. Dropping it kills it.
pub struct Relay {
    child: Child,
    url: String,
    credential: Secret,
    /// Where its credentials are, and the slots of the bridges.
    folder: tempfile::TempDir,
}

/// A bridge on a relay. Dropping it kills it.
pub struct Bridge {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<(Instant, Map<String, Value>)>,
}

impl Relay {
    /// Starts `program relay`.
    ///
    /// # Errors
    /// When it does not start or listen.
    pub fn start(program: &Path) -> Result<Self, Failed> {
        let failed = Failed::to("start a relay");
        let folder = tempfile::tempdir().map_err(Failed::to("make a folder"))?;
        // Nobody else is told this credential.
        let credential = Secret::new(Root::random().encode().as_str());
        let file = folder.path().join("credentials");
        fs::write(&file, credential.expose()).map_err(Failed::to("write the relay's credentials"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).map_err(Failed::to("keep them private"))?;
        let mut child = Command::new(program)
            .args(["relay", "--listen", "127.0.0.1:0", "--credentials"])
            .arg(&file)
            .envs(RATES.map(|rate| (rate, "1000000")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut said = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let line = said.next().and_then(Result::ok).unwrap_or_default();
        let address = line.split("address=").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        std::thread::spawn(move || said.for_each(drop));
        let mut relay = Self { child, url: String::new(), credential, folder };
        let address = address.ok_or_else(|| Failed("the relay does not say where it listens".to_owned()))?;
        relay.url = format!("http://{address}");
        Ok(relay)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Opens a grant.
    ///
    /// # Errors
    /// When the relay refuses.
    pub fn grant(&self) -> Result<Grant, Failed> {
        let relay = RelayUrl::parse(&self.url).map_err(Failed::to("open a grant"))?;
        let client = client::Host::new(relay.clone(), self.credential.clone()).map_err(Failed::to("open a grant"))?;
        let watch_key = Secret::new(Root::random().encode().as_str());
        let asked = NewGrant { watch_key: watch_key.clone(), life: LIFE, max_calls: 1, audio: true };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failed::to("open a grant"))?;
        let opened = runtime.block_on(client.create_grant(&asked)).map_err(Failed::to("open a grant"))?;
        Ok(Grant { id: opened.id, root: Root::random(), watch_key, relay })
    }

    fn open(&self, grant: &Grant) -> Value {
        json!({
            "type": "open", "version": 1,
            "grant": {
                "id": grant.id.as_str(), "key": grant.root.encode().as_str(), "relay_url": self.url,
                "credential": self.credential.expose(), "expires_in_s": LIFE.as_secs(),
            },
            "engines": ["gpt_live", "grok"],
            "slots": {"dir": self.folder.path().join("slots"), "max": MOST_CALLS},
            "stun": [],
        })
    }
}

impl Bridge {
    /// Starts `subject` for a grant of `relay`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(subject: &Subject, relay: &Relay, grant: &Grant) -> Result<Self, Failed> {
        let child = subject.command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(Failed::to("start the bridge"))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let at = Instant::now();
                let Ok(line) = serde_json::from_str(&line) else { continue };
                // Lines that nobody waits for are not missed.
                let _ = sender.try_send((at, line));
            }
        });
        let mut bridge = Self { child, stdin, lines };
        bridge.say(&relay.open(grant))?;
        Ok(bridge)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line.
    ///
    /// # Errors
    /// When it no longer reads.
    pub fn say(&mut self, line: &Value) -> Result<(), Failed> {
        writeln!(self.stdin, "{line}").map_err(Failed::to("write to the bridge"))
    }

    /// The next line of this type, and, where it has a `state`, of this state.
    ///
    /// # Errors
    /// When it ends, or takes longer than [`PATIENCE`].
    pub fn expect(&self, kind: &str, state: &str) -> Result<(Instant, Map<String, Value>), Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let none = |_| Failed(format!("the bridge did not say `{kind}`"));
            let (at, line) = self.lines.recv_timeout(left).map_err(none)?;
            let text = |field: &str| line.get(field).and_then(Value::as_str).unwrap_or_default();
            if text("type") == kind && text("state") == state {
                return Ok((at, line));
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longer than any bench's call.
const LIFE: Duration = Duration::from_secs(1_800);
/// The slots that a bridge is told of: more than a bench ever runs.
const MOST_CALLS: u32 = 1_000;
/// What a relay allows a minute: a bench opens more calls than a gateway should.
const RATES: [&str; 4] = [
    "WATCH_AUDIO_RELAY_GRANT_RATE",
    "WATCH_AUDIO_RELAY_HOST_ADDRESS_RATE",
    "WATCH_AUDIO_RELAY_WATCH_ADDRESS_RATE",
    "WATCH_AUDIO_RELAY_CONNECT_RATE",
];
/// More lines than one call has.
const LINES: usize = 1_000;
