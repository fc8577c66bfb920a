//! Any bytes to the relay: as frames of a socket that was let in, and as requests. In virtual time, over pipes in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::credentials::sha256;
use super::grants::Terms;
use super::seats::Seats;
use super::server::{Client, Relay, routes, serve};
use super::{Credentials, Limits, Side, line};
use crate::idle::Idle;

/// Two sockets on their seats. Each line of the script begins with who writes it (`h` host, `w` Watch) and how: `r` the rest
/// as it is, `b` in a whole binary frame, `o` in a frame whose first byte is the next one; or `t` and a number: so many
/// milliseconds pass. `h.` and `w.` hang up. Both sockets are read all the time but by a script that begins with `!`.
pub(crate) fn frames(script: &[u8]) {
    let (reads, script) = match script.split_first() {
        Some((b'!', rest)) => (false, rest),
        _ => (true, script),
    };
    runtime().block_on(async {
        let limits = Limits::default();
        let seats = Seats::default();
        let ((host, host_socket), (watch, watch_socket)) = (duplex(PIPE), duplex(PIPE));
        let serve = async |socket, side| {
            let code = line::run(socket, &seats, seats.join(side), &limits).await;
            assert!(CODES.contains(&code) || (3_000..5_000).contains(&code), "closed {code}");
        };
        let served = join(serve(host_socket, Side::Host), async {
            // The host sits first: a Watch that comes without one is turned away.
            sleep(Duration::from_millis(1)).await;
            serve(watch_socket, Side::Watch).await;
        });
        let played = join(play(script, host, watch, reads), served);
        timeout(SCRIPT_LIMIT, played).await.expect("a socket is over when its peer is gone");
    });
}

/// One connection that says this and hangs up, to a relay with one grant. `GGGGGGGGGGGGGGGGGGGGGG` stands for its name.
pub(crate) fn requests(said: &[u8]) {
    runtime().block_on(async {
        let credentials = Credentials::parse(CREDENTIAL).expect("a credential");
        let limits = Limits::default();
        let head = limits.head;
        let relay = Arc::new(Relay::new(credentials, limits, Some("x-forwarded-for".parse().expect("a name"))));
        let terms = Terms {
            watch_key_sha256: sha256(WATCH_KEY),
            life: Duration::from_secs(1_800),
            max_calls: 120,
            audio: true,
        };
        let grant = relay.grants.open(0, &terms).expect("there is room");
        let said = replace(said, GRANT, grant.id.as_str().as_bytes());

        let room = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&room).try_acquire_owned().expect("it is free");
        let client = Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), permit);
        let service = TowerToHyperService::new(routes(Arc::clone(&relay)));
        let (mut near, far) = duplex(PIPE);
        let (_stop, stopped) = watch::channel(false);
        let served = tokio::spawn(serve(far, client, Arc::new(Idle::default()).enter(), service, head, stopped));
        let talk = async {
            let (mut reader, mut writer) = split(&mut near);
            let write = async {
                // A relay that has heard enough may be gone already.
                let _ = writer.write_all(&said).await;
                sleep(Duration::from_millis(10)).await;
                let _ = writer.shutdown().await;
            };
            join(write, drain(&mut reader)).await;
        };
        timeout(TALK_LIMIT, talk).await.expect("every answer comes");
        drop(near);
        timeout(TALK_LIMIT, served).await.expect("the connection is over").expect("nothing panics");
        // Whatever was upgraded, answered or left waiting: its place is given back.
        let free = timeout(TALK_LIMIT, room.acquire()).await;
        assert!(free.is_ok(), "the place is free again");
    });
}

async fn play(script: &[u8], host: DuplexStream, watch: DuplexStream, reads: bool) {
    let (mut host, mut watch) = (Some(split(host)), Some(split(watch)));
    sleep(Duration::from_millis(2)).await;
    for line in script.split(|byte| *byte == b'\n') {
        let (who, said) = match line.split_first() {
            Some((b'h', said)) => (&mut host, said),
            Some((b'w', said)) => (&mut watch, said),
            Some((b't', number)) => {
                sleep(Duration::from_millis(number_of(number))).await;
                continue;
            }
            _ => continue,
        };
        let Some((reader, writer)) = who else { continue };
        let bytes = match said.split_first() {
            Some((b'b', payload)) => frame(0x82, payload),
            Some((b'o', [first, payload @ ..])) => frame(*first, payload),
            Some((b'r', bytes)) => bytes.to_vec(),
            Some((b'.', _)) => {
                *who = None;
                continue;
            }
            _ => continue,
        };
        // One that is not read from any more is on its way out.
        let _ = timeout(STEP, writer.write_all(&bytes)).await;
        if reads {
            let _ = timeout(STEP, drain(reader)).await;
        }
    }
}

/// Reads to the end.
async fn drain(reader: &mut (impl AsyncRead + Unpin)) {
    let mut bytes = [0; 4_096];
    while reader.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
}

/// A client's frame, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        long => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

fn replace(bytes: &[u8], from: &[u8; 22], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(from.len()).position(|part| part == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

fn number_of(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0).min(LONGEST_PAUSE)
}

/// With time that jumps ahead when everything waits.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

const CREDENTIAL: &str = "host-key";
const WATCH_KEY: &str = "watch-key";
const GRANT: &[u8; 22] = b"GGGGGGGGGGGGGGGGGGGGGG";

/// What the relay may close with, and what it notes of a peer that left.
const CODES: &[u16] = &[1_000, 1_001, 1_002, 1_003, 1_005, 1_006, 1_007, 1_008, 1_009, 1_010, 1_011, 1_012, 1_013];

/// As much as a kernel's buffer holds.
const PIPE: usize = 65_536;

/// Time for the relay to take in a step, ms of virtual time.
const STEP: Duration = Duration::from_millis(1);

/// Past the relay's own limits, ms.
const LONGEST_PAUSE: u64 = 70_000;

/// An input of some KiB has at most some thousand pauses.
const SCRIPT_LIMIT: Duration = Duration::from_secs(365 * 86_400);

/// Requests in one input wait 25 s each.
const TALK_LIMIT: Duration = Duration::from_secs(86_400);
