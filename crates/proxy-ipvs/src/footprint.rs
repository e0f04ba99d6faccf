//! Footprint: everything that this mode creates in the kernel.

mod origins;

use std::net::{IpAddr, Ipv4Addr};

use footprint::{Footprint, Link, OwnSet, Says, VirtualServers};
use proxy::{IpFamily, Protocol, ServiceAddress};

use crate::native::TABLE;
use crate::rules::{CHAINS, JUMPS};
use crate::server::Properties;
use crate::sets::Set;

/// The link that holds service addresses.
pub(crate) const LINK: &str = "kube-ipvs0";

/// Protocol number of the routes that hold service addresses. It is free in
/// `/etc/iproute2/rt_protos`: 'k'.
pub(crate) const ROUTE_PROTOCOL: u8 = 107;

/// Address that keeps IPv4 on the link when service addresses are routes: with the last address of
/// a link, the kernel removes its routes (`fib_disable_ip`). Like all of 127.0.0.0/8 it is local
/// anyway, and scope host keeps it from being a source address.
pub(crate) const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 107, 0, 1));

/// Virtual server that makes the kernel load a scheduler. It has no destinations; no other program
/// has one like it at this address.
pub(crate) const PROBE: ServiceAddress = ServiceAddress::new(
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)),
    20_000,
    Protocol::Tcp,
);

/// Everything that this mode creates in the kernel.
pub const FOOTPRINT: Footprint = Footprint {
    chains: &CHAINS,
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
        node_port_flag: Properties::NODE_PORT,
        probe: Some((PROBE.socket(), PROBE.protocol)),
    }),
    origins: &origins::ORIGINS,
    ..Footprint::none("ipvs")
};

/// Returns the sets of a family, with the spare one that a crash may have left. Earlier builds used
/// IPv4's spare name for both families.
fn sets(family: IpFamily) -> Vec<OwnSet> {
    let own = Set::all().map(|set| OwnSet {
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

/// Returns the name of a set while it is filled to replace a smaller one. Both families may do that
/// at once, and share one space of names.
pub(crate) fn spare(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "KUBE-GROWING",
        IpFamily::V6 => "KUBE-6-GROWING",
    }
}
