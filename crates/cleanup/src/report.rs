//! Report of a cleanup: its results, as lines for the operator.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use inet::IpFamily;
use ipvs_netlink::ServiceKey;

/// Outcome of a cleanup, as lines for the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// Entries that the cleanup has removed, or would remove, one line each.
    pub removed: Vec<String>,
    /// Entries that still exist or may still exist, one line each, with the next step for the
    /// operator.
    pub left: Vec<String>,
    /// Kernel features that this node lacks. Such features have no leftover entries.
    pub absent: Vec<String>,
    /// Virtual servers that stay because they have open connections.
    pub draining: Vec<DrainingServer>,
}

/// Choice of the entries that a cleanup removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Remove all entries of the given modes.
    Remove,
    /// Remove all entries of the modes except those that open connections need.
    Drain,
    /// Count the entries of the given modes, but remove none.
    Count,
}

/// Reason why the cleanup still needs the evidence of virtual servers. `Over`: it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Not needed: all virtual servers of the modes are deleted.
    Over,
    /// Needed: virtual servers are draining. A later cleanup removes them, and then the evidence.
    Draining,
    /// Needed: virtual servers exist or may exist, because a removal or a read failed.
    Unknown,
}

/// A virtual server that stays until its last connection has ended. It gets no new connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainingServer {
    pub(crate) key: ServiceKey,
    /// Service addresses of the virtual server's connections. Empty if the addresses are unknown,
    /// because no set contains the virtual server's firewall mark.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Number of the virtual server's entries in the IPVS connection table, including connections
    /// that have just ended.
    pub connections: u64,
}

/// Service addresses that draining virtual servers still need on a mode's link.
#[derive(Debug, Default)]
pub(crate) struct NeededAddresses {
    pub(crate) named: BTreeSet<IpAddr>,
    /// IP families in which the cleanup must keep every address. In such a family, the addresses of
    /// some draining connections are unknown.
    whole_families: BTreeSet<IpFamily>,
}

impl NeededAddresses {
    pub(crate) fn of(servers: &[DrainingServer]) -> Self {
        let mut needed = Self::default();
        for server in servers {
            needed.named.extend(&server.addresses);
            let is_unknown = server.addresses.is_empty();
            let whole = is_unknown.then(|| server.key.family());
            needed.whole_families.extend(whole);
        }
        needed
    }

    /// Reports whether the cleanup must keep every address of this IP family.
    pub(crate) fn is_whole(&self, family: IpFamily) -> bool {
        self.whole_families.contains(&family)
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.named.contains(&ip) || self.is_whole(IpFamily::of(ip))
    }
}

impl Cleanup {
    pub(crate) fn leave(&mut self, family: IpFamily, what: &dyn Display, why: &dyn Display) {
        self.left.push(format!("{family}: {what}: {why}"));
    }

    pub(crate) fn miss(&mut self, what: &str) {
        if !self.absent.iter().any(|said| said == what) {
            self.absent.push(what.to_owned());
        }
    }

    pub(crate) fn remove(&mut self, family: IpFamily, what: impl Display) {
        self.removed.push(format!("{family}: {what}"));
    }
}

/// Returns a count with its noun in the singular or plural, such as `2 ipsets`.
pub(crate) fn many(count: usize, noun: &str) -> String {
    match (count, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

/// Advice to the operator if a reply of the kernel was lost.
pub(crate) const LOST: &str = "the kernel's answer was lost; run this again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_kernel_feature_is_reported_once() {
        let mut cleanup = Cleanup::default();
        cleanup.miss("IPVS");
        cleanup.miss("IPVS");
        assert_eq!(cleanup.absent, ["IPVS"]);
        assert_eq!(
            [
                many(1, "ipset"),
                many(0, "ipset"),
                many(2, "service address")
            ],
            ["1 ipset", "0 ipsets", "2 service addresses"]
        );
    }
}
