//! When the host's sound came, against its place in the stream: what can be told of delay and jitter at the Watch's end.

use std::time::Duration;

/// The audio messages of a call in the order in which they came.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    run: u32,
    messages: Vec<Arrival>,
}

/// One audio message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    /// When it came, on the call's time line.
    at: Duration,
    /// How much sound was in it.
    length: Duration,
    /// How much sound waited in the Watch to be played, this message's included.
    waiting: Duration,
    /// Which run of sound without a break it belongs to.
    run: u32,
}

/// A moment on the call's time line, and a time measured then.
pub type Measured = (Duration, Duration);

impl Arrivals {
    /// Takes note of a message that came at `at` with `length` of sound, after which `waiting` was still to be played.
    pub fn push(&mut self, at: Duration, length: Duration, waiting: Duration) {
        if self.messages.len() < MOST && !length.is_zero() {
            self.messages.push(Arrival { at, length, waiting, run: self.run });
        }
    }

    /// What comes next is another run: a new stream, or a new reply.
    pub fn next_run(&mut self) {
        self.run += 1;
    }

    /// By how much less sound had come with each message than time had passed, against the best message of its run.
    /// It rises when sound is late, and stays up where sound was left out. Only of a stream in real time is it a delay.
    pub fn behind(&self) -> Vec<Measured> {
        let mut behind = Vec::with_capacity(self.messages.len());
        for run in self.runs() {
            let offsets: Vec<i128> = offsets(run).collect();
            let best = offsets.iter().min().copied().unwrap_or_default();
            behind.extend(run.iter().zip(offsets).map(|(message, offset)| (message.at, nanos(offset - best))));
        }
        behind
    }

    /// How much sound waited in the Watch with each message.
    pub fn waiting(&self) -> Vec<Measured> {
        self.messages.iter().map(|message| (message.at, message.waiting)).collect()
    }

    /// By how much the time between each message and the one before differed from the sound in it. Where the host keeps
    /// ahead of real time (`ahead`), the beginning of a run comes as fast as it can and does not count.
    pub fn deviations(&self, ahead: bool) -> Vec<Measured> {
        let mut deviations = Vec::with_capacity(self.messages.len());
        for run in self.runs() {
            let offsets: Vec<i128> = offsets(run).collect();
            let best = offsets.iter().min().copied().unwrap_or_default();
            let hurries = |offset: &&i128| ahead && **offset > best + NEARLY_AHEAD.as_nanos() as i128;
            // The last step of its hurry does not count either.
            let first = offsets.iter().take_while(hurries).count() + usize::from(ahead);
            let pairs = offsets.windows(2).zip(&run[1..]).skip(first);
            deviations.extend(pairs.map(|(pair, message)| (message.at, nanos((pair[1] - pair[0]).abs()))));
        }
        deviations
    }

    /// Each message with the ones before and after it that no break parts.
    fn runs(&self) -> impl Iterator<Item = &[Arrival]> {
        self.messages.chunk_by(|one, other| one.run == other.run)
    }
}

/// The interarrival jitter of RFC 3550 (6.4.1) after each deviation.
pub fn jitter(deviations: &[Measured]) -> Vec<Measured> {
    let mut jitter = 0.0;
    let step = |(at, deviation): &Measured| {
        jitter += (deviation.as_secs_f64() - jitter) / 16.0;
        (*at, Duration::from_secs_f64(jitter))
    };
    deviations.iter().map(step).collect()
}

/// Each message's arrival less the end of its place in the run, in nanoseconds.
fn offsets(run: &[Arrival]) -> impl Iterator<Item = i128> {
    let mut place = 0;
    run.iter().map(move |message| {
        place += message.length.as_nanos() as i128;
        message.at.as_nanos() as i128 - place
    })
}

fn nanos(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

/// Half an hour of 20 ms messages, and some.
const MOST: usize = 100_000;
/// The host gives out pieces of 100 ms: so near to the most it was ahead, it no longer hurries.
const NEARLY_AHEAD: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn arrivals(at: &[u64], length: u64) -> Arrivals {
        let mut arrivals = Arrivals::default();
        at.iter().for_each(|at| arrivals.push(ms(*at), ms(length), Duration::ZERO));
        arrivals
    }

    #[test]
    fn a_late_message_is_behind_and_a_left_out_one_stays_so() {
        let behind = arrivals(&[20, 40, 65, 80, 120], 20).behind();
        assert_eq!(behind, [(20, 0), (40, 0), (65, 5), (80, 0), (120, 20)].map(|(at, by)| (ms(at), ms(by))));
    }

    #[test]
    fn a_run_of_its_own_has_a_best_of_its_own() {
        let mut arrivals = arrivals(&[20, 40], 20);
        arrivals.next_run();
        arrivals.push(ms(1000), ms(20), ms(7));
        arrivals.push(ms(1030), ms(20), ms(8));
        assert_eq!(arrivals.behind()[2..], [(ms(1000), ms(0)), (ms(1030), ms(10))]);
        assert_eq!(arrivals.deviations(false), [(ms(40), ms(0)), (ms(1030), ms(10))]);
        assert_eq!(arrivals.waiting()[3], (ms(1030), ms(8)));
    }

    #[test]
    fn a_reply_that_comes_ahead_of_time_counts_once_it_is_ahead() {
        let arrivals = arrivals(&[0, 1, 2, 3, 4, 104, 214, 304], 100);
        assert_eq!(arrivals.deviations(true), [(214, 10), (304, 10)].map(|(at, by)| (ms(at), ms(by))));
    }

    #[test]
    fn jitter_is_smoothed_by_a_sixteenth() {
        let jitter = jitter(&[(ms(0), ms(16)), (ms(20), ms(0))]);
        assert_eq!(jitter, [(ms(0), Duration::from_micros(1000)), (ms(20), Duration::from_nanos(937_500))]);
    }

    #[test]
    fn nothing_comes_of_nothing() {
        let mut arrivals = Arrivals::default();
        arrivals.push(ms(1), Duration::ZERO, ms(1));
        assert!(arrivals.behind().is_empty() && arrivals.deviations(true).is_empty() && jitter(&[]).is_empty());
        arrivals.push(ms(1), ms(1), ms(1));
        assert!(arrivals.deviations(false).is_empty());
    }
}
