//! What of an engine's replies was received, sent and heard, item by item (`watch-audio.md`, Pacing and Extensions).
//!
//! On an interruption the engine must forget what nobody heard. It knows what it generated, which is far ahead of what was
//! played; only here the two meet. A listener that reports its playout ([`Ledger::played`]) is believed. For all others what
//! was heard is what was sent, less the lead still ahead of real time, less what the listener buffers before it plays.
//!
//! The ledger also knows which replies are over for the listener although the engine may still be sending them: their
//! late audio is refused, by reply and by item (case 39).

use core::time::Duration;
use std::collections::VecDeque;

/// Names an item of the ledger in the queues between engine and listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemKey(u64);

/// The account of one session. Positions are samples of the item's own audio.
#[derive(Debug)]
pub struct Ledger {
    rate: u32,
    playout: bool,
    /// Audio comes out in multiples of so many bytes.
    grain: usize,
    items: VecDeque<Item>,
    next_key: u64,
    /// Replies whose audio is refused.
    refused: VecDeque<String>,
    /// The reply the engine is at, and whether any audio of it came.
    current: Option<(String, bool)>,
    received: u64,
    /// Heard of items that are no longer kept.
    heard_before: u64,
}

/// Audio taken in.
#[derive(Debug, PartialEq, Eq)]
pub struct Received {
    /// The item it belongs to.
    pub item: ItemKey,
    /// Where in the item it ends, in samples.
    pub end: u64,
    /// Whole grains; the last of an item is filled up with silence, which `end` does not count.
    pub pcm: Vec<u8>,
}

/// How it is known where the listener stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped<'a> {
    /// It is not: reckon by the clock.
    Reckoned,
    /// By the last report of its playout.
    LastPlayed,
    /// It said so: in this item, after so many milliseconds.
    At(&'a str, u64),
}

/// What to tell the engine: this item was heard up to here, and nothing after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncation {
    /// The item's id.
    pub item: String,
    /// Which part of the item is its audio.
    pub content_index: u64,
    /// Heard of it, in milliseconds, rounded down; never zero, never more than was received.
    pub ms: u64,
}

#[derive(Debug)]
struct Item {
    key: ItemKey,
    id: String,
    reply: String,
    content_index: u64,
    received: u64,
    sent: u64,
    /// When a listener without a pause has played all that was sent.
    plays_until: Duration,
    /// What the listener reported.
    played: u64,
    /// No more audio will come.
    done: bool,
    fate: Fate,
    /// What is no whole grain yet.
    rest: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    /// Interrupted when about so much was heard; not settled yet.
    Cut(u64),
    /// Interrupted, and this is what was heard.
    Settled(u64),
}

impl Ledger {
    /// An empty ledger for PCM16 mono at `rate` Hz. `playout` says whether the listener reports what it plays.
    pub fn new(rate: u32, playout: bool) -> Self {
        Self {
            rate,
            playout,
            grain: SAMPLE,
            items: VecDeque::new(),
            next_key: 0,
            refused: VecDeque::new(),
            current: None,
            received: 0,
            heard_before: 0,
        }
    }

    /// Lets audio out in whole grains of so many samples, as a codec wants it: what is left over waits for the item's next
    /// bytes, at its end for [`Ledger::tail`]. Without this a grain is one sample (case 7).
    #[must_use]
    pub fn in_grains(self, samples: usize) -> Self {
        Self { grain: samples.max(1) * SAMPLE, ..self }
    }

    /// The engine has begun a reply: those before it get no more audio, whether or not their end was announced.
    pub fn reply_started(&mut self, reply: &str) {
        self.items.iter_mut().filter(|item| item.reply != reply).for_each(Item::finish);
        self.refused.retain(|refused| !refused.is_empty());
        if self.current.as_ref().is_none_or(|(current, _)| current != reply) {
            self.current = Some((reply.to_owned(), false));
        }
    }

