//! Plans the writes of the shim (the rules beside IPVS) and the removal of other modes' leftovers.

use std::sync::Arc;
use std::time::Instant;

use super::make::{
    awaits_firewall, waits_for_firewall, waits_for_masquerading, waits_for_outside, waits_for_rules,
};
use super::situation::{Situation, left};
use crate::clients::ChangingClients;
use crate::leftovers::LeftoverPlace;
use crate::masquerading::{self, EXEMPT};
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::server::VirtualServerKey;
use crate::sets::{Member, Set};
use crate::tables::{FormerRules, Tables, sorted};

/// Returns the next plan that writes the shim, or that removes other modes' leftovers.
pub(crate) fn rules(tables: &Tables, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    // Waits for the sets, because the kernel refuses a rule that names a missing set.
    let awaits_sets = of.state.look(Part::Sets).is_awaited();
    let is_exact = of.state.config.semantics.is_exact();
    let mark_awaits_firewall = |mark: &Member| awaits_firewall(tables, Set::LocalMark, mark, of);
    let awaits_rules = |mark: &Member| {
        let at = Set::LocalMark.service_address(mark);
        mark_awaits_firewall(mark) || at.is_some_and(|at| waits_for_rules(tables, &at.into(), of))
    };
    let replaces_marks = of.claims.may_delete && of.knows(Part::Servers);
    let must_wait = awaits_sets
        || of.cover.awaits_emptying(tables, of.now)
        || masquerading::would_drop(tables, of.claims.may_delete, |set| of.lacks_rule(set))
        || (replaces_marks
            && of.lacks_rule(Set::LocalMark)
            && masquerading::awaits_next_mark(tables, mark_awaits_firewall))
        || (!is_exact && masquerading::needs_marks(tables, of.knows(Part::Servers), awaits_rules));
    if must_wait || !of.knows(Part::Rules) {
        return Plan::default();
    }
    let is_ready = match tables.former_rules() {
        FormerRules::None => true,
        FormerRules::Shim => are_sets_filled(tables, of),
        FormerRules::OtherMode => is_all_made(tables, of),
    };
    if are_sets_tried(tables) && is_ready {
        ops.extend(write_rules(tables, of.now));
    }
    // Removes other modes' leftovers only after the shim is written. Until then, old chains of the
    // shim may jump into the leftovers.
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

/// Returns true if the leftovers at a place can be removed: no Service needs them, and they do not
/// prove ownership of a virtual server.
fn may_go(tables: &Tables, place: LeftoverPlace, of: &Situation<'_>) -> bool {
    match place {
        // The shim replaces these leftovers, or the process that served packets with them has
        // ended.
        LeftoverPlace::Beside(_) | LeftoverPlace::Ended => true,
        // The other mode's rules match packets before IPVS does, and may serve Services that IPVS
        // mode does not serve yet.
        LeftoverPlace::Other(_) | LeftoverPlace::Nftables => {
            is_all_made(tables, of) && masquerading::losing_endpoints(tables).next().is_none()
        }
        // Members of an earlier shim's sets prove ownership until the unwanted virtual servers are
        // removed.
        LeftoverPlace::OwnTable | LeftoverPlace::Ipsets => {
            let mut others = tables.leftovers.iter_actual();
            // The kernel keeps sets that the earlier shim's rules still match.
            let is_used = place == LeftoverPlace::Ipsets
                && others.any(|(other, _)| {
                    matches!(other, LeftoverPlace::Other(_)) && !may_go(tables, *other, of)
                });
            !is_used
                && of.knows(Part::Servers)
                && of.has_taken_over
                && left(tables).next().is_none()
                && masquerading::losing_endpoints(tables).next().is_none()
        }
    }
}

fn write_rules(tables: &Tables, now: Instant) -> Option<Op> {
    tables.rules.due(now).next()?;
    let wanted = tables.rules.wanted(&())?.clone();
    let installed = tables.rules.actual(&()).cloned().unwrap_or_default();
    Some(Op::WriteRules { wanted, installed })
}

/// Returns true if the proxy has created each wanted set, or tried to. Rules may match any of them.
fn are_sets_tried(tables: &Tables) -> bool {
    Set::every().all(|set| {
        let sets = &tables.sets;
        sets.wanted(&set).is_none() || sets.actual(&set).is_some() || sets.is_failing(&set)
    })
}

/// Returns true if the proxy may delete entries and the sets have all wanted members, except:
///
/// - members of missing sets, and members that the kernel refused
/// - exemptions from masquerading whose virtual servers wait
/// - members of the firewall set (source ranges), marks and exemptions that wait for rules
/// - marks and exemptions whose fwmark virtual server the kernel refused
/// - clients of a firewall whose virtual server still has unwanted endpoints
fn are_sets_filled(tables: &Tables, of: &Situation<'_>) -> bool {
    let may_wait = |set: Set| {
        (set == Set::LoadBalancerFirewall && of.are_rules_pending)
            || (EXEMPT.contains(&set) && waiting(tables, of) > 0)
    };
    let clients = ChangingClients::of(tables);
    let mut sets = tables.all_members();
    of.claims.may_delete
        && sets.all(|(set, table)| {
            let waits = |member: &Member| {
                awaits_firewall(tables, set, member, of)
                    || masquerading::awaits_refused_server(tables, &of.claims.marks, set, member)
                    || clients.must_wait(set, member)
            };
            let is_missing = |member: &Member| {
                table.wanted(member).is_some() && !table.is_failing(member) && !waits(member)
            };
            tables.sets.actual(&set).is_none() || !table.pending().any(is_missing) || may_wait(set)
        })
}

/// Returns true if the proxy may delete entries and the kernel has all entries that serve packets,
/// except those that it refused.
fn is_all_made(tables: &Tables, of: &Situation<'_>) -> bool {
    let is_made = |pending: usize, failing: usize| pending <= failing;
    let (pending, failing) = (tables.servers.pending_len(), tables.servers.failing_len());
    are_sets_filled(tables, of)
        && (is_made(pending, failing) || is_made(pending, failing + waiting(tables, of)))
        && is_made(
            tables.addresses.pending_len(),
            tables.addresses.failing_len(),
        )
        && is_made(tables.ranges.pending_len(), tables.ranges.failing_len())
}

/// Returns the number of virtual servers that wait for rules, including unwanted fwmark virtual
/// servers that wait until no rule marks their packets.
fn waiting(tables: &Tables, of: &Situation<'_>) -> usize {
    let waits = |key: &&VirtualServerKey| {
        !tables.servers.is_failing(key)
            && (waits_for_outside(tables, key, of)
                || waits_for_firewall(tables, key, of)
                || waits_for_masquerading(tables, key, of)
                || (key.address().is_none() && tables.servers.wanted(key).is_none()))
    };
    tables.servers.pending().filter(waits).count()
}
