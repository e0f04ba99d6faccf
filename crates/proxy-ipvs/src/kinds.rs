//! Types that the [`engine`] is told of for this mode.

use crate::config::Config;
pub(crate) use crate::part::{Lane, Part};
use crate::plan::Plan;

engine::kinds! {
    /// The kinds of things of the IPVS mode.
    IpvsKinds { config: Config, plan: Plan }
}
