//! Takes down all that a kube-proxy in IPVS, iptables or nftables mode has left in this network namespace, and nothing else.
//!
//! ```text
//!   virtual servers ─▶ link kube-ipvs0 ─▶ chains and jumps, the nftables mode's table ─▶ sets
//! ```
//!
//! What says whose a virtual server is (its address on the link, a set member) goes only after it. A part that fails is told
//! and does not stop the others, unlike upstream's, which also flushes the virtual servers of everybody and forgets the
//! `KUBE-6-*` sets. Kernel settings and IPVS time-outs stay as they are, as upstream.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use footprint::{Finder, Footprints, Leftovers, nft};
use ipnet::IpNet;
use iptables::{Iptables, IptablesError};
use proxy::IpFamily;

use super::addresses::Addresses;
use super::scheduler::is_left_by_a_probe;
use super::servers::Servers;
use super::sets::Sets;
use crate::config::VipMode;
use crate::kernel::Snapshot;
use crate::plan::{Op, Outcome};
use crate::sets::{Member, Set};

/// The nft backend lets go of a set a little after its rules.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

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

/// Takes down, in the network namespace of the calling thread, what a kube-proxy in any mode has left in both IP families and
/// both backends of iptables. Virtual servers within `excluded` stay. Loads no kernel module. A kube-proxy that
/// still runs makes it all again.
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

/// The same while iptables mode serves with `used`, of which no rule refers to a set any more: all but the rules of that.
pub fn clean_up_beside(modes: Footprints, used: &Iptables, excluded: &[IpNet]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let others: Vec<Iptables> = Iptables::other_than(used).collect();
    take_down(modes, &others, excluded, Manner::Remove, &mut cleanup);
    cleanup
}

/// What [`clean_up_beside`] would remove; nothing is written.
pub fn foresee_beside(modes: Footprints, used: &Iptables, excluded: &[IpNet]) -> Cleanup {
    let mut cleanup = Cleanup::default();
    let others: Vec<Iptables> = Iptables::other_than(used).collect();
    take_down(modes, &others, excluded, Manner::Count, &mut cleanup);
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
    let mut families = IpFamily::ALL.map(|family| Remains::read(family, cleanup));
    for family in &mut families {
        family.remove_servers(excluded, manner, cleanup);
    }
    remove_link(&families, manner, cleanup);
    remove_rules(modes, iptables, manner, cleanup);
    remove_tables(modes, manner, cleanup);
    for family in &mut families {
        family.remove_sets(manner, cleanup);
    }
}

/// What is there of one family.
struct Remains {
    family: IpFamily,
    found: Snapshot,
    sets: Option<Sets>,
    /// Whether all virtual servers that are ours are known to be gone, so that nothing need say whose they are.
    is_free: bool,
}

impl Remains {
    /// Reads what says whose a virtual server is.
    fn read(family: IpFamily, cleanup: &mut Cleanup) -> Self {
        let mut found = Snapshot::default();
        let mut is_free = true;
        match Addresses::open(family, VipMode::default()).and_then(|mut addresses| addresses.dump())
        {
            Ok(there) => {
                found.has_link = there.has_link;
                found.bound = there.bound;
                found.bound_otherwise = there.bound_otherwise;
                found.interface_addresses = there.interface_addresses;
            }
            Err(error) => {
                is_free = false;
                cleanup.leave(family, &"the addresses of this node cannot be read", &error);
            }
        }
        let sets = match Sets::open(family) {
            Ok(sets) => Some(sets),
            Err(ipset_netlink::Error::NoIpset) => {
                cleanup.miss("ipset: this kernel has not loaded it");
                None
            }
            Err(error) => {
                is_free = false;
                cleanup.leave(family, &"the ipsets cannot be looked at", &error);
                None
            }
        };
        let sets = sets.and_then(|mut sets| match sets.dump() {
            Ok(dump) => {
                found.sets = dump.members;
                Some(sets)
            }
            Err(error) => {
                is_free = false;
                cleanup.leave(family, &"the ipsets cannot be read", &error);
                None
            }
        });
        Self {
            family,
            found,
            sets,
            is_free,
        }
    }

