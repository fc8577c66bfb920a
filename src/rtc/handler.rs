//! What the stack calls back. It does so on the task that drives everything, so nothing here waits.

use std::sync::Arc;

use tokio::sync::watch;
use webrtc::peer_connection::{PeerConnectionEventHandler, RTCIceGatheringState, RTCPeerConnectionState};

/// How the connection as a whole stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    New,
    Connected,
    Disconnected,
    HungUp,
    Lost,
}

/// Takes the stack's callbacks.
pub(super) struct Handler {
    link: watch::Sender<Link>,
    gathered: watch::Sender<bool>,
}

impl Handler {
    pub(super) fn new() -> (Arc<Self>, watch::Receiver<Link>, watch::Receiver<bool>) {
        let (link, link_rx) = watch::channel(Link::New);
        let (gathered, gathered_rx) = watch::channel(false);
        (Arc::new(Self { link, gathered }), link_rx, gathered_rx)
    }
}

#[async_trait::async_trait]
impl PeerConnectionEventHandler for Handler {
    async fn on_ice_gathering_state_change(&self, state: RTCIceGatheringState) {
        if state == RTCIceGatheringState::Complete {
            self.gathered.send_replace(true);
        }
    }

    async fn on_connection_state_change(&self, state: RTCPeerConnectionState) {
        let link = match state {
            RTCPeerConnectionState::Connected => Link::Connected,
            RTCPeerConnectionState::Disconnected => Link::Disconnected,
            RTCPeerConnectionState::Closed => Link::HungUp,
            RTCPeerConnectionState::Failed => Link::Lost,
            _ => return,
        };
        self.link.send_if_modified(|current| {
            let over = matches!(*current, Link::HungUp | Link::Lost);
            !over && std::mem::replace(current, link) != link
        });
    }
}
