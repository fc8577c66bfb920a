//! How much sound a live speaker holds before it begins: as little as the last seconds' lateness allows.

use std::collections::VecDeque;
use std::time::Duration;

/// Follows how late a stream's messages come, against the best of the last seconds.
#[derive(Debug, Default)]
pub struct Depth {
    /// The audio of the stream so far.
    position: Duration,
    /// When each message came, and where in the audio it begins.
    arrivals: VecDeque<(Duration, Duration)>,
}

impl Depth {
    /// Takes note of a message with so much audio.
    pub fn arrived(&mut self, now: Duration, audio: Duration) {
        if self.arrivals.back().is_some_and(|(last, _)| now > *last + STREAM_ENDS) {
            self.restart();
        }
        self.arrivals.push_back((now, self.position));
        self.position += audio;
        while self.arrivals.len() > MOST
            || self.arrivals.front().is_some_and(|(at, _)| *at + REMEMBERS < now && self.arrivals.len() > 1)
        {
            self.arrivals.pop_front();
        }
    }

    /// Begins a new stream: what comes now says nothing about what came before.
    pub fn restart(&mut self) {
        self.position = Duration::ZERO;
        self.arrivals.clear();
    }

    /// How much to hold now.
    pub fn target(&self) -> Duration {
        // A stream may be ahead of time, and a reply of Grok's is more and more so: it is late where it falls behind the
        // best it has been.
        let ages = self.arrivals.iter().map(|(at, begin)| at.as_nanos() as i128 - begin.as_nanos() as i128);
        let (_, late) = ages.fold((i128::MAX, 0), |(best, late), age| {
            let best = best.min(age);
            (best, late.max(age - best))
        });
        (LEAST + Duration::from_nanos(u64::try_from(late).unwrap_or(u64::MAX))).min(MOST_HELD)
    }
}

/// Two frames, and one more that is just being played.
const LEAST: Duration = Duration::from_millis(60);
/// Later than this is an outage: it is heard as one.
const MOST_HELD: Duration = Duration::from_millis(400);
/// What came this long ago says nothing any more.
const REMEMBERS: Duration = Duration::from_secs(10);
/// Messages further apart are no stream: Grok's replies, or an outage.
const STREAM_ENDS: Duration = Duration::from_secs(1);
/// Twice the messages of 20 ms in that time.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_steady_stream_needs_the_least() {
        let mut depth = Depth::default();
        for n in 0..1000 {
            depth.arrived(ms(n * 20), ms(20));
        }
        assert_eq!(depth.target(), LEAST);
    }

    #[test]
    fn lateness_deepens_it_and_is_forgotten() {
        let mut depth = Depth::default();
        for n in 0..100 {
            let late = if n == 50 { 90 } else { 0 };
            depth.arrived(ms(n * 20 + late), ms(20));
        }
        assert_eq!(depth.target(), LEAST + ms(90));
        for n in 100..700 {
            depth.arrived(ms(n * 20), ms(20));
        }
        assert_eq!(depth.target(), LEAST);
    }

    #[test]
    fn a_reply_ahead_of_time_and_one_much_later_need_no_more() {
        let mut depth = Depth::default();
        for start in [0, 7000] {
            for n in 0..50 {
                depth.arrived(ms(start + n), ms(100));
            }
            assert_eq!(depth.target(), LEAST);
        }
    }

    #[test]
    fn an_outage_is_bounded() {
        let mut depth = Depth::default();
        depth.arrived(ms(0), ms(20));
        depth.arrived(ms(900), ms(20));
        assert_eq!(depth.target(), MOST_HELD);
    }
}