    /// The engine has ended a reply, completed or not. Without a name it is the one the engine is at.
    pub fn reply_done(&mut self, reply: &str) {
        let reply = self.name(reply).to_owned();
        self.items.iter_mut().filter(|item| item.reply == reply).for_each(Item::finish);
        self.refused.retain(|refused| !refused.is_empty());
        if self.current.as_ref().is_some_and(|(current, _)| *current == reply) {
            self.current = None;
        }
    }

    /// The engine has sent all of an item's audio.
    pub fn item_done(&mut self, item: &str) {
        self.items.iter_mut().filter(|known| known.id == item).for_each(Item::finish);
    }

    /// Takes an item's next bytes, PCM16LE in any cut, and lets whole grains out; `None` if nobody wants to hear them any
    /// more. Audio without a reply's name belongs to the one the engine is at; the first audio implies its reply (case 43).
    ///
    /// The bytes come out in the memory they came in, which grows only where more was left over before than is now.
    pub fn receive(&mut self, reply: &str, item: &str, content_index: u64, mut pcm: Vec<u8>) -> Option<Received> {
        let name = self.name(reply);
        let known = self.items.iter().rposition(|known| {
            known.id == item && (!item.is_empty() || (known.reply == name && known.fate == Fate::Live))
        });
        let refused = self.refused.iter().any(|refused| refused == name);
        if refused || known.is_some_and(|at| self.items[at].fate != Fate::Live) {
            return None;
        }
        let speaks = pcm.len() > 1;
        match &mut self.current {
            Some((current, spoke)) if reply.is_empty() || current == reply => *spoke |= speaks,
            current => *current = Some((reply.to_owned(), speaks)),
        }
        let at = known.unwrap_or_else(|| self.add(item));
        let item = &mut self.items[at];
        item.content_index = content_index;
        let before = item.rest.len();
        let whole = (before + pcm.len()) / self.grain * self.grain;
        item.rest.extend(pcm.drain(whole.saturating_sub(before)..));
        if whole > 0 {
            pcm.splice(..0, item.rest.drain(..before));
        }
        let samples = (pcm.len() / SAMPLE) as u64;
        item.received += samples;
        self.received += samples;
        Some(Received { item: item.key, end: item.received, pcm })
    }

    /// The last, incomplete grain of an item that is done, filled up with silence. To be asked for until there is none,
    /// after each call that may have ended an item and before anything that comes behind its audio.
    pub fn tail(&mut self) -> Option<Received> {
        let item =
            self.items.iter_mut().find(|item| item.done && item.fate == Fate::Live && item.rest.len() >= SAMPLE)?;
        let mut pcm = std::mem::take(&mut item.rest);
        let samples = pcm.len() / SAMPLE;
        pcm.truncate(samples * SAMPLE);
        pcm.resize(self.grain, 0);
        item.received += samples as u64;
        self.received += samples as u64;
        Some(Received { item: item.key, end: item.received, pcm })
    }

    /// Some of an item's bytes were unreadable, nobody knows how many: half a sample kept from before fits nothing now.
    pub fn lost_bytes(&mut self, item: &str) {
        self.items.iter_mut().filter(|known| known.id == item).for_each(Item::drop_half);
    }

    /// A piece of an item went out, ending at `end`; a listener without a pause has played it at `plays_until`.
    pub fn sent(&mut self, key: ItemKey, end: u64, plays_until: Duration) {
        if let Some(item) = self.items.iter_mut().find(|item| item.key == key) {
            item.sent = end;
            item.plays_until = plays_until;
        }
    }

    /// The listener has played an item up to `ms` milliseconds.
    pub fn played(&mut self, item: &str, ms: u64) {
        let samples = self.samples(ms);
        if let Some(item) = self.items.iter_mut().rfind(|known| known.id == item) {
            item.played = item.played.max(samples.min(item.sent));
        }
    }

