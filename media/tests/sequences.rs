//! Any sequence of operations leaves each machine within its bounds, in order, and nothing unaccounted for. Uplink, downlink
//! and backlog have theirs beside them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use watch_audio_media::ledger::{ItemKey, Ledger, Received, Stopped};
use watch_audio_media::pacer::{EVENT_BYTES, HOLD, LEAD, Paced, Pacer};
use watch_audio_media::pcm::OddByte;
use watch_audio_media::resample::Resampler;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What can happen between an engine and a listener.
#[derive(Debug, Clone)]
enum Step {
    /// So many samples of an item, cut in two at a byte.
    Sound(u8, u16, u16),
    Event(u16),
    Started(u8),
    Done(u8),
    ItemDone(u8),
    /// So many milliseconds pass, and the listener takes at most so many messages.
    Take(u16, u8),
    Interrupt(Option<u8>, u16),
    Cancel(Option<u8>),
    Played(u8, u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..ITEMS, 1..50_000u16, any::<u16>()).prop_map(|(item, samples, cut)| Step::Sound(item, samples, cut)),
        2 => (1..60_000u16).prop_map(Step::Event),
        1 => (0..REPLIES).prop_map(Step::Started),
        1 => (0..REPLIES).prop_map(Step::Done),
        1 => (0..ITEMS).prop_map(Step::ItemDone),
        6 => (0..3_000u16, any::<u8>()).prop_map(|(ms, most)| Step::Take(ms, most)),
        1 => (prop::option::of(0..ITEMS), any::<u16>()).prop_map(|(item, ms)| Step::Interrupt(item, ms)),
        1 => prop::option::of(0..REPLIES).prop_map(Step::Cancel),
        1 => (0..ITEMS, any::<u16>()).prop_map(|(item, ms)| Step::Played(item, ms)),
    ]
}

/// A ledger and a pacer as a session holds them, and what they must come to. A low rate, so that ten minutes are little.
struct Call {
    grain: usize,
    ledger: Ledger,
    pacer: Pacer<Vec<u8>>,
    now: Duration,
    /// Samples of each item that were taken in. Sample `n` of an item is `n`, and an item has at most 65,536.
    taken: HashMap<u8, u64>,
    /// Items that are over: an engine sends no more of them.
    over: HashSet<u8>,
    /// Which item a key is.
    names: HashMap<ItemKey, u8>,
    /// Where the last piece of an item ended.
    ends: HashMap<ItemKey, u64>,
    /// What the pacer was given, in samples, silence at the end of an item included.
    given: u64,
    events: u32,
    next_event: u32,
}

const RATE: u32 = 1_000;
const REPLIES: u8 = 3;
/// Five of each reply.
const ITEMS: u8 = 15;

impl Call {
    fn new(playout: bool, grain: usize, piece: u64) -> Self {
        Self {
            grain,
            ledger: Ledger::new(RATE, playout).in_grains(grain),
            pacer: Pacer::new(RATE).in_pieces(millis(piece)),
            now: Duration::ZERO,
            taken: HashMap::new(),
            over: HashSet::new(),
            names: HashMap::new(),
            ends: HashMap::new(),
            given: 0,
            events: 0,
            next_event: 0,
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Sound(item, samples, cut) => self.sound(item, samples.into(), cut.into())?,
            Step::Event(size) => {
                self.events += 1;
                let mut event = self.events.to_le_bytes().to_vec();
                event.resize(usize::from(size).max(4), 0);
                self.pacer.push_event(event);
            }
            Step::Started(reply) => {
                self.ledger.reply_started(&format!("r{reply}"));
                self.over.extend(self.taken.keys().filter(|item| *item % REPLIES != reply));
            }
            Step::Done(reply) => {
                self.ledger.reply_done(&format!("r{reply}"));
                self.over.extend(self.taken.keys().filter(|item| *item % REPLIES == reply));
            }
            Step::ItemDone(item) => {
                self.ledger.item_done(&format!("i{item}"));
                self.over.extend(self.taken.keys().filter(|taken| **taken == item));
            }
            Step::Take(ms, most) => {
                self.now += millis(ms.into());
                for _ in 0..most {
                    if !self.poll()? {
                        break;
                    }
                }
            }
            Step::Interrupt(item, ms) => self.interrupt(item, ms.into())?,
            Step::Cancel(reply) => {
                let items = self.ledger.cancel(reply.map(|reply| format!("r{reply}")).as_deref());
                self.pacer.drop_audio(|item| items.contains(&item));
                self.over.extend(items.iter().map(|item| self.names[item]));
            }
            Step::Played(item, ms) => self.ledger.played(&format!("i{item}"), ms.into()),
        }
        while let Some(tail) = self.ledger.tail() {
            self.push(tail);
        }
        self.check()
    }

