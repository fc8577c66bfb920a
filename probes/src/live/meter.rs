//! A level meter of a few characters.

/// The level of a peak, as a bar of ten.
pub fn bar(peak: Option<u16>) -> String {
    let Some(peak) = peak else { return "[no device ]".into() };
    let decibels = 20.0 * (f64::from(peak.max(1)) / 32_768.0).log10();
    let steps = ((decibels - QUIETEST) / -QUIETEST * STEPS as f64).ceil().clamp(0.0, STEPS as f64) as usize;
    format!("[{:<STEPS$}]", "#".repeat(steps))
}

const STEPS: usize = 10;
/// Below this, in dB against full scale, a microphone gives noise.
const QUIETEST: f64 = -60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_goes_with_the_level() {
        for (peak, expected) in [
            (None, "[no device ]"),
            (Some(0), "[          ]"),
            (Some(33), "[#         ]"),
            (Some(600), "[#####     ]"),
            (Some(9000), "[######### ]"),
            (Some(32_767), "[##########]"),
        ] {
            assert_eq!(bar(peak), expected, "{peak:?}");
        }
    }
}
