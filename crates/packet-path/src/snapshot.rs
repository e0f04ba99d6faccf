//! Kernel state as data, such as a test's node or an earlier state of a node.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use ipset_netlink::Mark;
use ipvs_netlink::ServiceKey;

use crate::kernel::{AddressType, Kernel, ReadFailure, Route, RouteQuestion, Server, SetKey};
use crate::packet::Interface;

const NO_ROUTE: &str = "no route to there";

/// Kernel state that replies to all queries of [`Kernel`]. Objects that it lacks do not exist.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Addresses of the node, each with its interface and network prefix.
    pub addresses: Vec<(Interface, IpNet)>,
    /// Routes to other hosts: destination, interface and next hop. The next hop is `None` for a
    /// directly connected network.
    pub routes: Vec<(IpNet, Interface, Option<IpAddr>)>,
    /// Names of the interfaces that are bridges.
    pub bridges: HashSet<String>,
    /// Ipsets by name: type and members, in the format of `ipset save`.
    pub sets: HashMap<String, (String, Vec<String>)>,
    /// IPVS virtual servers by key.
    pub servers: HashMap<ServiceKey, Server>,
    /// Kernel settings by name, such as `net/ipv4/ip_forward`.
    pub settings: HashMap<String, String>,
}

impl Snapshot {
    fn is_on(&self, setting: &str) -> bool {
        self.settings.get(setting).is_some_and(|value| value == "1")
    }

    fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.iter().any(|(_, net)| net.addr() == address)
    }

    /// Returns the member of a set that matches `key`, with its options, if any.
    fn find(&self, set: &str, key: &SetKey) -> Option<(&str, &str)> {
        let (type_name, members) = self.sets.get(set)?;
        let mut members = members
            .iter()
            .map(|member| member.split_once(' ').unwrap_or((member, "")));
        members.find(|(member, _)| is_member(type_name, member, key))
    }

    fn first_address(&self, interface: &Interface, to: IpAddr) -> Option<IpAddr> {
        let is_of_family = |net: &&IpNet| net.addr().is_ipv4() == to.is_ipv4();
        let addresses = self.addresses.iter();
        let here = addresses.filter(|(at, _)| at.name == interface.name);
        let mut here = here.map(|(_, net)| net).filter(is_of_family).peekable();
        let first = here.peek().copied();
        let near = here.find(|net| net.contains(&to)).or(first);
        near.map(IpNet::addr)
    }
}

impl Kernel for Snapshot {
    fn route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure> {
        let to = question.destination;
        let none = |why: &str| {
            Ok(Route::None {
                why: why.to_owned(),
                is_told: why == NO_ROUTE,
            })
        };
        let is_own_source = question.source.is_some_and(|source| self.is_own(source));
        let is_foreign = question.iif.as_ref().is_some_and(|iif| !iif.is_loopback());
        if is_foreign && to.is_loopback() {
            let iif = question.iif.as_ref().map_or("", |iif| &iif.name);
            let is_allowed = |at| self.is_on(&format!("net/ipv4/conf/{at}/route_localnet"));
            if to.is_ipv6() || !(is_allowed("all") || is_allowed(iif)) {
                return none("a loopback address, from outside (a martian destination)");
            }
        }
        if is_foreign && is_own_source && to.is_ipv4() {
            return none("a source that this node has itself (martian)");
        }
        if self.is_own(to) {
            let source = if to.is_loopback() {
                let family = inet::IpFamily::of(to);
                family.localhost()
            } else {
                to
            };
            return Ok(Route::Local {
                source: Some(source),
            });
        }
        let forwarding = if to.is_ipv4() {
            "net/ipv4/ip_forward"
        } else {
            "net/ipv6/conf/all/forwarding"
        };
        if is_foreign && !self.is_on(forwarding) {
            return none("this node forwards nothing (net.ipv4.ip_forward is 0)");
        }
        let ways = self.routes.iter().filter(|(net, ..)| net.contains(&to));
        let Some((_, interface, gateway)) = ways.max_by_key(|(net, ..)| net.prefix_len()) else {
            return none(NO_ROUTE);
        };
        Ok(Route::Out {
            interface: interface.clone(),
            gateway: *gateway,
            source: self.first_address(interface, gateway.unwrap_or(to)),
        })
    }

    fn address_type(
        &self,
        address: IpAddr,
        interface: Option<&Interface>,
    ) -> Result<AddressType, ReadFailure> {
        let is_local = interface.map_or_else(
            || self.is_own(address),
            |wanted| {
                let mut addresses = self.addresses.iter();
                addresses.any(|(at, net)| net.addr() == address && at.name == wanted.name)
            },
        );
        Ok(if is_local {
            AddressType::Local
        } else if address.is_multicast() {
            AddressType::Multicast
        } else {
            AddressType::Unicast
        })
    }

    fn address_of(&self, interface: &Interface, to: IpAddr) -> Result<Option<IpAddr>, ReadFailure> {
        Ok(self.first_address(interface, to))
    }

    fn is_bridge(&self, interface: &Interface) -> Result<bool, ReadFailure> {
        Ok(self.bridges.contains(&interface.name))
    }

    fn set_type(&self, set: &str) -> Result<Option<String>, ReadFailure> {
        Ok(self.sets.get(set).map(|(type_name, _)| type_name.clone()))
    }

    fn member(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure> {
        Ok(self.find(set, key).map(|(member, _)| member.to_owned()))
    }

    fn mark(&self, set: &str, key: &SetKey) -> Result<Option<Mark>, ReadFailure> {
        let marked = |options: &str| options.split_once("skbmark ").map(|(_, mark)| mark.parse());
        let found = self.find(set, key);
        Ok(found.map(|(_, options)| match marked(options) {
            Some(Ok(mark)) => mark,
            Some(Err(_)) | None => Mark::NONE,
        }))
    }

    fn server(&self, key: &ServiceKey) -> Result<Option<Server>, ReadFailure> {
        Ok(self.servers.get(key).cloned())
    }

    fn setting(&self, name: &str) -> Result<Option<String>, ReadFailure> {
        Ok(self.settings.get(name).cloned())
    }
}

/// Reports whether a key matches a member: each part is equal, or is in the part's network.
fn is_member(type_name: &str, member: &str, key: &SetKey) -> bool {
    let parts = type_name.split_once(':').map_or("", |(_, parts)| parts);
    let mut addresses = [key.ip, key.ip2].into_iter().flatten();
    let mut written = member.split(',');
    let is_bare = parts == "port";
    parts.split(',').all(|part| {
        let Some(text) = written.next() else {
            return false;
        };
        match part {
            "port" if is_bare => key.port.is_some_and(|(_, port)| text == port.to_string()),
            "port" => key.port.is_some_and(|(protocol, port)| {
                let name = ipset_netlink::IpProtocol(protocol);
                text == format!("{name}:{port}")
            }),
            _ => addresses.next().is_some_and(|address| holds(text, address)),
        }
    })
}

fn holds(text: &str, address: IpAddr) -> bool {
    match (text.parse::<IpAddr>(), text.parse::<IpNet>()) {
        (Ok(one), _) => one == address,
        (_, Ok(net)) => net.contains(&address),
        _ => false,
    }
}