    /// Whether a reply is being heard or about to be: what the user says now is said over it.
    pub fn speaking(&self, now: Duration) -> bool {
        self.current.as_ref().is_some_and(|(reply, spoke)| *spoke && !self.refused.contains(reply))
            || self.items.iter().any(|item| !item.over(now, self.playout))
    }

    /// The engine was told to cancel a reply, or (`None`) whatever it is at: audio not sent never will be, and what still
    /// comes is refused. Answers the items concerned.
    pub fn cancel(&mut self, reply: Option<&str>) -> Vec<ItemKey> {
        let mut replies: Vec<String> = match reply {
            Some(reply) => vec![reply.to_owned()],
            None => self.current.iter().map(|(current, _)| current.clone()).collect(),
        };
        let mut keys = Vec::new();
        for item in self.items.iter_mut().filter(|item| item.fate == Fate::Live) {
            if reply.is_none_or(|reply| reply == item.reply) && (!item.done || item.sent < item.received) {
                item.received = item.sent;
                item.rest.clear();
                item.finish();
                keys.push(item.key);
                replies.push(item.reply.clone());
            }
        }
        self.refuse(replies);
        keys
    }

    /// The user spoke over the reply: all that was not heard out is cut here, and late audio of it is refused. What to tell
    /// the engine comes from [`Ledger::settle`]. Answers whether the engine is still at one of the replies cut.
    pub fn interrupt(&mut self, now: Duration) -> bool {
        let mut replies: Vec<String> = Vec::new();
        let running = match &self.current {
            Some((current, true)) => {
                replies.push(current.clone());
                true
            }
            _ => false,
        };
        for item in self.items.iter_mut().filter(|item| !item.over(now, self.playout)) {
            item.rest.clear();
            item.fate = Fate::Cut(item.reckoned(now, self.rate));
            replies.push(item.reply.clone());
        }
        self.refuse(replies);
        running
    }

    /// Settles the last interruption, once. The item being heard is to be truncated where the listener stopped; nothing is
    /// said of items heard out, nor of those not heard at all.
    pub fn settle(&mut self, stopped: Stopped<'_>) -> Option<Truncation> {
        let stop = match stopped {
            Stopped::At(id, ms) => {
                let samples = self.samples(ms);
                self.items.iter().rposition(|item| item.is_cut() && item.id == id).map(|at| (at, samples))
            }
            Stopped::Reckoned | Stopped::LastPlayed => None,
        };
        let mut being_heard = None;
        for (at, item) in self.items.iter_mut().enumerate() {
            let Fate::Cut(reckoned) = item.fate else { continue };
            let heard = match (stop, stopped) {
                // The listener went through all before the item it stopped in, and heard nothing after it.
                (Some((stop, _)), _) if at < stop => item.sent,
                (Some((stop, samples)), _) if at == stop => samples.min(item.sent),
                (Some(_), _) => 0,
                (None, Stopped::Reckoned) => reckoned,
                (None, _) => item.played,
            };
            item.fate = Fate::Settled(heard);
            if heard > 0 {
                being_heard = Some((&*item, heard));
            }
        }
        let (item, heard) = being_heard?;
        let ms = heard * 1000 / u64::from(self.rate);
        let heard_out = item.done && heard >= item.received;
        (ms > 0 && !heard_out && !item.id.is_empty()).then(|| Truncation {
            item: item.id.clone(),
            content_index: item.content_index,
            ms,
        })
    }

    /// The id of an item.
    pub fn id(&self, key: ItemKey) -> Option<&str> {
        self.items.iter().rfind(|item| item.key == key).map(|item| item.id.as_str())
    }

    /// Samples received since the beginning, refused ones not counted.
    pub fn received_in_all(&self) -> u64 {
        self.received
    }

