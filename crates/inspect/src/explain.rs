//! Responds to `/api/v1/explain`: traces packets through this node.

use std::net::IpAddr;

use ::explain::{Objects, OwnNode, Quotes, TraceDestination, TraceRequest};
use http::Uri;
use proxy::{AddressField, IpFamily, LocalDetector, Model, NamespacedName, Protocol, Service};
use service_counters::frontend_addresses::{FrontendAddress, places};
use service_counters::{CounterSamples, Counters};
use source::EndpointPlaces;

use super::question::{ClaimingServices, NodeContext, Question, ServiceCopy};
use super::service::{Detail, ServiceContext};
use super::{Asker, Inspect, RequestRefusal, rendered};

/// Maximum number of Services that the daemon's main loop searches in one turn for an address, or
/// for pods of this node.
pub(crate) const LOOKED_AT_A_TURN: usize = 2_000;
/// Maximum number of endpoints that the daemon's main loop searches for pods of this node.
const ENDPOINTS_LOOKED_AT: usize = 10_000;
/// Maximum number of this node's pods that the daemon's main loop returns for a trace.
const PODS: usize = 64;
/// Maximum number of Services that a response names because the requested address is one of their
/// external or load-balancer addresses.
const NAMED_BY: usize = 4;
/// Maximum number of attempts at a search. An attempt fails if Services are added or removed during
/// the search.
const TRIES: usize = 3;

impl Inspect {
    /// Traces packets to the destination in the query, and renders the result as JSON.
    pub(super) async fn explain(&self, uri: &Uri, asker: Asker) -> Result<Vec<u8>, RequestRefusal> {
        let asked = TraceRequest::read_query(uri.query().unwrap_or_default());
        let asked = asked.map_err(|error| RequestRefusal::Wrong(error.to_string()))?;
        let turn = self.room(asker).explaining_turn().await?;
        let known = self.known(&asked).await?;
        let (counters, modes) = (self.counters.clone(), self.about.modes);
        let quotes = match asker {
            Asker::Root => Quotes::All,
            Asker::Anyone => Quotes::Own,
        };
        rendered(move || {
            // Keeps the permit until this work ends, even if the client disconnects, so that no
            // other trace starts earlier.
            let _turn = turn;
            let objects = known.objects(&asked)?;
            let listening = listening(&counters);
            ::explain::answer(&asked, &objects, &listening, quotes, modes)
                .map_err(RequestRefusal::Unreadable)
        })
        .await
    }

    /// Requests copies of the objects that a trace needs from the daemon's main loop.
    async fn known(&self, asked: &TraceRequest) -> Result<CopiedObjects, RequestRefusal> {
        let names = match &asked.to {
            TraceDestination::Service(name, _) => {
                vec![NamespacedName::new(&name.namespace, &name.name)]
            }
            TraceDestination::Address(at, _) => self.claimants(at.ip(), at.port()).await?,
        };
        let is_named = matches!(asked.to, TraceDestination::Service(..));
        let mut copied = Vec::new();
        let mut rest = &*names;
        while !rest.is_empty() {
            let ask = rest.to_vec();
            let told = self.ask(|answer| Question::Services(ask, answer)).await?;
            // Each reply covers at least one Service, so this loop ends.
            rest = rest.get(told.len().max(1)..).unwrap_or_default();
            copied.extend(told.into_iter().flatten());
        }
        if let (true, Some(name), true) = (is_named, names.first(), copied.is_empty()) {
            return Err(RequestRefusal::NotFound(format!(
                "there is no Service {name} that is proxied: kube-proxy services lists those that are"
            )));
        }
        let ground = self.ask(Question::Ground).await?;
        let address = match &asked.to {
            TraceDestination::Address(at, _) => Some(at.ip()),
            TraceDestination::Service(..) => None,
        };
        let own_node = |answer| Question::OwnNode(address, answer);
        let (mode, node) = self.ask(own_node).await?;
        Ok(CopiedObjects {
            copied,
            ground,
            mode,
            node,
        })
    }

