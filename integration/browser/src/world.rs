//! Data for the fixture's API responses: a node with many Services and some problems.

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde_json::Value;
use view::{
    Counters, Explanation, Rate, Service, ServiceList, ServiceName, Status, Top, TopEndpoint,
    TopPort,
};

/// Text that runs a script if the page treats the text as HTML markup.
pub const MARKUP: &str = "<img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>";

/// Returns a text of 253 characters, the maximum of most object names, without a place for a line
/// break.
fn long_name() -> String {
    "x".repeat(253)
}

/// A node's Services, whose counters grow with time, and the state of its daemon.
#[derive(Debug)]
pub struct World {
    services: Vec<Service>,
    mode: &'static str,
    is_starting: bool,
    began: Instant,
    /// Time of the previous response of `/api/v1/top`, if any.
    last: Mutex<Option<Instant>>,
}

impl World {
    /// Creates `services` Services in ten namespaces, and one further Service whose name contains
    /// HTML markup.
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

    /// Removes the pod names from all endpoints.
    #[must_use]
    pub fn without_pods(mut self) -> Self {
        for port in self
            .services
            .iter_mut()
            .flat_map(|service| &mut service.ports)
        {
            for endpoint in &mut port.endpoints {
                endpoint.pod = None;
            }
        }
        self
    }

    /// Removes the endpoints of all Services.
    #[must_use]
    pub fn without_endpoints(mut self) -> Self {
        for port in self
            .services
            .iter_mut()
            .flat_map(|service| &mut service.ports)
        {
            port.endpoints.clear();
        }
        self
    }

    /// Sets the proxy mode that the node's status reports.
    #[must_use]
    pub fn in_mode(self, mode: &'static str) -> Self {
        Self { mode, ..self }
    }

    /// Creates a world whose daemon still waits for its initial lists.
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

    /// Returns a page of `/api/v1/services`: at most `limit` Services, from the first Service after
    /// `after`.
    pub fn services(
        &self,
        namespace: &str,
        search: &str,
        after: &str,
        limit: usize,
    ) -> ServiceList {
        let matches = |service: &&Service| {
            let name = service.name.to_string();
            let mut addresses = service.ports.iter().flat_map(|port| &port.addresses);
            (namespace.is_empty() || service.name.namespace == namespace)
                && (name.contains(search) || addresses.any(|address| address.at.contains(search)))
        };
        let matching: Vec<_> = self.services.iter().filter(matches).collect();
        let total = matching.len();
        let mut left = matching
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

    /// Returns the response of `/api/v1/services/NAMESPACE/NAME`, or `None` for an unknown Service.
    pub fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        let found = self
            .services
            .iter()
            .find(|service| service.name.namespace == namespace && service.name.name == name);
        found.map(|service| self.counted(service.clone()))
    }

    /// Returns the response of `/api/v1/status`.
    pub fn status(&self) -> Status {
        if self.is_starting {
            return read(STARTING, &[]);
        }
        let mut status: Status = read(STATUS, &[]);
        self.mode.clone_into(&mut status.mode);
        status.source.services = self.services.len();
        status.source.endpoint_slices = self.services.len();
        status
    }

    /// Returns the response of `/api/v1/top`. In the first response, the interval between two
    /// samples is 0, so the page shows no rates.
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

    /// Returns the response of `/api/v1/explain`. Every Service has the same three paths. Another
    /// program redirects the first path of external clients.
    pub fn explain(&self, to: &str, from: &str) -> Explanation {
        let who = match from {
            "pod" => "pod 10.244.0.5 on this node",
            from => from,
        };
        let texts = [("{to}", to), ("{from}", from), ("{who}", who)];
        let mut explanation: Explanation = read(EXPLAIN, &texts);
        let mut walks = explanation.journeys.iter_mut().flat_map(|of| &mut of.walks);
        if let Some(walk) = walks.next().filter(|_| from == "external") {
            walk.unanswered = Some(format!("no endpoint of {to}: redirected by nat CNI-DN"));
        }
        explanation
    }
}

const STATUS: &str = include_str!("world/status.json");
const STARTING: &str = include_str!("world/starting.json");
const EXPLAIN: &str = include_str!("world/explain.json");
const SERVICE: &str = include_str!("world/service.json");

/// Replaces each placeholder of `texts` in a JSON text, and parses the result.
fn read<T: DeserializeOwned>(json: &str, texts: &[(&str, &str)]) -> T {
    let mut json = json.to_owned();
    for (place, text) in texts.iter().chain(&[("{markup}", MARKUP)]) {
        let quoted = Value::from(*text).to_string();
        // Removes the quotes of the JSON string, because the placeholder is already inside quotes.
        json = json.replace(place, quoted.get(1..quoted.len() - 1).unwrap_or_default());
    }
    serde_json::from_str(&json).expect("the answers of the fixture are read")
}

fn service(number: usize) -> Service {
    let index = u32::try_from(number).unwrap_or(u32::MAX);
    let at = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + index);
    let texts = [
        ("{number}", format!("{number:05}")),
        ("{namespace}", (number % 10).to_string()),
        ("{net}", (number % 250).to_string()),
        ("{at}", at.to_string()),
    ];
    read(
        SERVICE,
        &texts
            .each_ref()
            .map(|(place, text)| (*place, text.as_str())),
    )
}

/// Creates a Service with HTML markup in all texts. No API server accepts such names, but the page
/// must also handle them safely.
fn marked() -> Service {
    let mut marked = service(0);
    marked.name = ServiceName {
        namespace: "zzz".to_owned(),
        name: MARKUP.to_owned(),
    };
    MARKUP.clone_into(&mut marked.kind);
    marked.errors = vec![format!("{MARKUP}{}", long_name())];
    marked.notes = vec![format!("{MARKUP}{}", long_name())];
    for port in &mut marked.ports {
        port.name = format!("{MARKUP}{}", long_name());
        for address in &mut port.addresses {
            address.lost_to = Some(format!("{MARKUP}{}", long_name()));
        }
        for endpoint in &mut port.endpoints {
            endpoint.pod = Some(format!("{MARKUP}{}", long_name()));
            endpoint.node = Some(long_name());
            endpoint.zone = Some(MARKUP.to_owned());
            endpoint.why = format!("{MARKUP}{}", long_name());
        }
    }
    marked
}
