//! The relay as a process while somebody means it ill, from addresses of their own: a call goes on beside it, nothing is let
//! in, and neither memory nor work of the relay grow without bound. Every test attacks a little; `measure_every_attack`
//! attacks in earnest and prints what the call beside it felt.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::stream::{self, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::{HOST, LIMIT, OTHER_HOST, UPGRADE, WATCH, frame, http, rid, terms};

#[tokio::test]
async fn heads_that_never_end_are_cut_off() {
    slow_loris(60).await.assert_calm();
}

#[tokio::test]
async fn a_crowd_that_asks_for_nothing_keeps_no_call_out() {
    crowd(900, 256).await.assert_calm();
}

#[tokio::test]
async fn a_flood_from_one_address_is_that_address_own_trouble() {
    flood(300).await.assert_calm();
}

#[tokio::test]
async fn guessing_keys_gets_nobody_in() {
    guesses(200).await.assert_calm();
}

#[tokio::test]
async fn grants_over_the_bound_cost_only_their_own_gateway() {
    grants(60).await.assert_calm();
}

#[tokio::test]
async fn hosts_that_never_read_hold_nothing_up() {
    never_read(12).await.assert_calm();
}

#[tokio::test]
async fn bodies_and_heads_without_end_are_not_taken() {
    oversized(8).await.assert_calm();
}

#[tokio::test]
async fn nothing_is_smuggled_in() {
    smuggling().await.assert_calm();
}

/// The attacks above at full size. Other tests beside it would be in the figures, so it runs alone.
///
/// Prints a table: `cargo test --release --test relay measure_every_attack -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes that other tests beside it would be in the figures of; the attacks run each time, smaller"]
async fn measure_every_attack() {
    eprintln!("{:34} {:>8} {:>8} {:>8} {:>9} {:>6}", "attack", "p50 ms", "p99 ms", "worst", "MiB more", "cores");
    let relay = Attacked::start(&[]).await;
    let none = relay.while_calling(async { sleep(Duration::from_secs(10)).await }).await;
    eprintln!("{:34} {none}", "none");
    drop(relay);
    eprintln!("{:34} {}", "1,000 heads that never end", slow_loris(1_000).await);
    eprintln!("{:34} {}", "10,000 connections without a key", crowd(10_000, 4_096).await);
    eprintln!("{:34} {}", "10,000 connects of one address", flood(10_000).await);
    eprintln!("{:34} {}", "10,000 keys guessed", guesses(10_000).await);
    eprintln!("{:34} {}", "2,000 grants of one gateway", grants(2_000).await);
    eprintln!("{:34} {}", "200 hosts that never read", never_read(200).await);
    eprintln!("{:34} {}", "200 bodies and heads without end", oversized(200).await);
    eprintln!("{:34} {}", "smuggled requests", smuggling().await);
}

/// So many connections send their head a byte at a time.
async fn slow_loris(many: usize) -> Felt {
    let relay = Attacked::start(&["--head-s", "2"]).await;
    relay
        .while_calling(async {
            let one = async |n: usize| {
                let mut stream = relay.connect(attacker(n)).await;
                let start = Instant::now();
                let head = format!("GET /v1/watch-audio/{}/watch HTTP/1.1\r\nx: {}", rid(0), "x".repeat(4_000));
                for byte in head.as_bytes() {
                    // It is over when the relay has hung up: writing fails, or the answer says so and ends.
                    let mut end = [0; 64];
                    let closed = match timeout(Duration::from_millis(100), stream.read(&mut end)).await {
                        Ok(read) => !matches!(read, Ok(1..)),
                        Err(_) => false,
                    };
                    if closed || stream.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    assert!(start.elapsed() < LIMIT, "it may go on for ever");
                }
            };
            at_once(many, many, one).await;
        })
        .await
}

/// So many connections that say nothing, far more than the relay takes; a call comes nevertheless.
async fn crowd(many: usize, room: usize) -> Felt {
    allow_sockets();
    let relay = Attacked::start(&["--max-connections", &room.to_string()]).await;
    relay
        .while_calling(async {
            let crowd = at_once(many, 64, async |n| relay.connect(attacker(n)).await);
            let come = async {
                // In the middle of it.
                sleep(Duration::from_millis(500)).await;
                Call::start(&relay).await.end().await
            };
            let (crowd, latencies) = tokio::join!(crowd, come);
            assert!(!latencies.is_empty());
            let late = Call::start(&relay).await.end().await;
            assert!(!late.is_empty(), "and when all of it is there");
            assert_eq!(crowd.len(), many);
            assert!(relay.descriptors() < room + 64, "{} descriptors", relay.descriptors());
        })
        .await
}

