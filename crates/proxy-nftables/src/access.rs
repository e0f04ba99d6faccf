//! Reads and writes the kernel on this mode's kernel threads.

use engine::KernelAccess;
use proxy::Unreadable;

use crate::config::Config;
use crate::exchange::Found;
use crate::found::Reader;
use crate::kernel::Kernel;
use crate::kinds::Part;
use crate::plan::{Plan, Verdicts};
use crate::proxier::Nftables;

impl<K: Kernel> KernelAccess<K> for Nftables {
    fn read(kernel: &mut K, _: &Config, part: Part) -> Result<Found, Unreadable> {
        Ok(match part {
            Part::Table => {
                let started = kernel.clock();
                let mut reader = Reader::new(kernel.family());
                kernel.table(&mut |object| reader.take(object))?;
                let took = kernel.clock().saturating_duration_since(started);
                Found::Table(Box::new(reader.finish()), took)
            }
            Part::Addresses => Found::Addresses(kernel.addresses()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> Verdicts {
        let started = kernel.clock();
        let verdicts = plan.apply(kernel);
        Verdicts {
            took: kernel.clock().saturating_duration_since(started),
            ..verdicts
        }
    }

    fn query(_: &mut K, _: &Config, (): ()) {}
}
