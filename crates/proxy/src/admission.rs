//! Which external and load-balancer addresses a Service may have (CVE-2020-8554).
//!
//! Cluster IPs and node ports are given out by the API server, each once. `spec.externalIPs` is
//! typed by whoever may write a Service, and `status.loadBalancer` by whoever may write its status:
//! nothing keeps them from naming an address of somebody else. Three things are refused, whatever
//! the age of the Services, in every mode: what is not in the networks that were allowed, if any
//! were given; another Service's cluster IP; and the API server's address and port, because a node
//! that sends these elsewhere would never hear that the Service was corrected.
//!
//! What is refused is as if it was not given; all else of the Service is served. It is asked again
//! when a cluster IP comes or goes, so that the order of events does not matter.

use std::borrow::Cow;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;

use crate::names::{NamespacedName, Protocol};
use crate::object::{EndpointSlice, Service};
use crate::owner::Rank;

/// What external and load-balancer addresses are held against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// The networks that they may be of; `None`: of any. One that is a single address is meant
    /// also where it is the API server's.
    pub allowed: Option<Vec<IpNet>>,
    /// Where this process was told that the API server is, if that is an address.
    pub api_server: Option<SocketAddr>,
}

/// Where a Service names an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressField {
    /// `spec.externalIPs`.
    ExternalIps,
    /// `status.loadBalancer.ingress`.
    Ingress,
}

impl AddressField {
    /// As the API calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExternalIps => "spec.externalIPs",
            Self::Ingress => "status.loadBalancer.ingress",
        }
    }
}

/// Why an address is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// It is another Service's cluster IP.
    ClusterIp,
    /// The Service has the port at which the API server is, at that address.
    ApiServer(u16),
    /// It is in none of the networks that are allowed.
    NotAllowed,
}

/// An address that a Service names, and that is not served for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefusedAddress {
    /// Where it is named.
    pub field: AddressField,
    /// The address.
    pub address: IpAddr,
    /// Why.
    pub why: Refusal,
}

/// What Services ask for, and what they were refused.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    rules: AddressRules,
    /// How many Services have each as a cluster IP.
    cluster_ips: HashMap<IpAddr, u32>,
    /// Who names each as an external or load-balancer address.
    asked: HashMap<IpAddr, HashSet<NamespacedName>>,
    /// Where the API server is: what was told, and the endpoints of `default/kubernetes`.
    api_servers: Vec<SocketAddr>,
    refused: HashMap<NamespacedName, Box<Held>>,
    /// Addresses of which somebody may be judged otherwise now.
    doubted: HashSet<IpAddr>,
    /// Another number whenever anything of this has changed.
    version: u64,
}

/// A Service of which something was refused: all that it names, and what of it is not served.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    external_ips: Vec<IpAddr>,
    ingress_ips: Vec<IpAddr>,
    refused: Vec<RefusedAddress>,
}

impl Admission {
    pub(crate) fn new(rules: AddressRules) -> Self {
        Self {
            api_servers: rules.api_server.into_iter().collect(),
            rules,
            ..Self::default()
        }
    }

    /// Where the API server is.
    pub(crate) fn api_servers(&self) -> &[SocketAddr] {
        &self.api_servers
    }

