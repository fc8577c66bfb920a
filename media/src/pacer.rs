//! Audio that comes faster than real time, let out at real time (`watch-audio.md`, Pacing).
//!
//! An engine like Grok delivers a whole reply within a second or two. Handing it on at once would put minutes of speech
//! where nobody can stop it. So the pacer holds it and gives pieces of 100 ms, never more than [`LEAD`] ahead of what the
//! listener can have played by now. Events keep their place behind the audio that came before them.
//!
//! The deadline of a piece is counted in samples from where the audio began to play, not from the last timer tick: a late
//! tick is made up for by the next one, and after a pause the count begins anew, so that no more than the lead ever
//! follows in a burst (cases 41 and 42).

use core::time::Duration;
use std::collections::VecDeque;

use crate::ledger::ItemKey;
use crate::stats::Histogram;

/// Holds PCM16LE mono audio and events of type `E` in one order, and gives them out when they are due.
#[derive(Debug)]
pub struct Pacer<E> {
    rate: u32,
    piece: Duration,
    queue: VecDeque<Entry<E>>,
    audio_bytes: usize,
    event_bytes: usize,
    plays_until: Duration,
    /// The bytes of the piece given out last.
    current: Vec<u8>,
    wait: Histogram,
    stats: PacerStats,
}

/// What the pacer gives out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paced<'a, E> {
    /// Up to a piece of one item.
    Audio(Piece<'a>),
    /// An event whose turn it is.
    Event(E),
}

/// A piece of one item's audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The item it belongs to.
    pub item: ItemKey,
    /// Where in the item's audio it ends, in samples.
    pub end: u64,
    /// PCM16LE mono, whole samples, at most a piece.
    pub pcm: &'a [u8],
    /// When a listener who plays without a pause has played it.
    pub plays_until: Duration,
}

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacerStats {
    /// Samples given out.
    pub sent: u64,
    /// Samples dropped on purpose, by [`Pacer::drop_audio`].
    pub dropped: u64,
    /// Samples lost because more than [`HOLD`] was waiting: the oldest.
    pub overflowed: u64,
    /// Events lost because more than [`EVENT_BYTES`] was waiting: the oldest.
    pub events_lost: u64,
}

#[derive(Debug)]
enum Entry<E> {
    Audio { item: ItemKey, end: u64, pcm: Vec<u8>, taken: usize, came: Duration },
    Event { event: E, size: usize },
}

impl<E: AsRef<[u8]>> Pacer<E> {
    /// An empty pacer for audio at `rate` Hz, in pieces of [`PIECE`].
    pub fn new(rate: u32) -> Self {
        Self {
            rate,
            piece: PIECE,
            queue: VecDeque::new(),
            audio_bytes: 0,
            event_bytes: 0,
            plays_until: Duration::ZERO,
            current: Vec::new(),
            wait: Histogram::new(),
            stats: PacerStats::default(),
        }
    }

    /// Gives pieces of another length. Audio that comes in whole parts of a piece leaves in whole parts, too.
    #[must_use]
    pub fn in_pieces(self, piece: Duration) -> Self {
        Self { piece, ..self }
    }

    /// Takes audio of an item that came at `now`: PCM16LE, whole samples, any length. `end` is where in the item's audio it
    /// ends, in samples. Past [`HOLD`] the oldest waiting audio goes, counted.
    pub fn push_audio(&mut self, now: Duration, item: ItemKey, end: u64, pcm: Vec<u8>) {
        debug_assert!(pcm.len().is_multiple_of(2), "whole samples");
        if pcm.is_empty() {
            return;
        }
        self.audio_bytes += pcm.len();
        self.queue.push_back(Entry::Audio { item, end, pcm, taken: 0, came: now });
        let hold = self.bytes(HOLD);
        if self.audio_bytes > hold {
            self.lose_oldest_audio(self.audio_bytes - hold);
        }
    }

