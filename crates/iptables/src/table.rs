//! Names of iptables tables and chains.

use std::fmt;

/// An iptables table to which a kube-proxy writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// The table `mangle`, whose rules change packets.
    Mangle,
    /// The table `filter`, whose rules accept and drop packets.
    Filter,
    /// The table `nat`, whose rules translate addresses.
    Nat,
}

impl Table {
    /// All tables, in the order in which rules are written. Filter comes before nat, so that filter
    /// already rejects a Service's clients when nat stops serving the Service.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// Returns the name of the table in iptables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// Returns the table with this name, or `None` for a table to which no kube-proxy writes.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names of the kernel's built-in chains.
pub const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Largest length of a chain's name in bytes (`XT_EXTENSION_MAXNAMELEN` without the final NUL).
pub const MAX_CHAIN_NAME: usize = 28;

/// Name of a chain to which rules jump. This type allocates no memory, because a node may have very
/// many such names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainName {
    /// A constant name, such as `KUBE-SERVICES`.
    Fixed(&'static str),
    /// A prefix, and 16 ASCII characters that distinguish the chains with this prefix.
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
