//! Evaluates nf_tables rules for a packet.
//!
//! ```text
//!  Nft::read ─▶ base chains of ip, ip6, inet ─┐        Reader: the kernel (Nftables), or snapshot
//!                                             ▼               ▲ rules of one chain, one set,
//!  Ruleset::walk ─▶ Evaluation: chain, rule ─▶ Run: expressions over registers ─┘ one element
//!                        └─ say, text: the effect of a rule, and its text in nft's format
//! ```
//!
//! The evaluation reads only objects on the packet's path: in a table with 50,000 Services, about a
//! dozen chains and elements. Only the search for base chains needs a dump of all chains. The
//! ruleset's generation shows whether the read was consistent ([`consistently`]).
//!
//! **Assumptions about the first packet of a flow:**
//!
//! - The packet is no fragment. A TCP packet is a SYN.
//! - The packet exceeds no limit, and every dynamic set has room for it.
//!
//! **Assumptions about the reply:**
//!
//! - The client's port is an ordinary ephemeral port
//!   ([`Packet::CLIENT_PORT`](crate::Packet::CLIENT_PORT)).
//! - A dynamic set contains the client only if it does so now.
//!
//! If a rule depends on other unknown data (owner of a socket, CPU, client port), the evaluation
//! follows both outcomes, match and no match. Each of these paths records a doubt.
//!
//! **Tables of iptables-nft**: this module ignores the tables that iptables-nft has created
//! (`filter`, `nat`, `mangle`, `raw` and `security` of ip and ip6, if they have only iptables' base
//! chains). The module `xtables` reads their rules as iptables text ([`Nft::left_to_iptables`]).

mod describe;
mod evaluate;
mod expressions;
mod fields;
mod in_memory;
mod reader;
mod registers;
mod run;
mod sets;
mod translate;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashSet;

use inet::IpFamily;
use nftables_netlink::{Activity, Error, Family, HookedChain, Name};

pub use in_memory::InMemoryTables;
pub use reader::{ObjectId, Reader};

use crate::branch::{Branch, End};
use crate::kernel::Kernel;
use crate::ruleset::{Base, Hook, Ruleset};
use reader::CachedReader;
use run::Evaluation;

/// Maximum number of attempts to evaluate a query on a ruleset that does not change meanwhile.
const ATTEMPTS: u32 = 5;

/// The nf_tables rules for packets of one IP family.
#[derive(Debug)]
pub struct Nft<R> {
    /// Base chains that see packets of the family. [`Base::number`] is an index in this list.
    bases: Vec<(ObjectId, nftables_netlink::BaseChain)>,
    left_to_iptables: Vec<(Family, Name)>,
    notes: Vec<String>,
    /// Reader with its cache. [`Ruleset::walk`] takes `&self` but changes the cache, hence the
    /// `RefCell`.
    asked: RefCell<CachedReader<R>>,
}

/// Evaluates `question` on a consistent ruleset. If the ruleset changes meanwhile, evaluates it
/// again, at most five times in total. The last result may mix two states of the ruleset.
///
/// # Errors
///
/// Fails if the ruleset cannot be read.
pub fn consistently<R: Reader, T>(
    reader: &mut R,
    family: IpFamily,
    mut question: impl FnMut(&Nft<&mut R>) -> T,
) -> Result<ConsistentAnswer<T>, Error> {
    let mut attempt = 1;
    loop {
        let before = reader.generation()?;
        let nft = Nft::read(&mut *reader, family)?;
        let answer = question(&nft);
        drop(nft);
        let is_of_one_moment = reader.generation()? == before;
        if is_of_one_moment || attempt == ATTEMPTS {
            return Ok(ConsistentAnswer {
                answer,
                is_of_one_moment,
            });
        }
        attempt += 1;
    }
}

/// Response to a query, and whether the ruleset was consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsistentAnswer<T> {
    /// Response to the query.
    pub answer: T,
    /// True if the ruleset did not change during the query.
    pub is_of_one_moment: bool,
}

