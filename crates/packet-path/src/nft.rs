//! The rules of nf_tables.
//!
//! ```text
//!  Nft::read ─▶ base chains of ip, ip6, inet ─┐             Reader: the kernel (Nftables), or Held
//!                                             ▼               ▲ rules of one chain, one set,
//!  Ruleset::walk ─▶ Evaluation: chain, rule ─▶ Run: expressions over registers ─┘ one element
//!                        └─ say, text: what a rule did, and as nft lists it
//! ```
//!
//! Nothing is read that no packet meets: of a table with 50,000 Services that is a dozen chains and
//! elements. Only base chains are looked for among all chains, which the kernel has no question for.
//! Whether it was all of one moment, the number of the ruleset tells: [`consistently`].
//!
//! **What is taken for granted** of the first packet of a flow: it is no fragment, it is the SYN of TCP,
//! limits have not been reached, and sets that rules fill have room. Of the answer to it: no rule singles out
//! the client's port. A client is in a set that rules
//! fill only where it is there now. Of what else a rule may ask (users of sockets, processors, ports
//! of clients) nothing is taken for granted: both ways are followed, and both say so.
//!
//! **Left to iptables**: the tables that iptables-nft makes (`filter`, `nat`, `mangle`, `raw` and
//! `security` of ip and ip6, where they have its chains). Their rules are in its own language
//! ([`Nft::left_to_iptables`]).

mod evaluate;
mod expressions;
mod fields;
mod held;
mod reader;
mod registers;
mod run;
mod say;
mod sets;
mod translate;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashSet;

use inet::IpFamily;
use nftables_netlink::{Activity, Error, Family, Hooked, Name};

pub use held::Held;
pub use reader::{At, Reader};

use crate::branch::{Branch, End};
use crate::kernel::Kernel;
use crate::ruleset::{Base, Hook, Ruleset};
use reader::Asked;
use run::Evaluation;

/// How often a question is asked anew where the ruleset changes meanwhile.
const ATTEMPTS: u32 = 5;

/// The rules of nf_tables that packets of one IP family meet.
#[derive(Debug)]
pub struct Nft<R> {
    /// By their numbers.
    bases: Vec<(At, nftables_netlink::BaseChain)>,
    left_to_iptables: Vec<(Family, Name)>,
    notes: Vec<String>,
    /// The walk asks with `&self`, as it does of every kind of rules; each answer is kept.
    asked: RefCell<Asked<R>>,
}

/// Asks something of the ruleset as it is at one moment: where it changes meanwhile, anew, up to five
/// times. Then the last answer counts, which may mix two moments.
///
/// # Errors
///
/// The ruleset cannot be read.
pub fn consistently<R: Reader, T>(
    reader: &mut R,
    family: IpFamily,
    mut question: impl FnMut(&Nft<&mut R>) -> T,
) -> Result<Answer<T>, Error> {
    let mut attempt = 1;
    loop {
        let before = reader.generation()?;
        let nft = Nft::read(&mut *reader, family)?;
        let answer = question(&nft);
        drop(nft);
        let is_of_one_moment = reader.generation()? == before;
        if is_of_one_moment || attempt == ATTEMPTS {
            return Ok(Answer {
                answer,
                is_of_one_moment,
            });
        }
        attempt += 1;
    }
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The answer.
    pub answer: T,
    /// Whether nobody has changed the ruleset meanwhile.
    pub is_of_one_moment: bool,
}

impl<R: Reader> Nft<R> {
    /// Looks for the base chains that packets of this family come into.
    ///
    /// # Errors
    ///
    /// The kernel cannot be asked: it has no nf_tables, or CAP_NET_ADMIN is missing.
    pub fn read(mut reader: R, family: IpFamily) -> Result<Self, Error> {
        let tables = reader.tables()?;
        let dormant = tables
            .into_iter()
            .filter(|of| of.activity == Activity::Dormant);
        let dormant: HashSet<(Family, Name)> = dormant.map(|of| (of.family, of.name)).collect();
        let mut hooked = reader.hooked()?;
        hooked.retain(|of| !dormant.contains(&(of.family, Name::clone(&of.table))));
        let mut nft = Self {
            bases: Vec::new(),
            left_to_iptables: iptables_tables(&hooked, family),
            notes: Vec::new(),
            asked: RefCell::new(Asked::new(reader)),
        };
        for of in hooked {
            nft.take(of, family);
        }
        Ok(nft)
    }

    /// Whether a base chain is looked at.
    fn take(&mut self, of: Hooked, family: IpFamily) {
        let table = (of.family, Name::clone(&of.table));
        let at = At {
            family: of.family,
            table: of.table,
            name: of.chain,
        };
        match (of.family, of.base) {
            (Family::Ip | Family::Ip6, _) if of.family != family.into() => {}
            (Family::Ip | Family::Ip6, _) if self.left_to_iptables.contains(&table) => {}
            (Family::Ip | Family::Ip6 | Family::Inet, Some(base)) => self.bases.push((at, base)),
            // ARP is no packet of a flow.
            (Family::Arp, _) => {}
            _ => self.notes.push(format!(
                "{} is not looked at: it is asked before a packet is routed, or instead, and may drop it (nft list chain {} {} {})",
                say::place(&at),
                family_name(at.family),
                at.table,
                at.name,
            )),
        }
    }

    /// The tables that iptables-nft has made, which are left out.
    pub fn left_to_iptables(&self) -> &[(Family, Name)] {
        &self.left_to_iptables
    }

    /// What else is left out and may matter, in words.
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

    /// Where a base chain is: `table ip kube-proxy, chain nat-prerouting`.
    pub fn place(&self, base: &Base) -> Option<String> {
        let (chain, _) = self.bases.get(base.number)?;
        Some(say::place(chain))
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

/// As `nft` writes it.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::Inet => "inet",
        Family::Ip => "ip",
        Family::Arp => "arp",
        Family::Netdev => "netdev",
        Family::Bridge => "bridge",
        Family::Ip6 => "ip6",
    }
}

/// The tables of this family that iptables-nft has made: those with its names, whose base chains all
/// have the names of its built-in ones.
fn iptables_tables(hooked: &[Hooked], family: IpFamily) -> Vec<(Family, Name)> {
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
