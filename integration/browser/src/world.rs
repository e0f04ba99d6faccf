//! What the fixture says: a node with many Services, on which not all is well.

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Instant;

use view::{
    Address, AddressKind, Chance, Condition, Conflict, Counters, Drain, Draining, Drifted,
    Endpoint, EndpointCounts, Explanation, Family, Fate, Feature, Journey, Limit, Port, Rate,
    Refused, Service, ServiceList, ServiceName, Source, State, Status, Step, Top, TopEndpoint,
    TopPort, Walk,
};

/// A name that would do something, if it were taken for markup.
pub const MARKUP: &str = "<img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>";

/// Longer than any window is wide, and with no place to break it at; as long as a name may be.
fn long() -> String {
    "x".repeat(253)
}

/// The Services, and since when they are counted.
#[derive(Debug)]
pub struct World {
    services: Vec<Service>,
    mode: &'static str,
    is_starting: bool,
    began: Instant,
    last: Mutex<Option<Instant>>,
}

impl World {
    /// So many Services in ten namespaces, each with three endpoints, and one that is named with markup.
    pub fn with(services: usize) -> Self {
        let mut services: Vec<_> = (0..services).map(service).collect();
        services.push(marked());
        services.sort_by(|one, other| one.name.cmp(&other.name));
        Self {
            services,
            mode: "ipvs",
            is_starting: false,
            began: Instant::now(),
            last: Mutex::new(None),
        }
    }

    /// The same in another mode.
    #[must_use]
    pub fn in_mode(self, mode: &'static str) -> Self {
        Self { mode, ..self }
    }

    /// A node whose first lists have not come.
    pub fn starting() -> Self {
        Self {
            is_starting: true,
            ..Self::with(0)
        }
    }

    fn counters(&self, share: u64) -> Counters {
        let milliseconds = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let connections = milliseconds * share / 1000;
        Counters {
            connections,
            packets_in: Some(connections * 6),
            packets_out: Some(connections * 5),
            bytes_in: Some(connections * 900),
            bytes_out: Some(connections * 14_000),
            active: Some(share),
            inactive: Some(share / 3),
        }
    }

    fn counted(&self, mut service: Service) -> Service {
        for port in &mut service.ports {
            port.counters = Some(self.counters(30));
            for address in &mut port.addresses {
                address.counters = Some(self.counters(30));
            }
            for endpoint in port
                .endpoints
                .iter_mut()
                .filter(|endpoint| endpoint.cluster)
            {
                endpoint.counters = Some(self.counters(15));
            }
        }
        service
    }

    /// As `/api/v1/services` answers.
    pub fn services(
        &self,
        namespace: &str,
        search: &str,
        after: &str,
        limit: usize,
    ) -> ServiceList {
        let is_it = |service: &&Service| {
            let name = service.name.to_string();
            let mut addresses = service.ports.iter().flat_map(|port| &port.addresses);
            (namespace.is_empty() || service.name.namespace == namespace)
                && (name.contains(search) || addresses.any(|address| address.at.contains(search)))
        };
        let found: Vec<_> = self.services.iter().filter(is_it).collect();
        let total = found.len();
        let mut left = found
            .into_iter()
            .filter(|service| after.is_empty() || service.name.to_string().as_str() > after);
        let items: Vec<_> = left
            .by_ref()
            .take(limit)
            .map(|service| {
                let mut service = self.counted(service.clone());
                for port in &mut service.ports {
                    port.endpoints.clear();
                }
                service
            })
            .collect();
        let next = left
            .next()
            .and(items.last())
            .map(|last| last.name.to_string());
        ServiceList {
            items,
            total,
            next,
            notes: Vec::new(),
        }
    }

