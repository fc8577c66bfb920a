//! A bad network on loopback: a UDP proxy that loses, delays and reorders from a seed, and a TCP proxy that can be cut,
//! frozen or slowed.

mod link;
mod tcp;
mod udp;

pub use link::{Impairment, Link, Loss};
pub use tcp::{Mode, TcpProxy};
pub use udp::{Counts, UdpProxy};
