//! What gets out of this host: to the relay, over UDP, over TCP; and what WebRTC finds to be reached on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::redirect;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{Instant, sleep, timeout};

use super::report::{Check, Outcome};
use crate::dial;
use crate::relay::RelayUrl;
use crate::rtc::{Peer, PeerConfig};

/// Whether the relay answers `GET /healthz`.
pub(super) async fn relay(url: Option<&RelayUrl>) -> Check {
    const NAME: &str = "relay";
    let Some(url) = url else {
        return Check::new(NAME, Outcome::Skipped, "not looked at").next("name it with --relay https://…");
    };
    crate::tls::ensure_provider();
    // As the bridge dials: no proxy and no redirect.
    let client = match reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none()).build() {
        Ok(client) => client,
        Err(_) => {
            let found = "this host has no certificates to trust";
            return Check::new(NAME, Outcome::Fail, found).next("install the system's certificates (ca-certificates)");
        }
    };
    let start = Instant::now();
    match client.get(url.health()).send().await {
        Ok(answer) if answer.status() == 200 => Check::new(NAME, Outcome::Ok, format!("answers in {}", ms(start))),
        Ok(answer) => Check::new(NAME, Outcome::Fail, format!("answers {}, and not 200", answer.status().as_u16()))
            .next("see whether the URL is the relay's own, and whether it runs"),
        Err(error) => Check::new(NAME, Outcome::Fail, format!("cannot be reached: {}", cause(&error)))
            .next("see whether it runs, and whether this host may reach it"),
    }
}

/// Whether a datagram gets out and its answer back in: a STUN binding (RFC 8489). Without, calls go over TCP.
pub(super) async fn udp((host, port): &(String, u16)) -> Check {
    const NAME: &str = "udp";
    let next = "GPT-Live falls back to TCP; let UDP out for less delay, or name another server with --stun";
    let warn = |found: String| Check::new(NAME, Outcome::Warn, found).next(next);
    let address = match resolve(host, *port).await {
        Ok(address) => address,
        Err(error) => return warn(format!("{host} cannot be resolved: {error}")),
    };
    let start = Instant::now();
    match timeout(STUN_LIMIT, binding(address)).await {
        Ok(Ok((local, seen))) => {
            let nat = if local == seen { "without address translation" } else { "behind address translation" };
            Check::new(NAME, Outcome::Ok, format!("gets out and back in {}, {nat}", ms(start)))
        }
        Ok(Err(error)) => warn(format!("does not get out: {error}")),
        Err(_) => warn(format!("no answer from {host} within {} s", STUN_LIMIT.as_secs())),
    }
}

/// Whether a TCP connection gets out, as ICE-TCP needs it.
pub(super) async fn tcp((host, port): &(String, u16)) -> Check {
    const NAME: &str = "ice-tcp";
    let warn = |found: String| {
        Check::new(NAME, Outcome::Warn, found).next("let TCP out to port 443; without it and UDP no engine is reached")
    };
    let addresses = match lookup_host((host.as_str(), *port)).await {
        Ok(addresses) => addresses,
        Err(error) => return warn(format!("{host} cannot be resolved: {error}")),
    };
    let start = Instant::now();
    match timeout(TCP_LIMIT, dial::first(addresses, TcpStream::connect)).await {
        Ok(Ok(_)) => Check::new(NAME, Outcome::Ok, format!("port {port} of {host} is reached in {}", ms(start))),
        Ok(Err(error)) => warn(format!("port {port} of {host} is not reached: {error}")),
        Err(_) => warn(format!("port {port} of {host} does not answer within {} s", TCP_LIMIT.as_secs())),
    }
}

/// One way out is enough. With neither there is no call.
pub(super) fn with_neither(udp: &Check, tcp: Check) -> Check {
    match (udp.outcome, tcp.outcome) {
        (Outcome::Warn, Outcome::Warn) => Check { outcome: Outcome::Fail, ..tcp },
        _ => tcp,
    }
}

/// Whether a peer can be made, and in how many ways it could be reached.
pub(super) async fn webrtc() -> Check {
    const NAME: &str = "webrtc";
    let start = Instant::now();
    match Peer::offer(&PeerConfig::default()).await {
        Ok((mut peer, offer)) => {
            let took = ms(start);
            peer.close().await;
            let addresses = addresses(&offer);
            let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
            let found = format!("an offer in {took}, with {v4} IPv4 and {} IPv6 addresses", addresses.len() - v4);
            match addresses.iter().all(IpAddr::is_loopback) {
                false => Check::new(NAME, Outcome::Ok, found),
                true => Check::new(NAME, Outcome::Fail, "no network but this host itself").next("connect this host"),
            }
        }
        Err(error) => Check::new(NAME, Outcome::Fail, error.to_string())
            .next("see whether this user may open UDP and TCP sockets"),
    }
}

