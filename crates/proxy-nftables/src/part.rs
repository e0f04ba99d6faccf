//! What is read by itself, and the kernel threads that do it.

/// A part of the kernel's state that is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The table, whole.
    Table,
    /// The node's addresses.
    Addresses,
}

impl engine::Part for Part {
    type Lane = Lane;

    const ALL: &'static [Self] = &[Self::Table, Self::Addresses];

    fn name(self) -> &'static str {
        match self {
            Self::Table => "the nftables table kube-proxy",
            Self::Addresses => "the addresses of this node",
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Table => Lane::Table,
            Self::Addresses => Lane::Looks,
        }
    }
}

/// A kernel thread of one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// It writes the table, and reads it between.
    Table,
    /// It looks at addresses alone.
    Looks,
}

impl engine::Lane for Lane {
    const ALL: &'static [Self] = &[Self::Table, Self::Looks];
}
