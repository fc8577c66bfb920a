//! A bounded queue of samples between a device's callback and a task: neither ever waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicI16, AtomicU64, Ordering};

/// A queue for this many samples. What finds no room is dropped by whoever writes.
pub fn ring(capacity: usize) -> (Writer, Reader) {
    let shared = Arc::new(Shared {
        samples: (0..capacity.max(1)).map(|_| AtomicI16::new(0)).collect(),
        written: AtomicU64::new(0),
        read: AtomicU64::new(0),
    });
    (Writer(Arc::clone(&shared)), Reader(shared))
}

/// The end that samples go into.
#[derive(Debug)]
pub struct Writer(Arc<Shared>);

/// The end that samples come out of.
#[derive(Debug)]
pub struct Reader(Arc<Shared>);

/// One side alone moves each count, so plain loads of one's own are exact; the other's count is acquired, which makes the
/// samples before it visible.
#[derive(Debug)]
struct Shared {
    samples: Box<[AtomicI16]>,
    written: AtomicU64,
    read: AtomicU64,
}

impl Shared {
    fn slot(&self, position: u64) -> &AtomicI16 {
        &self.samples[(position % self.samples.len() as u64) as usize]
    }

    fn waiting(&self) -> usize {
        let read = self.read.load(Ordering::Acquire);
        self.written.load(Ordering::Acquire).saturating_sub(read) as usize
    }
}

impl Writer {
    /// Appends samples as far as there is room; says how many.
    pub fn push(&mut self, samples: impl IntoIterator<Item = i16>) -> usize {
        let shared = &self.0;
        let written = shared.written.load(Ordering::Relaxed);
        let room = shared.samples.len() - shared.waiting();
        let mut count = 0;
        for sample in samples.into_iter().take(room) {
            shared.slot(written + count).store(sample, Ordering::Relaxed);
            count += 1;
        }
        shared.written.store(written + count, Ordering::Release);
        count as usize
    }

    /// How many samples wait to be taken.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// How many samples were put in in all.
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// How many samples were taken in all.
    pub fn taken(&self) -> u64 {
        self.0.read.load(Ordering::Acquire)
    }
}

impl Reader {
    /// Takes up to `most` samples, one call each; says how many.
    pub fn take(&mut self, most: usize, mut sample: impl FnMut(i16)) -> usize {
        let shared = &self.0;
        let read = shared.read.load(Ordering::Relaxed);
        let count = shared.waiting().min(most);
        for position in read..read + count as u64 {
            sample(shared.slot(position).load(Ordering::Relaxed));
        }
        shared.read.store(read + count as u64, Ordering::Release);
        count
    }

    /// How many samples were taken in all.
    pub fn taken(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_takes_no_more_and_keeps_what_it_has() {
        let (mut writer, mut reader) = ring(4);
        assert_eq!(writer.push([1, 2, 3]), 3);
        let mut out = Vec::new();
        assert_eq!(reader.take(2, |sample| out.push(sample)), 2);
        assert_eq!(writer.push([4, 5, 6, 7]), 3);
        assert_eq!(writer.waiting(), 4);
        assert_eq!(reader.take(10, |sample| out.push(sample)), 4);
        assert_eq!(out, [1, 2, 3, 4, 5, 6]);
        assert_eq!((writer.written(), writer.taken()), (6, 6));
    }

    #[test]
    fn two_threads_pass_every_sample_once_and_in_order() {
        let (mut writer, mut reader) = ring(64);
        let sender = std::thread::spawn(move || {
            let mut next = 0..20_000_i32;
            let mut pending: Vec<i16> = Vec::new();
            loop {
                pending.extend(next.by_ref().take(50).map(|n| n as i16));
                if pending.is_empty() {
                    return;
                }
                let taken = writer.push(pending.iter().copied());
                pending.drain(..taken);
                std::thread::yield_now();
            }
        });
        let mut out = Vec::new();
        while out.len() < 20_000 {
            if reader.take(33, |sample| out.push(sample)) == 0 {
                std::thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert!(out.iter().enumerate().all(|(n, sample)| *sample == n as i16));
    }
}
