//! Compiles one Service port into the listening ports that it needs, and the portals (addresses and
//! ports) that lead to them. Pure: no clock, no I/O, no log and no kernel access.
//!
//! ```text
//!   ServiceView ─▶ compile ─▶ ServedPort ─┬─▶ listeners   one for each kind of listening port
//!                                         └─▶ portals     each with the kinds that it needs
//! ```
//!
//! Portals may need different kinds of listening ports. A kind answers two questions:
//!
//! * Which endpoints get the connections: all, or only those on this node?
//! * Which clients may connect: all, or only those in the source ranges?
//!
//! A Service port has one listening port for each kind that its portals need. Most Service ports
//! need one kind. So the listening port alone tells the relay which endpoints and clients to allow,
//! without the connection's original destination.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proxy::{
    Endpoints, IpFamily, NodeFacts, Owner, Protocol, ServicePort, ServicePortName, ServiceView,
};

use relay::PortBackends;

/// Endpoints to which a listening port sends clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The port sends clients to all endpoints of the Service port.
    Cluster,
    /// The port sends clients only to endpoints on this node.
    Local,
}

/// Clients that a listening port serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sources {
    /// The port serves all clients.
    All,
    /// The port serves only clients within `loadBalancerSourceRanges`.
    Ranges,
}

/// Kind of a listening port: its endpoints and its allowed clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerKind {
    /// Endpoints to which the port sends clients.
    pub scope: Scope,
    /// Clients that the port serves.
    pub sources: Sources,
}

impl ListenerKind {
    /// All kinds of listening ports.
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

/// A listening port that a Service port needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener {
    /// Service port that owns the listener.
    pub name: ServicePortName,
    /// Kind of the listener.
    pub kind: ListenerKind,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.name.protocol)?;
        if self.kind.scope == Scope::Local {
            f.write_str(", endpoints of this node")?;
        }
        if self.kind.sources == Sources::Ranges {
            f.write_str(", source ranges")?;
        }
        Ok(())
    }
}

/// Destination of packets that rules redirect: an address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Portal {
    /// The destination address of the packets, or `None` for all addresses of this node.
    pub address: Option<IpAddr>,
    /// The transport protocol of the packets.
    pub protocol: Protocol,
    /// The destination port of the packets.
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

/// Kinds of the listening ports to which a portal leads, by the origin of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerKinds {
    /// Kind of the port for packets from other hosts.
    pub outside: ListenerKind,
    /// Kind of the port for packets from pods of this node.
    pub pods: ListenerKind,
    /// Kind of the port for packets from this node itself.
    pub node: ListenerKind,
}

/// A compiled Service port, for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedPort {
    /// Service port that owns the listeners and portals.
    pub owner: Arc<Owner>,
    /// Service port, in the format `namespace/name:port`.
    pub name: Arc<str>,
    /// Listening ports, with their endpoints.
    pub listeners: Vec<(Listener, Arc<PortBackends>)>,
    /// Portals that lead to the listening ports.
    pub portals: Vec<(Portal, ListenerKinds)>,
}

/// Compiles a Service into one entry for each of its ports. Returns no entry if the Service has no
/// address of this family.
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
        // If the ranges admit the node's own address, also admits the load balancer's addresses:
        // the node may have such an address and send packets from it.
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
        let everywhere = |kind| ListenerKinds {
            outside: kind,
            pods: kind,
            node: kind,
        };
        // `externalTrafficPolicy: Local` applies only to clients outside the node: endpoints on
        // this node serve them. All endpoints serve the node itself and its pods, as in iptables
        // mode.
        let external = |sources| ListenerKinds {
            outside: ListenerKind::of(from_outside, sources),
            ..everywhere(ListenerKind::of(Scope::Cluster, sources))
        };
        let of_balancers = if has_ranges {
            Sources::Ranges
        } else {
            Sources::All
        };
        let cluster = (
            portal(Some(cluster_ip), port.port),
            everywhere(ListenerKind::of(within, Sources::All)),
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
        let mut portals: Vec<(Portal, ListenerKinds)> = Vec::new();
        for (portal, kinds) in [cluster].into_iter().chain(addresses).chain(node_port) {
            if portals.iter().all(|(known, _)| *known != portal) {
                portals.push((portal, kinds));
            }
        }
        let kinds = portals.iter();
        let kinds = kinds.flat_map(|(_, kinds)| [kinds.outside, kinds.pods, kinds.node]);
        let mut kinds: Vec<ListenerKind> = kinds.collect();
        kinds.sort_unstable();
        kinds.dedup();
        if owner.name.protocol == Protocol::Sctp {
            // Drops the portals, because the relay opens no port for SCTP. The report names this
            // port as refused.
            portals.clear();
        }
        let serving = |kind: ListenerKind| {
            let targets = match kind.scope {
                Scope::Cluster => &backends.cluster,
                Scope::Local => &backends.local,
            };
            let endpoints = targets.iter();
            Arc::new(PortBackends {
                endpoints: endpoints
                    .map(|target| SocketAddr::new(target.ip, target.port))
                    .collect(),
                affinity: service
                    .affinity_seconds
                    .map(|seconds| Duration::from_secs(seconds.into())),
                sources: (kind.sources == Sources::Ranges).then(&ranges),
            })
        };
        let listener = |kind| Listener {
            name: owner.name.clone(),
            kind,
        };
        ServedPort {
            name: owner.name.to_string().into(),
            listeners: kinds
                .into_iter()
                .map(|kind| (listener(kind), serving(kind)))
                .collect(),
            portals,
            owner,
        }
    };
    service.ports.iter().map(compile).collect()
}
