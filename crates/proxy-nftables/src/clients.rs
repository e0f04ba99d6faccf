//! Sets of clients: how long one stays, and how much memory the kernel keeps for them.

/// Stands for how long clients stay in a set that is not one of clients: it has other keys, or other
/// flags. Nobody wants that many seconds.
pub(crate) const OTHER_KIND: u32 = u32::MAX;

/// A set of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clients {
    /// How many seconds a client stays, or [`OTHER_KIND`].
    pub(crate) seconds: u32,
    pub(crate) room: Room,
}

/// The hash table that the kernel has for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// As large as its clients need.
    AsNeeded,
    /// 131,072 buckets, 2 MiB, whatever it holds. Versions of this program up to 0.1 made sets with
    /// a size, for which the kernel makes this room at once. It shrinks when an element is removed.
    Reserved,
}

impl Room {
    /// Tells by the handles of a set and of the chain that fills it.
    ///
    /// The kernel lists the same size for both kinds. But the versions that made sets with a size
    /// made the sets of a transaction before its chains; upstream and this version make a chain
    /// before its set.
    pub(crate) fn of(set: u64, chain: u64) -> Self {
        if set < chain {
            Self::Reserved
        } else {
            Self::AsNeeded
        }
    }
}

impl Clients {
    /// A set as this version makes it.
    pub(crate) fn new(seconds: u32) -> Self {
        Self {
            seconds,
            room: Room::AsNeeded,
        }
    }

    /// Reports whether it holds clients, and not something else.
    pub(crate) fn is_of_clients(self) -> bool {
        self.seconds != OTHER_KIND
    }
}
