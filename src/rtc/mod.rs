//! One WebRTC peer behind a small type of our own: an audio track each way and the event channel, as GPT-Live's
//! sessions want them (`engines.md` 3). Nothing outside this room names the crates underneath.
//!
//! What comes in waits in bounded queues until [`Peer::next`] takes it. Sound: the newest [`AUDIO_QUEUE`] packets, older
//! ones are dropped and counted. Text: in order and never lost; what is not taken is left with SCTP, whose window then
//! holds the other side back. What goes out never waits: sound that the stack cannot take is dropped and counted, text
//! is queued up to [`TEXT_QUEUE`].

mod addresses;
mod answer;
mod carrier;
mod consent;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handler;
mod listener;
mod outbox;
mod runtime;
mod setup;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use rtc::rtp;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until, timeout};
use webrtc::data_channel::{DataChannel, DataChannelEvent};
use webrtc::media_stream::track_local::TrackLocal;
use webrtc::media_stream::track_local::static_rtp::TrackLocalStaticRTP;
use webrtc::peer_connection::{PeerConnection, RTCIceCandidateInit, RTCSessionDescription};
use webrtc::runtime::Runtime;

use answer::Answer;
use consent::Consent;
use handler::{Handler, Link};
use outbox::{Outbox, send_text};
use runtime::PeerRuntime;
use setup::{OPUS_PAYLOAD_TYPE, connection, microphone, only_usable_candidates, settings};

/// What a peer is made with.
#[derive(Debug, Clone, Default)]
pub struct PeerConfig {
    /// STUN servers, `stun:host:port`; none means host candidates only.
    pub stun: Vec<String>,
}

/// Why a peer does not do what it was asked for. No SDP is ever part of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// No peer could be made on this machine.
    #[error("WebRTC cannot be set up here: {0}")]
    Setup(String),
    /// The answer is of no use.
    #[error("the engine's answer cannot be used: {0}")]
    Answer(&'static str),
    /// The stack's queue for sound is full, or there is none any more: the packet was dropped.
    #[error("a packet of sound could not be sent")]
    Audio,
    /// Too much text waits: the oldest was dropped.
    #[error("too many events are waiting for the engine; the oldest was dropped")]
    Text,
    /// The peer is closed.
    #[error("the connection is closed")]
    Closed,
}

/// What a peer has to tell.
#[derive(Clone)]
#[non_exhaustive]
pub enum PeerEvent {
    /// ICE and DTLS are up, or up again after [`PeerEvent::Disconnected`]: sound may flow.
    Connected,
    /// Consent is late. Not the end: at heavy loss it comes back.
    Disconnected,
    /// Text now leaves at once.
    ChannelOpen,
    /// A packet of the engine's.
    Rtp(Rtp),
    /// One text message from the event channel: UTF-8, untouched.
    Text(Bytes),
    /// The end, with a short reason. Nothing comes after it.
    Closed(&'static str),
}

/// One RTP packet as it came in, of whatever payload type, empty ones too.
#[derive(Clone)]
pub struct Rtp {
    /// When it was taken off the stack.
    pub arrived: Instant,
    /// The sequence number.
    pub sequence: u16,
    /// The media timestamp, in 1/48,000 s for Opus.
    pub timestamp: u32,
    /// The marker bit: the first packet after silence.
    pub marker: bool,
    /// The payload type; [`Peer::payload_type`] is the negotiated one.
    pub payload_type: u8,
    /// The synchronization source.
    pub ssrc: u32,
    /// The payload without padding.
    pub payload: Bytes,
}

/// One WebRTC peer, the offering side.
///
/// Its tasks and sockets are gone when it is dropped; [`Peer::close`] tells the other side as well.
pub struct Peer {
    connection: Arc<dyn PeerConnection>,
    channel: Arc<dyn DataChannel>,
    track: Arc<TrackLocalStaticRTP>,
    consent: Arc<Consent>,
    link: watch::Receiver<Link>,
    audio: broadcast::Receiver<Rtp>,
    outbox: Arc<Outbox>,
    ipv6: bool,
    routes: &'static str,
    ssrc: u32,
    sequence: u16,
    payload_type: u8,
    hold_text: bool,
    connected: bool,
    channel_open: bool,
    /// Until when the channel has to open.
    channel_due: Option<Instant>,
    audio_dropped: u64,
    /// The end has come: until when the last words may, and why.
    ending: Option<(Instant, &'static str)>,
    closed: Option<&'static str>,
    /// The end has been said.
    over: bool,
    /// Last, so that everything else is let go of before the tasks end.
    tasks: Tasks,
}

impl Peer {
    /// Makes a peer and its offer: one audio section, sendrecv, Opus alone, and the event channel `oai-events`. The offer
    /// holds all candidates; it is there within 300 ms, with whatever STUN had answered until then.
    ///
    /// # Errors
    /// When no socket can be had or the configuration is refused.
    pub async fn offer(config: &PeerConfig) -> Result<(Self, String), PeerError> {
        let consent = Arc::new(Consent::new().map_err(PeerError::Setup)?);
        let runtime = Arc::new(PeerRuntime::new(Arc::clone(&consent)));
        let tasks = Tasks(Arc::clone(&runtime));
        let (handler, link, mut gathered) = Handler::new();
        let (heard, audio) = broadcast::channel(AUDIO_QUEUE);
        let addresses = addresses::local();
        let ipv6 = addresses.iter().any(SocketAddr::is_ipv6);
        let connection = connection(config, &addresses, Arc::clone(&runtime), handler, heard, settings().build())
            .await
            .map_err(refused)?;

        let ssrc = random_u32()?;
        let track = Arc::new(TrackLocalStaticRTP::new(microphone(ssrc)));
        connection.add_track(Arc::clone(&track) as Arc<dyn TrackLocal>).await.map_err(refused)?;
        let channel = connection.create_data_channel(CHANNEL, None).await.map_err(refused)?;
        let offer = connection.create_offer(None).await.map_err(refused)?;
        connection.set_local_description(offer).await.map_err(refused)?;
        // Host candidates come within milliseconds; only STUN can take longer, or for ever.
        let _ = timeout(GATHER_LIMIT, gathered.wait_for(|gathered| *gathered)).await;
        let offer = connection.local_description().await.ok_or(PeerError::Closed)?.sdp;

        let outbox = Arc::new(Outbox::default());
        runtime.spawn(Box::pin(send_text(Arc::clone(&channel), Arc::clone(&outbox)))).detach();
        let peer = Self {
            connection,
            channel,
            track,
            consent,
            link,
            audio,
            outbox,
            ipv6,
            routes: "nothing",
            ssrc,
            sequence: random_u32()? as u16,
            payload_type: OPUS_PAYLOAD_TYPE,
            hold_text: false,
            connected: false,
            channel_open: false,
            channel_due: None,
            audio_dropped: 0,
            ending: None,
            closed: None,
            over: false,
            tasks,
        };
        Ok((peer, only_usable_candidates(&offer)))
    }

