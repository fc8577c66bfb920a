//! The steps with sockets: a WebRTC peer and the relay, each on a thread whose processor time is taken, with the other
//! sides on others. Frames come each 20 ms, so that each costs its wake-ups too.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};
use watch_audio::relay::client::{Host, NewGrant};
use watch_audio::relay::{Config, Credentials, Limits, RelayUrl, Server};
use watch_audio::rtc::{Peer, PeerConfig, PeerEvent};
use watch_audio::secret::Secret;

use super::{Call, Group, Step, cpu};
use crate::engine::Engine;
use crate::network::Network;
use crate::sockets::{Bridges, End};
use crate::{FRAME, Failed};

const fn step(name: &'static str, part_of: &'static [Call], run: fn(u32) -> Result<Duration, Failed>) -> Step {
    Step { group: Group::Network, name, part_of, run, live: true }
}

pub(super) const STEPS: [Step; 6] = [
    step("WebRTC, nothing said", &[Call::Pcm, Call::Opus], |frames| webrtc(frames, false, false)),
    step("WebRTC, a packet to the engine", &[Call::Pcm, Call::Opus], |frames| webrtc(frames, true, false)),
    step("WebRTC, a packet of the engine's", &[Call::Pcm, Call::Opus], |frames| webrtc(frames, false, true)),
    step("relay, a message each way", &[], relay),
    step("for comparison: a timer, and nothing else", &[], timer),
    step("for comparison: a datagram each way, and nothing else", &[], datagrams),
];

/// The time of a peer that sends and receives so many packets.
fn webrtc(frames: u32, send: bool, receive: bool) -> Result<Duration, Failed> {
    runtime()?.block_on(async {
        let offered = Box::pin(Peer::offer(&PeerConfig::default())).await;
        let (mut peer, offer) = offered.map_err(Failed::to("offer a call"))?;
        let (engine, answer) = Engine::answer(&offer)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let packets: Vec<Arc<[u8]>> = if receive { vec![PACKET.into(); frames as usize + 500] } else { Vec::new() };
        let engine = thread::spawn(move || engine.run(&packets, Network::CLEAN, 0, &stopped).map(drop));
        let used = async {
            Box::pin(peer.accept(&answer)).await.map_err(Failed::to("accept the answer"))?;
            let limit = Instant::now() + Duration::from_secs(30);
            while !matches!(next(&mut peer, limit).await, PeerEvent::Connected) {
                if Instant::now() >= limit {
                    return Err(Failed("the engine was not reached".to_owned()));
                }
            }
            // The handshake's last words, and the channel.
            let settled = Instant::now() + Duration::from_millis(500);
            while Instant::now() < settled {
                next(&mut peer, settled).await;
            }
            let (start, began) = (Instant::now(), cpu());
            for n in 0..frames {
                let slot = start + FRAME * (n + 1);
                while Instant::now() < slot {
                    next(&mut peer, slot).await;
                }
                if send {
                    let sent = peer.send_audio(PACKET, n * 960, n == 0);
                    sent.map_err(Failed::to("send a packet"))?;
                }
            }
            Ok(cpu() - began)
        };
        let used = used.await;
        stop.store(true, Ordering::Relaxed);
        peer.close().await;
        engine.join().map_err(|_| Failed("the engine panicked".to_owned()))??;
        used
    })
}

/// The time of a task that only wakes for each slot: what none does without.
fn timer(frames: u32) -> Result<Duration, Failed> {
    runtime()?.block_on(async {
        let (start, began) = (Instant::now(), cpu());
        for n in 0..frames {
            sleep_until(start + FRAME * (n + 1)).await;
        }
        Ok(cpu() - began)
    })
}

