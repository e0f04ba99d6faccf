//! The endpoints of a Service port, in a compact form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy::{IpFamily, Target};

/// Endpoints in upstream's order, stored compactly because a node may have 500,000 endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoints {
    V4(Box<[[u8; 6]]>),
    V6(Box<[(Ipv6Addr, u16)]>),
}

impl Endpoints {
    /// Packs endpoints in upstream's order. Upstream compares endpoints as text: `10.0.0.10:80`
    /// precedes `10.0.0.9:80`.
    pub(super) fn new(family: IpFamily, targets: &[Target]) -> Self {
        let ends = targets.iter().map(|of| SocketAddr::new(of.ip, of.port));
        let mut ends: Vec<SocketAddr> = ends.collect();
        ends.sort_by_cached_key(ToString::to_string);
        match family {
            IpFamily::V4 => Self::V4(ends.iter().filter_map(pack).collect()),
            IpFamily::V6 => Self::V6(
                ends.iter()
                    .filter_map(|at| match at.ip() {
                        IpAddr::V6(ip) => Some((ip, at.port())),
                        IpAddr::V4(_) => None,
                    })
                    .collect(),
            ),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::V4(all) => all.len(),
            Self::V6(all) => all.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn at(&self, place: usize) -> Option<SocketAddr> {
        match self {
            Self::V4(all) => all.get(place).map(|[a, b, c, d, high, low]| {
                let port = u16::from_be_bytes([*high, *low]);
                (Ipv4Addr::new(*a, *b, *c, *d), port).into()
            }),
            Self::V6(all) => all.get(place).map(|at| (*at).into()),
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        (0..self.len()).map(move |place| self.at(place).unwrap_or(nowhere))
    }
}

fn pack(at: &SocketAddr) -> Option<[u8; 6]> {
    let IpAddr::V4(ip) = at.ip() else {
        return None;
    };
    let ([a, b, c, d], [high, low]) = (ip.octets(), at.port().to_be_bytes());
    Some([a, b, c, d, high, low])
}
