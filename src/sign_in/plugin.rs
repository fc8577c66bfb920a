//! Sign-in by the plugin: a `session_request` line out, a `session` or `session_failed` line back (`plugin-stdio.md`).
//!
//! The [`Desk`] is where a starting session asks; the [`Clerk`] is the bridge's half, which numbers the requests and
//! knows who waits for which answer.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{GptLiveAnswer, GrokAccess};
use crate::engine::{ErrorCode, Start, StartError};
use crate::parent::lines::{Answer, unusable_answer};

/// Where a starting session asks.
#[derive(Clone)]
pub struct Desk {
    requests: mpsc::Sender<Request>,
}

/// Who passes requests to the plugin and answers back.
pub struct Clerk {
    requests: mpsc::Receiver<Request>,
    waiting: HashMap<u64, Reply>,
    last_id: u64,
}

type Reply = oneshot::Sender<Result<Box<Answer>, StartError>>;

struct Request {
    line: Map<String, Value>,
    reply: Reply,
}

/// Both halves.
pub fn desk() -> (Desk, Clerk) {
    let (sender, requests) = mpsc::channel(REQUESTS);
    (Desk { requests: sender }, Clerk { requests, waiting: HashMap::new(), last_id: 0 })
}

impl Desk {
    pub(super) async fn gpt_live(&self, offer: &str, start: &Start) -> Result<GptLiveAnswer, StartError> {
        let mut line = request(start);
        line.insert("offer".into(), offer.into());
        let answer = self.ask(line).await?;
        Ok(GptLiveAnswer {
            sdp: answer.sdp.filter(|sdp| !sdp.is_empty()).ok_or_else(unusable_answer)?,
            voice: answer.voice.unwrap_or_default(),
            briefing_applied: answer.briefing_applied,
            greeting_applied: answer.greeting_applied,
        })
    }

    pub(super) async fn grok(&self, start: &Start) -> Result<GrokAccess, StartError> {
        let answer = self.ask(request(start)).await?;
        match *answer {
            Answer { url: Some(url), bearer: Some(bearer), model: Some(model), voice, .. } => {
                Ok(GrokAccess { url, bearer, model, voice: voice.unwrap_or_default() })
            }
            _ => Err(unusable_answer()),
        }
    }

    async fn ask(&self, line: Map<String, Value>) -> Result<Box<Answer>, StartError> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.requests.send(Request { line, reply }).await.ok()?;
            answer.await.ok()
        };
        match timeout(ANSWER_LIMIT, asked).await {
            Ok(Some(answer)) => answer,
            // The bridge is going: nobody will read this.
            Ok(None) => Err(StartError::new(ErrorCode::Failed, "The host is ending the call.")),
            Err(_) => Err(StartError::new(ErrorCode::Unreachable, "The host's sign-in did not answer.")),
        }
    }
}

/// A request with the Watch's own values; an absent field stays absent.
fn request(start: &Start) -> Map<String, Value> {
    let fields = START_FIELDS.into_iter().filter_map(|name| Some((name.to_owned(), start.fields.get(name)?.clone())));
    let fields: Map<String, Value> = fields.collect();
    let Value::Object(line) = json!({"type": "session_request", "engine": start.engine.as_str(), "start": fields})
    else {
        unreachable!("an object was written")
    };
    line
}

impl Clerk {
    /// The next `session_request` line to write; cancel safe. Waits for ever when nobody asks any more.
    pub async fn next(&mut self) -> Value {
        let Request { mut line, reply } = loop {
            match self.requests.recv().await {
                // Whoever gave up meanwhile need not be signed in.
                Some(request) if request.reply.is_closed() => {}
                Some(request) => break request,
                None => return std::future::pending().await,
            }
        };
        // Whoever gave up does not wait any more.
        self.waiting.retain(|_, reply| !reply.is_closed());
        self.last_id += 1;
        line.insert("id".into(), self.last_id.into());
        self.waiting.insert(self.last_id, reply);
        Value::Object(line)
    }

