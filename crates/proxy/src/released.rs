//! Owners that a Service no longer has.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::owner::Owner;

/// Returns those of `before` whose owner is not among `now`. O(n), also where a Service has as many
/// ports as there are.
pub fn released<T>(before: Vec<T>, now: &[T], owner: impl Fn(&T) -> &Arc<Owner>) -> Vec<T> {
    let is_same = |(one, other): (&T, &T)| owner(one) == owner(other);
    if before.len() == now.len() && before.iter().zip(now).all(is_same) {
        return Vec::new();
    }
    let kept: HashSet<&Owner> = now.iter().map(|one| &**owner(one)).collect();
    let is_released = |one: &T| !kept.contains(&**owner(one));
    before.into_iter().filter(is_released).collect()
}
