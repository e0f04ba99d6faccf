//! Reads nf_tables tables from the kernel: the endpoints of Services in nftables mode, and the sets
//! of IPVS mode with its shim in nftables.

mod flat;

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result, bail, ensure};
use nftables_netlink::{
    Change, Element, ElementData, Expression, Family, Generation, Name, Nftables, SetRef, Table,
    Transaction, Verdict,
};

use crate::rules::Servers;

/// Name of the table of nftables mode, in our daemon and in upstream's kube-proxy.
pub(crate) const TABLE: &str = "kube-proxy";
/// Map of this table from Service addresses to chains.
const SERVICES: &str = "service-ips";
/// Name of the table with the rules and sets of IPVS mode (the shim).
pub(crate) const SHIM: &str = "kube-proxy-ipvs";
/// Temporary table with which the benchmark finds out whether the kernel supports an address
/// family.
const PROBE: &str = "bench-probe";
const PROTOCOL_TCP: u8 = 6;
/// Maximum number of Services of which the final comparison reads all endpoints. A Service needs
/// several requests, for each of which the kernel walks through all maps.
const WHOLE: usize = 12_000;
/// Approximate number of Services to read if there are more than [`WHOLE`].
const SAMPLE: usize = 1_000;

/// Layout of the table of nftables mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Upstream's layout: a chain for each Service, and for each endpoint.
    Upstream,
    /// Our flat layout: map elements instead of chains, in maps that all Services share.
    Flat,
}

/// A socket for nf_tables, in the network namespace of the thread that opened it.
pub(crate) struct Tables {
    nft: Nftables,
    /// Chains of the Services, as last read from the map `service-ips`.
    chains: HashMap<SocketAddrV4, Name>,
    /// Layout of the table, or `None` as long as the table does not exist.
    layout: Option<Layout>,
    /// Service that was last found incorrect, and the ruleset's generation at that time. Until the
    /// generation changes, the Service need not be read again.
    unwanted: Option<(Ipv4Addr, Generation)>,
}

impl Tables {
    pub(crate) fn open() -> Result<Self> {
        const NONE: &str = "the kernel has no nf_tables";
        let mut nft = Nftables::open().context(NONE)?;
        // A kernel may have nf_tables without the family `ip`. Finds out by adding and deleting a
        // table in one transaction.
        let probe = Transaction {
            family: Family::Ip,
            table: PROBE.into(),
            changes: vec![
                Change::AddTable(Table {
                    family: Family::Ip,
                    name: PROBE.into(),
                    activity: nftables_netlink::Activity::Active,
                    comment: None,
                }),
                Change::DeleteTable,
            ],
        };
        nft.commit(&probe, None).context(NONE)?;
        Ok(Self {
            nft,
            chains: HashMap::new(),
            layout: None,
            unwanted: None,
        })
    }

    /// Returns the layout of the table, or upstream's as long as the table does not exist.
    fn layout(&mut self) -> Result<Layout> {
        if self.layout.is_none() && self.has_set(SERVICES)? {
            let is_flat = self.has_set(flat::MANY)?;
            self.layout = Some(if is_flat {
                Layout::Flat
            } else {
                Layout::Upstream
            });
        }
        Ok(self.layout.unwrap_or(Layout::Upstream))
    }

    /// Returns false if only IPv4 has the table so far.
    pub(crate) fn is_in_both(&mut self, table: &str) -> Result<bool> {
        let tables = self.nft.tables(None)?;
        let is_in = |family| {
            let is_it = |one: &Table| one.family == family && *one.name == *table;
            tables.iter().any(is_it)
        };
        Ok(!is_in(Family::Ip) || is_in(Family::Ip6))
    }

    /// Returns true if new connections to a Service reach exactly the endpoints in `wanted`.
    /// Without endpoints, the Service need not exist.
    pub(crate) fn serves(
        &mut self,
        at: SocketAddrV4,
        wanted: &BTreeSet<SocketAddrV4>,
    ) -> Result<bool> {
        let generation = self.nft.generation()?;
        if self.unwanted == Some((*at.ip(), generation)) {
            return Ok(false);
        }
        if self.layout()? == Layout::Flat {
            let serves = self.flat_endpoints(at)? == *wanted;
            self.unwanted = (!serves).then_some((*at.ip(), generation));
            return Ok(serves);
        }
        // A Service's chain is constant, so a known chain need not be read again from the map.
        if wanted.is_empty() || !self.chains.contains_key(&at) {
            self.read_chains()?;
        }
        let serves = match self.chains.get(&at).cloned() {
            None => wanted.is_empty(),
            // An error means that the Service is not served: the kube-proxy may have deleted the
            // chain.
            Some(chain) => self.endpoints(&chain).is_ok_and(|found| found == *wanted),
        };
        self.unwanted = (!serves).then_some((*at.ip(), generation));
        Ok(serves)
    }

