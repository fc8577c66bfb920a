//! From figures to places on an axis, and back to words.

/// An axis: which figure is at its beginning, which at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// From one figure to another; figures that are equal or none get room around them.
    pub fn new(from: f64, to: f64) -> Self {
        match (drawable(from), drawable(to)) {
            (true, true) if to > from => Self { from, to, log: false },
            (true, _) => {
                Self { from: from.min(0.0), to: if from > 0.0 { from } else { from.min(0.0) + 1.0 }, log: false }
            }
            _ => Self { from: 0.0, to: 1.0, log: false },
        }
    }

    /// Around all `values`, zero among them.
    pub fn around(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
        Self::new(low.min(0.0), high.max(0.0))
    }

    /// Around all `values`, in decades where they are positive and far apart.
    pub fn spread(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = bounds(values.clone()).map_or(0.0, |(low, _)| low);
        match bounds(values.clone().filter(|value| *value > 0.0)) {
            Some((low, high)) if least >= 0.0 && high > low.max(LEAST) * FAR_APART => {
                let from = 10_f64.powf(low.max(LEAST).max(high / MOST_DECADES).log10().floor());
                Self { from, to: high, log: true }
            }
            _ => Self::around(values),
        }
    }

    /// The same with its end rounded up, so that it has a tick.
    pub fn rounded(self) -> Self {
        if self.log {
            return self;
        }
        let step = step(self.to - self.from, TICKS);
        Self { from: (self.from / step).floor() * step, to: (self.to / step).ceil() * step, log: false }
    }

    /// Where a figure is: 0 at the beginning, 1 at the end. What lies outside is at the edge.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(self.from).log10() - self.from.log10()) / (self.to.log10() - self.from.log10())
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    /// Round figures along it, with their words: about so many.
    pub fn ticks(&self, about: u32) -> Vec<(f64, String)> {
        if self.log {
            let decade = |power: i32| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power));
            let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let wide = powers.clone().count() > 4;
            let all = powers.flat_map(decade).filter(|tick| (self.from..=self.to).contains(tick));
            let shown = all.filter(|tick| !wide || (tick.log10() - tick.log10().round()).abs() < 1e-9);
            return shown.map(|tick| (tick, number(tick))).collect();
        }
        let step = step(self.to - self.from, about);
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.from / step).ceil();
        let count = ((self.to / step).floor() - first).clamp(0.0, 50.0) as u32;
        let tick = |n: u32| (first + f64::from(n)) * step;
        (0..=count).map(tick).map(|tick| (tick, grouped(tick, decimals))).collect()
    }
}

/// A figure with three digits or so, as people write it.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let size = value.abs();
    if size >= 1e9 || (size > 0.0 && size < 0.001) {
        return format!("{value:.1e}");
    }
    if value == value.trunc() || size >= 100.0 {
        return grouped(value, 0);
    }
    grouped(
        value,
        if size >= 10.0 {
            1
        } else if size >= 0.1 {
            2
        } else {
            3
        },
    )
}

/// Whether there is a place for it in a drawing.
pub fn drawable(value: f64) -> bool {
    value.is_finite() && value.abs() <= 1e15
}

/// With commas between the thousands.
fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("−", digits));
    let mut grouped = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if grouped.trim_matches(['0', ',']).is_empty() && rest.trim_matches(['0', '.']).is_empty() {
        return format!("{grouped}{rest}");
    }
    format!("{sign}{grouped}{rest}")
}

/// A round step that parts `length` into about so many.
fn step(length: f64, about: u32) -> f64 {
    let rough = (length / f64::from(about.max(1))).max(f64::MIN_POSITIVE);
    let decade = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|round| round * decade >= rough * 0.999);
    round.unwrap_or(10.0) * decade
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| drawable(*value)).fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// Ticks on an axis that is about as long as a page is wide.
pub const TICKS: u32 = 6;
/// Figures that differ by more are told apart in decades only.
const FAR_APART: f64 = 100.0;
/// Four decades are more than one looks at.
const MOST_DECADES: f64 = 1e5;
/// Nothing here is measured more finely than this.
const LEAST: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(scale: Scale) -> Vec<String> {
        scale.ticks(TICKS).into_iter().map(|(_, words)| words).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(words(Scale::new(0.0, 100.0)), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(words(Scale::new(-0.3, 0.45)), ["−0.2", "0.0", "0.2", "0.4"]);
        assert_eq!(words(Scale::new(0.0, 12_345.0)), ["0", "5,000", "10,000"]);
        assert_eq!(words(Scale::around([81.3, 0.7].into_iter()).rounded()), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(words(Scale::spread([0.4, 300.0].into_iter())), ["0.10", "1", "10", "100"]);
    }

    #[test]
    fn places_lie_between_the_edges() {
        let scale = Scale::new(10.0, 20.0);
        assert_eq!([5.0, 15.0, 99.0, f64::NAN].map(|value| scale.place(value)), [0.0, 0.5, 1.0, 0.0]);
        let scale = Scale::spread([0.1, 1.0, 1000.0].into_iter());
        assert_eq!([0.0, 10.0, 1000.0].map(|value| scale.place(value)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn odd_figures_make_an_axis_too() {
        for values in [
            &[][..],
            &[f64::NAN],
            &[f64::INFINITY, f64::NEG_INFINITY],
            &[5.0],
            &[0.0],
            &[-3.0],
            &[1e300],
            &[f64::MIN_POSITIVE],
            &[-1e15, 1e15],
            &[1e-12, 1e12],
        ] {
            for scale in [Scale::around(values.iter().copied()), Scale::spread(values.iter().copied())] {
                let scale = scale.rounded();
                let ticks = scale.ticks(TICKS);
                assert!((1..=60).contains(&ticks.len()), "{values:?}: {ticks:?}");
                assert!(ticks.iter().all(|(tick, _)| scale.place(*tick).is_finite()), "{values:?}");
            }
        }
        for (from, to) in [(f64::NAN, 1.0), (1.0, f64::NAN), (2.0, 1.0), (f64::NEG_INFINITY, f64::INFINITY)] {
            assert!(Scale::new(from, to).place(1.0).is_finite());
        }
    }

    #[test]
    fn numbers_are_as_people_write_them() {
        let words = [0.0, 1.0, -2.5, 0.0421, 12.34, 1234.5, 1.5e10, -0.0, f64::NAN].map(number);
        assert_eq!(words, ["0", "1", "−2.50", "0.042", "12.3", "1,234", "1.5e10", "0", "–"]);
    }
}
