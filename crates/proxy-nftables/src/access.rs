//! Kernel access of this mode's worker threads, which read and write the kernel's state.

use engine::KernelAccess;
use proxy::Unreadable;

use crate::config::Config;
use crate::kernel::Kernel;
use crate::kinds::Part;
use crate::plan::{Outcomes, Plan};
use crate::proxier::Nftables;
use crate::snapshot::{PartContent, SnapshotBuilder};

impl<K: Kernel> KernelAccess<K> for Nftables {
    fn read(kernel: &mut K, _: &Config, part: Part) -> Result<PartContent, Unreadable> {
        Ok(match part {
            Part::Table => {
                let started = kernel.clock();
                let mut builder = SnapshotBuilder::new(kernel.family());
                kernel.table(&mut |object| builder.take(object))?;
                let took = kernel.clock().saturating_duration_since(started);
                PartContent::Table(Box::new(builder.finish()), took)
            }
            Part::Addresses => PartContent::Addresses(kernel.addresses()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> Outcomes {
        let started = kernel.clock();
        let outcomes = plan.apply(kernel);
        Outcomes {
            took: kernel.clock().saturating_duration_since(started),
            ..outcomes
        }
    }

    fn query(_: &mut K, _: &Config, (): ()) {}
}