    /// Samples heard since the beginning, as far as is known at `now`.
    pub fn heard_in_all(&self, now: Duration) -> u64 {
        let heard = |item: &Item| match item.fate {
            Fate::Cut(heard) | Fate::Settled(heard) => heard,
            Fate::Live if self.playout => item.played,
            Fate::Live => item.reckoned(now, self.rate),
        };
        self.heard_before + self.items.iter().map(heard).sum::<u64>()
    }

    fn name<'a>(&'a self, reply: &'a str) -> &'a str {
        match &self.current {
            Some((current, _)) if reply.is_empty() => current,
            _ => reply,
        }
    }

    /// Adds an item of the reply the engine is at.
    fn add(&mut self, id: &str) -> usize {
        if self.items.len() == ITEMS
            && let Some(oldest) = self.items.pop_front()
        {
            self.heard_before += match oldest.fate {
                Fate::Live => oldest.sent,
                Fate::Cut(heard) | Fate::Settled(heard) => heard,
            };
        }
        let reply = self.current.as_ref().map(|(current, _)| current.clone()).unwrap_or_default();
        let key = ItemKey(self.next_key);
        self.next_key += 1;
        self.items.push_back(Item {
            key,
            id: id.to_owned(),
            reply,
            content_index: 0,
            received: 0,
            sent: 0,
            plays_until: Duration::ZERO,
            played: 0,
            done: false,
            fate: Fate::Live,
            rest: Vec::new(),
        });
        self.items.len() - 1
    }

    fn refuse(&mut self, replies: Vec<String>) {
        for reply in replies {
            if !self.refused.contains(&reply) {
                self.refused.push_back(reply);
            }
        }
        while self.refused.len() > REFUSED {
            self.refused.pop_front();
        }
    }

    fn samples(&self, ms: u64) -> u64 {
        ms.saturating_mul(u64::from(self.rate)) / 1000
    }
}

impl Item {
    /// All of its audio is here. An item cut before that stays unfinished: there was more to it than anybody heard.
    fn finish(&mut self) {
        self.done |= self.fate == Fate::Live;
        self.drop_half();
    }

    /// Half a sample that nothing will complete.
    fn drop_half(&mut self) {
        self.rest.truncate(self.rest.len() / SAMPLE * SAMPLE);
    }

    fn is_cut(&self) -> bool {
        matches!(self.fate, Fate::Cut(_))
    }

    /// Heard by the clock: what was sent, less what lies ahead of real time, less what the listener buffers.
    fn reckoned(&self, now: Duration, rate: u32) -> u64 {
        let ahead = (self.plays_until + LISTENER_BUFFER).saturating_sub(now);
        let ahead = ahead.as_micros() as u64 * u64::from(rate) / 1_000_000;
        self.sent.saturating_sub(ahead)
    }

    /// Nothing of it is left to hear.
    fn over(&self, now: Duration, playout: bool) -> bool {
        if self.fate != Fate::Live {
            return true;
        }
        let by_clock = self.plays_until + LISTENER_BUFFER;
        let heard_out = if playout { self.played >= self.sent || now >= by_clock + REPORT } else { now >= by_clock };
        self.done && self.sent >= self.received && heard_out
    }
}

/// Bytes of a sample.
const SAMPLE: usize = 2;

/// What a deployed Watch buffers before it begins to play: 150 to 200 ms of speech.
pub const LISTENER_BUFFER: Duration = Duration::from_millis(200);

/// How late a listener's report of its playout may be before the clock is believed instead.
const REPORT: Duration = Duration::from_secs(2);

/// Items kept. A reply has a handful, and nobody asks for those of replies long gone.
const ITEMS: usize = 64;