    fn remove_servers(&mut self, excluded: &[IpNet], manner: Manner, cleanup: &mut Cleanup) {
        // Asking over netlink would load the module.
        if !Path::new("/proc/thread-self/net/ip_vs").exists() {
            cleanup.miss("IPVS: this kernel has not loaded it");
            return;
        }
        let removed = Servers::open(self.family).and_then(|mut servers| {
            self.found.servers = servers.dump()?;
            let ops = removals(&self.found, excluded);
            let outcomes = match manner {
                Manner::Remove => servers.apply(&ops),
                Manner::Count => vec![Outcome::Done; ops.len()],
            };
            Ok((ops, outcomes))
        });
        let (ops, outcomes) = match removed {
            Ok(removed) => removed,
            Err(error) => {
                self.is_free = false;
                cleanup.leave(self.family, &"the virtual servers cannot be read", &error);
                return;
            }
        };
        cleanup.count(self.family, &ops, &outcomes, "virtual server");
        self.is_free &= outcomes.iter().all(|outcome| *outcome == Outcome::Done);
    }

    fn remove_sets(&mut self, manner: Manner, cleanup: &mut Cleanup) {
        let Some(sets) = &mut self.sets else {
            return;
        };
        if !self.is_free {
            if !self.found.sets.is_empty() {
                let why = "they tell which virtual servers are kube-proxy's; remove what else is left, then run this again";
                cleanup.leave(self.family, &"the ipsets stay", &why);
            }
            return;
        }
        let destroyed = match manner {
            Manner::Remove => destroy_sets(sets, self.family, cleanup),
            Manner::Count => self.found.sets.len(),
        };
        if destroyed > 0 {
            cleanup
                .removed
                .push(format!("{}: {}", self.family, many(destroyed, "ipset")));
        }
    }
}

/// The virtual servers that are to go.
fn removals(found: &Snapshot, excluded: &[IpNet]) -> Vec<Op> {
    let is_ours = |key, server| found.says_ours(key) || is_left_by_a_probe(key, server);
    let there = found.servers.iter();
    there
        .filter(|(key, _)| !excluded.iter().any(|net| net.contains(&key.address)))
        .filter(|(key, server)| is_ours(key, server))
        .map(|(key, _)| Op::RemoveServer(*key))
        .collect()
}

/// Destroys all that there are; how many.
fn destroy_sets(sets: &mut Sets, family: IpFamily, cleanup: &mut Cleanup) -> usize {
    let names = sets.names().unwrap_or_else(|error| {
        let next = format_args!("{error}; run this again");
        cleanup.leave(family, &"the ipsets stay", &next);
        Vec::new()
    });
    let mut destroyed = 0;
    for name in names {
        match destroy(sets, &name) {
            Ok(was_there) => destroyed += usize::from(was_there),
            Err(error) => {
                let next = format!(
                    "{error}; look who uses it (`iptables-save | grep {name}`), then run this again"
                );
                cleanup.leave(family, &format_args!("ipset {name}"), &next);
            }
        }
    }
    destroyed
}

/// Destroys a set, and waits for rules that are gone to let go of it; false if there was none.
pub(super) fn destroy(sets: &mut Sets, name: &str) -> Result<bool, ipset_netlink::Error> {
    let deadline = Instant::now() + RELEASED_WITHIN;
    loop {
        match sets.destroy(name) {
            Err(ipset_netlink::Error::Refused {
                reason: ipset_netlink::Reason::InUse,
                ..
            }) if Instant::now() < deadline => sleep(Duration::from_millis(20)),
            destroyed => return destroyed,
        }
    }
}

