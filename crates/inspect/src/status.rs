//! Responds to `/api/v1/status`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::jiff::Timestamp;
use proxy::contested::Contested;
use proxy::{Failure, IpFamily, Standing};
use service_counters::{At, CounterSelection, Counters};
use source::Trouble;
use view::{
    Conflict, Draining, Family, RejectedEntry, RepairedEntries, Source, Status, SyncState,
    Unreadable,
};

use super::facts::{Facts, FamilyFacts};
use super::parts::{features, limits, switched_off};
use super::{About, Inspect, RequestRefusal, rendered};

/// Maximum number of errors that the response lists, and of conflicts, and of draining endpoints.
const LISTED: usize = 100;

impl Inspect {
    /// Returns the daemon's state on this node as JSON. While the daemon starts, returns the
    /// conditions for which it waits.
    pub(super) async fn status(&self) -> Result<Vec<u8>, RequestRefusal> {
        let facts = match self.ask(super::Question::Facts).await {
            Ok(facts) => Some(facts),
            Err(RequestRefusal::Starting(_)) => None,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let source = self.source.get();
        let is_serving = facts.is_some();
        let troubles = source.map(|of| of.troubles.now()).unwrap_or_default();
        let unreadable = source.map(|of| of.unreadable.now()).unwrap_or_default();
        let outer = ExternalFacts {
            about: self.about.clone(),
            source: source.map(|of| of.from.clone()).unwrap_or_default(),
            troubles: troubles
                .iter()
                .map(|one| told(one, is_serving, now))
                .collect(),
            unreadable: unreadable
                .into_iter()
                .map(|one| Unreadable {
                    part: one.place,
                    reason: one.reason,
                    ..Unreadable::default()
                })
                .collect(),
            awaiting: self.health.awaiting(),
            is_healthy: self.health.is_healthy(now),
            updated: self.health.updated(),
            counters: self.status_counters.clone(),
        };
        rendered(move || Ok(outer.status(facts))).await
    }
}

/// Facts for the response that do not come from the daemon's main loop.
struct ExternalFacts {
    about: About,
    source: String,
    /// Errors of the source of objects, as texts.
    troubles: Vec<String>,
    /// Manifests that the source cannot read.
    unreadable: Vec<Unreadable>,
    /// Conditions that the daemon waits for before it is ready.
    awaiting: Vec<String>,
    is_healthy: bool,
    updated: BTreeMap<IpFamily, Instant>,
    counters: Counters,
}

impl ExternalFacts {
    fn status(self, facts: Option<Facts>) -> Status {
        let is_ready = self.awaiting.is_empty();
        let awaited = self.awaiting.into_iter();
        let awaited = awaited.map(|what| format!("awaited: {what}"));
        let mut status = Status {
            node: self.about.node,
            version: self.about.version.to_owned(),
            kubernetes: self.about.kubernetes,
            started: text(self.about.started),
            ready: is_ready,
            healthy: self.is_healthy,
            source: Source {
                from: self.source,
                ..Source::default()
            },
            unreadable: self.unreadable,
            notes: awaited.chain(self.troubles).collect(),
            ..Status::default()
        };
        if let Some(facts) = facts {
            let drains = facts.families.iter().flat_map(|of| &of.drains.first);
            let drains: Vec<proxy::DrainingEndpoint> = drains.copied().collect();
            status.limits = limits(&facts.uses.parts, self.about.modes);
            status.features = features(&facts.uses, self.about.missing_scheduler);
            add(&mut status, facts, &self.updated);
            add_rivals(&mut status, self.about.other_daemons);
            add_connections(&mut status, &drains, &self.counters);
        }
        status
    }
}

/// Adds a warning about other kube-proxies that may have caused the drift. Without drift, does not
/// look for them.
pub(super) fn add_rivals(status: &mut Status, other_daemons: fn() -> Vec<String>) {
    if status.drift.is_empty() {
        return;
    }
    let warning = |process: String| RejectedEntry {
        reason: "it runs in this network namespace as well, so both overwrite each other's kernel \
                 entries; end one of them"
            .to_owned(),
        object: process,
        ..RejectedEntry::default()
    };
    status
        .warnings
        .extend(other_daemons().into_iter().map(warning));
}

fn add(status: &mut Status, facts: Facts, updated: &BTreeMap<IpFamily, Instant>) {
    facts.mode.clone_into(&mut status.mode);
    let plain = |one: Failure| RejectedEntry {
        object: one.object,
        reason: one.reason,
        ..RejectedEntry::default()
    };
    status.errors = facts.unbound_servers.into_iter().map(plain).collect();
    let switched_off = switched_off(&facts.uses.parts).into_iter();
    status
        .errors
        .extend(switched_off.map(|(family, reason)| RejectedEntry {
            family: family.to_string(),
            object: "lead packets by iptables".to_owned(),
            reason,
            ..RejectedEntry::default()
        }));
    status.forms = facts.uses.forms;
    status.source.services = facts.services;
    status.source.endpoint_slices = facts.slices;
    status.source.complete = facts.is_complete;
    status.source.whole = facts.is_whole;
    status.source.node_exists = facts.has_node;
    if facts.is_complete && !facts.is_whole {
        status.notes.push(
            "an object exists that could not be read: until it can be, nothing is removed; the \
             log names it"
                .to_owned(),
        );
    }
    add_forms(&mut status.forms, &facts.families);
    for of in facts.families {
        let updated = updated.get(&of.family).copied();
        status.families.push(family(&of, updated, facts.now));
        add_seen(status, of, facts.now);
    }
    let entry = |(one, since): &(Contested, Instant)| RejectedEntry {
        family: one.family().map(|of| of.to_string()).unwrap_or_default(),
        object: one.object(),
        service: Some(one.service.to_string()),
        reason: one.reason(None),
        seconds: ago(*since, facts.now),
    };
    status.errors.extend(facts.refused.iter().map(entry));
    let unfit = facts.unfit_settings.into_iter().map(plain);
    let served = facts.served_contested.iter().map(entry);
    status.warnings = unfit.chain(served).take(LISTED).collect();
    status.errors.truncate(LISTED);
    status.conflicts.truncate(LISTED);
    status.draining.truncate(LISTED);
}

/// Adds the current variants of the mode's entries. Names the IP family if the families have
/// different variants.
fn add_forms(forms: &mut Vec<String>, families: &[FamilyFacts]) {
    let all = families.iter().filter_map(|of| Some((of.family, of.form?)));
    let all: Vec<(IpFamily, &str)> = all.collect();
    for (family, form) in &all {
        let is_common = all.iter().all(|(_, other)| other == form);
        let text = if is_common {
            (*form).to_owned()
        } else {
            format!("{form} ({family})")
        };
        if !forms.contains(&text) {
            forms.push(text);
        }
    }
}

/// Adds the number of connections to each draining endpoint, if it can be read. `status` lists the
/// first endpoints of `drains`, in the same order.
fn add_connections(status: &mut Status, drains: &[proxy::DrainingEndpoint], counters: &Counters) {
    if drains.is_empty() {
        return;
    }
    let mut at: Vec<At> = drains.iter().map(|one| one.at).collect();
    at.dedup();
    let Some(Ok(counted)) = counters.with(|reader| reader.read(CounterSelection::Of(&at))) else {
        return;
    };
    for (told, one) in status.draining.iter_mut().zip(drains) {
        let endpoint = SocketAddr::new(one.target.ip, one.target.port);
        let of = counted.endpoints.get(&(one.at, endpoint));
        told.connections = of.and_then(|of| Some(of.count.active? + of.count.inactive?));
    }
}

fn add_seen(status: &mut Status, of: FamilyFacts, now: Instant) {
    let family = of.family.to_string();
    let seen = of.seen;
    let unbound = of.health_checks.into_iter();
    let unbound = unbound.map(|(failure, since)| (failure, now.saturating_duration_since(since)));
    status.errors.extend(
        seen.failures
            .into_iter()
            .chain(unbound)
            .map(|(failure, since)| RejectedEntry {
                family: family.clone(),
                object: failure.object,
                service: failure.owner.map(|owner| owner.to_string()),
                reason: failure.reason,
                seconds: since.as_secs_f64(),
            }),
    );
    status
        .unreadable
        .extend(seen.unreadable.into_iter().map(|of| Unreadable {
            family: family.clone(),
            part: of.part.to_owned(),
            reason: of.reason,
        }));
    status
        .conflicts
        .extend(seen.conflicts.into_iter().map(|conflict| Conflict {
            family: family.clone(),
            address: conflict.object,
            winner: conflict.winner.to_string(),
            loser: conflict.loser.to_string(),
        }));
    status
        .drift
        .extend(seen.drift.into_iter().map(|(kind, of)| RepairedEntries {
            family: family.clone(),
            kind: kind.to_owned(),
            count: of.count,
            last: text(of.last),
            names: of.names,
        }));
    status.draining_count += of.drains.count;
    status
        .draining
        .extend(of.drains.first.into_iter().map(|one| Draining {
            server: one.at.to_string(),
            endpoint: SocketAddr::new(one.target.ip, one.target.port).to_string(),
            seconds: one.since.map_or(0.0, |since| ago(since, now)),
            connections: None,
        }));
}

fn family(of: &FamilyFacts, updated: Option<Instant>, now: Instant) -> Family {
    let standing = &of.standing;
    Family {
        family: of.family.to_string(),
        state: state(standing, of.is_served, !of.seen.failures.is_empty()),
        pending: standing.pending,
        failing: standing.failing,
        lag_seconds: standing.pending_since.map_or(0.0, |since| ago(since, now)),
        stuck_seconds: standing.stuck_since.map(|since| ago(since, now)),
        updated_seconds_ago: updated.map(|updated| ago(updated, now)),
    }
}

fn state(standing: &Standing, is_served: bool, has_failures: bool) -> SyncState {
    if standing.stuck_since.is_some() {
        SyncState::Stuck
    } else if !is_served {
        SyncState::Starting
    } else if standing.failing > 0 || has_failures {
        SyncState::Failing
    } else if standing.pending > 0 {
        SyncState::Syncing
    } else {
        SyncState::Synced
    }
}

/// Describes an error of the source of objects, with the time for which it has lasted.
fn told(trouble: &Trouble, is_serving: bool, now: Instant) -> String {
    let seconds = now.saturating_duration_since(trouble.since).as_secs();
    let served = if is_serving {
        "the last known state is served"
    } else {
        "nothing is programmed before"
    };
    format!(
        "{}; for {seconds} s now, and it is tried again; {served}",
        trouble.text
    )
}

fn ago(since: Instant, now: Instant) -> f64 {
    let ago = now.saturating_duration_since(since);
    // Rounds down to milliseconds.
    Duration::from_millis(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}

/// Formats a time as RFC 3339, in whole seconds.
fn text(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default();
    Timestamp::from_second(at.as_second())
        .unwrap_or_default()
        .to_string()
}