    fn sound(&mut self, item: u8, samples: u64, cut: usize) -> Result<(), TestCaseError> {
        if self.over.contains(&item) {
            return Ok(());
        }
        let taken = self.taken.entry(item).or_default();
        let samples = samples.min(65_536 - *taken);
        let bytes: Vec<u8> = (*taken..*taken + samples).flat_map(|n| (n as u16).to_le_bytes()).collect();
        let (first, second) = bytes.split_at(cut % (bytes.len() + 1));
        let (reply, name) = (format!("r{}", item % REPLIES), format!("i{item}"));
        let parts = [first, second].map(|part| self.ledger.receive(&reply, &name, 0, part.to_vec()));
        prop_assert_eq!(parts[0].is_some(), parts[1].is_some());
        if parts[0].is_some() {
            *taken += samples;
        }
        for part in parts.into_iter().flatten() {
            self.names.insert(part.item, item);
            self.push(part);
        }
        Ok(())
    }

    fn push(&mut self, received: Received) {
        self.given += received.pcm.len() as u64 / 2;
        self.pacer.push_audio(self.now, received.item, received.end, received.pcm);
    }

    /// Takes one message; answers whether one was due.
    fn poll(&mut self) -> Result<bool, TestCaseError> {
        let due = self.pacer.deadline().is_some_and(|deadline| deadline <= self.now);
        match self.pacer.poll(self.now) {
            None => prop_assert!(!due),
            Some(Paced::Event(event)) => {
                let number = u32::from_le_bytes([event[0], event[1], event[2], event[3]]);
                prop_assert!(due && number > self.next_event);
                self.next_event = number;
            }
            Some(Paced::Audio(piece)) => {
                prop_assert!(due && !piece.pcm.is_empty() && piece.pcm.len() <= 200);
                prop_assert!(piece.plays_until <= self.now + LEAD, "{:?} at {:?}", piece.plays_until, self.now);
                let before = self.ends.insert(piece.item, piece.end).unwrap_or(0);
                prop_assert!(piece.end > before && piece.end <= self.taken[&self.names[&piece.item]]);
                // A piece is the sound at its place; past the item's end it is silence.
                // A piece is the sound that ends there; at the item's own end there may be silence after it.
                let pcm: Vec<u16> = piece.pcm.as_chunks().0.iter().map(|sample| u16::from_le_bytes(*sample)).collect();
                let start = pcm[0].into();
                prop_assert!(start >= before && start < piece.end, "{} to {}", start, piece.end);
                let sound = (piece.end - start) as usize;
                prop_assert!(
                    sound <= pcm.len() && pcm[..sound].iter().copied().eq((start..piece.end).map(|n| n as u16))
                );
                prop_assert!(pcm[sound..].iter().all(|sample| *sample == 0) && pcm.len() - sound < self.grain);
                self.ledger.sent(piece.item, piece.end, piece.plays_until);
            }
        }
        Ok(due)
    }

    /// The user speaks over the reply, and the listener says where it stopped, if it does.
    fn interrupt(&mut self, item: Option<u8>, ms: u64) -> Result<(), TestCaseError> {
        self.ledger.interrupt(self.now);
        self.pacer.drop_audio(|_| true);
        self.pacer.listener_flushed();
        prop_assert!(!self.ledger.speaking(self.now));
        let name = item.map(|item| format!("i{item}"));
        let stopped = match &name {
            Some(name) => Stopped::At(name, ms),
            None if ms.is_multiple_of(2) => Stopped::Reckoned,
            None => Stopped::LastPlayed,
        };
        if let Some(truncation) = self.ledger.settle(stopped) {
            let taken = (0..ITEMS).find(|item| format!("i{item}") == truncation.item).map(|item| self.taken[&item]);
            prop_assert!(truncation.ms > 0 && taken.is_some_and(|taken| truncation.ms <= taken));
        }
        prop_assert_eq!(self.ledger.settle(stopped), None, "once");
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let stats = self.pacer.stats();
        prop_assert!(self.pacer.held() <= HOLD);
        let held = self.pacer.held().as_millis() as u64;
        prop_assert_eq!(self.given, stats.sent + stats.dropped + stats.overflowed + held, "{:?}", stats);
        prop_assert!(self.ledger.received_in_all() <= self.taken.values().sum());
        prop_assert!(self.ledger.heard_in_all(self.now) <= stats.sent);
        prop_assert!(self.ledger.heard_in_all(self.now) <= self.ledger.heard_in_all(self.now + millis(100)));
        Ok(())
    }

