//! The probe's command line: whole calls through real processes, bad use, signals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use watch_audio::relay::{Config, Credentials, Limits, Server};
use watch_audio_media::wav;
use watch_audio_probes::likeness::{find, heard_once};

fn probe(dir: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watch-audio-probe"));
    command.current_dir(dir.path()).env("XDG_RUNTIME_DIR", dir.path());
    command
}

/// The page of a call, which only its owner can read.
fn page(dir: &TempDir) -> String {
    let path = dir.path().join("call.html");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let page = fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "a whole page");
    page
}

/// Half a second of a tone, as a WAV file.
fn question(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("question.wav");
    let samples: Vec<i16> = (0..8000_i32).map(|n| if n % 40 < 20 { 8000 } else { -8000 }).collect();
    let mut bytes = wav::header(16_000, samples.len() as u64).to_vec();
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    fs::write(&path, bytes).unwrap();
    path
}

/// The one outcome line.
fn outcome(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("outcome: "));
    let line = lines.next().unwrap_or_else(|| panic!("no outcome line in {text:?}"));
    assert_eq!(lines.next(), None, "one outcome line only");
    line["outcome: ".len()..].to_owned()
}

fn ends_with_code(output: &Output, code: i32) {
    let logs = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}\n{logs}", String::from_utf8_lossy(&output.stdout));
}

fn answer(path: &Path) -> wav::Wav {
    let answer = wav::parse(&fs::read(path).unwrap()).unwrap();
    assert_eq!(answer.rate, 24_000);
    answer
}

#[test]
fn bad_use_is_told_before_anything_is_connected() {
    let dir = tempfile::tempdir().unwrap();
    question(&dir);
    fs::write(dir.path().join("text.wav"), "no sound at all").unwrap();
    fs::write(dir.path().join("empty.wav"), wav::header(16_000, 0)).unwrap();
    fs::write(dir.path().join("pairing.json"), r#"{"credential": 7}"#).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    let began = Instant::now();
    for arguments in [
        &["missing.wav"][..],
        &["text.wav"],
        &["empty.wav"],
        &["question.wav", "--out", "missing/answer.wav"],
        &["question.wav", "--out", "./question.wav"],
        &["question.wav", "--pairing", "missing.json"],
        &["question.wav", "--pairing", "pairing.json"],
        &["question.wav", "--config", "missing.json"],
        &["question.wav", "--config", "pairing.json"],
        &["question.wav", "--out", "pipe"],
        &["question.wav", "--out", "pairing.json", "--pairing", "pairing.json"],
        &["question.wav", "--report", "missing/call.html"],
        &["question.wav", "--report", "./question.wav"],
        &["question.wav", "--report", "pipe"],
        &["two\nlines.wav"],
    ] {
        let output = probe(&dir).args(arguments).output().unwrap();
        ends_with_code(&output, 2);
        outcome(&output);
    }
    for arguments in [&["question.wav", "--engine", "other"][..], &[], &["question.wav", "--seconds", "-1"]] {
        ends_with_code(&probe(&dir).args(arguments).output().unwrap(), 2);
    }
    assert!(!dir.path().join("answer.wav").exists(), "no call, no answer");
    assert_eq!(answer_length_of_question(&dir), 8000, "the question is untouched");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[cfg(not(feature = "live"))]
#[test]
fn without_sound_devices_a_live_call_says_how_to_get_them() {
    let dir = tempfile::tempdir().unwrap();
    for argument in ["--live", "--devices"] {
        let output = probe(&dir).arg(argument).output().unwrap();
        ends_with_code(&output, 2);
        assert!(outcome(&output).contains("--features live"), "{}", outcome(&output));
    }
}

#[test]
fn a_live_call_takes_no_question_and_nothing_scripted() {
    let dir = tempfile::tempdir().unwrap();
    question(&dir);
    for arguments in [
        &["--live", "question.wav"][..],
        &["--live", "--barge-in", "1"],
        &["--live", "--devices"],
        &["question.wav", "--microphone", "any"],
    ] {
        let output = probe(&dir).args(arguments).output().unwrap();
        ends_with_code(&output, 2);
        assert!(output.stdout.is_empty());
    }
}

fn answer_length_of_question(dir: &TempDir) -> usize {
    wav::parse(&fs::read(dir.path().join("question.wav")).unwrap()).unwrap().samples.len()
}

#[test]
fn the_version_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let output = probe(&dir).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "watch-audio-probe 0.1.0");
}

