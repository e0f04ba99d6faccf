//! Sets of clients for session affinity: their timeout, and the kernel memory reserved for them.

/// Timeout value for a set that cannot hold clients, because its key or flags differ. No Service
/// wants this timeout.
pub(crate) const OTHER_KIND: u32 = u32::MAX;

/// A set of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clients {
    /// Timeout of a client in seconds, or [`OTHER_KIND`].
    pub(crate) seconds: u32,
    pub(crate) room: SetMemory,
}

/// Memory that the kernel reserves for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetMemory {
    /// The hash table is as large as its clients need.
    AsNeeded,
    /// 131,072 buckets or 2 MiB, even for an empty set. Up to version 0.1, this program created
    /// sets with a size, and the kernel reserves this memory for them. Removing an element makes
    /// the kernel release it.
    Reserved,
}

impl SetMemory {
    /// Infers the reserved memory from the handles of a set and of the chain that fills it.
    ///
    /// The kernel lists the same size in both cases. But the versions that gave sets a size created
    /// all sets of a transaction before its chains. Upstream and this version create chains first.
    pub(crate) fn of(set: u64, chain: u64) -> Self {
        if set < chain {
            Self::Reserved
        } else {
            Self::AsNeeded
        }
    }
}

impl Clients {
    /// Returns a set as this version creates sets.
    pub(crate) fn new(seconds: u32) -> Self {
        Self {
            seconds,
            room: SetMemory::AsNeeded,
        }
    }

    /// Returns true for a set of clients.
    pub(crate) fn is_of_clients(self) -> bool {
        self.seconds != OTHER_KIND
    }
}
