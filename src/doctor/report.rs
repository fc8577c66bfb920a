//! What was found, as a table for people and as JSON.

use serde_json::{Value, json};

/// How one check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it should be.
    Ok,
    /// A call can be held, but not every kind of it, or not for long.
    Warn,
    /// A call cannot be held.
    Fail,
    /// Not looked at.
    Skipped,
}

/// One check.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    /// What is there, for a person.
    pub(super) found: String,
    /// What to do about it.
    pub(super) next: Option<String>,
}

/// All of them.
pub(super) struct Report(Vec<Check>);

impl Check {
    pub(super) fn new(name: &'static str, outcome: Outcome, found: impl Into<String>) -> Self {
        Self { name, outcome, found: found.into(), next: None }
    }

    pub(super) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skipped => "-",
        }
    }
}

impl Report {
    pub(super) fn new(checks: Vec<Check>) -> Self {
        Self(checks)
    }

    /// Whether a call can be held, as far as was looked at.
    pub(super) fn ready(&self) -> bool {
        self.0.iter().all(|check| check.outcome != Outcome::Fail)
    }

    /// A line for each check, and one more where something is to be done.
    pub(super) fn table(&self) -> String {
        let width = self.0.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut table = String::new();
        for Check { name, outcome, found, next } in &self.0 {
            table.push_str(&format!("{:4}  {name:width$}  {found}\n", outcome.as_str()));
            if let Some(next) = next {
                table.push_str(&format!("{:4}  {:width$}  → {next}\n", "", ""));
            }
        }
        let failed = self.0.iter().filter(|check| check.outcome == Outcome::Fail).count();
        table.push_str(&match failed {
            0 => "\nThis host can hold a call.\n".to_owned(),
            1 => "\nThis host cannot hold a call: 1 check failed.\n".to_owned(),
            n => format!("\nThis host cannot hold a call: {n} checks failed.\n"),
        });
        table
    }

    /// `{"version":1,"build","ready","checks":[{"name","outcome","found","next"?}]}`, one line.
    pub(super) fn json(&self) -> String {
        let checks: Vec<Value> = self
            .0
            .iter()
            .map(|check| {
                let outcome = if check.outcome == Outcome::Skipped { "skipped" } else { check.outcome.as_str() };
                let mut value = json!({"name": check.name, "outcome": outcome, "found": check.found});
                if let Some(next) = &check.next {
                    value["next"] = json!(next);
                }
                value
            })
            .collect();
        let report = json!({"version": 1, "build": env!("CARGO_PKG_VERSION"), "ready": self.ready(), "checks": checks});
        format!("{report}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_check_says_that_no_call_can_be_held() {
        let warned = vec![
            Check::new("a", Outcome::Ok, "fine"),
            Check::new("longer", Outcome::Warn, "odd").next("look"),
            Check::new("c", Outcome::Skipped, "not looked at"),
        ];
        let report = Report::new(warned.clone());
        assert!(report.ready());
        assert_eq!(
            report.table(),
            "ok    a       fine\nwarn  longer  odd\n              → look\n-     c       not looked at\n\n\
             This host can hold a call.\n"
        );
        let failed = Report::new([warned, vec![Check::new("d", Outcome::Fail, "no")]].concat());
        assert!(!failed.ready() && failed.table().contains("1 check failed"));
        let json: Value = serde_json::from_str(&failed.json()).unwrap();
        assert_eq!((&json["ready"], &json["checks"][2]["outcome"]), (&json!(false), &json!("skipped")));
        assert_eq!((&json["checks"][1]["next"], json["checks"][0].get("next")), (&json!("look"), None));
    }
}
