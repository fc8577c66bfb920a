//! The shape of a sound: its lowest and highest sample in each 10 ms, which is all that a picture shows.

use std::time::Duration;

/// The outline of a sound on the call's time line, with holes where there was none.
#[derive(Debug, Clone, Default)]
pub struct Waveform {
    bins: Vec<Option<(i16, i16)>>,
}

impl Waveform {
    /// Puts samples at a place on the time line. The rate is in Hz.
    pub fn put(&mut self, at: Duration, rate: u32, samples: &[i16]) {
        let first = usize::try_from(at.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
        let per_bin = (rate as usize / BINS_A_SECOND).max(1);
        for (n, samples) in samples.chunks(per_bin).enumerate() {
            let place = first.saturating_add(n);
            if place >= MOST {
                return;
            }
            if place >= self.bins.len() {
                self.bins.resize(place + 1, None);
            }
            let outline = samples.iter().fold(None, |outline, sample| widened(outline, (*sample, *sample)));
            self.bins[place] = outline.map_or(self.bins[place], |outline| widened(self.bins[place], outline));
        }
    }

    /// The outline in columns that each stand for so much time, the first one beginning at zero.
    pub fn columns(&self, column: Duration) -> Vec<Option<(i16, i16)>> {
        let bins = usize::try_from(column.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX).max(1);
        let outline = |bins: &[Option<(i16, i16)>]| bins.iter().flatten().fold(None, |all, bin| widened(all, *bin));
        self.bins.chunks(bins).map(outline).collect()
    }

    /// The stretches in which there was sound, silence included: from when to when.
    pub fn stretches(&self) -> Vec<(Duration, Duration)> {
        let stretches = self.bins.chunk_by(|one, other| one.is_some() == other.is_some());
        let mut from = 0;
        let placed = stretches.map(|bins| {
            from += bins.len();
            (bins[0].is_some(), BIN * (from - bins.len()) as u32, BIN * from as u32)
        });
        placed.filter(|(sound, ..)| *sound).map(|(_, from, to)| (from, to)).collect()
    }

    /// Where its last sample is.
    pub fn end(&self) -> Duration {
        BIN * self.bins.len() as u32
    }
}

fn widened(outline: Option<(i16, i16)>, (low, high): (i16, i16)) -> Option<(i16, i16)> {
    Some(outline.map_or((low, high), |(lowest, highest)| (lowest.min(low), highest.max(high))))
}

const BIN: Duration = Duration::from_millis(10);
const BINS_A_SECOND: usize = 100;
/// An hour, twice what a grant lives.
const MOST: usize = 3600 * BINS_A_SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn it_has_the_outline_of_what_was_put_and_holes_between() {
        let mut waveform = Waveform::default();
        waveform.put(ms(20), 1000, &[1, -2, 3, 0, 0, 0, 0, 0, 0, 0, 7]);
        waveform.put(ms(60), 1000, &[-9]);
        waveform.put(ms(60), 1000, &[4]);
        assert_eq!(waveform.columns(ms(10)), [None, None, Some((-2, 3)), Some((7, 7)), None, None, Some((-9, 4))]);
        assert_eq!(waveform.columns(ms(40)), [Some((-2, 7)), Some((-9, 4))]);
        assert_eq!(waveform.stretches(), [(ms(20), ms(40)), (ms(60), ms(70))]);
        assert_eq!(waveform.end(), ms(70));
    }

    #[test]
    fn odd_places_and_rates_do_no_harm() {
        let mut waveform = Waveform::default();
        waveform.put(Duration::MAX, 48_000, &[1; 4800]);
        waveform.put(ms(0), 0, &[]);
        waveform.put(ms(3_599_990), 8000, &[5; 8000]);
        assert_eq!(waveform.end(), Duration::from_secs(3600));
        assert!(Waveform::default().columns(Duration::ZERO).is_empty());
    }
}