/// Each once.
fn addresses(offer: &str) -> Vec<IpAddr> {
    let of = |line: &str| line.strip_prefix("a=candidate:")?.split(' ').nth(4)?.parse().ok();
    let mut addresses: Vec<IpAddr> = offer.lines().filter_map(of).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Asks a STUN server how it sees us; gives our own address and that one. Asked again as long as it is waited for.
async fn binding(server: SocketAddr) -> io::Result<(SocketAddr, SocketAddr)> {
    let any = if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let mut request = [0; 20];
    request[1] = 1;
    request[4..8].copy_from_slice(&MAGIC);
    getrandom::fill(&mut request[8..]).map_err(io::Error::other)?;
    let mut answer = [0; 1_500];
    loop {
        socket.send(&request).await?;
        tokio::select! {
            received = socket.recv(&mut answer) => {
                if let Some(seen) = mapped(&answer[..received?], &request) {
                    return Ok((socket.local_addr()?, seen));
                }
            }
            () = sleep(STUN_AGAIN) => {}
        }
    }
}

/// The address in a binding's answer (RFC 8489 section 14.2), if it is the answer to this request.
fn mapped(answer: &[u8], request: &[u8; 20]) -> Option<SocketAddr> {
    let (header, mut attributes) = answer.split_at_checked(20)?;
    if header[..2] != [1, 1] || header[4..] != request[4..] {
        return None;
    }
    while let Some((&[kind_high, kind_low, length_high, length_low], rest)) = attributes.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([length_high, length_low]));
        let value = rest.get(..length)?;
        if [kind_high, kind_low] == XOR_MAPPED_ADDRESS {
            let (&[_, family, port_high, port_low], address) = value.split_first_chunk()?;
            let port = u16::from_be_bytes([port_high ^ MAGIC[0], port_low ^ MAGIC[1]]);
            let key = &request[4..];
            let address = match (family, address) {
                (1, &[a, b, c, d]) => IpAddr::from([a ^ key[0], b ^ key[1], c ^ key[2], d ^ key[3]]),
                (2, address) => {
                    let mut address: [u8; 16] = address.try_into().ok()?;
                    address.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
                    IpAddr::from(address)
                }
                _ => return None,
            };
            return Some(SocketAddr::new(address, port));
        }
        attributes = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// `stun:host:port`, the port by default 3478.
pub(super) fn stun_server(text: &str) -> Option<(String, u16)> {
    host_and_port(text.strip_prefix("stun:")?, Some(3_478))
}

/// `host:port`, an IPv6 address in brackets.
pub(super) fn host_and_port(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').or(if after.is_empty() { None } else { Some("") }))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None => default?,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// An IPv4 address, where there is one: that a host has no way out by IPv6 is nothing to warn of.
async fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    let v4 = addresses.iter().find(|address| address.is_ipv4());
    v4.or(addresses.first()).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// The innermost cause: the outer ones name the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn ms(start: Instant) -> String {
    format!("{} ms", start.elapsed().as_millis())
}

const MAGIC: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const XOR_MAPPED_ADDRESS: [u8; 2] = [0, 0x20];

/// A datagram may be lost: it is sent again, and an answer taken for so long.
const STUN_AGAIN: Duration = Duration::from_millis(500);
const STUN_LIMIT: Duration = Duration::from_secs(2);

/// For two addresses, one of them dead.
const TCP_LIMIT: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read() {
        assert_eq!(stun_server("stun:h:1"), Some(("h".into(), 1)));
        assert_eq!(stun_server("stun:h"), Some(("h".into(), 3_478)));
        assert_eq!(stun_server("stun:[::1]:5"), Some(("::1".into(), 5)));
        assert_eq!(stun_server("stun:[::1]"), Some(("::1".into(), 3_478)));
        for bad in ["h:1", "stun:", "stun::1", "stun:h:0", "stun:h:x", "stun:[::1]x", "turn:h:1"] {
            assert_eq!(stun_server(bad), None, "{bad}");
        }
        assert_eq!(host_and_port("h", None), None);
    }

    #[test]
    fn an_answer_is_to_its_request_and_whole() {
        let mut request = [7; 20];
        request[4..8].copy_from_slice(&MAGIC);
        // RFC 5769 section 2.2: 192.0.2.1 port 32853, behind another attribute.
        let mut answer = vec![1, 1, 0, 20];
        answer.extend_from_slice(&request[4..]);
        answer.extend_from_slice(&[0x80, 0x22, 0, 3, b'a', b'b', b'c', b' ']);
        answer.extend_from_slice(&[0, 0x20, 0, 8, 0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]);
        assert_eq!(mapped(&answer, &request), Some("192.0.2.1:32853".parse().unwrap()));
        for length in 0..answer.len() {
            assert_eq!(mapped(&answer[..length], &request), None, "cut to {length}");
        }
        assert_eq!(mapped(&answer, &[9; 20]), None, "somebody else's");
    }
}
