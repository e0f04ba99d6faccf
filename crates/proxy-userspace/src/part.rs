//! What is read by itself, and the kernel threads that do it.

/// A part of the kernel's state that is read by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The rules that redirect packets to our listening ports.
    Rules,
    /// The node's addresses.
    Addresses,
}

impl engine::Part for Part {
    type Lane = Lane;

    const ALL: &'static [Self] = &[Self::Rules, Self::Addresses];

    fn name(self) -> &'static str {
        match self {
            Self::Rules => "the rules that redirect to listening ports",
            Self::Addresses => "the addresses of this node",
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Rules => Lane::Rules,
            Self::Addresses => Lane::Sockets,
        }
    }
}

/// A kernel thread of one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// It opens and closes listening ports, and looks at addresses.
    Sockets,
    /// It writes rules, and reads them between.
    Rules,
}

impl engine::Lane for Lane {
    const ALL: &'static [Self] = &[Self::Sockets, Self::Rules];
}