/// So many upgrades from one address, each on a connection of its own.
async fn flood(many: usize) -> Felt {
    let relay = Attacked::start(&[]).await;
    let grant = relay.grant(HOST).await;
    relay
        .while_calling(async {
            let statuses =
                at_once(many, 32, async |_| relay.upgrade(attacker(0), &grant, "watch", "wrong").await).await;
            let refused = statuses.iter().filter(|status| **status == 401).count();
            let limited = statuses.iter().filter(|status| **status == 429).count();
            // A minute may end in between.
            assert!(refused >= 60 && refused + limited == many, "{refused} of {many} were looked at, {limited} not");
            assert!(limited > many / 2, "{limited}");
            // Everyone else is served.
            Call::start(&relay).await.end().await;
        })
        .await
}

/// So many keys tried on a grant that lives, from many addresses, by every way in.
async fn guesses(many: usize) -> Felt {
    let relay = Attacked::start(&["--call-rate", "1000000"]).await;
    let grant = relay.grant(HOST).await;
    relay
        .while_calling(async {
            let guess = async |n: usize| {
                // Each address has its 60 connects a minute.
                let address = attacker(n / 40);
                let key = format!("{n:043}");
                match n % 4 {
                    0 => relay.upgrade(address, &grant, "watch", &key).await,
                    1 => relay.upgrade(address, &grant, "host", &key).await,
                    2 => {
                        let path = format!("POST /v1/watch-tools/grants/{grant}/calls");
                        relay.say(address, &request(&path, &format!("authorization: Bearer {key}\r\n"), "{}")).await[0]
                    }
                    _ => {
                        let path = format!("DELETE /v1/watch-tools/grants/{grant}");
                        relay.say(address, &request(&path, &format!("authorization: Bearer {key}\r\n"), "")).await[0]
                    }
                }
            };
            let statuses = at_once(many, 64, guess).await;
            for (n, status) in statuses.iter().enumerate() {
                let wanted: &[u16] = if n % 4 == 3 { &[204] } else { &[401, 429] };
                assert!(wanted.contains(status), "guess {n}: {status}");
            }
            assert!(relay.is_live(&grant).await, "a guessed key closes nothing");
        })
        .await
}

/// So many grants of one gateway, past its bound and the relay's.
async fn grants(many: usize) -> Felt {
    let bounds = ["--grant-rate", "1000000", "--grants-per-gateway", "8", "--grants-per-relay", "12"];
    let relay = Attacked::start(&bounds).await;
    let own = relay.grant(HOST).await;
    relay
        .while_calling(async {
            let mut newest = String::new();
            for _ in 0..many {
                newest = relay.grant(OTHER_HOST).await;
            }
            assert!(relay.is_live(&own).await, "another gateway's grant is left alone");
            let body = terms(60, 1, true);
            let odd = json!({"watch_key_sha256": body["watch_key_sha256"], "ttl_s": u64::MAX, "max_calls": u32::MAX});
            assert_eq!(relay.post("/v1/watch-tools/grants", OTHER_HOST, &odd).await.0, 400);
            let path = format!("/v1/watch-tools/grants/{newest}/calls?wait_ms=1");
            assert_eq!(relay.get(&path, OTHER_HOST).await, 200, "and its own newest lives");
        })
        .await
}

/// So many hosts that take nothing, while their Watches say as much as they may.
async fn never_read(many: usize) -> Felt {
    allow_sockets();
    let relay = Attacked::start(&["--grant-rate", "1000000", "--grants-per-gateway", "512"]).await;
    relay
        .while_calling(async {
            let pair = async |n: usize| {
                let grant = relay.grant(OTHER_HOST).await;
                // Each address has its connects a minute.
                let host = relay.joined(attacker(n), &grant, "host", OTHER_HOST).await;
                let mut watch = relay.joined(attacker(n), &grant, "watch", WATCH).await;
                let message = frame(0x82, &vec![1; 60_000]);
                for _ in 0..6 {
                    // Past what the kernel holds it waits for ever: that is the relay's to say.
                    if timeout(Duration::from_millis(500), watch.write_all(&message)).await.is_err() {
                        break;
                    }
                }
                (host, watch)
            };
            let pairs = at_once(many, 16, pair).await;
            sleep(Duration::from_secs(2)).await;
            drop(pairs);
        })
        .await
}

