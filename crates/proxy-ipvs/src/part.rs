//! What is read by itself, and the kernel threads that do it.

/// A part of what the kernel holds that is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The virtual servers with their destinations.
    Servers,
    /// The sets with their members.
    Sets,
    /// The link, the service addresses on it, and the node's other ones.
    Addresses,
    /// The shim, and what other modes have left.
    Rules,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Servers, Self::Sets, Self::Addresses, Self::Rules];

    /// In an operator's words, whatever carries sets and rules: ipset and iptables, or nf_tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Servers => "the virtual servers",
            Self::Sets => "the sets",
            Self::Addresses => "the addresses of this node",
            Self::Rules => "the rules beside IPVS",
        }
    }
}

impl engine::Part for Part {
    type Lane = Lane;

    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }

    fn lane(self) -> Lane {
        match self {
            Self::Servers | Self::Sets => Lane::Services,
            Self::Addresses => Lane::Addresses,
            Self::Rules => Lane::Rules,
        }
    }
}

/// A kernel thread of one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// It reads and writes virtual servers and sets.
    Services,
    /// It reads and writes addresses, and the link that holds them.
    Addresses,
    /// It reads and writes rules.
    Rules,
    /// It only reads, beside the others: for the check.
    Reader,
}

impl engine::Lane for Lane {
    const ALL: &'static [Self] = &[Self::Services, Self::Addresses, Self::Rules, Self::Reader];
}
