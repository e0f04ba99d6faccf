//! Types of IPVS mode that the [`engine`] requires.

use crate::config::Config;
pub(crate) use crate::part::{Lane, Part};
use crate::plan::Plan;

engine::kinds! {
    /// Parts of the kernel's state, worker threads (lanes) and states of IPVS mode.
    IpvsKinds { config: Config, plan: Plan }
}