/// So many bodies, heads and frames that are too large or have no end, with and without a key.
async fn oversized(many: usize) -> Felt {
    let relay = Attacked::start(&["--grant-rate", "1000000", "--head-s", "3", "--body-s", "3"]).await;
    let grant = relay.grant(HOST).await;
    relay
        .while_calling(async {
            let auth = |bearer: &str| format!("authorization: Bearer {bearer}\r\n");
            let huge = "content-length: 10737418240\r\n";
            let chunked = "transfer-encoding: chunked\r\n";
            let grants = "POST /v1/watch-tools/grants";
            let calls = format!("POST /v1/watch-tools/grants/{grant}/calls");
            let heads = [
                (401, format!("{grants} HTTP/1.1\r\nhost: r\r\n{huge}\r\n")),
                (401, format!("{grants} HTTP/1.1\r\nhost: r\r\n{}{chunked}\r\nfffffff\r\n", auth("wrong"))),
                (401, format!("{calls} HTTP/1.1\r\nhost: r\r\n{}{huge}\r\n", auth("wrong"))),
                (400, format!("{grants} HTTP/1.1\r\nhost: r\r\n{}{huge}\r\n", auth(OTHER_HOST))),
                (400, format!("{grants} HTTP/1.1\r\nhost: r\r\n{}{chunked}\r\nfffffff\r\n", auth(OTHER_HOST))),
                (431, "GET /healthz HTTP/1.1\r\nx: ".to_owned()),
                (404, format!("GET /{} HTTP/1.1\r\nhost: r\r\n{huge}\r\n", "x".repeat(4_000))),
            ];
            let one = async |n: usize| {
                let (wanted, head) = &heads[n % heads.len()];
                let mut stream = relay.connect(attacker(n)).await;
                stream.write_all(head.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = stream.split();
                let (mut answer, mut taken) = (Vec::new(), 0);
                let write = async {
                    // Until the relay has had enough.
                    while let Ok(Ok(())) = timeout(LIMIT, writer.write_all(&JUNK)).await {
                        taken += JUNK.len();
                        assert!(taken < 64 << 20, "it takes whatever comes");
                    }
                };
                let read = timeout(LIMIT, reader.read_to_end(&mut answer));
                let (_, read) = tokio::join!(write, read);
                assert!(read.is_ok(), "it hangs up");
                // A socket closed with bytes unread takes its last answer back, now and then.
                if let Some(status) = statuses(&answer).first() {
                    assert_eq!(status, wanted, "{head}");
                }
            };
            at_once(many, 32, one).await;
        })
        .await
}

/// Requests that two readers could read in two ways, with one hidden in each that would close a grant.
async fn smuggling() -> Felt {
    let relay = Attacked::start(&[]).await;
    let grant = relay.grant(HOST).await;
    relay
        .while_calling(async {
            let hidden = format!(
                "DELETE /v1/watch-tools/grants/{grant} HTTP/1.1\r\nhost: r\r\nauthorization: Bearer {WATCH}\r\n\r\n"
            );
            let length = hidden.len();
            let post = "POST /v1/watch-tools/grants HTTP/1.1\r\nhost: r\r\n";
            let cases = [
                (
                    "both lengths",
                    format!("{post}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
                ),
                (
                    "both, the other way",
                    format!("{post}transfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\n{hidden}"),
                ),
                ("two lengths", format!("{post}content-length: 0\r\ncontent-length: {length}\r\n\r\n{hidden}")),
                ("a list of lengths", format!("{post}content-length: 0, {length}\r\n\r\n{hidden}")),
                ("a signed length", format!("{post}content-length: +0\r\n\r\n{hidden}")),
                ("an unknown coding", format!("{post}transfer-encoding: xchunked\r\n\r\n{hidden}")),
                ("chunked and then not", format!("{post}transfer-encoding: chunked, identity\r\n\r\n{hidden}")),
                (
                    "chunked twice",
                    format!("{post}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
                ),
                ("a folded length", format!("{post}content-length:\r\n {length}\r\n\r\n{hidden}")),
                ("a space before the colon", format!("{post}content-length : {length}\r\n\r\n{hidden}")),
                ("a chunk of odd size", format!("{post}transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n{hidden}")),
                (
                    "a length in HTTP/1.0",
                    format!("POST /healthz HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
                ),
                ("a refused body", format!("{post}content-length: {length}\r\n\r\n{hidden}")),
                (
                    "a body where none belongs",
                    format!("GET /healthz HTTP/1.1\r\nhost: r\r\ncontent-length: {length}\r\n\r\n{hidden}"),
                ),
            ];
            for (what, said) in cases {
                let answers = relay.say(attacker(0), said.as_bytes()).await;
                assert!(answers.len() <= 1 && !answers.contains(&204), "{what}: {answers:?}");
                assert!(answers.iter().all(|status| *status < 500 || *status == 501), "{what}: {answers:?}");
                assert!(relay.is_live(&grant).await, "{what}: the hidden request was done");
            }
            // One bearer, and only one.
            let twice = |first: &str, second: &str| {
                let bearers = format!("authorization: Bearer {first}\r\nauthorization: Bearer {second}\r\n");
                request(&format!("GET /v1/watch-tools/grants/{grant}/calls?wait_ms=1"), &bearers, "")
            };
            for (first, second) in [(HOST, "wrong"), ("wrong", HOST), (HOST, HOST)] {
                assert_eq!(relay.say(attacker(0), &twice(first, second)).await, [401]);
            }
            // Whom the first line names is nothing to go by, and what comes behind an answer is answered, in order.
            let absolute = b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: r\r\n\r\n";
            assert_eq!(relay.say(attacker(0), absolute).await, [200]);
            let health = request("GET /healthz", "", "");
            let none = request("GET /none", "", "");
            assert_eq!(relay.say(attacker(0), &[health.clone(), none, health].concat()).await, [200, 404, 200]);
        })
        .await
}

static JUNK: [u8; 16_384] = [b'x'; 16_384];

/// A relay in a process of its own.
struct Attacked {
    process: Child,
    address: SocketAddr,
    http: reqwest::Client,
    _credentials: tempfile::NamedTempFile,
}

impl Attacked {
    async fn start(args: &[&str]) -> Self {
        let credentials = tempfile::NamedTempFile::new().unwrap();
        fs::write(credentials.path(), format!("{HOST}\nother: {OTHER_HOST}\n")).unwrap();
        let program = std::env::var_os("WATCH_AUDIO_MEASURED").unwrap_or(env!("CARGO_BIN_EXE_watch-audio").into());
        let mut process = Command::new(program)
            .args(["relay", "--listen", "127.0.0.1:0", "--credentials"])
            .arg(credentials.path())
            .args(args)
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
        let line = timeout(LIMIT, said.next_line()).await.unwrap().unwrap().unwrap();
        let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        // It must not wait for somebody to read what it says.
        tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        Self { process, address, http: http(), _credentials: credentials }
    }

    /// Has a call go on for as long as the attack, and tells what was felt of it.
    async fn while_calling(&self, attack: impl Future<Output = ()>) -> Felt {
        let call = Call::start(self).await;
        sleep(Duration::from_millis(500)).await;
        let (memory, work, start) = (self.memory(), self.work(), Instant::now());
        attack.await;
        let (cores, grown) = (self.work() - work, self.memory().saturating_sub(memory));
        let cores = cores / start.elapsed().as_secs_f64();
        let mut latencies = call.end().await;
        latencies.sort();
        let rested = self.work();
        sleep(Duration::from_secs(1)).await;
        let at = |quantile: f64| latencies[((latencies.len() - 1) as f64 * quantile) as usize];
        Felt { p50: at(0.5), p99: at(0.99), worst: at(1.0), grown, cores, after: self.work() - rested }
    }

    /// Resident, bytes.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Processor time taken so far, seconds.
    fn work(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        // Linux counts in hundredths for whoever asks.
        ticks as f64 / 100.0
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    fn id(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let start = Instant::now();
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
            match timeout(LIMIT, socket.connect(self.address)).await.expect("it is taken") {
                Ok(stream) => return stream,
                // The kernel's queue is full for a moment.
                Err(_) if start.elapsed() < LIMIT => sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Asks for a side of a grant; gives the status.
    async fn upgrade(&self, from: Ipv4Addr, grant: &str, side: &str, bearer: &str) -> u16 {
        let head =
            format!("GET /v1/watch-audio/{grant}/{side} HTTP/1.1\r\nauthorization: Bearer {bearer}\r\n{UPGRADE}");
        self.say(from, head.as_bytes()).await[0]
    }

    /// A socket that was let in and whose frames are the test's own.
    async fn joined(&self, from: Ipv4Addr, grant: &str, side: &str, bearer: &str) -> TcpStream {
        crate::support::Raw::join_on(self.connect(from).await, grant, side, bearer).await.0
    }

    /// Says this and reads until nothing comes any more; gives the statuses of the answers.
    async fn say(&self, from: Ipv4Addr, said: &[u8]) -> Vec<u16> {
        let mut stream = self.connect(from).await;
        stream.write_all(said).await.unwrap();
        let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
        // The first answer may take its time on a busy machine; what follows it does not.
        let mut patience = LIMIT;
        while let Ok(Ok(read @ 1..)) = timeout(patience, stream.read(&mut piece)).await {
            answer.extend_from_slice(&piece[..read]);
            patience = Duration::from_millis(if said.ends_with(UPGRADE.as_bytes()) { 1 } else { 200 });
        }
        statuses(&answer)
    }

    async fn post(&self, path: &str, bearer: &str, body: &Value) -> (u16, Value) {
        let (url, start) = (format!("http://{}{path}", self.address), Instant::now());
        loop {
            let request = self.http.post(&url).bearer_auth(bearer).body(body.to_string()).timeout(LIMIT);
            match request.send().await {
                Ok(response) => {
                    let status = response.status().as_u16();
                    return (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default());
                }
                // One that the crowd pushed out comes again.
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
            }
        }
    }

    async fn get(&self, path: &str, bearer: &str) -> u16 {
        let url = format!("http://{}{path}", self.address);
        self.http.get(url).bearer_auth(bearer).timeout(LIMIT).send().await.unwrap().status().as_u16()
    }

    async fn grant(&self, bearer: &str) -> String {
        let (status, body) = self.post("/v1/watch-tools/grants", bearer, &terms(600, 120, true)).await;
        assert_eq!(status, 201, "{body}");
        body["grant_id"].as_str().unwrap().to_owned()
    }

    async fn is_live(&self, grant: &str) -> bool {
        self.get(&format!("/v1/watch-tools/grants/{grant}/calls?wait_ms=1"), HOST).await == 200
    }
}

/// A call beside the attack: 50 messages a second, which the host sends back.
struct Call {
    host: JoinHandle<()>,
    watch: JoinHandle<Vec<Duration>>,
    stop: oneshot::Sender<()>,
}

type Socket = WebSocketStream<TcpStream>;

impl Call {
    async fn start(relay: &Attacked) -> Self {
        let grant = relay.grant(HOST).await;
        let mut host = join(relay, &grant, "host", HOST).await;
        let host = tokio::spawn(async move {
            while let Some(Ok(message)) = host.next().await {
                if message.is_binary() && message.clone().into_data().first() != Some(&0) {
                    host.send(message).await.unwrap();
                }
            }
        });
        let watch = seated(relay, &grant).await;
        let (stop, mut stopped) = oneshot::channel();
        let watch = tokio::spawn(async move {
            let (mut out, mut answers) = watch.split();
            let (mut sent, mut latencies) = (Vec::new(), Vec::new());
            let mut due = interval(Duration::from_millis(20));
            loop {
                tokio::select! {
                    _ = due.tick() => {
                        let mut message = vec![1; 652];
                        message[1..5].copy_from_slice(&(sent.len() as u32).to_be_bytes());
                        sent.push(Instant::now());
                        out.send(Message::binary(message)).await.unwrap();
                    }
                    answer = answers.next() => answered(answer, &sent, &mut latencies),
                    _ = &mut stopped => break,
                }
            }
            rest(&mut answers, &sent, &mut latencies).await;
            latencies
        });
        Self { host, watch, stop }
    }

    /// How long each message took to the host and back. All of them came, in order.
    async fn end(self) -> Vec<Duration> {
        // Some seconds of it, at least.
        sleep(Duration::from_millis(500)).await;
        self.stop.send(()).expect("the call goes on");
        let latencies = self.watch.await.expect("the call was not disturbed");
        self.host.abort();
        latencies
    }
}

fn answered(answer: Option<Result<Message, Error>>, sent: &[Instant], latencies: &mut Vec<Duration>) {
    let answer = answer.expect("the call goes on").expect("the call goes on").into_data();
    let number = u32::from_be_bytes(answer[1..5].try_into().unwrap()) as usize;
    assert_eq!(number, latencies.len(), "none is lost, and they come in order");
    latencies.push(sent[number].elapsed());
}

async fn rest(answers: &mut SplitStream<Socket>, sent: &[Instant], latencies: &mut Vec<Duration>) {
    while latencies.len() < sent.len() {
        let answer = timeout(LIMIT, answers.next()).await.expect("the last ones come, too");
        answered(answer, sent, latencies);
    }
}

/// A Watch whose first message was answered.
async fn seated(relay: &Attacked, grant: &str) -> Socket {
    let mut watch = join(relay, grant, "watch", WATCH).await;
    watch.send(Message::binary(vec![1; 8])).await.unwrap();
    let answer = timeout(LIMIT, watch.next()).await.expect("it is answered").unwrap().unwrap();
    assert!(answer.is_binary(), "{answer:?}");
    watch
}

async fn join(relay: &Attacked, grant: &str, side: &str, bearer: &str) -> Socket {
    let start = Instant::now();
    loop {
        let stream = relay.connect(Ipv4Addr::LOCALHOST).await;
        stream.set_nodelay(true).unwrap();
        let mut request =
            format!("ws://{}/v1/watch-audio/{grant}/{side}", relay.address).into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
        match timeout(LIMIT, tokio_tungstenite::client_async(request, stream)).await.expect("it is answered") {
            Ok((socket, _)) => return socket,
            // One that the crowd pushed out comes again, as hosts and Watches do.
            Err(Error::Io(_) | Error::Protocol(_)) if start.elapsed() < LIMIT => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the call felt, and the relay.
struct Felt {
    p50: Duration,
    p99: Duration,
    worst: Duration,
    /// Bytes.
    grown: u64,
    cores: f64,
    /// Processor time in the second after, seconds.
    after: f64,
}

impl Felt {
    /// Limits that a noisy machine keeps, and a relay that is held up does not.
    fn assert_calm(&self) {
        assert!(self.p99 < Duration::from_secs(2), "the call felt it: {self}");
        assert!(self.grown < 64 << 20, "the relay grows: {self}");
        assert!(self.after < 0.5, "the relay goes on working: {} s in a second", self.after);
    }
}

impl fmt::Display for Felt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let Self { p50, p99, worst, grown, cores, .. } = self;
        let mib = *grown as f64 / f64::from(1 << 20);
        write!(f, "{:8.2} {:8.2} {:8.2} {mib:9.1} {cores:6.2}", ms(*p50), ms(*p99), ms(*worst))
    }
}

/// Does something so many times, so many at once; gives what came of each, in order.
async fn at_once<T>(many: usize, at_once: usize, one: impl AsyncFn(usize) -> T) -> Vec<T> {
    stream::iter(0..many).map(|n| one(n)).buffered(at_once).collect().await
}

/// An address of the attacker's: never the one that calls come from.
fn attacker(n: usize) -> Ipv4Addr {
    let n = n % 40_000;
    Ipv4Addr::new(127, 1, (n / 200) as u8, (n % 200) as u8 + 1)
}

fn request(line: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    format!("{line} HTTP/1.1\r\nhost: r\r\n{headers}{length}\r\n{body}").into_bytes()
}

fn statuses(answer: &[u8]) -> Vec<u16> {
    let answer = String::from_utf8_lossy(answer);
    answer.split("HTTP/1.").skip(1).filter_map(|rest| rest.get(2..5)?.parse().ok()).collect()
}

/// The usual limit of open files is too low for an attacker.
fn allow_sockets() {
    let allowed = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, ..allowed }).unwrap();
}
