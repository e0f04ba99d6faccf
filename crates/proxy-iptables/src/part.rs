//! What is read by itself, and the kernel threads that do it.

/// A part of the kernel's state that is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All rules of all tables.
    Rules,
    /// The node's addresses.
    Addresses,
}

impl engine::Part for Part {
    type Lane = Lane;

    const ALL: &'static [Self] = &[Self::Rules, Self::Addresses];

    fn name(self) -> &'static str {
        match self {
            Self::Rules => "the iptables rules",
            Self::Addresses => "the addresses of this node",
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Rules => Lane::Rules,
            Self::Addresses => Lane::Looks,
        }
    }
}

/// A kernel thread of one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// It writes rules, and reads them between.
    Rules,
    /// It only looks: at addresses, and for the canary.
    Looks,
}

impl engine::Lane for Lane {
    const ALL: &'static [Self] = &[Self::Rules, Self::Looks];
}
