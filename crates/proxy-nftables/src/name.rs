//! Names of chains, sets and maps: fixed names, and names that contain a Service port and
//! upstream's hash of this Service port.
//!
//! Source: upstream's `pkg/proxy/nftables/proxier.go` (`hashAndTruncate`,
//! `servicePortChainNameBase`, `servicePortEndpointChainNameBase`).

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use nftables_netlink::Name;
use proxy::{Protocol, ServicePortName};
use ring::digest::{SHA256, digest};

/// The name of the table, in the families `ip` and `ip6`.
pub const TABLE: &str = "kube-proxy";

/// Name of the set of all ClusterIPs.
pub(crate) const CLUSTER_IPS: &str = "cluster-ips";
/// Name of the set of the node's addresses that serve NodePorts.
pub(crate) const NODE_PORT_IPS: &str = "nodeport-ips";
/// Name of the set of connections from an endpoint on this node to itself.
pub(crate) const HAIRPIN: &str = "hairpin-connections";
/// Name of the verdict map from service addresses (address, protocol, port) to chains.
pub(crate) const SERVICE_IPS: &str = "service-ips";
/// Name of the verdict map from NodePorts (protocol, port) to chains.
pub(crate) const SERVICE_NODE_PORTS: &str = "service-nodeports";
/// Name of the verdict map from load-balancer addresses with source ranges to firewall chains.
pub(crate) const FIREWALL_IPS: &str = "firewall-ips";
/// Name of the verdict map for service addresses without endpoints.
pub(crate) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
/// Name of the verdict map for NodePorts without endpoints.
pub(crate) const NO_ENDPOINT_NODE_PORTS: &str = "no-endpoint-nodeports";
/// Name of the set of NodePorts that rules reject on localhost.
pub(crate) const LOCALHOST_NODE_PORTS: &str = "localhost-nodeports";
/// Name of the chain that rejects and counts packets to NodePorts on localhost.
pub(crate) const LOCALHOST_CHECK: &str = "localhost-nodeports-check";

/// Returns upstream's name of the counter that counts `protocol` packets that rules reject on
/// localhost.
pub const fn localhost_counter(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "localhost-nodeport-rejected-tcp",
        Protocol::Udp => "localhost-nodeport-rejected-udp",
        Protocol::Sctp => "localhost-nodeport-rejected-sctp",
    }
}

/// Returns `name` as a constant if [`localhost_counter`] returns it for some protocol, or else
/// `None`.
pub(crate) fn find_counter(name: &str) -> Option<&'static str> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(localhost_counter);
    all.into_iter().find(|known| *known == name)
}

/// Name of the chain that rejects packets to Services without endpoints.
pub(crate) const REJECT: &str = "reject-chain";

/// Largest length in bytes of a chain's or set's name, without the prefix that shows its purpose.
const MAX_BASE: usize = 240;

/// Purpose of a chain of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Chain that chooses among all endpoints in the cluster.
    Cluster,
    /// Chain that chooses among the endpoints on this node.
    Local,
    /// Chain that handles packets to external IPs, load-balancer IPs and NodePorts.
    External,
    /// Chain that checks the source ranges of load-balancer addresses.
    Firewall,
    /// Chain that sends packets to one endpoint. With session affinity, the chain remembers the
    /// client.
    Endpoint,
}

impl Purpose {
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "service-",
            Self::Local => "local-",
            Self::External => "external-",
            Self::Firewall => "firewall-",
            Self::Endpoint => "endpoint-",
        }
    }
}

/// Prefix of the names of affinity sets. Each set contains the clients that one endpoint serves.
pub(crate) const AFFINITY: &str = "affinity-";

/// Returns true if `chain` is the name of a Service port's chain, by this program or another
/// kube-proxy. Such a name contains a slash.
pub(crate) fn is_of_service(chain: &str) -> bool {
    chain.contains('/')
}

/// Returns true if `set` is the name of a set of session affinity clients, by this program or
/// another kube-proxy.
pub(crate) fn is_affinity(set: &str) -> bool {
    set.starts_with(AFFINITY)
}

/// Returns the name of the set to which an endpoint's chain adds session affinity clients. Returns
/// `None` for any other chain.
pub(crate) fn affinity_of_chain(chain: &str) -> Option<Name> {
    let base = chain.strip_prefix(Purpose::Endpoint.prefix())?;
    Some([AFFINITY, base].concat().into())
}

