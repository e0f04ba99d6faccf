//! ipsets, by name.

use std::time::Duration;

use footprint::{Footprints, Says};
use inet::IpFamily;
use ipset_netlink::{Error, Ipset, Reason};

use crate::evidence::Evidence;
use crate::{Cleanup, Manner, Remains, many};

/// The nft backend lets go of a set a little after its rules.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);

/// The sets of some modes that are there, whatever their type.
pub(crate) struct Sets {
    ipset: Ipset,
    names: Vec<String>,
}

impl Sets {
    /// Finds them, one by one, as those of others may be huge; what their members say goes to
    /// `evidence`.
    pub(crate) fn read(
        modes: Footprints,
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
}

/// Destroys them, once nothing needs what they say.
pub(crate) fn remove(of: &mut Remains, manner: Manner, cleanup: &mut Cleanup) {
    let family = of.family;
    let Some(sets) = &mut of.sets else {
        return;
    };
    if !of.is_free {
        if !sets.names.is_empty() {
            let why = "they tell which virtual servers are kube-proxy's; remove what else is left, then run this again";
            cleanup.leave(family, &"the ipsets stay", &why);
        }
        return;
    }
    if manner == Manner::Count {
        if !sets.names.is_empty() {
            cleanup.remove(family, many(sets.names.len(), "ipset"));
        }
        return;
    }
    let mut destroyed = 0;
    for name in &sets.names {
        match sets.ipset.destroy_released(name, RELEASED_WITHIN) {
            Ok(was_there) => destroyed += usize::from(was_there),
            Err(error) => {
                let next = format!(
                    "{error}; look who uses it (`iptables-save | grep {name}`), then run this again"
                );
                cleanup.leave(family, &format_args!("ipset {name}"), &next);
            }
        }
    }
    if destroyed > 0 {
        cleanup.remove(family, many(destroyed, "ipset"));
    }
}
