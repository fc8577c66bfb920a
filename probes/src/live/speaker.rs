//! From the playout to a device's speaker: any rate, any number of channels, and what was heard by when.
//!
//! The call's clock and the device's differ. The ring between them is kept about as full as the device's blocks need: what
//! is too much is left out, and what is too little is added, where it is quiet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use watch_audio_media::pcm::{QUIET_PEAK, peak};
use watch_audio_media::resample::{RateError, Resampler};

use crate::live::ring::{Reader, Writer, ring};
use crate::playout::{Mark, RATE};

/// A speaker that plays at `rate` Hz in `channels` channels: the callback's end and the task's.
///
/// # Errors
/// When the rate is no rate of sound.
pub fn speaker(rate: u32, channels: u16) -> Result<(Render, Speaker), RateError> {
    let resampler = Resampler::new(RATE, rate)?;
    let (writer, reader) = ring(frames(RING, rate));
    let clock = Arc::new(Clock::default());
    let render = Render { ring: reader, clock: Arc::clone(&clock), rate, channels: usize::from(channels.max(1)) };
    let speaker = Speaker {
        ring: writer,
        clock,
        rate,
        resampler,
        made: Vec::new(),
        marks: VecDeque::new(),
        margin: MARGIN,
        added: 0,
        shed: 0,
    };
    Ok((render, speaker))
}

/// What the callback says about its time.
#[derive(Debug, Default)]
struct Clock {
    /// When the ring's first frame would have been heard, had all come without a gap, in ns.
    zero: AtomicI64,
    /// The largest block that was asked for, in frames.
    block: AtomicUsize,
}

/// The callback's end of a speaker.
#[derive(Debug)]
pub struct Render {
    ring: Reader,
    clock: Arc<Clock>,
    rate: u32,
    channels: usize,
}

impl Render {
    /// Fills a block of interleaved samples, with silence where there is nothing; neither waits nor allocates. The block's
    /// first frame will be heard at `heard`.
    pub fn fill<T: Copy>(&mut self, heard: Duration, block: &mut [T], convert: impl Fn(i16) -> T) {
        let first = self.ring.taken();
        let wanted = block.len() / self.channels;
        let mut places = block.chunks_exact_mut(self.channels);
        let taken = self.ring.take(wanted, |sample| {
            if let Some(frame) = places.next() {
                frame.fill(convert(sample));
            }
        });
        places.for_each(|frame| frame.fill(convert(0)));
        self.clock.block.fetch_max(wanted, Ordering::Relaxed);
        if taken > 0 {
            let zero = nanos(heard) - nanos(time(first, self.rate));
            self.clock.zero.store(zero, Ordering::Release);
        }
    }
}

/// The task's end of a speaker.
pub struct Speaker {
    ring: Writer,
    clock: Arc<Clock>,
    rate: u32,
    resampler: Resampler,
    made: Vec<i16>,
    /// Marks, each with the number of frames before it.
    marks: VecDeque<(u64, Mark)>,
    /// What the ring holds beside one block: more after each time it ran dry.
    margin: Duration,
    added: u64,
    shed: u64,
}

impl Speaker {
    /// Plays samples at 24 kHz, in the call's own time: silence too.
    pub fn play(&mut self, samples: &[i16]) {
        let block = self.clock.block.load(Ordering::Relaxed);
        let waiting = self.ring.waiting();
        if waiting == 0 && self.ring.written() > 0 {
            self.margin = (self.margin + MARGIN_STEP).min(MOST_MARGIN);
        }
        let level = block + frames(self.margin, self.rate);
        let quiet = peak(samples) <= QUIET_PEAK;
        if quiet && waiting > level + block + frames(MARGIN, self.rate) {
            self.shed += 1;
            return;
        }
        // Run dry, or about to where nobody hears it.
        let lacking = if waiting == 0 {
            level
        } else if quiet && waiting < block + frames(LOW, self.rate) {
            level / 2
        } else {
            0
        };
        self.added += self.ring.push(std::iter::repeat_n(0, lacking)) as u64;
        self.made.clear();
        self.resampler.push(samples, &mut self.made);
        // A device that takes nothing leaves no room: what is too late by then is not worth keeping.
        self.ring.push(self.made.iter().copied());
    }

    /// A mark behind all samples played so far.
    pub fn mark(&mut self, mark: Mark) {
        if self.marks.len() < MARKS {
            self.marks.push_back((self.ring.written(), mark));
        }
    }

    /// The marks behind what has been heard at this time, on the line of the callback's `heard`.
    pub fn take_heard(&mut self, now: Duration) -> Vec<Mark> {
        let since = nanos(now) - self.clock.zero.load(Ordering::Acquire);
        let heard = u64::try_from(i128::from(since) * i128::from(self.rate) / 1_000_000_000).unwrap_or(0);
        let heard = heard.min(self.ring.taken());
        std::iter::from_fn(|| self.marks.pop_front_if(|(frame, _)| *frame <= heard)).map(|(_, mark)| mark).collect()
    }

    /// Drops the marks that are not reached.
    pub fn forget_marks(&mut self) {
        self.marks.clear();
    }
}

impl std::fmt::Debug for Speaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speaker")
            .field("rate", &self.rate)
            .field("added", &self.added)
            .field("shed", &self.shed)
            .finish_non_exhaustive()
    }
}

fn frames(time: Duration, rate: u32) -> usize {
    (time.as_micros() * u128::from(rate) / 1_000_000) as usize
}

