//! Leftovers that the proxy's regular writes do not overwrite: those of other modes, of another
//! iptables backend, and of another shim.
//!
//! With the shim in nftables, the proxy runs iptables programs only to remove a kube-proxy's
//! chains. It runs none if the kernel has no such chains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use footprint::{Finder, Footprints, ServedBy, nft};
use ipset_netlink::Ipset;
use iptables::{Backend, Iptables, IptablesError, Table};
use proxy::IpFamily;
use tracing::warn;

use super::carrier::Carrier;
use super::native;
use super::sets::Sets;
use crate::footprint::FOOTPRINT;
use crate::leftovers::{LeftoverPlace, Leftovers};
use crate::native::TABLE;
use crate::sets::{Member, Set};

/// Longest wait until the nft backend releases a set whose rules the proxy has removed.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// Path that exists if ipset is built in or loaded. Unlike a request to ipset, a look at this path
/// does not load the module.
const IPSET: &str = "/sys/module/ip_set";

/// Search for leftovers in one IP family, which depends on the shim in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeftoverSearch<'a> {
    pub(super) family: IpFamily,
    /// Kernel interface of the shim in use: iptables with ipset, or nftables.
    pub(super) carrier: &'a Carrier,
    pub(super) modes: Footprints,
}

/// Result of a search for leftovers: complete or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    All,
    /// The search could not read a part of the kernel's state, so it may have missed leftovers. The
    /// next search may find them.
    Some,
}

/// Returns the result of an earlier complete search, or else searches now. Keeps the result only if
/// the search was complete.
pub(super) fn until_known<T: Clone>(
    known: &mut Option<T>,
    look: impl FnOnce() -> (T, Certainty),
) -> T {
    if let Some(known) = known {
        return known.clone();
    }
    let (found, certainty) = look();
    if certainty == Certainty::All {
        *known = Some(found.clone());
    }
    found
}

/// Treatment of an iptables backend whose rules the process cannot read over netlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IfUnknown {
    /// The search assumes that a kube-proxy has chains in this backend, so it runs the backend's
    /// iptables program.
    Counts,
    LeftOut,
}

