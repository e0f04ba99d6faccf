//! Removes the kernel entries of some modes from one network namespace. Each mode's [`Footprint`]
//! names its entries. All other entries stay. This crate has no code for a particular mode.
//!
//! ```text
//!   virtual servers ─▶ links ─▶ chains and jumps, tables of nftables ─▶ sets
//! ```
//!
//! An address on a link or a member of a set is evidence that a mode created a virtual server. So
//! the cleanup removes this evidence only after the virtual server. [`drain_beside`] keeps virtual
//! servers with open connections, and the evidence for them.
//!
//! After a failure, the cleanup reports the failure and continues with the other entries. Like
//! upstream, it does not change kernel settings and IPVS timeouts.
//!
//! Upstream differs in two points: it also deletes virtual servers of other programs, and it does
//! not delete the `KUBE-6-*` sets.

mod drain;
mod evidence;
mod links;
mod report;
mod rules;
mod servers;
mod sets;
mod tables;
mod withdraw;

use std::thread;
use std::time::Duration;

use footprint::{Footprint, Footprints, ServedBy};
use inet::IpFamily;
use ipnet::IpNet;
use iptables::{Iptables, IptablesError};
use nftables_netlink::CommitError;

use evidence::Evidence;
use links::Links;
use report::{Manner, Need};
use sets::Sets;

pub use drain::Drain;
pub use report::{Cleanup, DrainingServer};
pub use servers::ForeignServer;
pub use withdraw::withdraw;

/// Wait before virtual servers are deleted, so that their connections can complete a handshake or a
/// close. After the deletion, the kernel drops the packets of these connections.
const GRACE: Duration = Duration::from_secs(1);

/// Removes the kernel entries that kube-proxies created in these modes. Works in the network
/// namespace of the calling thread.
///
/// Covers both IP families and both iptables backends. Keeps virtual servers with an address in
/// `excluded`. Loads no kernel module. The caller must have stopped these kube-proxies, because a
/// running kube-proxy writes its entries again.
pub fn clean_up(modes: Footprints, excluded: &[IpNet]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let installed = installed(&mut cleanup);
    if installed.is_empty() && cleanup.left.is_empty() {
        let missing = IptablesError::Missing("iptables-save".to_owned());
        let line = format!("the iptables rules cannot be read: {missing}");
        cleanup.left.push(line);
    }
    take_down(
        modes,
        modes,
        &installed,
        excluded,
        Manner::Remove,
        &mut cleanup,
    );
    cleanup
}

/// Returns the installed iptables programs. If a program does not print its version, returns none
/// and adds to `cleanup` that the iptables rules cannot be read.
fn installed(cleanup: &mut Cleanup) -> Vec<Iptables> {
    Iptables::installed().unwrap_or_else(|error| {
        let line = format!("the iptables rules cannot be read: {error}");
        cleanup.left.push(line);
        Vec::new()
    })
}

/// Lists the entries that [`clean_up`] would remove for these modes. Does not write.
pub fn survey(modes: &[&'static Footprint]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let installed = installed(&mut cleanup);
    take_down(modes, modes, &installed, &[], Manner::Count, &mut cleanup);
    cleanup
}

/// The current mode, whose entries stay while the cleanup removes the entries of other modes.
#[derive(Debug, Clone)]
pub struct ServingMode {
    /// Footprint of the current mode. The cleanup keeps the entries that this footprint names.
    pub mode: &'static Footprint,
    /// The iptables backend that the current mode writes to and has already cleaned up, so no rule
    /// there refers to a leftover set. `None` if the mode has no iptables rules. The cleanup then
    /// removes leftover rules from every backend.
    pub iptables: Option<Iptables>,
}

/// Removes the entries of `modes`, except entries that the current mode uses.
pub fn clean_up_beside(modes: Footprints, serving: &ServingMode, excluded: &[IpNet]) -> Cleanup {
    beside(modes, serving, excluded, Manner::Remove)
}

/// Removes the entries of these modes like [`clean_up_beside`], but keeps the entries that open
/// connections need.
///
/// Virtual servers with open connections stay, but get no new connections. Their addresses become
/// routes. The result lists these virtual servers for a [`Drain`].
pub fn drain_beside(modes: Footprints, serving: &ServingMode, excluded: &[IpNet]) -> Cleanup {
    beside(modes, serving, excluded, Manner::Drain)
}

/// Lists the entries that [`clean_up_beside`] would remove. Does not write.
pub fn foresee_beside(modes: Footprints, serving: &ServingMode, excluded: &[IpNet]) -> Cleanup {
    beside(modes, serving, excluded, Manner::Count)
}

fn beside(modes: Footprints, serving: &ServingMode, excluded: &[IpNet], manner: Manner) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let iptables: Vec<Iptables> = match &serving.iptables {
        Some(used) => Iptables::other_than(used).collect(),
        // The current mode has no iptables rules, so rules in every installed backend are
        // leftovers.
        None => installed(&mut cleanup),
    };
    let modes = modes.iter().copied();
    let others: Vec<_> = modes.filter(|mode| *mode != serving.mode).collect();
    // Rules of the current mode are also leftovers if they are in a backend that the mode does not
    // use.
    let of_rules: Vec<_> = others.iter().copied().chain([serving.mode]).collect();
    if manner != Manner::Count {
        let given = give_way(&others);
        if let Err((family, error)) = given {
            // An nftables table that cannot be emptied would send packets to virtual servers that
            // the cleanup deletes. So the cleanup must stop here.
            let what =
                "the table of a mode that goes cannot be emptied, and all of these modes stays";
            cleanup.leave(family, &what, &error);
            return cleanup;
        }
    }
    // If userspace mode redirects packets with iptables, its nftables table is a leftover of an
    // earlier run that used nftables.
    let is_by_iptables = serving.iptables.is_some();
    if serving.mode.served_by == ServedBy::Process && is_by_iptables {
        for family in IpFamily::ALL {
            tables::remove(&[serving.mode], family, Need::Over, manner, &mut cleanup);
        }
    }
    take_down(
        &others,
        &of_rules,
        &iptables,
        excluded,
        manner,
        &mut cleanup,
    );
    cleanup
}

