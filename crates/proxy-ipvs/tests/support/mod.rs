//! A node on the strict fake kernel, so that a test is a short story.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use netlink_batch::Worker;
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, Kind, Mode as _, Model, NamespacedName,
    Node, NodeFacts, Placement, Protocol, Service, ServicePort, ServiceType, SyncReport,
};
use proxy_ipvs::fake::{FakeKernel, Work};
use proxy_ipvs::{Config, Op, Proxier, VirtualServerKey};

pub(crate) const NODE: &str = "node1";

/// One node: model, proxier and fake kernel.
pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) kernel: FakeKernel,
    pub(crate) proxier: Proxier<FakeKernel>,
    pub(crate) now: Instant,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn name(text: &str) -> NamespacedName {
    let (namespace, name) = text.split_once('/').unwrap();
    NamespacedName::new(namespace, name)
}

/// `10.0.0.1:80`, TCP.
pub(crate) fn server(text: &str) -> VirtualServerKey {
    let address: std::net::SocketAddr = text.parse().unwrap();
    VirtualServerKey {
        address: address.ip(),
        port: address.port(),
        protocol: Protocol::Tcp,
    }
}

pub(crate) fn service(at: &str, cluster_ip: &str, port: u16) -> Service {
    Service {
        name: name(at),
        uid: "".into(),
        created: None,
        kind: ServiceType::ClusterIp,
        cluster_ips: [ip(cluster_ip)].into_iter().collect(),
        external_ips: Vec::new(),
        ingress_ips: Vec::new(),
        ports: [ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        }]
        .into_iter()
        .collect(),
        affinity_seconds: None,
        internal_local: false,
        external_local: false,
        source_ranges: Vec::new(),
        health_check_node_port: None,
    }
}

/// A slice for port 8080 with endpoints `ADDRESS@NODE`, all ready.
pub(crate) fn slice(of: &str, endpoints: &[&str]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|text| {
            let (address, node) = text.split_once('@').unwrap();
            Endpoint {
                address: ip(address),
                ready: true,
                serving: true,
                terminating: false,
                placement: Arc::new(Placement {
                    node: Some(node.into()),
                    ..Placement::default()
                }),
            }
        })
        .collect();
    EndpointSlice {
        name: name(&format!("{of}-a")),
        service: name(of),
        family: endpoints
            .first()
            .map_or(IpFamily::V4, |e| IpFamily::of(e.address)),
        ports: [EndpointPort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }]
        .into_iter()
        .collect(),
        endpoints: endpoints.into(),
        change_trigger: None,
    }
}

impl World {
    /// An IPv4 node with one address and an empty kernel; nothing has been listed yet.
    pub(crate) fn new() -> Self {
        Self::with(
            Config::default(),
            FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]),
        )
    }

    pub(crate) fn with(config: Config, kernel: FakeKernel) -> Self {
        let family = kernel.state().family;
        let handle = kernel.clone();
        let worker =
            Worker::spawn("fake", move || Ok::<_, std::convert::Infallible>(handle)).unwrap();
        let proxier = Proxier::new(config, NodeFacts::new(family, NODE), worker);
        let mut model = Model::new();
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            model.apply(Event::ListStarted(kind));
        }
        Self {
            model,
            kernel,
            proxier,
            now: Instant::now(),
        }
    }

    /// Tells the end of all lists.
    pub(crate) fn listed(mut self) -> Self {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            self.model.apply(Event::ListComplete {
                kind,
                is_whole: true,
            });
        }
        self
    }

    /// A daemon that starts anew on this kernel, with nothing listed.
    pub(crate) fn restarted(self, config: Config) -> Self {
        Self::with(config, self.kernel)
    }

    pub(crate) fn node(&mut self, node: Node) {
        self.model.apply(Event::NodeApplied(node));
    }

    pub(crate) fn service(&mut self, service: Service) {
        self.model.apply(Event::ServiceApplied(service));
    }

    pub(crate) fn slice(&mut self, slice: EndpointSlice) {
        self.model.apply(Event::SliceApplied(slice));
    }

    pub(crate) fn delete_service(&mut self, at: &str) {
        self.model.apply(Event::ServiceDeleted(name(at)));
    }

    /// What the daemon's loop does with the events so far.
    pub(crate) fn sync(&mut self) -> SyncReport {
        let changes = self.model.take_changes();
        self.proxier.update(&self.model, &changes);
        for _ in 0..3 {
            if self.proxier.needs_resync() {
                self.resync();
            }
            let report = block_on(self.proxier.sync(self.now));
            if !self.proxier.needs_resync() {
                return report;
            }
        }
        panic!("the kernel stays uncertain");
    }

    /// The same with a second connection, by which the kernel is checked while events go on.
    pub(crate) fn with_reader(mut self) -> Self {
        let handle = self.kernel.clone();
        let reader = Worker::spawn("reader", move || Ok::<_, std::convert::Infallible>(handle));
        self.proxier = self.proxier.with_reader(reader.unwrap());
        self
    }

    pub(crate) fn resync(&mut self) {
        block_on(self.proxier.resync(&self.model, self.now)).unwrap();
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        self.now += duration;
    }

    /// What was written since the last look, as text.
    pub(crate) fn written(&self) -> Vec<String> {
        self.kernel
            .take_work()
            .1
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    pub(crate) fn work(&self) -> (Work, Vec<Op>) {
        self.kernel.take_work()
    }

    /// Destinations of a virtual server with their weights: `10.244.1.5:8080=1`.
    pub(crate) fn destinations(&self, at: &str) -> Option<Vec<String>> {
        let state = self.kernel.state();
        let server = state.snapshot.servers.get(&server(at))?;
        let text = |real: proxy_ipvs::RealServer| {
            format!("{}:{}={}", real.target.ip, real.target.port, real.weight)
        };
        Some(server.destinations.iter().map(text).collect())
    }
}

impl World {
    /// Whether a timer of the proxier fires within this time.
    pub(crate) fn proxier_due_within(&self, duration: Duration) -> bool {
        self.proxier
            .next_due()
            .is_some_and(|due| due <= self.now + duration)
    }
}
