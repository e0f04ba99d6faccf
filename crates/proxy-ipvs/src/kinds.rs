//! Types that the [`engine`] needs from IPVS mode.

use crate::config::Config;
pub(crate) use crate::part::{Lane, Part};
use crate::plan::Plan;

engine::kinds! {
    /// Parts of the kernel's state, lanes (worker threads) and states of IPVS mode.
    IpvsKinds { config: Config, plan: Plan }
}
