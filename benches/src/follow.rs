//! Finds every [mark](crate::marks) again in what came out, and so how long each was under way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::FRAME;
use crate::marks::{Marks, TONES, hz};

/// The sound that came out, and when each piece of it did.
#[derive(Debug)]
pub struct Heard {
    /// At [`RATE`].
    pcm: Vec<f32>,
    /// Keeps one sample of so many.
    step: usize,
    /// How many of the next samples to leave out before the first one kept.
    skip: usize,
    /// When each piece came, and where in `pcm` it ends.
    pieces: Vec<(Instant, usize)>,
}

impl Heard {
    /// For sound at `rate`, a multiple of 8000 Hz. Marks have nothing above 4 kHz, so samples are just left out.
    pub fn new(rate: u32) -> Self {
        Self { pcm: Vec::new(), step: (rate / RATE) as usize, skip: 0, pieces: Vec::new() }
    }

    /// The next piece, which came at `at`.
    pub fn push(&mut self, at: Instant, pcm: &[i16]) {
        self.pcm.extend(pcm.iter().skip(self.skip).step_by(self.step).map(|sample| f32::from(*sample)));
        self.skip = (self.skip + self.step - pcm.len() % self.step) % self.step;
        self.pieces.push((at, self.pcm.len()));
    }

    /// When each piece came.
    pub fn arrivals(&self) -> impl Iterator<Item = Instant> {
        self.pieces.iter().map(|(at, _)| *at)
    }

    /// When the sample at `position` came, and how much of its piece is before it.
    fn came(&self, position: usize) -> Option<(Instant, Duration)> {
        let piece = self.pieces.partition_point(|(_, end)| *end <= position);
        let start = piece.checked_sub(1).map_or(0, |before| self.pieces[before].1);
        let before = Duration::from_secs_f64((position - start) as f64 / f64::from(RATE));
        self.pieces.get(piece).map(|(at, _)| (*at, before))
    }

    /// The samples that came within `times`.
    fn within(&self, times: Range<Instant>) -> Range<usize> {
        let start = |time| match self.pieces.partition_point(|(at, _)| *at < time) {
            0 => 0,
            piece => self.pieces[piece - 1].1,
        };
        start(times.start)..start(times.end)
    }

    /// The share of each tone in the 20 ms from every [`HOP`]th sample on.
    fn shares(&self) -> Vec<[f32; TONES]> {
        let waves: Vec<[Vec<f32>; 2]> = (0..TONES).map(wave).collect();
        let windows = self.pcm.windows(FRAME_SAMPLES).step_by(HOP);
        windows
            .map(|window| {
                let energy = product(window, window).max(QUIET_ENERGY);
                std::array::from_fn(|tone| {
                    let [sine, cosine] = &waves[tone];
                    (product(window, sine).powi(2) + product(window, cosine).powi(2)) * 2.0
                        / (FRAME_SAMPLES as f32 * energy)
                })
            })
            .collect()
    }
}

/// One mark, and how long it took.
#[derive(Debug, Clone, Copy)]
pub struct Followed {
    /// Which frame of the sound it is, silence included.
    pub frame: usize,
    /// From the moment its whole frame was handed over until the message with its first sample was there. `None` when it
    /// was never heard.
    pub delay: Option<Duration>,
    /// How much of that message comes before it.
    pub inside: Duration,
}

impl Followed {
    /// From its first sample, 20 ms before the frame was whole, to the same sample in what came out: what the encoder's
    /// frame, both codecs' lookahead and the message add to [`Followed::delay`] counts here.
    pub fn sample_to_sample(&self) -> Option<Duration> {
        Some(FRAME + self.delay? + self.inside)
    }
}

/// Looks for each mark, frame `n` of which was handed over at `sent[n]`.
///
/// Those that are plain to hear are found first, wherever they are; sound keeps its order, so those that do not are
/// mistakes. The others, which a codec at few bits or in repair has
/// blurred, have to be where a plain one before or after them puts them.
pub fn follow(marks: &Marks, sent: &[Instant], heard: &Heard) -> Vec<Followed> {
    let shares = heard.shares();
    let find = |pair: [usize; 2], hops: Range<usize>, enough: f32| {
        let likeness = |hop: &usize| 2.0 * (shares[*hop][pair[0]] * shares[*hop][pair[1]]).sqrt();
        let best = hops.max_by(|a, b| likeness(a).total_cmp(&likeness(b)).then(b.cmp(a)));
        best.filter(|hop| likeness(hop) >= enough)
    };
    let within = |sent: Instant| {
        let came = heard.within(sent..sent + LONGEST_DELAY);
        came.start.div_ceil(HOP)..came.end.div_ceil(HOP).min(shares.len())
    };
    let all = || marks.frames().iter().zip(sent).enumerate().filter_map(|(n, (pair, sent))| Some((n, (*pair)?, *sent)));
    let plain = all().filter_map(|(frame, pair, sent)| Some((frame, find(pair, within(sent), PLAIN)?)));
    let plain = in_order(&plain.collect::<Vec<_>>());
    let look = |(frame, pair, sent): (usize, [usize; 2], Instant)| {
        let before = plain.range(..=frame).next_back().map(|(other, hop)| hop + FRAME_HOPS * (frame - other));
        let after = plain.range(frame..).next().and_then(|(other, hop)| hop.checked_sub(FRAME_HOPS * (other - frame)));
        let place = [before, after].into_iter().flatten().find_map(|hop| {
            let (near, came) = (hop.saturating_sub(NEAR_HOPS)..hop + NEAR_HOPS + 1, within(sent));
            find(pair, near.start.max(came.start)..near.end.min(came.end), BLURRED)
        });
        let came = place.and_then(|hop| heard.came(hop * HOP));
        let (delay, inside) = came.map(|(at, inside)| (at.saturating_duration_since(sent), inside)).unzip();
        Followed { frame, delay, inside: inside.unwrap_or_default() }
    };
    all().map(look).collect()
}