    /// As `/api/v1/services/NAMESPACE/NAME` answers.
    pub fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        let found = self
            .services
            .iter()
            .find(|service| service.name.namespace == namespace && service.name.name == name);
        found.map(|service| self.counted(service.clone()))
    }

    /// As `/api/v1/status` answers.
    pub fn status(&self) -> Status {
        if self.is_starting {
            return Status {
                node: "node-1".to_owned(),
                started: "2026-01-05T08:30:00Z".to_owned(),
                healthy: true,
                source: Source {
                    from: "API server https://10.0.0.1:6443".to_owned(),
                    ..Source::default()
                },
                notes: vec![
                    "awaited: the first lists of Services and EndpointSlices, for 12 s now"
                        .to_owned(),
                    format!("API server https://10.0.0.1:6443 cannot be reached: {MARKUP}"),
                ],
                ..Status::default()
            };
        }
        Status {
            node: "node-1".to_owned(),
            mode: self.mode.to_owned(),
            forms: vec!["shim upstream".to_owned(), "scheduler rr".to_owned()],
            version: "0.1.0".to_owned(),
            kubernetes: "v1.37.0".to_owned(),
            started: "2026-01-05T08:30:00Z".to_owned(),
            ready: true,
            healthy: true,
            families: vec![
                Family {
                    family: "IPv4".to_owned(),
                    state: State::Failing,
                    pending: 3,
                    failing: 1,
                    lag_seconds: 4.2,
                    stuck_seconds: None,
                    updated_seconds_ago: Some(12.0),
                },
                Family {
                    family: "IPv6".to_owned(),
                    state: State::Synced,
                    updated_seconds_ago: Some(12.0),
                    ..Family::default()
                },
            ],
            source: Source {
                from: "API server https://10.0.0.1:6443".to_owned(),
                services: self.services.len(),
                endpoint_slices: self.services.len(),
                complete: true,
                whole: true,
                node_exists: Some(true),
            },
            errors: vec![Refused {
                family: "IPv4".to_owned(),
                object: format!("add virtual server 10.96.0.2:80/TCP {MARKUP}"),
                service: Some("team-0/web-00000:http".to_owned()),
                reason: "the kernel has no scheduler mh: load ip_vs_mh, or choose another --ipvs-scheduler".to_owned(),
                seconds: 95.0,
            }],
            conflicts: vec![Conflict {
                family: "IPv4".to_owned(),
                address: "192.0.2.20:80/TCP".to_owned(),
                winner: "team-0/web-00000".to_owned(),
                loser: "team-0/web-00010".to_owned(),
            }],
            drift: vec![Drifted {
                family: "IPv4".to_owned(),
                kind: "set member".to_owned(),
                count: 2,
                last: "2026-01-05T09:12:00Z".to_owned(),
                names: vec!["KUBE-CLUSTER-IP 10.96.0.1,tcp:80".to_owned()],
            }],
            draining: vec![Draining {
                server: "10.96.0.1:80/TCP".to_owned(),
                endpoint: "10.244.1.9:8080".to_owned(),
                seconds: 312.0,
                connections: Some(4),
            }],
            draining_count: 1,
            limits: vec![
                Limit {
                    of: "connection tracking entries".to_owned(),
                    used: 121_000,
                    limit: 131_072,
                    near: true,
                },
                Limit {
                    of: "set KUBE-CLUSTER-IP (IPv4)".to_owned(),
                    used: 10_001,
                    limit: 65_536,
                    near: false,
                },
            ],
            features: vec![
                Feature {
                    name: "IPVS".to_owned(),
                    found: true,
                    note: "1.2.1".to_owned(),
                },
                Feature {
                    name: "scheduler mh".to_owned(),
                    found: false,
                    note: "no Service of this node can use it".to_owned(),
                },
            ],
            ..Status::default()
        }
    }

    /// As `/api/v1/top` answers: rates come with the second question.
    pub fn top(&self) -> Top {
        let now = Instant::now();
        let before = self.last.lock().ok().and_then(|mut last| last.replace(now));
        let seconds = before.map_or(0.0, |before| (now - before).as_secs_f64());
        let rate = |connections: f64| Rate {
            connections,
            packets_in: connections * 6.0,
            packets_out: connections * 5.0,
            bytes_in: connections * 900.0,
            bytes_out: connections * 14_000.0,
        };
        let busiest = self.services.iter().zip([120_u32, 80, 30, 4, 1]);
        let ports = busiest.clone().map(|(service, share)| TopPort {
            service: service.name.clone(),
            port_name: "http".to_owned(),
            protocol: "TCP".to_owned(),
            port: 80,
            rate: rate(share.into()),
            counters: self.counters(share.into()),
        });
        let endpoints = busiest.flat_map(|(service, share)| {
            let endpoints = service.ports.iter().flat_map(|port| &port.endpoints);
            endpoints.take(2).map(move |endpoint| TopEndpoint {
                service: service.name.clone(),
                port_name: "http".to_owned(),
                at: endpoint.at.clone(),
                rate: rate(f64::from(share) / 2.0),
                counters: self.counters(u64::from(share) / 2),
            })
        });
        Top {
            seconds,
            total: rate(235.0),
            ports: ports.collect(),
            endpoints: endpoints.collect(),
            draining: 1,
            pending: 3,
            failing: 1,
            notes: Vec::new(),
        }
    }

    /// As `/api/v1/explain` answers: of any Service, three ways.
    pub fn explain(&self, to: &str, from: &str) -> Explanation {
        let step = |place: &str, entry: &str, says: &str, origin: &str| Step {
            place: place.to_owned(),
            entry: entry.to_owned(),
            says: says.to_owned(),
            origin: origin.to_owned(),
            packets: Some(18_211),
            bytes: Some(1_092_660),
            ..Step::default()
        };
        let origin = format!("Service {to}, port http");
        let walk = |endpoint: &str, chance: f64| Walk {
            chance: Chance(chance),
            fate: Fate::Delivered,
            endpoint: Some(endpoint.to_owned()),
            source: "kept".to_owned(),
            steps: vec![
                step(
                    "nat PREROUTING",
                    "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
                    "goes to KUBE-SERVICES",
                    "",
                ),
                step(
                    "nat KUBE-SERVICES",
                    "-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ",
                    "is from a pod: not marked for masquerading",
                    "--cluster-cidr",
                ),
                step(
                    "IPVS",
                    "TCP 10.96.0.1:80 rr",
                    "is the virtual server of the cluster IP; the scheduler takes the next in turn",
                    &origin,
                ),
                step(
                    "IPVS",
                    &format!("-> {endpoint} Masq 1 3 12"),
                    "gets the endpoint as its destination",
                    &format!("EndpointSlice of {to}"),
                ),
            ],
            ..Walk::default()
        };
        let walks = vec![walk("10.244.0.2:8080", 0.5), walk("10.244.0.3:8080", 0.5)];
        Explanation {
            to: to.to_owned(),
            mode: Some("ipvs".to_owned()),
            journeys: vec![
                Journey {
                    from: if from == "pod" {
                        "pod 10.244.0.5 on this node".to_owned()
                    } else {
                        from.to_owned()
                    },
                    to: "10.96.0.1:80".to_owned(),
                    protocol: "TCP".to_owned(),
                    of: Some(format!("clusterIP of {to}:http {MARKUP}")),
                    walks,
                    verdict: "Reaches one of 2 endpoints, with its own source address.".to_owned(),
                },
                Journey {
                    from: from.to_owned(),
                    to: "10.96.0.1:81".to_owned(),
                    protocol: "TCP".to_owned(),
                    of: None,
                    walks: vec![Walk {
                        chance: Chance(1.0),
                        fate: Fate::Refused,
                        endpoint: None,
                        source: String::new(),
                        steps: vec![step(
                            "filter KUBE-SERVICES",
                            "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp --dport 81 -j REJECT",
                            "is refused: the port has no endpoints",
                            &origin,
                        )],
                        ..Walk::default()
                    }],
                    verdict: "Is refused: the Service port has no endpoints.".to_owned(),
                },
            ],
            notes: Vec::new(),
        }
    }
}

