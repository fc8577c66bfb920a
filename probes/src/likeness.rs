//! Finds a sample in what was played, and says how alike the two are: so that tests judge sound as sound.

/// Where a sample was found in a recording of the same rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The sample's first sample in the recording.
    pub at: usize,
    /// How alike their loudness goes, block for block: 1 is the same, 0 is nothing in common.
    pub loudness: f64,
    /// How alike their waveforms are there: 1 is the same. A codec takes a little of it.
    pub waveform: f64,
}

/// The place in `recording` that is most like `sample`; none when the recording is shorter. Both at `rate` Hz.
pub fn find(sample: &[i16], recording: &[i16], rate: u32) -> Option<Found> {
    let block = rate as usize / 1000 * BLOCK_MS;
    if sample.len() < block * 10 || recording.len() < sample.len() {
        return None;
    }
    let (wanted, heard) = (loudness(sample, block), loudness(recording, block));
    let last = heard.len() - wanted.len();
    let (loudness, coarse) = (0..=last)
        .map(|at| (likeness(&wanted, &heard[at..at + wanted.len()]), at))
        .max_by(|(one, _), (other, _)| one.total_cmp(other))?;

    // The block is known; the waveform of the loudest second tells the sample.
    let length = sample.len().min(rate as usize);
    let loudest =
        (0..=sample.len() - length).step_by(block).max_by_key(|&from| energy(&sample[from..from + length]))?;
    let wanted: Vec<f64> = sample[loudest..loudest + length].iter().map(|&s| f64::from(s)).collect();
    let middle = coarse * block + loudest;
    let lags = middle.saturating_sub(2 * block)..=(middle + 2 * block).min(recording.len() - length);
    let (waveform, at) = lags
        .map(|at| {
            let heard: Vec<f64> = recording[at..at + length].iter().map(|&s| f64::from(s)).collect();
            (cosine(&wanted, &heard), at)
        })
        .max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    Some(Found { at: at.saturating_sub(loudest), loudness, waveform })
}

/// Finds a sample in what was played, whole, at its own speed, and once.
///
/// # Errors
/// What is wrong with what was played, in words.
pub fn heard_once(sample: &[i16], recording: &[i16], rate: u32) -> Result<Found, String> {
    let find = |sample, recording| find(sample, recording, rate).ok_or("it is shorter than the sample");
    let whole = find(sample, recording)?;
    if whole.loudness < 0.95 || whole.waveform < 0.8 {
        return Err(format!("it is not whole: {whole:?}"));
    }
    // Both halves stand where they stand in the sample, to 10 ms: nothing was left out, put in or stretched.
    let half = sample.len() / 2;
    for (half, at) in [(&sample[..half], whole.at), (&sample[half..], whole.at + half)] {
        let found = find(half, recording)?;
        if found.at.abs_diff(at) > rate as usize / 100 {
            return Err(format!("its speed is not the sample's: {found:?}, not at {at}"));
        }
    }
    let mut rest = recording.to_vec();
    rest[whole.at..(whole.at + sample.len()).min(recording.len())].fill(0);
    let again = find(sample, &rest)?;
    if again.waveform > 0.5 { Err(format!("it is heard twice: {again:?}")) } else { Ok(whole) }
}

/// The root mean square of each block.
fn loudness(samples: &[i16], block: usize) -> Vec<f64> {
    samples.chunks_exact(block).map(|block| (energy(block) as f64 / block.len() as f64).sqrt()).collect()
}

fn energy(samples: &[i16]) -> u64 {
    samples.iter().map(|&sample| u64::from(sample.unsigned_abs()).pow(2)).sum()
}

/// Pearson's correlation.
fn likeness(one: &[f64], other: &[f64]) -> f64 {
    let around_mean = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect::<Vec<_>>()
    };
    cosine(&around_mean(one), &around_mean(other))
}

fn cosine(one: &[f64], other: &[f64]) -> f64 {
    let (mut both, mut ones, mut others) = (0.0, 0.0, 0.0);
    for (a, b) in one.iter().zip(other) {
        both += a * b;
        ones += a * a;
        others += b * b;
    }
    if ones == 0.0 || others == 0.0 { 0.0 } else { both / (ones * others).sqrt() }
}

/// Fine enough to follow syllables, coarse enough to search a whole call.
const BLOCK_MS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Syllables of uneven length and loudness.
    fn speech() -> Vec<i16> {
        let mut samples = Vec::new();
        for syllable in 0..12_usize {
            let (length, hertz) = (1200 + syllable * 331 % 1700, 150.0 + (syllable * 47 % 120) as f64);
            let tone = (0..length).map(|n| (n as f64 * hertz / 8000.0 * std::f64::consts::TAU).sin());
            samples.extend(tone.map(|s| (s * (3000.0 + 1500.0 * (syllable % 4) as f64)) as i16));
            samples.extend(vec![0; 400 + syllable * 577 % 900]);
        }
        samples
    }

    #[test]
    fn a_sample_is_found_to_the_sample() {
        let sample = speech();
        let mut recording = vec![3; 20_123];
        recording.extend(sample.iter().map(|s| s / 2));
        recording.extend(vec![-3; 9_000]);
        let found = find(&sample, &recording, 8000).unwrap();
        assert_eq!(found.at, 20_123);
        assert!(found.waveform > 0.999 && found.loudness > 0.97, "{found:?}");
    }

    #[test]
    fn another_speed_or_a_hole_is_less_alike() {
        let sample = speech();
        let mut fast: Vec<i16> = sample.chunks_exact(10).flat_map(|ten| ten[..9].to_vec()).collect();
        fast.extend(vec![0; 20_000]);
        let found = find(&sample, &fast, 8000).unwrap();
        assert!(found.loudness < 0.9, "{found:?}");
        let mut holed = sample.clone();
        holed[4000..8000].fill(0);
        assert!(find(&sample, &holed, 8000).unwrap().loudness < 0.95);
        assert!(heard_once(&sample, &fast, 8000).is_err() && heard_once(&sample, &holed, 8000).is_err());
    }

    #[test]
    fn a_sample_is_heard_once_or_twice() {
        let sample = speech();
        let mut recording = vec![3; 5_000];
        recording.extend(&sample);
        recording.extend(vec![-3; 5_000]);
        assert_eq!(heard_once(&sample, &recording, 8000).unwrap().at, 5_000);
        recording.extend(&sample);
        assert!(heard_once(&sample, &recording, 8000).is_err());
    }
}
