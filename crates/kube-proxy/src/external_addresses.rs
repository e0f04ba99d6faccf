//! Saying which external and load-balancer addresses of Services are not served, and which are the
//! node's own: what somebody names in `spec.externalIPs` takes packets from whoever had them.
//!
//! Each is told once, in the log and as an event, few at a time: whoever may write a Service must
//! not be able to flood either.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use proxy::{AddressField, IpFamily, Model, NamespacedName, Refusal};
use tracing::{info, warn};

use crate::events::{Event, Recorder};

/// How many are told within a [`WINDOW`].
const TOLD_MAX: usize = 20;
const WINDOW: Duration = Duration::from_mins(1);
/// How many are known by name, of all Services and of one. All are counted.
const KNOWN_MAX: usize = 1_000;
const KNOWN_OF_ONE: usize = 20;

/// The gauge, by why.
pub(crate) type Counts = Family<OfReason, Gauge>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfReason {
    reason: &'static str,
}

/// An external or load-balancer address that is not served as it was meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contested {
    pub(crate) service: NamespacedName,
    pub(crate) address: IpAddr,
    field: AddressField,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    /// It is not served.
    Refused(Refusal),
    /// It is served, and an address of this node.
    OfNode,
}

impl Why {
    const ALL: [&str; 4] = ["cluster-ip", "api-server", "not-allowed", "node"];

    fn label(self) -> &'static str {
        match self {
            Self::Refused(Refusal::ClusterIp) => "cluster-ip",
            Self::Refused(Refusal::ApiServer(_)) => "api-server",
            Self::Refused(Refusal::NotAllowed) => "not-allowed",
            Self::OfNode => "node",
        }
    }
}

impl Contested {
    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(self.address)
    }

    /// Whether it is not served.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.why, Why::Refused(_))
    }

    /// What is not done, or done: `serve 192.0.2.1 (spec.externalIPs)`.
    pub(crate) fn object(&self) -> String {
        format!("serve {} ({})", self.address, self.field.name())
    }

    /// Why, and what to do.
    pub(crate) fn reason(&self, model: Option<&Model>) -> String {
        let (address, field) = (self.address, self.field.name());
        match self.why {
            Why::Refused(Refusal::ClusterIp) => {
                let owner = model.and_then(|model| model.service_at(address));
                let owner = owner.map_or_else(
                    || "another Service".to_owned(),
                    |name| format!("Service {name}"),
                );
                format!("it is the cluster IP of {owner}; take it out of {field}")
            }
            Why::Refused(Refusal::ApiServer(port)) => format!(
                "the API server is at {}, which this node would lose; take it out of {field}, or if it is meant, \
                 add {} to --allowed-external-cidrs, beside the networks of all other external addresses",
                SocketAddr::new(address, port),
                IpNet::from(address)
            ),
            Why::Refused(Refusal::NotAllowed) => format!(
                "it is in no network of --allowed-external-cidrs; take it out of {field}, or add a network there"
            ),
            Why::OfNode => format!(
                "it is an address of this node: what is sent to the Service's ports there goes to the Service, and \
                 to nothing that listens on the node; if that is not meant, take it out of {field}"
            ),
        }
    }

    fn line(&self, model: &Model) -> String {
        let Self { service, .. } = self;
        let reason = self.reason(Some(model));
        if self.is_refused() {
            format!("cannot {} for Service {service}: {reason}", self.object())
        } else {
            format!("{} is served for Service {service}: {reason}", self.address)
        }
    }
}

/// No address is contested yet, for no reason: a gauge that appears with its first value would show
/// none.
pub(crate) fn counts() -> Counts {
    let counts = Counts::default();
    for reason in Why::ALL {
        drop(counts.get_or_create(&OfReason { reason }));
    }
    counts
}

