//! Tables and chains by name.

use std::fmt;

/// An iptables table that a kube-proxy writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// The table `mangle`.
    Mangle,
    /// The table `filter`.
    Filter,
    /// The table `nat`.
    Nat,
}

impl Table {
    /// All tables in the order of writing. Table filter comes before nat, so that it rejects
    /// clients before table nat stops serving them.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// Returns iptables' name of the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// Returns the table with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kernel's built-in chains.
pub const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Longest name of a chain in bytes (`XT_EXTENSION_MAXNAMELEN`, without its final NUL byte).
pub const MAX_CHAIN_NAME: usize = 28;

/// Name of a chain to which rules lead. It needs no allocation, because very many exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainName {
    /// A constant name.
    Fixed(&'static str),
    /// A prefix, and ASCII characters that distinguish the chains with this prefix.
    Hashed(&'static str, [u8; 16]),
}

impl From<&'static str> for ChainName {
    fn from(name: &'static str) -> Self {
        Self::Fixed(name)
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(name) => f.write_str(name),
            Self::Hashed(prefix, hash) => {
                f.write_str(prefix)?;
                f.write_str(std::str::from_utf8(hash).unwrap_or_default())
            }
        }
    }
}
