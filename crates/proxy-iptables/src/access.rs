//! What this mode does on its kernel threads: what is read, written and asked there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::KernelAccess;
use proxy::Unreadable;

use crate::chain::Table;
use crate::config::Config;
use crate::kernel::{Kernel, KernelError};
use crate::part::Part;
use crate::plan::{Plan, Verdicts};
use crate::proxier::Iptables;
use crate::saved::{Reader, Saved};

/// What was found of a part.
pub enum Found {
    /// All rules, and how long it took to read them.
    Rules(Box<Saved>, Duration),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}

/// What a lane asks, beside reading parts.
pub enum Query {
    /// Whether the canary is there.
    Canary,
}

/// What the kernel says to that.
pub enum Answer {
    /// Whether the canary is there.
    Canary(Result<bool, KernelError>),
}

impl From<KernelError> for Unreadable {
    fn from(KernelError { what, reason }: KernelError) -> Self {
        Self { part: what, reason }
    }
}

impl<K: Kernel> KernelAccess<K> for Iptables {
    fn read(kernel: &mut K, config: &Config, part: Part) -> Result<Found, Unreadable> {
        Ok(match part {
            Part::Rules => {
                let started = Instant::now();
                let saved = read(kernel, config, None)?;
                Found::Rules(Box::new(saved), started.elapsed())
            }
            Part::Addresses => Found::Addresses(kernel.addresses()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> Verdicts {
        plan.apply(kernel, plan.manner)
    }

    fn query(kernel: &mut K, config: &Config, _: Query) -> Answer {
        // The table that holds the least is flushed with the others.
        let saved = read(kernel, config, Some(Table::Mangle));
        Answer::Canary(saved.map(|saved| saved.base.has_canary(Table::Mangle)))
    }
}

fn read(
    kernel: &mut dyn Kernel,
    config: &Config,
    table: Option<Table>,
) -> Result<Saved, KernelError> {
    let mut reader = Reader::new(config);
    kernel.save(table, &mut |line| reader.line(line))?;
    Ok(reader.finish())
}
