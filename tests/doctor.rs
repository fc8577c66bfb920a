//! `watch-audio doctor` as a process, against real sockets on this machine.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic, too")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};
use watch_audio::relay::{Config, Credentials, Limits, Server};

const SECRET: &str = "xai-secret-of-this-test";

struct Seen {
    code: i32,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl Seen {
    fn outcome(&self, name: &str) -> String {
        let report: Value = serde_json::from_str(&self.stdout).unwrap();
        let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("{name}: {}", self.stdout))["outcome"].as_str().unwrap().to_owned()
    }
}

/// Runs the doctor with a home folder of its own.
async fn doctor(home: &Path, args: &[&str]) -> Seen {
    let start = Instant::now();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_watch-audio"));
    command.arg("doctor").args(args).env_clear().env("HOME", home).env("XDG_RUNTIME_DIR", home).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stdout.contains(SECRET) && !stderr.contains(SECRET), "{stdout}{stderr}");
    Seen { code: output.status.code().unwrap(), stdout, stderr, took: start.elapsed() }
}

fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("xai.key");
    fs::write(&key, SECRET).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let config = serde_json::json!({"grok": {"api_key_file": key}});
    fs::write(home.path().join("sign-ins.json"), config.to_string()).unwrap();
    home
}

async fn relay() -> Server {
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        behind_tls: false,
        address_header: None,
        credentials: Credentials::parse("credential").unwrap(),
        limits: Limits::default(),
    };
    Server::bind(config).await.unwrap()
}

/// Answers each binding request with the address it came from, but the first: a datagram may be lost.
async fn stun() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut request = [0; 100];
        for n in 0.. {
            let (length, from) = socket.recv_from(&mut request).await.unwrap();
            assert_eq!((length, &request[..8]), (20, &[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..]));
            let mut answer = [&[1, 1, 0, 12], &request[4..20], &[0, 0x20, 0, 8, 0, 1]].concat();
            answer.extend_from_slice(&(from.port() ^ 0x2112).to_be_bytes());
            let std::net::IpAddr::V4(ip) = from.ip() else { panic!() };
            answer.extend_from_slice(&(ip.to_bits() ^ 0x2112_a442).to_be_bytes());
            if n > 0 {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    format!("stun:{address}")
}

#[tokio::test]
async fn a_host_that_has_all_of_it_is_ready() {
    let (home, relay, stun) = (home(), relay().await, stun().await);
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, ice_tcp) = (format!("http://{}", relay.local_addr()), tcp.local_addr().unwrap().to_string());
    let config = home.path().join("sign-ins.json");
    let mut args = vec!["--config", config.to_str().unwrap(), "--relay", &url, "--stun", &stun, "--ice-tcp", &ice_tcp];
    let table = doctor(home.path(), &args).await;
    args.push("--json");
    let seen = doctor(home.path(), &args).await;
    for name in ["version", "grok", "relay", "udp", "ice-tcp", "slots", "descriptors"] {
        assert_eq!(seen.outcome(name), "ok", "{name}: {}", seen.stdout);
    }
    assert_eq!(seen.outcome("gpt-live"), "warn", "it has no sign-in here");
    assert_eq!(seen.outcome("helper"), "skipped", "it is not installed here");
    // A machine whose only network is itself is told so, and is not ready.
    let network = seen.outcome("webrtc") == "ok";
    let report: Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!((report["ready"].as_bool(), seen.code), (Some(network), if network { 0 } else { 4 }), "{}", seen.stdout);
    assert_eq!(table.code, seen.code);
    assert!(table.stdout.contains("ok    relay"), "{}", table.stdout);
    assert!(!home.path().join("watch-audio").exists(), "looking makes nothing");
}

