//! Evidence in the kernel that a mode created a virtual server:
//!
//! * addresses on links;
//! * members of sets;
//! * ownership flags of virtual servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use footprint::{Footprint, Says};
use inet::Protocol;
use ipset_netlink::{Entry, IpProtocol};
use ipvs_netlink::ServiceKey;

/// Evidence of one IP family, read from the kernel.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// Service addresses on the links that modes create, as interface addresses or as local routes.
    pub(crate) bound: BTreeSet<IpAddr>,
    /// Addresses on the links of this node that no mode created.
    pub(crate) elsewhere: BTreeSet<IpAddr>,
    /// Addresses that a mode has bound to its link, according to the mode's set of these addresses.
    pub(crate) said_bound: BTreeSet<IpAddr>,
    servers: BTreeSet<(SocketAddr, Protocol)>,
    node_ports: BTreeSet<(u16, Protocol)>,
    /// Firewall marks, each with the destination addresses whose packets get this mark.
    marks: BTreeMap<u32, BTreeSet<IpAddr>>,
}

/// A virtual server's key and IPVS flags. A mode's ownership flag may be one of the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) key: ServiceKey,
    pub(crate) flags: u32,
}

impl Server {
    /// Returns the virtual server's address, port and protocol. Returns `None` for a firewall mark,
    /// and for a protocol that Services do not support.
    pub(crate) fn at(&self) -> Option<(SocketAddr, Protocol)> {
        match self.key {
            ServiceKey::Address {
                protocol,
                address,
                port,
            } => Some((
                SocketAddr::new(address, port),
                Protocol::from_number(protocol.0)?,
            )),
            ServiceKey::Fwmark { .. } => None,
        }
    }
}

impl fmt::Display for Server {
    /// Formats the virtual server for messages, such as `192.0.2.1:80/TCP` or `FWM 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at() {
            Some((at, protocol)) => write!(f, "{at}/{protocol}"),
            None => self.key.fmt(f),
        }
    }
}

impl Evidence {
    /// Records a set member as evidence. `says` is the meaning of the set, such as bound addresses.
    pub(crate) fn add(&mut self, says: Says, entry: &Entry) {
        let known = |protocol: IpProtocol| Protocol::from_number(protocol.0);
        match (says, *entry) {
            (Says::VirtualServers, Entry::IpPort { ip, protocol, port }) => {
                let server = known(protocol).map(|protocol| (SocketAddr::new(ip, port), protocol));
                self.servers.extend(server);
            }
            (Says::NodePorts(protocol), Entry::Port(port)) => {
                self.node_ports.insert((port, protocol));
            }
            (Says::Bound, Entry::Ip(ip)) => {
                self.said_bound.insert(ip);
            }
            (Says::Marks, Entry::IpPortMark { ip, mark, .. }) => {
                self.marks.entry(mark.value).or_default().insert(ip);
            }
            // No mode writes such a member to a set with this meaning, so the member comes from
            // another program.
            _ => {}
        }
    }

