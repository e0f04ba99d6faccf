//! The seam between redirects and the program or table that carries them.

pub(crate) mod iptables;
pub(crate) mod nftables;
mod origins;

use crate::config::Config;
use crate::part_state::RedirectState;
use crate::plan::{Redirects, Refusal};
use proxy::Unreadable;

/// The redirects of one IP family in the kernel.
pub(crate) trait Redirect: Send {
    /// Reads the redirects.
    ///
    /// # Errors
    ///
    /// The redirects cannot be read.
    fn read(&mut self, config: &Config) -> Result<RedirectState, Unreadable>;

    /// Writes a plan, whole or not at all. The caller has read the redirects before.
    ///
    /// # Errors
    ///
    /// The kernel refuses the plan.
    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal>;
}
