//! One call's WebRTC peer: `str0m` between the sockets and the model, with the vendor's strictness around it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use str0m::change::SdpOffer;
use str0m::channel::ChannelId;
use str0m::crypto::from_feature_flags;
use str0m::format::Codec;
use str0m::media::{Mid, Pt};
use str0m::net::{Protocol, Receive, TcpType, Transmit};
use str0m::rtp::{RtpPacket, RtpWrite};
use str0m::{Candidate, Event, IceCreds, Input, Output, Rtc, RtcConfig, RtcError};
use tokio::sync::watch;
use watch_audio_media::codec::Decode;
use watch_audio_media::opus::{Decoder, packet_samples};

use super::answer::{Answer, mid_of, offer_for_str0m};
use super::check::{Complaint, Request};
use super::metronome::Metronome;
use super::model::{Model, huge};
use super::wire::{Arrival, Packet, Wire};
use super::{Dialect, Ended, Happening, Network, Note, Options, Path, Session, What};
use crate::sim::record;
use crate::sim::script::RATE;

/// One call.
pub(super) struct Peer {
    options: Arc<Options>,
    note: Note,
    rtc: Rtc,
    wire: Wire,
    model: Model,
    decoder: Decoder,
    audio: Mid,
    payload_type: Pt,
    channel: Option<ChannelId>,
    created: Instant,
    opened: Option<Instant>,
    /// What is still to happen, earliest first.
    happenings: VecDeque<Happening>,
    stalled_until: Option<Instant>,
    consent: Consent,
    /// The highest sequence number received.
    newest: Option<u64>,
    /// An RTP packet that waits for its successor to go first.
    held: Option<(bool, SocketAddr, Vec<u8>)>,
    /// RTP packets sent, or lost on purpose.
    sent: u64,
    ssrc: u32,
    /// When the peer is closed behind `session.closed`.
    closing: Option<Instant>,
    over: Option<Ended>,
}

/// What is known of the other side's will to receive (RFC 7675).
#[derive(Default)]
struct Consent {
    nominated: bool,
    until: Option<Instant>,
    /// The nominating checks that `str0m` has yet to find genuine by answering them.
    asked: VecDeque<[u8; 12]>,
    lost: u32,
}

impl Peer {
    /// Takes an offer and answers it.
    pub(super) async fn answer(
        options: Arc<Options>,
        note: Note,
        dialect: Dialect,
        request: &Request,
        network: Option<watch::Receiver<Network>>,
    ) -> Result<(Box<Self>, String), Complaint> {
        let faults = &options.faults;
        let internal = |error: &dyn std::fmt::Display| Complaint { status: 500, ..Complaint::bad(error.to_string()) };
        let wire = Wire::open(faults.udp, faults.tcp, network).await.map_err(|error| internal(&error))?;
        let credentials =
            IceCreds { ufrag: format!("sim{:03}/u0/aBcDeF1gH2", note.number()), pass: IceCreds::new().pass };
        let mut rtc = RtcConfig::new()
            .set_crypto_provider(Arc::new(from_feature_flags()))
            .set_local_ice_credentials(credentials.clone())
            .set_ice_lite(true)
            .clear_codecs()
            .enable_opus(true, false)
            .clear_extension_map()
            .set_rtp_mode(true)
            .set_sctp_max_buffered_amount(SCTP_BUFFER)
            .set_sctp_max_message_size(SCTP_BUFFER as u32)
            .build(Instant::now());
        let udp = Candidate::builder().udp().host(wire.udp_address()).build();
        let tcp = Candidate::builder().tcp().host(wire.tcp_address()).tcptype(TcpType::Passive).build();
        for candidate in [udp, tcp] {
            rtc.add_local_candidate(candidate.map_err(|error| internal(&error))?);
        }
        let offer = offer_for_str0m(&request.sdp, !faults.no_channel);
        let offer = SdpOffer::from_sdp_string(&offer).map_err(|error| Complaint::bad(error.to_string()))?;
        rtc.sdp_api().accept_offer(offer).map_err(|error| Complaint::bad(error.to_string()))?;

        let no_mid = || Complaint::bad("The offer's media have no mid.");
        let audio_mid = mid_of(&request.sdp, "m=audio").ok_or_else(no_mid)?;
        let channel_mid = mid_of(&request.sdp, "m=application").ok_or_else(no_mid)?;
        let audio = Mid::from(audio_mid.as_str());
        let opus = rtc.codec_config().iter().find(|params| params.spec().codec == Codec::Opus);
        let payload_type = opus.ok_or_else(|| Complaint::bad("The offer has no Opus."))?.pt();
        let ssrc = rtc.direct_api().stream_tx_by_mid(audio, None).map(|stream| *stream.ssrc());
        let ssrc = ssrc.ok_or_else(|| Complaint::bad("The offer's audio cannot be sent to."))?;
        let fingerprint = rtc.direct_api().local_dtls_fingerprint().to_string();
        let answer = Answer {
            ufrag: credentials.ufrag,
            password: credentials.pass,
            fingerprint: fingerprint.trim_start_matches("sha-256").trim().to_owned(),
            payload_type: *payload_type,
            ssrc,
            audio_mid,
            channel_mid,
            udp: (!faults.no_candidates && faults.udp != Path::Absent).then(|| wire.udp_candidate()),
            tcp: (!faults.no_candidates && faults.tcp != Path::Absent).then(|| wire.tcp_address()),
        };
        let mut happenings = faults.at.clone();
        happenings.sort_by_key(|happening| happening.after_ms);
        let happenings = happenings.into();
        let model = Model::new(Arc::clone(&options), note.clone(), dialect, request.session.clone());
        let peer = Self {
            model: model.map_err(|error| internal(&error))?,
            decoder: Decoder::new(RATE).map_err(|error| internal(&error))?,
            consent: Consent { lost: faults.lost_consent, ..Consent::default() },
            created: Instant::now(),
            options,
            note,
            rtc,
            wire,
            audio,
            payload_type,
            channel: None,
            opened: None,
            happenings,
            stalled_until: None,
            newest: None,
            held: None,
            sent: 0,
            ssrc,
            closing: None,
            over: None,
        };
        Ok((Box::new(peer), answer.text()))
    }