/// The time of a task that for each slot sends a datagram of a packet's size, and takes the one that comes back.
fn datagrams(frames: u32) -> Result<Duration, Failed> {
    let failed = || Failed::to::<std::io::Error>("open a socket");
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").map_err(failed())?;
    let address = peer.local_addr().map_err(failed())?;
    peer.set_read_timeout(Some(Duration::from_secs(1))).map_err(failed())?;
    let echo = thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = peer.recv_from(&mut buffer) {
            // Later, as the engine's packets come when they come.
            thread::sleep(FRAME / 2);
            let _ = peer.send_to(&buffer[..length], from);
        }
    });
    let used = runtime()?.block_on(async {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.map_err(failed())?;
        let mut buffer = [0; 2_000];
        let (start, began) = (Instant::now(), cpu());
        for n in 0..frames {
            let slot = start + FRAME * (n + 1);
            loop {
                tokio::select! {
                    came = socket.recv_from(&mut buffer) => drop(came),
                    () = sleep_until(slot) => break,
                }
            }
            socket.send_to(PACKET, address).await.map_err(failed())?;
        }
        Ok(cpu() - began)
    });
    echo.join().map_err(|_| Failed("the echo panicked".to_owned()))?;
    used
}

async fn next(peer: &mut Peer, until: Instant) -> PeerEvent {
    tokio::select! {
        event = peer.next() => event,
        () = sleep_until(until) => PeerEvent::ChannelOpen,
    }
}

/// The time of a relay that copies so many messages each way.
fn relay(frames: u32) -> Result<Duration, Failed> {
    let (listening, listens) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = thread::spawn(move || {
        runtime()?.block_on(async {
            let credentials = Credentials::parse(CREDENTIAL).map_err(Failed::to("set up a relay"))?;
            let listen = ([127, 0, 0, 1], 0).into();
            let limits = Limits::default();
            let config = Config { listen, behind_tls: false, address_header: None, credentials, limits };
            let server = Server::bind(config).await.map_err(Failed::to("start a relay"))?;
            let this = std::fs::read_link("/proc/thread-self").map_err(Failed::to("find a thread"))?;
            let _ = listening.send((server.local_addr(), Path::new("/proc").join(this).join("schedstat")));
            let _ = stopped.await;
            server.shutdown().await;
            Ok::<(), Failed>(())
        })
    });
    let (address, times) = listens.recv_timeout(Duration::from_secs(20)).map_err(Failed::to("start a relay"))?;
    let used = || -> Result<Duration, Failed> {
        let times = std::fs::read_to_string(&times).map_err(Failed::to("look at the relay"))?;
        Ok(Duration::from_nanos(times.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)))
    };
    let carried = LocalSet::new().block_on(&runtime()?, async {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = RelayUrl::parse(&format!("http://{address}")).map_err(Failed::to("reach the relay"))?;
        let host = Host::new(url, Secret::new(CREDENTIAL)).map_err(Failed::to("reach the relay"))?;
        let life = Duration::from_secs(1_800);
        let new = NewGrant { watch_key: Secret::new(WATCH_KEY), life, max_calls: 1, audio: true };
        let grant = host.create_grant(&new).await.map_err(Failed::to("open a grant"))?;
        let end = |side: &str, bearer: &str| End {
            path: format!("/v1/watch-audio/{}/{side}", grant.id.as_str()),
            bearer: bearer.to_owned(),
        };
        let mut bridges = Bridges::open(address, &[[end("host", CREDENTIAL), end("watch", WATCH_KEY)]]).await?;
        let before = used()?;
        bridges.load(50, FRAME * frames).await;
        Ok(used()? - before)
    });
    let _ = stop.send(());
    relay.join().map_err(|_| Failed("the relay panicked".to_owned()))??;
    carried
}

fn runtime() -> Result<Runtime, Failed> {
    Builder::new_current_thread().enable_all().build().map_err(Failed::to("start a runtime"))
}

/// As long as one of speech.
const PACKET: &[u8] = &[0x48; 80];
/// Any, for a relay that lives as long as the step.
const CREDENTIAL: &str = "install.gateway.of-a-bench";
const WATCH_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
