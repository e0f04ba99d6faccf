//! The `KUBE-*` sets: upstream's name, type and comment of each.
//!
//! - Source: upstream's `pkg/proxy/ipvs/ipset.go` and `proxier.go`.
//! - The comment belongs to the iptables rules that match the set. The kernel's set has no comment.
//! - Names of IPv6 sets begin with `KUBE-6-`. Names are cut to the kernel's limit of 31 characters
//!   (`IPSET_MAXNAMELEN` without the final NUL).

use std::fmt;
use std::net::IpAddr;
use std::sync::LazyLock;

use footprint::Says;
use ipnet::IpNet;
use proxy::{IpFamily, Protocol, ServiceAddress, Target};

/// A set that rules of the shim match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is described by its row in ROWS")]
pub enum Set {
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerLocal,
    LoadBalancerFirewall,
    LoadBalancerSourceCidr,
    LoadBalancerSourceIp,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    IpvsIps,
    LocalMark,
    Unserved,
    UnservedOutside,
}

/// Type of a set: the fields of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// Addresses only (`hash:ip`).
    Address,
    /// Addresses, each with a protocol and port (`hash:ip,port`).
    AddressPort,
    /// Addresses with a protocol and port, each with a source address (`hash:ip,port,ip`).
    AddressPortAddress,
    /// Addresses with a protocol and port, each with a source network (`hash:ip,port,net`).
    AddressPortNet,
    /// Ports only (`bitmap:port` with the range 0-65535).
    Port,
    /// Addresses with a protocol and port, each with a firewall mark for packets to it
    /// (`hash:ip,port` with `skbinfo`).
    AddressPortMark,
}

struct SetRow {
    set: Set,
    suffix: &'static str,
    kind: SetKind,
    comment: &'static str,
}

const fn row(set: Set, suffix: &'static str, kind: SetKind, comment: &'static str) -> SetRow {
    SetRow {
        set,
        suffix,
        kind,
        comment,
    }
}

/// Table of all sets, in the order of the variants of [`Set`]: a set's number is the index of its
/// row.
const ROWS: [SetRow; 20] = [
    row(
        Set::LoopBack,
        "LOOP-BACK",
        SetKind::AddressPortAddress,
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
    ),
    row(
        Set::ClusterIp,
        "CLUSTER-IP",
        SetKind::AddressPort,
        "Kubernetes service cluster ip + port for masquerade purpose",
    ),
    row(
        Set::ExternalIp,
        "EXTERNAL-IP",
        SetKind::AddressPort,
        "Kubernetes service external ip + port for masquerade and filter purpose",
    ),
    row(
        Set::ExternalIpLocal,
        "EXTERNAL-IP-LOCAL",
        SetKind::AddressPort,
        "Kubernetes service external ip + port with externalTrafficPolicy=local",
    ),
    row(
        Set::LoadBalancer,
        "LOAD-BALANCER",
        SetKind::AddressPort,
        "Kubernetes service lb portal",
    ),
    row(
        Set::LoadBalancerLocal,
        "LOAD-BALANCER-LOCAL",
        SetKind::AddressPort,
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
    ),
    row(
        Set::LoadBalancerFirewall,
        "LOAD-BALANCER-FW",
        SetKind::AddressPort,
        "Kubernetes service load balancer ip + port for load balancer with sourceRange",
    ),
    row(
        Set::LoadBalancerSourceCidr,
        "LOAD-BALANCER-SOURCE-CIDR",
        SetKind::AddressPortNet,
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
    ),
    row(
        Set::LoadBalancerSourceIp,
        "LOAD-BALANCER-SOURCE-IP",
        SetKind::AddressPortAddress,
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
    ),
    row(
        Set::NodePortTcp,
        "NODE-PORT-TCP",
        SetKind::Port,
        "Kubernetes nodeport TCP port for masquerade purpose",
    ),
    row(
        Set::NodePortLocalTcp,
        "NODE-PORT-LOCAL-TCP",
        SetKind::Port,
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
    ),
    row(
        Set::NodePortUdp,
        "NODE-PORT-UDP",
        SetKind::Port,
        "Kubernetes nodeport UDP port for masquerade purpose",
    ),
    row(
        Set::NodePortLocalUdp,
        "NODE-PORT-LOCAL-UDP",
        SetKind::Port,
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
    ),
    row(
        Set::NodePortSctp,
        "NODE-PORT-SCTP-HASH",
        SetKind::AddressPort,
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
    ),
    row(
        Set::NodePortLocalSctp,
        "NODE-PORT-LOCAL-SCTP-HASH",
        SetKind::AddressPort,
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
    ),
    row(
        Set::HealthCheckNodePort,
        "HEALTH-CHECK-NODE-PORT",
        SetKind::Port,
        "Kubernetes health check node port",
    ),
    row(
        Set::IpvsIps,
        "IPVS-IPS",
        SetKind::Address,
        "Addresses on the ipvs interface",
    ),
    row(
        Set::LocalMark,
        "LOCAL-MARK",
        SetKind::AddressPortMark,
        "externalTrafficPolicy=local: the mark of packets from outside",
    ),
    row(
        Set::Unserved,
        "UNSERVED",
        SetKind::AddressPort,
        "internalTrafficPolicy=local without an endpoint on this node",
    ),
    row(
        Set::UnservedOutside,
        "UNSERVED-OUTSIDE",
        SetKind::AddressPort,
        "externalTrafficPolicy=local without an endpoint on this node",
    ),
];

