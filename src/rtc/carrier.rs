//! Which TCP connection carries the call, and that it is gone.
//!
//! A path over UDP is lost when consent runs out (RFC 7675), for nothing else tells. A TCP connection that the engine's
//! side closes or resets tells at once: nothing can come back on it, and ICE does not open it again.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// What the call's datagrams last left by. ICE's own checks do not count: those go by every path.
#[derive(Debug)]
pub(super) struct Carrier {
    names: AtomicU64,
    last: AtomicU64,
    cut: watch::Sender<u64>,
}

/// One transport's name. Every UDP socket has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transport(u64);

impl Carrier {
    pub(super) fn new() -> Self {
        Self { names: AtomicU64::new(UDP.0), last: AtomicU64::new(UDP.0), cut: watch::Sender::new(UDP.0) }
    }

    /// A name for a new TCP connection.
    pub(super) fn tcp(&self) -> Transport {
        Transport(self.names.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A datagram leaves by `transport`.
    pub(super) fn carries(&self, transport: Transport, datagram: &[u8]) {
        if datagram.first().is_some_and(|first| *first >= FIRST_OF_DTLS) {
            self.last.store(transport.0, Ordering::Relaxed);
        }
    }

    /// The other side has ended `transport`.
    pub(super) fn ended(&self, transport: Transport) {
        if self.last.load(Ordering::Relaxed) == transport.0 {
            self.cut.send_replace(transport.0);
        }
    }

    /// Waits until what carries the call is gone; cancel safe.
    pub(super) async fn lost(&self) {
        let mut cut = self.cut.subscribe();
        let gone = cut.wait_for(|cut| *cut != UDP.0 && *cut == self.last.load(Ordering::Relaxed)).await.is_ok();
        if !gone {
            std::future::pending().await
        }
    }
}

/// Where datagrams go that go by no connection.
pub(super) const UDP: Transport = Transport(0);

/// RFC 7983: below this STUN and TURN's neighbours, from here on DTLS, then TURN's channels, RTP and RTCP.
const FIRST_OF_DTLS: u8 = 20;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const RTP: &[u8] = &[0x80];
    const DTLS: &[u8] = &[20];
    const STUN: &[u8] = &[0];

    #[test]
    fn only_the_end_of_what_carries_the_call_loses_it() {
        let carrier = Carrier::new();
        let (one, other) = (carrier.tcp(), carrier.tcp());
        assert_ne!(one, other);
        carrier.carries(one, DTLS);
        carrier.carries(other, STUN);
        carrier.ended(other);
        assert!(carrier.lost().now_or_never().is_none(), "a path that was only tried");
        carrier.ended(one);
        assert!(carrier.lost().now_or_never().is_some());
        carrier.carries(UDP, RTP);
        assert!(carrier.lost().now_or_never().is_none(), "it goes on by another path");
        carrier.ended(UDP);
        assert!(carrier.lost().now_or_never().is_none(), "UDP does not end");
    }
}
