//! What this mode does on its kernel threads: what is read, written and asked there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::KernelAccess;
use proxy::{Target, Unreadable};

use crate::config::Config;
use crate::drift::Dump;
use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance, Kernel, KernelError};
use crate::part::{Lane, Part};
use crate::plan::{Outcome, Plan};
use crate::planner::Budget;
use crate::proxier::Ipvs;
use crate::server::{VirtualServer, VirtualServerKey};

/// What was found of a part.
pub enum Found {
    /// All virtual servers of the family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// Our sets.
    Sets(FoundSets),
    /// The link and all addresses.
    Addresses(FoundAddresses),
    /// The shim, and what other modes have left.
    Rules(FoundRules),
}

/// What became of a plan.
pub struct Written {
    pub(crate) outcomes: Vec<Outcome>,
    /// How long the writes have taken, if there were enough to tell.
    pub(crate) took: Option<Duration>,
}

/// What a lane asks, beside reading parts.
pub enum Query {
    /// The open connections of what drains at these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// Whether the virtual servers are all there, this one among them.
    Glance(VirtualServerKey),
    /// All but the rules, to be compared.
    All,
}

/// What the kernel says to that.
pub enum Answer {
    /// By virtual server and destination; and which ones were asked for.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError>,
    ),
    /// How many there are, or whether the one is there.
    Glance(Result<Glance, KernelError>),
    /// All.
    Dump(Box<Dump>),
}

impl From<KernelError> for Unreadable {
    fn from(KernelError { what, reason }: KernelError) -> Self {
        Self { part: what, reason }
    }
}

impl<K: Kernel> KernelAccess<K> for Ipvs {
    fn read(kernel: &mut K, _: &Config, part: Part) -> Result<Found, Unreadable> {
        Ok(match part {
            Part::Servers => Found::Servers(kernel.read_servers()?),
            Part::Sets => Found::Sets(kernel.read_sets()?),
            Part::Addresses => Found::Addresses(kernel.read_addresses()?),
            Part::Rules => Found::Rules(kernel.read_rules()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> Written {
        // To ask for the time costs a change as much as a message where it is a system call.
        let tells = Budget::tells(plan.ops.len()) && plan.lane() == Some(Lane::Services);
        let began = tells.then(Instant::now);
        Written {
            outcomes: kernel.apply(plan),
            took: began.map(|began| began.elapsed()),
        }
    }

    fn query(kernel: &mut K, _: &Config, query: Query) -> Answer {
        match query {
            Query::Connections(keys) => {
                let found = kernel.connections(&keys);
                Answer::Connections(keys, found)
            }
            Query::Glance(one) => Answer::Glance(kernel.glance(&one)),
            Query::All => Answer::Dump(Box::new(Dump {
                servers: kernel.read_servers(),
                sets: kernel.read_sets(),
                addresses: kernel.read_addresses(),
            })),
        }
    }
}
