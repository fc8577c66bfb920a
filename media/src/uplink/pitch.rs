//! Finding where sound repeats itself.

use std::ops::RangeInclusive;

/// How much sound [`period`] looks at, in samples: 30 ms.
pub(super) fn reach(rate: u32) -> usize {
    longest(rate) + window(rate)
}

/// The lag after which the end of `past` best repeats itself; 0 when there is too little of it or only silence.
pub(super) fn period(past: &[i16], rate: u32) -> usize {
    let window = window(rate);
    let Some(longest) = past.len().checked_sub(window).map(|most| most.min(longest(rate))) else { return 0 };
    let end = &past[past.len() - window..];
    if end.iter().all(|sample| *sample == 0) {
        return 0;
    }
    best(shortest(rate)..=longest, rate, |lag| {
        let start = past.len() - window - lag;
        similarity(end, &past[start..start + window])
    })
}

/// The lag, at most `longest` samples, after which `ahead` best repeats its own start, and how alike the two are (-1 to
/// 1). A piece of this length can be taken out without a seam. `None` when `ahead` is too short.
pub(super) fn cut(ahead: &[i16], longest: usize, rate: u32) -> Option<(usize, f32)> {
    let window = window(rate);
    let longest = ahead.len().checked_sub(window)?.min(longest);
    let similar = |lag| similarity(&ahead[..window], &ahead[lag..lag + window]);
    let lag = best(shortest(rate)..=longest, rate, similar);
    (lag > 0).then(|| (lag, similar(lag)))
}

/// The shortest lag worth a look: 2.5 ms, 400 Hz.
pub(super) fn shortest(rate: u32) -> usize {
    rate as usize / 400
}

/// The longest lag: 15 ms, 67 Hz.
pub(super) fn longest(rate: u32) -> usize {
    rate as usize * 15 / 1_000
}

/// What is compared, and blended: 10 ms.
pub(super) fn window(rate: u32) -> usize {
    rate as usize / 100
}

/// The best lag; of several that are about as good the longest, which is several periods. Looks at every few first.
fn best(lags: RangeInclusive<usize>, rate: u32, score: impl Fn(usize) -> f32) -> usize {
    let (from, to) = (*lags.start(), *lags.end());
    if from > to {
        return 0;
    }
    let stride = (rate as usize / 8_000).max(1);
    let falling = lags.rev().step_by(stride);
    let most = falling.clone().map(&score).fold(f32::MIN, f32::max);
    let rough = falling.clone().find(|lag| score(*lag) >= most - NEARLY).unwrap_or(from);
    // The way up from the long side of the peak.
    let mut lag = rough;
    while lag > from && score(lag - 1) > score(lag) {
        lag -= 1;
    }
    lag
}

/// Normalized cross-correlation, -1 to 1.
fn similarity(a: &[i16], b: &[i16]) -> f32 {
    let (mut product, mut energy_a, mut energy_b) = (0i64, 0i64, 0i64);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (i64::from(*a), i64::from(*b));
        product += a * b;
        energy_a += a * a;
        energy_b += b * b;
    }
    product as f32 / ((energy_a as f32).sqrt() * (energy_b as f32).sqrt() + 1.0)
}

/// A correlation this much below the best is as good.
const NEARLY: f32 = 0.05;
