//! What a Watch says to each engine, and what it makes of the engine's events (`engines.md` 1.3 to 1.4, 2.3 to 2.4,
//! 4.3 to 4.4). No IO and no clock: events and times go in, [`Act`]s come out.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use watch_audio::engine::EngineKind;
use watch_audio::hermes::{Line, Speaker};
pub use watch_audio::sign_in::session::Dialect;

/// The Watch's side of the conversation with one engine session.
#[derive(Debug)]
pub struct Dialogue {
    engine: EngineKind,
    dialect: Dialect,
    /// Delegations and function calls seen, by id: the same one may be announced twice (case 32).
    seen: HashSet<String>,
    /// Dialect A: what was said since the last request, to rebuild the next one from.
    fragments: Vec<Fragment>,
    consumed_ms: u64,
    settling: Option<Settling>,
    /// Grok: calls of the running response that wait for their output, and whether that response is over.
    open_calls: usize,
    response_running: bool,
    response_owed: bool,
}

/// What the Watch does about an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Sends an event to the engine.
    Send(Value),
    /// Has the host look something up; [`Dialogue::answer`] takes the result.
    Search {
        /// The delegation or call the answer belongs to.
        id: String,
        /// What to look for.
        query: String,
        /// What was said since the last request, newest last.
        lines: Vec<Line>,
    },
    /// The engine has (more of) the user's words.
    Heard(String),
    /// The engine says that the user speaks over the reply, or that its buffer was cleared: stop playing.
    StopPlaying,
    /// A reply of its own, with what it says.
    Said(String),
    /// What the engine said up to here is one utterance; what it says next is another (GPT-Live).
    SaidAll,
    /// A new reply begins (Grok).
    ReplyBegins,
    /// A reply is complete (Grok).
    ReplyEnds,
    /// The engine complains; that alone ends nothing (case 30).
    Complaint(String),
}

#[derive(Debug)]
struct Fragment {
    speaker: Speaker,
    start_ms: u64,
    end_ms: u64,
    text: String,
}

/// A delegation of dialect A whose words are still coming in (case 34).
#[derive(Debug)]
struct Settling {
    id: String,
    offset_ms: u64,
    created: Duration,
    last_fragment: Duration,
}

impl Dialogue {
    /// A conversation that has not begun.
    pub fn new(engine: EngineKind, dialect: Dialect) -> Self {
        Self {
            engine,
            dialect,
            seen: HashSet::new(),
            fragments: Vec::new(),
            consumed_ms: 0,
            settling: None,
            open_calls: 0,
            response_running: false,
            response_owed: false,
        }
    }

    /// What the Watch says right after `started`.
    pub fn opening(&self) -> Option<Value> {
        let format = json!({"type": "audio/pcm", "rate": self.engine.output_rate()});
        (self.engine == EngineKind::Grok).then(|| {
            json!({"type": "session.update", "session": {
                "instructions": "You are on a call with someone who wears a watch. Answer briefly; look up facts.",
                "voice": "eve",
                "turn_detection": {"type": "server_vad"},
                "audio": {
                    "input": {"format": format, "transcription": {"model": "grok-transcribe"}},
                    "output": {"format": format},
                },
                "tools": [{
                    "type": "function",
                    "name": TOOL,
                    "description": "Searches the web.",
                    "parameters": {
                        "type": "object",
                        "properties": {"query": {"type": "string"}},
                        "required": ["query"],
                    },
                }],
            }})
        })
    }

    /// Takes an event of the engine in.
    pub fn event(&mut self, now: Duration, event: &Value) -> Vec<Act> {
        match self.engine {
            EngineKind::GptLive => self.gpt_live(now, event),
            EngineKind::Grok => self.grok(event),
        }
    }

    fn gpt_live(&mut self, now: Duration, event: &Value) -> Vec<Act> {
        match (text(event, "/type"), self.dialect) {
            ("session.input_transcript.delta", Dialect::A) => {
                self.keep(Speaker::User, event);
                if let Some(settling) = &mut self.settling {
                    settling.last_fragment = now;
                }
                vec![Act::Heard(text(event, "/delta").to_owned())]
            }
            ("session.output_transcript.delta", Dialect::A) => {
                self.keep(Speaker::Assistant, event);
                said(text(event, "/delta"))
            }
            ("session.delegation.created", Dialect::A) if text(event, "/delegation/target") != "responses" => {
                let id = text(event, "/delegation/id").to_owned();
                if self.seen.insert(id.clone()) {
                    let offset_ms = number(event, "/offset_ms");
                    self.settling = Some(Settling { id, offset_ms, created: now, last_fragment: now });
                }
                vec![]
            }
            ("input_transcript.added", Dialect::B) => vec![Act::Heard(text(event, "/item/text").to_owned())],
            ("output_transcript.added", Dialect::B) => said(text(event, "/item/text")),
            ("delegation.created", Dialect::B) => {
                let id = text(event, "/item/id").to_owned();
                let query = text(event, "/item/content/0/text").to_owned();
                if self.seen.insert(id.clone()) { vec![search(id, query)] } else { vec![] }
            }
            // Not `turn.created`: it may follow the turn's first words.
            ("turn.done", Dialect::B) if text(event, "/turn/role") == "assistant" => vec![Act::SaidAll],
            ("output_audio_buffer.cleared", _) => vec![Act::StopPlaying],
            ("error", _) => vec![complaint(event)],
            _ => vec![],
        }
    }

