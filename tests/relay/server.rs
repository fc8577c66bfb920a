//! The relay as a server: where it listens, whom it counts, how it stands slow clients and its own end.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use watch_audio::relay::{BindError, Config, Credentials, Limits, Server};

use crate::support::*;

#[tokio::test]
async fn healthz_answers_200() {
    let relay = relay().await;
    assert_eq!(relay.request("GET", "/healthz", "", None).await.status, 200);
}

#[tokio::test]
async fn a_path_that_is_not_text_is_not_found_and_closes_nothing() {
    let relay = relay().await;
    for path in ["watch-tools/grants/%ff/calls", "watch-audio/%ff/host", "watch-audio/x/%ff"] {
        let answer = relay.request("GET", &format!("/v1/{path}"), "", None).await;
        assert_eq!(answer.refusal(), (404, "not_found"), "{path}");
    }
    assert_eq!(relay.request("DELETE", "/v1/watch-tools/grants/%ff", "", None).await.status, 204);
}

#[tokio::test]
async fn beyond_loopback_it_listens_only_behind_tls() {
    let config = Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        behind_tls: false,
        address_header: None,
        credentials: Credentials::parse(HOST).unwrap(),
        limits: Limits::default(),
    };
    assert!(matches!(Server::bind(config.clone()).await, Err(BindError::NotLoopback(_))));
    Server::bind(Config { behind_tls: true, ..config.clone() }).await.unwrap().shutdown().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config { listen: taken.local_addr().unwrap(), ..config };
    assert!(matches!(Server::bind(config).await, Err(BindError::Listen { .. })));
}

#[tokio::test]
async fn behind_a_proxy_addresses_are_those_it_names() {
    let limits = Limits { host_address_rate: 1, ..Limits::default() };
    let relay = relay_config(limits, |config| config.address_header = Some("x-forwarded-for".parse().unwrap())).await;
    let status = async |forwarded: &str| {
        let head = format!("GET /v1/watch-audio/x/host HTTP/1.1\r\n{forwarded}{UPGRADE}");
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    assert_eq!(status("x-forwarded-for: 192.0.2.1\r\n").await, "401");
    assert_eq!(status("x-forwarded-for: 198.51.100.9, 192.0.2.1\r\n").await, "429", "only the last is the proxy's");
    assert_eq!(status("x-forwarded-for: 192.0.2.2\r\n").await, "401");
    assert_eq!(status("").await, "401");
    assert_eq!(status("x-forwarded-for: odd\r\n").await, "429", "then the connection's own counts");
}

#[tokio::test]
async fn a_client_that_dawdles_over_its_head_or_body_is_cut_off() {
    let limits = Limits {
        head: Duration::from_millis(500),
        body: Duration::from_secs(3),
        max_connections: 1,
        ..Limits::default()
    };
    let relay = relay_with(limits).await;
    let mut slow = TcpStream::connect(relay.address()).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.unwrap();
    let mut rest = Vec::new();
    timeout(LIMIT, slow.read_to_end(&mut rest)).await.expect("it is cut off").unwrap();

    let mut slow = TcpStream::connect(relay.address()).await.unwrap();
    let head = format!(
        "POST /v1/watch-tools/grants HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer {HOST}\r\n\
         content-length: 9\r\n\r\n{{"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // Until its head was read: before, it would have to make room.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // It holds the one connection there may be; the next one waits for it and is then served.
    let (reply, status) = tokio::join!(relay.request("GET", "/healthz", "", None), async {
        let mut answer = [0; 12];
        timeout(LIMIT, slow.read_exact(&mut answer)).await.expect("it is answered").unwrap();
        drop(slow);
        String::from_utf8_lossy(&answer[9..]).into_owned()
    });
    assert_eq!((reply.status, status.as_str()), (200, "400"));
}

#[tokio::test]
async fn as_a_process_it_says_where_it_listens_and_stops_on_a_signal() {
    for signal in ["-INT", "-TERM"] {
        let credentials = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(credentials.path(), HOST).unwrap();
        let mut process = tokio::process::Command::new(env!("CARGO_BIN_EXE_watch-audio"))
            .args(["relay", "--listen", "127.0.0.1:0", "--idle-s", "9", "--credentials"])
            .arg(credentials.path())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = tokio::io::BufReader::new(process.stderr.take().unwrap()).lines();
        let line = timeout(LIMIT, said.next_line()).await.unwrap().unwrap().unwrap();
        let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap();
        let health = http().get(format!("http://{address}/healthz")).send().await.unwrap();
        assert_eq!(health.status(), 200);
        let id = process.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(timeout(LIMIT, process.wait()).await.unwrap().unwrap().code(), Some(0));
        while let Some(line) = said.next_line().await.unwrap() {
            assert!(!line.contains(HOST));
        }
    }
}

#[tokio::test]
async fn it_stops_in_time_whatever_its_clients_do() {
    let relay = relay().await;
    let grant = relay.grant().await;
    let _silent = TcpStream::connect(relay.address()).await.unwrap();
    let _half = Raw::join(&relay, &grant, "host", HOST).await;
    let _never_says_goodbye = Raw::join(&relay, &grant, "watch", WATCH).await;
    let address = relay.address();
    let url = format!("http://{address}/v1/watch-tools/grants/{grant}/calls");
    let poll = http().get(url).bearer_auth(HOST).send();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let start = Instant::now();
        relay.server.shutdown().await;
        start.elapsed()
    };
    let (poll, took) = tokio::join!(poll, stop);
    assert_eq!(poll.unwrap().status(), 410, "a poll in wait is answered");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn no_task_is_left_of_streams_and_requests_that_are_over() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (relays, clients) = (runtime(), runtime());
    let many = 1_000_000;
    let limits = Limits {
        connect_rate: many,
        grant_rate: many,
        host_address_rate: many,
        poll_rate: many,
        watch_address_rate: many,
        ..Limits::default()
    };
    let relay = relays.block_on(relay_with(limits));
    let tasks = || relays.metrics().num_alive_tasks();
    let settled = |wanted: usize| {
        let end = std::time::Instant::now() + LIMIT;
        while tasks() > wanted && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        tasks()
    };
    let before = tasks();
    for _ in 0..10 {
        clients.block_on(async {
            let grant = relay.grant().await;
            let mut host = relay.host(&grant).await;
            for n in 0..10 {
                let mut watch = relay.watch(&grant).await;
                assert_eq!(host.binary().await, [0, 1]);
                watch.send(&[1; 40]).await;
                assert_eq!(host.binary().await, [1; 40]);
                // In order, by a connection that breaks, and with one beside it that is turned away.
                match n % 3 {
                    0 => watch.leave().await,
                    1 => drop(watch),
                    _ => {
                        assert_eq!(relay.join(&grant, "host", WATCH).await.unwrap_err().0, 401);
                        drop(watch);
                    }
                }
                assert_eq!(host.binary().await, [0, 2]);
            }
            // A poll that is given up, and a connection that says half of what it wants.
            let poll = timeout(Duration::from_millis(5), relay.poll(&grant, 20_000)).await;
            assert!(poll.is_err());
            TcpStream::connect(relay.address()).await.unwrap().write_all(b"GET /v1/wa").await.unwrap();
            assert_eq!(relay.delete(&grant, HOST).await, 204);
        });
    }
    assert!(tasks() < 10 * 10, "streams that are over hold tasks: {}", tasks());
    // With the clients go the connections that they keep for later.
    drop(clients);
    assert_eq!(settled(before), before);
}
