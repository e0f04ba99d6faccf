//! Kernel access of IPVS mode's lanes (worker threads): reads, writes and queries.

use engine::KernelAccess;
use proxy::Unreadable;

use crate::config::Config;
use crate::exchange::{Dump, PartContent, PlanResult, Query, QueryResponse};
use crate::kernel::Kernel;
use crate::part::{Lane, Part};
use crate::plan::Plan;
use crate::planner::Budget;
use crate::proxier::Ipvs;

impl<K: Kernel> KernelAccess<K> for Ipvs {
    fn read(kernel: &mut K, _: &Config, part: Part) -> Result<PartContent, Unreadable> {
        Ok(match part {
            Part::Servers => PartContent::Servers(kernel.read_servers()?),
            Part::Sets => PartContent::Sets(kernel.read_sets()?),
            Part::Addresses => PartContent::Addresses(kernel.read_addresses()?),
            Part::Rules => PartContent::Rules(kernel.read_rules()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> PlanResult {
        // Measures only plans with many writes. In a small plan, two looks at the clock can cost as
        // much as one netlink message.
        let tells = Budget::tells(plan.ops.len()) && plan.lane() == Some(Lane::Services);
        let began = tells.then(|| kernel.clock());
        PlanResult {
            outcomes: kernel.apply(plan),
            took: began.map(|began| kernel.clock().saturating_duration_since(began)),
        }
    }

    fn query(kernel: &mut K, _: &Config, query: Query) -> QueryResponse {
        match query {
            Query::Connections(keys) => {
                let found = kernel.connections(&keys);
                QueryResponse::Connections(keys, found)
            }
            Query::Glance(one) => QueryResponse::Glance(kernel.glance(&one)),
            Query::Scheduler(one) => {
                QueryResponse::Scheduler(one, kernel.load_scheduler(one.name()))
            }
            Query::All => QueryResponse::Dump(Box::new(Dump {
                servers: kernel.read_servers(),
                sets: kernel.read_sets(),
                addresses: kernel.read_addresses(),
            })),
        }
    }
}
