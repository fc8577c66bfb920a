//! What the peers of these tests send, and addresses that cannot be sent to.

use std::collections::HashSet;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use webrtc::runtime::{AsyncUdpSocket, RecvMeta, Transmit};

/// The largest datagram that any of them sent.
pub(super) fn largest() -> usize {
    LARGEST.load(Ordering::Relaxed)
}

/// Where a datagram was refused.
pub(super) fn refused() -> HashSet<SocketAddr> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static REFUSED: Mutex<Option<HashSet<SocketAddr>>> = Mutex::new(None);

/// The system's socket, looked at; 127.0.0.97 and 127.0.0.101 fail with the errno of their last number.
#[derive(Debug)]
pub(in super::super) struct Wire(pub(in super::super) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Wire {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<usize>> {
        if let IpAddr::V4(address) = transmit.destination.ip()
            && let [127, 0, 0, errno @ (97 | 101)] = address.octets()
        {
            let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
            refused.get_or_insert_default().insert(transmit.destination);
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno.into())));
        }
        LARGEST.fetch_max(transmit.segment_size.unwrap_or(transmit.contents.len()), Ordering::Relaxed);
        self.0.poll_send(cx, transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn max_gro_segments(&self) -> usize {
        self.0.max_gro_segments()
    }
}
