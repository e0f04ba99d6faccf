//! HTTP servers for the health-check node ports of Services (`spec.healthCheckNodePort`).
//!
//! ```text
//!   load balancer ──GET any path──▶ node:healthCheckNodePort
//!                 ◀── 200, if an endpoint on this node is ready and the proxy keeps up; else 503
//! ```
//!
//! - Each Service has one server in each family. The server listens on all addresses, or on the
//!   addresses of `--nodeport-addresses`.
//! - A server changes its response only once the kernel has all entries of the Service.
//! - If another process occupies the port, the server tries again each time the daemon has written
//!   to the kernel or read from it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use http::request::Parts;
use http::{HeaderName, StatusCode};
use http_server::{Unspecified, listen_on};
use proxy::{
    Failure, HealthCheck, IpFamily, Model, NamespacedName, NodePortAddresses, Protocol, Selection,
    ServicePortName,
};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::PrettyFormatter;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{debug, error, info};

use crate::events::{Event, Recorder};
use crate::health::Health;

/// Header with the number of ready endpoints on this node, which load balancers can use as the
/// node's weight.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// State and runtime that all health-check servers share.
#[derive(Debug, Clone)]
pub(crate) struct Answering {
    /// Health of the proxy, which affects every response.
    pub(crate) health: Arc<Health>,
    /// Tokio runtime on which the health-check servers run.
    pub(crate) runtime: Handle,
}

/// The health-check servers of all Services in one IP family.
pub(crate) struct HealthChecks {
    family: IpFamily,
    node: String,
    answering: Answering,
    recorder: Recorder,
    /// True if the servers listen only on the addresses of `--nodeport-addresses`.
    is_selective: bool,
    addresses: BTreeSet<IpAddr>,
    servers: HashMap<NamespacedName, Server>,
    /// Services whose port another process occupied. Each update tries to open these ports again.
    unbound: HashSet<NamespacedName>,
}

/// The health-check server of one Service in one IP family.
struct Server {
    port: u16,
    answer: Arc<CheckState>,
    /// Addresses on which this server listens.
    addresses: BTreeSet<IpAddr>,
    /// Tasks of the server, one for each address.
    tasks: JoinSet<()>,
    /// Reason why the server cannot listen, which the log has reported.
    failed: Option<Unbound>,
}

/// A health-check server's failure to listen.
struct Unbound {
    at: SocketAddr,
    reason: String,
    since: Instant,
}