    /// All that is left goes out in its time, and then nobody speaks.
    fn end(&mut self) -> Result<(), TestCaseError> {
        (0..REPLIES).for_each(|reply| self.ledger.reply_done(&format!("r{reply}")));
        while let Some(tail) = self.ledger.tail() {
            self.push(tail);
        }
        while let Some(deadline) = self.pacer.deadline() {
            self.now = self.now.max(deadline);
            self.poll()?;
        }
        self.check()?;
        let stats = self.pacer.stats();
        prop_assert_eq!(self.given, stats.sent + stats.dropped + stats.overflowed);
        // What overflowed was never sent, so an item may be waited for that will not come.
        prop_assert!(stats.overflowed > 0 || !self.ledger.speaking(self.now + Duration::from_secs(10)));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ledger_and_pacer(
        playout in any::<bool>(),
        (grain, piece) in prop::sample::select(vec![(1, 100), (20, 60)]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut call = Call::new(playout, grain, piece);
        for step in steps {
            call.take(step)?;
        }
        call.end()?;
    }

    /// Events alone: bounded, in order, each given out or counted as lost.
    #[test]
    fn pacer_events(sizes in prop::collection::vec(0..200_000usize, 1..40)) {
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        for (n, size) in sizes.iter().enumerate() {
            pacer.push_event(vec![n as u8; size + 1]);
        }
        let mut out: Vec<(u8, usize)> = Vec::new();
        while let Some(Paced::Event(event)) = pacer.poll(Duration::ZERO) {
            out.push((event[0], event.len()));
        }
        prop_assert!(out.iter().map(|event| event.1).sum::<usize>() <= EVENT_BYTES);
        prop_assert_eq!(out.len() as u64 + pacer.stats().events_lost, sizes.len() as u64);
        let last = sizes.len() - out.len();
        prop_assert!(out.iter().enumerate().all(|(n, event)| usize::from(event.0) == n + last), "the newest, in order");
        prop_assert_eq!(pacer.deadline(), None);
    }

    /// Pieces and ends of items in any order, against what they are made of.
    #[test]
    fn odd_bytes(pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..9), any::<bool>()), 1..60)) {
        let (mut carry, mut samples) = (OddByte::new(), Vec::new());
        let (mut expected, mut item): (Vec<i16>, Vec<u8>) = (Vec::new(), Vec::new());
        for (piece, ends) in pieces {
            carry.push(&piece, &mut samples);
            item.extend(&piece);
            let whole = item.len() / 2 * 2;
            expected.extend(item.drain(..whole).as_slice().as_chunks::<2>().0.iter().map(|s| i16::from_le_bytes(*s)));
            if ends {
                carry.reset();
                item.clear();
            }
            prop_assert_eq!(&samples, &expected);
        }
    }
}

