//! What the vendor is known to refuse, and what would be a mistake of ours (`engines.md` 1.1, 2.1 and 3.2).

use axum::http::{HeaderMap, header};
use serde_json::{Map, Value};

use super::Options;

/// A checked request.
pub(super) struct Request {
    /// The offer.
    pub(super) sdp: String,
    /// The session's settings as they came.
    pub(super) session: Value,
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct Complaint {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) param: Option<String>,
    pub(super) message: String,
}

impl Complaint {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { status: 400, code: "invalid_value", param: None, message: message.into() }
    }

    /// The fault the simulator was told to have.
    pub(super) fn told(status: u16) -> Self {
        let code = if status == 429 { "insufficient_quota" } else { "told_so" };
        Self { status, code, param: None, message: format!("The simulator answers {status}.") }
    }

    fn field(param: &str, message: &str) -> Self {
        Self { param: Some(param.to_owned()), ..Self::bad(format!("{param}: {message}")) }
    }

    fn with(status: u16, code: &'static str, message: &str) -> Self {
        Self { status, code, ..Self::bad(message) }
    }
}

type Checked<T = ()> = Result<T, Complaint>;

/// The bearer: any, or the one that is known.
pub(super) fn bearer(options: &Options, headers: &HeaderMap) -> Checked {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).filter(|bearer| !bearer.is_empty());
    let known = options.bearer.as_ref().map(|known| known.expose());
    if bearer.is_some_and(|bearer| known.is_none_or(|known| known == bearer)) {
        return Ok(());
    }
    Err(Complaint::with(401, "invalid_api_key", "The key is missing or wrong."))
}

/// A request of the public dialect.
pub(super) fn dialect_a(headers: &HeaderMap, body: &[u8]) -> Checked<Request> {
    let body = json(headers, body)?;
    only(&body, "", &["session", "transport"])?;
    let session = object(&body, "session")?;
    only(session, "session.", &["model", "instructions", "audio", "delegation", "client", "input", "store"])?;
    if !["gpt-live-1", "gpt-live-1.1"].contains(&text(session, "session.model")?) {
        return Err(Complaint::with(400, "model_not_found", "There is no such model."));
    }
    common(session)?;
    if !voice(session)?.is_none_or(|voice| VOICES_A.contains(&voice) || voice.starts_with("voice_")) {
        return Err(Complaint::field("session.audio.output.voice", "unknown"));
    }
    if let Some(client) = session.get("client") {
        client_events(client)?;
    }
    history(session.get("input"), "session.input")?;
    let transport = object(&body, "transport")?;
    only(transport, "transport.", &["type", "sdp"])?;
    if text(transport, "transport.type")? != "webrtc" {
        return Err(Complaint::field("transport.type", "must be webrtc"));
    }
    let sdp = offer(text(transport, "transport.sdp")?)?;
    Ok(Request { sdp, session: body["session"].clone() })
}