    /// Another number whenever [`refused`](Self::refused) or [`asking`](Self::asking) may say
    /// something else.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// What was refused, in no order.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&NamespacedName, &RefusedAddress)> {
        let all = self.refused.iter();
        all.flat_map(|(name, held)| held.refused.iter().map(move |one| (name, one)))
    }

    /// What was refused to a Service.
    pub(crate) fn refused_to(&self, name: &NamespacedName) -> &[RefusedAddress] {
        self.refused.get(name).map_or(&[], |held| &held.refused)
    }

    /// The Services that name an address as an external or load-balancer address, in no order.
    pub(crate) fn asking(&self, address: IpAddr) -> impl Iterator<Item = &NamespacedName> {
        self.asked.get(&address).into_iter().flatten()
    }

    /// A Service as it was given, of which this is what is served.
    pub(crate) fn as_given<'a>(&self, served: &'a Service) -> Cow<'a, Service> {
        let Some(held) = self.refused.get(&served.name) else {
            return Cow::Borrowed(served);
        };
        Cow::Owned(Service {
            external_ips: held.external_ips.clone(),
            ingress_ips: held.ingress_ips.clone(),
            ..served.clone()
        })
    }

    /// Whether this is what was given of a Service of which this is served.
    pub(crate) fn is_as_given(&self, served: &Service, given: &Service) -> bool {
        *self.as_given(served) == *given
    }

    /// A Service comes, as it was given.
    pub(crate) fn enter(&mut self, given: &Service) {
        for ip in &given.cluster_ips {
            *self.cluster_ips.entry(*ip).or_default() += 1;
            self.doubt(*ip);
        }
        for ip in given.external_ips.iter().chain(&given.ingress_ips) {
            let names = self.asked.entry(*ip).or_default();
            names.insert(given.name.clone());
            self.version += 1;
        }
    }

    /// A Service goes, as it was given.
    pub(crate) fn leave(&mut self, given: &Service) {
        for ip in &given.cluster_ips {
            if let Some(count) = self.cluster_ips.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    self.cluster_ips.remove(ip);
                }
            }
            self.doubt(*ip);
        }
        for ip in given.external_ips.iter().chain(&given.ingress_ips) {
            if let Some(names) = self.asked.get_mut(ip) {
                names.remove(&given.name);
                if names.is_empty() {
                    self.asked.remove(ip);
                }
            }
            self.version += 1;
        }
        self.refused.remove(&given.name);
    }

    /// Takes from a Service that has entered what it may not have.
    pub(crate) fn admit(&mut self, service: &mut Service) {
        if service.external_ips.is_empty() && service.ingress_ips.is_empty() {
            self.refused.remove(&service.name);
            return;
        }
        let mut refused = Vec::new();
        let mut judge = |field, addresses: &[IpAddr]| {
            let all = addresses.iter();
            refused.extend(all.filter_map(|address| {
                let why = self.judge(service, *address)?;
                Some(RefusedAddress {
                    field,
                    address: *address,
                    why,
                })
            }));
        };
        judge(AddressField::ExternalIps, &service.external_ips);
        judge(AddressField::Ingress, &service.ingress_ips);
        if refused.is_empty() {
            self.version += u64::from(self.refused.remove(&service.name).is_some());
            return;
        }
        let held = Held {
            external_ips: service.external_ips.clone(),
            ingress_ips: service.ingress_ips.clone(),
            refused,
        };
        let bad: HashSet<IpAddr> = held.refused.iter().map(|one| one.address).collect();
        service.external_ips.retain(|ip| !bad.contains(ip));
        service.ingress_ips.retain(|ip| !bad.contains(ip));
        let before = self.refused.insert(service.name.clone(), held.into());
        self.version +=
            u64::from(before.as_deref() != self.refused.get(&service.name).map(|v| &**v));
    }

    fn judge(&self, service: &Service, address: IpAddr) -> Option<Refusal> {
        let own = u32::from(service.cluster_ips.contains(&address));
        if self.cluster_ips.get(&address).is_some_and(|all| *all > own) {
            return Some(Refusal::ClusterIp);
        }
        let nets = self.rules.allowed.as_deref();
        let mut allowing = nets.into_iter().flatten();
        let is_named = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
        if allowing
            .clone()
            .any(|net| is_named(net) && net.addr() == address)
        {
            return None;
        }
        let is_it = |port: u16| self.api_servers.contains(&SocketAddr::new(address, port));
        let mut ports = service.ports.iter();
        let port = ports.find(|port| port.protocol == Protocol::Tcp && is_it(port.port));
        if let Some(port) = port.filter(|_| Rank::of(&service.name) != Rank::ApiServer) {
            return Some(Refusal::ApiServer(port.port));
        }
        let is_allowed = nets.is_none() || allowing.any(|net| net.contains(&address));
        (!is_allowed).then_some(Refusal::NotAllowed)
    }

    /// Takes over where the API server is by these slices of `default/kubernetes`.
    pub(crate) fn learn_api_servers(&mut self, slices: &[EndpointSlice]) {
        let endpoints = slices.iter().flat_map(|slice| {
            let ports = slice.ports.iter();
            let ports = ports.filter(|port| port.protocol == Protocol::Tcp);
            ports.flat_map(|port| {
                let all = slice.endpoints.iter();
                all.map(|endpoint| SocketAddr::new(endpoint.address, port.port))
            })
        });
        let told = self.rules.api_server.into_iter();
        let mut all: Vec<SocketAddr> = told.chain(endpoints).collect();
        all.sort_unstable();
        all.dedup();
        if all != self.api_servers {
            let before = mem::replace(&mut self.api_servers, all.clone());
            for at in before.into_iter().chain(all) {
                self.doubt(at.ip());
            }
        }
    }

    fn doubt(&mut self, address: IpAddr) {
        if self.asked.contains_key(&address) {
            self.doubted.insert(address);
        }
    }

    /// The Services that are to be judged again, once.
    pub(crate) fn take_doubted(&mut self) -> HashSet<NamespacedName> {
        let doubted = mem::take(&mut self.doubted);
        let names = doubted.iter().filter_map(|ip| self.asked.get(ip));
        names.flatten().cloned().collect()
    }
}