/// What is refused, in lines, some of them.
pub(crate) fn refused(model: &Model) -> Vec<String> {
    let mut all: Vec<Contested> = all_refused(model).collect();
    all.sort_unstable();
    let lines = all.iter().take(TOLD_MAX).map(|one| one.line(model));
    let more = all.len().saturating_sub(TOLD_MAX);
    let rest =
        (more > 0).then(|| format!("and {more} more external addresses that are not served"));
    lines.chain(rest).collect()
}

fn all_refused(model: &Model) -> impl Iterator<Item = Contested> {
    model.refused_addresses().map(|(service, one)| Contested {
        service: service.clone(),
        address: one.address,
        field: one.field,
        why: Why::Refused(one.why),
    })
}

/// Tells what is new.
pub(crate) struct ExternalAddresses {
    node: String,
    recorder: Recorder,
    counts: Counts,
    /// What was last looked at: a state of the model, and addresses of the node that Services name.
    looked_at: (u64, Vec<IpAddr>),
    known: BTreeMap<Contested, Known>,
    /// How many of these are still to be told.
    untold: usize,
    window: Instant,
    /// How many were told in this window.
    told: usize,
}

/// What is known of one.
#[derive(Debug, Clone, Copy)]
struct Known {
    since: Instant,
    is_told: bool,
}

impl ExternalAddresses {
    /// Nothing is known yet.
    pub(crate) fn new(node: &str, recorder: Recorder, counts: Counts, now: Instant) -> Self {
        Self {
            node: node.to_owned(),
            recorder,
            counts,
            looked_at: (0, Vec::new()),
            known: BTreeMap::new(),
            untold: 0,
            window: now,
            told: 0,
        }
    }

    /// What is not served, and since when that is known.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Contested, Instant)> {
        let known = self.known.iter().map(|(one, known)| (one, known.since));
        known.filter(|(one, _)| one.is_refused())
    }

    /// Looks at what Services name now, on a node with these addresses. While they are not known, as
    /// where another mode has just taken over, those count that were known before.
    pub(crate) fn look<'a>(
        &mut self,
        model: &Model,
        of_node: Option<impl Iterator<Item = &'a IpAddr>>,
        now: Instant,
    ) {
        let mut of_node: Vec<IpAddr> = match of_node {
            Some(all) => {
                let is_named = |ip: &&IpAddr| model.naming_externally(**ip).next().is_some();
                all.filter(is_named).copied().collect()
            }
            None => self.looked_at.1.clone(),
        };
        of_node.sort_unstable();
        of_node.dedup();
        let looked_at = (model.external_addresses_version(), of_node);
        if looked_at != self.looked_at {
            self.looked_at = looked_at;
            self.learn(model, now);
        }
        if self.untold > 0 {
            self.tell(model, now);
        }
    }

    fn learn(&mut self, model: &Model, now: Instant) {
        let mut counted = [0_i64; Why::ALL.len()];
        let mut named: HashMap<NamespacedName, usize> = HashMap::new();
        let mut known = BTreeMap::new();
        // What is served comes first: nobody is to hide it behind what is refused anyway.
        let served = on_node(model, &self.looked_at.1);
        for one in served.chain(all_refused(model)) {
            let place = Why::ALL.iter().position(|of| *of == one.why.label());
            if let Some(count) = place.and_then(|at| counted.get_mut(at)) {
                *count += 1;
            }
            if known.len() == KNOWN_MAX {
                continue;
            }
            let of_service = named.entry(one.service.clone()).or_default();
            *of_service += 1;
            if *of_service <= KNOWN_OF_ONE {
                let fresh = Known {
                    since: now,
                    is_told: false,
                };
                let before = self.known.get(&one).copied();
                known.insert(one, before.unwrap_or(fresh));
            }
        }
        for (reason, count) in Why::ALL.into_iter().zip(counted) {
            self.counts.get_or_create(&OfReason { reason }).set(count);
        }
        self.untold = known.values().filter(|known| !known.is_told).count();
        self.known = known;
    }

    /// Tells some that were not told yet, those that are served first.
    fn tell(&mut self, model: &Model, now: Instant) {
        if now.saturating_duration_since(self.window) >= WINDOW {
            (self.window, self.told) = (now, 0);
        }
        let room = TOLD_MAX.saturating_sub(self.told);
        if room == 0 {
            return;
        }
        let mut some: Vec<(&Contested, &mut Known)> = self.known.iter_mut().collect();
        some.retain(|(_, known)| !known.is_told);
        some.sort_by_key(|(one, _)| one.is_refused());
        for (one, known) in some.into_iter().take(room) {
            known.is_told = true;
            self.told += 1;
            self.untold -= 1;
            let line = one.line(model);
            // Where load balancers have the nodes' addresses, that is how they are made.
            if one.is_refused() || one.field == AddressField::ExternalIps {
                warn!("{line}");
                let at = (!one.is_refused()).then_some(&*self.node);
                let event = Event::address_contested(&one.service, model, at, &line);
                self.recorder.record(event);
            } else {
                info!("{line}");
            }
        }
        if self.untold > 0 {
            warn!(
                "and {} more external addresses, which are told in the minutes to come; all are counted by \
                 kubeproxy_contested_external_addresses",
                self.untold
            );
        }
    }
}