    /// Takes the engine's answer and starts connecting, over UDP and, where the answer has candidates for it, TCP.
    ///
    /// # Errors
    /// When the answer is of no use.
    pub async fn accept(&mut self, answer: &str) -> Result<(), PeerError> {
        let answer = Answer::parse(answer, self.ipv6)?;
        for (ufrag, password) in &answer.credentials {
            self.consent.learn(ufrag, password);
        }
        self.payload_type = answer.payload_type;
        self.routes = answer.routes();
        // The crate's own words may quote the SDP.
        let refused = |_| PeerError::Answer("it does not fit the offer");
        let description = RTCSessionDescription::answer(answer.sdp).map_err(refused)?;
        self.connection.set_remote_description(description).await.map_err(refused)?;

        let mut unusable = answer.skipped;
        for candidate in answer.candidates {
            let candidate = RTCIceCandidateInit { candidate, ..RTCIceCandidateInit::default() };
            unusable += usize::from(self.connection.add_ice_candidate(candidate).await.is_err());
        }
        if unusable > 0 {
            tracing::debug!("{unusable} candidates of the engine's are of no use here");
        }
        Ok(())
    }

    /// Waits for the next event, for ever after [`PeerEvent::Closed`]. Cancel safe.
    pub async fn next(&mut self) -> PeerEvent {
        if self.over {
            return std::future::pending().await;
        }
        loop {
            if let Some(reason) = self.closed {
                self.over = true;
                return PeerEvent::Closed(reason);
            }
            let last_words = self.ending.map(|(until, _)| until);
            tokio::select! {
                changed = self.link.changed(), if self.ending.is_none() => {
                    let link = if changed.is_ok() { *self.link.borrow_and_update() } else { Link::Lost };
                    match link {
                        Link::New => {}
                        Link::Connected => {
                            self.connected = true;
                            if !self.channel_open {
                                self.channel_due.get_or_insert(Instant::now() + CHANNEL_LIMIT);
                            }
                            return PeerEvent::Connected;
                        }
                        Link::Disconnected => return PeerEvent::Disconnected,
                        Link::HungUp => self.end(HUNG_UP),
                        Link::Lost => self.end(LOST),
                    }
                }
                packet = self.audio.recv() => match packet {
                    Ok(packet) => return PeerEvent::Rtp(packet),
                    Err(broadcast::error::RecvError::Lagged(dropped)) => self.audio_dropped += dropped,
                    Err(broadcast::error::RecvError::Closed) => self.closed = Some(self.ending_reason()),
                },
                event = self.channel.poll(), if !self.hold_text => match event {
                    Some(DataChannelEvent::OnOpen) => {
                        self.channel_open = true;
                        self.channel_due = None;
                        self.outbox.open();
                        return PeerEvent::ChannelOpen;
                    }
                    Some(DataChannelEvent::OnMessage(message)) => {
                        if message.is_string && std::str::from_utf8(&message.data).is_ok() {
                            return PeerEvent::Text(message.data.freeze());
                        }
                    }
                    Some(DataChannelEvent::OnClose) => self.end(HUNG_UP),
                    Some(_) => {}
                    None => self.closed = Some(self.ending_reason()),
                },
                () = self.tasks.0.lost(), if self.connected && self.ending.is_none() => self.end(LOST),
                () = until(last_words) => self.closed = Some(self.ending_reason()),
                () = until(self.channel_due), if self.ending.is_none() => self.end(NO_CHANNEL),
            }
        }
    }

