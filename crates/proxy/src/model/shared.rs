//! Values that share memory, and the part of an endpoint's placement that the model stores.

use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::object::Placement;

/// Number of stored values below which the model does not look for unused values.
pub(super) const FEW_SHARED: usize = 64;

/// Placeholder in node hints for all nodes except this one. No node has this name.
pub(super) const ELSEWHERE: &str = "";

/// A set of distinct values that share memory: users of equal values hold one copy.
#[derive(Debug)]
pub(super) struct Shared<T: ?Sized> {
    pub(super) known: HashSet<Arc<T>>,
    /// Number of values that were in use at the last cleanup.
    used: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            used: 0,
        }
    }
}

impl<T: Eq + Hash + ?Sized> Shared<T> {
    /// Returns the shared copy of a value. Drops unused values whenever the number of values has
    /// doubled, so a call costs O(1) on average.
    pub(super) fn one(&mut self, value: &Arc<T>) -> Arc<T> {
        if self.known.len() > 2 * self.used + FEW_SHARED {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.used = self.known.len();
        }
        Arc::clone(self.known.get_or_insert_with(value, Arc::clone))
    }
}

/// Node names that objects have mentioned.
#[derive(Debug, Default)]
pub(super) struct NodeNames {
    /// True if an endpoint was on this node.
    pub(super) has_own: bool,
    /// First mentioned name of another node.
    pub(super) other: Option<Box<str>>,
}

impl NodeNames {
    /// Records the node of an endpoint.
    pub(super) fn note(&mut self, placement: &Placement, own_node: Option<&str>) {
        let Some(node) = placement.node.as_deref() else {
            return;
        };
        if own_node == Some(node) {
            self.has_own = true;
        } else if self.other.is_none() {
            self.other = Some(node.into());
        }
    }
}

/// Reports whether an endpoint is on another node and has no hints, like nearly all endpoints. Of
/// such a placement, the model stores only the zone.
pub(super) fn is_just_elsewhere(placement: &Placement, own_node: Option<&str>) -> bool {
    let Placement {
        node: Some(node),
        zone: _,
        for_nodes,
        for_zones,
    } = placement
    else {
        return false;
    };
    own_node.is_some_and(|own| **node != *own) && for_nodes.is_empty() && for_zones.is_empty()
}

/// Returns a placement without the names of nodes other than `own_node`. The model stores this
/// part.
pub(super) fn seen(placement: &Arc<Placement>, own_node: Option<&str>) -> Arc<Placement> {
    let Some(own) = own_node else {
        return Arc::clone(placement);
    };
    let is_elsewhere = placement.node.as_deref().is_some_and(|node| node != own);
    let names_others = placement.for_nodes.iter().any(|node| **node != *own);
    if !is_elsewhere && !names_others {
        return Arc::clone(placement);
    }
    let mut seen = Placement::clone(placement);
    seen.node = seen.node.filter(|_| !is_elsewhere);
    if names_others {
        let is_for_own = seen.for_nodes.iter().any(|node| **node == *own);
        seen.for_nodes = [if is_for_own { own } else { ELSEWHERE }.into()].into();
    }
    Arc::new(seen)
}