/// State of a Service from which its health-check server computes the response.
struct CheckState {
    service: NamespacedName,
    local_endpoints: AtomicUsize,
    health: Arc<Health>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl HealthChecks {
    /// Creates the health-check servers' state of one IP family. No server runs yet.
    pub(crate) fn new(
        family: IpFamily,
        node: &str,
        node_ports: &NodePortAddresses,
        answering: Answering,
        recorder: Recorder,
    ) -> Self {
        Self {
            family,
            node: node.to_owned(),
            answering,
            recorder,
            is_selective: is_selective(node_ports, family),
            addresses: BTreeSet::new(),
            servers: HashMap::new(),
            unbound: HashSet::new(),
        }
    }

    /// Applies a changed `--nodeport-addresses`, which selects the listening addresses.
    pub(crate) fn select(&mut self, addresses: &NodePortAddresses) {
        self.is_selective = is_selective(addresses, self.family);
    }

    /// Opens, updates or closes the servers of the Services in `settled`, whose entries are all in
    /// the kernel. Also updates the listening addresses of all servers. `node_ports` are the
    /// addresses that serve NodePorts, or `None` if unknown.
    pub(crate) async fn update(
        &mut self,
        model: &Model,
        settled: &[NamespacedName],
        node_ports: Option<&[IpAddr]>,
    ) {
        let addresses = if self.is_selective {
            node_ports.unwrap_or_default().iter().copied().collect()
        } else {
            BTreeSet::from([wildcard(self.family)])
        };
        let mut changed = mem::take(&mut self.unbound);
        changed.extend(settled.iter().cloned());
        if addresses != self.addresses {
            self.addresses = addresses;
            changed.extend(self.servers.keys().cloned());
        }
        let mut checks: Vec<_> = changed
            .into_iter()
            .map(|name| {
                let view = model.view(&name);
                let check = view.and_then(|view| HealthCheck::of(&view, self.family, &self.node));
                (name, check)
            })
            .collect();
        // Closes old servers before it opens new servers, because a port may move from one Service
        // to another Service.
        for (name, check) in &checks {
            self.close(name, check.map(|check| check.port)).await;
        }
        // If two Services have the same port, the older one gets it, or the first by name.
        checks.sort_by_cached_key(|(name, _)| {
            let created = model.view(name).and_then(|view| view.service.created);
            (created.unwrap_or(i64::MAX), name.clone())
        });
        for (name, check) in checks {
            if let Some(check) = check {
                self.open(name, check, model);
            }
        }
    }

    /// Returns true if the servers listen only on the addresses of `--nodeport-addresses`.
    pub(crate) fn is_selective(&self) -> bool {
        self.is_selective
    }

    /// Returns the servers that cannot listen, at most `most`, each with the time of the failure.
    /// Adds the servers whose port is another Service's NodePort, with the time `now`.
    pub(crate) fn failing(
        &self,
        model: &Model,
        most: usize,
        now: Instant,
    ) -> Vec<(Failure, Instant)> {
        let unbound = self.unbound.iter().filter_map(|name| {
            let failed = self.servers.get(name)?.failed.as_ref()?;
            let object = format!("listen on {} for health checks", failed.at);
            Some((
                failure_of(name, object, failed.reason.clone()),
                failed.since,
            ))
        });
        let shadowed = self.shadowed(model).map(|(name, port, other)| {
            let object = format!("answer health checks on node port {port}");
            let reason = format!(
                "it is a NodePort of Service {other}, whose endpoints get the load balancer's \
                 requests; give one of the Services another port"
            );
            (failure_of(name, object, reason), now)
        });
        unbound.chain(shadowed).take(most).collect()
    }

    /// Returns the servers whose port is another Service's NodePort, each with this Service. Costs
    /// O(Services) if there are servers.
    fn shadowed<'a>(
        &'a self,
        model: &'a Model,
    ) -> impl Iterator<Item = (&'a NamespacedName, u16, &'a NamespacedName)> {
        let servers = self.servers.iter();
        let by_port: HashMap<u16, _> = servers.map(|(name, of)| (of.port, name)).collect();
        let has_servers = !by_port.is_empty();
        let services = has_servers.then(|| model.services());
        services.into_iter().flatten().flat_map(move |other| {
            let ports = other
                .ports
                .iter()
                .filter(|port| port.protocol == Protocol::Tcp);
            let numbers = ports.filter_map(|port| port.node_port);
            let owners = numbers.filter_map(|port| Some((*by_port.get(&port)?, port, &other.name)));
            owners
                .filter(|(name, ..)| **name != other.name)
                .collect::<Vec<_>>()
        })
    }

    /// Closes the server of a Service, unless the server already has this port and listens only on
    /// addresses that are still wanted.
    async fn close(&mut self, name: &NamespacedName, port: Option<u16>) {
        let is_right = self.servers.get(name).is_none_or(|server| {
            Some(server.port) == port && server.addresses.is_subset(&self.addresses)
        });
        if !is_right && let Some(mut server) = self.servers.remove(name) {
            // Waits until the tasks have closed their sockets, so that the ports are free.
            server.tasks.shutdown().await;
            debug!(family = %self.family, service = %name, port = server.port, "health checks of the Service are closed");
        }
    }

    fn open(&mut self, name: NamespacedName, check: HealthCheck, model: &Model) {
        let server = self.servers.entry(name.clone()).or_insert_with(|| Server {
            port: check.port,
            answer: Arc::new(CheckState {
                service: name.clone(),
                local_endpoints: AtomicUsize::new(0),
                health: Arc::clone(&self.answering.health),
            }),
            addresses: BTreeSet::new(),
            tasks: JoinSet::new(),
            failed: None,
        });
        server
            .answer
            .local_endpoints
            .store(check.local_endpoints, Ordering::Relaxed);
        if let Err((address, error)) = server.listen(&self.addresses, &self.answering.runtime) {
            self.note_unbound(name, SocketAddr::new(address, check.port), &error, model);
        } else if server.failed.take().is_some() {
            info!(family = %self.family, service = %name, port = check.port, "health checks of the Service are answered now");
        }
    }

