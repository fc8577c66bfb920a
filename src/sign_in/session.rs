//! From the Watch's `start` to the session GPT-Live is asked for (`watch-audio.md`, "The deployed Watch"; `engines.md` 1.1
//! and 2.1): instructions with briefing and greeting, start history, voice.

use serde_json::{Map, Value, json};

use crate::engine::Start;

/// Which of GPT-Live's dialects a sign-in speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// The public API, with an API key.
    A,
    /// The one behind a ChatGPT sign-in, which deployed Watches understand.
    B,
}

/// The session to ask for, and what of `start` it covers.
#[derive(Clone, PartialEq)]
pub struct SessionRequest {
    /// The `session` object of the call creation.
    pub session: Value,
    /// The voice that will speak.
    pub voice: String,
    /// Whether the briefing joined the instructions.
    pub briefing_applied: bool,
    /// Whether the session speaks first as asked.
    pub greeting_applied: bool,
}

/// Builds the session for a `start`. `instructions` and `model` replace the defaults.
pub fn session_request(
    dialect: Dialect,
    start: &Start,
    instructions: Option<&str>,
    model: Option<&str>,
) -> SessionRequest {
    let voice = voice(dialect, start);
    let briefing = start.text("briefing").filter(|text| !text.trim().is_empty() && text.len() <= MAX_BRIEFING);
    let opening = Opening::of(start);

    let mut parts = vec![instructions.unwrap_or(INSTRUCTIONS).to_owned()];
    parts.extend(briefing.map(str::to_owned));
    parts.push(opening.instruction());
    let history = history(start);

    let mut session = Map::new();
    session.insert("model".into(), model.unwrap_or(dialect.model()).into());
    session.insert("instructions".into(), parts.join("\n\n").into());
    // A voice of the user's own making goes by its id.
    let spoken = if voice.starts_with("voice_") { json!({"id": voice}) } else { json!(voice) };
    session.insert("audio".into(), json!({"output": {"voice": spoken}}));
    session.insert("delegation".into(), json!({"type": "client"}));
    if !history.is_empty() {
        session.insert(dialect.history_field().into(), history.into());
    }
    SessionRequest {
        session: session.into(),
        voice,
        briefing_applied: briefing.is_some(),
        greeting_applied: !matches!(opening, Opening::Silent),
    }
}

/// Who speaks first.
enum Opening {
    Silent,
    Greet,
    Say(String),
    SpeakFirst,
}

impl Opening {
    fn of(start: &Start) -> Self {
        if start.flag("call_opening") {
            return Self::SpeakFirst;
        }
        match start.text("greeting").map(str::trim) {
            None => Self::Silent,
            Some("") => Self::Greet,
            Some(text) => Self::Say(text.chars().take(MAX_GREETING).collect()),
        }
    }

    fn instruction(&self) -> String {
        match self {
            Self::Silent => "Stay silent until the user speaks to you.".into(),
            Self::Greet => "Begin the call: greet the user in a few words as soon as it starts, then listen.".into(),
            Self::Say(text) => {
                format!("Begin the call: as soon as it starts, say this and nothing else, then listen: {text}")
            }
            Self::SpeakFirst => {
                "Begin the call: speak first, as soon as it starts, about what the context above calls for.".into()
            }
        }
    }
}

/// The Watch's voice, or the default. A voice that only the other dialect has would be refused, so it is not asked for.
fn voice(dialect: Dialect, start: &Start) -> String {
    let wanted = start.text("voice").filter(|voice| !voice.is_empty());
    match (dialect, wanted) {
        (Dialect::A, Some(voice)) if VOICES_B.contains(&voice) => dialect.default_voice(),
        (Dialect::B, Some(voice)) if !VOICES_B.contains(&voice) => dialect.default_voice(),
        (_, Some(voice)) => voice,
        (_, None) => dialect.default_voice(),
    }
    .to_owned()
}

/// The last items of the conversation so far, each with exactly one text part; what has another shape is left out.
fn history(start: &Start) -> Vec<Value> {
    let items = start.fields.get("history").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut room = MAX_HISTORY_BYTES;
    // From the newest, as far as the service's token limit surely reaches.
    let mut kept: Vec<Value> = items[items.len().saturating_sub(MAX_HISTORY)..]
        .iter()
        .rev()
        .filter_map(history_item)
        .take_while(|(_, bytes)| {
            let fits = *bytes <= room;
            room = room.saturating_sub(*bytes);
            fits
        })
        .map(|(item, _)| item)
        .collect();
    kept.reverse();
    kept
}

/// One item as the service takes it, and its text's length.
fn history_item(item: &Value) -> Option<(Value, usize)> {
    let role = item.get("role")?.as_str()?;
    let part = match role {
        "user" | "developer" => "input_text",
        "assistant" => "output_text",
        _ => return None,
    };
    let parts = item.get("content")?.as_array()?.iter().filter_map(|part| part.get("text")?.as_str());
    let text = parts.collect::<Vec<_>>().join(" ");
    if text.trim().is_empty() {
        return None;
    }
    let bytes = text.len();
    Some((json!({"type": "message", "role": role, "content": [{"type": part, "text": text}]}), bytes))
}

impl Dialect {
    fn model(self) -> &'static str {
        match self {
            Self::A => "gpt-live-1",
            Self::B => "gpt-live-1-codex",
        }
    }

    fn default_voice(self) -> &'static str {
        match self {
            Self::A => "marin",
            Self::B => "cove",
        }
    }

    fn history_field(self) -> &'static str {
        match self {
            Self::A => "input",
            Self::B => "initial_items",
        }
    }
}

/// Dialect B's voices; it refuses any other, and dialect A has none of them (`engines.md` 1.1, 2.1).
const VOICES_B: [&str; 9] = ["cove", "juniper", "maple", "spruce", "ember", "vale", "breeze", "arbor", "sol"];

