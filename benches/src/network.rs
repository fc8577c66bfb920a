//! The network between the helper and the engine, as plain arithmetic: when each packet arrives, or that it does not.

use std::time::Duration;

use watch_audio_probes::net::{Impairment, Link, Loss};

/// What a network does to packets.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// All the time.
    pub impairment: Impairment,
    /// Only the first packet from then on is lost.
    pub lose_one: Option<Duration>,
    /// From when, and for how long, nothing comes through; it all comes at once afterwards.
    pub stall: Option<(Duration, Duration)>,
}

impl Network {
    /// Lets everything through at once.
    pub const CLEAN: Self = Self {
        impairment: Impairment {
            delay_ms: 0.0,
            jitter_ms: 0.0,
            in_order: false,
            loss: Loss::None,
            duplicates: 0.0,
            blackhole: false,
        },
        lose_one: None,
        stall: None,
    };

    /// Loses this share of the packets, 0 to 1.
    pub const fn losing(share: f64) -> Self {
        let mut network = Self::CLEAN;
        network.impairment.loss = Loss::Random(share);
        network
    }

    /// Each packet is late by 0 to `ms`, evenly spread, so packets overtake each other.
    pub const fn jittery(ms: f64) -> Self {
        Self::CLEAN.and_jittery(ms)
    }

    /// The same, and each packet is late by 0 to `ms` as well.
    pub const fn and_jittery(mut self, ms: f64) -> Self {
        self.impairment.jitter_ms = ms;
        self
    }

    /// What becomes of RTP on its way to the engine: jitter and stalls are for the Watch's sound, before the helper.
    pub fn toward_engine(mut self) -> Self {
        (self.impairment.jitter_ms, self.stall) = (0.0, None);
        self
    }

    /// What becomes of the Watch's sound on its way to the helper: it comes by TCP, which loses nothing and keeps order.
    pub fn from_watch(mut self) -> Self {
        (self.impairment.loss, self.lose_one, self.impairment.in_order) = (Loss::None, None, true);
        self
    }
}

/// One direction of a network, the same for every helper given the same seed.
#[derive(Debug)]
pub struct Path {
    network: Network,
    link: Link,
}

impl Path {
    /// The path of one direction.
    pub fn new(network: Network, seed: u64) -> Self {
        Self { network, link: Link::new(network.impairment, seed) }
    }

    /// When what is sent at `at` arrives; `None` when it is lost. Times count from the start of the sound.
    pub fn pass(&mut self, at: Duration) -> Option<Duration> {
        let arrival = self.link.pass(at).first().copied();
        if self.network.lose_one.is_some_and(|from| from <= at) {
            self.network.lose_one = None;
            return None;
        }
        match self.network.stall {
            Some((from, length)) if arrival >= Some(from) => arrival.max(Some(from + length)),
            _ => arrival,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FRAME;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stall_holds_everything() {
        let mut path = Path::new(Network { stall: Some((SECOND, SECOND)), ..Network::CLEAN }, 1);
        assert_eq!(path.pass(SECOND / 2), Some(SECOND / 2));
        assert_eq!(path.pass(SECOND * 3 / 2), Some(SECOND * 2));
        assert_eq!(path.pass(SECOND * 3), Some(SECOND * 3));
    }

    #[test]
    fn one_lost_packet_is_one() {
        let mut path = Path::new(Network { lose_one: Some(SECOND), ..Network::CLEAN }, 1);
        let lost: Vec<_> = (0..200).filter(|n| path.pass(FRAME * *n).is_none()).collect();
        assert_eq!(lost, [50]);
    }

    #[test]
    fn the_watch_loses_nothing_and_keeps_order() {
        for network in [Network::losing(0.5), Network::jittery(60.0)] {
            let mut path = Path::new(network.from_watch(), 1);
            let arrivals: Vec<_> = (0..1_000).map(|n| path.pass(FRAME * n)).collect();
            assert!(arrivals.is_sorted() && arrivals.iter().all(Option::is_some));
        }
    }
}
