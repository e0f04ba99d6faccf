//! What is found in the kernel.

use footprint::Leftovers;
use hashbrown::HashMap;

use crate::plan::{Aim, Base};
use crate::port::Portal;

/// What the kernel holds of our redirects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// What is there whatever the Services are; `None` where that is not as we leave it, nor
    /// perhaps all else.
    pub base: Option<Base>,
    /// Single redirects.
    pub redirects: HashMap<Portal, Aim>,
    /// What other modes have left beside.
    pub leftovers: Leftovers,
}