    /// Records that the server of the Service `name` cannot listen at `at`. Logs a failure once, and
    /// sends an event.
    fn note_unbound(
        &mut self,
        name: NamespacedName,
        at: SocketAddr,
        error: &io::Error,
        model: &Model,
    ) {
        let mut servers = self.servers.iter();
        let holder = servers.find(|(other, server)| {
            **other != name && server.port == at.port() && !server.addresses.is_empty()
        });
        let next = match holder {
            Some((other, _)) => format!(
                "the health checks of Service {other} use the port; give one of the Services \
                 another healthCheckNodePort"
            ),
            None => "find the process on the port: ss -ltnp".to_owned(),
        };
        let Some(server) = self.servers.get_mut(&name) else {
            return;
        };
        let since = server.failed.as_ref().map(|failed| failed.since);
        if since.is_none() {
            error!(
                family = %self.family, service = %name, port = at.port(), address = %at.ip(), %error,
                "cannot listen for the health checks of the Service, so its load balancer may \
                 skip this node; it is retried: {next}"
            );
            let event = Event::health_check_failed(&name, model, &self.node, at, error);
            self.recorder.record(event);
        }
        server.failed = Some(Unbound {
            at,
            reason: format!("{error}; its load balancer may skip this node; {next}"),
            since: since.unwrap_or_else(Instant::now),
        });
        self.unbound.insert(name);
    }
}

impl Server {
    /// Listens on all addresses in `addresses` on which the server does not listen yet.
    ///
    /// # Errors
    ///
    /// Returns the last address that cannot be bound, with the reason. The server listens on all
    /// other addresses.
    fn listen(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        runtime: &Handle,
    ) -> Result<(), (IpAddr, io::Error)> {
        let mut result = Ok(());
        // Enters the tokio runtime, because a socket belongs to the runtime that creates it.
        let _entered = runtime.enter();
        for address in addresses.difference(&self.addresses.clone()) {
            // Accepts connections of this IP family only. Each family has its own server and its
            // own number of endpoints.
            match listen_on(SocketAddr::new(*address, self.port), Unspecified::V6Only) {
                Ok(listener) => {
                    self.addresses.insert(*address);
                    let answer = Arc::clone(&self.answer);
                    let what = format!("the health checks of Service {}", answer.service);
                    let respond = Arc::new(move |_: &Parts| answer.response(Instant::now()));
                    self.tasks
                        .spawn(http_server::serve(listener, what, respond));
                }
                Err(error) => result = Err((*address, error)),
            }
        }
        result
    }
}

impl CheckState {
    fn response(&self, now: Instant) -> http_server::Answer {
        let local_endpoints = self.local_endpoints.load(Ordering::Relaxed);
        let is_healthy = self.health.is_healthy(now);
        let body = Body {
            service: ServiceName {
                namespace: self.service.namespace(),
                name: self.service.name(),
            },
            local_endpoints,
            service_proxy_healthy: is_healthy,
        };
        let status = if local_endpoints > 0 && is_healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let mut response = http_server::answer(status, "application/json", body.to_json());
        response
            .headers_mut()
            .insert(WEIGHT, local_endpoints.into());
        response
    }
}

impl Body<'_> {
    /// Formats the body with tabs, as upstream does.
    fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::new();
        let tabs = PrettyFormatter::with_indent(b"\t");
        // Cannot fail: the values are strings and numbers, and a Vec accepts every write.
        let _ = self.serialize(&mut Serializer::with_formatter(&mut json, tabs));
        json
    }
}

/// Returns a failure of the health checks of a Service.
fn failure_of(service: &NamespacedName, object: String, reason: String) -> Failure {
    Failure {
        object,
        owner: Some(ServicePortName {
            service: service.clone(),
            port: "".into(),
            protocol: Protocol::Tcp,
        }),
        reason,
    }
}

/// Reports whether `--nodeport-addresses` restricts an IP family to some addresses. As in upstream,
/// a network that contains every address is not a restriction.
fn is_selective(addresses: &NodePortAddresses, family: IpFamily) -> bool {
    addresses.of(family) != Selection::All
}

fn wildcard(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests;
