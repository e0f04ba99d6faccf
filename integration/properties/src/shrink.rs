//! Shrinks a failing event sequence: removes actions while the sequence still fails.

use crate::action::Action;
use crate::run::Failure;

/// Removes actions from a failing event sequence while it still fails. Returns the shortest failing
/// sequence that it finds, with its failure. `fails` runs an event sequence, and returns its
/// failure if it fails.
pub fn shrink(
    mut actions: Vec<Action>,
    mut failure: Failure,
    mut fails: impl FnMut(&[Action]) -> Option<Failure>,
) -> (Vec<Action>, Failure) {
    // Removes the actions after the failure, which cannot have caused it.
    if failure.at < actions.len() {
        actions.truncate(failure.at + 1);
    }
    let mut size = actions.len() / 2;
    while size > 0 {
        let mut at = 0;
        let mut is_shorter = false;
        while at < actions.len() {
            let mut fewer = actions.clone();
            fewer.drain(at..(at + size).min(actions.len()));
            if let Some(other) = fails(&fewer) {
                (actions, failure) = (fewer, other);
                if failure.at < actions.len() {
                    actions.truncate(failure.at + 1);
                }
                is_shorter = true;
            } else {
                at += size;
            }
        }
        if !is_shorter {
            size /= 2;
        }
    }
    (actions, failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::history;

    #[test]
    fn shrinking_removes_actions_without_effect_on_the_failure() {
        let actions = history(3);
        let needed = [actions.get(5), actions.get(40)];
        let fails = |of: &[Action]| {
            let has = |needed: Option<&Action>| needed.is_some_and(|one| of.contains(one));
            needed.into_iter().all(has).then(|| Failure {
                at: of.len(),
                what: String::new(),
            })
        };
        let failure = fails(&actions).into_iter().next();
        let shrunk = failure.map(|failure| shrink(actions.clone(), failure, fails).0);
        let shrunk = shrunk.unwrap_or_default();
        assert_eq!(
            shrunk.iter().collect::<Vec<_>>(),
            needed.into_iter().flatten().collect::<Vec<_>>()
        );
    }
}