    /// Runs the call to its end, or until told to stop.
    pub(super) async fn run(mut self: Box<Self>, mut stop: watch::Receiver<bool>) {
        let metronome = Metronome::start(self.model.period());
        // A call that fails is over, whatever failed: the record says that it ended, the other side sees silence.
        let ended = tokio::select! {
            ended = self.converse(&metronome) => ended.unwrap_or(Ended::Hangup),
            _ = stop.changed() => Ended::Shutdown,
        };
        self.note.with(|session| session.ended = Some((Instant::now(), ended)));
        match ended {
            // The other side is to find out by itself: its packets go nowhere, but their port is still there.
            Ended::Vanished | Ended::ConsentLost => {
                let _ = tokio::time::timeout(AFTERLIFE, stop.changed()).await;
            }
            _ => self.say_goodbye(),
        }
    }

    async fn converse(&mut self, metronome: &Metronome) -> Result<Ended, RtcError> {
        loop {
            let timeout = self.settle()?;
            if let Some(over) = self.over {
                return Ok(over);
            }
            tokio::select! {
                arrival = self.wire.next() => self.arrive(&arrival)?,
                () = metronome.tick() => {}
                () = tokio::time::sleep_until(timeout.into()) => self.rtc.handle_input(Input::Timeout(Instant::now()))?,
            }
            self.on_time()?;
        }
    }

    /// Lets `str0m` say all it has to, and gives the data channel what the model has to say.
    fn settle(&mut self) -> Result<Instant, RtcError> {
        loop {
            let timeout = self.drain()?;
            if self.channel.is_some() && !self.model.is_open() {
                // What happens at 0 comes before `session.started`.
                self.happen(Instant::now());
                self.model.opened();
            }
            let Some(channel) = self.channel else { return Ok(timeout) };
            let Some(text) = self.model.text() else { return Ok(timeout) };
            let at = Instant::now();
            // A full buffer would mean that nothing was acknowledged for megabytes: the call is lost then.
            if let Some(mut channel) = self.rtc.channel(channel) {
                channel.write(false, text.as_bytes())?;
            }
            self.note.with(|session| session.sent.push(record::Event::new(at, &text)));
        }
    }

