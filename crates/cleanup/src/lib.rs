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
mod report;
mod rules;
mod servers;
mod sets;

use footprint::Footprints;
use inet::IpFamily;
use ipnet::IpNet;
use iptables::{Iptables, IptablesError};

use evidence::Evidence;
use links::Links;
use report::Manner;
use sets::Sets;

pub use report::Cleanup;

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
        let (of, evidence) = (family.family, &family.evidence);
        let is_gone = servers::remove(modes, of, evidence, excluded, manner, cleanup);
        family.is_free &= is_gone;
    }
    let is_free = families.iter().all(|of| of.is_free);
    let found = families.each_ref().map(|of| links::Found {
        family: of.family,
        links: &of.links,
        evidence: &of.evidence,
    });
    for link in modes.iter().filter_map(|mode| mode.link) {
        links::remove(&link, &found, is_free, manner, cleanup);
    }
    rules::remove(modes, iptables, manner, cleanup);
    rules::remove_tables(modes, manner, cleanup);
    for of in &mut families {
        if let Some(sets) = &mut of.sets {
            sets.remove(of.family, of.is_free, manner, cleanup);
        }
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