/// The most of these frames and their places that there are in the order of both.
fn in_order(found: &[(usize, usize)]) -> BTreeMap<usize, usize> {
    // For each, how many there are in order up to it, and the one before it then.
    let mut chains: Vec<(usize, Option<usize>)> = Vec::with_capacity(found.len());
    for (n, (_, place)) in found.iter().enumerate() {
        let before = (0..n).filter(|before| found[*before].1 < *place).max_by_key(|before| chains[*before].0);
        chains.push((before.map_or(0, |before| chains[before].0) + 1, before));
    }
    let mut next = (0..found.len()).max_by_key(|n| chains[*n].0);
    let mut ordered = BTreeMap::new();
    while let Some(n) = next {
        ordered.insert(found[n].0, found[n].1);
        next = chains[n].1;
    }
    ordered
}

/// 20 ms of a tone, as sine and cosine.
fn wave(tone: usize) -> [Vec<f32>; 2] {
    let angle = |n: usize| n as f64 * hz(tone) * std::f64::consts::TAU / f64::from(RATE);
    [
        (0..FRAME_SAMPLES).map(|n| angle(n).sin() as f32).collect(),
        (0..FRAME_SAMPLES).map(|n| angle(n).cos() as f32).collect(),
    ]
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// In Hz: enough for the tones, and light to look through.
const RATE: u32 = 8_000;
const FRAME_SAMPLES: usize = 160;
/// 1 ms.
const HOP: usize = 8;
/// No delay seen was longer; the sound is silent for as long at its end.
const LONGEST_DELAY: Duration = Duration::from_millis(2_900);
/// Twice the mean share of the two tones: 1 for the mark alone. Above this, one mark in a thousand is taken for another.
const PLAIN: f32 = 0.5;
/// What a mark still has after FEC; concealment, which goes on with the one before, has less.
const BLURRED: f32 = 0.1;
/// How far from its place a mark may seem to be, in ms.
const NEAR_HOPS: usize = 2;
const FRAME_HOPS: usize = FRAME_SAMPLES / HOP;
/// A mean amplitude of 80 over one frame: below it there is no mark, only noise.
const QUIET_ENERGY: f32 = 80.0 * 80.0 * FRAME_SAMPLES as f32;

#[cfg(test)]
mod tests {
    use super::*;

    /// The delays found, in ms, when frame `n` comes out `late(n)` ms after it was sent, or not at all.
    fn delays(late: impl Fn(u64) -> Option<u64>) -> Vec<Option<u128>> {
        let start = Instant::now();
        let marks = Marks::new(200);
        let sent: Vec<_> = (0..marks.frames().len() as u32).map(|n| start + FRAME * n).collect();
        let mut heard = Heard::new(24_000);
        for ((n, frame), sent) in marks.pcm(24_000).chunks_exact(480).enumerate().zip(&sent) {
            if let Some(late) = late(n as u64) {
                heard.push(*sent + Duration::from_millis(late), frame);
            }
        }
        follow(&marks, &sent, &heard).iter().map(|mark| mark.delay.map(|delay| delay.as_millis())).collect()
    }

    #[test]
    fn a_steady_delay_is_found() {
        let delays = delays(|_| Some(80));
        assert_eq!(delays.len(), 160);
        assert!(delays.iter().all(|delay| *delay == Some(80)), "{delays:?}");
    }

    #[test]
    fn from_sample_to_sample_counts_the_frame_and_the_place_in_the_message() {
        let start = Instant::now();
        let marks = Marks::new(100);
        let sent: Vec<_> = (1..=marks.frames().len() as u32).map(|n| start + FRAME * n).collect();
        let mut heard = Heard::new(24_000);
        // Five frames a message, which leaves with its last.
        for (n, message) in marks.pcm(24_000).chunks_exact(5 * 480).enumerate() {
            heard.push(start + FRAME * 5 * (n as u32 + 1), message);
        }
        for mark in follow(&marks, &sent, &heard) {
            assert_eq!(mark.sample_to_sample(), Some(FRAME * 5), "the first and the last of a message alike");
        }
    }

    #[test]
    fn what_is_out_of_order_is_left_out() {
        let ordered = in_order(&[(1, 10), (2, 20), (3, 900), (4, 40), (6, 5), (7, 70)]);
        assert_eq!(ordered.into_iter().collect::<Vec<_>>(), [(1, 10), (2, 20), (4, 40), (7, 70)]);
    }

    #[test]
    fn a_growing_delay_and_missing_frames_are_found() {
        let delays = delays(|n| match n {
            0..100 => Some(80),
            n if n % 10 == 0 => None,
            _ => Some(1_500),
        });
        assert_eq!(delays.iter().filter(|delay| **delay == Some(80)).count(), 50);
        assert_eq!(delays.iter().filter(|delay| delay.is_none()).count(), 11);
        assert_eq!(delays.iter().filter(|delay| **delay == Some(1_500)).count(), 99);
    }
}