impl LeftoverSearch<'_> {
    /// Returns the leftovers that the search could find, and whether it was complete.
    pub(super) fn find(self) -> (BTreeMap<LeftoverPlace, Arc<Leftovers>>, Certainty) {
        let mut certainty = Certainty::All;
        let mut found = BTreeMap::new();
        let mut unknown = |what: &str, error: &dyn fmt::Display| {
            warn!(
                error = error.to_string(),
                "cannot look for what is left in {what}; it is tried again with the next check"
            );
            certainty = Certainty::Some;
        };
        let out_of_reach = self.out_of_reach().unwrap_or_else(|error| {
            unknown("iptables", &error);
            Vec::new()
        });
        for backend in out_of_reach {
            warn!(
                "iptables ({backend}) holds chains of a kube-proxy, and its programs are not here: these rules \
                 stay and may still take packets; run `kube-proxy --cleanup` where iptables is installed, or restart the node"
            );
        }
        let backends = self.backends().unwrap_or_else(|error| {
            unknown("iptables", &error);
            Vec::new()
        });
        for other in backends {
            match self.left_in(&other) {
                Ok(left) if left.is_empty() => {}
                Ok(left) => {
                    drop(found.insert(LeftoverPlace::Other(other.backend()), Arc::new(left)));
                }
                // Ignores a permanent error: in a backend that can never be read, no packet reaches
                // a rule.
                Err(error) if !error.kind().may_pass() => {}
                Err(error) => unknown(&format!("iptables ({})", other.backend()), &error),
            }
        }
        let own = match self.carrier {
            Carrier::Iptables(_) => Some((TABLE, LeftoverPlace::OwnTable)),
            Carrier::Nftables => None,
        };
        let tables = self.tables().chain(own);
        for (table, place) in tables {
            match nft::has_table(self.family, table) {
                Ok(true) => drop(found.insert(place, Arc::default())),
                Ok(false) => {}
                Err(error) => unknown("nftables", &error),
            }
        }
        if let Carrier::Nftables = self.carrier {
            match self.own_sets() {
                Ok(sets) if sets.is_empty() => {}
                Ok(_) => drop(found.insert(LeftoverPlace::Ipsets, Arc::default())),
                Err(error) => unknown("ipset", &error),
            }
        }
        (found, certainty)
    }

    fn left_in(self, other: &Iptables) -> Result<Leftovers, IptablesError> {
        if other.is_empty(self.family) {
            return Ok(Leftovers::default());
        }
        let saved = other.save(self.family)?;
        Ok(Leftovers::find(Finder::all(self.modes), &saved))
    }

    /// Removes the leftovers at one place in the kernel.
    pub(super) fn remove(
        self,
        place: LeftoverPlace,
        leftovers: &Leftovers,
        saved: usize,
    ) -> Result<(), String> {
        let restore = |iptables: &Iptables| {
            let text = leftovers.restore_text();
            iptables
                .restore_among(saved.max(text.len()), self.family, &text)
                .map_err(|error| error.to_string())
        };
        let remove_table =
            |table| nft::remove_table(self.family, table).map_err(|error| error.to_string());
        match place {
            LeftoverPlace::Beside(_) => match self.carrier {
                Carrier::Iptables(iptables) => restore(iptables),
                Carrier::Nftables => Ok(()),
            },
            LeftoverPlace::Other(backend) => {
                let backends = self.backends().map_err(|error| error.to_string())?;
                let mut others = backends.into_iter();
                match others.find(|other| other.backend() == backend) {
                    Some(other) => restore(&other),
                    None => Err(format!("the programs of iptables ({backend}) are gone")),
                }
            }
            LeftoverPlace::Nftables | LeftoverPlace::Ended => {
                let mut tables = self.tables().filter(|(_, of)| *of == place);
                tables.try_for_each(|(table, _)| remove_table(table))
            }
            LeftoverPlace::OwnTable => remove_table(TABLE),
            LeftoverPlace::Ipsets => self.remove_sets(),
        }
    }

    /// Returns the members that are still in the former shim's sets.
    pub(super) fn members(self) -> Result<BTreeMap<Set, BTreeSet<Member>>, String> {
        match self.carrier {
            Carrier::Iptables(_) => {
                let is_there = nft::has_table(self.family, TABLE);
                if !is_there.map_err(|error| error.to_string())? {
                    return Ok(BTreeMap::new());
                }
                native::members(self.family).map_err(|error| error.to_string())
            }
            Carrier::Nftables if has_ipset() => {
                let read = Sets::open(self.family).and_then(|mut sets| sets.dump());
                match read {
                    Ok(found) => Ok(found.members),
                    Err(ipset_netlink::Error::NoIpset) => Ok(BTreeMap::new()),
                    Err(error) => Err(error.to_string()),
                }
            }
            Carrier::Nftables => Ok(BTreeMap::new()),
        }
    }

    /// Returns the iptables backends, except the one in use, that may have leftovers.
    fn backends(self) -> Result<Vec<Iptables>, IptablesError> {
        match self.carrier {
            Carrier::Iptables(used) => Ok(Iptables::other_than(used).collect()),
            Carrier::Nftables => self.held_backends(),
        }
    }

    /// Returns the iptables backends with a kube-proxy's chains whose programs are not installed,
    /// so that the proxy cannot remove these chains.
    fn out_of_reach(self) -> Result<Vec<Backend>, IptablesError> {
        let Carrier::Nftables = self.carrier else {
            return Ok(Vec::new());
        };
        let mut held = self.held(IfUnknown::LeftOut);
        if !held.is_empty() {
            let installed = Iptables::installed()?;
            held.retain(|backend| installed.iter().all(|one| one.backend() != *backend));
        }
        Ok(held)
    }

    /// Returns the installed iptables backends that have, or may have, a kube-proxy's chains. Runs
    /// only these backends' programs.
    fn held_backends(self) -> Result<Vec<Iptables>, IptablesError> {
        let held = self.held(IfUnknown::Counts);
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let mut installed = Iptables::installed()?;
        installed.retain(|one| held.contains(&one.backend()));
        Ok(installed)
    }

    fn held(self, if_unknown: IfUnknown) -> Vec<Backend> {
        let is_ours = |(table, name): &(Table, String)| {
            let mut modes = self.modes.iter();
            modes.any(|mode| mode.has_chain(*table, name))
        };
        let is_held = |backend: &Backend| match backend.chains(self.family) {
            Some(chains) => chains.iter().any(is_ours),
            None => if_unknown == IfUnknown::Counts,
        };
        Backend::ALL.into_iter().filter(is_held).collect()
    }

    /// Returns the names of other modes' nftables tables, each with its kind of place.
    fn tables(self) -> impl Iterator<Item = (&'static str, LeftoverPlace)> {
        let others = self.modes.iter().filter(|mode| ***mode != FOOTPRINT);
        others.flat_map(|mode| {
            let place = match mode.served_by {
                ServedBy::Kernel => LeftoverPlace::Nftables,
                ServedBy::Process => LeftoverPlace::Ended,
            };
            mode.nft_tables.iter().map(move |table| (*table, place))
        })
    }

    /// Returns the names of this proxy's ipsets that exist in the kernel.
    fn own_sets(self) -> Result<Vec<String>, ipset_netlink::Error> {
        if !has_ipset() {
            return Ok(Vec::new());
        }
        let there = match Ipset::open().and_then(|mut ipset| ipset.headers()) {
            Err(ipset_netlink::Error::NoIpset) => return Ok(Vec::new()),
            there => there?,
        };
        let known = (FOOTPRINT.sets)(self.family).into_iter();
        let names = known.map(|set| set.name);
        Ok(names
            .filter(|name| there.iter().any(|header| header.name == *name))
            .collect())
    }

    fn remove_sets(self) -> Result<(), String> {
        let mut ipset = Ipset::open().map_err(|error| error.to_string())?;
        let own = self.own_sets().map_err(|error| error.to_string())?;
        for name in own {
            let removed = ipset.destroy_released(&name, RELEASED_WITHIN);
            removed.map_err(|error| format!("ipset {name}: {error}"))?;
        }
        Ok(())
    }
}

