//! Sets of session affinity clients: their timeout, and the memory that the kernel reserves for
//! each set.

/// Timeout of a set of another kind. Its key or flags differ, so the set cannot contain clients. No
/// Service wants this timeout.
pub(crate) const OTHER_KIND: u32 = u32::MAX;

/// State of a set of session affinity clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clients {
    /// Timeout of a client in seconds, or [`OTHER_KIND`].
    pub(crate) seconds: u32,
    pub(crate) room: SetMemory,
}

/// Memory that the kernel reserves for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetMemory {
    /// Memory for the hash table that the current number of clients needs.
    AsNeeded,
    /// Memory for 131,072 buckets or 2 MiB, even if the set is empty. Up to version 0.1, this
    /// program created sets with a size, for which the kernel reserves this memory. The kernel
    /// releases the memory when an element is removed.
    Reserved,
}

impl SetMemory {
    /// Infers the reserved memory from two handles: that of the set, and that of the chain that
    /// adds clients to the set.
    ///
    /// The kernel reports the same size for sets with and without reserved memory, but the handles
    /// show the order of creation. The versions that gave sets a size created all sets of a
    /// transaction before its chains. Upstream and this version create chains first.
    pub(crate) fn of(set: u64, chain: u64) -> Self {
        if set < chain {
            Self::Reserved
        } else {
            Self::AsNeeded
        }
    }
}

impl Clients {
    /// Returns the state of a set that this version creates.
    pub(crate) fn new(seconds: u32) -> Self {
        Self {
            seconds,
            room: SetMemory::AsNeeded,
        }
    }

    /// Returns true if the set can hold clients.
    pub(crate) fn is_of_clients(self) -> bool {
        self.seconds != OTHER_KIND
    }
}
