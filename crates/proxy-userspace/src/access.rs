//! Reads and writes redirects, and opens listening ports, on this mode's worker threads.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::KernelAccess;
use hashbrown::HashMap;
use proxy::{Protocol, Unreadable};

use crate::config::Config;
use crate::kernel::Kernel;
use crate::kinds::Part;
use crate::part_state::PartState;
use crate::plan::{
    Change, Extent, Outcomes, Plan, RedirectOutcomes, Redirects, Refusal, RefusalMeaning,
    SocketError, Sockets,
};
use crate::port::Listener;
use crate::proxier::Userspace;
use relay::PortBackends;

/// Largest number of writes that one plan may use to isolate its refused changes.
const MAX_WRITES: usize = 32;

impl<K: Kernel> KernelAccess<K> for Userspace {
    fn read(kernel: &mut K, config: &Config, part: Part) -> Result<PartState, Unreadable> {
        Ok(match part {
            Part::Rules => PartState::Rules(Box::new(kernel.redirects(config)?)),
            Part::Addresses => PartState::Addresses(kernel.addresses()?),
        })
    }

    fn write(kernel: &mut K, plan: &Plan) -> Outcomes {
        match plan {
            Plan::Sockets(sockets) => {
                let changes = sockets.changes.iter();
                let mut none_left = HashMap::new();
                let outcomes = changes.map(|(listener, serving)| match serving {
                    Some(serving) => {
                        serve(kernel, sockets, (listener, serving), &mut none_left).map(Some)
                    }
                    None => kernel.close(listener).map(|()| None),
                });
                Outcomes::Sockets(outcomes.collect())
            }
            Plan::Redirects(redirects) => Outcomes::Redirects(redirect(kernel, redirects)),
        }
    }

    fn query(_: &mut K, _: &Config, (): ()) {}
}

/// Sets the endpoints of a listening port, and opens the port if necessary. After a failure, opens
/// no further port of the same protocol: each attempt may search all port numbers, and thousands of
/// ports may follow.
fn serve(
    kernel: &mut impl Kernel,
    sockets: &Sockets,
    (listener, serving): (&Listener, &Arc<PortBackends>),
    none_left: &mut HashMap<Protocol, String>,
) -> Result<u16, SocketError> {
    if let Some(port) = kernel.update(listener, serving)? {
        return Ok(port);
    }
    let protocol = listener.name.protocol;
    if let Some(reason) = none_left.get(&protocol) {
        return Err(SocketError::Now(reason.clone()));
    }
    let again = sockets.again.get(listener).copied();
    let opened = kernel.open(listener, serving, again, &sockets.avoided);
    if let Err(SocketError::Now(reason)) = &opened {
        none_left.insert(protocol, reason.clone());
    }
    opened
}

/// Writes the whole plan in one write. If the kernel refuses the plan, first writes the base (the
/// rules that do not depend on Services) with the existing redirects. Then writes halves of the
/// changes until each refused change is isolated.
fn redirect(kernel: &mut impl Kernel, plan: &Redirects) -> RedirectOutcomes {
    let Err(refusal) = kernel.redirect(plan) else {
        return RedirectOutcomes::default();
    };
    let refuse_all = |refusal: Refusal| {
        let of_changes = (0..plan.changes.len()).map(|at| (at, refusal.clone()));
        RedirectOutcomes {
            base: plan.base.is_some().then(|| refusal.clone()),
            changes: of_changes.collect(),
            leftovers: (!plan.leftovers.is_empty()).then_some(refusal),
        }
    };
    let pieces = plan.changes.len() + usize::from(plan.base.is_some());
    if refusal.blame == RefusalMeaning::None || pieces < 2 {
        return refuse_all(refusal);
    }
    if plan.base.is_some() {
        // Includes all existing redirects if this write replaces the whole table, because such a
        // write removes each redirect that it does not name.
        let was_there = plan
            .changes
            .iter()
            .filter(|change| plan.extent == Extent::Whole && change.before.is_some());
        let as_it_was = |change: &Change| Change {
            after: change.before.clone(),
            ..change.clone()
        };
        let base = Redirects {
            changes: was_there.map(as_it_was).collect(),
            ..plan.clone()
        };
        if let Err(refusal) = kernel.redirect(&base) {
            return refuse_all(refusal);
        }
    }
    let mut written = RedirectOutcomes::default();
    let mut groups = VecDeque::from([(0, plan.changes.as_slice())]);
    let mut left = MAX_WRITES;
    while let Some((from, changes)) = groups.pop_front() {
        if changes.is_empty() {
            continue;
        }
        let part = Redirects {
            changes: changes.to_vec(),
            detector: plan.detector.clone(),
            ..Redirects::default()
        };
        left = left.saturating_sub(1);
        match kernel.redirect(&part) {
            Ok(()) => {}
            Err(refusal)
                if changes.len() > 1 && left > 0 && refusal.blame == RefusalMeaning::One =>
            {
                let (one, other) = changes.split_at(changes.len() / 2);
                groups.extend([(from, one), (from + one.len(), other)]);
            }
            Err(refusal) => {
                let all = from..from + changes.len();
                written.changes.extend(all.map(|at| (at, refusal.clone())));
            }
        }
    }
    written
}
