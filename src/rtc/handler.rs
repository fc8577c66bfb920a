//! What the stack calls back. It does so on the task that drives everything, so nothing here waits.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use webrtc::media_stream::track_remote::{TrackRemote, TrackRemoteEvent};
use webrtc::peer_connection::{PeerConnectionEventHandler, RTCIceGatheringState, RTCPeerConnectionState};
use webrtc::runtime::Runtime;

use super::runtime::PeerRuntime;
use super::{AUDIO_QUEUE, Rtp};

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
    runtime: Arc<PeerRuntime>,
    link: watch::Sender<Link>,
    gathered: watch::Sender<bool>,
    audio: broadcast::Sender<Rtp>,
}

impl Handler {
    #[allow(clippy::type_complexity)]
    pub(super) fn new(
        runtime: Arc<PeerRuntime>,
    ) -> (Arc<Self>, watch::Receiver<Link>, watch::Receiver<bool>, broadcast::Receiver<Rtp>) {
        let (link, link_rx) = watch::channel(Link::New);
        let (gathered, gathered_rx) = watch::channel(false);
        let (audio, audio_rx) = broadcast::channel(AUDIO_QUEUE);
        (Arc::new(Self { runtime, link, gathered, audio }), link_rx, gathered_rx, audio_rx)
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

    async fn on_track(&self, track: Arc<dyn TrackRemote>) {
        self.runtime.spawn(Box::pin(receive(track, self.audio.clone()))).detach();
    }
}

/// Stamps every packet of a track as it comes.
pub(super) async fn receive(track: Arc<dyn TrackRemote>, audio: broadcast::Sender<Rtp>) {
    while let Some(event) = track.poll().await {
        if let TrackRemoteEvent::OnRtpPacket(packet) = event {
            let _ = audio.send(Rtp {
                arrived: Instant::now(),
                sequence: packet.header.sequence_number,
                timestamp: packet.header.timestamp,
                marker: packet.header.marker,
                payload_type: packet.header.payload_type,
                ssrc: packet.header.ssrc,
                payload: packet.payload,
            });
        }
    }
}
