//! The interface between redirects and their backend: the iptables programs or an nftables table.

pub(crate) mod iptables;
pub(crate) mod nftables;
mod origins;

use crate::config::Config;
use crate::part_state::RedirectState;
use crate::plan::{Redirects, Refusal};
use proxy::Unreadable;

/// Redirects of one IP family in the kernel.
pub(crate) trait Redirect: Send {
    /// Returns the redirects that the kernel has.
    ///
    /// # Errors
    ///
    /// The redirects cannot be read.
    fn read(&mut self, config: &Config) -> Result<RedirectState, Unreadable>;

    /// Writes all redirects of a plan, or none. The caller must have read the redirects.
    ///
    /// # Errors
    ///
    /// The kernel refuses the plan.
    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal>;
}