    /// Lists the Services that have an address and port. Starts the search again if Services are
    /// added or removed meanwhile, but only a few times.
    pub async fn claimants(
        &self,
        address: IpAddr,
        port: u16,
    ) -> Result<Vec<NamespacedName>, RequestRefusal> {
        let (mut all, mut from, mut version, mut tries) = (Vec::new(), 0, None, 1);
        loop {
            let told: ClaimingServices = self
                .ask(|answer| Question::Claimants(from, address, port, answer))
                .await?;
            let is_moved = version.is_some_and(|version| version != told.version);
            version = Some(told.version);
            if is_moved && tries < TRIES {
                (all, from, version, tries) = (Vec::new(), 0, None, tries + 1);
                continue;
            }
            all.extend(told.names);
            match told.next {
                Some(next) => from = next,
                None => break,
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

/// Copies of the objects that a trace needs, made by the daemon's main loop.
struct CopiedObjects {
    copied: Vec<ServiceCopy>,
    ground: NodeContext,
    mode: &'static str,
    node: OwnNode,
}

impl CopiedObjects {
    /// Converts the copies to API objects. With many endpoints, this takes too long for the
    /// daemon's main loop.
    fn objects(self, asked: &TraceRequest) -> Result<Objects, RequestRefusal> {
        let (counted, nowhere) = (CounterSamples::default(), EndpointPlaces::default());
        let seen = ServiceContext::new(&self.ground, &counted, &nowhere);
        let detail = Detail {
            has_endpoints: true,
        };
        let copied = self.copied.iter();
        let objects = Objects {
            mode: Some(self.mode.to_owned()),
            services: copied.map(|one| seen.service(one, detail)).collect(),
            node: self.node,
        };
        unknown_port(asked, &objects)?;
        Ok(objects)
    }
}

/// Searches at most `LOOKED_AT_A_TURN` Services, from index `from` on, for an address and port.
pub fn claimants(model: &Model, from: usize, address: IpAddr, port: u16) -> ClaimingServices {
    let mut looked_at = 0;
    let names = model.service_names().skip(from).take(LOOKED_AT_A_TURN);
    let names = names.inspect(|_| looked_at += 1);
    let claims = |name: &&NamespacedName| {
        let view = model.view(name);
        view.is_some_and(|view| has(view.service, address, port))
    };
    let names = names.filter(claims).cloned().collect();
    ClaimingServices {
        names,
        version: model.names_version(),
        next: (looked_at == LOOKED_AT_A_TURN).then_some(from + looked_at),
    }
}

/// Reports whether a Service may be served at an address and port. A NodePort matches at any
/// address.
fn has(service: &Service, address: IpAddr, port: u16) -> bool {
    let is_it = |place| match place {
        FrontendAddress::At(at) => at.address == address && at.port == port,
        FrontendAddress::NodePort(number, _) => number == port,
    };
    let mut ports = service.ports.iter();
    ports.any(|own| places(service, own).any(is_it))
}

/// Returns facts about this node from the object model, and Services that name `address` as
/// external.
pub fn own_node(
    model: &Model,
    name: &str,
    detectors: Vec<(IpFamily, LocalDetector)>,
    address: Option<IpAddr>,
) -> OwnNode {
    let node = model.node();
    let naming = address.into_iter().flat_map(|address| {
        let services = model.naming_externally(address).take(NAMED_BY);
        services.map(move |service| {
            let is_external = service.external_ips.contains(&address);
            let field = if is_external {
                AddressField::ExternalIps
            } else {
                AddressField::Ingress
            };
            format!("Service {} ({})", service.name, field.name())
        })
    });
    OwnNode {
        detectors,
        named_by: naming.collect(),
        proxied_by: address.map_or_else(Vec::new, |address| proxied_by(model, address)),
        pods: own_pods(model, name),
        addresses: node.map(|node| node.addresses.clone()).unwrap_or_default(),
        pod_networks: node.map(|node| node.pod_cidrs.clone()).unwrap_or_default(),
    }
}

/// Returns the names of some Services that list `address` with `ipMode: Proxy`. Searches a limited
/// number of Services.
fn proxied_by(model: &Model, address: IpAddr) -> Vec<String> {
    let services = model.services().take(LOOKED_AT_A_TURN);
    let naming = services.filter(|service| service.proxied_ips.contains(&address));
    let names = naming.map(|service| service.name.to_string());
    names.take(NAMED_BY).collect()
}

/// Returns the addresses of some pods of the node `name`, from the endpoints of the first Services.
fn own_pods(model: &Model, name: &str) -> Vec<IpAddr> {
    let names = model.service_names().take(LOOKED_AT_A_TURN);
    let views = names.filter_map(|name| model.view(name));
    let slices = views.flat_map(|view| view.slices().collect::<Vec<_>>());
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter());
    let endpoints = endpoints.take(ENDPOINTS_LOOKED_AT);
    let own = endpoints.filter(|one| one.placement.node.as_deref() == Some(name));
    let mut pods = Vec::new();
    for one in own {
        if pods.len() < PODS && !pods.contains(&one.address) {
            pods.push(one.address);
        }
    }
    pods
}

/// Returns a function that finds the Service port for which the daemon itself listens on a port of
/// this node.
fn listening(
    counters: &Counters,
) -> impl Fn(IpFamily, Protocol, u16) -> Option<service_counters::RelayedPort> + '_ {
    |family, protocol, port| {
        let relayed = counters.with(|reader| reader.relayed(family, protocol, port));
        relayed.flatten()
    }
}

/// Returns an error if the request names a port that the Service does not have. The error lists the
/// Service's ports.
fn unknown_port(asked: &TraceRequest, objects: &Objects) -> Result<(), RequestRefusal> {
    let TraceDestination::Service(name, Some(_)) = &asked.to else {
        return Ok(());
    };
    if objects.has_asked(asked) {
        return Ok(());
    }
    let ports = objects.services.iter().flat_map(|service| &service.ports);
    let ports: Vec<String> = ports
        .map(|port| match &*port.name {
            "" => format!("{}/{}", port.port, port.protocol),
            name => format!("{name} ({}/{})", port.port, port.protocol),
        })
        .collect();
    Err(RequestRefusal::NotFound(format!(
        "Service {name} has no port as in {}; it has {}",
        asked.text,
        ports.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use proxy::Event;

    use super::*;

    #[test]
    fn services_that_leave_an_address_to_a_load_balancer_are_found() {
        let mut model = Model::new();
        let name = |name: &str| NamespacedName::new("default", name);
        let address = IpAddr::from([192, 0, 2, 74]);
        for (number, own) in [(1, "other"), (2, "proxied")] {
            let service = Service {
                proxied_ips: (own == "proxied").then_some(address).into_iter().collect(),
                ..Service::at(name(own), [[10, 96, 0, number].into()])
            };
            model.apply(Event::ServiceApplied(service));
        }
        let own = |address| own_node(&model, "n1", Vec::new(), address).proxied_by;
        assert_eq!(own(Some(address)), ["default/proxied"]);
        assert!(own(Some([192, 0, 2, 75].into())).is_empty());
        assert!(own(None).is_empty());
    }
}