    /// The stack tells of the end before it hands on what came with it: that is still waited for.
    fn end(&mut self, reason: &'static str) {
        self.ending.get_or_insert((Instant::now() + LAST_WORDS, reason));
    }

    fn ending_reason(&self) -> &'static str {
        self.ending.map_or(LOST, |(_, reason)| reason)
    }

    /// While `hold`, [`Peer::next`] leaves text (and the event channel's open and close) where it is.
    pub fn hold_text(&mut self, hold: bool) {
        self.hold_text = hold;
    }

    /// Sends one Opus packet now. `timestamp` is in 1/48,000 s (RFC 7587); sequence numbers are given here, one for each
    /// call, sent or not.
    ///
    /// # Errors
    /// When the packet could not be handed to the stack at once.
    pub fn send_audio(&mut self, packet: &[u8], timestamp: u32, marker: bool) -> Result<(), PeerError> {
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let packet = rtp::Packet {
            header: rtp::header::Header {
                version: 2,
                marker,
                payload_type: self.payload_type,
                sequence_number: sequence,
                timestamp,
                ssrc: self.ssrc,
                ..rtp::header::Header::default()
            },
            payload: Bytes::copy_from_slice(packet),
        };
        match self.track.write_rtp(packet).now_or_never() {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(PeerError::Audio),
        }
    }

    /// Sends one text message on the event channel, as soon as it is open, in order.
    ///
    /// # Errors
    /// [`PeerError::Text`] when [`TEXT_QUEUE`] messages wait already: the oldest of them was dropped for this one.
    pub fn send_text(&self, text: impl Into<String>) -> Result<(), PeerError> {
        if self.closed.is_some() {
            return Err(PeerError::Closed);
        }
        self.outbox.push(text.into())
    }

    /// The payload type that carries the sound; others are to be ignored.
    pub fn payload_type(&self) -> u8 {
        self.payload_type
    }

    /// How the answer lets the engine be reached: `UDP`, `TCP`, `UDP and TCP`, or `nothing`.
    pub fn routes(&self) -> &'static str {
        self.routes
    }

    /// Packets of sound that came in and were dropped because nobody took them.
    pub fn audio_dropped(&self) -> u64 {
        self.audio_dropped
    }

    /// Ends the connection and gives its sockets back, within 2 s. Once is enough, more does no harm.
    pub async fn close(&mut self) {
        if self.closed != Some(CLOSED_HERE) {
            self.closed = Some(CLOSED_HERE);
            if timeout(CLOSE_LIMIT, self.connection.close()).await.is_err() {
                tracing::warn!("the WebRTC connection did not close in time; it is cut off");
            }
        }
        self.tasks.0.abort_all();
    }
}

/// Waits for a time, for ever when there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The tasks of one peer: gone with it, whatever happens.
struct Tasks(Arc<PeerRuntime>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.abort_all();
    }
}

fn random_u32() -> Result<u32, PeerError> {
    getrandom::u32().map_err(|error| PeerError::Setup(error.to_string()))
}

fn refused(error: webrtc::error::Error) -> PeerError {
    PeerError::Setup(error.to_string())
}

/// The event channel's label (`engines.md` 1.1).
const CHANNEL: &str = "oai-events";

/// `watch-audio.md`, GPT-Live session: host candidates, and STUN's within this time.
const GATHER_LIMIT: Duration = Duration::from_millis(300);

/// Packets of sound that may wait to be taken: 2 s at 20 ms each.
pub const AUDIO_QUEUE: usize = 100;

/// Texts that may wait for the channel to open (`helper-stdio.md`, `E`), or for SCTP.
pub const TEXT_QUEUE: usize = 64;

/// SCTP and the channel need two round trips after DTLS, more when one is lost; text that waits longer is as good as lost.
const CHANNEL_LIMIT: Duration = Duration::from_secs(10);

/// What the engine sent before it closed the channel is here within this time.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The crate itself needs some 100 ms.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

const CLOSED_HERE: &str = "closed";
const NO_CHANNEL: &str = "the engine's event channel did not open";
const HUNG_UP: &str = "the engine hung up";
const LOST: &str = "the connection to the engine was lost";

#[cfg(test)]
mod tests;
