//! Names and numbers that the field uses everywhere.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// An IP family. One mode instance serves one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both families, IPv4 first, as upstream syncs them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol of a Service port. The numbers are IANA's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    /// The IANA protocol number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The protocol with this IANA number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|p| p.number() == number)
    }

    /// As iptables and ipset write it.
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// `namespace/name` of an object, cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName(Arc<str>);

impl NamespacedName {
    /// Joins the two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self([namespace, "/", name].concat().into())
    }

    /// The namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.0
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// The name without its namespace.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One port of one Service: what upstream calls a service port name. Displayed as upstream does, `ns/name:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    /// The Service.
    pub service: NamespacedName,
    /// The port's name, empty for the only port of a Service.
    pub port: Arc<str>,
    /// Its protocol: the same name may stand for TCP and UDP.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() {
            write!(f, "{}", self.service)
        } else {
            write!(f, "{}:{}", self.service, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_parts() {
        let name = NamespacedName::new("default", "web");
        assert_eq!((name.namespace(), name.name()), ("default", "web"));
        assert_eq!(name.to_string(), "default/web");
        let port = ServicePortName {
            service: name,
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        assert_eq!(port.to_string(), "default/web:http");
    }

    #[test]
    fn protocol_numbers_are_iana() {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            assert_eq!(Protocol::from_number(protocol.number()), Some(protocol));
        }
        assert_eq!(Protocol::from_number(1), None);
    }
}