    fn grok(&mut self, event: &Value) -> Vec<Act> {
        match text(event, "/type") {
            "input_audio_buffer.speech_started" => vec![Act::StopPlaying],
            "conversation.item.input_audio_transcription.completed" => {
                vec![Act::Heard(text(event, "/transcript").to_owned())]
            }
            "response.created" => {
                self.response_running = true;
                vec![Act::ReplyBegins]
            }
            "response.output_audio_transcript.delta" | "response.audio_transcript.delta" => said(text(event, "/delta")),
            "response.function_call_arguments.done" if text(event, "/name") == TOOL => {
                let id = text(event, "/call_id").to_owned();
                if !self.seen.insert(id.clone()) {
                    return vec![];
                }
                self.open_calls += 1;
                let arguments = serde_json::from_str::<Value>(text(event, "/arguments")).unwrap_or_default();
                vec![search(id, text(&arguments, "/query").to_owned())]
            }
            "response.done" => {
                self.response_running = false;
                let mut acts = vec![Act::ReplyEnds];
                acts.extend(self.owed_response().map(Act::Send));
                acts
            }
            "error" => vec![complaint(event)],
            _ => vec![],
        }
    }

    fn keep(&mut self, speaker: Speaker, event: &Value) {
        self.fragments.push(Fragment {
            speaker,
            start_ms: number(event, "/start_ms"),
            end_ms: number(event, "/end_ms"),
            text: text(event, "/delta").to_owned(),
        });
    }

    /// When [`Dialogue::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.settling.as_ref().map(|settling| {
            let latest = settling.created + SETTLE_LIMIT;
            if !self.request(settling.offset_ms).any(|fragment| fragment.speaker == Speaker::User) {
                return latest;
            }
            (settling.created + SETTLE).max(settling.last_fragment + SETTLE).min(latest)
        })
    }

    /// What was said since the last request and before `offset_ms`.
    fn request(&self, offset_ms: u64) -> impl Iterator<Item = &Fragment> {
        let consumed = self.consumed_ms;
        self.fragments.iter().filter(move |fragment| fragment.end_ms > consumed && fragment.start_ms < offset_ms)
    }

    /// Ends the wait for the words of a delegation.
    pub fn handle_timeout(&mut self, now: Duration) -> Vec<Act> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return vec![];
        }
        let Some(Settling { id, offset_ms, .. }) = self.settling.take() else { return vec![] };
        self.fragments.sort_by_key(|fragment| fragment.start_ms);
        let mut lines: Vec<Line> = Vec::new();
        for fragment in self.request(offset_ms) {
            match lines.last_mut().filter(|line| line.speaker == fragment.speaker) {
                Some(line) => line.text.push_str(&fragment.text),
                None => lines.push(Line { speaker: fragment.speaker, text: fragment.text.trim_start().to_owned() }),
            }
        }
        let words = lines.iter().filter(|line| line.speaker == Speaker::User).map(|line| line.text.trim());
        let query = words.collect::<Vec<_>>().join(" ").trim().to_owned();
        self.consumed_ms = offset_ms;
        self.fragments.retain(|fragment| fragment.end_ms > offset_ms);
        if query.is_empty() {
            return self.answer(&id, "I did not catch that. Please say it again.").into_iter().map(Act::Send).collect();
        }
        vec![Act::Search { id, query, lines }]
    }

    /// The events that carry the answer of a search to the engine.
    pub fn answer(&mut self, id: &str, answer: &str) -> Vec<Value> {
        match (self.engine, self.dialect) {
            (EngineKind::GptLive, Dialect::A) => pieces(answer)
                .into_iter()
                .map(|piece| json!({"type": "session.commentary.append", "delegation_id": id, "content": piece}))
                .collect(),
            (EngineKind::GptLive, Dialect::B) => pieces(answer)
                .into_iter()
                .map(|piece| {
                    json!({"type": "delegation.context.append", "delegation_item_id": id, "channel": "speakable",
                        "content": [{"type": "input_text", "text": piece}]})
                })
                .collect(),
            (EngineKind::Grok, _) => {
                let output = json!({"type": "conversation.item.create",
                    "item": {"type": "function_call_output", "call_id": id, "output": answer}});
                self.open_calls = self.open_calls.saturating_sub(1);
                self.response_owed = true;
                [Some(output), self.owed_response()].into_iter().flatten().collect()
            }
        }
    }

    /// One `response.create` for all calls of a response, once that response is over.
    fn owed_response(&mut self) -> Option<Value> {
        if !self.response_owed || self.open_calls > 0 || self.response_running {
            return None;
        }
        self.response_owed = false;
        Some(json!({"type": "response.create"}))
    }
}

