//! The machine fails: clocks, pauses, descriptors, ports, disks.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use watch_audio::bridge::link::{Link, Target};
use watch_audio::bridge::slots::{DEFAULT_SLOTS, Slots};
use watch_audio::bridge::{self, Exit, Parent, Setup};
use watch_audio::engine::EngineConfig;
use watch_audio::engine::EngineKind::{self, GptLive, Grok};
use watch_audio::parent::lines::{self, FromParent, Writer};
use watch_audio::secret::Secret;
use watch_audio::sign_in::{SignIn, plugin as sign_in};

use super::engines::{goes_on, in_call};
use super::plugin::Plugin;
use super::row::{Outcome, Row, Told, Wanted, wanted};
use super::scene::{BINARY, CREDENTIAL, Healthy, SOON, Scene};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for engine in [GptLive, Grok] {
        rows.push(clock_jumps_ahead(engine));
        rows.push(clock_set_back(engine));
        rows.push(paused(engine));
        for free in 0..2 {
            rows.push(no_descriptors(engine, free));
        }
        rows.push(no_port(engine));
        rows.push(disk_full(engine));
    }
    rows
}

/// As after a sleep: the wall clock went on, ours did not.
fn clock_jumps_ahead(engine: EngineKind) -> Row {
    let told = "ended: The host was asleep.";
    Row::new("clock jumps 60 s ahead", engine, wanted(told, told, 4), async move |scene| {
        static AHEAD: AtomicI64 = AtomicI64::new(0);
        static AHEAD_TOO: AtomicI64 = AtomicI64::new(0);
        let clock = if engine == GptLive { &AHEAD } else { &AHEAD_TOO };
        let wall_clock = if engine == GptLive { || moved(&AHEAD) } else { || moved(&AHEAD_TOO) };
        in_call_inside(scene, wall_clock).await;
        scene.mark();
        clock.store(60, Ordering::Relaxed);
        scene.told(SOON, Scene::watch_is_over).await
    })
}

fn clock_set_back(engine: EngineKind) -> Row {
    Row::new("clock set back by an hour", engine, goes_on(20), async move |scene| {
        static BACK: AtomicI64 = AtomicI64::new(0);
        static BACK_TOO: AtomicI64 = AtomicI64::new(0);
        let clock = if engine == GptLive { &BACK } else { &BACK_TOO };
        let wall_clock = if engine == GptLive { || moved(&BACK) } else { || moved(&BACK_TOO) };
        in_call_inside(scene, wall_clock).await;
        scene.mark();
        clock.store(-3_600, Ordering::Relaxed);
        sleep(Duration::from_secs(3)).await;
        scene.goes_on(SOON).await
    })
}

fn moved(by: &AtomicI64) -> SystemTime {
    let by = by.load(Ordering::Relaxed);
    let now = SystemTime::now();
    let distance = Duration::from_secs(by.unsigned_abs());
    if by < 0 { now - distance } else { now + distance }
}

/// A call whose bridge runs in this program, with a wall clock of ours.
async fn in_call_inside(scene: &mut Scene, wall_clock: fn() -> SystemTime) {
    scene.engine_with(Default::default(), Default::default()).await;
    let grant = scene.new_grant().await;
    let open = scene.open_line(&grant);
    let relay_url = scene.relay_url();
    let slots = Slots::open(Some(open["slots"]["dir"].as_str().unwrap().into()), DEFAULT_SLOTS).unwrap();
    let (id, root) = (grant.id.clone(), grant.root.clone());
    let run = move |input, output| {
        tokio::spawn(async move {
            let mut lines = lines::read(input);
            assert!(matches!(lines.recv().await, Some(Ok(FromParent::Open(_)))));
            let (desk, clerk) = sign_in::desk();
            let setup = Setup {
                lock: slots.take_grant(&id).unwrap(),
                grant: id.clone(),
                root,
                expires: Instant::now() + Duration::from_secs(1_800),
                engines: vec![GptLive, Grok],
                slots,
                sign_in: SignIn::Plugin(desk),
                engine: EngineConfig { stun: Vec::new() },
                stats: true,
                wall_clock,
            };
            let link = Link::open(Target::host(&relay_url, &id, &Secret::new(CREDENTIAL)).unwrap());
            let parent = Parent {
                lines,
                writer: Writer::new(output),
                clerk: Some(clerk),
                gone: Box::pin(std::future::pending()),
            };
            match bridge::run(setup, link, parent).await {
                Exit::Over => 0,
                Exit::BadInput(_) => 2,
                Exit::Refused => 3,
            }
        })
    };
    scene.plugin = Some(Plugin::inside(run, &open, scene.desk.clone()));
    scene.grant = Some(grant);
    scene.call_on().await;
}