/// Replies remembered as refused. Late audio follows its interruption within seconds.
const REFUSED: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn audio(ms: usize) -> Vec<u8> {
        vec![0; ms * 48]
    }

    /// Receives and at once sends `length` ms of an item that began to play at `from`.
    fn play(ledger: &mut Ledger, reply: &str, item: &str, length: usize, sent: u64, from: u64) {
        let received = ledger.receive(reply, item, 0, audio(length)).unwrap();
        ledger.sent(received.item, sent * 24, ms(from + sent));
    }

    fn truncation(item: &str, ms: u64) -> Option<Truncation> {
        Some(Truncation { item: item.into(), content_index: 0, ms })
    }

    #[test]
    fn case_7_an_odd_cut_is_mended_within_the_item_and_ends_with_it() {
        let ramp: Vec<u8> = (0..4_800_i16).flat_map(i16::to_le_bytes).collect();
        let mut ledger = Ledger::new(RATE, false);
        let first = ledger.receive("r", "a", 0, ramp[..4_801].to_vec()).unwrap();
        let second = ledger.receive("r", "a", 0, ramp[4_801..].to_vec()).unwrap();
        assert_eq!((first.end, second.end), (2_400, 4_800));
        assert_eq!([first.pcm, second.pcm].concat(), ramp);
        // Interleaved items keep their halves apart; an item's end drops its half.
        assert_eq!(ledger.receive("r", "a", 0, vec![1, 2, 3]).unwrap().pcm, [1, 2]);
        assert_eq!(ledger.receive("r", "b", 0, vec![9, 9]).unwrap().pcm, [9, 9]);
        assert_eq!(ledger.receive("r", "a", 0, vec![4]).unwrap().pcm, [3, 4]);
        assert_eq!(ledger.receive("r", "a", 0, vec![5]).unwrap().pcm, [0_u8; 0]);
        ledger.item_done("a");
        assert_eq!(ledger.receive("r", "a", 0, vec![6, 7]).unwrap().pcm, [6, 7]);
        assert_eq!(ledger.receive("r", "b", 0, vec![8]).unwrap().pcm, [0_u8; 0]);
        ledger.lost_bytes("b");
        assert_eq!(ledger.receive("r", "b", 0, vec![6, 7]).unwrap().pcm, [6, 7]);
        assert_eq!(ledger.tail(), None, "half a sample is no tail");
    }

    #[test]
    fn in_grains_what_is_left_over_waits_and_an_items_end_is_filled_up() {
        let ramp: Vec<u8> = (0..1_000_i16).flat_map(i16::to_le_bytes).collect();
        let mut ledger = Ledger::new(RATE, false).in_grains(480);
        let first = ledger.receive("r", "a", 0, ramp[..961].to_vec()).unwrap();
        let item = first.item;
        assert_eq!((first.end, first.pcm.len()), (480, 960));
        let second = ledger.receive("r", "a", 0, ramp[961..1_919].to_vec()).unwrap();
        assert_eq!((second.end, second.pcm.len()), (480, 0));
        let third = ledger.receive("r", "a", 0, ramp[1_919..].to_vec()).unwrap();
        assert_eq!((third.end, ledger.received_in_all()), (960, 960));
        assert_eq!(ledger.tail(), None, "more of it may come");
        ledger.sent(item, 960, ms(40));
        ledger.item_done("a");
        assert!(ledger.speaking(ms(500)), "the tail is still to be heard");
        let tail = ledger.tail().unwrap();
        assert_eq!((tail.item, tail.end, ledger.received_in_all()), (item, 1_000, 1_000));
        assert_eq!([first.pcm, third.pcm, tail.pcm].concat(), [&ramp[..], &[0; 880]].concat());
        assert_eq!(ledger.tail(), None);

        // Nobody hears the tail of what was interrupted or cancelled.
        ledger.receive("r", "b", 0, vec![1; 2_000]).unwrap();
        ledger.interrupt(ms(600));
        ledger.reply_done("r");
        ledger.receive("s", "c", 0, vec![1; 2_000]).unwrap();
        ledger.cancel(None);
        assert_eq!(ledger.tail(), None);
    }

    #[test]
    fn case_35_only_the_item_being_heard_is_truncated_at_what_was_heard() {
        let mut ledger = Ledger::new(RATE, false);
        play(&mut ledger, "r1", "a", 9_250, 9_250, 0);
        ledger.reply_done("r1");
        assert!(ledger.speaking(ms(9_449)));
        assert!(!ledger.speaking(ms(9_450)));
        // B plays from 20 s on; 2.7 of its 3 s are sent when the user speaks 1.2 s into it.
        play(&mut ledger, "r2", "b", 3_000, 2_700, 20_000);
        assert!(ledger.interrupt(ms(21_200)));
        assert_eq!(ledger.settle(Stopped::Reckoned), truncation("b", 1_000));
        assert_eq!(ledger.settle(Stopped::Reckoned), None, "once");
        assert_eq!(ledger.heard_in_all(ms(60_000)), (9_250 + 1_000) * 24);
    }

    #[test]
    fn case_35_never_more_than_received_never_zero() {
        let mut ledger = Ledger::new(RATE, false);
        // The engine stalled after half a second: by the clock more was played than there is.
        play(&mut ledger, "r1", "a", 500, 500, 0);
        ledger.interrupt(ms(30_000));
        assert_eq!(ledger.settle(Stopped::Reckoned), truncation("a", 500));
        // Sent a moment ago: nothing was heard of it.
        play(&mut ledger, "r2", "b", 5_000, 1_500, 40_000);
        ledger.interrupt(ms(40_150));
        assert_eq!(ledger.settle(Stopped::Reckoned), None);
        // Announced, no audio yet: no reply to speak over.
        ledger.reply_started("r3");
        assert!(!ledger.speaking(ms(50_000)));
    }

    #[test]
    fn case_37_the_tail_can_be_interrupted_and_later_items_are_left_alone() {
        let mut ledger = Ledger::new(RATE, false);
        play(&mut ledger, "r1", "a", 8_000, 4_500, 0);
        ledger.receive("r1", "b", 0, audio(2_000)).unwrap();
        ledger.reply_done("r1");
        assert!(ledger.speaking(ms(3_000)));
        assert!(!ledger.interrupt(ms(3_000)), "the engine had ended it long before");
        assert_eq!(ledger.settle(Stopped::Reckoned), truncation("a", 2_800));
        assert!(!ledger.speaking(ms(3_001)));
    }

    #[test]
    fn case_39_late_audio_is_refused_by_reply_and_by_item() {
        let mut ledger = Ledger::new(RATE, false);
        ledger.reply_started("r1");
        play(&mut ledger, "r1", "a", 1_000, 1_000, 0);
        ledger.interrupt(ms(500));
        assert_eq!(ledger.receive("r1", "a", 0, audio(100)), None);
        assert_eq!(ledger.receive("", "x", 0, audio(100)), None, "nameless audio belongs to the reply at hand");
        assert_eq!(ledger.receive("r1", "new item", 0, audio(100)), None);
        ledger.reply_done("r1");
        ledger.reply_started("r2");
        assert!(ledger.receive("r2", "b", 0, audio(100)).is_some());
        assert_eq!(ledger.receive("r1", "c", 0, audio(100)), None);
        assert_eq!(ledger.receive("odd", "a", 0, audio(100)), None);
        assert!(ledger.receive("r2", "b", 0, audio(100)).is_some());
        assert_eq!(ledger.received_in_all(), 1_200 * 24, "refused audio is not counted");
    }

    #[test]
    fn replies_and_items_without_names_are_cut_and_come_back() {
        let mut ledger = Ledger::new(RATE, false);
        play(&mut ledger, "", "", 1_000, 1_000, 0);
        ledger.interrupt(ms(500));
        assert_eq!(ledger.settle(Stopped::Reckoned), None, "there is no name to truncate");
        assert_eq!(ledger.receive("", "", 0, audio(100)), None);
        ledger.reply_done("");
        assert!(ledger.receive("", "", 0, audio(100)).is_some());
    }

    #[test]
    fn a_cancel_concerns_the_reply_it_names() {
        let mut ledger = Ledger::new(RATE, false);
        play(&mut ledger, "r1", "a", 2_000, 1_500, 0);
        ledger.reply_started("r2");
        play(&mut ledger, "r2", "b", 2_000, 0, 0);
        assert_eq!(ledger.cancel(Some("r1")).len(), 1);
        assert_eq!(ledger.receive("r1", "a", 0, audio(10)), None);
        assert!(ledger.receive("r2", "b", 0, audio(10)).is_some());
        assert_eq!(ledger.cancel(None).len(), 1);
        assert_eq!(ledger.receive("r2", "b", 0, audio(10)), None);
        // What was sent plays on, and can still be interrupted.
        assert!(ledger.speaking(ms(1_000)));
        ledger.interrupt(ms(1_000));
        assert_eq!(ledger.settle(Stopped::Reckoned), truncation("a", 800));
    }

    #[test]
    fn a_listener_that_reports_is_believed_to_the_sample() {
        let mut ledger = Ledger::new(RATE, true);
        play(&mut ledger, "r1", "a", 2_000, 2_000, 0);
        play(&mut ledger, "r1", "b", 2_000, 1_000, 2_000);
        ledger.played("a", 1_900);
        ledger.interrupt(ms(2_000));
        assert_eq!(ledger.settle(Stopped::At("b", 321)), truncation("b", 321));
        assert_eq!(ledger.heard_in_all(ms(2_000)), 2_321 * 24);

        play(&mut ledger, "r2", "c", 2_000, 1_000, 5_000);
        ledger.interrupt(ms(5_500));
        ledger.played("c", 300);
        ledger.played("c", 200);
        assert_eq!(ledger.settle(Stopped::LastPlayed), truncation("c", 300));

        play(&mut ledger, "r3", "d", 2_000, 1_000, 8_000);
        ledger.interrupt(ms(8_500));
        assert_eq!(ledger.settle(Stopped::At("d", 99_999)), truncation("d", 1_000), "never more than was sent");

        play(&mut ledger, "r4", "e", 2_000, 1_000, 9_000);
        ledger.played("e", 400);
        ledger.interrupt(ms(9_500));
        assert_eq!(ledger.settle(Stopped::At("unknown", 50)), truncation("e", 400));

        play(&mut ledger, "r5", "f", 1_000, 1_000, 20_000);
        ledger.item_done("f");
        play(&mut ledger, "r5", "g", 1_000, 500, 21_000);
        ledger.interrupt(ms(21_000));
        assert_eq!(ledger.settle(Stopped::At("f", 1_000)), None, "heard out, and nothing of the next");
    }

    #[test]
    fn with_reports_an_item_is_over_when_the_last_one_came_or_is_long_overdue() {
        let mut ledger = Ledger::new(RATE, true);
        play(&mut ledger, "r1", "a", 1_000, 1_000, 0);
        ledger.reply_done("r1");
        assert!(ledger.speaking(ms(2_000)), "the network may be slow");
        assert!(!ledger.speaking(ms(3_200)));
        ledger.played("a", 1_000);
        assert!(!ledger.speaking(ms(1_000)));
    }

    #[test]
    fn a_thousand_items_need_no_more_room_than_the_bound() {
        let mut ledger = Ledger::new(RATE, false);
        for n in 0..1_000_u64 {
            play(&mut ledger, &format!("r{n}"), &format!("i{n}"), 100, 100, n * 1_000);
            if n % 3 == 0 {
                ledger.interrupt(ms(n * 1_000));
                ledger.settle(Stopped::Reckoned);
            }
        }
        assert_eq!((ledger.items.len(), ledger.refused.len()), (ITEMS, REFUSED));
        assert_eq!(ledger.received_in_all(), 100_000 * 24);
        assert_eq!(ledger.heard_in_all(ms(2_000_000)), 666 * 100 * 24);
    }
}