/// Makes new connections use the current mode. For this, empties the chains of the other modes'
/// nftables tables, which would send packets to virtual servers that the cleanup then deletes.
///
/// Then waits for a short time, so that connections through virtual servers can complete a
/// handshake or a close.
fn give_way(others: &[&'static Footprint]) -> Result<(), (IpFamily, CommitError)> {
    let mut has_any = false;
    for family in IpFamily::ALL {
        // The write fails if another program changes the table between the read and the write. One
        // retry is enough.
        let disarmed = tables::disarm(others, family).or_else(|_| tables::disarm(others, family));
        has_any |= disarmed.map_err(|error| (family, error))?;
    }
    if has_any || servers::are_there(others) {
        thread::sleep(GRACE);
    }
    Ok(())
}

/// Disables rules that send packets to a process that has ended, such as the rules of userspace
/// mode. Deletes the nftables tables of such modes, and empties their iptables chains. Skips the
/// mode named `serving`, which runs now.
///
/// Needs no knowledge of Services, because such rules lose every packet that they match. A later
/// cleanup removes the other entries of these modes.
pub fn disarm_ended(modes: Footprints, serving: &str) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let modes = modes.iter().copied();
    let ended = modes.filter(|mode| mode.served_by == ServedBy::Process && mode.mode != serving);
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() {
        return cleanup;
    }
    for family in IpFamily::ALL {
        tables::remove(&ended, family, Need::Over, Manner::Remove, &mut cleanup);
    }
    // Changing iptables rules needs the iptables programs.
    let installed = installed(&mut cleanup);
    rules::empty(&ended, &installed, &mut cleanup);
    cleanup
}

/// Lists the virtual servers of this network namespace without evidence (such as a set member) that
/// one of `modes` created them. The list may include a mode's own virtual server, if the mode has
/// not written the evidence yet. Loads no kernel module.
///
/// # Errors
///
/// Returns lines for the operator about the parts of the kernel's state that cannot be read.
pub fn foreign_servers(modes: Footprints) -> Result<Vec<ForeignServer>, Vec<String>> {
    let mut cleanup = Cleanup::default();
    let mut foreign = Vec::new();
    for family in IpFamily::ALL {
        let remains = FamilyLeftovers::read(modes, family, &mut cleanup);
        match servers::foreign(modes, family, &remains.evidence) {
            Ok(found) => foreign.extend(found),
            Err(error) => {
                cleanup.leave(family, &"the virtual servers cannot be read", &error);
            }
        }
    }
    if cleanup.left.is_empty() {
        Ok(foreign)
    } else {
        Err(cleanup.left)
    }
}

/// Removes the entries of `modes`: virtual servers before links, and rules before sets. From the
/// given iptables backends, removes the rules of the modes in `of_rules`.
fn take_down(
    modes: &[&'static Footprint],
    of_rules: &[&'static Footprint],
    iptables: &[Iptables],
    excluded: &[IpNet],
    manner: Manner,
    cleanup: &mut Cleanup,
) {
    let mut families = IpFamily::ALL.map(|family| FamilyLeftovers::read(modes, family, cleanup));
    for family in &mut families {
        let (of, evidence) = (family.family, &family.evidence);
        let need = servers::remove(modes, of, evidence, excluded, manner, cleanup);
        family.need = family.need.max(need);
    }
    let found = families.each_ref().map(|of| links::FamilyEvidence {
        family: of.family,
        links: &of.links,
        evidence: &of.evidence,
        need: of.need,
    });
    for link in modes.iter().filter_map(|mode| mode.link) {
        links::remove(&link, &found, manner, cleanup);
    }
    rules::remove(of_rules, iptables, manner, cleanup);
    for of in &families {
        tables::remove(modes, of.family, of.need, manner, cleanup);
    }
    for of in &mut families {
        if let Some(sets) = &mut of.sets {
            sets.remove(of.family, of.need, manner, cleanup);
        }
    }
}

/// Leftovers of one IP family in the kernel, with the evidence of the modes that created them.
struct FamilyLeftovers {
    family: IpFamily,
    evidence: Evidence,
    links: Links,
    /// Existing sets of the IP family, or `None` if the kernel has no ipset or the sets cannot be
    /// read.
    sets: Option<Sets>,
    need: Need,
}

impl FamilyLeftovers {
    /// Reads the links and sets of these modes, and the evidence of virtual servers that they
    /// created.
    fn read(modes: &[&'static Footprint], family: IpFamily, cleanup: &mut Cleanup) -> Self {
        let mut need = Need::Over;
        let mut evidence = Evidence::default();
        let links = Links::read(modes, family, &mut evidence).unwrap_or_else(|error| {
            need = Need::Unknown;
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
                need = Need::Unknown;
                cleanup.leave(family, &"the ipsets cannot be read", &error);
                None
            }
        };
        if let Err(error) = tables::read(modes, family, &mut evidence) {
            need = Need::Unknown;
            cleanup.leave(family, &"the sets in nftables cannot be read", &error);
        }
        Self {
            family,
            evidence,
            links,
            sets,
            need,
        }
    }
}
