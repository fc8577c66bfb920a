//! What a run says of itself: events of its stream, and its status (`engines.md` 6.2 and 6.3).

use serde_json::Value;

/// An event of a run's stream, as far as it matters here.
pub(super) enum Event {
    /// A tool begins.
    ToolStarted(String),
    /// A tool is done, well or not.
    ToolCompleted { tool: String, error: bool },
    /// The run waits for a decision.
    Approval(Approval),
    /// A decision has been made, here or elsewhere, or its time ran out; by its request's id where the build says so.
    Decided(Option<String>),
    /// The run is over and has answered.
    Completed(Option<String>),
    /// The run is over without an answer.
    Ended(Outcome, String),
    /// Text between tools, reasoning, and whatever comes to be.
    Other,
}

/// What a run asks a person to decide.
#[derive(Clone, PartialEq, Eq)]
pub struct Approval {
    /// Which request, where the build says so; older ones answer in the order they asked.
    pub request_id: Option<String>,
    /// What would be run; the server has redacted it.
    pub command: String,
    /// Why it asks.
    pub description: String,
}

/// How a run can be over without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Failed,
    Cancelled,
    Interrupted,
}

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    fn usual_words(self) -> &'static str {
        match self {
            Self::Failed => "The run failed.",
            Self::Cancelled => "The run was cancelled.",
            Self::Interrupted => "Hermes was restarted, and the run was interrupted.",
        }
    }
}

impl Event {
    /// Reads an event's data. What is no event of Hermes' is [`Event::Other`].
    pub(super) fn read(data: &str) -> Self {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        let tool = || label(&event["tool"]);
        match event["event"].as_str().unwrap_or_default() {
            "tool.started" => Self::ToolStarted(tool()),
            "tool.completed" => Self::ToolCompleted { tool: tool(), error: truthy(&event["error"]) },
            // The second is the older name (case 65).
            "approval.request" | "approval.required" => Self::Approval(Approval::read(&event)),
            "approval.responded" => Self::Decided(request_id(&event)),
            "run.completed" => Self::Completed(event["output"].as_str().map(str::to_owned)),
            "run.failed" => Self::Ended(Outcome::Failed, error(Outcome::Failed, &event["error"])),
            "run.cancelled" => Self::Ended(Outcome::Cancelled, error(Outcome::Cancelled, &event["error"])),
            "run.interrupted" => Self::Ended(Outcome::Interrupted, error(Outcome::Interrupted, &event["error"])),
            _ => Self::Other,
        }
    }
}

impl Approval {
    fn read(event: &Value) -> Self {
        Self {
            request_id: request_id(event),
            command: cut(event["command"].as_str().unwrap_or_default(), MAX_TEXT),
            description: cut(event["description"].as_str().unwrap_or_default(), MAX_TEXT),
        }
    }
}

fn request_id(event: &Value) -> Option<String> {
    event["request_id"].as_str().filter(|id| is_id(id)).map(str::to_owned)
}

/// A run's status.
pub(super) enum Status {
    /// Queued, running, stopping, or a word that is not known yet.
    Running,
    /// It waits for a decision.
    Waiting(Approval),
    /// It is over and has answered.
    Completed(Option<String>),
    /// It is over without an answer.
    Ended(Outcome, String),
}

impl Status {
    /// Reads the answer of `GET /v1/runs/{id}`.
    pub(super) fn read(status: &Value) -> Self {
        let ended = |outcome| Self::Ended(outcome, error(outcome, &status["error"]));
        match status["status"].as_str().unwrap_or_default() {
            "waiting_for_approval" => Self::Waiting(Approval::read(&status["approval"])),
            "completed" => Self::Completed(status["output"].as_str().map(str::to_owned)),
            "failed" => ended(Outcome::Failed),
            "cancelled" => ended(Outcome::Cancelled),
            "interrupted" => ended(Outcome::Interrupted),
            _ => Self::Running,
        }
    }

    /// Whether the run is over.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Ended(..))
    }
}

/// Whether a text can be a run's or a request's id (`hermes-voice.md`): 1 to 256 of `A-Za-z0-9_.:-`. In a path `.` and `..`
/// are no names: they would lead out of the runs.
pub(crate) fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    (1..=256).contains(&text.len()) && text.bytes().all(fits) && !matches!(text, "." | "..")
}

/// Any text as an event's data, and as a run's status.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(data: &str) {
    let short = |text: &str| text.chars().count() <= MAX_TEXT;
    match Event::read(data) {
        Event::ToolStarted(tool) | Event::ToolCompleted { tool, .. } => assert!(tool.chars().count() <= MAX_LABEL),
        Event::Approval(Approval { request_id, command, description }) => {
            assert!(request_id.is_none_or(|id| is_id(&id)) && short(&command) && short(&description));
        }
        Event::Ended(_, why) => assert!(short(&why)),
        _ => {}
    }
    if let Status::Ended(_, why) = Status::read(&serde_json::from_str(data).unwrap_or_default()) {
        assert!(short(&why));
    }
}

fn label(tool: &Value) -> String {
    cut(tool.as_str().filter(|tool| !tool.is_empty()).unwrap_or("tool"), MAX_LABEL)
}

fn error(outcome: Outcome, error: &Value) -> String {
    let text = error.as_str().or_else(|| error["message"].as_str()).filter(|text| !text.trim().is_empty());
    cut(text.unwrap_or(outcome.usual_words()), MAX_TEXT)
}

fn truthy(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value.as_str() != Some("")
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// A tool's name, to be shown on a phone.
const MAX_LABEL: usize = 100;

/// What a person reads before deciding.
const MAX_TEXT: usize = 4_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_the_contract_says() {
        for good in ["run_0123", "a", "A.b:c-d_e", "...", "..a", &"x".repeat(256)] {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", "a%", ".", "..", "..\n", &"x".repeat(257)] {
            assert!(!is_id(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_missing_or_strange_is_tolerated() {
        let Event::ToolStarted(tool) = Event::read(r#"{"event":"tool.started"}"#) else { panic!() };
        assert_eq!(tool, "tool");
        for (text, failed) in [("true", true), ("false", false), ("null", false), ("\"no\"", true), ("\"\"", false)] {
            let event = format!(r#"{{"event":"tool.completed","tool":"t","error":{text}}}"#);
            let Event::ToolCompleted { error, .. } = Event::read(&event) else { panic!() };
            assert_eq!(error, failed, "{text}");
        }
        let Event::Approval(approval) = Event::read(r#"{"event":"approval.required","request_id":"../x"}"#) else {
            panic!()
        };
        assert!(approval.request_id.is_none() && approval.command.is_empty());
        for other in ["", "[]", "7", "{}", r#"{"event":"run.steered"}"#, r#"{"event":7}"#, "{not json"] {
            assert!(matches!(Event::read(other), Event::Other), "{other}");
        }
    }
}
