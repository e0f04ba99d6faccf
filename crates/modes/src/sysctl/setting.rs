//! A kernel setting to change, as shown in reports.

use std::fmt;

/// A kernel setting whose value differs from the wanted value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting in sysctl(8), or its path if it is in /sys.
    pub name: String,
    /// Current value of the setting in the kernel.
    pub found: String,
    /// Value that the daemon would write.
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
