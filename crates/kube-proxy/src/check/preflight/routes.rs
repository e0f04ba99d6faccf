//! Reads the node's routes from two files. `/proc/net/route` (IPv4) has only the main table.
//! `/proc/net/ipv6_route` has all tables.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A route to a network, from the kernel's routing tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) net: IpNet,
    pub(super) link: String,
}

/// Parses `/proc/net/route`, the IPv4 routes. Skips default routes.
pub(super) fn v4(text: &str) -> Vec<Route> {
    // The file prints the address, which is in network byte order, as a number in host byte order.
    let number = |field: Option<&str>| {
        let number = u32::from_str_radix(field?, 16).ok()?;
        Some(Ipv4Addr::from(number.to_ne_bytes()))
    };
    let route = |line: &str| {
        let mut fields = line.split_whitespace();
        let link = fields.next()?.to_owned();
        let to = number(fields.next())?;
        let mask = number(fields.nth(5))?;
        let net = Ipv4Net::with_netmask(to, mask).ok()?;
        Some(Route {
            net: net.into(),
            link,
        })
    };
    let routes = text.lines().skip(1).filter_map(route);
    routes.filter(|route| route.net.prefix_len() > 0).collect()
}

/// Parses `/proc/net/ipv6_route`, the IPv6 routes. Skips default routes, routes to single
/// addresses, and routes to link-local or multicast addresses.
pub(super) fn v6(text: &str) -> Vec<Route> {
    let route = |line: &str| {
        let mut fields = line.split_whitespace();
        let to = u128::from_str_radix(fields.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(fields.next()?, 16).ok()?;
        let link = fields.last()?.to_owned();
        let to = Ipv6Addr::from(to);
        let counts = (1..128).contains(&prefix) && !to.is_multicast();
        let net = Ipv6Net::new(to, prefix).ok()?;
        let is_local = to.is_unicast_link_local();
        (counts && !is_local).then(|| Route {
            net: net.into(),
            link,
        })
    };
    text.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is the output of `cat /proc/net/route` on an amd64 machine, after `ip route add
    /// 10.96.0.0/12 dev eth1`.
    #[test]
    fn routing_tables_are_parsed() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    eth1\t0000600A\t00000000\t0001\t0\t0\t0\t0000F0FF\t0\t0\t0\nodd\n";
        if cfg!(target_endian = "little") {
            let told: Vec<String> = v4(text).iter().map(|of| of.net.to_string()).collect();
            assert_eq!(told, ["10.96.0.0/12"]);
            assert_eq!(v4(text)[0].link, "eth1");
        }
        let text = "fd000096000000000000000000000000 70 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1\n\
                    fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1\n\
                    00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";
        let told: Vec<String> = v6(text).iter().map(|of| of.net.to_string()).collect();
        assert_eq!(told, ["fd00:96::/112"]);
    }
}
