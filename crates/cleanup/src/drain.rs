//! Drains the IPVS virtual servers of the mode that ran before the current mode: keeps them until
//! their connections have ended.
//!
//! ```text
//!   drain_beside ─▶ Drain ─▶ look ─▶ … ─▶ look: none left, or timeout ─▶ clean_up_beside
//! ```
//!
//! The kernel holds all state of a drain: virtual servers with weight 0, and the evidence of their
//! mode. So [`drain_beside`](crate::drain_beside) can continue a drain after a restart.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;

use footprint::Footprints;
use inet::IpFamily;
use ipvs_netlink::{Error, Ipvs};

use crate::evidence::Server;
use crate::report::{Cleanup, DrainingServer, NeededAddresses};
use crate::{links, servers};

/// Virtual servers of former modes that wait for their connections to end.
#[derive(Debug)]
pub struct Drain {
    modes: Footprints,
    servers: Vec<DrainingServer>,
}

impl Drain {
    /// Creates a drain of the virtual servers that `cleanup` lists as draining. Returns `None` if
    /// it lists none.
    pub fn of(modes: Footprints, cleanup: &Cleanup) -> Option<Self> {
        let servers = cleanup.draining.clone();
        (!servers.is_empty()).then_some(Self { modes, servers })
    }

    /// Returns the number of draining virtual servers of an IP family, and the number of their
    /// connections at the last [`Drain::look`].
    pub fn counts(&self, family: IpFamily) -> (u64, u64) {
        let servers = self.servers.iter();
        let of_family = servers.filter(|server| server.key.family() == family);
        of_family.fold((0, 0), |(servers, connections), server| {
            (servers + 1, connections + server.connections)
        })
    }

    /// Returns the IP families in which the drain keeps all service addresses. This is necessary if
    /// a draining virtual server serves a firewall mark, and no set lists the addresses of this
    /// mark.
    pub fn families_with_all_addresses(&self) -> impl Iterator<Item = IpFamily> + use<> {
        let needed = NeededAddresses::of(&self.servers);
        let families = IpFamily::ALL.into_iter();
        families.filter(move |family| needed.is_whole(*family))
    }

    /// Removes the draining virtual servers without connections, and their addresses. Returns true
    /// once no draining virtual server is left.
    ///
    /// The addresses of the last virtual servers stay until the cleanup after the drain. The cost
    /// grows with the number of draining virtual servers.
    ///
    /// # Errors
    ///
    /// Returns a text for the operator if the kernel's state cannot be read or written.
    pub fn look(&mut self) -> Result<bool, String> {
        let ended = self.end().map_err(|error| error.to_string())?;
        if !self.servers.is_empty() && !ended.is_empty() {
            let links = self.modes.iter().filter_map(|mode| mode.link);
            links::release(links, &ended).map_err(|error| error.to_string())?;
        }
        Ok(self.servers.is_empty())
    }

    /// Deletes the draining virtual servers without connections. Returns the addresses that no
    /// remaining one needs.
    fn end(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        let mut ipvs = Ipvs::open()?;
        let mut ended = Vec::new();
        let mut left = Vec::new();
        for mut server in mem::take(&mut self.servers) {
            // A virtual server that another program has deleted has no destinations, so no
            // connections.
            server.connections = servers::connections(&ipvs.destinations(&server.key)?);
            if server.connections == 0 {
                ended.push(server);
            } else {
                left.push(server);
            }
        }
        self.servers = left;
        let doomed = ended.iter().map(|server| Server {
            key: server.key,
            flags: 0,
        });
        // Ignores refusals: the cleanup after the drain reports virtual servers that still exist.
        servers::delete(&mut ipvs, &doomed.collect::<Vec<_>>())?;
        let needed = NeededAddresses::of(&self.servers);
        let mut released = NeededAddresses::of(&ended).named;
        released.retain(|ip| !needed.contains(*ip));
        Ok(released)
    }
}

#[cfg(test)]
mod tests {
    use ipvs_netlink::ServiceKey;

    use super::*;

    #[test]
    fn a_firewall_mark_without_addresses_keeps_all_addresses_of_its_family() {
        let server = |mark, addresses: &[&str]| DrainingServer {
            key: ServiceKey::Fwmark {
                family: IpFamily::V4,
                mark,
            },
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            connections: 1,
        };
        let families = |servers: &[DrainingServer]| -> Vec<IpFamily> {
            let drain = Drain {
                modes: &[],
                servers: servers.to_vec(),
            };
            drain.families_with_all_addresses().collect()
        };
        let named = server(1, &["192.0.2.1"]);
        assert_eq!(families(std::slice::from_ref(&named)), []);
        assert_eq!(families(&[named, server(2, &[])]), [IpFamily::V4]);
    }
}