/// What of these addresses of the node is served for Services.
fn on_node<'a>(model: &'a Model, of_node: &'a [IpAddr]) -> impl Iterator<Item = Contested> + 'a {
    of_node.iter().flat_map(move |address| {
        let services = model.naming_externally(*address);
        services.flat_map(move |service| {
            let fields = [
                (AddressField::ExternalIps, &service.external_ips),
                (AddressField::Ingress, &service.ingress_ips),
            ];
            let fields = fields.into_iter().filter(|(_, all)| all.contains(address));
            fields.map(|(field, _)| Contested {
                service: service.name.clone(),
                address: *address,
                field,
                why: Why::OfNode,
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proxy::{AddressRules, Event as Told, Service};

    use super::*;

    #[test]
    fn what_is_refused_hides_nothing_that_is_served_and_all_is_told_in_time() {
        let node: IpAddr = [192, 0, 2, 1].into();
        let mut model = Model::new().with_address_rules(AddressRules {
            allowed: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            api_server: None,
        });
        let mut give = |name: &str, external_ips: Vec<IpAddr>| {
            let name = NamespacedName::new("default", name);
            let service = Service::at(name, [[10, 96, 0, 1].into()]);
            model.apply(Told::ServiceApplied(Service {
                external_ips,
                ..service
            }));
        };
        // Whoever floods has names that come first.
        for number in 0..60 {
            let many = (0..100).map(|host| Ipv4Addr::new(198, 51, number, host).into());
            give(&format!("a-{number}"), many.collect());
        }
        give("z", vec![node]);
        let (recorder, mut recorded) = Recorder::queued();
        let mut now = Instant::now();
        let mut addresses = ExternalAddresses::new("node1", recorder, counts(), now);
        let mut told = |now| {
            addresses.look(&model, Some([node].iter()), now);
            let mut count = 0;
            while recorded.try_recv().is_ok() {
                count += 1;
            }
            let is_told = |(one, known): (&Contested, &Known)| known.is_told && !one.is_refused();
            (count, addresses.known.iter().any(is_told))
        };
        assert_eq!(told(now), (TOLD_MAX, true));
        assert_eq!(told(now), (0, true), "a minute has not passed");
        let mut all = TOLD_MAX;
        for _ in 0..60 {
            now += WINDOW;
            all += told(now).0;
        }
        assert_eq!(all, KNOWN_MAX);

        // Another mode that has not read them yet forgets nothing.
        addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
        assert!(addresses.known.keys().any(|one| !one.is_refused()));
        assert_eq!(addresses.untold, 0);
    }
}