/// The words of a search's result, as the Watch puts them to the engine.
pub fn words_of(result: &Map<String, Value>) -> String {
    if result.get("ok").and_then(Value::as_bool) != Some(true) {
        let detail = result.get("detail").and_then(Value::as_str).unwrap_or("no detail");
        return format!("The search did not work: {detail}");
    }
    let results = result.get("results").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if results.is_empty() {
        return "The search found nothing.".to_owned();
    }
    let lines: Vec<String> =
        results.iter().map(|result| format!("{}: {}", text(result, "/title"), text(result, "/snippet"))).collect();
    lines.join("\n")
}

/// Cuts a text into appends, in order: at the ends of sentences where they fit, else at spaces, and never inside a
/// character (case 29).
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > APPEND_BYTES {
        let room = &rest[..rest.floor_char_boundary(APPEND_BYTES)];
        let (piece, left) = rest.split_at(sentence_end(room).or_else(|| last_space(room)).unwrap_or(room.len()));
        pieces.push(piece);
        rest = left;
    }
    pieces.push(rest);
    pieces
}

/// Behind the last sentence that ends in a text, and behind the space that follows it.
fn sentence_end(text: &str) -> Option<usize> {
    let mut end = None;
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let behind = at + c.len_utf8();
        match (c, characters.peek()) {
            ('。' | '！' | '？' | '\n', _) => end = Some(behind),
            ('.' | '!' | '?' | '…', Some((_, next))) if next.is_whitespace() => end = Some(behind + next.len_utf8()),
            _ => {}
        }
    }
    end
}

fn last_space(text: &str) -> Option<usize> {
    text.rfind(' ').map(|space| space + 1)
}

/// A request that came with its words.
fn search(id: String, query: String) -> Act {
    let lines = vec![Line { speaker: Speaker::User, text: query.clone() }];
    Act::Search { id, query, lines }
}

fn said(words: &str) -> Vec<Act> {
    if words.is_empty() { vec![] } else { vec![Act::Said(words.to_owned())] }
}

