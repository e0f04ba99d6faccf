//! Drains the virtual servers of a mode that served before.
//!
//! ```text
//!   drain_beside ─▶ Drain ─▶ look ─▶ … ─▶ look: none left, or the time is over ─▶ clean_up_beside
//! ```
//!
//! The kernel has the whole state: virtual servers at weight 0, and the evidence of their mode. So
//! [`drain_beside`](crate::drain_beside) continues a drain after a restart.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;

use footprint::Footprints;
use inet::IpFamily;
use ipvs_netlink::{Error, Ipvs};

use crate::evidence::Server;
use crate::report::{Cleanup, DrainingServer, NeededAddresses};
use crate::{links, servers};

/// Virtual servers that drain.
#[derive(Debug)]
pub struct Drain {
    modes: Footprints,
    servers: Vec<DrainingServer>,
}

impl Drain {
    /// Returns the drain that a cleanup of these modes began, or `None` if nothing drains.
    pub fn of(modes: Footprints, cleanup: &Cleanup) -> Option<Self> {
        let servers = cleanup.draining.clone();
        (!servers.is_empty()).then_some(Self { modes, servers })
    }

    /// Returns the numbers of a family's virtual servers and of their connections at the last look.
    pub fn counts(&self, family: IpFamily) -> (u64, u64) {
        let servers = self.servers.iter();
        let of_family = servers.filter(|server| server.key.family() == family);
        of_family.fold((0, 0), |(servers, connections), server| {
            (servers + 1, connections + server.connections)
        })
    }

    /// Removes the virtual servers whose last connection has ended, and their addresses. Returns
    /// true once none is left; the cleanup after the drain then removes the last addresses. Costs
    /// O(draining virtual servers).
    ///
    /// # Errors
    ///
    /// Text for the operator if the kernel cannot be read or written.
    pub fn look(&mut self) -> Result<bool, String> {
        let ended = self.end().map_err(|error| error.to_string())?;
        if !self.servers.is_empty() && !ended.is_empty() {
            let links = self.modes.iter().filter_map(|mode| mode.link);
            links::release(links, &ended).map_err(|error| error.to_string())?;
        }
        Ok(self.servers.is_empty())
    }

    /// Deletes the virtual servers without connections. Returns the addresses that no virtual server
    /// needs any more.
    fn end(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        let mut ipvs = Ipvs::open()?;
        let mut ended = Vec::new();
        let mut left = Vec::new();
        for mut server in mem::take(&mut self.servers) {
            // A virtual server that another program has deleted has no destinations.
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
        // The cleanup after the drain reports a virtual server that cannot be deleted.
        servers::delete(&mut ipvs, &doomed.collect::<Vec<_>>())?;
        let needed = NeededAddresses::of(&self.servers);
        let mut released = NeededAddresses::of(&ended).named;
        released.retain(|ip| !needed.contains(*ip));
        Ok(released)
    }
}
