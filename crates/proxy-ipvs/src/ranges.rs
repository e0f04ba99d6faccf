//! Ranges of service addresses: networks that one local route each makes local
//! (`--ipvs-vip-mode=range`).
//!
//! ```text
//!   ServiceCIDRs, else the flag ─┐                            ┌─▶ routes: the networks without exceptions
//!   networks of interfaces and   ├─▶ Ranges (nets, exceptions) ┼─▶ the shim: which packets to refuse
//!   routes, API servers ─────────┘                            └─▶ compile: addresses that need no route of their own
//! ```
//!
//! Exceptions are networks within a range that must keep their own routes. So a range with
//! exceptions becomes several local routes around them.
//!
//! - A single route with `throw` routes for the exceptions is not possible. Without foreign routing
//!   rules, the kernel keeps the tables local and main in one trie (`fib_trie_unmerge`). A `throw`
//!   route there would end the whole look-up.
//! - In this trie, a more specific route of table main has precedence over a range. So the
//!   destinations of such routes are exceptions, too.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Maximum number of routes. Beyond it, each service address gets a route of its own.
const MOST_ROUTES: usize = 512;

/// Shortest prefix lengths of ranges, for IPv4 and IPv6. A shorter prefix is probably an error: as
/// a local route, it would cut the node off from other hosts.
const SHORTEST: (u8, u8) = (8, 32);

/// Networks that no range may make local.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    /// Networks of the node's other interfaces, and addresses of API servers.
    pub of_interfaces: BTreeSet<IpNet>,
    /// Destinations of routes in the table `main`. If such a destination contains a range, the
    /// route of the range has precedence.
    pub routed: BTreeSet<IpNet>,
}

/// Source address of the node's own packets into a range, as its route names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeSource {
    /// The source address that this mode sets now.
    Current,
    /// Another source address, from an earlier run or an earlier address of the node.
    Former,
}

/// Networks that local routes make local as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The networks. None lies within another one.
    pub nets: BTreeSet<IpNet>,
    /// Networks inside of `nets` that stay excluded from the routes.
    pub except: BTreeSet<IpNet>,
}

/// Inputs from which the ranges are computed, besides the tables.
#[derive(PartialEq, Eq)]
pub(crate) struct RangeGround {
    pub(crate) service_cidrs: Option<Vec<IpNet>>,
    pub(crate) api_servers: Vec<SocketAddr>,
}

/// A network without a range. Each service address in it has a route of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedRange {
    net: IpNet,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    /// The network is too large.
    Short,
    /// Another network that contains this one.
    Within(IpNet),
    /// The range would need too many routes around other networks.
    Scattered,
}

impl fmt::Display for SkippedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = self.net;
        write!(
            f,
            "each service address in {net} gets a route of its own, because "
        )?;
        match &self.reason {
            Reason::Short => write!(
                f,
                "the network is too large for a route: correct the ServiceCIDR, or --ipvs-service-cidrs"
            ),
            Reason::Within(other) => write!(
                f,
                "{other} of this node's interfaces or API servers contains it: use other networks for Services"
            ),
            Reason::Scattered => write!(
                f,
                "it would need more than {MOST_ROUTES} routes around this node's other networks"
            ),
        }
    }
}

impl Ranges {
    /// Returns the ranges that cover `nets`, except the addresses in `others`. Also returns the
    /// networks that get no range.
    pub(crate) fn new(
        nets: impl IntoIterator<Item = IpNet>,
        others: &Networks,
    ) -> (Self, Vec<SkippedRange>) {
        let mut skipped = Vec::new();
        let mut skip = |net, reason| skipped.push(SkippedRange { net, reason });
        let mut free = BTreeSet::new();
        for net in IpNet::aggregate(&nets.into_iter().collect()) {
            let shortest = if net.addr().is_ipv4() {
                SHORTEST.0
            } else {
                SHORTEST.1
            };
            let mut owners = others.of_interfaces.iter();
            if net.prefix_len() < shortest {
                skip(net, Reason::Short);
            } else if let Some(owner) = owners.find(|other| other.contains(&net)) {
                skip(net, Reason::Within(*owner));
            } else {
                free.insert(net);
            }
        }
        let is_within = |other: &&IpNet| {
            let mut nets = free.iter();
            nets.any(|net| net.contains(*other) && net != *other)
        };
        let all = others.of_interfaces.iter().chain(&others.routed);
        let except: Vec<IpNet> = all.filter(is_within).copied().collect();
        let except: BTreeSet<IpNet> = IpNet::aggregate(&except).into_iter().collect();
        let ranges = Self { nets: free, except };
        if ranges.except.len() > MOST_ROUTES || ranges.routes().len() > MOST_ROUTES {
            for net in ranges.nets {
                skip(net, Reason::Scattered);
            }
            return (Self::default(), skipped);
        }
        (ranges, skipped)
    }