#[tokio::test]
async fn what_does_not_answer_is_said_in_bounded_time() {
    let home = home();
    // They take what comes and never say anything.
    let silent_tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent_tcp.local_addr().unwrap());
    let stun = format!("stun:{}", silent_udp.local_addr().unwrap());
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let seen = doctor(home.path(), &["--json", "--relay", &url, "--stun", &stun, "--ice-tcp", &nobody]).await;
    assert_eq!(
        (seen.outcome("relay"), seen.outcome("udp"), seen.outcome("ice-tcp"), seen.code),
        ("fail".into(), "warn".into(), "fail".into(), 4),
        "{}",
        seen.stdout
    );
    assert!(seen.took < Duration::from_secs(30), "{:?}", seen.took);
    // One way out is enough for a call.
    let seen = doctor(home.path(), &["--json", "--stun", &self::stun().await, "--ice-tcp", &nobody]).await;
    assert_eq!([seen.outcome("udp"), seen.outcome("ice-tcp")], ["ok", "warn"], "{}", seen.stdout);
}

#[tokio::test]
async fn a_relay_that_is_none_or_cannot_be_one_is_told_apart() {
    let home = home();
    let relay = relay().await;
    let address = relay.local_addr();
    let below = format!("http://{address}/no/such/path");
    for (url, words) in [(below.as_str(), "answers 404"), ("http://127.0.0.1:1", "cannot be reached")] {
        let seen =
            doctor(home.path(), &["--relay", url, "--stun", "stun:127.0.0.1:9", "--ice-tcp", "127.0.0.1:9"]).await;
        assert!(seen.code == 4 && seen.stdout.contains(words), "{url}: {}", seen.stdout);
    }
    for (url, words) in [
        ("http://relay.example", "plain http"),
        ("https://user:xai-secret-of-this-test@relay.example", "no user"),
        ("relay", "not a URL"),
        ("", "not a URL"),
    ] {
        for more in [&[][..], &["--offline"]] {
            let seen = doctor(home.path(), &[&["--relay", url], more].concat()).await;
            let told = seen.stderr.contains("--relay: ") && seen.stderr.contains(words);
            assert!(seen.code == 2 && seen.stdout.is_empty() && told, "{url}: {}", seen.stderr);
        }
    }
}

#[tokio::test]
async fn slots_that_no_bridge_could_take_are_said() {
    let home = home();
    for most in ["0", "1025", "18446744073709551615"] {
        let seen = doctor(home.path(), &["--offline", "--most-slots", most]).await;
        assert!(seen.code == 2 && seen.stderr.contains("--most-slots"), "{most}: {}{}", seen.stdout, seen.stderr);
    }
    assert_eq!(doctor(home.path(), &["--offline", "--json", "--most-slots", "1024"]).await.outcome("slots"), "ok");
    let folder = home.path().join("slots");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let pipe = folder.join("slot-0.lock");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let look = async |dir: &str| doctor(home.path(), &["--offline", "--json", "--slots", dir]).await;
    let seen = look(folder.to_str().unwrap()).await;
    let told = seen.stdout.contains("slot-0.lock: not a regular file");
    assert!(seen.outcome("slots") == "fail" && seen.code == 4 && told, "{}", seen.stdout);
    fs::remove_file(&pipe).unwrap();
    assert_eq!(look(folder.to_str().unwrap()).await.outcome("slots"), "ok");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "looking leaves nothing");
    // Nothing can be made there, whoever asks.
    for nowhere in ["/proc", "/proc/watch-audio"] {
        let seen = look(nowhere).await;
        assert!(seen.outcome("slots") == "fail" && seen.code == 4, "{nowhere}: {}", seen.stdout);
    }
}

#[tokio::test]
async fn offline_nothing_is_sent_and_bad_use_is_told() {
    let home = home();
    let seen = doctor(home.path(), &["--offline", "--json", "--relay", "http://127.0.0.1:1"]).await;
    assert_eq!([seen.outcome("relay"), seen.outcome("udp"), seen.outcome("ice-tcp")], ["skipped"; 3]);
    for bad in [&["--stun", "h:1"][..], &["--ice-tcp", "h"], &["--most-slots", "x"], &["--no-such"]] {
        assert_eq!(doctor(home.path(), bad).await.code, 2, "{bad:?}");
    }
    let config = home.path().join("missing.json");
    let seen = doctor(home.path(), &["--offline", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!((seen.outcome("sign-ins"), seen.code), ("fail".into(), 4));
}