fn remove_link(families: &[Remains], manner: Manner, cleanup: &mut Cleanup) {
    let is_free = families.iter().all(|family| family.is_free);
    let removed = Addresses::open(IpFamily::V4, VipMode::default()).and_then(|mut addresses| {
        let kind = addresses.link_kind()?;
        if kind.as_deref() == Some("dummy") && is_free && manner == Manner::Remove {
            addresses.remove_link()?;
        }
        Ok(kind)
    });
    match removed {
        Ok(None) => {}
        Ok(Some(_)) if !is_free => cleanup.left.push(
            "link kube-ipvs0 stays: its addresses tell which virtual servers are kube-proxy's; remove what else is left, then \
             run this again"
                .to_owned(),
        ),
        Ok(Some(kind)) if kind == "dummy" => {
            let bound = families.iter().map(|family| {
                let Snapshot {
                    bound,
                    bound_otherwise,
                    ..
                } = &family.found;
                bound.union(bound_otherwise).count()
            });
            cleanup.removed.push(format!(
                "link kube-ipvs0 with {}",
                many(bound.sum(), "service address")
            ));
        }
        Ok(Some(kind)) => {
            cleanup.left.push(format!(
                "link kube-ipvs0 is no dummy that a kube-proxy has made, but {}: it stays; remove it by hand (`ip link del \
                 kube-ipvs0`) if nobody needs it",
                if kind.is_empty() { "hardware" } else { &kind }
            ));
            unbind(families, manner, cleanup);
        }
        Err(error) => cleanup
            .left
            .push(format!("link kube-ipvs0 cannot be removed: {error}")),
    }
}

/// From a link that stays, takes away the addresses that a set says were bound to it, and the routes, which say it themselves.
fn unbind(families: &[Remains], manner: Manner, cleanup: &mut Cleanup) {
    for Remains { family, found, .. } in families {
        let bound = |address: &std::net::IpAddr| {
            let set = found.sets.get(&Set::IpvsIps);
            set.is_some_and(|set| set.contains(&Member::Address(*address)))
        };
        let ours = found.bound.iter().copied().filter(bound);
        let routes = found.bound_otherwise.iter().copied();
        let ops: Vec<Op> = ours
            .map(Op::UnbindAddress)
            .chain(routes.map(Op::UnbindOtherwise))
            .collect();
        match Addresses::open(*family, VipMode::default()).and_then(|mut addresses| {
            // A dump also learns with which prefix lengths they are there.
            addresses.dump()?;
            Ok(match manner {
                Manner::Remove => addresses.apply(&ops),
                Manner::Count => vec![Outcome::Done; ops.len()],
            })
        }) {
            Ok(outcomes) => cleanup.count(*family, &ops, &outcomes, "service address"),
            Err(error) => cleanup.leave(*family, &"the addresses on kube-ipvs0", &error),
        }
    }
}

fn remove_rules(modes: Footprints, installed: &[Iptables], manner: Manner, cleanup: &mut Cleanup) {
    for family in IpFamily::ALL {
        if iptables::exists(family).is_err() {
            cleanup.miss(&format!(
                "iptables for {family}: this kernel has no {family}"
            ));
            continue;
        }
        for iptables in installed {
            let of = format!("iptables ({})", iptables.backend());
            let saved = match iptables.save(family) {
                Ok(saved) => saved,
                Err(error) if error.is_unsupported() => {
                    cleanup.miss(&format!("{of}: this kernel does not support it"));
                    continue;
                }
                Err(error) => {
                    cleanup.leave(
                        family,
                        &format_args!("the rules of {of} cannot be read"),
                        &error,
                    );
                    continue;
                }
            };
            let leftovers = Leftovers::find(Finder::all(modes), &saved);
            if leftovers.is_empty() {
                continue;
            }
            let removed = match manner {
                Manner::Remove => {
                    iptables.restore_among(saved.len(), family, &leftovers.restore_text())
                }
                Manner::Count => Ok(()),
            };
            match removed {
                Ok(()) => {
                    let (chains, jumps) = leftovers.counts();
                    cleanup.removed.push(format!(
                        "{family}: {} and {} of {of}",
                        many(chains, "chain"),
                        many(jumps, "jump")
                    ));
                    for held in leftovers.held() {
                        cleanup.leave(family, &of, &held);
                    }
                }
                Err(error) => {
                    cleanup.leave(family, &format_args!("the chains of {of} stay"), &error);
                }
            }
        }
    }
}

