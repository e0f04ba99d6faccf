//! Finds the kernel entries that owners no longer want.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::owner::Owner;

/// Returns the entries of `before` whose owner has no entry in `now`. Costs O(n), because a Service
/// may have 65,535 ports.
pub fn released<T>(before: Vec<T>, now: &[T], owner: impl Fn(&T) -> &Arc<Owner>) -> Vec<T> {
    let is_same = |(one, other): (&T, &T)| owner(one) == owner(other);
    if before.len() == now.len() && before.iter().zip(now).all(is_same) {
        return Vec::new();
    }
    let kept: HashSet<&Owner> = now.iter().map(|one| &**owner(one)).collect();
    let is_released = |one: &T| !kept.contains(&**owner(one));
    before.into_iter().filter(is_released).collect()
}
