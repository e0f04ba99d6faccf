//! Footprint of IPVS mode: all kinds of entries that this mode creates in the kernel.

mod origins;

use std::net::{IpAddr, Ipv4Addr};

use footprint::{Footprint, Link, OwnSet, Says, VirtualServers};
use proxy::{IpFamily, Protocol, ServiceAddress};

use crate::native::TABLE;
use crate::rules::{ALL_CHAINS, JUMPS};
use crate::server::Properties;
use crate::sets::Set;

/// Name of the dummy link that has the service addresses.
pub(crate) const LINK: &str = "kube-ipvs0";

/// Protocol number of our routes to service addresses: the code of the letter 'k'.
/// `/etc/iproute2/rt_protos` does not use this number.
pub(crate) const ROUTE_PROTOCOL: u8 = 107;

/// Address that keeps the link's IPv4 routes while service addresses are routes. When a link loses
/// its last IPv4 address, the kernel removes the link's routes (`fib_disable_ip`).
///
/// The address has no other effect. It is local in any case, like all of 127.0.0.0/8. Its scope is
/// host, so the kernel never chooses it as a source address.
pub(crate) const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 107, 0, 1));

/// Service address of a virtual server that the proxy creates only to make the kernel load a
/// scheduler. The virtual server has no destinations. The address is reserved for documentation, so
/// no other program should use it.
pub(crate) const PROBE: ServiceAddress = ServiceAddress::new(
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)),
    20_000,
    Protocol::Tcp,
);

/// Footprint of IPVS mode: all kinds of entries that it creates in the kernel.
pub const FOOTPRINT: Footprint = Footprint {
    chains: &ALL_CHAINS,
    jumps: &JUMPS,
    nft_tables: &[TABLE],
    sets,
    cluster_ips: |family| Some(Set::ClusterIp.name(family)),
    link: Some(Link {
        name: LINK,
        route_protocol: ROUTE_PROTOCOL,
        anchor: Some(ANCHOR),
        origin: "Services: the addresses that this node serves",
    }),
    virtual_servers: Some(VirtualServers {
        ownership_flag: Properties::OWNED,
        probe: Some((PROBE.socket(), PROBE.protocol)),
    }),
    origins: &origins::ORIGINS,
    ..Footprint::none("ipvs")
};

/// Returns the names of our sets of one IP family. Includes the spare set, which may exist after a
/// crash. Earlier builds used IPv4's spare set for both families.
fn sets(family: IpFamily) -> Vec<OwnSet> {
    let own = Set::every().map(|set| OwnSet {
        name: set.name(family),
        says: set.says(),
        origin: origins::of_set(set),
    });
    let spare = OwnSet {
        name: spare(family).to_owned(),
        says: Says::Nothing,
        origin: "kube-proxy: a set that is about to be replaced by a larger one",
    };
    own.chain([spare]).collect()
}

/// Returns the name of the family's spare set: a temporary set, which replaces a smaller set. The
/// kernel has a single name space for the sets of both families. Both families may replace sets at
/// the same time, so each family has its own spare set.
pub(crate) fn spare(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "KUBE-GROWING",
        IpFamily::V6 => "KUBE-6-GROWING",
    }
}