    /// Takes an event, to be given out once all audio before it is. Past [`EVENT_BYTES`] the oldest waiting event goes.
    pub fn push_event(&mut self, event: E) {
        let size = event.as_ref().len();
        self.event_bytes += size;
        self.queue.push_back(Entry::Event { event, size });
        while self.event_bytes > EVENT_BYTES {
            let Some(oldest) = self.queue.iter().position(|entry| matches!(entry, Entry::Event { .. })) else { break };
            if let Some(Entry::Event { size, .. }) = self.queue.remove(oldest) {
                self.event_bytes -= size;
                self.stats.events_lost += 1;
            }
        }
    }

    /// Whether what comes next is audio.
    pub fn next_is_audio(&self) -> bool {
        matches!(self.queue.front(), Some(Entry::Audio { .. }))
    }

    /// When the next message is due; a time that has passed, or zero, means at once. Nothing waits: `None`.
    pub fn deadline(&self) -> Option<Duration> {
        let item = match self.queue.front()? {
            Entry::Event { .. } => return Some(Duration::ZERO),
            Entry::Audio { item, .. } => *item,
        };
        // What can go as one piece: this item's audio up to the next event or item.
        let whole = self.bytes(self.piece);
        let mut run = 0;
        let mut followed = false;
        for entry in &self.queue {
            match entry {
                Entry::Audio { item: other, pcm, taken, .. } if *other == item && run < whole => {
                    run += pcm.len() - taken
                }
                _ => {
                    followed = true;
                    break;
                }
            }
        }
        Some(if run < whole && !followed {
            // More of it is probably on its way: it is worth waiting for while the listener has something to play.
            self.plays_until.saturating_sub(HURRY)
        } else {
            (self.plays_until + self.duration(run.min(whole))).saturating_sub(LEAD)
        })
    }

    /// The next message, if one is due.
    pub fn poll(&mut self, now: Duration) -> Option<Paced<'_, E>> {
        let due = self.deadline()?;
        if due > now {
            return None;
        }
        if matches!(self.queue.front(), Some(Entry::Audio { .. })) {
            return self.take_piece(now, due).map(Paced::Audio);
        }
        match self.queue.pop_front()? {
            Entry::Event { event, size } => {
                self.event_bytes -= size;
                Some(Paced::Event(event))
            }
            Entry::Audio { .. } => None,
        }
    }

    /// Drops the waiting audio of the chosen items; the events stay, in their order. Answers how many samples went.
    pub fn drop_audio(&mut self, chosen: impl Fn(ItemKey) -> bool) -> u64 {
        let mut bytes = 0;
        self.queue.retain(|entry| match entry {
            Entry::Audio { item, pcm, taken, .. } if chosen(*item) => {
                bytes += pcm.len() - taken;
                false
            }
            _ => true,
        });
        self.audio_bytes -= bytes;
        let samples = bytes as u64 / 2;
        self.stats.dropped += samples;
        samples
    }

    /// The listener threw away what it had not played: what comes next plays at once.
    pub fn listener_flushed(&mut self) {
        self.plays_until = Duration::ZERO;
    }

    /// Audio waiting here.
    pub fn held(&self) -> Duration {
        self.duration(self.audio_bytes)
    }

    /// How long each piece waited after it was due: for a listener, or a link, that takes nothing.
    pub fn delay(&self) -> &Histogram {
        &self.wait
    }

    /// Counts since the beginning.
    pub fn stats(&self) -> PacerStats {
        self.stats
    }

    fn take_piece(&mut self, now: Duration, mut due: Duration) -> Option<Piece<'_>> {
        let whole = self.bytes(self.piece);
        // The item, and where in it the piece ends.
        let mut place: Option<(ItemKey, u64)> = None;
        self.current.clear();
        while let Some(Entry::Audio { item, end, pcm, taken, came }) = self.queue.front_mut() {
            let room = whole - self.current.len();
            if room == 0 || place.is_some_and(|(first, _)| first != *item) {
                break;
            }
            let part = room.min(pcm.len() - *taken);
            self.current.extend_from_slice(&pcm[*taken..*taken + part]);
            *taken += part;
            let left = pcm.len() - *taken;
            place = Some((*item, *end - left as u64 / 2));
            due = due.max(*came);
            if left == 0 {
                self.queue.pop_front();
            }
        }
        let (item, end) = place?;
        let bytes = self.current.len();
        self.wait.record(now.saturating_sub(due));
        self.audio_bytes -= bytes;
        self.stats.sent += bytes as u64 / 2;
        // Where the listener ran dry it plays on from now: this is what keeps a pause from becoming a burst.
        self.plays_until = self.plays_until.max(now) + self.duration(bytes);
        Some(Piece { item, end, pcm: &self.current, plays_until: self.plays_until })
    }

    fn lose_oldest_audio(&mut self, mut excess: usize) {
        self.stats.overflowed += excess as u64 / 2;
        self.audio_bytes -= excess;
        let mut index = 0;
        while excess > 0 {
            match self.queue.get_mut(index) {
                Some(Entry::Audio { pcm, taken, .. }) => {
                    let part = excess.min(pcm.len() - *taken);
                    *taken += part;
                    excess -= part;
                    if *taken == pcm.len() {
                        self.queue.remove(index);
                    }
                }
                Some(Entry::Event { .. }) => index += 1,
                None => break,
            }
        }
    }

    fn bytes(&self, duration: Duration) -> usize {
        let samples = duration.as_millis() as u64 * u64::from(self.rate) / 1000;
        samples as usize * 2
    }

    fn duration(&self, bytes: usize) -> Duration {
        Duration::from_nanos(bytes as u64 / 2 * 1_000_000_000 / u64::from(self.rate))
    }
}

