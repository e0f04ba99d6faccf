//! What is said of a setting of the kernel.

use std::fmt;

/// A setting that is not as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value in the kernel.
    pub found: String,
    /// The value that the mode wants.
    pub wanted: String,
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
