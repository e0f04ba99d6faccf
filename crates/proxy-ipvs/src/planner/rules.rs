//! The shim, and what other modes have left.

use std::sync::Arc;
use std::time::Instant;

use super::situation::{Situation, left};
use crate::leftovers::Place;
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::sets::Set;
use crate::tables::{Tables, sorted};

/// The shim, and what other modes have left.
pub(crate) fn rules(tables: &Tables, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    // They name all sets, and are refused where one is missing.
    let awaits_sets = of.state.look(Part::Sets).is_awaited();
    let must_wait = awaits_sets || of.cover.awaits_emptying(tables, of.now);
    if must_wait || !of.knows(Part::Rules) {
        return Plan::default();
    }
    if are_sets_tried(tables) && (!tables.are_served_by_another_mode() || is_all_made(tables, of)) {
        ops.extend(write_rules(tables, of.now));
    }
    // Only once the shim is there: before that, its chains may still lead into what is to go.
    if ops.is_empty() && of.claims.may_delete && tables.rules.pending_len() == 0 {
        let places = sorted(tables.leftovers.due(of.now)).into_iter();
        let places = places.filter(|place| may_go(tables, *place, of));
        let leftovers = places.filter_map(|place| {
            let found = tables.leftovers.actual(&place)?;
            Some(Op::RemoveLeftovers(place, Arc::clone(found)))
        });
        ops.extend(leftovers);
    }
    Plan { ops }
}

/// Whether what was left at a place neither serves any more nor tells anything, once the shim is
/// there.
fn may_go(tables: &Tables, place: Place, of: &Situation<'_>) -> bool {
    match place {
        // The shim has replaced it, or nobody is behind it.
        Place::Beside(_) | Place::Ended => true,
        // It has the packets first, and serves whoever this mode does not serve yet.
        Place::Other(_) | Place::Nftables => is_all_made(tables, of),
        // Sets of another shim say which virtual servers are ours, until those have gone.
        Place::OwnTable | Place::Ipsets => {
            of.knows(Part::Servers) && of.has_taken_over && left(tables).next().is_none()
        }
    }
}

fn write_rules(tables: &Tables, now: Instant) -> Option<Op> {
    tables.rules.due(now).next()?;
    let wanted = tables.rules.wanted(&())?.clone();
    let installed = tables.rules.actual(&()).cloned().unwrap_or_default();
    Some(Op::WriteRules { wanted, installed })
}

/// Whether each set is there, or could not be made: rules name them all.
fn are_sets_tried(tables: &Tables) -> bool {
    Set::all().all(|set| tables.sets.actual(&set).is_some() || tables.sets.is_failing(&set))
}

/// Whether all that serves is there, but for what could not be written.
fn is_all_made(tables: &Tables, of: &Situation<'_>) -> bool {
    let is_made = |pending: usize, failing: usize| pending <= failing;
    of.claims.may_delete
        && is_made(tables.servers.pending_len(), tables.servers.failing_len())
        && is_made(
            tables.addresses.pending_len(),
            tables.addresses.failing_len(),
        )
        && tables
            .all_members()
            .all(|(_, table)| is_made(table.pending_len(), table.failing_len()))
}
