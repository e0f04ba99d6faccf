//! Order in which a node adds destinations to a virtual server.
//!
//! - The kernel puts a new destination at the head of the virtual server's list. Schedulers that
//!   take turns (`rr`) begin there. Schedulers that compare loads (`lc`) prefer the first of equal
//!   destinations.
//! - If all nodes used the same order, the first clients of all nodes would reach the same endpoint
//!   (kubernetes/kubernetes#121591).
//! - So each node has its own order, by a hash of the node's name and the endpoint.
//!
//! The order matters only for additions, so a restart does not change the list. A single new
//! endpoint is at the head on every node.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use proxy::Target;

use crate::server::Properties;

/// Schedulers that prefer the head of the destination list, for which each node has its own order.
/// Not in this list:
///
/// - `mh`, `sh` and `dh`: nodes must fill their tables in the same order to choose the same
///   endpoint for a client
/// - `fo` and `ovf`: they prefer one endpoint on purpose
const FROM_THE_HEAD: [&str; 6] = ["rr", "wrr", "lc", "wlc", "sed", "nq"];

/// Order in which this node adds a virtual server's destinations.
#[derive(Debug)]
pub(super) enum Order {
    /// Order by a hash of the node's name and the target. The hasher has already consumed the
    /// node's name.
    Node(DefaultHasher),
    /// Order by target, the same on all nodes.
    Target,
}

impl Order {
    /// Returns the order of additions for virtual servers with these properties, on the node named
    /// `node`.
    pub(super) fn of(properties: &Properties, node: &str) -> Self {
        if !FROM_THE_HEAD.contains(&&*properties.scheduler) {
            return Self::Target;
        }
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        Self::Node(hasher)
    }

    /// Sorts destinations into the order of their additions. `target` returns an element's target.
    pub(super) fn sort<T>(&self, added: &mut [T], target: impl Fn(&T) -> Target) {
        added.sort_by_cached_key(|one| self.place(target(one)));
    }

    /// Sorts destinations into the reverse order of their additions, for removal. If they return,
    /// the kernel finds them near the head of its trash list (see `order` in
    /// `netlink/servers/write.rs`).
    pub(super) fn sort_removed(&self, removed: &mut [Target]) {
        removed.sort_by_cached_key(|target| Reverse(self.place(*target)));
    }

    fn place(&self, target: Target) -> (u64, Target) {
        let hash = match self {
            Self::Node(node) => {
                let mut hasher = node.clone();
                target.hash(&mut hasher);
                hasher.finish()
            }
            Self::Target => 0,
        };
        (hash, target)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn order(scheduler: &str, node: &str) -> Order {
        let properties = Properties {
            scheduler: scheduler.into(),
            flags: 0,
            timeout: 0,
        };
        Order::of(&properties, node)
    }

    fn targets(count: u8) -> Vec<Target> {
        let target = |host| Target {
            ip: [10, 244, 0, host].into(),
            port: 8080,
        };
        (0..count).map(target).collect()
    }

    /// Returns the targets in the order in which a node adds them.
    fn added(scheduler: &str, node: &str) -> Vec<Target> {
        let mut targets = targets(10);
        order(scheduler, node).sort(&mut targets, |target| *target);
        targets
    }

    #[test]
    fn a_thousand_nodes_spread_their_first_destination_over_all_endpoints() {
        let mut heads = BTreeMap::<Target, u32>::new();
        for node in 0..1_000 {
            let last = added("rr", &format!("node-{node}"));
            *heads.entry(*last.last().unwrap()).or_default() += 1;
        }
        // On average, each of the ten targets comes first 100 times. The standard deviation is 9.5.
        assert_eq!(heads.len(), 10);
        assert!(
            heads.values().all(|nodes| (60..140).contains(nodes)),
            "{heads:?}"
        );
    }

    #[test]
    fn only_schedulers_that_prefer_the_head_get_another_order_on_each_node() {
        for scheduler in ["mh", "sh", "dh", "fo", "ovf"] {
            for node in ["a", "b"] {
                assert_eq!(added(scheduler, node), targets(10), "{scheduler}");
            }
        }
        for scheduler in FROM_THE_HEAD {
            assert_eq!(added(scheduler, "a"), added("rr", "a"));
            assert_ne!(added(scheduler, "a"), added(scheduler, "b"));
        }
    }

    #[test]
    fn destinations_are_removed_in_the_reverse_order_of_their_addition() {
        for scheduler in ["rr", "mh"] {
            let mut removed = targets(10);
            order(scheduler, "a").sort_removed(&mut removed);
            removed.reverse();
            assert_eq!(removed, added(scheduler, "a"));
        }
    }
}
