//! Whether there are sign-ins that a call could use. They are read as a call reads them, and nothing of them is told.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::report::{Check, Outcome};
use crate::engine::EngineKind;
use crate::secret;
use crate::sign_in::files::{Billing, SignIns, claims};

/// The sign-ins of a configuration file; without one, what can be seen of those that the plugin uses.
pub(super) fn look(config: Option<&Path>) -> Vec<Check> {
    let Some(path) = config else { return vec![of_the_plugin(codex_place())] };
    let files = match SignIns::read(path) {
        Ok(files) => files,
        Err(error) => {
            return vec![Check::new("sign-ins", Outcome::Fail, error.to_string()).next("correct the file of --config")];
        }
    };
    let checks = [(EngineKind::GptLive, "gpt-live"), (EngineKind::Grok, "grok")].map(|(engine, name)| {
        let Some((billing, file)) = files.file(engine) else {
            let next = "name one in the file of --config, if calls are to use this engine";
            return Check::new(name, Outcome::Warn, "no sign-in").next(next);
        };
        check(name, billing, file, now())
    });
    if files.has(EngineKind::GptLive) || files.has(EngineKind::Grok) {
        return checks.into();
    }
    vec![
        Check::new("sign-ins", Outcome::Fail, "the configuration names none").next("name gpt_live, grok or both in it"),
    ]
}

/// The plugin signs in by itself and keeps its secrets; a Codex sign-in is where Codex puts it.
fn of_the_plugin(place: Option<PathBuf>) -> Check {
    const NAME: &str = "sign-ins";
    match place.filter(|place| place.exists()) {
        Some(place) => check(NAME, Billing::Codex, &place, now()),
        None => Check::new(NAME, Outcome::Skipped, "the plugin's own; no Codex sign-in of this user's")
            .next("for calls without a plugin name the sign-ins with --config"),
    }
}

fn check(name: &'static str, billing: Billing, file: &Path, now: u64) -> Check {
    let kind = match billing {
        Billing::Key => "an API key",
        Billing::Codex => "a Codex sign-in",
    };
    let place = file.display();
    let text = match secret::read(file) {
        Ok(text) => text,
        Err(error) => {
            return Check::new(name, Outcome::Fail, format!("{place} cannot be read: {error}"))
                .next("see whether the file is there and this user may read it");
        }
    };
    let useless = |what: &str, next: &str| Check::new(name, Outcome::Fail, format!("{place} {what}")).next(next);
    let mut found = format!("{kind} in {place}");
    match billing {
        Billing::Key if text.expose().trim().is_empty() => return useless("is empty", "put the key in it, alone"),
        Billing::Key => {}
        Billing::Codex => {
            let again = "sign in with Codex again";
            let Ok(sign_in) = serde_json::from_str::<Value>(text.expose()) else {
                return useless("is not JSON", again);
            };
            let token = |name: &str| sign_in["tokens"][name].as_str().filter(|token| !token.is_empty());
            let Some(access) = token("access_token") else { return useless("has no access token", again) };
            let renewable = token("refresh_token").is_some();
            let expires = claims(access).and_then(|claims| claims["exp"].as_u64());
            match expires {
                Some(expires) if expires <= now && !renewable => return useless("has run out", again),
                Some(expires) if expires <= now => found.push_str(", run out; the next call renews it"),
                Some(expires) => found.push_str(&format!(", good for {}", span(expires - now))),
                None => {}
            }
        }
    }
    if fs::metadata(file).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        return Check::new(name, Outcome::Warn, format!("{found}, which others can read"))
            .next(format!("chmod 600 {place}"));
    }
    Check::new(name, Outcome::Ok, found)
}

/// Where Codex keeps its sign-in.
fn codex_place() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(set("CODEX_HOME").or_else(|| Some(set("HOME")?.join(".codex")))?.join("auth.json"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn span(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "sk-very-secret";

    fn file(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn codex(exp: Option<u64>, refresh: bool) -> String {
        let claims = match exp {
            Some(exp) => json!({"exp": exp}),
            None => json!({}),
        };
        let token = format!("h.{}.{SECRET}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let refresh = if refresh { SECRET } else { "" };
        json!({"tokens": {"access_token": token, "refresh_token": refresh, "account_id": SECRET}}).to_string()
    }

    #[test]
    fn a_sign_in_is_judged_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let judge = |billing, text: &str, mode| {
            let check = check("x", billing, &file(folder.path(), "f", text, mode), 1_000_000);
            let shown = format!("{} {}", check.found, check.next.unwrap_or_default());
            assert!(!shown.contains(SECRET), "{shown}");
            (check.outcome, shown)
        };
        let said = |billing, text: &str, mode, outcome, words: &str| {
            let (seen, shown) = judge(billing, text, mode);
            assert!(seen == outcome && shown.contains(words), "{seen:?} {shown}");
        };
        said(Billing::Key, SECRET, 0o600, Outcome::Ok, "an API key");
        said(Billing::Key, SECRET, 0o644, Outcome::Warn, "chmod 600");
        said(Billing::Key, " \n", 0o600, Outcome::Fail, "is empty");
        said(Billing::Codex, SECRET, 0o600, Outcome::Fail, "not JSON");
        said(Billing::Codex, "[]", 0o600, Outcome::Fail, "no access token");
        said(Billing::Codex, r#"{"tokens":{"access_token":7}}"#, 0o600, Outcome::Fail, "no access token");
        said(Billing::Codex, &codex(None, true), 0o600, Outcome::Ok, "a Codex sign-in");
        said(Billing::Codex, &codex(Some(1_086_400), true), 0o600, Outcome::Ok, "good for 24 h");
        said(Billing::Codex, &codex(Some(999_999), true), 0o600, Outcome::Ok, "renews it");
        said(Billing::Codex, &codex(Some(999_999), false), 0o600, Outcome::Fail, "run out");
        let (outcome, shown) = {
            let check = check("x", Billing::Key, &folder.path().join("missing"), 0);
            (check.outcome, check.found)
        };
        assert!(outcome == Outcome::Fail && shown.contains("cannot be read"), "{shown}");
    }

    #[test]
    fn a_configuration_is_looked_through() {
        let folder = tempfile::tempdir().unwrap();
        let key = file(folder.path(), "key", SECRET, 0o600);
        let look_at = |config: String| {
            let checks = look(Some(&file(folder.path(), "config", &config, 0o600)));
            checks.into_iter().map(|check| (check.name, check.outcome)).collect::<Vec<_>>()
        };
        let grok = json!({"grok": {"api_key_file": key}}).to_string();
        assert_eq!(look_at(grok), [("gpt-live", Outcome::Warn), ("grok", Outcome::Ok)]);
        assert_eq!(look_at("{}".into()), [("sign-ins", Outcome::Fail)]);
        assert_eq!(look_at("{".into()), [("sign-ins", Outcome::Fail)]);
    }

    #[test]
    fn without_a_configuration_a_codex_sign_in_is_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_the_plugin(None).outcome, Outcome::Skipped);
        assert_eq!(of_the_plugin(Some(folder.path().join("missing"))).outcome, Outcome::Skipped);
        let place = file(folder.path(), "auth.json", &codex(None, true), 0o600);
        assert_eq!(of_the_plugin(Some(place)).outcome, Outcome::Ok);
    }
}
