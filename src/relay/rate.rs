//! Counting in fixed windows: how often someone came, how much a socket sent.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// One count. A window starts with the first thing counted after the last one ended.
#[derive(Debug, Default)]
pub(super) struct Window {
    start: Option<Instant>,
    used: u64,
    /// Time in it that was not the sender's.
    excused: Duration,
}

/// One count of a minute for each client address.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    windows: Mutex<HashMap<IpAddr, Window>>,
}

impl Window {
    /// Counts `amount` and says whether the window's sum is still within `most`.
    pub(super) fn admit(&mut self, now: Instant, length: Duration, amount: u64, most: u64) -> bool {
        if self.over(now, length) {
            *self = Self { start: Some(now), ..Self::default() };
        }
        self.used = self.used.saturating_add(amount);
        let most_excused = u128::from(most) * self.excused.as_millis() / length.as_millis().max(1);
        u128::from(self.used) <= u128::from(most) + most_excused
    }

    /// For so long nothing was taken from the sender, who went on meanwhile: the window is longer, and holds more.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.excused += time;
    }

    /// Counts one of at most `most` in a minute.
    pub(super) fn once_a_minute(&mut self, now: Instant, most: u32) -> bool {
        self.admit(now, MINUTE, 1, most.into())
    }

    fn over(&self, now: Instant, length: Duration) -> bool {
        self.start.is_none_or(|start| now >= start + length + self.excused)
    }
}

impl Addresses {
    /// Counts one of at most `most` in a minute from this address.
    pub(super) fn admit(&self, now: Instant, address: IpAddr, most: u32) -> bool {
        let address = client(address);
        let mut windows = self.windows.lock().expect("nothing panics while it counts");
        if windows.len() >= MOST_ADDRESSES && !windows.contains_key(&address) {
            windows.retain(|_, window| !window.over(now, MINUTE));
            // A flood from everywhere: who is known goes on, who is new waits for the minute to end.
            if windows.len() >= MOST_ADDRESSES {
                return false;
            }
        }
        windows.entry(address).or_default().once_a_minute(now, most)
    }
}

/// What counts as one client: an IPv4 address, or the /64 that an IPv6 client may roam in.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

/// The window of every rate that is not about bytes.
const MINUTE: Duration = Duration::from_secs(60);

/// A bound on memory: about 5 MB.
const MOST_ADDRESSES: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_so_much_and_then_starts_anew() {
        let start = Instant::now();
        let mut window = Window::default();
        let five = Duration::from_secs(5);
        assert!(window.admit(start, five, 90, 100));
        assert!(window.admit(start, five, 10, 100), "the bound itself is within");
        assert!(!window.admit(start + five - Duration::from_millis(1), five, 1, 100));
        assert!(window.admit(start + five, five, 100, 100));
        assert!(!window.admit(start + five, five, u64::MAX, 100));
    }

    #[test]
    fn a_pause_that_was_not_the_senders_makes_the_window_longer_and_no_faster() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut window = Window::default();
        assert!(window.admit(start, 5 * second, 50, 100));
        window.excuse(10 * second);
        assert!(window.admit(start + 11 * second, 5 * second, 250, 100), "20 a second, over 15 s");
        assert!(!window.admit(start + 14 * second, 5 * second, 1, 100));
        assert!(window.admit(start + 15 * second, 5 * second, 100, 100), "the next is as any other");
        assert!(!window.admit(start + 15 * second, 5 * second, 1, 100));
    }

    #[test]
    fn addresses_are_counted_apart_and_an_ipv6_client_is_its_64() {
        let (now, rates) = (Instant::now(), Addresses::default());
        let address = |text: &str| text.parse().unwrap();
        assert!(rates.admit(now, address("192.0.2.1"), 1));
        assert!(!rates.admit(now, address("192.0.2.1"), 1));
        assert!(!rates.admit(now, address("::ffff:192.0.2.1"), 1), "the same, mapped");
        assert!(rates.admit(now, address("192.0.2.2"), 1));
        assert!(rates.admit(now, address("2001:db8::1"), 1));
        assert!(!rates.admit(now, address("2001:db8::ffff:2"), 1));
        assert!(rates.admit(now, address("2001:db8:0:1::1"), 1));
        assert!(rates.admit(now + MINUTE, address("192.0.2.1"), 1));
    }

    #[test]
    fn a_flood_of_addresses_has_a_bound() {
        let (now, rates) = (Instant::now(), Addresses::default());
        for n in 0..MOST_ADDRESSES as u32 {
            assert!(rates.admit(now, IpAddr::V4(n.into()), 2));
        }
        assert!(!rates.admit(now, address_after(), 2));
        assert!(rates.admit(now, IpAddr::V4(7.into()), 2), "who is known goes on");
        assert!(rates.admit(now + MINUTE, address_after(), 2));
    }

    fn address_after() -> IpAddr {
        IpAddr::V4((MOST_ADDRESSES as u32).into())
    }
}