    /// Reports whether one of these modes created a virtual server. Each of these facts is enough:
    ///
    /// * A set contains the virtual server.
    /// * The virtual server's address is on a mode's link, and no set contains any virtual server
    ///   at this address.
    /// * The virtual server's port is a NodePort, and its address belongs to the node. With the
    ///   ownership flag, the port alone is enough, because the node may have lost the address.
    ///
    /// For a virtual server with a firewall mark, only the ownership flag is evidence, because
    /// another program may use the same mark.
    pub(crate) fn says_ours(&self, modes: &[&'static Footprint], server: &Server) -> bool {
        let mut kinds = modes.iter().filter_map(|mode| mode.virtual_servers);
        let is_noted = kinds.any(|kind| server.flags & kind.ownership_flag != 0);
        let Some((at, protocol)) = server.at() else {
            return is_noted && matches!(server.key, ServiceKey::Fwmark { .. });
        };
        self.servers.contains(&(at, protocol))
            || (self.bound.contains(&at.ip()) && !self.names_any_at(at.ip()))
            || ((self.elsewhere.contains(&at.ip()) || is_noted)
                && self.node_ports.contains(&(at.port(), protocol)))
    }

    /// Returns the addresses that a virtual server serves. For a firewall mark, returns the
    /// addresses in the sets that contain the mark, or none if no set does.
    pub(crate) fn addresses(&self, key: &ServiceKey) -> BTreeSet<IpAddr> {
        match key {
            ServiceKey::Address { address, .. } => [*address].into(),
            ServiceKey::Fwmark { mark, .. } => self.marks.get(mark).cloned().unwrap_or_default(),
        }
    }

    /// Returns true if a set contains a virtual server at this address. Such a set contains all
    /// virtual servers that the mode has at the address. So the address is no evidence for any
    /// further virtual server there.
    fn names_any_at(&self, address: IpAddr) -> bool {
        let first = (SocketAddr::new(address, 0), Protocol::Tcp);
        let last = (SocketAddr::new(address, u16::MAX), Protocol::Sctp);
        self.servers.range(first..=last).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use footprint::{Footprint, VirtualServers};
    use ipset_netlink::Mark;

    use super::*;

    const NOTE: u32 = 1 << 30;
    const MODES: footprint::Footprints = &[&Footprint {
        virtual_servers: Some(VirtualServers {
            ownership_flag: NOTE,
            probe: None,
        }),
        ..Footprint::none("ipvs")
    }];

    #[test]
    fn only_virtual_servers_with_evidence_of_our_modes_are_removed() {
        let there = [
            ("10.96.0.1:443", 0),
            // This virtual server belongs to another program. A set contains all of the mode's
            // virtual servers at this address, but not this one.
            ("10.96.0.3:81", 0),
            ("10.96.0.2:80", 0),
            ("10.96.0.2:81", NOTE),
            ("192.0.2.1:80", NOTE),
            ("192.0.2.1:30000", 0),
            ("192.0.2.2:30000", 0),
            // The node has lost this address since the virtual server was created.
            ("192.0.2.3:30000", NOTE),
        ];
        let mut found = Evidence {
            bound: ["10.96.0.1", "10.96.0.3"]
                .map(|ip| ip.parse().unwrap())
                .into(),
            elsewhere: ["192.0.2.1".parse().unwrap()].into(),
            ..Evidence::default()
        };
        found.add(Says::NodePorts(Protocol::Tcp), &Entry::Port(30000));
        let named = Entry::IpPort {
            ip: "10.96.0.2".parse().unwrap(),
            protocol: IpProtocol(Protocol::Tcp.number()),
            port: 80,
        };
        found.add(Says::VirtualServers, &named);
        let other = Entry::IpPort {
            ip: "10.96.0.3".parse().unwrap(),
            protocol: IpProtocol(Protocol::Udp.number()),
            port: 80,
        };
        found.add(Says::VirtualServers, &other);
        // A member whose type does not fit the meaning of its set must be ignored.
        found.add(Says::NodePorts(Protocol::Tcp), &named);
        let ours = there.map(|(at, flags)| {
            let at: SocketAddr = at.parse().unwrap();
            let key = ServiceKey::new(ipvs_netlink::Protocol::TCP, at.ip(), at.port());
            found.says_ours(MODES, &Server { key, flags })
        });
        assert_eq!(ours, [true, false, true, false, false, true, false, true]);
        let key = ServiceKey::Fwmark {
            family: inet::IpFamily::V4,
            mark: 30000,
        };
        let of_mark = [0, NOTE].map(|flags| found.says_ours(MODES, &Server { key, flags }));
        assert_eq!(of_mark, [false, true]);
        assert_eq!(found.addresses(&key), [].into());
        let (ip, mark) = ("192.0.2.1".parse().unwrap(), Mark::whole(30_000));
        let marked = Entry::IpPortMark {
            ip,
            protocol: IpProtocol(Protocol::Tcp.number()),
            port: 80,
            mark,
        };
        found.add(Says::Marks, &marked);
        assert_eq!(found.addresses(&key), [ip].into());
    }
}