    /// Returns all Services with their endpoints. In upstream's layout with many Services, reads
    /// the endpoints only of a sample. For other Services, assumes the wanted endpoints if the map
    /// has a chain for them.
    pub(crate) fn servers(&mut self, wanted: &Servers) -> Result<Servers> {
        if self.layout()? == Layout::Flat {
            return self.flat_servers();
        }
        self.read_chains()?;
        let chains: Vec<(SocketAddrV4, Name)> = self
            .chains
            .iter()
            .map(|(at, chain)| (*at, chain.clone()))
            .collect();
        let step = if chains.len() > WHOLE {
            chains.len() / SAMPLE
        } else {
            1
        };
        let mut different: BTreeSet<&Name> = BTreeSet::new();
        let mut servers = Servers::new();
        for (number, (at, chain)) in chains.iter().enumerate() {
            ensure!(
                different.insert(chain),
                "two Services lead to the chain {chain}"
            );
            let found = match wanted.get(at) {
                Some(wanted) if number % step != 0 => wanted.clone(),
                _ => self.endpoints(chain)?,
            };
            servers.insert(*at, found);
        }
        Ok(servers)
    }

    /// Returns the elements of a set or map, or none if it does not exist.
    pub(crate) fn members(&mut self, table: &str, set: &str) -> Result<Vec<Element>> {
        match self.nft.elements(Family::Ip, table, set) {
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            elements => Ok(elements?),
        }
    }

    /// Removes the elements that lead to a Service from their map.
    pub(crate) fn take_out(&mut self, at: SocketAddrV4) -> Result<()> {
        let (map, gone) = match self.layout()? {
            Layout::Flat => self.flat_elements(at)?,
            Layout::Upstream => {
                let mut elements = self.members(TABLE, SERVICES)?;
                elements.retain(|one| address(&one.key) == Some(at));
                (SERVICES, elements)
            }
        };
        ensure!(!gone.is_empty(), "{at} is not in {map}");
        let transaction = Transaction {
            family: Family::Ip,
            table: TABLE.into(),
            changes: vec![Change::DeleteElements(map.into(), gone)],
        };
        self.nft
            .commit(&transaction, None)
            .context("cannot take an element away")?;
        Ok(())
    }

    fn read_chains(&mut self) -> Result<()> {
        self.chains.clear();
        for element in self.members(TABLE, SERVICES)? {
            let Some(at) = address(&element.key) else {
                bail!("{SERVICES} has a key that is not of the objects");
            };
            if let Some(ElementData::Verdict(Verdict::Goto(chain))) = element.data {
                self.chains.insert(at, chain);
            }
        }
        Ok(())
    }

    /// Returns the endpoints to which the rule of a Service's chain can send packets.
    fn endpoints(&mut self, chain: &str) -> Result<BTreeSet<SocketAddrV4>> {
        let rules = self.nft.rules_of_chain(Family::Ip, TABLE, chain)?;
        let [rule] = rules.as_slice() else {
            bail!("{} rules in {chain}", rules.len());
        };
        let map = rule.rule.expressions.iter().find_map(|one| match one {
            Expression::Lookup {
                set: SetRef::Anonymous(map),
                ..
            } => Some(map),
            _ => None,
        });
        let map = map.with_context(|| format!("the rule in {chain} asks no map of its own"))?;
        let ends = map.elements.iter().filter_map(|one| match &one.data {
            Some(ElementData::Value(value)) => endpoint(value),
            _ => None,
        });
        Ok(ends.collect())
    }
}

fn is_absent(error: &nftables_netlink::Error) -> bool {
    matches!(
        error,
        nftables_netlink::Error::Netlink(netlink_batch::Error::Refused(refusal))
            if refusal.errno == libc::ENOENT
    )
}

/// Parses the start of a map key: Service address, protocol (TCP) and port.
pub(crate) fn address(key: &[u8]) -> Option<SocketAddrV4> {
    match key {
        [a, b, c, d, PROTOCOL_TCP, _, _, _, high, low, ..] => Some(SocketAddrV4::new(
            Ipv4Addr::new(*a, *b, *c, *d),
            u16::from_be_bytes([*high, *low]),
        )),
        _ => None,
    }
}

fn endpoint(value: &[u8]) -> Option<SocketAddrV4> {
    match value {
        [a, b, c, d, high, low, ..] => Some(SocketAddrV4::new(
            Ipv4Addr::new(*a, *b, *c, *d),
            u16::from_be_bytes([*high, *low]),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nftables_map_keys_and_values_decode_to_addresses() {
        let at = "10.96.1.0:80".parse().unwrap();
        assert_eq!(address(&[10, 96, 1, 0, 6, 0, 0, 0, 0, 80, 0, 0]), Some(at));
        assert_eq!(address(&[10, 96, 1, 0, 17, 0, 0, 0, 0, 80, 0, 0]), None);
        let end = "10.128.1.0:8080".parse().unwrap();
        assert_eq!(endpoint(&[10, 128, 1, 0, 31, 144, 0, 0]), Some(end));
    }
}