/// Number of upstream's sets, which are the first rows of [`ROWS`].
const UPSTREAM: usize = 17;

/// Longest name of an ipset, in bytes.
const MAX_NAME: usize = 31;

impl Set {
    /// Returns each set that upstream has, in the order of [`Set`].
    pub fn all() -> impl Iterator<Item = Self> {
        Self::every().take(UPSTREAM)
    }

    /// Returns each set, including those that only `--ipvs-semantics=exact` uses.
    pub fn every() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.set)
    }

    /// Returns true if the set exists only with `--ipvs-semantics=exact`.
    pub fn is_of_exact(self) -> bool {
        self as usize >= UPSTREAM
    }

    /// Number of upstream's sets.
    pub const COUNT: usize = UPSTREAM;
    /// Number of all sets, including those that only `--ipvs-semantics=exact` uses.
    pub(crate) const EVERY: usize = ROWS.len();

    fn row(self) -> &'static SetRow {
        #[allow(
            clippy::indexing_slicing,
            reason = "ROWS has a row for each Set, in their order: see the test"
        )]
        &ROWS[self as usize]
    }

    /// Returns the set's name in the kernel for this IP family.
    pub fn name(self, family: IpFamily) -> String {
        let prefix = match family {
            IpFamily::V4 => "KUBE-",
            IpFamily::V6 => "KUBE-6-",
        };
        let mut name = format!("{prefix}{}", self.row().suffix);
        name.truncate(MAX_NAME);
        name
    }

    /// Returns the set's name in the kernel as a static string, which iptables targets need.
    pub(crate) fn static_name(self, family: IpFamily) -> &'static str {
        static NAMES: LazyLock<[[String; Set::EVERY]; 2]> = LazyLock::new(|| {
            IpFamily::ALL.map(|family| ROWS.each_ref().map(|row| row.set.name(family)))
        });
        let mut of_families = IpFamily::ALL.into_iter().zip(&*NAMES);
        let names = of_families.find(|(of, _)| *of == family);
        names
            .and_then(|(_, names)| names.get(self as usize))
            .map_or("", String::as_str)
    }

    /// Returns the set that has this name in this IP family, or `None` if the name is not one of
    /// ours.
    pub fn by_name(name: &str, family: IpFamily) -> Option<Self> {
        Self::every().find(|set| set.name(family) == name)
    }

    /// Returns the type of the set.
    pub fn kind(self) -> SetKind {
        self.row().kind
    }

    /// Returns the comment of the rules that match the set.
    pub fn comment(self) -> &'static str {
        self.row().comment
    }

    /// Returns what a member of this set proves, for example that the mode owns a virtual server,
    /// or that it has bound an address.
    pub(crate) fn says(self) -> Says {
        match self {
            Self::ClusterIp
            | Self::ExternalIp
            | Self::ExternalIpLocal
            | Self::LoadBalancer
            | Self::NodePortSctp => Says::VirtualServers,
            Self::NodePortTcp => Says::NodePorts(Protocol::Tcp),
            Self::NodePortUdp => Says::NodePorts(Protocol::Udp),
            Self::IpvsIps => Says::Bound,
            Self::LocalMark => Says::Marks,
            _ => Says::Nothing,
        }
    }

    /// Returns true if the set's members prove ownership of virtual servers. The proxy removes a
    /// virtual server before these members.
    pub fn marks_ownership(self) -> bool {
        matches!(self.says(), Says::VirtualServers | Says::NodePorts(_))
    }

    /// Returns the service address in a member: IP address, protocol and port. Returns `None` for a
    /// member without a port or without an address, and for the loop-back set, whose members
    /// contain endpoints.
    pub(crate) fn service_address(self, member: &Member) -> Option<ServiceAddress> {
        match *member {
            _ if self == Self::LoopBack => None,
            Member::AddressPort(address, protocol, port)
            | Member::AddressPortAddress(address, protocol, port, _)
            | Member::AddressPortNet(address, protocol, port, _)
            | Member::AddressPortMark(address, protocol, port, _) => {
                Some(ServiceAddress::new(address, port, protocol))
            }
            Member::Address(_) | Member::Port(_) => None,
        }
    }

    /// Returns the set of a protocol's NodePorts.
    pub fn node_port(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::NodePortTcp,
            Protocol::Udp => Self::NodePortUdp,
            Protocol::Sctp => Self::NodePortSctp,
        }
    }

    /// Returns the set of a protocol's NodePorts whose Services have `externalTrafficPolicy:
    /// Local`.
    pub fn node_port_local(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::NodePortLocalTcp,
            Protocol::Udp => Self::NodePortLocalUdp,
            Protocol::Sctp => Self::NodePortLocalSctp,
        }
    }
}

