//! Sets that remember session affinity clients: their timeouts, and the memory that the kernel
//! reserves for them.

/// Placeholder for the timeout of a set whose key or flags are wrong, so that it cannot contain
/// clients. No Service has this timeout, so the next sync replaces the set.
pub(crate) const OTHER_KIND: u32 = u32::MAX;

/// State of a set of session affinity clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clients {
    /// Timeout of a client in seconds, or [`OTHER_KIND`].
    pub(crate) seconds: u32,
    pub(crate) room: SetMemory,
}

/// Memory that the kernel reserves for a set of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetMemory {
    /// The kernel sizes the set's hash table for the current number of clients.
    AsNeeded,
    /// The kernel reserves memory for 131,072 buckets (1 MiB and a header, rounded up to 2 MiB),
    /// even if the set is empty. It does so for sets with a size, which this program created up to
    /// version 0.1. The kernel releases the memory when an element is removed.
    Reserved,
}

impl SetMemory {
    /// Infers from two handles whether memory is reserved: the set's handle, and the handle of the
    /// chain that adds clients to the set.
    ///
    /// - The kernel reports the same size for sets with and without reserved memory. But handles
    ///   show the order of creation.
    /// - Versions that gave sets a size created all sets of a transaction before its chains.
    /// - Upstream and this version create chains before sets.
    pub(crate) fn of(set: u64, chain: u64) -> Self {
        if set < chain {
            Self::Reserved
        } else {
            Self::AsNeeded
        }
    }
}

impl Clients {
    /// Returns the state that a set has if this version of the program creates it.
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
