//! The Live session that a page asks for (`hermes-voice.md`; `engines.md` 1.1): persona, glossary, voice, history.

use serde_json::{Value, json};

use super::Config;
use crate::hermes::{Line, SPOKEN, Speaker};

/// The `session` object of the call's creation.
pub(super) fn session(config: &Config, voice: &str, history: &[Line]) -> Value {
    // A voice of the user's own making goes by its id.
    let spoken = if voice.starts_with("voice_") { json!({"id": voice}) } else { json!(voice) };
    let mut session = json!({
        "model": config.model,
        "instructions": instructions(config),
        "audio": {"output": {"voice": spoken}},
        "delegation": {"type": "client"},
        // The page is an untrusted front end.
        "client": {"data_channel": {"allowed_client_events": ALLOWED_EVENTS}},
    });
    let history = items(history);
    if !history.is_empty() {
        session["input"] = history.into();
    }
    session
}

/// What every run of a call is told (`hermes-voice.md`, "Delegation to Hermes").
pub(super) fn run_instructions(config: &Config) -> String {
    let mut parts = vec![SPOKEN.to_owned()];
    parts.extend(glossary(config));
    parts.join("\n\n")
}

fn instructions(config: &Config) -> String {
    let mut parts = vec![PERSONA.to_owned()];
    parts.extend(glossary(config));
    let further = config.instructions.trim();
    if !further.is_empty() {
        parts.push(further.to_owned());
    }
    parts.join("\n\n")
}

fn glossary(config: &Config) -> Option<String> {
    let lines: Vec<String> = config.glossary.iter().map(super::Term::line).collect();
    (!lines.is_empty()).then(|| format!("Words that are easily misheard:\n{}", lines.join("\n")))
}

/// The last lines of the conversation so far, each cut, as far as the service's limit surely reaches.
fn items(history: &[Line]) -> Vec<Value> {
    let spoken = history.iter().filter(|line| !line.text.trim().is_empty()).rev().take(MAX_LINES);
    let mut room = MAX_TOKENS * 12;
    let mut items = Vec::new();
    for line in spoken {
        let text: String = line.text.chars().take(MAX_CHARACTERS).collect();
        let Some(left) = room.checked_sub(twelfths(&text)) else { break };
        room = left;
        let (role, part) = match line.speaker {
            Speaker::User => ("user", "input_text"),
            Speaker::Assistant => ("assistant", "output_text"),
        };
        items.push(json!({"type": "message", "role": role, "content": [{"type": part, "text": text}]}));
    }
    items.reverse();
    items
}

/// About how many tokens a text is, in twelfths: four ASCII characters or three bytes of another script are one.
fn twelfths(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() { 3 } else { c.len_utf8() * 4 }).sum()
}

/// All that the page may say on its data channel.
const ALLOWED_EVENTS: [&str; 3] = ["session.commentary.append", "session.thinking.append", "session.close"];

const PERSONA: &str = "\
You are the voice of Hermes, the user's agent, in a call from their browser. Speak briefly and plainly, in the user's \
language.

Delegate before you answer whatever needs facts, memory, files or action; small talk alone is yours. While you wait, say \
in a few words that you are on it, and never guess what will come of it. When the result comes, say what it says, without \
adding to it.

Stop speaking when you are interrupted, and listen.

Never decide an approval. When Hermes asks for one, say in a few words what is wanted, and that it can be approved once, for \
the session, or denied; delegate what the user answers.";

/// `hermes-voice.md`: the last 24 spoken lines, each cut to 1,200 characters.
const MAX_LINES: usize = 24;
const MAX_CHARACTERS: usize = 1_200;

/// The service takes 8,192 tokens of history (`engines.md` 1.1); the count here is an estimate.
const MAX_TOKENS: usize = 7_800;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(speaker: Speaker, text: impl Into<String>) -> Line {
        Line { speaker, text: text.into() }
    }

    #[test]
    fn the_session_is_the_contracts() {
        let config: Config = serde_json::from_value(json!({
            "glossary": ["Hermes", {"term": "Kubernetes", "sounds_like": "cooper nettees"}, {"term": "nginx"}],
            "instructions": " Call me Ada. ",
        }))
        .unwrap();
        let session = session(&config, "cedar", &[]);
        assert_eq!(session["model"], "gpt-live-1");
        assert_eq!(session["audio"], json!({"output": {"voice": "cedar"}}));
        assert_eq!(session["delegation"], json!({"type": "client"}));
        let allowed = &session["client"]["data_channel"]["allowed_client_events"];
        assert_eq!(*allowed, json!(["session.commentary.append", "session.thinking.append", "session.close"]));
        assert!(session.get("input").is_none());
        let instructions = session["instructions"].as_str().unwrap();
        let glossary = "\nHermes\nKubernetes (sounds like \"cooper nettees\")\nnginx\n\nCall me Ada.";
        assert!(instructions.starts_with(PERSONA) && instructions.ends_with(glossary), "{instructions}");
        assert!(run_instructions(&config).ends_with("cooper nettees\")\nnginx"));
    }

    #[test]
    fn a_custom_voice_goes_by_its_id() {
        let session = session(&Config::default(), "voice_abc", &[]);
        assert_eq!(session["audio"]["output"]["voice"], json!({"id": "voice_abc"}));
    }

    #[test]
    fn history_is_the_last_24_lines_each_cut() {
        let lines: Vec<Line> = (0..30)
            .map(|n| {
                line(if n % 2 == 0 { Speaker::User } else { Speaker::Assistant }, format!("{n} {}", "x".repeat(1_300)))
            })
            .chain([line(Speaker::User, "  ")])
            .collect();
        let session = session(&Config::default(), "marin", &lines);
        let input = session["input"].as_array().unwrap();
        assert_eq!(input.len(), 24);
        assert_eq!(input[0]["role"], "user");
        assert_eq!(input[0]["content"][0]["type"], "input_text");
        assert_eq!(input[23]["content"][0]["type"], "output_text");
        let text = input[0]["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("6 x") && text.chars().count() == 1_200);
    }

    #[test]
    fn history_in_a_dense_script_stays_under_the_services_limit() {
        let lines: Vec<Line> = (0..24).map(|n| line(Speaker::User, format!("{n}{}", "天".repeat(1_200)))).collect();
        let items = items(&lines);
        let characters: usize =
            items.iter().map(|item| item["content"][0]["text"].as_str().unwrap().chars().count()).sum();
        assert!(items.len() >= 4 && characters <= 8_192, "{} items, {characters} characters", items.len());
        assert!(items.last().unwrap()["content"][0]["text"].as_str().unwrap().starts_with("23"), "the newest stay");
    }
}