    /// True if a range makes an address local. Such an address needs no separate route.
    pub fn contains(&self, address: &IpAddr) -> bool {
        let has = |nets: &BTreeSet<IpNet>| nets.iter().any(|net| net.contains(address));
        has(&self.nets) && !has(&self.except)
    }

    /// Returns the destinations of the routes: the networks, split around the exceptions.
    pub fn routes(&self) -> Vec<IpNet> {
        let mut routes = Vec::new();
        let mut left: Vec<IpNet> = self.nets.iter().copied().collect();
        while let Some(net) = left.pop() {
            let mut except = self.except.iter();
            if except.clone().any(|other| other.contains(&net)) {
                continue;
            }
            if !except.any(|other| net.contains(other)) {
                routes.push(net);
            } else if let Ok(halves) = net.subnets(net.prefix_len() + 1) {
                left.extend(halves);
            }
            if routes.len() > MOST_ROUTES {
                break;
            }
        }
        routes.sort_unstable();
        routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(of_interfaces: &[&str], routed: &[&str]) -> Networks {
        let parsed = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect();
        Networks {
            of_interfaces: parsed(of_interfaces),
            routed: parsed(routed),
        }
    }

    fn both(nets: &[&str], others: &Networks) -> (Ranges, Vec<String>) {
        let nets = nets.iter().map(|text| text.parse().unwrap());
        let (ranges, skipped) = Ranges::new(nets, others);
        (ranges, skipped.iter().map(ToString::to_string).collect())
    }

    fn ranges(nets: &[&str], others: &[&str]) -> Ranges {
        both(nets, &networks(others, &[])).0
    }

    fn routes(nets: &[&str], others: &[&str]) -> Vec<String> {
        let routes = ranges(nets, others).routes();
        routes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn routes_surround_the_networks_of_others() {
        assert_eq!(
            routes(&["10.96.0.0/12"], &["172.16.0.0/12"]),
            ["10.96.0.0/12"]
        );
        let around = [
            "10.96.0.0/14",
            "10.101.0.0/16",
            "10.102.0.0/15",
            "10.104.0.0/13",
        ];
        assert_eq!(routes(&["10.96.0.0/12"], &["10.100.0.0/16"]), around);
        let one = ranges(&["fd96::/112"], &["fd96::7/128"]);
        assert_eq!(one.routes().len(), 16);
        assert!(one.contains(&"fd96::6".parse().unwrap()));
        assert!(!one.contains(&"fd96::7".parse().unwrap()));
    }

    #[test]
    fn a_range_within_the_nodes_network_is_skipped_and_reported() {
        for network in ["10.0.0.0/8", "10.96.0.0/12"] {
            let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&[network], &[]));
            assert_eq!(ranges, Ranges::default());
            assert!(skipped[0].contains("10.96.0.0/12") && skipped[0].contains(network));
        }
    }

    #[test]
    fn only_longer_routes_of_main_are_exceptions() {
        let main = ["10.0.0.0/8", "10.96.0.0/12", "10.100.0.0/16"];
        let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&[], &main));
        assert_eq!(ranges.except, ["10.100.0.0/16".parse().unwrap()].into());
        assert_eq!((ranges.routes().len(), skipped.len()), (4, 0));
    }

    #[test]
    fn a_network_that_is_too_large_is_no_range() {
        let (ranges, skipped) = both(&["0.0.0.0/0", "fd00::/8"], &networks(&[], &[]));
        assert_eq!((ranges, skipped.len()), (Ranges::default(), 2));
    }

    #[test]
    fn a_range_within_another_is_no_second_route() {
        let nets = ["10.96.0.0/12", "10.97.0.0/16", "10.128.0.0/16"];
        assert_eq!(routes(&nets, &[]), ["10.96.0.0/12", "10.128.0.0/16"]);
    }

    #[test]
    fn too_many_exceptions_leave_single_addresses() {
        let others: Vec<String> = (0..100).map(|n| format!("10.96.{n}.1/32")).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&others, &[]));
        assert_eq!((ranges, skipped.len()), (Ranges::default(), 1));
    }
}