/// Common part of the names of all chains and sets of a Service port, or of one of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameBase(String);

impl NameBase {
    /// Returns the common part of the names of a Service port's chains.
    pub(crate) fn of_port(name: &ServicePortName) -> Self {
        Self::hashed(&plain(name))
    }

    /// Returns the common part of the names of an endpoint's chain and set.
    pub(crate) fn of_endpoint(name: &ServicePortName, endpoint: SocketAddr) -> Self {
        let mut text = plain(name);
        // Ignores the result: writing to a `String` cannot fail.
        let _ = match endpoint.ip() {
            IpAddr::V4(ip) => write!(text, "__{ip}/{}", endpoint.port()),
            // Replaces colons as upstream does, because `nft` accepts no colons in names.
            IpAddr::V6(ip) => {
                let ip = ip.to_string().replace(':', ".");
                write!(text, "__{ip}/{}", endpoint.port())
            }
        };
        Self::hashed(&text)
    }

    fn hashed(name: &str) -> Self {
        /// Alphabet of base32 (RFC 4648).
        const ALPHABET: [u8; 32] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let digest = digest(&SHA256, name.as_bytes());
        // Encodes five bytes as eight characters.
        let bytes = digest.as_ref().iter().take(5);
        let bits = bytes.fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        let mut base = String::with_capacity(9 + name.len());
        for at in 0..8 {
            let five = usize::try_from(bits >> (35 - 5 * at) & 31).unwrap_or_default();
            base.push(char::from(ALPHABET.get(five).copied().unwrap_or_default()));
        }
        base.push('-');
        base.push_str(name);
        if base.len() > MAX_BASE {
            base.truncate(base.floor_char_boundary(MAX_BASE - 3));
            base.push_str("...");
        }
        Self(base)
    }

    /// Returns the name of the chain for `purpose`.
    pub(crate) fn chain(&self, purpose: Purpose) -> Name {
        [purpose.prefix(), &self.0].concat().into()
    }

    /// Returns true if `chain` consists of the prefix of any purpose and this common part.
    pub(crate) fn has(&self, chain: &str) -> bool {
        let all = [
            Purpose::Cluster,
            Purpose::Local,
            Purpose::External,
            Purpose::Firewall,
            Purpose::Endpoint,
        ];
        let prefix = chain.strip_suffix(&self.0);
        prefix.is_some_and(|prefix| all.iter().any(|purpose| purpose.prefix() == prefix))
    }

    /// Returns the name of the set that contains the clients of an endpoint.
    pub(crate) fn affinity(&self) -> Name {
        [AFFINITY, &self.0].concat().into()
    }
}

/// Returns the Service port as `namespace/name/protocol/port`.
fn plain(name: &ServicePortName) -> String {
    let (service, port) = (&name.service, &name.port);
    format!("{service}/{}/{port}", name.protocol.lower())
}

#[cfg(test)]
mod tests {
    use proxy::NamespacedName;

    use super::*;

    fn port(name: &str, port: &str) -> ServicePortName {
        ServicePortName {
            service: NamespacedName::new("default", name),
            port: port.into(),
            protocol: Protocol::Tcp,
        }
    }

    #[test]
    fn chain_names_equal_upstreams_names() {
        let web = port("web", "");
        let chain = NameBase::of_port(&web).chain(Purpose::Cluster);
        assert_eq!(&*chain, "service-PFISGYVC-default/web/tcp/");
        let endpoint = NameBase::of_endpoint(&web, "10.244.3.5:8080".parse().unwrap());
        assert_eq!(
            &*endpoint.affinity(),
            "affinity-SCJRKLOC-default/web/tcp/__10.244.3.5/8080"
        );
        let endpoint = NameBase::of_endpoint(&web, "[fd00:244:1::5]:80".parse().unwrap());
        assert!(endpoint.0.ends_with("/tcp/__fd00.244.1..5/80"));
    }

    #[test]
    fn long_chain_names_are_cut_to_the_kernels_limit() {
        let name = port(&"n".repeat(253), &"p".repeat(63));
        let base = NameBase::of_port(&name).0;
        assert_eq!((base.len(), base.ends_with("...")), (240, true));
        // The API server rejects such names, but a manifest may contain them.
        let base = NameBase::of_port(&port(&"ä".repeat(200), "")).0;
        assert!(base.len() <= 240 && base.ends_with("..."));
    }
}
