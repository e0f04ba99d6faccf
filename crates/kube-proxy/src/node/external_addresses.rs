//! Reports three kinds of findings about Services:
//!
//! - contested external and load-balancer addresses. The proxy rejects some of these addresses. It
//!   serves an address in `spec.externalIPs` even if the address belongs to this node. The Service
//!   then gets packets that processes of this node would otherwise get;
//! - Services above the size limit;
//! - ignored Service options.
//!
//! Each finding is reported once, in the log and as an event. The number of reports is limited.
//! Otherwise a user with write access to one Service could flood the log or the events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use modes::footprints;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use proxy::contested::{ContestReason, Contested, ContestedPart, OverLimit};
use proxy::{
    AddressField, IpFamily, Model, NamespacedName, OptionSupport, Service, UnavailableOption,
};
use route_netlink::{Lookup, Rtnetlink};
use tracing::{info, warn};

use crate::events::{Event, Recorder};

/// Largest number of findings that are reported within a [`WINDOW`].
const TOLD_MAX: usize = 20;
const WINDOW: Duration = Duration::from_mins(1);
/// Maximum number of stored findings. Further findings are counted, but neither stored nor
/// reported.
const KNOWN_MAX: usize = 1_000;
/// Maximum number of stored findings of one namespace, so that one tenant's findings cannot hide
/// another tenant's.
const KNOWN_OF_NAMESPACE: usize = 250;
/// Maximum number of stored findings of one Service.
const KNOWN_OF_ONE: usize = 20;

/// Gauge with the number of findings by reason.
pub(crate) type Counts = Family<OfReason, Gauge>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfReason {
    reason: &'static str,
}

/// Creates the gauge with 0 for each reason. A time series that began with the first finding would
/// show no increase.
pub(crate) fn counts() -> Counts {
    let counts = Counts::default();
    for reason in ContestedPart::LABELS {
        drop(counts.get_or_create(&OfReason { reason }));
    }
    counts
}

/// Returns a limited number of lines about rejected addresses and options, and about Services above
/// the size limit.
pub(crate) fn refused(model: &Model, heeding: &OptionSupport) -> Vec<String> {
    let mut all: Vec<Contested> = all_refused(model, heeding).collect();
    all.sort_unstable();
    let lines = all.iter().take(TOLD_MAX).map(|one| one.line(model));
    let more = all.len().saturating_sub(TOLD_MAX);
    let rest =
        (more > 0).then(|| format!("and {more} more refused addresses, options and Services"));
    lines.chain(rest).collect()
}

fn all_refused<'a>(
    model: &'a Model,
    heeding: &'a OptionSupport,
) -> impl Iterator<Item = Contested> + 'a {
    let addresses = model.refused_addresses().map(|(service, one)| {
        let what = ContestedPart::Address(one.address, one.field, ContestReason::Refused(one.why));
        (service, what)
    });
    let oversized = model.oversized();
    let oversized =
        oversized.map(|(service, excess)| (service, ContestedPart::TooLarge(OverLimit(*excess))));
    let options = heeding.unheeded(model);
    let options = options.map(|(service, one)| (service, ContestedPart::Option(one)));
    // Adds addresses last: a Service can name so many addresses that findings about them would hide
    // all other findings.
    let all = oversized.chain(options).chain(addresses);
    all.map(|(service, what)| Contested {
        service: service.clone(),
        what,
    })
}

/// Reporter that logs each new finding and sends it as a Kubernetes event.
pub(crate) struct ExternalAddresses {
    node: String,
    recorder: Recorder,
    counts: Counts,
    heeding: OptionSupport,
    /// Inputs of the last comparison: the model's version, the node's addresses that Services use,
    /// and the options that this node supports.
    looked_at: (u64, Vec<IpAddr>, OptionSupport),
    /// Networks and routers near this node, read when the node had the addresses in `read_for`.
    near: NearbyNetworks,
    read_for: Vec<IpAddr>,
    /// Addresses and ports of the API server. No Service may have them as an external address.
    guarded: Vec<SocketAddr>,
    known: BTreeMap<Contested, Finding>,
    /// Number of findings that wait to be reported.
    untold: usize,
    /// Function that reads the networks and routers near this node.
    read: fn() -> NearbyNetworks,
    window: Instant,
    /// Number of findings that were reported in the current window.
    told: usize,
}

