//! Finding where sound repeats itself.

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

/// Looks at every few lags first, then closely around the best.
fn best(lags: std::ops::RangeInclusive<usize>, rate: u32, score: impl Fn(usize) -> f32) -> usize {
    let (from, to) = (*lags.start(), *lags.end());
    if from > to {
        return 0;
    }
    let stride = (rate as usize / 8_000).max(1);
    let at = |lags: &mut dyn Iterator<Item = usize>| {
        lags.map(|lag| (lag, score(lag))).fold((0, f32::MIN), |best, next| if next.1 > best.1 { next } else { best }).0
    };
    let rough = at(&mut lags.step_by(stride));
    at(&mut (rough.saturating_sub(stride).max(from)..=(rough + stride).min(to)))
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
