//! Everything behind the relay, and the relay: the grant, the plugin's half with its tools, the bridge, the engines.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::task::JoinSet;
use watch_audio::relay::client::{self, NewGrant};
use watch_audio::relay::{Config, Credentials, Limits, RelayUrl, Server};
use watch_audio::seal::{GrantId, Root};
use watch_audio::secret::Secret;

use crate::dialogue::Dialect;
use crate::plugin::{Bridge, BridgeCommand, BridgeError, BridgeReport, SignIns};
use crate::sim::script::Script;
use crate::sim::{gpt_live, grok};
use crate::tools::{self, Answers, Tools};
use crate::verdict::{Signal, Verdict};
use crate::watch::Grant;

/// What stands behind the relay.
pub struct HostOptions {
    /// The relay.
    pub relay: Relay,
    /// The engine.
    pub engine: Engine,
    /// Which of GPT-Live's dialects the plugin signs in with.
    pub dialect: Dialect,
    /// The bridge.
    pub bridge: BridgeCommand,
    /// What the host's tools answer.
    pub answers: Answers,
}

/// Which relay carries the call.
pub enum Relay {
    /// One of our own on loopback, for this call.
    Own,
    /// One that runs.
    At {
        /// Its URL.
        url: String,
        /// The gateway's credential there.
        credential: Secret,
    },
}

/// Which engine holds the conversation.
pub enum Engine {
    /// Simulators on loopback, for this call.
    Simulated(Box<Simulated>),
    /// Engines that run, with what the plugin signs in with.
    At(SignIns),
    /// The bridge signs in by itself (`--config`).
    OfTheBridge,
}

/// The settings of both simulators.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    /// GPT-Live's.
    pub gpt_live: gpt_live::Options,
    /// Grok's.
    pub grok: grok::Options,
}

/// The host of a call.
pub struct Host {
    grant: Grant,
    client: client::Host,
    tools: Tools,
    bridge: Bridge,
    simulators: Option<Simulators>,
    relay: Option<Server>,
    tasks: JoinSet<()>,
}

/// What the simulated engines saw, if there were any.
#[derive(Debug, Default)]
pub struct Engines {
    /// GPT-Live's sessions.
    pub gpt_live: Vec<gpt_live::Session>,
    /// Grok's connections.
    pub grok: Vec<grok::Session>,
}

/// Why there is no call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Our own relay or a simulator does not start.
    #[error("cannot start {0}: {1}")]
    Start(&'static str, String),
    /// No grant.
    #[error("no grant: {0}")]
    Grant(String),
    /// No bridge.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// A signal came first.
    #[error("a signal came first")]
    Stopped(Signal),
}

impl HostError {
    /// What it means for the call.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Start(..)
            | Self::Bridge(BridgeError::Spawn(..) | BridgeError::NoProtocol(_) | BridgeError::NotReady(_)) => {
                Verdict::Fault(self.to_string())
            }
            Self::Bridge(BridgeError::Ended(reason)) => Verdict::Fault(format!("the bridge ended: {reason}")),
            Self::Bridge(BridgeError::NoRelay(_)) | Self::Grant(_) => Verdict::Refused(self.to_string()),
            Self::Stopped(signal) => Verdict::Interrupted(*signal),
        }
    }
}

impl Simulated {
    /// Both simulators in good health, with this script.
    pub fn with_script(script: Script) -> Self {
        Self {
            gpt_live: gpt_live::Options { script: script.clone(), ..Default::default() },
            grok: grok::Options { script, ..Default::default() },
        }
    }
}