fn paused(engine: EngineKind) -> Row {
    Row::new("host paused for 10 s (SIGSTOP)", engine, goes_on(30), async |scene| {
        in_call(scene).await;
        scene.mark();
        scene.waits();
        scene.plugin.as_ref().unwrap().signal(Signal::STOP);
        sleep(Duration::from_secs(10)).await;
        scene.plugin.as_ref().unwrap().signal(Signal::CONT);
        scene.goes_on(SOON).await
    })
    .waits()
}

fn no_descriptors(engine: EngineKind, free: usize) -> Row {
    let name = format!("no file descriptors left but {free}");
    // Without one for its slot's lock no session is begun.
    let wanted = match free {
        0 => wanted("error failed", "nothing", 5),
        _ => wanted("error failed, ended: error", "ended: error", 5),
    };
    Row::new(name, engine, wanted, async move |scene| {
        scene.engine_with(Default::default(), Default::default()).await;
        scene.lobby().await;
        let pid = scene.pid().unwrap();
        let bridge = Pid::from_raw(pid as i32);
        let before = limit_of_descriptors(pid);
        // Descriptors are given out from below: so many are unused below this.
        let limit = (0..).filter(|n| !Path::new(&format!("/proc/{pid}/fd/{n}")).exists()).nth(free);
        let few = Rlimit { current: limit, ..before };
        prlimit(bridge, Resource::Nofile, few).unwrap();
        scene.mark();
        scene.watch.as_ref().unwrap().start(engine, "").await;
        let told = scene.told(SOON, |scene| !scene.watch_said().is_empty()).await;
        prlimit(bridge, Resource::Nofile, before).unwrap();
        told
    })
}

fn limit_of_descriptors(pid: u32) -> Rlimit {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<Option<u64>> = line.split_whitespace().skip(3).map(|word| word.parse().ok()).collect();
    Rlimit { current: numbers[0], maximum: numbers[1] }
}

/// A network of its own, in which the ports can be used up.
fn no_port(engine: EngineKind) -> Row {
    Row::new("no port free", engine, no_port_wanted(), async move |scene| {
        let this = std::env::current_exe().unwrap();
        let mut inside = Command::new("unshare");
        inside.args(["--map-root-user", "--net"]).arg(this).args([INSIDE, engine.as_str()]);
        let output = inside.stdin(Stdio::null()).kill_on_drop(true).output().await;
        let not_run = |why: &str| Told {
            watch: String::new(),
            plugin: String::new(),
            after: Duration::ZERO,
            not_run: Some(why.to_owned()),
        };
        let Ok(output) = output else { return not_run("no unshare") };
        let Ok(outcome) = serde_json::from_slice::<Value>(&output.stdout) else {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(why.starts_with("unshare:"), "inside: {why}");
            return not_run("no network of its own to be had");
        };
        scene.mark();
        assert_eq!(
            outcome["faults"],
            serde_json::json!([]),
            "inside: {why}",
            why = String::from_utf8_lossy(&output.stderr)
        );
        let text = |name: &str| outcome[name].as_str().unwrap().to_owned();
        let after = Duration::from_secs_f64(outcome["after"].as_f64().unwrap());
        Told { watch: text("watch"), plugin: text("plugin"), after, not_run: None }
    })
}