fn has_ipset() -> bool {
    Path::new(IPSET).exists()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_search_for_leftovers_is_repeated_until_all_leftovers_are_known() {
        let mut known = None;
        assert_eq!(until_known(&mut known, || (1, Certainty::Some)), 1);
        assert_eq!(until_known(&mut known, || (2, Certainty::All)), 2);
        assert_eq!(until_known(&mut known, || (3, Certainty::All)), 2);
    }

    /// Runs the search without `CAP_NET_ADMIN`, which the kernel requires for reading nftables
    /// tables.
    #[test]
    fn leftovers_without_read_permission_are_unknown() {
        const MODES: Footprints = &[&footprint::NFTABLES];
        let look = || {
            namespace::drop_rights();
            let former = LeftoverSearch {
                family: IpFamily::V4,
                carrier: &Carrier::Nftables,
                modes: MODES,
            };
            let is_here = !matches!(
                nftables_netlink::Nftables::open(),
                Err(nftables_netlink::Error::NoNftables)
            );
            (is_here, former.find())
        };
        // Drops the capability in a thread of its own, because each thread has its own
        // capabilities.
        let (is_here, (found, certainty)) = thread::spawn(look).join().unwrap();
        if is_here {
            assert!(found.is_empty(), "{found:?}");
            assert_eq!(certainty, Certainty::Some);
        }
    }
}
