//! Replies of the daemon's loop to requests of the HTTP servers.

use std::time::Instant;

use http_server::{ListenError, Server};
use inspect::{
    ENDPOINTS_A_TURN, Facts, NAMES_A_TURN, Names, NodeContext, Question, SERVICES_A_TURN,
    ServiceCopy, TROUBLES, claimants, own_node, owners,
};
use proxy::{Failure, IpFamily, Model, NamespacedName, NodeFacts};

use super::daemon::Daemon;
use crate::family::Family;
use crate::node::unfit_settings;

/// Maximum number of failures in a reply about an IP family. Conflicts and drains have the same
/// limit.
const TOLD_MAX: usize = 100;

impl Daemon {
    /// Replies to a request within about 2 ms. Ignores a dropped receiver of the reply.
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Facts(answer) => drop(answer.send(self.facts(Instant::now()))),
            Question::Owners(wanted, from, answer) => {
                drop(answer.send(owners(&self.model, &wanted, from)));
            }
            Question::Names(from, answer) => drop(answer.send(names(&self.model, from))),
            Question::Services(asked, answer) => {
                drop(answer.send(services(&self.model, &asked)));
            }
            Question::Ground(answer) => drop(answer.send(self.ground(Instant::now()))),
            Question::Claimants(from, address, port, answer) => {
                drop(answer.send(claimants(&self.model, from, address, port)));
            }
            Question::OwnNode(address, answer) => {
                let mode = self.options.modes.chosen.name();
                let detection = &self.options.modes.shared.detect_local;
                let detector = |family| (family, detection.detector(family, self.model.node()));
                let detectors = IpFamily::ALL.map(detector).to_vec();
                let node = &self.options.process.node_name;
                let own = own_node(&self.model, node, detectors, address);
                drop(answer.send((mode, own)));
            }
        }
    }

    fn ground(&self, now: Instant) -> NodeContext {
        let node = self.model.node();
        let families = self.families.iter().map(|of| {
            let mut facts = NodeFacts::new(of.family(), &self.options.process.node_name);
            facts.zone = node.and_then(|node| node.zone.clone());
            of.ground(&self.model, facts, TROUBLES, now)
        });
        let refused = self.external_addresses.refused();
        NodeContext {
            families: families.collect(),
            refused: refused.map(|(one, _)| one.clone()).collect(),
        }
    }

    /// Returns the warnings about settings that do not fit the cluster or this node now.
    fn unfit_settings(&self) -> Vec<Failure> {
        let detection = &self.options.modes.shared.detect_local;
        let absent = unfit_settings::absent_bridge(detection);
        let families = self.families.iter();
        let unmatched = families.filter_map(|of| of.unmatched_node_ports(&self.model));
        let found = self.one_family.found().iter().cloned();
        let unknown = unfit_settings::unknown_name(&self.options, &self.model);
        let found = found.chain(unmatched).chain(absent).chain(unknown);
        let found = found.map(|one| failure(one.flag.to_owned(), one.message));
        let failed = self.renewal.is_failing().then(|| {
            "the changed configuration is not in effect: the log has the reason, and it is tried \
             again"
                .to_owned()
        });
        let of_file = self.file_problem.reasons().into_iter().chain(failed);
        let of_file = of_file.map(|reason| failure("--config".to_owned(), reason));
        found.chain(of_file).collect()
    }

    fn facts(&self, now: Instant) -> Facts {
        let model = &self.model;
        let families = self.families.iter();
        Facts {
            mode: self.options.modes.chosen.name(),
            uses: self.uses.clone(),
            families: families
                .map(|of: &Family| of.told(model, TOLD_MAX, now))
                .collect(),
            refused: {
                let refused = self.external_addresses.refused();
                let refused = refused.map(|(one, since)| (one.clone(), since));
                refused.take(TOLD_MAX).collect()
            },
            served_contested: {
                let served = self.external_addresses.served();
                let served = served.map(|(one, since)| (one.clone(), since));
                served.take(TOLD_MAX).collect()
            },
            unfit_settings: self.unfit_settings(),
            unbound_servers: {
                let unbound = self.servers.iter().filter_map(Server::unbound);
                let failure = |error: &ListenError| failure(error.action(), error.reason());
                unbound.map(failure).collect()
            },
            services: model.service_count(),
            slices: model.slice_count(),
            is_complete: model.is_complete(),
            is_whole: model.is_whole(),
            has_node: model.has_node(),
            now,
        }
    }
}

/// Returns a failure that concerns no Service.
fn failure(object: String, reason: String) -> Failure {
    Failure {
        object,
        owner: None,
        reason,
    }
}

/// Returns a limited number of Service names, beginning at index `from`.
fn names(model: &Model, from: usize) -> Names {
    let names = model.service_names().skip(from).take(NAMES_A_TURN);
    Names {
        some: names.cloned().collect(),
        version: model.names_version(),
        is_last: from.saturating_add(NAMES_A_TURN) >= model.service_count(),
    }
}

/// Returns copies of the first requested Services, as many as one turn of the daemon's loop allows.
fn services(model: &Model, asked: &[NamespacedName]) -> Vec<Option<ServiceCopy>> {
    let mut endpoints = 0;
    let mut told = Vec::with_capacity(asked.len().min(SERVICES_A_TURN));
    for name in asked.iter().take(SERVICES_A_TURN) {
        let copied = model.view(name).map(|view| ServiceCopy::of(&view));
        endpoints += copied.as_ref().map_or(0, ServiceCopy::endpoint_count);
        told.push(copied);
        if endpoints >= ENDPOINTS_A_TURN {
            break;
        }
    }
    told
}

#[cfg(test)]
mod tests;
