//! The helper as the plugin runs it: a process on two pipes (`helper-stdio.md`).

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use watch_audio::parent::frames::{Frame, read_frame};

#[test]
fn the_first_frame_has_to_be_a_usable_configuration() {
    for config in [&b"[]"[..], br#"{"input_rate":7999}"#, br#"{"output_rate":24000.5}"#, br#"{"stun":"x"}"#, b"{", b""]
    {
        let output = run(&[(b'C', config)]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(output.stderr, b"config isn't usable\n");
        assert!(output.stdout.is_empty());
    }
    for kind in [b'A', b'Q', b'Z'] {
        let output = run(&[(kind, b"{}")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn whatever_ends_the_call_the_last_frame_is_x() {
    let config = (b'C', &br#"{"input_rate":16000,"output_rate":24000,"stun":[]}"#[..]);
    let ends: [&[(u8, &[u8])]; 5] = [
        &[config],
        &[config, (b'Q', b"")],
        &[config, (b'P', b"odd"), (b'E', b"{}"), (b'E', b"\xff"), (b'Q', b"")],
        &[config, (b'A', b"no answer")],
        &[config, (b'Z', b"")],
    ];
    for end in ends {
        let output = run(end);
        let frames = frames(&output.stdout);
        assert_eq!(frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(), b"OX");
        assert!(frames[0].payload.starts_with(b"v=0\r\n") && frames[0].payload.ends_with(b"\r\n"));
        let reason: serde_json::Value = serde_json::from_slice(&frames[1].payload).unwrap();
        assert!(reason["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn a_frame_over_1_mib_ends_the_call() {
    let mut child = helper();
    let mut stdin = child.stdin.take().unwrap();
    write(&mut stdin, b'C', b"{}");
    stdin.write_all(b"P\xff\xff\xff\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(frames(&output.stdout).last().map(|frame| frame.kind), Some(b'X'));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_closed_stdout_ends_it() {
    let mut child = helper();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    write(&mut stdin, b'C', b"{}");
    assert_eq!(wait(&mut child, Duration::from_secs(10)), Some(0));
}

#[test]
fn case_57_it_does_not_outlive_its_parent() {
    let output = orphaned("printf 'C\\000\\000\\000\\002{}' >&7", |output| output.starts_with('O'));
    assert_eq!(frames(&output).last().map(|frame| frame.kind), Some(b'X'));
}

#[test]
fn case_57_nor_one_that_never_said_a_word() {
    let began = Instant::now();
    let output = orphaned(":", |_| began.elapsed() > Duration::from_secs(1));
    assert!(output.is_empty());
}

/// What the helper said. Its parent is a shell that starts it, and a process that holds its input open as well; the shell says
/// something, and when the helper is `ready` the shell is killed the hard way. End of input never comes.
fn orphaned(say: &str, ready: impl Fn(&str) -> bool) -> Vec<u8> {
    let script = format!(
        "mkfifo \"$1/in\"; exec 7<>\"$1/in\"; sleep 60 7<>\"$1/in\" & echo $! >\"$1/sibling\"; \
         '{}' helper <\"$1/in\" >\"$1/out\" 7>&- & echo $! >\"$1/pid\"; {say}; wait",
        env!("CARGO_BIN_EXE_watch-audio")
    );
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh").args(["-c", &script, "sh"]).arg(folder.path()).spawn().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let is_ready = until(Duration::from_secs(20), || ready(&read("out")));
    let pid = read("pid").trim().to_owned();
    let alive = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(is_ready && alive(), "the helper runs");

    shell.kill().unwrap();
    shell.wait().unwrap();
    let gone = until(Duration::from_secs(10), || !alive());
    let _ = Command::new("kill").arg(read("sibling").trim()).status();
    assert!(gone, "the helper is still there");
    std::fs::read(folder.path().join("out")).unwrap()
}

#[test]
fn it_is_the_helper_when_it_is_called_python() {
    let folder = tempfile::tempdir().unwrap();
    let env = folder.path().join("watch-audio-env");
    let install = |flag: &str| {
        Command::new(env!("CARGO_BIN_EXE_watch-audio")).args(["helper", flag]).arg(&env).output().unwrap().status
    };
    assert!(install("--install").success());
    let mut child = Command::new(env.join("bin/python"))
        .args(["-I", "/somewhere/watch_audio_helper.py"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    write(child.stdin.as_mut().unwrap(), b'C', b"{}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(frames(&output.stdout)[0].kind, b'O');
    assert!(install("--uninstall").success());
    assert!(!env.exists());
    assert!(!install("--uninstall").success());
}

fn helper() -> Child {
    Command::new(env!("CARGO_BIN_EXE_watch-audio"))
        .args(["helper", "-I", "anything", "--at=all"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the helper on these frames, then end of input.
fn run(frames: &[(u8, &[u8])]) -> Output {
    let mut child = helper();
    let mut stdin = child.stdin.take().unwrap();
    for (kind, payload) in frames {
        write(&mut stdin, *kind, payload);
    }
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// The helper may be gone already; then what it said tells why.
fn write(stdin: &mut ChildStdin, kind: u8, payload: &[u8]) {
    let frame = [&[kind][..], &(payload.len() as u32).to_be_bytes(), payload].concat();
    let _ = stdin.write_all(&frame);
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = read_frame(&mut bytes as &mut dyn Read).unwrap() {
        frames.push(frame);
    }
    frames
}

fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let mut code = None;
    until(limit, || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    code.and_then(|code| code.code())
}

fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < limit {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