/// A request of the dialect of a ChatGPT sign-in.
pub(super) fn dialect_b(query: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Checked<Request> {
    if query != Some("intent=quicksilver&architecture=avas") {
        return Err(Complaint::bad("The query is not what it must be."));
    }
    let named = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
    match named("openai-alpha") {
        None => return Err(Complaint::with(403, "access_denied", "Voice session access denied")),
        Some("quicksilver=v2") => {}
        Some(_) => {
            return Err(Complaint::with(400, "invalid_quicksilver_alpha_header", "AVAS requires quicksilver=v2."));
        }
    }
    let required = ["chatgpt-account-id", "originator", "session-id", "x-session-id", "thread-id"];
    if let Some(missing) = required.iter().find(|name| named(name).is_none()) {
        return Err(Complaint::bad(format!("The header {missing} is missing.")));
    }
    let (first, second, third) = (named("session-id"), named("x-session-id"), named("thread-id"));
    if first == second || second == third || first == third {
        return Err(Complaint::bad("The three ids are not distinct."));
    }
    let body = json(headers, body)?;
    only(&body, "", &["sdp", "session"])?;
    let session = object(&body, "session")?;
    only(session, "session.", &["model", "instructions", "audio", "delegation", "initial_items"])?;
    text(session, "session.model")?;
    common(session)?;
    if !voice(session)?.is_none_or(|voice| VOICES_B.contains(&voice)) {
        return Err(Complaint::with(403, "access_denied", "Voice session access denied"));
    }
    if session.get("initial_items").is_some_and(|items| items.as_array().is_none_or(Vec::is_empty)) {
        return Err(Complaint::field("session.initial_items", "must not be empty"));
    }
    history(session.get("initial_items"), "session.initial_items")?;
    let sdp = offer(text(&body, "sdp")?)?;
    Ok(Request { sdp, session: body["session"].clone() })
}

/// What both dialects have in common.
fn common(session: &Map<String, Value>) -> Checked {
    if let Some(instructions) = session.get("instructions") {
        let instructions =
            instructions.as_str().ok_or_else(|| Complaint::field("session.instructions", "not a string"))?;
        if tokens(instructions) > 16_384 {
            return Err(Complaint::field("session.instructions", "more than 16384 tokens"));
        }
    }
    let Some(delegation) = session.get("delegation").filter(|delegation| !delegation.is_null()) else { return Ok(()) };
    if delegation["type"] != "client" {
        return Err(Complaint::field("session.delegation.type", "the simulator delegates to the client only"));
    }
    Ok(())
}

fn voice(session: &Map<String, Value>) -> Checked<Option<&str>> {
    let Some(audio) = session.get("audio") else { return Ok(None) };
    let wrong = || Complaint::field("session.audio", "must hold output.voice");
    only(audio.as_object().ok_or_else(wrong)?, "session.audio.", &["output"])?;
    only(audio["output"].as_object().ok_or_else(wrong)?, "session.audio.output.", &["voice"])?;
    let voice = &audio["output"]["voice"];
    Ok(Some(voice.as_str().or_else(|| voice["id"].as_str()).ok_or_else(wrong)?))
}

fn client_events(client: &Value) -> Checked {
    let wrong = || Complaint::field("session.client", "must hold data_channel");
    only(client.as_object().ok_or_else(wrong)?, "session.client.", &["data_channel"])?;
    let channel = client["data_channel"].as_object().ok_or_else(wrong)?;
    only(channel, "session.client.data_channel.", &["allowed_client_events", "allowed_server_events"])?;
    let fits = |value: &Value| value == "all" || value.is_array();
    if channel.values().all(fits) { Ok(()) } else { Err(wrong()) }
}

/// The start history: at most 128 messages of 8,192 tokens together, each of one part that fits its role.
fn history(items: Option<&Value>, name: &str) -> Checked {
    let Some(items) = items else { return Ok(()) };
    let items = items.as_array().filter(|items| items.len() <= 128);
    let items = items.ok_or_else(|| Complaint::field(name, "must be at most 128 messages"))?;
    let mut total = 0;
    for item in items {
        let parts = item["content"].as_array().filter(|parts| parts.len() == 1);
        let part = parts.map(|parts| &parts[0]).ok_or_else(|| Complaint::field(name, "one content part each"))?;
        let fits = match (item["role"].as_str(), part["type"].as_str()) {
            (Some("developer" | "user"), Some(kind)) => kind == "input_text",
            (Some("assistant"), Some(kind)) => kind == "output_text" || kind == "text",
            _ => false,
        };
        if item["type"] != "message" || !fits {
            return Err(Complaint::field(name, "type, role and content type do not fit"));
        }
        total += tokens(part["text"].as_str().ok_or_else(|| Complaint::field(name, "without text"))?);
    }
    if total > 8_192 { Err(Complaint::field(name, "more than 8192 tokens")) } else { Ok(()) }
}

/// What an offer must have (`engines.md` 3.2).
fn offer(sdp: &str) -> Checked<String> {
    let wrong = |message: &str| Err(Complaint::bad(format!("The offer {message}.")));
    let has = |start: &str| sdp.lines().any(|line| line.starts_with(start));
    if !sdp.ends_with("\r\n") {
        return wrong("does not end with its line break");
    }
    for needed in
        ["m=audio ", "m=application ", "a=ice-ufrag:", "a=ice-pwd:", "a=fingerprint:", "a=candidate:", "a=group:BUNDLE"]
    {
        if !has(needed) {
            return wrong(&format!("has no line {needed}"));
        }
    }
    if sdp.lines().filter(|line| line.starts_with("m=")).count() != 2 {
        return wrong("has other media than one audio and one data channel");
    }
    if !sdp.lines().any(|line| line.to_ascii_lowercase().contains("opus/48000/2")) {
        return wrong("has no Opus");
    }
    if has("a=setup:") && !has("a=setup:actpass") {
        return wrong("does not leave the DTLS role open");
    }
    Ok(sdp.to_owned())
}

fn json(headers: &HeaderMap, body: &[u8]) -> Checked<Map<String, Value>> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/json") {
        return Err(Complaint::with(415, "unsupported_media_type", "The body must be JSON."));
    }
    serde_json::from_slice(body).map_err(|_| Complaint::bad("The body is not a JSON object."))
}

fn only(object: &Map<String, Value>, prefix: &str, known: &[&str]) -> Checked {
    match object.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Complaint::field(&format!("{prefix}{name}"), "unknown")),
        None => Ok(()),
    }
}

fn object<'a>(object: &'a Map<String, Value>, name: &str) -> Checked<&'a Map<String, Value>> {
    object.get(name).and_then(Value::as_object).ok_or_else(|| Complaint::field(name, "not an object"))
}

/// A required text; `path` ends with the field's name.
fn text<'a>(object: &'a Map<String, Value>, path: &str) -> Checked<&'a str> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let text = object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| Complaint::field(path, "not a text"))
}

/// About four characters are a token.
pub(super) fn tokens(text: &str) -> usize {
    text.chars().count().div_ceil(4)
}

/// Dialect A's voices; one of them is spelt in two ways.
const VOICES_A: [&str; 32] = [
    "alloy", "ash", "ballad", "beacon", "bossa", "brise", "cedar", "cinder", "coral", "delta", "echo", "flitz",
    "gleam", "harema", "juni", "marin", "meridian", "nira", "noeul", "nuri", "quartz", "ripple", "sage", "shimmer",
    "shida", "shitan", "sillage", "stone", "tempo", "verse", "vesper", "willow",
];

/// Dialect B's voices.
const VOICES_B: [&str; 9] = ["cove", "juniper", "maple", "spruce", "ember", "vale", "breeze", "arbor", "sol"];
