//! Takes down all that the footprints of some modes name, in one network namespace, and nothing
//! else.
//!
//! ```text
//!   virtual servers ─▶ links ─▶ chains and jumps, tables of nftables ─▶ sets
//! ```
//!
//! What says whose a virtual server is (its address on a link, a set member) goes only after it. A
//! part that fails is told and does not stop the others, unlike upstream's, which also flushes the
//! virtual servers of everybody and forgets the `KUBE-6-*` sets. Kernel settings and IPVS time-outs
//! stay as they are, as upstream.
//!
//! Nothing here knows a mode: what one leaves is said by its [`Footprint`](footprint::Footprint).

mod evidence;
mod links;
mod rules;
mod servers;
mod sets;

use std::fmt::Display;

use footprint::Footprints;
use inet::IpFamily;
use ipnet::IpNet;
use iptables::{Iptables, IptablesError};

use evidence::Evidence;
use links::Links;
use sets::Sets;

/// What a tear-down came to, in lines for the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// What was removed.
    pub removed: Vec<String>,
    /// What is left, or may be, and the next step.
    pub left: Vec<String>,
    /// What this machine does not have, so that nothing can be left in it.
    pub absent: Vec<String>,
}

/// Takes down, in the network namespace of the calling thread, what kube-proxies in these modes
/// have left in both IP families and both backends of iptables. Virtual servers within `excluded`
/// stay. Loads no kernel module. A kube-proxy that still runs makes it all again.
pub fn clean_up(modes: Footprints, excluded: &[IpNet]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let installed = Iptables::installed().unwrap_or_else(|error| {
        cleanup.left.push(error.to_string());
        Vec::new()
    });
    if installed.is_empty() && cleanup.left.is_empty() {
        let missing = IptablesError::Missing("iptables-save".to_owned());
        let line = format!("the iptables rules cannot be read: {missing}");
        cleanup.left.push(line);
    }
    take_down(modes, &installed, excluded, Manner::Remove, &mut cleanup);
    cleanup
}

/// The same while a mode serves with rules of `used`, none of which refers to a set any more: all
/// but the rules of that.
pub fn clean_up_beside(modes: Footprints, used: &Iptables, excluded: &[IpNet]) -> Cleanup {
    beside(modes, used, excluded, Manner::Remove)
}

/// What [`clean_up_beside`] would remove; nothing is written.
pub fn foresee_beside(modes: Footprints, used: &Iptables, excluded: &[IpNet]) -> Cleanup {
    beside(modes, used, excluded, Manner::Count)
}

fn beside(modes: Footprints, used: &Iptables, excluded: &[IpNet], manner: Manner) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let others: Vec<Iptables> = Iptables::other_than(used).collect();
    take_down(modes, &others, excluded, manner, &mut cleanup);
    cleanup
}

/// Whether things are removed, or only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Remove,
    Count,
}

/// All in its order, with the rules of these iptables.
fn take_down(
    modes: Footprints,
    iptables: &[Iptables],
    excluded: &[IpNet],
    manner: Manner,
    cleanup: &mut Cleanup,
) {
    let mut families = IpFamily::ALL.map(|family| Remains::read(modes, family, cleanup));
    for family in &mut families {
        let is_gone = servers::remove(modes, family, excluded, manner, cleanup);
        family.is_free &= is_gone;
    }
    for link in modes.iter().filter_map(|mode| mode.link) {
        links::remove(&link, &families, manner, cleanup);
    }
    rules::remove(modes, iptables, manner, cleanup);
    rules::remove_tables(modes, manner, cleanup);
    for family in &mut families {
        sets::remove(family, manner, cleanup);
    }
}

/// What there is of one family.
struct Remains {
    family: IpFamily,
    evidence: Evidence,
    links: Links,
    /// None where there is no ipset, or it cannot be read.
    sets: Option<Sets>,
    /// Whether all virtual servers that are ours are known to be gone, so that nothing need say
    /// whose they are.
    is_free: bool,
}

impl Remains {
    /// Reads what says whose a virtual server is.
    fn read(modes: Footprints, family: IpFamily, cleanup: &mut Cleanup) -> Self {
        let mut is_free = true;
        let mut evidence = Evidence::default();
        let links = Links::read(modes, family, &mut evidence).unwrap_or_else(|error| {
            is_free = false;
            cleanup.leave(family, &"the addresses of this node cannot be read", &error);
            Links::default()
        });
        let sets = match Sets::read(modes, family, &mut evidence) {
            Ok(sets) => Some(sets),
            Err(ipset_netlink::Error::NoIpset) => {
                cleanup.miss("ipset: this kernel has not loaded it");
                None
            }
            Err(error) => {
                is_free = false;
                cleanup.leave(family, &"the ipsets cannot be read", &error);
                None
            }
        };
        Self {
            family,
            evidence,
            links,
            sets,
            is_free,
        }
    }
}

impl Cleanup {
    fn leave(&mut self, family: IpFamily, what: &dyn Display, why: &dyn Display) {
        self.left.push(format!("{family}: {what}: {why}"));
    }

    fn miss(&mut self, what: &str) {
        if !self.absent.iter().any(|said| said == what) {
            self.absent.push(what.to_owned());
        }
    }

    fn remove(&mut self, family: IpFamily, what: impl Display) {
        self.removed.push(format!("{family}: {what}"));
    }
}

/// So many of these.
fn many(count: usize, noun: &str) -> String {
    match (count, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

/// What to do about an answer that was lost.
const LOST: &str = "the kernel's answer was lost; run this again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_once() {
        let mut cleanup = Cleanup::default();
        cleanup.miss("IPVS");
        cleanup.miss("IPVS");
        assert_eq!(cleanup.absent, ["IPVS"]);
        assert_eq!(
            [
                many(1, "ipset"),
                many(0, "ipset"),
                many(2, "service address")
            ],
            ["1 ipset", "0 ipsets", "2 service addresses"]
        );
    }
}
