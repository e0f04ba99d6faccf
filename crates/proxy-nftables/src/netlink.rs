//! Access to the real kernel, for one IP family: nf\_tables and rtnetlink.
//!
//! Calls block until the kernel has replied, so a worker thread makes them. Each socket belongs to
//! the network namespace of the thread that opened it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use footprint::Footprints;
use nftables_netlink::{Error, Family, Nftables, OwnSockets, Rule, Transaction};
use proxy::{IpFamily, Unreadable};

use crate::clients::OTHER_KIND;
use crate::kernel::{Kernel, Object, Refusal};
use crate::localhost::Localhost;
use crate::name::TABLE;
use crate::plan::LocalhostPort;
use crate::refusal::refusal_of;
use crate::snapshot::seconds;

/// Access to the kernel for one IP family. It opens each socket when it first needs the socket.
#[derive(Debug)]
pub struct NetlinkKernel {
    family: IpFamily,
    nftables: Option<Nftables>,
    /// Netlink sockets of this program. Its subscriptions to kernel notifications ignore changes
    /// that were made through these sockets.
    own: Arc<OwnSockets>,
    /// Names of the links that modes create, such as `kube-ipvs0`. Addresses on these links are
    /// service addresses, not addresses of the node.
    links: Vec<&'static str>,
    localhost: Option<Localhost>,
}

impl NetlinkKernel {
    /// Creates access to the kernel for one IP family.
    pub fn new(family: IpFamily) -> Self {
        Self {
            family,
            nftables: None,
            own: Arc::default(),
            links: Vec::new(),
            localhost: None,
        }
    }

    /// Sets the relay that serves NodePorts on localhost. Without a relay (`None`),
    /// [`listen`](Kernel::listen) fails.
    #[must_use]
    pub fn on_localhost(mut self, localhost: Option<Localhost>) -> Self {
        self.localhost = localhost;
        self
    }

    /// Excludes the addresses on the links of these modes (such as `kube-ipvs0`) from the node's
    /// addresses.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.links = footprint::links(modes);
        self
    }

    /// Registers this access's socket in `own`, the list of this program's sockets. The program's
    /// subscriptions to kernel notifications ignore changes through these sockets.
    #[must_use]
    pub fn one_of(mut self, own: Arc<OwnSockets>) -> Self {
        self.own = own;
        self
    }

    fn opened(&mut self) -> Result<&mut Nftables, Error> {
        let opened = match self.nftables.take() {
            Some(opened) => opened,
            None => self.own.open()?,
        };
        Ok(self.nftables.insert(opened))
    }

    fn read(&mut self) -> Result<nftables_netlink::TableDump, Error> {
        // Drops the socket after a failure. The next use opens a new socket.
        self.nftables = None;
        let family = Family::from(self.family);
        self.opened()?.read(family, TABLE)
    }
}

fn unreadable(error: Error) -> Unreadable {
    Unreadable::new("the nftables table kube-proxy", error)
}

impl Kernel for NetlinkKernel {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        route_netlink::all_addresses(self.family, &self.links)
            .map_err(|error| Unreadable::new("the addresses of this node", error))
    }

    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        let whole = self.read().map_err(unreadable)?;
        tell(Object::Begin);
        whole
            .table
            .map(Object::Table)
            .into_iter()
            .for_each(&mut *tell);
        for chain in whole.chains {
            let handle = whole.chain_handles.get(&chain.name);
            let handle = handle.copied().unwrap_or_default();
            tell(Object::Chain(chain, handle));
        }
        for (found, elements) in whole.sets {
            let name = found.set.name.clone();
            tell(Object::Set(found.set, found.handle));
            tell(Object::Elements(name, elements));
        }
        for counter in whole.counters {
            tell(Object::Counter(counter.name));
        }
        for found in whole.rules {
            tell(Object::Rule(found.chain, found.rule));
        }
        Ok(())
    }

    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable> {
        let ip_family = self.family;
        let sets = self.opened();
        let sets = sets.and_then(|opened| opened.sets(Family::from(ip_family), TABLE));
        let sets = sets.map_err(unreadable)?;
        let mut sets = sets.into_iter().map(|found| found.set);
        let found = sets.find(|of| *of.name == *set);
        let seconds = found.map(|of| seconds(ip_family, &of));
        Ok(seconds.filter(|seconds| *seconds != OTHER_KIND))
    }

    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable> {
        let family = Family::from(self.family);
        let opened = self.opened();
        let rules = opened.and_then(|opened| opened.bare_rules_of_chain(family, TABLE, chain));
        let rules = rules.map_err(unreadable)?;
        Ok(rules.into_iter().map(|of| (of.handle, of.rule)).collect())
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let opened = self
            .opened()
            .map_err(|error| Refusal::General(error.to_string()))?;
        let Err(error) = opened.commit(transaction, None) else {
            return Ok(());
        };
        let refusal = refusal_of(transaction, error);
        if matches!(refusal, Refusal::Unknown(_)) {
            // Drops the socket after a failure. The next use opens a new socket.
            self.nftables = None;
        }
        Err(refusal)
    }

    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String> {
        let localhost = self.localhost.as_ref();
        let localhost = localhost.ok_or("there is no relay for it")?;
        localhost.listen(self.family, port)
    }
}