    fn drain(&mut self) -> Result<Instant, RtcError> {
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(timeout) => return Ok(timeout),
                Output::Transmit(transmit) => self.transmit(&transmit),
                Output::Event(event) => self.event(event),
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Connected => {
                self.model.connected(now);
                let consent = self.consent_time();
                self.consent.until.get_or_insert(now + consent);
                self.note.with(|session| _ = session.connected.get_or_insert(now));
            }
            Event::ChannelOpen(id, _) if self.channel.is_none() => {
                self.channel = Some(id);
                self.opened = Some(now);
                self.note.with(|session| session.opened = Some(now));
            }
            Event::ChannelData(data) => {
                self.model.receive(now, &String::from_utf8_lossy(&data.data));
            }
            Event::RtpPacket(packet) => self.hear(now, &packet),
            Event::ChannelClose(_) | Event::Closed => self.end(Ended::Hangup),
            _ => {}
        }
    }

    /// What comes by the clock: happenings, packets of the output, the ends.
    fn on_time(&mut self) -> Result<(), RtcError> {
        let now = Instant::now();
        self.happen(now);
        if self.model.closed() {
            // `session.closed` is on its way: the caller has a moment to hang up, as it should.
            let until = *self.closing.get_or_insert(now + LINGER);
            if until <= now {
                self.end(Ended::ByService);
            }
            return Ok(());
        }
        while self.over.is_none() && self.stalled_until.is_none() && self.model.due().is_some_and(|due| due <= now) {
            self.speak(now)?;
        }
        self.check_ends(now);
        Ok(())
    }

    fn check_ends(&mut self, now: Instant) {
        let expire = Duration::from_millis(self.options.timing.expire_ms);
        let heard = self.note.with(|session| session.input.last).or(self.opened);
        if self.opened.is_some() && !self.model.closed() && heard.is_some_and(|heard| heard + expire <= now) {
            self.model.close("expired");
        }
        if self.consent.until.is_some_and(|until| until <= now) && !self.options.faults.lenient_consent {
            self.end(Ended::ConsentLost);
        }
        if self.consent.until.is_none() && self.created + NEVER <= now {
            self.end(Ended::NeverConnected);
        }
    }

    fn end(&mut self, ended: Ended) {
        // However it came about after `session.closed`, that was the end.
        let ended = match ended {
            Ended::Hangup | Ended::ByService if self.model.closed() => {
                let asked = |session: &mut Session| session.received.iter().any(|event| event.kind == "session.close");
                if self.note.with(asked) { Ended::Closed } else { Ended::ByService }
            }
            ended => ended,
        };
        self.over.get_or_insert(ended);
    }

    fn happen(&mut self, now: Instant) {
        if self.stalled_until.is_some_and(|until| until <= now) {
            self.stalled_until = None;
        }
        let Some(opened) = self.opened else { return };
        let due = |happening: &mut Happening| opened + Duration::from_millis(happening.after_ms) <= now;
        while let Some(happening) = self.happenings.pop_front_if(due) {
            self.happen_once(now, &happening.what);
        }
    }

    fn happen_once(&mut self, now: Instant, what: &What) {
        match what {
            What::Text(text) => self.model.inject(text.clone()),
            What::Huge(bytes) => self.model.inject(huge(*bytes)),
            What::Closed(reason) => self.model.close(reason),
            What::Vanish => self.end(Ended::Vanished),
            What::NewSsrc => {
                self.ssrc = self.ssrc.wrapping_add(1).max(1);
                self.rtc.direct_api().reset_stream_tx(self.audio, None, self.ssrc.into(), None);
            }
            What::Stall(ms) => self.stalled_until = Some(now + Duration::from_millis(*ms)),
        }
    }

    /// Takes a datagram, unless the vendor would not have.
    fn arrive(&mut self, arrival: &Arrival) -> Result<(), RtcError> {
        let faults = &self.options.faults;
        match Packet::of(&arrival.bytes) {
            Packet::Check { nominates, transaction } => {
                let connected = self.consent.until.is_some();
                if connected && self.consent.lost > 0 {
                    self.consent.lost -= 1;
                    return Ok(());
                }
                if self.consent.nominated && !nominates && !faults.lenient_consent {
                    self.note.with(|session| session.ignored_checks += 1);
                    return Ok(());
                }
                if nominates || faults.lenient_consent {
                    self.consent.asked.push_back(transaction);
                    self.consent.asked.truncate(MAX_ASKED);
                }
            }
            Packet::Dtls if faults.no_dtls => return Ok(()),
            _ => {}
        }
        let (protocol, destination) = if arrival.tcp {
            (Protocol::Tcp, self.wire.tcp_address())
        } else {
            (Protocol::Udp, self.wire.udp_address())
        };
        // What cannot be parsed is not for us.
        if let Ok(receive) = Receive::new(protocol, arrival.from, destination, &arrival.bytes) {
            self.rtc.handle_input(Input::Receive(Instant::now(), receive))?;
        }
        Ok(())
    }

    fn transmit(&mut self, transmit: &Transmit) {
        let tcp = transmit.proto == Protocol::Tcp;
        match Packet::of(&transmit.contents) {
            Packet::CheckAnswer { transaction } => self.consented(tcp, transaction),
            Packet::Dtls if self.options.faults.no_dtls => return,
            Packet::Rtp => return self.transmit_rtp(tcp, transmit.destination, &transmit.contents),
            _ => {}
        }
        self.wire.send(tcp, transmit.destination, &transmit.contents);
    }

    /// `str0m` answered a check, so it was genuine.
    fn consented(&mut self, tcp: bool, transaction: [u8; 12]) {
        let asked = self.consent.asked.iter().position(|asked| *asked == transaction);
        let Some(asked) = asked else { return };
        self.consent.asked.drain(..=asked);
        self.consent.nominated = true;
        let renewed = Instant::now() + self.consent_time();
        if let Some(until) = &mut self.consent.until {
            *until = renewed;
        }
        self.note.with(|session| {
            session.consents += 1;
            session.tcp = tcp;
        });
    }

    fn consent_time(&self) -> Duration {
        Duration::from_millis(self.options.timing.consent_ms)
    }

    /// The faults of the way down: holes, doubles, the wrong order.
    fn transmit_rtp(&mut self, tcp: bool, to: SocketAddr, bytes: &[u8]) {
        self.note_ssrc(bytes);
        let faults = self.options.faults.rtp.clone();
        self.sent += 1;
        let number = self.sent;
        let every = |period: Option<u64>| period.is_some_and(|period| number.is_multiple_of(period.max(1)));
        let in_hole = |(first, count): &(u64, u64)| (*first..first + count).contains(&number);
        if every(faults.lose_every) || faults.lose.iter().any(in_hole) {
            return;
        }
        if every(faults.swap_every) && self.held.is_none() {
            self.held = Some((tcp, to, bytes.to_vec()));
            return;
        }
        self.wire.send(tcp, to, bytes);
        if every(faults.double_every) {
            self.wire.send(tcp, to, bytes);
        }
        if let Some((tcp, to, held)) = self.held.take() {
            self.wire.send(tcp, to, &held);
        }
    }

    fn note_ssrc(&self, rtp: &[u8]) {
        if let Some(ssrc) = rtp.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes) {
            self.note.with(|session| {
                if session.ssrcs.last() != Some(&ssrc) {
                    session.ssrcs.push(ssrc);
                }
            });
        }
    }

    fn hear(&mut self, now: Instant, packet: &RtpPacket) {
        let number = *packet.seq_no;
        let opus = packet.header.payload_type == self.payload_type && !packet.payload.is_empty();
        let mut pcm = Vec::new();
        // A packet behind a later one is too late for a model that listens as it comes.
        let late = self.newest.is_some_and(|newest| number <= newest);
        let heard = opus && !late && self.decoder.decode(&packet.payload, &mut pcm).is_ok();
        let missed = self.newest.map_or(0, |newest| number.saturating_sub(newest + 1));
        let keep = self.options.keep_audio;
        self.note.with(|session| {
            let input = &mut session.input;
            input.packets += 1;
            input.lost += missed;
            input.other += u64::from(!opus);
            input.late += u64::from(opus && late);
            input.lost = input.lost.saturating_sub(u64::from(late));
            input.broken += u64::from(opus && !late && !heard);
            if heard {
                input.samples += packet_samples(&packet.payload, 48_000).unwrap_or_default() as u64;
                let gap = input.last.map(|last| now.saturating_duration_since(last));
                input.longest_gap = input.longest_gap.max(gap.unwrap_or_default());
                input.first.get_or_insert(now);
                input.last = Some(now);
            }
            if keep {
                session.audio.extend_from_slice(&pcm);
            }
        });
        if !late {
            self.newest = Some(number);
        }
        self.model.hear(now, &mut pcm);
    }

    /// Sends the next packet of the output.
    fn speak(&mut self, now: Instant) -> Result<(), RtcError> {
        let Some(packet) = self.model.packet(now) else { return Ok(()) };
        self.write(now, packet.number, packet.timestamp, packet.marker, &packet.payload)?;
        let every = self.options.faults.rtp.empty_every;
        if every.is_some_and(|every| packet.number.is_multiple_of(every.max(1))) {
            let number = self.model.empty_number();
            self.write(now, number, packet.timestamp, false, &[])?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        now: Instant,
        number: u64,
        timestamp: u32,
        marker: bool,
        payload: &[u8],
    ) -> Result<(), RtcError> {
        let packet = RtpWrite::new(self.payload_type, number.into(), timestamp, now, payload).marker(marker);
        if let Some(stream) = self.rtc.direct_api().stream_tx_by_mid(self.audio, None) {
            stream.write_rtp(packet);
        }
        self.rtc.handle_input(Input::Timeout(now))?;
        self.settle()?;
        Ok(())
    }

    /// Closes the peer so that the other side sees it.
    fn say_goodbye(&mut self) {
        // Best effort: what fails here was gone already.
        let _ = self.rtc.close();
        let _ = self.drain();
    }
}

/// A peer that never connects is given up.
const NEVER: Duration = Duration::from_secs(30);
/// How long the port of a peer that vanished stays taken.
const AFTERLIFE: Duration = Duration::from_secs(60);
/// From `session.closed` to the end of the peer.
const LINGER: Duration = Duration::from_millis(500);
/// More than the largest event (case 29).
const SCTP_BUFFER: usize = 4 * 1024 * 1024;
/// Checks come a few a second.
const MAX_ASKED: usize = 64;
