//! Finds the ipsets of modes by their names, and removes them.

use std::time::Duration;

use footprint::{Footprint, Says};
use inet::IpFamily;
use ipset_netlink::{Error, Ipset, Reason};

use crate::evidence::Evidence;
use crate::report::{Cleanup, Manner, Need, many};

/// Longest wait for iptables-nft to release a set after the cleanup has deleted the last rule that
/// matches the set.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// Existing ipsets with the names that modes use.
pub(crate) struct Sets {
    ipset: Ipset,
    names: Vec<String>,
}

impl Sets {
    /// Reads each set by its name, and adds its members to `evidence`. Never lists the members of
    /// all sets, because sets of other programs may be huge.
    pub(crate) fn read(
        modes: &[&'static Footprint],
        family: IpFamily,
        evidence: &mut Evidence,
    ) -> Result<Self, Error> {
        let mut ipset = Ipset::open()?;
        let known = modes.iter().flat_map(|mode| (mode.sets)(family));
        let known: Vec<_> = known.collect();
        for set in known.iter().filter(|set| set.says != Says::Nothing) {
            match ipset.list(&set.name) {
                Ok(found) => {
                    for entry in &found.entries {
                        evidence.add(set.says, entry);
                    }
                }
                Err(Error::Refused {
                    reason: Reason::NoSuchSet,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        let there = ipset.headers()?;
        let is_there = |name: &String| there.iter().any(|header| header.name == *name);
        let names = known.into_iter().map(|set| set.name).filter(is_there);
        let names = names.collect();
        Ok(Self { ipset, names })
    }

    /// Destroys the sets, unless `need` says that their members are still needed as evidence.
    pub(crate) fn remove(
        &mut self,
        family: IpFamily,
        need: Need,
        manner: Manner,
        cleanup: &mut Cleanup,
    ) {
        if need != Need::Over {
            if need == Need::Unknown && !self.names.is_empty() {
                let why = "they prove which virtual servers are kube-proxy's; remove the other \
                           leftovers, then run this again";
                cleanup.leave(family, &"the ipsets stay", &why);
            }
            return;
        }
        if manner == Manner::Count {
            if !self.names.is_empty() {
                cleanup.remove(family, many(self.names.len(), "ipset"));
            }
            return;
        }
        let mut destroyed = 0;
        for name in &self.names {
            match self.ipset.destroy_released(name, RELEASED_WITHIN) {
                Ok(was_there) => destroyed += usize::from(was_there),
                Err(error) => {
                    let next = format!(
                        "{error}; find its user (`iptables-save | grep {name}`), then run this \
                         again"
                    );
                    cleanup.leave(family, &format_args!("ipset {name}"), &next);
                }
            }
        }
        if destroyed > 0 {
            cleanup.remove(family, many(destroyed, "ipset"));
        }
    }
}