/// What can happen to a resampler.
#[derive(Debug, Clone)]
enum Feed {
    Push(Vec<i16>),
    Flush,
    Reset,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// However a stream is cut, and whatever was there before it: the same samples, as many as belong to its length.
    #[test]
    fn resampler(
        from in prop::sample::select(vec![8_000u32, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000]),
        to in prop::sample::select(vec![8_000u32, 12_000, 16_000, 24_000, 48_000]),
        feeds in prop::collection::vec(prop_oneof![
            6 => prop::collection::vec(any::<i16>(), 0..900).prop_map(Feed::Push),
            1 => Just(Feed::Flush),
            1 => Just(Feed::Reset),
        ], 1..24),
    ) {
        let mut resampler = Resampler::new(from, to).unwrap();
        let (mut out, mut stream) = (Vec::new(), Vec::new());
        for feed in feeds.into_iter().chain([Feed::Flush]) {
            match feed {
                Feed::Push(samples) => {
                    resampler.push(&samples, &mut out);
                    stream.extend(samples);
                    let due = stream.len() as u64 * u64::from(to) / u64::from(from);
                    prop_assert!(out.len() as u64 <= due + 1, "{} of {}", out.len(), due);
                    continue;
                }
                Feed::Flush => {
                    resampler.flush(&mut out);
                    let due = (stream.len() as f64 * f64::from(to) / f64::from(from)).round();
                    prop_assert!((out.len() as f64 - due).abs() <= 1.0, "{} of {}", out.len(), due);
                    let mut whole = Vec::new();
                    let mut other = Resampler::new(from, to).unwrap();
                    other.push(&stream, &mut whole);
                    other.flush(&mut whole);
                    prop_assert_eq!(&out, &whole);
                }
                Feed::Reset => resampler.reset(),
            }
            out.clear();
            stream.clear();
        }
    }
}

#[cfg(feature = "opus")]
mod with_opus {
    use std::sync::LazyLock;

    use watch_audio_media::codec::{Decode, Encode};
    use watch_audio_media::opus::{Decoder, Encoder, EncoderSettings, packet_samples};
    use watch_audio_media::uplink::passing::Passing;

    use super::*;

    const WATCH_RATE: u32 = 16_000;

    fn encoder() -> Encoder {
        Encoder::new(WATCH_RATE, &EncoderSettings::voice()).expect("an encoder")
    }

    /// Three seconds of packets of 10, 20, 40 and 60 ms: a hum that swells and ebbs.
    static PACKETS: LazyLock<Vec<Vec<Vec<u8>>>> = LazyLock::new(|| {
        let sample = |n: usize| ((n as f64 / 8_000.0).sin().max(0.0) * 9_000.0 * (n as f64 / 16.0).sin()) as i16;
        let sound: Vec<i16> = (0..48_000).map(sample).collect();
        let encode = |ms: usize| {
            let mut encoder = encoder();
            let packet = |frame: &[i16]| {
                let mut packet = Vec::new();
                encoder.encode(frame, &mut packet).expect("a frame");
                packet
            };
            sound.chunks_exact(ms * 16).map(packet).collect()
        };
        [10, 20, 40, 60].map(encode).to_vec()
    });

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a Watch sends as Opus, and whenever it is pulled: the stream never stops, each packet is as long as its
        /// slots, and what passes untouched is the Watch's, in its order, each once.
        #[test]
        fn passing(
            length in 0usize..4,
            steps in prop::collection::vec((0u64..150_000, 0u8..20, prop::collection::vec(any::<u8>(), 1..20)), 1..150),
        ) {
            let mut passing = Passing::new(Decoder::new(WATCH_RATE).unwrap(), encoder());
            let mut engine = Decoder::new(WATCH_RATE).unwrap();
            let (mut now, mut heard) = (millis(10), Vec::new());
            let (mut pushed, mut passed, mut untouched) = (Vec::new(), 0, 0);
            for (later, what, noise) in steps {
                now += Duration::from_micros(later);
                let next = &PACKETS[length][pushed.len() % PACKETS[length].len()];
                match what {
                    0..=8 => {
                        passing.push(now, next);
                        pushed.push(next.clone());
                    }
                    9 => passing.push(now, &[]),
                    10 => {
                        passing.push(now, &noise);
                        pushed.push(noise);
                    }
                    11 => passing.push(now, &next[..1]),
                    _ => while passing.next_slot() <= now {
                        let slot = passing.next_slot();
                        let due = passing.pull(now);
                        heard.clear();
                        prop_assert_eq!(packet_samples(due.packet, 48_000), Some(due.frames as usize * 960));
                        if due.untouched {
                            untouched += 1;
                            let place = pushed[passed..].iter().position(|packet| packet == due.packet);
                            passed += place.expect("one of the Watch's, and none before") + 1;
                        } else {
                            prop_assert!(engine.decode(due.packet, &mut heard).is_ok());
                        }
                        prop_assert!(passing.next_slot() > slot);
                    },
                }
                let stats = passing.uplink().stats();
                prop_assert!(stats.queued <= millis(2_820), "{:?}", stats.queued);
                prop_assert_eq!(passing.passed(), untouched);
            }
        }
    }
}