fn time(frames: u64, rate: u32) -> Duration {
    Duration::from_secs_f64(frames as f64 / f64::from(rate))
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// What the ring holds at most: a device that comes back after a moment finds no more than this to catch up.
const RING: Duration = Duration::from_millis(400);
/// What the ring holds beside one block of the device: a tick of the task, and that it may be late once.
const MARGIN: Duration = Duration::from_millis(20);
/// A machine on which the task comes later is busy: it gets so much more, each time …
const MARGIN_STEP: Duration = Duration::from_millis(10);
/// … up to this.
const MOST_MARGIN: Duration = Duration::from_millis(120);
/// With less than this beside one block, the ring may run dry with the next.
const LOW: Duration = Duration::from_millis(5);
/// The host sends one mark for each 100 ms or so; a speaker that takes nothing must not collect them.
const MARKS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of 48 kHz that asks for 10 ms at a time, `ppm` faster than the call's clock.
    struct Device {
        render: Render,
        period: f64,
        next: f64,
        heard: Vec<i16>,
    }

    impl Device {
        fn new(render: Render, ppm: f64) -> Self {
            Self { render, period: 0.01 / (1.0 + ppm / 1e6), next: 0.003, heard: Vec::new() }
        }

        fn run(&mut self, until: Duration) {
            while self.next <= until.as_secs_f64() {
                let mut block = [0_i16; 2 * 480];
                let heard = Duration::from_secs_f64(self.next) + LATENCY;
                self.render.fill(heard, &mut block, |sample| sample);
                assert!(block.chunks_exact(2).all(|frame| frame[0] == frame[1]));
                self.heard.extend(block.iter().step_by(2));
                self.next += self.period;
            }
        }
    }

    const LATENCY: Duration = Duration::from_millis(30);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn mark(ms: u64) -> Mark {
        Mark { item: "a".into(), epoch: 0, ms }
    }

    #[test]
    fn clocks_that_differ_are_made_up_for_where_it_is_quiet() {
        for ppm in [-2000.0, 2000.0] {
            let (render, mut speaker) = speaker(48_000, 2).unwrap();
            let mut device = Device::new(render, ppm);
            let (mut longest, mut fullest) = (0, 0);
            for tick in 1..=6_000_u64 {
                // Three seconds of sound, then one of quiet, for a minute.
                let level = if tick % 400 < 300 { 9000 } else { 0 };
                speaker.play(&[level; 240]);
                device.run(ms(tick * 10));
                fullest = fullest.max(speaker.ring.waiting());
                if tick > 100 && tick % 400 == 290 {
                    // In the middle of the sound nothing is missing.
                    let tail = &device.heard[device.heard.len() - 48_000 * 2..];
                    longest = longest.max(tail.iter().filter(|sample| **sample == 0).count());
                }
            }
            assert_eq!(longest, 0, "{ppm} ppm: a hole within the sound");
            assert!(fullest <= 48 * 70, "{ppm} ppm: {fullest} frames wait");
            assert!(speaker.added > 0 && (ppm > 0.0 || speaker.shed > 0), "{speaker:?}");
        }
    }

    #[test]
    fn a_mark_is_heard_when_its_sound_has_left_the_speaker() {
        let (render, mut speaker) = speaker(48_000, 2).unwrap();
        let mut device = Device::new(render, 0.0);
        let mut passed = None;
        for tick in 1..=100_u64 {
            let now = ms(tick * 10);
            speaker.play(&[if tick <= 50 { 9000 } else { 0 }; 240]);
            if tick == 50 {
                speaker.mark(mark(500));
            }
            device.run(now);
            if !speaker.take_heard(now).is_empty() {
                passed.get_or_insert(now);
            }
        }
        // The device's frames begin at 3 ms, and are heard 30 ms later.
        let last = device.heard.iter().rposition(|sample| sample.unsigned_abs() > 4000).unwrap();
        let heard = ms(3) + LATENCY + time(last as u64, 48_000);
        let passed = passed.unwrap();
        assert!(passed >= heard.saturating_sub(ms(3)) && passed <= heard + ms(15), "{passed:?}, sound until {heard:?}");
    }

    #[test]
    fn a_device_that_takes_nothing_passes_no_marks_and_is_caught_up_with() {
        let (render, mut speaker) = speaker(48_000, 2).unwrap();
        let mut device = Device::new(render, 0.0);
        for tick in 1..=300_u64 {
            speaker.play(&[9000; 240]);
            speaker.mark(mark(tick * 10));
            assert!(speaker.take_heard(ms(tick * 10)).is_empty());
        }
        assert!(speaker.ring.waiting() <= frames(RING, 48_000));
        speaker.forget_marks();
        device.next = 3.0;
        for tick in 301..=400_u64 {
            speaker.play(&[0; 240]);
            device.run(ms(tick * 10));
        }
        assert!(speaker.ring.waiting() <= 48 * 60, "{}", speaker.ring.waiting());
    }

    #[test]
    fn a_task_that_comes_late_runs_dry_a_few_times_only() {
        let (render, mut speaker) = speaker(48_000, 2).unwrap();
        let mut device = Device::new(render, 0.0);
        let mut added = [0; 2];
        for round in 1..=200_u64 {
            // Each tenth of a second the task sleeps through 60 ms of it.
            for late in [60, 10, 10, 10, 10] {
                let now = device.next.max(0.0);
                speaker.play(&vec![9000; late * 24]);
                device.run(Duration::from_secs_f64(now + late as f64 / 1000.0 - 0.0101));
            }
            added[usize::from(round > 20)] = speaker.added;
        }
        assert!(added[0] > 0 && added[1] == added[0], "{added:?}");
    }
}