fn service(number: usize) -> Service {
    let index = u32::try_from(number).unwrap_or(u32::MAX);
    let at = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + index);
    let endpoint = |last: u8, condition: Condition, why: &str| {
        let ready = condition == Condition::Ready;
        Endpoint {
            at: format!("10.244.{}.{last}:8080", number % 250),
            pod: Some(format!("web-{number:05}-{last}")),
            node: Some(format!("node-{last}")),
            zone: Some("zone-a".to_owned()),
            local: last == 1,
            condition,
            ready,
            serving: ready,
            terminating: condition == Condition::Terminating,
            cluster: ready,
            local_policy: ready && last == 1,
            why: why.to_owned(),
            weight: Some(u32::from(ready)),
            ..Endpoint::default()
        }
    };
    Service {
        name: ServiceName {
            namespace: format!("team-{}", number % 10),
            name: format!("web-{number:05}"),
        },
        kind: "NodePort".to_owned(),
        internal_traffic_policy: "Cluster".to_owned(),
        external_traffic_policy: "Cluster".to_owned(),
        ports: vec![Port {
            name: "http".to_owned(),
            protocol: "TCP".to_owned(),
            port: 80,
            node_port: Some(30_080),
            addresses: vec![
                Address {
                    kind: AddressKind::ClusterIp,
                    at: format!("{at}:80"),
                    scheduler: Some("rr".to_owned()),
                    ..Address::default()
                },
                Address {
                    kind: AddressKind::NodePort,
                    at: "172.18.0.2:30080".to_owned(),
                    scheduler: Some("rr".to_owned()),
                    ..Address::default()
                },
            ],
            endpoint_counts: EndpointCounts {
                total: 3,
                ready: 2,
                local: 1,
                used: 2,
                draining: 1,
            },
            endpoints: vec![
                endpoint(1, Condition::Ready, "ready, on this node"),
                endpoint(2, Condition::Ready, "ready"),
                endpoint(
                    3,
                    Condition::Terminating,
                    "terminating, and others are ready",
                ),
                Endpoint {
                    pod: None,
                    draining: Some(Drain {
                        seconds: Some(75.0),
                        open: Some(2),
                        ended: Some(1),
                        ends_within_seconds: None,
                    }),
                    ..endpoint(9, Condition::Draining, "no EndpointSlice has it any more")
                },
            ],
            counters: None,
        }],
        ..Service::default()
    }
}

/// No API server takes such names; the page has to hold all the same.
fn marked() -> Service {
    let mut marked = service(0);
    marked.name = ServiceName {
        namespace: "zzz".to_owned(),
        name: MARKUP.to_owned(),
    };
    MARKUP.clone_into(&mut marked.kind);
    marked.errors = vec![format!("{MARKUP}{}", long())];
    marked.notes = vec![format!("{MARKUP}{}", long())];
    for port in &mut marked.ports {
        port.name = format!("{MARKUP}{}", long());
        for address in &mut port.addresses {
            address.lost_to = Some(format!("{MARKUP}{}", long()));
        }
        for endpoint in &mut port.endpoints {
            endpoint.pod = Some(format!("{MARKUP}{}", long()));
            endpoint.node = Some(long());
            endpoint.zone = Some(MARKUP.to_owned());
            endpoint.why = format!("{MARKUP}{}", long());
        }
    }
    marked
}