/// What the voice is told when the configuration says nothing else. Real work goes to Hermes as a delegation.
const INSTRUCTIONS: &str = "You are the voice of Hermes, the user's agent, on their watch. Speak briefly and plainly, in \
the user's language. Delegate whatever needs facts, memory or action, and never guess while you wait. Stop when you are \
interrupted.";

/// `watch-audio.md`: a briefing is at most 32 KB.
const MAX_BRIEFING: usize = 32 * 1024;

/// `watch-audio.md`: a greeting is at most 200 characters.
const MAX_GREETING: usize = 200;

/// `watch-audio.md`: the last 40 items.
const MAX_HISTORY: usize = 40;

/// The services take 8,192 tokens of history; no script needs more than a token for 3 bytes of UTF-8, by and large.
const MAX_HISTORY_BYTES: usize = 24_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;

    fn request(dialect: Dialect, fields: Value) -> SessionRequest {
        let Value::Object(fields) = fields else { panic!() };
        session_request(dialect, &Start { engine: EngineKind::GptLive, fields }, Some("Be brief."), None)
    }

    fn instructions(request: &SessionRequest) -> &str {
        request.session["instructions"].as_str().unwrap()
    }

    #[test]
    fn each_dialect_has_its_own_shape() {
        let history =
            json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}]);
        let a = request(Dialect::A, json!({"history": history}));
        assert_eq!(a.session["model"], "gpt-live-1");
        assert_eq!(a.session["audio"]["output"]["voice"], "marin");
        assert_eq!(a.session["delegation"], json!({"type": "client"}));
        assert_eq!(a.session["input"], history);
        let b = request(Dialect::B, json!({"history": history}));
        assert_eq!(b.session["model"], "gpt-live-1-codex");
        assert_eq!(b.voice, "cove");
        assert_eq!(b.session["initial_items"], history);
        for (session, other) in [(&a.session, "initial_items"), (&b.session, "input")] {
            assert!(session.get(other).is_none() && session.get("type").is_none() && session.get("id").is_none());
        }
        assert!(request(Dialect::B, json!({"history": []})).session.get("initial_items").is_none());
    }

    #[test]
    fn an_absent_greeting_is_silence_and_an_empty_one_a_greeting() {
        let silent = request(Dialect::B, json!({}));
        assert!(
            instructions(&silent).ends_with("Stay silent until the user speaks to you.") && !silent.greeting_applied
        );
        let greet = request(Dialect::B, json!({"greeting": ""}));
        assert!(instructions(&greet).contains("greet the user") && greet.greeting_applied);
        let say = request(Dialect::A, json!({"greeting": "Good morning, Ada."}));
        assert!(instructions(&say).ends_with("Good morning, Ada.") && say.greeting_applied);
        let opening = request(Dialect::A, json!({"greeting": "Good morning, Ada.", "call_opening": true}));
        assert!(instructions(&opening).contains("speak first") && !instructions(&opening).contains("Ada"));
        assert!(opening.greeting_applied);
        let ignored = request(Dialect::A, json!({"call_opening": false}));
        assert!(instructions(&ignored).contains("silent"));
        let long = request(Dialect::A, json!({"greeting": "é".repeat(500)}));
        assert_eq!(instructions(&long).matches('é').count(), 200);
    }

    #[test]
    fn a_briefing_joins_the_instructions_up_to_its_limit() {
        let briefed = request(Dialect::B, json!({"briefing": "The user is Ada."}));
        assert!(instructions(&briefed).starts_with("Be brief.\n\nThe user is Ada.\n\n") && briefed.briefing_applied);
        assert!(request(Dialect::B, json!({"briefing": "x".repeat(32 * 1024)})).briefing_applied);
        let too_long = request(Dialect::B, json!({"briefing": "x".repeat(32 * 1024 + 1)}));
        assert!(!too_long.briefing_applied && instructions(&too_long).len() < 100);
        assert!(!request(Dialect::B, json!({"briefing": ""})).briefing_applied);
    }

    #[test]
    fn the_last_40_items_go_each_with_one_part() {
        let item = |n: usize| json!({"role": "assistant", "content": [{"text": format!("{n}")}, {"text": "more"}]});
        let items: Vec<Value> = (0..50).map(item).chain([json!({"role": "tool", "content": []}), json!(7)]).collect();
        let request = request(Dialect::A, json!({"history": items}));
        let input = request.session["input"].as_array().unwrap();
        assert_eq!(input.len(), 38, "two of the last 40 are no items");
        let content = json!([{"type": "output_text", "text": "12 more"}]);
        assert_eq!(input[0], json!({"type": "message", "role": "assistant", "content": content}));
    }

    #[test]
    fn history_stays_under_the_token_limit_newest_first() {
        let item = |n: usize| json!({"role": "user", "content": [{"text": format!("{n} {}", "x".repeat(9_000))}]});
        let request = request(Dialect::B, json!({"history": (0..5).map(item).collect::<Vec<_>>()}));
        let items = request.session["initial_items"].as_array().unwrap();
        assert_eq!(items.len(), 2);
        assert!(items[1]["content"][0]["text"].as_str().unwrap().starts_with("4 "));
    }

    #[test]
    fn a_voice_of_the_other_dialect_is_not_asked_for() {
        assert_eq!(request(Dialect::A, json!({"voice": "cove"})).voice, "marin");
        assert_eq!(request(Dialect::A, json!({"voice": "shida"})).voice, "shida");
        assert_eq!(request(Dialect::B, json!({"voice": "marin"})).voice, "cove");
        assert_eq!(request(Dialect::B, json!({"voice": "sol"})).voice, "sol");
    }
}
