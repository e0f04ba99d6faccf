//! Access to the kernel for this mode's lanes: reads, writes and queries.

use engine::KernelAccess;
use proxy::Unreadable;

use crate::config::Config;
use crate::exchange::{Answer, Dump, Found, Query, Written};
use crate::kernel::Kernel;
use crate::part::{Lane, Part};
use crate::plan::Plan;
use crate::planner::Budget;
use crate::proxier::Ipvs;

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
        // Reading the clock can be a system call, which costs a single change as much as a message
        // does.
        let tells = Budget::tells(plan.ops.len()) && plan.lane() == Some(Lane::Services);
        let began = tells.then(|| kernel.clock());
        Written {
            outcomes: kernel.apply(plan),
            took: began.map(|began| kernel.clock().saturating_duration_since(began)),
        }
    }

    fn query(kernel: &mut K, _: &Config, query: Query) -> Answer {
        match query {
            Query::Connections(keys) => {
                let found = kernel.connections(&keys);
                Answer::Connections(keys, found)
            }
            Query::Glance(one) => Answer::Glance(kernel.glance(&one)),
            Query::Scheduler(one) => Answer::Scheduler(one, kernel.load_scheduler(one.name())),
            Query::All => Answer::Dump(Box::new(Dump {
                servers: kernel.read_servers(),
                sets: kernel.read_sets(),
                addresses: kernel.read_addresses(),
            })),
        }
    }
}
