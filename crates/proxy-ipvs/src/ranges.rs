//! Ranges of service addresses (`--ipvs-vip-mode=range`): networks that a single local route makes
//! local.
//!
//! ```text
//!   ServiceCIDRs, else the flag ─┐                       ┌─▶ routes: networks without exceptions
//!   networks of interfaces and   ├─▶ Ranges: networks, ──┼─▶ shim: packets to refuse
//!   routes, API servers ─────────┘   exceptions          └─▶ compile: addresses without own route
//! ```
//!
//! Exceptions are networks within a range that must keep their own routes. The proxy splits a range
//! with exceptions into several local routes around them.
//!
//! - One route for the range with `throw` routes for the exceptions does not work. Without foreign
//!   routing rules, the kernel keeps the tables `local` and `main` in one trie
//!   (`fib_trie_unmerge`), and a `throw` route would end the whole look-up.
//! - In this trie, a more specific route of table `main` wins over a range. So the destinations of
//!   such routes are exceptions as well.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Maximum number of routes for all ranges together. Above it, each service address gets its own
/// route instead.
const MOST_ROUTES: usize = 512;

/// Shortest prefix lengths of a range, for IPv4 and IPv6. A shorter prefix is probably an error:
/// its local route would cut the node off from other hosts.
const SHORTEST: (u8, u8) = (8, 32);

/// Networks that a range of service addresses must not make local.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    /// Networks of the node's interfaces except `kube-ipvs0`, and addresses of API servers. A
    /// ServiceCIDR within one of them gets no range.
    pub of_interfaces: BTreeSet<IpNet>,
    /// Destinations of routes in the table `main`. A ServiceCIDR may lie within one, because its
    /// range is more specific and wins.
    pub routed: BTreeSet<IpNet>,
}

/// Source address in a range's route, which the node's own packets to the range get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeSource {
    /// The source address that the proxy sets at present.
    Current,
    /// Another source address: an earlier run set it, or the node's address has changed since.
    Former,
}

/// Networks of service addresses that local routes cover, and exceptions within them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Networks of service addresses, none of which lies within another.
    pub nets: BTreeSet<IpNet>,
    /// Networks within `nets` that our routes must not cover.
    pub except: BTreeSet<IpNet>,
}

/// Inputs of the ranges besides the proxy's tables.
#[derive(PartialEq, Eq)]
pub(crate) struct RangeGround {
    pub(crate) service_cidrs: Option<Vec<IpNet>>,
    pub(crate) api_servers: Vec<SocketAddr>,
}

/// A ServiceCIDR without a range. Each of its service addresses gets a route of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedRange {
    net: IpNet,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    /// The prefix is shorter than the allowed minimum, so the network is too large.
    Short,
    /// The ServiceCIDR lies within this network of the node's interfaces or API servers.
    Within(IpNet),
    /// The ranges would need too many routes around their exceptions.
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

/// Returns true if a network has a single address.
fn is_host(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

impl Ranges {
    /// Returns the ranges of the ServiceCIDRs `nets`, with exceptions from `others`, and the
    /// ServiceCIDRs that get no range.
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
            if is_host(&net) {
                // Its address gets a route of its own, which is the same route.
            } else if net.prefix_len() < shortest {
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
        let except = all.filter(is_within).map(|net| {
            // The route beside an excepted address would be a route to one address too, like those
            // of service addresses outside the ranges. So it is left out, and a service address
            // there gets its own route.
            let pair = net.supernet().filter(|_| is_host(net));
            pair.unwrap_or(*net)
        });
        let except: Vec<IpNet> = except.collect();
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

    /// Returns true if a range makes the address local, so that it needs no route of its own.
    pub fn contains(&self, address: &IpAddr) -> bool {
        let has = |nets: &BTreeSet<IpNet>| nets.iter().any(|net| net.contains(address));
        has(&self.nets) && !has(&self.except)
    }

    /// Returns the destinations of the local routes, which together cover the networks without the
    /// exceptions. None is a single address.
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
    fn the_routes_of_a_service_range_omit_the_subnets_of_interfaces() {
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
        assert_eq!(one.routes().len(), 15);
        assert!(one.contains(&"fd96::5".parse().unwrap()));
        for beside in ["fd96::6", "fd96::7"] {
            assert!(!one.contains(&beside.parse().unwrap()));
        }
    }

    #[test]
    fn a_service_range_never_needs_a_route_to_a_single_address() {
        let one = ["10.96.0.10/32"];
        for nets in [&["10.96.0.0/12"][..], &["10.96.0.10/31"], &one] {
            let (ranges, skipped) = both(nets, &networks(&one, &one));
            assert_eq!(skipped.len(), 0, "{nets:?}");
            assert!(ranges.routes().iter().all(|net| !is_host(net)));
            assert!(!ranges.contains(&"10.96.0.11".parse().unwrap()));
        }
    }

    #[test]
    fn a_service_cidr_within_the_nodes_subnet_gets_no_route_and_is_reported() {
        for network in ["10.0.0.0/8", "10.96.0.0/12"] {
            let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&[network], &[]));
            assert_eq!(ranges, Ranges::default());
            assert!(skipped[0].contains("10.96.0.0/12") && skipped[0].contains(network));
        }
    }

    #[test]
    fn a_route_of_table_main_is_an_exception_only_if_it_lies_within_a_service_range() {
        let main = ["10.0.0.0/8", "10.96.0.0/12", "10.100.0.0/16"];
        let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&[], &main));
        assert_eq!(ranges.except, ["10.100.0.0/16".parse().unwrap()].into());
        assert_eq!((ranges.routes().len(), skipped.len()), (4, 0));
    }

    #[test]
    fn a_service_cidr_that_is_too_large_gets_no_route() {
        let (ranges, skipped) = both(&["0.0.0.0/0", "fd00::/8"], &networks(&[], &[]));
        assert_eq!((ranges, skipped.len()), (Ranges::default(), 2));
    }

    #[test]
    fn a_service_cidr_within_a_larger_service_cidr_needs_no_route() {
        let nets = ["10.96.0.0/12", "10.97.0.0/16", "10.128.0.0/16"];
        assert_eq!(routes(&nets, &[]), ["10.96.0.0/12", "10.128.0.0/16"]);
    }

    #[test]
    fn a_service_cidr_with_too_many_exceptions_gets_no_route() {
        let others: Vec<String> = (0..100).map(|n| format!("10.96.{n}.1/32")).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let (ranges, skipped) = both(&["10.96.0.0/12"], &networks(&others, &[]));
        assert_eq!((ranges, skipped.len()), (Ranges::default(), 1));
    }
}
