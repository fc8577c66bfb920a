//! Which of this machine's addresses the peer is offered on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rtc::shared::ifaces::ifaces;

/// One address with port 0 for each usable interface, IPv4 and IPv6, and 127.0.0.1 for an engine on this very machine.
/// Bridges to containers and virtual machines are left out: nobody out there can reach them.
pub(super) fn local() -> Vec<SocketAddr> {
    let interfaces = ifaces().unwrap_or_else(|error| {
        tracing::warn!("the network interfaces cannot be listed ({error}); only this machine can be reached");
        Vec::new()
    });
    let named = interfaces.into_iter().filter_map(|interface| Some((interface.name, interface.addr?.ip())));
    select(named).into_iter().map(|address| SocketAddr::new(address, 0)).collect()
}

fn select(interfaces: impl Iterator<Item = (String, IpAddr)>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (name, address) in interfaces {
        let bridge = BRIDGES.iter().any(|prefix| name.starts_with(prefix));
        if !bridge && is_usable(address) && !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }
    addresses.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    addresses
}

/// A link-local IPv6 address means nothing without its scope, which a candidate line does not carry.
fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

/// Each address costs a socket of either kind and three candidate lines; a machine with more interfaces reaches the
/// engine on one of the first.
const MAX_ADDRESSES: usize = 6;

/// How container and virtual machine bridges are called.
const BRIDGES: &[&str] =
    &["docker", "br-", "veth", "virbr", "vboxnet", "vmnet", "cni", "flannel", "lxc", "lxdbr", "podman"];

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(interfaces: &[(&str, &str)]) -> Vec<String> {
        let interfaces = interfaces.iter().map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap()));
        select(interfaces).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bridges_link_local_and_repeated_addresses_are_left_out() {
        let interfaces = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("br-12ab", "172.18.0.1"),
            ("eth0", "192.0.2.2"),
            ("eth0", "192.0.2.2"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::2"),
            ("wg0", "10.8.0.2"),
            ("wlan0", "169.254.3.4"),
        ];
        assert_eq!(chosen(&interfaces), ["192.0.2.2", "2001:db8::2", "10.8.0.2", "127.0.0.1"]);
    }

    #[test]
    fn a_machine_without_a_network_still_has_itself() {
        assert_eq!(chosen(&[]), ["127.0.0.1"]);
    }
}