impl Host {
    /// Starts everything behind the relay, the relay itself where it is our own, and waits until the bridge is on it.
    ///
    /// # Errors
    /// What did not start, or who refused.
    pub async fn open(options: HostOptions) -> Result<Self, HostError> {
        let HostOptions { relay, engine, dialect, bridge, answers } = options;
        let (relay, url, credential) = match relay {
            Relay::Own => {
                let (relay, credential) = own_relay().await?;
                let url = format!("http://{}", relay.local_addr());
                (Some(relay), url, credential)
            }
            Relay::At { url, credential } => (None, url, credential),
        };
        let (simulators, sign_ins) = match engine {
            Engine::Simulated(options) => {
                let simulators = Simulators::start(*options).await?;
                let sign_ins = simulators.sign_ins(dialect);
                (Some(simulators), sign_ins)
            }
            Engine::At(sign_ins) => (None, sign_ins),
            Engine::OfTheBridge => (None, SignIns::default()),
        };
        let no_grant = |error: &dyn std::fmt::Display| HostError::Grant(error.to_string());
        let relay_url = RelayUrl::parse(&url).map_err(|error| no_grant(&error))?;
        let client = client::Host::new(relay_url.clone(), credential.clone()).map_err(|error| no_grant(&error))?;
        // 43 base64url characters of the system's own randomness, as a root is.
        let watch_key = Secret::new(Root::random().encode().as_str());
        let asked = NewGrant { watch_key: watch_key.clone(), life: LIFE, max_calls: MAX_CALLS, audio: true };
        let opened = client.create_grant(&asked).await.map_err(|error| no_grant(&error))?;
        let grant = Grant { id: opened.id, root: Root::random(), watch_key, relay: relay_url };
        // From here on the grant must be closed again, whatever happens.
        let tools = Tools::new(&grant).map(|tools| tools.with(&answers)).map_err(|error| no_grant(&error));
        let bridge = Bridge::start(&bridge, &grant, &url, &credential, LIFE, sign_ins).await;
        match (tools, bridge) {
            (Ok(tools), Ok(bridge)) => {
                let mut tasks = JoinSet::new();
                tasks.spawn(tools::serve(client.clone(), grant.clone(), answers));
                Ok(Self { grant, client, tools, bridge, simulators, relay, tasks })
            }
            (Err(error), _) => {
                close_grant(&client, &grant).await;
                Err(error)
            }
            (_, Err(error)) => {
                close_grant(&client, &grant).await;
                Err(error.into())
            }
        }
    }

    /// What the Watch is given.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The Watch's way to the host's tools.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// The bridge's process id, while it runs.
    pub fn bridge_id(&self) -> Option<u32> {
        self.bridge.id()
    }

    /// Returns once the bridge is gone by itself. Cancel safe.
    pub async fn bridge_gone(&mut self) {
        self.bridge.gone().await;
    }

    /// Ends everything in order: the bridge, the grant, the engines, the relay.
    pub async fn close(mut self) -> (BridgeReport, Engines) {
        let report = self.bridge.stop().await;
        close_grant(&self.client, &self.grant).await;
        self.tasks.shutdown().await;
        let engines = match self.simulators {
            Some(simulators) => simulators.shutdown().await,
            None => Engines::default(),
        };
        if let Some(relay) = self.relay {
            relay.shutdown().await;
        }
        (report, engines)
    }
}

async fn close_grant(client: &client::Host, grant: &Grant) {
    if let Err(error) = client.close_grant(&grant.id).await {
        tracing::warn!(%error, "the grant is left to expire");
    }
}

/// A relay on loopback with one gateway, for one call.
async fn own_relay() -> Result<(Server, Secret), HostError> {
    let failed = |error: &dyn std::fmt::Display| HostError::Start("a relay", error.to_string());
    // Nobody else is told this credential.
    let credential = GrantId::random().to_string();
    let config = Config {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        behind_tls: false,
        address_header: None,
        credentials: Credentials::parse(&credential).map_err(|error| failed(&error))?,
        limits: Limits::default(),
    };
    let relay = Server::bind(config).await.map_err(|error| failed(&error))?;
    Ok((relay, Secret::new(credential)))
}

struct Simulators {
    gpt_live: gpt_live::Simulator,
    grok: grok::Simulator,
}

impl Simulators {
    async fn start(options: Simulated) -> Result<Self, HostError> {
        let failed = |error: std::io::Error| HostError::Start("a simulated engine", error.to_string());
        Ok(Self {
            gpt_live: gpt_live::Simulator::start(options.gpt_live).await.map_err(failed)?,
            grok: grok::Simulator::start(options.grok).await.map_err(failed)?,
        })
    }

    fn sign_ins(&self, dialect: Dialect) -> SignIns {
        SignIns { gpt_live: Some((self.gpt_live.url(), dialect)), grok: Some(self.grok.url()), bearer: None }
    }

    async fn shutdown(self) -> Engines {
        let engines = Engines { gpt_live: self.gpt_live.record(), grok: self.grok.record() };
        self.gpt_live.shutdown().await;
        self.grok.shutdown().await;
        engines
    }
}

/// A grant for one call: the longest that the relay gives (`relay.md`).
const LIFE: Duration = Duration::from_secs(1800);
/// Its tool calls: the most that the relay gives.
const MAX_CALLS: u32 = 120;