fn complaint(event: &Value) -> Act {
    let nested = text(event, "/error/message");
    Act::Complaint(if nested.is_empty() { text(event, "/message") } else { nested }.to_owned())
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// The tool that the Watch offers.
pub const TOOL: &str = "web_search";
/// The clients' own limit of one append of dialect B (`engines.md` 2.3); A's 500 tokens are more.
const APPEND_BYTES: usize = 500;
/// Dialect A: the words of a delegation are complete when none came for this long (`engines.md` 1.4).
const SETTLE: Duration = Duration::from_millis(600);
/// Dialect A: and are taken as they are after this long; without any, the user is asked again.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn case_34_a_delegation_waits_for_its_words() {
        let mut dialogue = Dialogue::new(EngineKind::GptLive, Dialect::A);
        let created = json!({"type": "session.delegation.created", "offset_ms": 2200,
            "delegation": {"id": "item_D1", "type": "delegation", "target": "client"}});
        assert_eq!(dialogue.event(ms(1000), &created), []);
        for (start, words) in [(800, " in"), (600, "weather"), (1000, " Oslo"), (2200, " and then")] {
            let event = json!({"type": "session.input_transcript.delta", "delta": words,
                "start_ms": start, "end_ms": start + 200});
            dialogue.event(ms(1400), &event);
        }
        assert_eq!(dialogue.deadline(), Some(ms(2000)));
        assert_eq!(dialogue.handle_timeout(ms(1999)), []);
        assert_eq!(dialogue.handle_timeout(ms(2000)), [search("item_D1".into(), "weather in Oslo".into())]);
        // Twice the same id is one request (case 32).
        dialogue.event(ms(2100), &created);
        assert_eq!(dialogue.deadline(), None);
    }

    #[test]
    fn case_34_without_words_the_user_is_asked_again() {
        let mut dialogue = Dialogue::new(EngineKind::GptLive, Dialect::A);
        let created = json!({"type": "session.delegation.created", "offset_ms": 2200,
            "delegation": {"id": "item_D1", "target": "client"}});
        dialogue.event(ms(0), &created);
        assert_eq!(dialogue.handle_timeout(ms(2_999)), [], "the words may still come");
        let [Act::Send(event)] = &dialogue.handle_timeout(ms(3_000))[..] else { panic!("an append was due") };
        assert_eq!(event["type"], "session.commentary.append");
        assert_eq!(event["delegation_id"], "item_D1");
    }

    #[test]
    fn a_request_is_what_both_said_since_the_last_one() {
        let mut dialogue = Dialogue::new(EngineKind::GptLive, Dialect::A);
        let say = |dialogue: &mut Dialogue, speaker: &str, words: &str, start: u64| {
            let kind = format!("session.{speaker}_transcript.delta");
            let event = json!({"type": kind, "delta": words, "start_ms": start, "end_ms": start + 200});
            dialogue.event(ms(start), &event);
        };
        let delegation = |id: &str, offset: u64| json!({"type": "session.delegation.created", "offset_ms": offset, "delegation": {"id": id, "target": "client"}});
        let line = |speaker, text: &str| Line { speaker, text: text.into() };
        say(&mut dialogue, "input", "The", 0);
        say(&mut dialogue, "input", " weather.", 200);
        say(&mut dialogue, "output", "Where?", 800);
        say(&mut dialogue, "input", " In", 1_400);
        say(&mut dialogue, "input", " Oslo.", 1_600);
        dialogue.event(ms(2_000), &delegation("d1", 1_800));
        let [Act::Search { query, lines, .. }] = &dialogue.handle_timeout(ms(2_600))[..] else { panic!() };
        assert_eq!(query, "The weather. In Oslo.");
        let expected =
            [line(Speaker::User, "The weather."), line(Speaker::Assistant, "Where?"), line(Speaker::User, "In Oslo.")];
        assert!(lines[..] == expected);
        say(&mut dialogue, "output", "Okay,", 2_000);
        say(&mut dialogue, "input", "And tomorrow?", 3_000);
        dialogue.event(ms(3_500), &delegation("d2", 3_200));
        let [Act::Search { lines, .. }] = &dialogue.handle_timeout(ms(4_100))[..] else { panic!() };
        assert!(lines[..] == [line(Speaker::Assistant, "Okay,"), line(Speaker::User, "And tomorrow?")]);
    }

    #[test]
    fn case_29_pieces_end_with_their_sentences() {
        let sentence = format!("The {} end.", "very long way to the".repeat(9));
        let answer = format!("{} Version 1.5 is out! {}", sentence, [sentence.as_str(); 5].join(" "));
        for piece in &super::pieces(&answer) {
            assert!(piece.len() <= APPEND_BYTES && piece.trim_end().ends_with(['.', '!']), "{piece:?}");
        }
        let japanese = "東京は晴れです。".repeat(500);
        let pieces = super::pieces(&japanese);
        assert!(pieces.iter().all(|piece| piece.len() <= APPEND_BYTES && piece.ends_with('。')));
        assert_eq!(pieces.concat(), japanese);
    }

    #[test]
    fn case_29_a_long_answer_goes_in_pieces() {
        let answer = "Überraschung 天気は晴れです 🙂 ".repeat(60);
        let pieces = pieces(&answer);
        assert!(pieces.len() > 4 && pieces.iter().all(|piece| piece.len() <= APPEND_BYTES));
        assert_eq!(pieces.concat(), answer);
        assert_eq!(super::pieces(&"天".repeat(400)).concat(), "天".repeat(400));
    }

    #[test]
    fn grok_gets_one_response_create_after_its_response_is_over() {
        let mut dialogue = Dialogue::new(EngineKind::Grok, Dialect::B);
        dialogue.event(ms(0), &json!({"type": "response.created", "response": {"id": "r1"}}));
        for call in ["c1", "c2", "c1"] {
            let acts = dialogue.event(
                ms(0),
                &json!({"type": "response.function_call_arguments.done", "call_id": call, "name": "web_search",
                    "arguments": "{\"query\":\"weather\"}"}),
            );
            assert!(acts.len() <= 1);
        }
        assert_eq!(dialogue.answer("c1", "sunny").len(), 1);
        assert_eq!(dialogue.answer("c2", "windy").len(), 1);
        let acts = dialogue.event(ms(0), &json!({"type": "response.done"}));
        assert_eq!(acts, [Act::ReplyEnds, Act::Send(json!({"type": "response.create"}))]);
        assert_eq!(dialogue.event(ms(0), &json!({"type": "response.done"})), [Act::ReplyEnds]);
    }
}
