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
//! Nothing here knows a mode: what one leaves is said by its [`Footprint`].

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
use report::Manner;
use sets::Sets;

pub use report::Cleanup;
pub use servers::ForeignServer;
pub use withdraw::withdraw;

/// How long connections by virtual servers have that are being opened, or about to end: once their
/// server is gone, the kernel drops what is sent in them.
const GRACE: Duration = Duration::from_secs(1);

/// Takes down, in the network namespace of the calling thread, what kube-proxies in these modes
/// have left in both IP families and both backends of iptables. Virtual servers within `excluded`
/// stay. Loads no kernel module. A kube-proxy that still runs makes it all again.
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

/// The programs of iptables that are here. That they do not say what they are is told as left.
fn installed(cleanup: &mut Cleanup) -> Vec<Iptables> {
    Iptables::installed().unwrap_or_else(|error| {
        let line = format!("the iptables rules cannot be read: {error}");
        cleanup.left.push(line);
        Vec::new()
    })
}

/// What [`clean_up`] would remove of these modes; nothing is written.
pub fn survey(modes: &[&'static Footprint]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let installed = installed(&mut cleanup);
    take_down(modes, modes, &installed, &[], Manner::Count, &mut cleanup);
    cleanup
}

/// A mode that serves while what others have left goes.
#[derive(Debug, Clone)]
pub struct Serving {
    /// What it makes, which stays.
    pub mode: &'static Footprint,
    /// The iptables whose rules it clears up by itself, none of which refers to a set any more.
    /// Without, it has no rules there, and those of every iptables go.
    pub iptables: Option<Iptables>,
}

/// The same while a mode serves: all but what is its own.
pub fn clean_up_beside(modes: Footprints, serving: &Serving, excluded: &[IpNet]) -> Cleanup {
    beside(modes, serving, excluded, Manner::Remove)
}

/// What [`clean_up_beside`] would remove; nothing is written.
pub fn foresee_beside(modes: Footprints, serving: &Serving, excluded: &[IpNet]) -> Cleanup {
    beside(modes, serving, excluded, Manner::Count)
}

fn beside(modes: Footprints, serving: &Serving, excluded: &[IpNet], manner: Manner) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let iptables: Vec<Iptables> = match &serving.iptables {
        Some(used) => Iptables::other_than(used).collect(),
        // Where there is none, nothing can be said of its rules.
        None => installed(&mut cleanup),
    };
    let modes = modes.iter().copied();
    let others: Vec<_> = modes.filter(|mode| *mode != serving.mode).collect();
    // In an iptables that it does not use, even its own are left from before.
    let of_rules: Vec<_> = others.iter().copied().chain([serving.mode]).collect();
    if manner == Manner::Remove {
        let given = give_way(&others);
        if let Err((family, error)) = given {
            // Without virtual servers, what it sends to them would be lost.
            let what =
                "the table of a mode that goes cannot be emptied, and all of these modes stays";
            cleanup.leave(family, &what, &error);
            return cleanup;
        }
    }
    // The table of one that was redirected by nftables before, and is by iptables now.
    let is_by_iptables = serving.iptables.is_some();
    if serving.mode.served_by == ServedBy::Process && is_by_iptables {
        for family in IpFamily::ALL {
            tables::remove(&[serving.mode], family, true, manner, &mut cleanup);
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

/// Has new connections served by the mode that serves now: a table of nftables that sends them to
/// virtual servers would do so until it goes, which is after these. What was begun before has a
/// moment to end, by whatever rules it came to a virtual server.
fn give_way(others: &[&'static Footprint]) -> Result<(), (IpFamily, CommitError)> {
    let mut has_any = false;
    for family in IpFamily::ALL {
        // Somebody may have changed the table meanwhile.
        let disarmed = tables::disarm(others, family).or_else(|_| tables::disarm(others, family));
        has_any |= disarmed.map_err(|error| (family, error))?;
    }
    if has_any || servers::are_there(others) {
        thread::sleep(GRACE);
    }
    Ok(())
}

/// Has packets pass by the rules of processes that have ended, while the mode of the name
/// `serving` serves: tables of nftables go, and chains of iptables are emptied. That needs no
/// knowledge of what is to be served: whatever those rules take is lost. What remains of them goes
/// with all else that others have left.
pub fn disarm_ended(modes: Footprints, serving: &str) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let modes = modes.iter().copied();
    let ended = modes.filter(|mode| mode.served_by == ServedBy::Process && mode.mode != serving);
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() {
        return cleanup;
    }
    for family in IpFamily::ALL {
        tables::remove(&ended, family, true, Manner::Remove, &mut cleanup);
    }
    // Where there is none, nothing of its rules can be changed.
    let installed = installed(&mut cleanup);
    rules::empty(&ended, &installed, &mut cleanup);
    cleanup
}

/// The virtual servers, in the network namespace of the calling thread, that nothing says to be of
/// one of these modes. One that a mode wants or has just made may be among them. Loads no kernel
/// module.
///
/// # Errors
///
/// What cannot be read, in lines for the operator.
pub fn foreign_servers(modes: Footprints) -> Result<Vec<ForeignServer>, Vec<String>> {
    let mut cleanup = Cleanup::default();
    let mut foreign = Vec::new();
    for family in IpFamily::ALL {
        let remains = Remains::read(modes, family, &mut cleanup);
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

/// All of some modes in its order, with the rules of others in these iptables.
fn take_down(
    modes: &[&'static Footprint],
    of_rules: &[&'static Footprint],
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
    rules::remove(of_rules, iptables, manner, cleanup);
    for of in &families {
        tables::remove(modes, of.family, of.is_free, manner, cleanup);
    }
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
    fn read(modes: &[&'static Footprint], family: IpFamily, cleanup: &mut Cleanup) -> Self {
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
        if let Err(error) = tables::read(modes, family, &mut evidence) {
            is_free = false;
            cleanup.leave(family, &"the sets in nftables cannot be read", &error);
        }
        Self {
            family,
            evidence,
            links,
            sets,
            is_free,
        }
    }
}