impl<R: Reader> Nft<R> {
    /// Reads the base chains that see packets of `family`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has no nf_tables, or if the process lacks CAP_NET_ADMIN.
    pub fn read(mut reader: R, family: IpFamily) -> Result<Self, Error> {
        let tables = reader.tables()?;
        let dormant = tables
            .into_iter()
            .filter(|of| of.activity == Activity::Dormant);
        let dormant: HashSet<(Family, Name)> = dormant.map(|of| (of.family, of.name)).collect();
        let mut hooked = reader.base_chains()?;
        hooked.retain(|of| !dormant.contains(&(of.family, Name::clone(&of.table))));
        let mut nft = Self {
            bases: Vec::new(),
            left_to_iptables: iptables_tables(&hooked, family),
            notes: Vec::new(),
            asked: RefCell::new(CachedReader::new(reader)),
        };
        for of in hooked {
            nft.take(of, family);
        }
        Ok(nft)
    }

    /// Adds a base chain, unless it belongs to iptables or does not see packets of this IP family.
    fn take(&mut self, of: HookedChain, family: IpFamily) {
        let table = (of.family, Name::clone(&of.table));
        let at = ObjectId {
            family: of.family,
            table: of.table,
            name: of.chain,
        };
        match (of.family, of.base) {
            (Family::Ip | Family::Ip6, _) if of.family != family.into() => {}
            (Family::Ip | Family::Ip6, _) if self.left_to_iptables.contains(&table) => {}
            (Family::Ip | Family::Ip6 | Family::Inet, Some(base)) => self.bases.push((at, base)),
            // Skips ARP chains, because ARP packets belong to no flow.
            (Family::Arp, _) => {}
            _ => self.notes.push(format!(
                "{} is not looked at: it is asked before a packet is routed, or instead, and may drop it (nft list chain {} {} {})",
                describe::place(&at),
                at.family.name(),
                at.table,
                at.name,
            )),
        }
    }

    /// Returns the tables that iptables-nft has created, which this module ignores.
    pub fn left_to_iptables(&self) -> &[(Family, Name)] {
        &self.left_to_iptables
    }

    /// Returns notes about ignored chains that may drop packets. Omits the chains of iptables.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn through(
        &self,
        number: usize,
        branch: Branch,
        kernel: &dyn Kernel,
    ) -> Result<Vec<Branch>, Error> {
        let Some((chain, base)) = self.bases.get(number) else {
            return Ok(vec![branch]);
        };
        let mut evaluation = Evaluation {
            asked: &mut self.asked.borrow_mut(),
            kernel,
            budget: evaluate::BUDGET,
        };
        evaluation.base_chain(chain, base.policy, branch)
    }

    /// Returns the table and name of a base chain as text: `table ip kube-proxy, chain
    /// nat-prerouting`.
    pub fn place(&self, base: &Base) -> Option<String> {
        let (chain, _) = self.bases.get(base.number)?;
        Some(describe::place(chain))
    }
}

impl<R: Reader> Ruleset for Nft<R> {
    fn base_chains(&self, hook: Hook) -> Vec<Base> {
        let bases = (0..).zip(&self.bases);
        let here = bases.filter(|(_, (_, base))| base.hook == hook);
        let here = here.map(|(number, (_, base))| Base {
            hook,
            priority: base.priority,
            kind: base.kind,
            number,
        });
        here.collect()
    }

    fn walk(&self, base: &Base, branch: Branch, kernel: &dyn Kernel) -> Vec<Branch> {
        let mut unread = branch.clone();
        match self.through(base.number, branch, kernel) {
            Ok(branches) => branches,
            Err(error) => {
                let place = self.place(base).unwrap_or_default();
                unread.end = Some(End::Unknown(format!("cannot read {place}: {error}")));
                vec![unread]
            }
        }
    }
}

/// Returns the tables of `family` that iptables-nft has created: tables with a name of iptables
/// whose base chains all have names of iptables.
fn iptables_tables(hooked: &[HookedChain], family: IpFamily) -> Vec<(Family, Name)> {
    const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
    const CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let family = Family::from(family);
    let own = hooked.iter().filter(|of| of.family == family);
    let mut tables: Vec<(Family, Name)> = Vec::new();
    for of in own.clone().filter(|of| TABLES.contains(&&*of.table)) {
        let mut chains = own.clone().filter(|other| other.table == of.table);
        let table = (family, Name::clone(&of.table));
        if chains.all(|other| CHAINS.contains(&&*other.chain)) && !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables
}