/// A member of a set. It is displayed in the format of `ipset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// An address (`ADDRESS`).
    Address(IpAddr),
    /// An address with protocol and port (`ADDRESS,PROTOCOL:PORT`).
    AddressPort(IpAddr, Protocol, u16),
    /// An address with protocol and port, and a source address (`ADDRESS,PROTOCOL:PORT,ADDRESS`).
    AddressPortAddress(IpAddr, Protocol, u16, IpAddr),
    /// An address with protocol and port, and a source network (`ADDRESS,PROTOCOL:PORT,NETWORK`).
    AddressPortNet(IpAddr, Protocol, u16, IpNet),
    /// A port (`PORT`).
    Port(u16),
    /// An address with protocol and port, and a firewall mark (`ADDRESS,PROTOCOL:PORT,MARK`).
    AddressPortMark(IpAddr, Protocol, u16, u32),
}

impl From<ServiceAddress> for Member {
    fn from(at: ServiceAddress) -> Self {
        Self::AddressPort(at.address, at.protocol, at.port)
    }
}

impl Member {
    /// Returns the prefix length of the member's source network, or `None` if it has none.
    pub(crate) fn prefix_len(&self) -> Option<u8> {
        match self {
            Self::AddressPortNet(.., net) => Some(net.prefix_len()),
            _ => None,
        }
    }

    /// Returns the endpoint in a member of the loop-back set, whose packets to itself are
    /// masqueraded. Returns `None` for a member of any other form.
    pub(crate) fn looped_back(&self) -> Option<(Protocol, Target)> {
        match *self {
            Self::AddressPortAddress(ip, protocol, port, source) if ip == source => {
                Some((protocol, Target { ip, port }))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::AddressPort(address, protocol, port) => {
                write!(f, "{address},{}:{port}", protocol.lower())
            }
            Self::AddressPortAddress(address, protocol, port, second) => {
                write!(f, "{address},{}:{port},{second}", protocol.lower())
            }
            Self::AddressPortNet(address, protocol, port, net) => {
                write!(f, "{address},{}:{port},{net}", protocol.lower())
            }
            Self::Port(port) => write!(f, "{port}"),
            Self::AddressPortMark(address, protocol, port, mark) => {
                write!(f, "{address},{}:{port},{mark:#x}", protocol.lower())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sets_enum_value_is_the_index_of_its_table_row() {
        for (index, set) in Set::every().enumerate() {
            assert_eq!(set as usize, index);
        }
    }

    #[test]
    fn set_names_equal_upstreams_names() {
        assert_eq!(Set::LoopBack.name(IpFamily::V4), "KUBE-LOOP-BACK");
        assert_eq!(
            Set::LoadBalancerSourceCidr.name(IpFamily::V6),
            "KUBE-6-LOAD-BALANCER-SOURCE-CID"
        );
        assert_eq!(
            Set::NodePortLocalSctp.name(IpFamily::V6),
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"
        );
        for family in IpFamily::ALL {
            for set in Set::every() {
                assert_eq!(Set::by_name(&set.name(family), family), Some(set));
                assert_eq!(set.static_name(family), set.name(family));
            }
        }
        assert_eq!(Set::by_name("KUBE-CLUSTER-IP", IpFamily::V6), None);
    }

    #[test]
    fn set_members_are_displayed_in_the_format_of_ipset() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(
            Member::AddressPortAddress(ip, Protocol::Tcp, 80, ip).to_string(),
            "10.0.0.1,tcp:80,10.0.0.1"
        );
        let net = "10.1.0.0/16".parse().unwrap();
        assert_eq!(
            Member::AddressPortNet(ip, Protocol::Sctp, 80, net).to_string(),
            "10.0.0.1,sctp:80,10.1.0.0/16"
        );
    }
}