/// Those in nftables.
fn remove_tables(modes: Footprints, manner: Manner, cleanup: &mut Cleanup) {
    for (mode, table) in modes.iter().flat_map(|mode| {
        let tables = mode.nft_tables.iter();
        tables.map(|table| (mode.mode, *table))
    }) {
        let what = format!("the {mode} mode's table {table}");
        for family in IpFamily::ALL {
            let removed = nft::has_table(family, table).and_then(|is_there| {
                if is_there && manner == Manner::Remove {
                    nft::remove_table(family, table)?;
                }
                Ok(is_there)
            });
            match removed {
                Ok(true) => cleanup.removed.push(format!("{family}: {what}")),
                Ok(false) => {}
                Err(error) => cleanup.leave(family, &what, &error),
            }
        }
    }
}

impl Cleanup {
    fn leave(
        &mut self,
        family: IpFamily,
        what: &dyn std::fmt::Display,
        why: &dyn std::fmt::Display,
    ) {
        self.left.push(format!("{family}: {what}: {why}"));
    }

    fn miss(&mut self, what: &str) {
        if !self.absent.iter().any(|said| said == what) {
            self.absent.push(what.to_owned());
        }
    }

    fn count(&mut self, family: IpFamily, ops: &[Op], outcomes: &[Outcome], noun: &str) {
        let mut done = 0;
        for (op, outcome) in ops.iter().zip(outcomes) {
            match outcome {
                Outcome::Done => done += 1,
                Outcome::Refused { reason, .. } => {
                    self.leave(family, &format_args!("cannot {op}"), reason);
                }
                Outcome::Unknown => {
                    let why = "the kernel's answer was lost; run this again";
                    self.leave(family, &format_args!("cannot {op}"), &why);
                }
            }
        }
        if done > 0 {
            self.removed.push(format!("{family}: {}", many(done, noun)));
        }
    }
}

fn many(count: usize, noun: &str) -> String {
    match (count, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proxy::Protocol;

    use super::*;
    use crate::server::{Properties, VirtualServer, VirtualServerKey};

    fn key(address: &str, port: u16) -> VirtualServerKey {
        VirtualServerKey {
            address: address.parse().unwrap(),
            port,
            protocol: Protocol::Tcp,
        }
    }

    fn server(flags: u32) -> VirtualServer {
        let properties = Properties {
            scheduler: "rr".into(),
            flags,
            timeout: 0,
        };
        VirtualServer {
            properties,
            destinations: [].into(),
        }
    }

    #[test]
    fn only_what_is_known_to_be_ours_goes() {
        let note = Properties::NODE_PORT;
        let there = [
            (key("10.96.0.1", 443), 0),
            (key("10.96.0.2", 80), 0),
            (key("10.96.0.2", 81), note),
            (key("192.0.2.1", 80), note),
            (key("192.0.2.1", 30000), 0),
            (key("192.0.2.2", 30000), 0),
            // Its address was the node's.
            (key("192.0.2.3", 30000), note),
            // It asked for a scheduler.
            (key("198.51.100.0", 20000), 0),
        ];
        let servers = there.map(|(key, flags)| (key, server(flags)));
        let found = Snapshot {
            bound: ["10.96.0.1".parse().unwrap()].into(),
            interface_addresses: ["192.0.2.1".parse().unwrap()].into(),
            sets: BTreeMap::from([
                (Set::NodePortTcp, BTreeSet::from([Member::Port(30000)])),
                (
                    Set::ClusterIp,
                    BTreeSet::from([Member::AddressPort(
                        "10.96.0.2".parse().unwrap(),
                        Protocol::Tcp,
                        80,
                    )]),
                ),
            ]),
            servers: servers.into(),
            ..Snapshot::default()
        };
        let ours = [0, 1, 4, 6, 7].map(|at: usize| Op::RemoveServer(there[at].0));
        assert_eq!(removals(&found, &[]), ours);
        let excluded = ["10.96.0.0/24".parse().unwrap()];
        assert_eq!(removals(&found, &excluded), ours[2..]);
    }

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