/// State of a finding: the time at which it was found, and true if it was reported.
#[derive(Debug, Clone, Copy)]
struct Finding {
    since: Instant,
    is_told: bool,
}

impl ExternalAddresses {
    /// Creates a reporter without findings.
    pub(crate) fn new(
        node: &str,
        mode: &'static str,
        recorder: Recorder,
        counts: Counts,
        now: Instant,
    ) -> Self {
        Self {
            node: node.to_owned(),
            heeding: OptionSupport {
                mode,
                ..OptionSupport::default()
            },
            recorder,
            counts,
            looked_at: (0, Vec::new(), OptionSupport::default()),
            near: NearbyNetworks::default(),
            read_for: Vec::new(),
            guarded: Vec::new(),
            known: BTreeMap::new(),
            untold: 0,
            read: NearbyNetworks::read,
            window: now,
            told: 0,
        }
    }

    /// Returns the rejected addresses and options and the Services above the size limit, each with
    /// the time at which the daemon found it.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Contested, Instant)> {
        self.found().filter(|(one, _)| one.is_refused())
    }

    /// Returns the addresses that the proxy serves with side effects, each with the time at which
    /// the daemon found it. Omits load-balancer addresses of this node, because some load balancers
    /// use the nodes' own addresses.
    pub(crate) fn served(&self) -> impl Iterator<Item = (&Contested, Instant)> {
        let served = self.found().filter(|(one, _)| !one.is_refused());
        served.filter(|(one, _)| !is_usual(one))
    }

    fn found(&self) -> impl Iterator<Item = (&Contested, Instant)> {
        self.known.iter().map(|(one, known)| (one, known.since))
    }

    /// Sets the IPVS scheduler, and the option values that this node does not support.
    pub(crate) fn support(&mut self, scheduler: &str, unavailable: Vec<UnavailableOption>) {
        if *self.heeding.scheduler != *scheduler {
            self.heeding.scheduler = scheduler.into();
        }
        self.heeding.unavailable = unavailable;
    }

    /// Compares the addresses that Services name with the node's addresses. While the node's
    /// addresses are unknown, for example after a change of mode, uses the last known addresses.
    pub(crate) fn look<'a>(
        &mut self,
        model: &Model,
        of_node: Option<impl Iterator<Item = &'a IpAddr>>,
        now: Instant,
    ) {
        if model.api_servers() != self.guarded {
            self.tell_guarded(model.api_servers());
        }
        let mut has_moved = false;
        let mut of_node: Vec<IpAddr> = match of_node {
            Some(all) => {
                let all: Vec<IpAddr> = all.copied().collect();
                let is_named = |ip: &IpAddr| model.naming_externally(*ip).next().is_some();
                let named = all.iter().copied().filter(is_named).collect();
                if all != self.read_for {
                    (self.near, self.read_for) = ((self.read)(), all);
                    has_moved = true;
                }
                named
            }
            None => self.looked_at.1.clone(),
        };
        of_node.sort_unstable();
        of_node.dedup();
        // Both version numbers only grow. So if their sum is unchanged, both numbers are unchanged.
        let version = model.external_addresses_version() + model.options_version();
        let (before, of_node_before, heeding) = &self.looked_at;
        if (*before, of_node_before, heeding) != (version, &of_node, &self.heeding) || has_moved {
            self.looked_at = (version, of_node, self.heeding.clone());
            self.learn(model, now);
        }
        if self.untold > 0 {
            self.tell(model, now);
        }
    }

    /// Logs each change of the API server's addresses.
    fn tell_guarded(&mut self, guarded: &[SocketAddr]) {
        for at in guarded.iter().filter(|at| !self.guarded.contains(at)) {
            info!("the API server is at {at}, which no Service may have");
        }
        for at in self.guarded.iter().filter(|at| !guarded.contains(at)) {
            info!("the API server is no longer at {at}, which Services may have again");
        }
        self.guarded = guarded.to_vec();
    }

    fn learn(&mut self, model: &Model, now: Instant) {
        let mut counted = [0_usize; ContestedPart::LABELS.len()];
        let mut of_services: HashMap<NamespacedName, usize> = HashMap::new();
        let mut of_namespaces: HashMap<String, usize> = HashMap::new();
        let mut known = BTreeMap::new();
        // Adds findings about served addresses first, so that findings about rejected addresses
        // cannot hide them.
        let served = on_node(model, &self.looked_at.1);
        let served = served.chain(near(model, &self.near, &self.looked_at.1));
        for one in served.chain(all_refused(model, &self.heeding)) {
            let label = one.what.label();
            let place = ContestedPart::LABELS
                .iter()
                .position(|of| Some(*of) == label);
            if let Some(count) = place.and_then(|at| counted.get_mut(at)) {
                *count += one.what.addresses();
            }
            if known.len() == KNOWN_MAX {
                continue;
            }
            let namespace = one.service.namespace().to_owned();
            let of_namespace = of_namespaces.entry(namespace).or_default();
            let of_service = of_services.entry(one.service.clone()).or_default();
            if *of_service < KNOWN_OF_ONE && *of_namespace < KNOWN_OF_NAMESPACE {
                *of_service += 1;
                *of_namespace += 1;
                let fresh = Finding {
                    since: now,
                    is_told: false,
                };
                let before = self.known.get(&one).copied();
                known.insert(one, before.unwrap_or(fresh));
            }
        }
        for (reason, count) in ContestedPart::LABELS.into_iter().zip(counted) {
            let count = count.try_into().unwrap_or(i64::MAX);
            self.counts.get_or_create(&OfReason { reason }).set(count);
        }
        self.untold = known.values().filter(|known| !known.is_told).count();
        self.known = known;
    }

    /// Reports new findings, at most [`TOLD_MAX`] within a [`WINDOW`]. Findings about served
    /// addresses come first.
    fn tell(&mut self, model: &Model, now: Instant) {
        if now.saturating_duration_since(self.window) >= WINDOW {
            (self.window, self.told) = (now, 0);
        }
        let room = TOLD_MAX.saturating_sub(self.told);
        if room == 0 {
            return;
        }
        let mut some: Vec<(&Contested, &mut Finding)> = self.known.iter_mut().collect();
        some.retain(|(_, known)| !known.is_told);
        some.sort_by_key(|(one, _)| one.is_refused());
        for (one, known) in some.into_iter().take(room) {
            known.is_told = true;
            self.told += 1;
            self.untold -= 1;
            let line = one.line(model);
            // Logs this finding as information instead of a warning, and sends no event.
            if is_usual(one) {
                info!("{line}");
                continue;
            }
            warn!("{line}");
            let event = match one.what {
                ContestedPart::TooLarge(_) => Event::service_too_large(&one.service, model, line),
                ContestedPart::Option(_) => {
                    let at = one.is_of_this_node().then_some(&*self.node);
                    Event::option_not_heeded(&one.service, model, at, line)
                }
                ContestedPart::Address(..) => {
                    let at = one.is_of_this_node().then_some(&*self.node);
                    let is_refused = one.is_refused();
                    Event::address_contested(&one.service, model, at, is_refused, &line)
                }
            };
            self.recorder.record(event);
        }
        if self.untold > 0 {
            warn!(
                "and {} more, which are logged in the next minutes; all external addresses are \
                 counted by \
                 kubeproxy_contested_external_addresses",
                self.untold
            );
        }
    }
}

