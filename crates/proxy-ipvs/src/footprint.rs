//! Footprint of IPVS mode: the names and properties of its entries in the kernel.

mod origins;

use std::net::{IpAddr, Ipv4Addr};

use footprint::{Footprint, Link, OwnSet, Says, VirtualServers};
use proxy::{IpFamily, Protocol, ServiceAddress};

use crate::native::TABLE;
use crate::rules::{ALL_CHAINS, JUMPS};
use crate::server::Properties;
use crate::sets::Set;

/// Name of the dummy link on which service addresses are local.
pub(crate) const LINK: &str = "kube-ipvs0";

/// Protocol number of our routes to service addresses: the ASCII code of 'k', which
/// `/etc/iproute2/rt_protos` does not use.
pub(crate) const ROUTE_PROTOCOL: u8 = 107;

/// IPv4 address that stays on the link while service addresses are routes, because the kernel
/// removes a link's routes with its last IPv4 address (`fib_disable_ip`).
///
/// The address has no other effect: it is local anyway, like all of 127.0.0.0/8. Its scope is host,
/// so the kernel never chooses it as a source address.
pub(crate) const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 107, 0, 1));

/// Address of a virtual server without destinations, which the proxy creates only to make the
/// kernel load a scheduler. It is reserved for documentation, so no other program should use it.
pub(crate) const PROBE: ServiceAddress = ServiceAddress::new(
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)),
    20_000,
    Protocol::Tcp,
);

/// Footprint of IPVS mode: the names and properties of its entries in the kernel.
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

/// Returns the names of IPVS mode's ipsets in one IP family. Includes the spare set, which a crash
/// may leave behind. Earlier builds used IPv4's spare set for both families.
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

/// Returns the name of the family's spare set, which temporarily replaces a set that grows. The
/// kernel has one name space for the ipsets of both families, and both may grow sets at the same
/// time. So each family has its own spare set.
pub(crate) fn spare(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "KUBE-GROWING",
        IpFamily::V6 => "KUBE-6-GROWING",
    }
}
