//! The interface to redirects in the kernel. It has two implementations: iptables programs, and an
//! nftables table.

pub(crate) mod iptables;
pub(crate) mod nftables;
mod origins;

use crate::config::Config;
use crate::part_state::RedirectState;
use crate::plan::{Redirects, Refusal};
use proxy::Unreadable;

/// Access to the redirects of one IP family in the kernel.
pub(crate) trait Redirect: Send {
    /// Returns the redirects in the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the redirects cannot be read.
    fn read(&mut self, config: &Config) -> Result<RedirectState, Unreadable>;

    /// Writes all redirects of a plan, or none. The caller must have read the redirects before.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the plan.
    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal>;
}
