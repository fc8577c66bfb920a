//! The tools that the grant gives the Watch (`relay.md`): the Watch's side calls, the host's side answers.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use watch_audio::hermes::{Choice, Runner};
use watch_audio::relay::client::{self, ClientError, FetchedCall};
use watch_audio::seal::tools::{open_call, seal_result};

use crate::dialogue::TOOL;
use crate::watch::Grant;

/// The Watch's way to the host's tools.
#[derive(Debug, Clone)]
pub struct Tools {
    host: client::Watch,
    jobs: Option<Jobs>,
}

/// An agent that does what the engine hands over: as runs on a Hermes API server, in the place of searches.
#[derive(Debug, Clone)]
pub struct Jobs {
    /// Runs them.
    pub runner: Runner,
    /// The Hermes session of the call: 1 to 64 of `A-Za-z0-9_-`.
    pub session: String,
    /// What is answered when a run asks for an approval. Nobody is there to be asked.
    pub decision: Choice,
}

impl Tools {
    /// The tools of a grant.
    ///
    /// # Errors
    /// When this machine cannot make requests at all.
    pub fn new(grant: &Grant) -> Result<Self, ClientError> {
        let (id, root, watch_key) = (grant.id.clone(), grant.root.clone(), grant.watch_key.clone());
        Ok(Self { host: client::Watch::new(grant.relay.clone(), id, root, watch_key)?, jobs: None })
    }

    /// The same with an agent in the place of searches, where the host has one.
    pub fn with(mut self, answers: &Answers) -> Self {
        if let Answers::Hermes(jobs) = answers {
            self.jobs = Some(jobs.clone());
        }
        self
    }

    /// The agent, where the host has one.
    pub fn jobs(&self) -> Option<&Jobs> {
        self.jobs.as_ref()
    }

    /// Searches the web; gives what the host answered, or an answer of that shape that says why there is none.
    pub async fn web_search(&self, query: &str) -> Map<String, Value> {
        let call = json!({"tool": TOOL, "args": {"query": query, "limit": SEARCH_RESULTS}});
        let answer = match self.host.call_tool(call.to_string().as_bytes()).await {
            Ok(answer) => serde_json::from_slice(&answer).map_err(|_| "the host's answer is no JSON".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        answer.unwrap_or_else(|detail| {
            let failed = [("ok", false.into()), ("detail", Value::from(detail))];
            failed.map(|(field, value)| (field.to_owned(), value)).into_iter().collect()
        })
    }
}

/// What the host's tools answer.
#[derive(Debug, Clone)]
pub enum Answers {
    /// Each search finds this, after so long.
    Scripted(Map<String, Value>, Duration),
    /// Status 501: with a real relay and a real engine the probe plays no agent.
    Unsupported,
    /// There is an agent: what the engine hands over is run there, and no tool is called.
    Hermes(Jobs),
}

impl Answers {
    /// The weather that the simulated engines are asked about, found after so long.
    pub fn scripted(after: Duration) -> Self {
        let found = json!({
            "ok": true,
            "results": [{
                "title": "Weather",
                "url": "https://weather.example/",
                "snippet": "Sunny, 21 degrees, a light wind from the west.",
            }],
        });
        Self::Scripted(found.as_object().cloned().unwrap_or_default(), after)
    }

    async fn to(&self, call: &Value) -> Value {
        match self {
            Self::Scripted(found, after) if call["tool"] == TOOL => {
                sleep(*after).await;
                let mut found = found.clone();
                found.insert("query".into(), call["args"]["query"].clone());
                found.into()
            }
            _ => json!({"ok": false, "status": 501, "detail": "The probe does not do this; --hermes names who does."}),
        }
    }
}

/// Answers the grant's tool calls, until the grant is closed.
pub async fn serve(host: client::Host, grant: Grant, answers: Answers) {
    let mut results = JoinSet::new();
    loop {
        match host.poll_calls(&grant.id, POLL).await {
            Ok(calls) => {
                for call in calls {
                    let (host, grant, answers) = (host.clone(), grant.clone(), answers.clone());
                    results.spawn(async move { answer(&host, &grant, &answers, &call).await });
                }
            }
            Err(ClientError::Refused { status: 401 | 404 | 410, .. }) => break,
            Err(error) => {
                tracing::warn!(%error, "tool calls cannot be fetched");
                sleep(POLL_AGAIN).await;
            }
        }
        while results.try_join_next().is_some() {}
    }
}

async fn answer(host: &client::Host, grant: &Grant, answers: &Answers, call: &FetchedCall) {
    // What does not open is somebody else's, and is not answered.
    let Ok(plain) = open_call(&grant.root, &grant.id, &call.rid, &call.sealed) else {
        tracing::warn!("a tool call does not open");
        return;
    };
    let result = answers.to(&serde_json::from_slice(&plain).unwrap_or_default()).await;
    let posted = match seal_result(&grant.root, &grant.id, &call.rid, result.to_string().as_bytes()) {
        Ok(sealed) => host.post_result(&grant.id, &call.rid, &sealed).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = posted {
        tracing::warn!(%error, "a tool's result was not delivered");
    }
}

/// As many as are read out.
const SEARCH_RESULTS: u32 = 3;
/// The longest wait that the relay grants a poll.
const POLL: Duration = Duration::from_secs(25);
/// Before the relay is asked again after a failure.
const POLL_AGAIN: Duration = Duration::from_secs(1);