#[test]
fn a_relay_that_is_not_there_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    // A port that nothing listens on: bound, then given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let pairing = dir.path().join("pairing.json");
    fs::write(&pairing, format!(r#"{{"credential": "i.g.s", "relay_url": "http://127.0.0.1:{port}"}}"#)).unwrap();
    fs::set_permissions(&pairing, fs::Permissions::from_mode(0o644)).unwrap();
    let output =
        probe(&dir).arg(&question).args(["--report", "call.html", "--pairing"]).arg(&pairing).output().unwrap();
    ends_with_code(&output, 3);
    assert!(String::from_utf8_lossy(&output.stderr).contains("others can read this file"));
    assert!(outcome(&output).starts_with("the relay refused: "));
    assert!(outcome(&output).ends_with("; the report is in call.html"));
    assert!(page(&dir).contains("exit code 3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_relay_of_ones_own_the_simulated_engine_gets_its_search_too() {
    watch_audio::tls::ensure_provider();
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        behind_tls: false,
        address_header: None,
        credentials: Credentials::parse("i.g.s").unwrap(),
        limits: Limits::default(),
    };
    let relay = Server::bind(config).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pairing = format!(r#"{{"credential": "i.g.s", "relay_url": "http://{}"}}"#, relay.local_addr());
    fs::write(dir.path().join("pairing.json"), pairing).unwrap();
    fs::set_permissions(dir.path().join("pairing.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let question = concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/question.wav");
    let mut command = probe(&dir);
    command.args([question, "--pairing", "pairing.json"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    ends_with_code(&output, 0);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("Weather: Sunny, 21 degrees"), "{told}");
    relay.shutdown().await;
}

#[test]
fn a_bridge_that_does_not_start_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    for program in ["./no-such-program", "/bin/true"] {
        let output = probe(&dir).arg(&question).args(["--bridge", program, "--report", "call.html"]).output().unwrap();
        ends_with_code(&output, 1);
        assert!(page(&dir).contains("exit code 1"));
    }
}

#[test]
fn a_bridge_that_does_not_speak_the_protocol_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    let silent = "did not say within 15 s that it is ready";
    let junk = "is no line of a bridge's protocol";
    let ready = r#"echo '{"type":"ready","version":1,"build":"x"}'"#;
    let began = Instant::now();
    let calls = [
        ("echo Good morning; exec sleep 60", 1, junk),
        ("exec cat /dev/zero", 1, junk),
        ("exec sleep 60", 1, silent),
        ("echo '{\"hello\":1}'; exec sleep 60", 1, silent),
        (&format!("{ready}; exec sleep 60"), 3, "the relay refused: the bridge did not reach the relay"),
    ]
    .map(|(lines, code, words)| {
        let script = dir.path().join(format!("bridge-{}", lines.len()));
        fs::write(&script, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let out = script.with_extension("wav");
        let mut call = probe(&dir);
        call.arg(&question).arg("--bridge").arg(script).arg("--out").arg(out);
        (call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), code, words)
    });
    for (call, code, words) in calls {
        let output = call.wait_with_output().unwrap();
        ends_with_code(&output, code);
        assert!(outcome(&output).contains(words), "{}", outcome(&output));
        if words == junk {
            assert!(began.elapsed() < Duration::from_secs(12), "it is told at once");
        }
    }
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_said_beside_what_became_of_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    let call = |more: &[&str]| {
        let output = probe(&dir).arg(&question).args(["--report", "/dev/full"]).args(more).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("cannot write /dev/full: No space left on device"), "{stderr}");
        output
    };
    let short = call(&["--seconds", "0.2"]);
    ends_with_code(&short, 6);
    assert!(outcome(&short).starts_with("no answer: "), "{}", outcome(&short));
    assert!(!outcome(&short).contains("the report is in"), "{}", outcome(&short));
    let short = call(&["--seconds", "0.2", "--json"]);
    ends_with_code(&short, 6);
    let report: Value = serde_json::from_slice(&short.stdout).unwrap();
    assert!(report["report"].is_null() && report["outcome"].as_str().unwrap().starts_with("no answer"), "{report}");
    // A call that came out well, and yet not all that was asked for is there.
    let whole = call(&["--engine", "grok"]);
    ends_with_code(&whole, 1);
    let said = outcome(&whole);
    assert!(said.contains("cannot write /dev/full") && !said.contains("the report is in"), "{said}");
}

#[test]
fn the_demonstration_takes_a_log_level() {
    let dir = tempfile::tempdir().unwrap();
    let output = probe(&dir).args(["voice-demo", "--log-level", "debug", "--listen", "nowhere"]).output().unwrap();
    ends_with_code(&output, 2);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("nowhere is no address to listen at"), "{stderr}");
}

#[test]
fn a_whole_call_says_what_it_took_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    let output = probe(&dir)
        .arg(&question)
        .args(["--engine", "grok", "--json", "--out", "reply.wav", "--report", "call.html"])
        .output()
        .unwrap();
    ends_with_code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["outcome"].as_str(), report["exit_code"].as_u64()), (Some("done"), Some(0)));
    for figure in ["question_to_heard_ms", "question_to_speech_ms", "delegation_to_answer_ms", "answer_to_speech_ms"] {
        let ms = report["figures"][figure].as_i64().unwrap_or_else(|| panic!("no {figure} in {report}"));
        assert!((0..10_000).contains(&ms), "{figure}: {ms}");
    }
    let played = answer(&dir.path().join("reply.wav")).samples;
    assert_eq!(report["answer_ms"].as_u64().unwrap(), played.len() as u64 / 24);
    assert_eq!(fs::metadata(dir.path().join("reply.wav")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(report["report"], "call.html");
    // What the page shows is what the report says.
    let page = page(&dir);
    for moment in report["timeline"].as_array().unwrap().iter().filter(|moment| moment["what"] == "heard") {
        let said = moment["detail"].as_str().unwrap();
        assert!(!said.is_empty() && page.contains(&format!("<bdi class=\"said\">{said}</bdi>")), "{said}");
    }
    let seconds = |ms: &Value| format!("{:.2}", ms.as_f64().unwrap() / 1000.0);
    let answer = report["timeline"].as_array().unwrap().iter().find(|moment| moment["what"] == "answer").unwrap();
    assert!(page.contains(&format!("<td class=\"figure\">{}</td><td>answer handed over", seconds(&answer["ms"]))));
    for drawn in ["wave user\" d=\"M", "wave engine\" d=\"M", "<rect class=\"work done\"", "line s0\" d=\"M"] {
        assert!(page.contains(drawn), "{drawn}");
    }
}

/// The two commands of the README, and a barge-in. Each runs as a user would run it, all three at once.
#[test]
fn question_wav_is_answered_with_the_sample_whole_once_at_the_right_speed_by_either_engine() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples");
    let sample = answer(&samples.join("answer.wav")).samples;
    let calls = [&[][..], &["--engine", "grok"], &["--engine", "grok", "--barge-in", "1", "--json"]].map(|more| {
        let dir = tempfile::tempdir().unwrap();
        let call = probe(&dir)
            .arg(samples.join("question.wav"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (dir, call)
    });
    for (n, (dir, call)) in calls.into_iter().enumerate() {
        let output = call.wait_with_output().unwrap();
        ends_with_code(&output, 0);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing to complain of");
        let played = answer(&dir.path().join("answer.wav")).samples;
        if n < 2 {
            heard_once(&sample, &played, 24_000).unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            for said in ["one moment let me look\n", "it is sunny in tokyo twenty one degrees\n"] {
                assert!(text.contains(&format!("engine says: {said}")), "{said:?} is cut: {text}");
            }
            continue;
        }
        // The first answer was cut; the second is whole.
        find(&sample, &played, 24_000).filter(|found| found.loudness > 0.95).unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let old = report["figures"]["barge_in"]["last_old_played_ms"].as_i64().unwrap();
        assert!(old < 100, "{old} ms");
    }
}

/// Elsewhere the file system may refuse such a name.
#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_not_utf_8_is_as_good_as_another() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let question = question(&dir);
    let name = std::ffi::OsStr::from_bytes(b"answer-\xff.wav");
    let output = probe(&dir).arg(&question).args(["--json", "--seconds", "0.2", "--out"]).arg(name).output().unwrap();
    ends_with_code(&output, 6);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["answer"], "answer-\u{fffd}.wav");
    answer(&dir.path().join(name));
}