/// Returns true for a load-balancer address of this node: some load balancers use the nodes' own
/// addresses.
fn is_usual(one: &Contested) -> bool {
    let field = AddressField::Ingress;
    matches!(one.what, ContestedPart::Address(_, of, ContestReason::OfNode) if of == field)
}

/// Describes the addresses that Services would have although they are in this node's networks, or
/// are its next hop. `own` are the node's own addresses.
pub(crate) fn nearby(model: &Model, networks: &NearbyNetworks, own: &[IpAddr]) -> Vec<String> {
    let found = near(model, networks, own);
    found.map(|one| one.line(model)).collect()
}

/// Networks that this node reaches without a router, and its default routers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NearbyNetworks {
    /// Addresses of the next hops of this node's default routes.
    pub(crate) next_hops: Vec<IpAddr>,
    /// Networks of the node's interfaces, without the modes' links.
    pub(crate) networks: Vec<IpNet>,
}

impl NearbyNetworks {
    /// Reads the default routes and the networks of links. Skips parts that cannot be read. Reads
    /// each link separately, because links of the modes may have thousands of addresses.
    pub(crate) fn read() -> Self {
        let mut near = Self::default();
        let Ok(mut rtnetlink) = Rtnetlink::open() else {
            return near;
        };
        let made = footprint::links(footprints::ALL);
        let links = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let names = links.lines().filter_map(|line| line.split_once(':'));
        for name in names.map(|(name, _)| name.trim()) {
            let Ok(Some(link)) = rtnetlink.link(name) else {
                continue;
            };
            if made.contains(&name) {
                continue;
            }
            for family in IpFamily::ALL {
                let held = rtnetlink.addresses_of(link.index, family.into());
                let nets = held.unwrap_or_default().into_iter();
                let nets = nets.filter_map(|held| IpNet::new(held.address, held.prefix).ok());
                let is_network = |net: &IpNet| {
                    net.prefix_len() < net.max_prefix_len() && !net.addr().is_loopback()
                };
                near.networks
                    .extend(nets.filter(is_network).map(|net| net.trunc()));
            }
        }
        for is_v4 in [true, false] {
            let asked = Lookup {
                destination: explain::nobodys(is_v4),
                source: None,
                link: None,
                mark: 0,
            };
            if let Ok(Ok(way)) = rtnetlink.way(&asked) {
                near.next_hops.extend(way.gateway);
            }
        }
        near
    }

