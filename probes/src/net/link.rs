//! One direction of a bad link: what becomes of each packet. No IO and no clock.

use std::time::Duration;

use serde::Deserialize;

/// How bad one direction is. The default lets everything through at once.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Impairment {
    /// Every packet takes so long.
    pub delay_ms: f64,
    /// And by chance up to so much longer.
    pub jitter_ms: f64,
    /// Whether packets stay in order all the same.
    pub in_order: bool,
    /// Which packets are lost.
    pub loss: Loss,
    /// The share of packets that come twice.
    pub duplicates: f64,
    /// Nothing comes through.
    pub blackhole: bool,
}

/// Which packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability.
    Random(f64),
    /// In bursts (Gilbert and Elliott): `enter` and `leave` are the chances per packet that a bad time begins and ends; in
    /// one, packets are lost with probability `loss`.
    Bursts {
        /// From good to bad.
        enter: f64,
        /// From bad to good.
        leave: f64,
        /// The share lost in a bad time.
        loss: f64,
    },
}

/// One direction with its luck, which the seed decides.
#[derive(Debug, Clone)]
pub struct Link {
    /// How bad it is; may change at any time.
    pub impairment: Impairment,
    luck: u64,
    bad: bool,
    latest: Duration,
}

impl Link {
    /// A link whose luck is decided by `seed`.
    pub fn new(impairment: Impairment, seed: u64) -> Self {
        Self { impairment, luck: seed, bad: false, latest: Duration::ZERO }
    }

    /// When a packet that enters at `now` comes out: never, once or twice. Times run since any origin.
    pub fn pass(&mut self, now: Duration) -> Vec<Duration> {
        if self.impairment.blackhole || self.lost() {
            return Vec::new();
        }
        let copies = if self.chance(self.impairment.duplicates) { 2 } else { 1 };
        (0..copies).map(|_| self.due(now)).collect()
    }

    fn lost(&mut self) -> bool {
        match self.impairment.loss {
            Loss::None => false,
            Loss::Random(share) => self.chance(share),
            Loss::Bursts { enter, leave, loss } => {
                let turns = self.chance(if self.bad { leave } else { enter });
                self.bad ^= turns;
                self.bad && self.chance(loss)
            }
        }
    }

    fn due(&mut self, now: Duration) -> Duration {
        let Impairment { delay_ms, jitter_ms, in_order, .. } = self.impairment;
        let takes = (delay_ms + jitter_ms * self.random()).max(0.0) / 1_000.0;
        let due = now + Duration::try_from_secs_f64(takes).unwrap_or_default();
        self.latest = if in_order { due.max(self.latest) } else { due };
        self.latest
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random() < probability
    }

    /// The next number from 0 to 1 (splitmix64: small, even, and the same everywhere).
    fn random(&mut self) -> f64 {
        self.luck = self.luck.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.luck;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fates of 50 packets a second for so long.
    fn run(impairment: Impairment, seed: u64, seconds: u64) -> Vec<Vec<Duration>> {
        let mut link = Link::new(impairment, seed);
        (0..seconds * 50).map(|n| link.pass(Duration::from_millis(n * 20))).collect()
    }

    #[test]
    fn the_seed_decides_everything() {
        let impairment =
            Impairment { jitter_ms: 60.0, loss: Loss::Random(0.1), duplicates: 0.02, ..Impairment::default() };
        assert_eq!(run(impairment, 7, 60), run(impairment, 7, 60));
        assert_ne!(run(impairment, 7, 60), run(impairment, 8, 60));
    }

    #[test]
    fn loss_has_the_share_asked_for() {
        let share = |loss| {
            let fates = run(Impairment { loss, ..Impairment::default() }, 1, 2_000);
            fates.iter().filter(|fate| fate.is_empty()).count() as f64 / fates.len() as f64
        };
        assert_eq!(share(Loss::None), 0.0);
        assert!((share(Loss::Random(0.05)) - 0.05).abs() < 0.005);
        // Bad a fifth of the time, and half is lost then.
        assert!((share(Loss::Bursts { enter: 0.05, leave: 0.2, loss: 0.5 }) - 0.1).abs() < 0.01);
    }

    #[test]
    fn jitter_reorders_unless_told_otherwise() {
        let arrivals = |in_order| -> Vec<Duration> {
            let impairment = Impairment { delay_ms: 30.0, jitter_ms: 60.0, in_order, ..Impairment::default() };
            run(impairment, 3, 20).into_iter().flatten().collect()
        };
        assert!(!arrivals(false).is_sorted());
        assert!(arrivals(true).is_sorted());
        for (n, arrival) in arrivals(false).into_iter().enumerate() {
            let took = arrival - Duration::from_millis(n as u64 * 20);
            assert!((Duration::from_millis(30)..Duration::from_millis(91)).contains(&took), "{took:?}");
        }
    }
}