    /// Refuses every request that [`Clerk::next`] has not given out yet, and all that come later.
    pub fn take_no_more(&mut self) {
        self.requests.close();
        self.refuse_waiting();
    }

    /// Refuses every request that [`Clerk::next`] has not given out yet: who made them is given up.
    pub fn refuse_waiting(&mut self) {
        while self.requests.try_recv().is_ok() {}
    }

    /// Passes an answer on; one that comes late, twice or unasked is ignored.
    pub fn answer(&mut self, id: u64, answer: Result<Box<Answer>, StartError>) {
        let taken = self.waiting.remove(&id).is_some_and(|reply| reply.send(answer).is_ok());
        if !taken {
            tracing::debug!(id, "an answer nobody waits for");
        }
    }
}

/// The fields of `start` that the plugin is given, when the Watch sent them.
const START_FIELDS: [&str; 5] = ["voice", "briefing", "greeting", "call_opening", "history"];

/// `plugin-stdio.md`: a request not answered within 32 s fails as `unreachable`.
const ANSWER_LIMIT: Duration = Duration::from_secs(32);

/// A bridge starts one session at a time; one more may be on its way when it is restarted.
const REQUESTS: usize = 4;

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::engine::EngineKind;
    use crate::secret::Secret;

    fn start(engine: EngineKind, fields: Value) -> Start {
        let Value::Object(fields) = fields else { panic!() };
        Start { engine, fields }
    }

    fn answer(id: u64) -> Box<Answer> {
        Box::new(Answer {
            id,
            sdp: Some("v=0".into()),
            url: Some("wss://localhost/v1/realtime".into()),
            bearer: Some(Secret::new("xai-1")),
            model: Some("grok-voice-latest".into()),
            voice: Some("eve".into()),
            briefing_applied: true,
            greeting_applied: false,
        })
    }

    #[tokio::test]
    async fn the_watchs_own_values_go_to_the_plugin() {
        let (desk, mut clerk) = desk();
        let start =
            start(EngineKind::GptLive, json!({"greeting": "", "voice": "cove", "codecs": ["opus"], "history": []}));
        let (answered, line) = tokio::join!(desk.gpt_live("v=0\r\n", &start), async {
            let line = clerk.next().await;
            clerk.answer(1, Ok(answer(1)));
            line
        });
        let fields = json!({"greeting": "", "voice": "cove", "history": []});
        let wanted =
            json!({"type": "session_request", "id": 1, "engine": "gpt_live", "offer": "v=0\r\n", "start": fields});
        assert_eq!(line, wanted);
        let answered = answered.unwrap();
        assert_eq!((answered.sdp.as_str(), answered.briefing_applied, answered.greeting_applied), ("v=0", true, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_not_answered_in_32_s_is_unreachable_and_a_late_answer_ignored() {
        let (desk, mut clerk) = desk();
        let start = start(EngineKind::Grok, json!({}));
        let begun = Instant::now();
        let (answered, _) = tokio::join!(desk.grok(&start), clerk.next());
        assert_eq!(answered.unwrap_err().code, ErrorCode::Unreachable);
        assert_eq!(begun.elapsed().as_secs(), 32);

        clerk.answer(1, Ok(answer(1)));
        let (answered, ()) = tokio::join!(desk.grok(&start), async {
            assert_eq!(clerk.next().await["id"], 2);
            clerk.answer(1, Ok(answer(1)));
            let failed = StartError::new(ErrorCode::RateLimited, "Not now.");
            clerk.answer(2, Err(failed));
        });
        assert_eq!(answered.unwrap_err(), StartError::new(ErrorCode::RateLimited, "Not now."));
    }

    #[tokio::test]
    async fn an_answer_without_its_fields_fails() {
        let (desk, mut clerk) = desk();
        let start = start(EngineKind::Grok, json!({}));
        let (answered, ()) = tokio::join!(desk.grok(&start), async {
            clerk.next().await;
            clerk.answer(1, Ok(Box::new(Answer { bearer: None, ..*answer(1) })));
        });
        assert_eq!(answered.unwrap_err().code, ErrorCode::Failed);
    }
}
