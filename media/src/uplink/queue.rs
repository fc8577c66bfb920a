//! Samples in a row, taken from the front: a slice at any time, without moving the rest on each take.

/// A queue of samples.
#[derive(Debug, Default)]
pub(super) struct Queue {
    samples: Vec<i16>,
    head: usize,
}

impl Queue {
    pub(super) fn with_capacity(samples: usize) -> Self {
        Self { samples: Vec::with_capacity(samples), head: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len() - self.head
    }

    pub(super) fn as_slice(&self) -> &[i16] {
        &self.samples[self.head..]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [i16] {
        &mut self.samples[self.head..]
    }

    pub(super) fn push(&mut self, samples: &[i16]) {
        // What was taken makes room before anything grows.
        if self.head > 0 && self.samples.len() + samples.len() > self.samples.capacity() {
            self.samples.drain(..self.head);
            self.head = 0;
        }
        self.samples.extend_from_slice(samples);
    }

    /// Takes the first `count` samples off, all if there are fewer.
    pub(super) fn skip(&mut self, count: usize) {
        self.head = (self.head + count).min(self.samples.len());
        if self.head == self.samples.len() {
            self.samples.clear();
            self.head = 0;
        }
    }

    /// How much fits without growing.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.samples.capacity()
    }
}
