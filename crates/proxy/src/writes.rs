//! Counts writes to the kernel, by kind of entry and by result.

/// Kind of a written entry. Reports list the kinds in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKind {
    /// IPVS virtual servers.
    VirtualServers,
    /// Destinations of virtual servers.
    Destinations,
    /// ipsets of IPVS mode.
    Sets,
    /// Members of ipsets of IPVS mode.
    SetMembers,
    /// The link `kube-ipvs0`, which has the service addresses.
    Link,
    /// Service addresses on the link `kube-ipvs0`.
    Addresses,
    /// Rules that a restore program (such as `iptables-restore`) or a transaction of this process
    /// writes.
    Rules,
    /// Transactions that change an nf\_tables table.
    Table,
    /// Ports on which this process listens.
    ListeningPorts,
    /// Rules that redirect packets to listening ports of this process.
    Redirects,
    /// Kernel entries that another mode wrote before it was replaced.
    Leftovers,
}

impl EntryKind {
    /// All kinds of entries, in the order of reports.
    pub const ALL: [Self; 11] = [
        Self::VirtualServers,
        Self::Destinations,
        Self::Sets,
        Self::SetMembers,
        Self::Link,
        Self::Addresses,
        Self::Rules,
        Self::Table,
        Self::ListeningPorts,
        Self::Redirects,
        Self::Leftovers,
    ];

    /// Returns the kind's name in the singular and in the plural.
    pub const fn words(self) -> [&'static str; 2] {
        match self {
            Self::VirtualServers => ["virtual server", "virtual servers"],
            Self::Destinations => ["destination", "destinations"],
            Self::Sets => ["set", "sets"],
            Self::SetMembers => ["set member", "set members"],
            Self::Link => ["link", "links"],
            Self::Addresses => ["address", "addresses"],
            Self::Rules => ["restore of rules", "restores of rules"],
            Self::Table => ["transaction", "transactions"],
            Self::ListeningPorts => ["listening port", "listening ports"],
            Self::Redirects => ["redirect", "redirects"],
            Self::Leftovers => ["leftover", "leftovers"],
        }
    }

    /// Returns this kind as the value of a metric's label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::VirtualServers => "virtual_servers",
            Self::Destinations => "destinations",
            Self::Sets => "sets",
            Self::SetMembers => "set_members",
            Self::Link => "link",
            Self::Addresses => "addresses",
            Self::Rules => "rules",
            Self::Table => "table",
            Self::ListeningPorts => "listening_ports",
            Self::Redirects => "redirects",
            Self::Leftovers => "leftovers",
        }
    }
}

/// Result of a write to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    /// The kernel accepted the write.
    Done,
    /// The kernel refused the write, or the mode could not try it.
    Refused,
    /// The kernel's reply was lost, so it is unknown whether the kernel made the write.
    Unknown,
}

impl Fate {
    /// All results of writes, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Done, Self::Refused, Self::Unknown];

    /// Returns this result as the value of a metric's label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// Numbers of writes, by kind of entry and by result. The array has a fixed size, so counting
/// allocates no memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Writes([[u32; Fate::ALL.len()]; EntryKind::ALL.len()]);

impl Writes {
    /// Adds `count` writes of one kind of entry with one result.
    pub fn add(&mut self, subject: EntryKind, fate: Fate, count: usize) {
        if let Some(of) = self.0.get_mut(subject as usize)
            && let Some(sum) = of.get_mut(fate as usize)
        {
            *sum = sum.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// Adds the numbers in `other` to these numbers.
    pub fn extend(&mut self, other: &Self) {
        let of = self.0.iter_mut().flatten();
        for (sum, count) in of.zip(other.0.iter().flatten()) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns the number of writes of this kind of entry with this result.
    pub fn count(&self, subject: EntryKind, fate: Fate) -> u32 {
        let of = self.0.get(subject as usize);
        of.and_then(|of| of.get(fate as usize))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the numbers of writes above zero, each with its kind of entry and its result.
    pub fn iter(&self) -> impl Iterator<Item = (EntryKind, Fate, u32)> {
        let all = EntryKind::ALL.into_iter();
        let all = all.flat_map(|subject| Fate::ALL.into_iter().map(move |fate| (subject, fate)));
        all.map(|(subject, fate)| (subject, fate, self.count(subject, fate)))
            .filter(|(_, _, count)| *count > 0)
    }

    /// Returns the number of writes with this result, over all kinds of entries.
    pub fn sum(&self, fate: Fate) -> u64 {
        let all = EntryKind::ALL.into_iter();
        all.map(|subject| u64::from(self.count(subject, fate)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_entry_kind_and_result() {
        let mut writes = Writes::default();
        for (number, subject) in EntryKind::ALL.into_iter().enumerate() {
            for fate in Fate::ALL {
                writes.add(subject, fate, number);
            }
        }
        writes.extend(&writes.clone());
        for (number, subject) in EntryKind::ALL.into_iter().enumerate() {
            for fate in Fate::ALL {
                assert_eq!(writes.count(subject, fate) as usize, 2 * number);
            }
        }
        assert_eq!(writes.iter().count(), 30, "the first has none");
        assert_eq!(writes.sum(Fate::Refused), 110);
    }
}
