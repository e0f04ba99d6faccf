//! How packets come to listening ports: the seam between what is redirected and who does it.

pub(crate) mod iptables;
pub(crate) mod nftables;
mod origins;

use crate::config::Config;
use crate::held::Held;
use crate::plan::{Redirects, Refusal};
use proxy::Unreadable;

/// Who redirects packets, in one IP family.
pub(crate) trait Redirect: Send {
    /// What is redirected.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn read(&mut self, config: &Config) -> Result<Held, Unreadable>;

    /// Carries out a plan, whole or not at all. What is there has been read before.
    ///
    /// # Errors
    ///
    /// It was not taken.
    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal>;
}
