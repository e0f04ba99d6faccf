//! One Service port: the listening ports that it wants, and what is redirected to them. Pure: no
//! clock, no I/O, no log, no kernel.
//!
//! ```text
//!   ServiceView ─▶ compile ─▶ ServedPort ─┬─▶ listeners   one for each way in which it is served
//!                                         └─▶ portals     its addresses, and the way of each
//! ```
//!
//! A Service port has one listening port for each way in which it is served: by all endpoints or by
//! those on this node, for everybody or for some sources. Mostly that is one. So the way is known
//! from the port alone, for TCP and UDP, and no connection has to be asked what it meant.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proxy::{
    Endpoints, IpFamily, NodeFacts, Owner, Protocol, ServicePort, ServicePortName, ServiceView,
};

use relay::Serving;

/// By which endpoints something is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// By all.
    Cluster,
    /// By those on this node.
    Local,
}

/// For whom something is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sources {
    /// For everybody.
    All,
    /// For those in `loadBalancerSourceRanges`.
    Ranges,
}

/// A way in which a Service port is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Way {
    /// By whom.
    pub scope: Scope,
    /// For whom.
    pub sources: Sources,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [
        Self::of(Scope::Cluster, Sources::All),
        Self::of(Scope::Cluster, Sources::Ranges),
        Self::of(Scope::Local, Sources::All),
        Self::of(Scope::Local, Sources::Ranges),
    ];

    const fn of(scope: Scope, sources: Sources) -> Self {
        Self { scope, sources }
    }
}

/// A listening port that a Service port wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener {
    /// Whose it is.
    pub name: ServicePortName,
    /// What it is for.
    pub way: Way,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.name.protocol)?;
        if self.way.scope == Scope::Local {
            f.write_str(", endpoints of this node")?;
        }
        if self.way.sources == Sources::Ranges {
            f.write_str(", source ranges")?;
        }
        Ok(())
    }
}

/// What is redirected: packets to an address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Portal {
    /// The address; `None` for those of this node.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, protocol, .. } = self;
        match self.address {
            Some(address) => write!(f, "{}/{protocol}", SocketAddr::new(address, *port)),
            None => write!(f, "port {port}/{protocol} of this node"),
        }
    }
}

/// The ways of what is sent to a portal, by where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// From elsewhere.
    pub outside: Way,
    /// From pods of this node.
    pub pods: Way,
    /// From this node itself.
    pub node: Way,
}

/// A Service port in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedPort {
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// `namespace/name:port`
    pub name: Arc<str>,
    /// Its listening ports, and who serves there.
    pub listeners: Vec<(Listener, Arc<Serving>)>,
    /// What is redirected to them.
    pub portals: Vec<(Portal, Ways)>,
}

/// Compiles a Service into one entry for each of its ports; none if it has no address of this
/// family.
pub fn compile(view: &ServiceView<'_>, node: &NodeFacts) -> Vec<ServedPort> {
    let service = view.service;
    let Some(cluster_ip) = service.cluster_ip(node.family) else {
        return Vec::new();
    };
    let is_own = |ip: &&IpAddr| IpFamily::of(**ip) == node.family;
    let ranges = || {
        let nets = service.source_ranges.iter().copied();
        let nets = nets.filter(|net| IpFamily::of(net.addr()) == node.family);
        let mut nets: Vec<IpNet> = nets.collect();
        // A node may carry such an address itself, and has it for its source then: whoever admits
        // the node admits that.
        let admits_node = |ip: IpAddr| nets.iter().any(|net| net.contains(&ip));
        if node.ip.is_some_and(admits_node) {
            let own = service.ingress_ips.iter().filter(is_own);
            nets.extend(own.map(|ip| IpNet::from(*ip)));
        }
        nets.into_boxed_slice()
    };
    let has_ranges = {
        let mut nets = service.source_ranges.iter();
        nets.any(|net| IpFamily::of(net.addr()) == node.family)
    };
    let served = Endpoints::of(view, node);
    let compile = |port: &ServicePort| {
        let owner = Owner::new(service, port);
        let backends = served.serving(port);
        let portal = |address, port: u16| Portal {
            address,
            protocol: owner.name.protocol,
            port,
        };
        let within = if service.internal_local {
            Scope::Local
        } else {
            Scope::Cluster
        };
        let from_outside = if service.external_local {
            Scope::Local
        } else {
            Scope::Cluster
        };
        let everywhere = |way| Ways {
            outside: way,
            pods: way,
            node: way,
        };
        // Whoever is on this node already loses no source address by going on to another one.
        let external = |sources| Ways {
            outside: Way::of(from_outside, sources),
            ..everywhere(Way::of(Scope::Cluster, sources))
        };
        let of_balancers = if has_ranges {
            Sources::Ranges
        } else {
            Sources::All
        };
        let cluster = (
            portal(Some(cluster_ip), port.port),
            everywhere(Way::of(within, Sources::All)),
        );
        let externals = service.external_ips_of(port).filter(|ip| is_own(&ip));
        let externals = externals.map(|ip| (ip, Sources::All));
        let ingress = service.ingress_ips.iter().filter(is_own);
        let ingress = ingress.map(|ip| (*ip, of_balancers));
        let addresses = externals.chain(ingress);
        let addresses =
            addresses.map(|(ip, sources)| (portal(Some(ip), port.port), external(sources)));
        let node_port = port.node_port;
        let node_port = node_port.map(|number| (portal(None, number), external(Sources::All)));
        let mut portals: Vec<(Portal, Ways)> = Vec::new();
        for (portal, ways) in [cluster].into_iter().chain(addresses).chain(node_port) {
            if portals.iter().all(|(known, _)| *known != portal) {
                portals.push((portal, ways));
            }
        }
        let ways = portals.iter();
        let ways = ways.flat_map(|(_, ways)| [ways.outside, ways.pods, ways.node]);
        let mut ways: Vec<Way> = ways.collect();
        ways.sort_unstable();
        ways.dedup();
        if owner.name.protocol == Protocol::Sctp {
            // No port is opened for it, which is told; so nothing leads there.
            portals.clear();
        }
        let serving = |way: Way| {
            let targets = match way.scope {
                Scope::Cluster => &backends.cluster,
                Scope::Local => &backends.local,
            };
            let endpoints = targets.iter();
            Arc::new(Serving {
                endpoints: endpoints
                    .map(|target| SocketAddr::new(target.ip, target.port))
                    .collect(),
                affinity: service
                    .affinity_seconds
                    .map(|seconds| Duration::from_secs(seconds.into())),
                sources: (way.sources == Sources::Ranges).then(&ranges),
            })
        };
        let listener = |way| Listener {
            name: owner.name.clone(),
            way,
        };
        ServedPort {
            name: owner.name.to_string().into(),
            listeners: ways
                .into_iter()
                .map(|way| (listener(way), serving(way)))
                .collect(),
            portals,
            owner,
        }
    };
    service.ports.iter().map(compile).collect()
}