fn no_port_wanted() -> Wanted {
    wanted("error failed, ended: error", "ended: error", 5)
}

/// The same row, once this program is alone in a network.
pub(crate) async fn no_port_inside(engine: EngineKind) -> Outcome {
    let up = Command::new("python3").args(["-c", LOOPBACK_UP]).status().await.unwrap();
    assert!(up.success(), "the loopback interface");
    let row = Row::new("no port free", engine, no_port_wanted(), async move |scene| {
        scene.engine_with(Default::default(), Default::default()).await;
        scene.lobby().await;
        // A range in which nobody is yet, and then everybody.
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        let before = std::fs::read(range).unwrap();
        std::fs::write(range, "20000 20031").unwrap();
        let taken: Vec<_> = (20_000..20_032)
            .map(|port| {
                let address = ("0.0.0.0", port);
                (std::net::TcpListener::bind(address).unwrap(), std::net::UdpSocket::bind(address).unwrap())
            })
            .collect();
        scene.mark();
        scene.watch.as_ref().unwrap().start(engine, "").await;
        let told = scene.told(SOON, |scene| !scene.watch_said().is_empty()).await;
        drop(taken);
        std::fs::write(range, before).unwrap();
        told
    });
    row.run(std::rc::Rc::new(Healthy::start().await), std::sync::Arc::new(tokio::sync::Semaphore::new(1)), false).await
}

/// For the row that runs in a network of its own.
pub(crate) const INSIDE: &str = "no-port-inside";

/// What `ip link set lo up` does, where that is not installed.
const LOOPBACK_UP: &str = "import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
name = b'lo'.ljust(16, b'\\0')
flags = struct.unpack('16sH', fcntl.ioctl(s, 0x8913, name + bytes(24))[:18])[1]
fcntl.ioctl(s, 0x8914, (name + struct.pack('H', flags | 1)).ljust(40, b'\\0'))";

/// The recording's disk takes a second of sound and no more.
fn disk_full(engine: EngineKind) -> Row {
    let told = "outcome: a fault of the probe or the bridge: cannot write FILE: File too large (os error 27)";
    Row::new("disk full for the recording", engine, wanted(told, "exit 1", 60), async move |scene| {
        let probe = Path::new(BINARY).with_file_name("watch-audio-probe");
        let not_run = |why: &str| Told {
            watch: String::new(),
            plugin: String::new(),
            after: Duration::ZERO,
            not_run: Some(why.to_owned()),
        };
        if !probe.exists() {
            return not_run("the probe is not built");
        }
        let answer = scene.dir.path().join("answer.wav");
        // A file may have 100 blocks of 512 bytes; without its signal the next write fails as on a full disk.
        let script = "trap '' 25; ulimit -f 100; exec \"$@\"";
        let question = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/question.wav");
        scene.mark();
        let since = Instant::now();
        let output = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(probe)
            .args(["--log-level", "trace", "--engine", engine.as_str(), "--out"])
            .args([&answer, &question])
            .env("XDG_RUNTIME_DIR", scene.dir.path())
            .kill_on_drop(true)
            .output();
        let output = output.await.unwrap();
        let after = since.elapsed();
        scene.log.lock().unwrap().extend(output.stderr);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let kept = watch_audio_media::wav::parse(&std::fs::read(&answer).unwrap()).expect("what is kept can be read");
        assert!(kept.samples.len() > 12_000, "{} samples are kept", kept.samples.len());
        let outcome = said.lines().rev().find(|line| line.starts_with("outcome:")).unwrap_or("none").to_owned();
        let outcome = outcome.replace(&answer.display().to_string(), "FILE");
        let exit = output.status.code().map_or_else(|| "killed".to_owned(), |code| format!("exit {code}"));
        Told { watch: outcome, plugin: exit, after, not_run: None }
    })
    .waits()
}
