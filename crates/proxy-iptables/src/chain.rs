//! Names of this mode's chains. Shared chains have fixed names. A Service port's chains have names
//! with upstream's hashes.

use std::fmt;
use std::net::SocketAddr;

use iptables::ChainName;
pub use iptables::Table;
use proxy::Protocol;
use ring::digest::{SHA256, digest};

/// Purpose of a chain that belongs to one Service port. All such chains are in table nat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Chain that chooses any endpoint in the cluster (`KUBE-SVC-`).
    Cluster,
    /// Chain that chooses an endpoint on this node (`KUBE-SVL-`).
    Local,
    /// Chain for packets to NodePorts, external IPs and load-balancer addresses (`KUBE-EXT-`).
    External,
    /// Chain that checks the source ranges of load-balancer addresses (`KUBE-FW-`).
    Firewall,
    /// Chain that sends packets to one endpoint (`KUBE-SEP-`).
    Endpoint,
}

impl Purpose {
    const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Local,
        Self::External,
        Self::Firewall,
        Self::Endpoint,
    ];

    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

/// Hash in a chain's name: 16 characters of base32, which distinguish chains with the same prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 16]);

impl Hash {
    /// Returns the hash in the names of a Service port's chains. `name` is `namespace/name:port`.
    pub fn of_port(name: &str, protocol: Protocol) -> Self {
        Self::of(format_args!("{name}{}", protocol.lower()))
    }

    /// Returns the hash in the name of an endpoint's chain. `name` is the Service port's
    /// `namespace/name:port`.
    pub fn of_endpoint(name: &str, protocol: Protocol, endpoint: SocketAddr) -> Self {
        Self::of(format_args!("{name}{}{endpoint}", protocol.lower()))
    }

    fn of(what: fmt::Arguments<'_>) -> Self {
        /// Alphabet of base32 (RFC 4648).
        const ALPHABET: [u8; 32] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let digest = digest(&SHA256, what.to_string().as_bytes());
        let mut bytes = digest.as_ref().iter();
        let mut hash = [0; 16];
        // Base32 encodes five bytes as eight characters.
        for eight in hash.chunks_exact_mut(8) {
            let bits = bytes
                .by_ref()
                .take(5)
                .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            for (at, character) in eight.iter_mut().enumerate() {
                let five = usize::try_from(bits >> (35 - 5 * at) & 31).unwrap_or_default();
                *character = ALPHABET.get(five).copied().unwrap_or_default();
            }
        }
        Self(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A chain that belongs to one Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chain {
    /// Purpose of the chain, which determines the prefix of its name.
    pub purpose: Purpose,
    /// Hash of the Service port, or of the endpoint for [`Purpose::Endpoint`].
    pub hash: Hash,
}

impl Chain {
    /// Parses the name of a Service port's chain. Returns `None` for any other name.
    pub fn parse(name: &str) -> Option<Self> {
        let (purpose, hash) = Purpose::ALL
            .iter()
            .find_map(|purpose| Some((*purpose, name.strip_prefix(purpose.prefix())?)))?;
        let hash: [u8; 16] = hash.as_bytes().try_into().ok()?;
        let is_base32 = |byte: &u8| matches!(byte, b'A'..=b'Z' | b'2'..=b'7');
        hash.iter().all(is_base32).then_some(Self {
            purpose,
            hash: Hash(hash),
        })
    }
}

impl From<Chain> for ChainName {
    fn from(chain: Chain) -> Self {
        Self::Hashed(chain.purpose.prefix(), chain.hash.0)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ChainName::from(*self).fmt(f)
    }
}

/// A chain that contains rules of many Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shared {
    /// filter `KUBE-SERVICES`: rejects or drops packets to cluster IPs without endpoints.
    FilterServices,
    /// filter `KUBE-EXTERNAL-SERVICES`: rejects or drops packets to other addresses without
    /// endpoints.
    FilterExternal,
    /// filter `KUBE-NODEPORTS`: accepts packets to health-check node ports.
    FilterNodePorts,
    /// filter `KUBE-PROXY-FIREWALL`: drops packets to load-balancer addresses from sources outside
    /// the source ranges.
    FilterFirewall,
    /// nat `KUBE-SERVICES`: sends packets for a service address to the chain of its Service port.
    /// Its last rule is the jump for NodePorts.
    NatServices,
    /// nat `KUBE-NODEPORTS`: sends packets for a node port to the chain of its Service port.
    NatNodePorts,
}

impl Shared {
    /// All chains that contain rules of many Services.
    pub const ALL: [Self; 6] = [
        Self::FilterServices,
        Self::FilterExternal,
        Self::FilterNodePorts,
        Self::FilterFirewall,
        Self::NatServices,
        Self::NatNodePorts,
    ];

    /// Returns the table of the chain.
    pub fn table(self) -> Table {
        match self {
            Self::NatServices | Self::NatNodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    /// Returns the name of the chain.
    pub fn name(self) -> &'static str {
        match self {
            Self::FilterServices | Self::NatServices => "KUBE-SERVICES",
            Self::FilterExternal => "KUBE-EXTERNAL-SERVICES",
            Self::FilterNodePorts | Self::NatNodePorts => "KUBE-NODEPORTS",
            Self::FilterFirewall => "KUBE-PROXY-FIREWALL",
        }
    }

    /// Returns the shared chain with this name in this table, or `None` for any other chain.
    pub fn find(table: Table, name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|chain| chain.table() == table && chain.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_hashes_equal_those_of_upstream() {
        let port = Hash::of_port("default/web", Protocol::Tcp);
        assert_eq!(port.to_string(), "LOLE4ISW44XBNF3G");
        let endpoint = |endpoint: &str| {
            Hash::of_endpoint("default/web", Protocol::Tcp, endpoint.parse().unwrap()).to_string()
        };
        assert_eq!(endpoint("10.244.2.5:8080"), "CBTFKNOSRCMRXDOA");
        assert_eq!(endpoint("[fd00:244:2::5]:8080"), "PPKD3DPOM23MUZZ7");
        assert_eq!(
            Hash::of_port("default/sc", Protocol::Sctp).to_string(),
            "CABLGYWUANIJK2Y4"
        );
    }

    #[test]
    fn chain_names_parse_to_their_chains() {
        for purpose in Purpose::ALL {
            let hash = Hash::of_port("a/b:c", Protocol::Udp);
            let chain = Chain { purpose, hash };
            assert_eq!(Chain::parse(&chain.to_string()), Some(chain));
            assert!(chain.to_string().len() <= iptables::MAX_CHAIN_NAME);
        }
        for other in [
            "KUBE-SVC-",
            "KUBE-SVC-lole4isw44xbnf3g",
            "KUBE-SERVICES",
            "KUBE-SEP-ÄÄÄÄÄÄÄÄ",
        ] {
            assert_eq!(Chain::parse(other), None, "{other}");
        }
        for chain in Shared::ALL {
            assert_eq!(Shared::find(chain.table(), chain.name()), Some(chain));
        }
    }
}