#[test]
fn case_68_a_signal_leaves_a_valid_answer_and_a_kill_too() {
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let dir = tempfile::tempdir().unwrap();
        let question = question(&dir);
        let child = probe(&dir)
            .arg(&question)
            .args(["--engine", "grok", "--report", "call.html"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let path = dir.path().join("answer.wav");
        // Three seconds into the recording, wherever the machine is in its own time.
        let limit = Instant::now() + Duration::from_secs(30);
        while fs::metadata(&path).map_or(0, |file| file.len()) < 44 + 3 * 48_000 {
            assert!(Instant::now() < limit, "nothing is recorded");
            sleep(Duration::from_millis(20));
        }
        assert!(Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{}", String::from_utf8_lossy(&output.stderr));
        let on_disk = fs::read(&path).unwrap();
        let answer = wav::parse(&on_disk).unwrap();
        // The header is never behind by more than a second.
        assert!(answer.warnings.is_empty() || signal == "KILL", "{:?}", answer.warnings);
        let seconds = answer.samples.len() as f64 / 24_000.0;
        assert!((2.0..8.0).contains(&seconds), "{signal}: {seconds} s");
        let ended =
            code.map_or("The call is on, or the probe was killed in it".into(), |code| format!("exit code {code}"));
        assert!(page(&dir).contains(&ended), "{signal}");
        if code.is_some() {
            let words = if signal == "INT" { "interrupted" } else { "terminated" };
            assert!(outcome(&output).starts_with(words), "{}", outcome(&output));
        }
    }
}
