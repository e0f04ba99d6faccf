//! Kernel access of this mode's worker threads: reads, writes and queries, by system calls and
//! iptables programs.

use engine::KernelAccess;
use proxy::Unreadable;

use crate::chain::Table;
use crate::config::Config;
use crate::exchange::{CanaryQuery, PartState};
use crate::kernel::Kernel;
use crate::kinds::Part;
use crate::plan::{Plan, WriteOutcomes};
use crate::proxier::Iptables;
use crate::saved::{Reader, Saved};

impl<K: Kernel> KernelAccess<K> for Iptables {
    fn read(kernel: &mut K, config: &Config, part: Part) -> Result<PartState, Unreadable> {
        Ok(match part {
            Part::Rules => {
                let started = kernel.clock();
                let saved = read(kernel, config, None)?;
                let took = kernel.clock().saturating_duration_since(started);
                PartState::Rules(Box::new(saved), took)
            }
            Part::Addresses => PartState::Addresses(kernel.addresses()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> WriteOutcomes {
        plan.apply(kernel, plan.manner)
    }

    fn query(kernel: &mut K, config: &Config, _: CanaryQuery) -> Result<bool, Unreadable> {
        // Reads only table mangle, which usually has the fewest rules. A program that flushes all
        // tables also deletes the canary chain in this table.
        let saved = read(kernel, config, Some(Table::Mangle));
        saved.map(|saved| saved.base.has_canary(Table::Mangle))
    }
}

fn read(
    kernel: &mut dyn Kernel,
    config: &Config,
    table: Option<Table>,
) -> Result<Saved, Unreadable> {
    let mut reader = Reader::new(config);
    kernel.save(table, &mut |line| reader.line(line))?;
    Ok(reader.finish())
}