    /// Returns the next hops and the networks, each with the reason why a Service's address in it
    /// is reported. A next hop is a network of one address.
    fn places(&self) -> impl Iterator<Item = (IpNet, ContestReason)> {
        let hops = self.next_hops.iter();
        let hops = hops.map(|hop| (IpNet::from(*hop), ContestReason::NextHop));
        let networks = self.networks.iter();
        hops.chain(networks.map(|net| (*net, ContestReason::InNetwork(*net))))
    }
}

/// Returns served addresses that lie in a network of `near` but do not belong to this node. If an
/// address lies in several networks, returns the reason of the first network only. Reports a
/// load-balancer address only if it is a next hop, because load balancers often use addresses of
/// the nodes' network.
fn near<'a>(
    model: &'a Model,
    near: &'a NearbyNetworks,
    own: &'a [IpAddr],
) -> impl Iterator<Item = Contested> + 'a {
    let mut known = HashSet::new();
    let all = near.places().flat_map(move |(net, why)| {
        let named = model.naming_within(net);
        let named = named.filter(|(address, _)| !own.contains(address));
        named.flat_map(move |(address, service)| {
            let fields = fields_of(service, address);
            let fields = fields.filter(move |field| {
                why == ContestReason::NextHop || *field == AddressField::ExternalIps
            });
            fields.map(move |field| Contested {
                service: service.name.clone(),
                what: ContestedPart::Address(address, field, why),
            })
        })
    });
    all.filter(move |one| match one.what {
        ContestedPart::Address(address, field, _) => {
            known.insert((one.service.clone(), address, field))
        }
        ContestedPart::TooLarge(_) | ContestedPart::Option(_) => true,
    })
}

/// Returns the fields of a Service (external IPs, load-balancer addresses) that contain `address`.
fn fields_of(service: &Service, address: IpAddr) -> impl Iterator<Item = AddressField> {
    let fields = [
        (AddressField::ExternalIps, &service.external_ips),
        (AddressField::Ingress, &service.ingress_ips),
    ];
    let named = fields.map(|(field, all)| all.contains(&address).then_some(field));
    named.into_iter().flatten()
}

/// Returns the node's own addresses that the proxy also serves for Services.
fn on_node<'a>(model: &'a Model, of_node: &'a [IpAddr]) -> impl Iterator<Item = Contested> + 'a {
    of_node.iter().flat_map(move |address| {
        let services = model.naming_externally(*address);
        services.flat_map(move |service| {
            fields_of(service, *address).map(|field| Contested {
                service: service.name.clone(),
                what: ContestedPart::Address(*address, field, ContestReason::OfNode),
            })
        })
    })
}

#[cfg(test)]
mod tests;