/// A message's audio. Deployed Watches get this much at a time.
pub const PIECE: Duration = Duration::from_millis(100);

/// The most that is given out ahead of real time: it covers a stall of the network, and is what a listener must throw away
/// on an interruption.
pub const LEAD: Duration = Duration::from_millis(1500);

/// What a listener should have left to play when a piece that is not yet whole goes out all the same.
pub const HURRY: Duration = Duration::from_millis(300);

/// The longest reply that is held whole: 28.8 MB at 24 kHz.
pub const HOLD: Duration = Duration::from_secs(600);

/// The most of events that wait behind audio, in bytes.
pub const EVENT_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    const RATE: u32 = 24_000;

    fn keys() -> (ItemKey, ItemKey) {
        let mut ledger = Ledger::new(RATE, false);
        let key = |ledger: &mut Ledger, item| ledger.receive("r", item, 0, vec![0; 2]).unwrap().item;
        (key(&mut ledger, "a"), key(&mut ledger, "b"))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn tone(ms: usize) -> Vec<u8> {
        (0..ms * 24).flat_map(|n| (n as i16).to_le_bytes()).collect()
    }

    /// Polls all that is due, answering the audio's bytes and the events.
    fn drain(pacer: &mut Pacer<Vec<u8>>, now: Duration) -> (usize, Vec<Vec<u8>>) {
        let (mut bytes, mut events) = (0, Vec::new());
        while let Some(paced) = pacer.poll(now) {
            match paced {
                Paced::Audio(piece) => bytes += piece.pcm.len(),
                Paced::Event(event) => events.push(event),
            }
        }
        (bytes, events)
    }

    #[test]
    fn pieces_join_to_the_item_and_say_where_they_end() {
        let (a, b) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        let audio = tone(250);
        pacer.push_audio(ms(0), a, 1_000, audio[..2_000].to_vec());
        pacer.push_audio(ms(0), a, 6_000, audio[2_000..].to_vec());
        pacer.push_audio(ms(0), b, 240, tone(10));
        let mut seen = Vec::new();
        let mut joined = Vec::<u8>::new();
        while let Some(Paced::Audio(piece)) = pacer.poll(ms(0)) {
            seen.push((piece.item == a, piece.end, piece.pcm.len(), piece.plays_until));
            if piece.item == a {
                joined.extend(piece.pcm);
            }
        }
        assert_eq!(
            seen,
            [
                (true, 2_400, 4_800, ms(100)),
                (true, 4_800, 4_800, ms(200)),
                (true, 6_000, 2_400, ms(250)),
                (false, 240, 480, ms(260))
            ]
        );
        assert_eq!(joined, audio);
    }

    #[test]
    fn case_40_ten_minutes_in_twenty_seconds_are_held_whole_and_released_at_real_time() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        let (mut end, mut out, mut now) = (0, 0, ms(0));
        let mut expected: u64 = 0;
        while now < ms(610_000) {
            if now < ms(20_000) {
                let delta = tone(300); // 30 times real time
                end += delta.len() as u64 / 2;
                expected += delta.len() as u64;
                pacer.push_audio(ms(0), a, end, delta);
            }
            out += drain(&mut pacer, now).0 as u64;
            let played = now.as_millis() as u64 * 48;
            assert!(out <= played + 48 * 1_500, "never more than the lead ahead");
            assert!(out >= expected.min(played), "never late at {now:?}");
            now += ms(10);
        }
        assert_eq!((out, end), (expected, 600_000 * 24));
        assert_eq!(pacer.stats(), PacerStats { sent: 600_000 * 24, ..PacerStats::default() });
    }

    #[test]
    fn past_ten_minutes_the_oldest_goes_and_is_counted() {
        let (a, b) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        pacer.push_event(b"first".to_vec());
        for n in 1..=601 {
            pacer.push_audio(ms(0), if n == 1 { b } else { a }, n * 24_000, tone(1_000));
        }
        pacer.push_audio(ms(0), a, 602 * 24_000, tone(500));
        assert_eq!(pacer.held(), HOLD);
        assert_eq!(pacer.stats().overflowed, 36_000);
        assert_eq!(pacer.poll(ms(0)), Some(Paced::Event(b"first".to_vec())));
        let Some(Paced::Audio(piece)) = pacer.poll(ms(0)) else { panic!("audio is due") };
        assert_eq!((piece.item, piece.end), (a, 2 * 24_000 - 12_000 + 2_400), "the place in the item stays true");
    }

    #[test]
    fn events_keep_their_place_and_an_interruption_frees_them() {
        let (a, b) = keys();
        let mut pacer = Pacer::new(RATE);
        pacer.push_event(b"1".to_vec());
        pacer.push_audio(ms(0), a, 48_000, tone(2_000));
        pacer.push_event(b"2".to_vec());
        pacer.push_audio(ms(0), b, 24_000, tone(1_000));
        pacer.push_event(b"3".to_vec());
        assert_eq!(drain(&mut pacer, ms(0)), (1_500 * 48, vec![b"1".to_vec()]));
        assert_eq!(pacer.deadline(), Some(ms(100)));
        assert_eq!(drain(&mut pacer, ms(500)), (500 * 48, vec![b"2".to_vec()]));
        assert_eq!(pacer.drop_audio(|_| true), 24_000);
        assert_eq!(drain(&mut pacer, ms(500)), (0, vec![b"3".to_vec()]));
        assert_eq!(pacer.deadline(), None);
        // The listener has thrown its second and a half away: a new reply gets the whole lead again.
        pacer.listener_flushed();
        pacer.push_audio(ms(0), b, 120_000, tone(4_000));
        assert_eq!(drain(&mut pacer, ms(500)).0, 1_500 * 48);
    }

    #[test]
    fn only_chosen_items_are_dropped() {
        let (a, b) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        pacer.push_audio(ms(0), a, 2_400, tone(100));
        pacer.push_audio(ms(0), b, 2_400, tone(100));
        assert_eq!(pacer.drop_audio(|item| item == a), 2_400);
        assert!(matches!(pacer.poll(ms(0)), Some(Paced::Audio(piece)) if piece.item == b));
        assert_eq!(pacer.held(), ms(0));
    }

    #[test]
    fn events_are_bounded_and_the_oldest_goes_first() {
        let (a, _) = keys();
        let mut pacer = Pacer::new(RATE);
        pacer.push_audio(ms(0), a, 48_000, tone(2_000));
        for n in 0..20_u8 {
            pacer.push_event(vec![n; 60_000]);
        }
        assert_eq!(pacer.stats().events_lost, 3, "17 of 60,000 bytes fit in a mebibyte");
        assert_eq!(drain(&mut pacer, ms(0)).1.len(), 0);
        assert_eq!(drain(&mut pacer, ms(1_000)).1.first().map(|event| event[0]), Some(3));
    }

    #[test]
    fn a_small_piece_waits_for_more_only_while_there_is_something_to_play() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        pacer.push_audio(ms(0), a, 480, tone(20));
        assert_eq!(drain(&mut pacer, ms(0)).0, 20 * 48, "the first sound goes at once");
        pacer.push_audio(ms(0), a, 9_600, tone(380));
        assert_eq!(drain(&mut pacer, ms(0)).0, 300 * 48, "whole pieces; the rest waits, 320 ms are left to play");
        assert_eq!(pacer.deadline(), Some(ms(20)));
        assert_eq!(drain(&mut pacer, ms(19)).0, 0);
        pacer.push_audio(ms(0), a, 9_840, tone(10));
        assert_eq!(drain(&mut pacer, ms(20)).0, 90 * 48);
        // With an event behind it nothing can join it: no wait.
        pacer.push_audio(ms(0), a, 10_320, tone(20));
        pacer.push_event(b"done".to_vec());
        assert_eq!(drain(&mut pacer, ms(20)), (20 * 48, vec![b"done".to_vec()]));
    }

    #[test]
    fn case_41_late_ticks_and_a_stall_leave_no_error() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        pacer.push_audio(ms(0), a, 120_000 * 24, tone(120_000));
        let (mut out, mut now, mut stalled) = (0, ms(0), false);
        loop {
            out += drain(&mut pacer, now).0;
            if now >= ms(60_000) {
                break;
            }
            now = pacer.deadline().unwrap() + ms(3);
            if now > ms(10_000) && !stalled {
                stalled = true;
                now += ms(150);
            }
        }
        let ahead = out as i64 / 48 - now.as_millis() as i64;
        assert!((1_400..=1_500).contains(&ahead), "{ahead} ms ahead after a minute");
    }

    #[test]
    fn case_41_a_sender_a_little_too_fast_is_held_back_to_real_time() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        let mut out = 0;
        for n in 1..=3_000_u64 {
            let now = ms(n * 19);
            pacer.push_audio(ms(0), a, n * 480, tone(20));
            out += drain(&mut pacer, now).0 as u64;
            assert!(out / 48 <= now.as_millis() as u64 + 1_500);
        }
        assert!(pacer.held() + ms(out / 48) == ms(60_000), "nothing is lost");
    }

    #[test]
    fn delay_is_what_a_piece_waited_after_it_was_due() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        // Faster than real time: pacing is no delay, a timer 3 ms late is.
        pacer.push_audio(ms(0), a, 72_000, tone(3_000));
        drain(&mut pacer, ms(0));
        for n in 1..=15 {
            assert_eq!(drain(&mut pacer, ms(n * 100 + 3)).0, 100 * 48);
        }
        assert_eq!((pacer.delay().count(), pacer.delay().max()), (30, ms(3)));
        // In real time: a link that takes nothing for 400 ms.
        pacer.push_audio(ms(10_000), a, 74_400, tone(100));
        pacer.push_audio(ms(10_100), a, 76_800, tone(100));
        assert_eq!(drain(&mut pacer, ms(10_400)).0, 200 * 48);
        assert_eq!(pacer.delay().max(), ms(400));
    }

    #[test]
    fn case_42_after_two_hours_asleep_no_more_than_the_lead_goes_at_once() {
        let (a, _) = keys();
        let mut pacer = Pacer::<Vec<u8>>::new(RATE);
        pacer.push_audio(ms(0), a, 60_000 * 24, tone(60_000));
        drain(&mut pacer, ms(0));
        assert_eq!(drain(&mut pacer, ms(7_200_000)).0, 1_500 * 48);
        assert_eq!(drain(&mut pacer, ms(7_200_100)).0, 100 * 48);
    }
}
