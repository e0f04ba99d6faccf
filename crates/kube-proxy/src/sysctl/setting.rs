//! What is said of a setting of the kernel.

use std::fmt;

/// A setting that is not as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) found: String,
    pub(crate) wanted: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            found,
            wanted,
        } = self;
        write!(f, "set {name} to {wanted} (it is {found})")
    }
}
