//! What this mode leaves in the kernel.

use footprint::{Footprint, Link, OwnSet, Says, VirtualServers};
use proxy::IpFamily;

use crate::netlink::{ANCHOR, LINK, PROBE, ROUTE_PROTOCOL, spare};
use crate::rules::{CHAINS, JUMPS};
use crate::server::Properties;
use crate::sets::Set;

/// What this mode leaves in the kernel; in nftables nothing.
pub const FOOTPRINT: Footprint = Footprint {
    chains: &CHAINS,
    jumps: &JUMPS,
    sets,
    link: Some(Link {
        name: LINK,
        route_protocol: ROUTE_PROTOCOL,
        anchor: Some(ANCHOR),
    }),
    virtual_servers: Some(VirtualServers {
        node_port_flag: Properties::NODE_PORT,
        probe: Some(PROBE.socket()),
    }),
    ..Footprint::none("ipvs")
};

/// A spare one too, which a crash may have left. (Earlier builds gave that of either family the name that IPv4's has now.)
fn sets(family: IpFamily) -> Vec<OwnSet> {
    let own = Set::all().map(|set| OwnSet {
        name: set.name(family),
        says: set.says(),
    });
    let spare = OwnSet {
        name: spare(family).to_owned(),
        says: Says::Nothing,
    };
    own.chain([spare]).collect()
}
