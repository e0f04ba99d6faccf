use std::net::IpAddr;

use anyhow::{Result, bail};
use flags::gates::Gates;
use proxy::{Event, NamespacedName, Protocol, Service, ServicePort};

use super::*;
use crate::metrics::Metrics;

/// Expected metrics of single Services, as the documentation lists them.
const OURS: &str = include_str!("../ours-services.txt");

fn at(address: [u8; 4], port: u16) -> At {
    At {
        address: address.into(),
        port,
        protocol: Protocol::Tcp,
    }
}

fn service(name: &str, last: u8, node_port: Option<u16>) -> Event {
    let port = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port,
    };
    Event::ServiceApplied(Service {
        ports: [port].into_iter().collect(),
        ..Service::at(
            NamespacedName::new("default", name),
            [IpAddr::from([10, 96, 0, last])],
        )
    })
}

fn count(connections: u64) -> Count {
    Count {
        connections,
        packets_in: Some(2 * connections),
        packets_out: Some(3 * connections),
        bytes_in: Some(4 * connections),
        bytes_out: Some(5 * connections),
        active: Some(1),
        inactive: Some(2),
        persistent: None,
    }
}

/// Fake kernel that records reads. Each of its virtual servers has one endpoint.
#[derive(Clone, Default)]
struct Kernel(Arc<Mutex<KernelState>>);

#[derive(Default)]
struct KernelState {
    servers: Vec<(At, u64)>,
    asked: Vec<usize>,
    is_broken: bool,
}

impl ReadCounters for Kernel {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        let mut held = self.0.lock().unwrap();
        if held.is_broken {
            bail!("the kernel is away");
        }
        held.asked.push(match which {
            CounterSelection::Addresses => 0,
            CounterSelection::All => usize::MAX,
            CounterSelection::Of(of) => of.len(),
        });
        for (at, connections) in &held.servers {
            let mut count = count(*connections);
            match which {
                CounterSelection::Of(of) if !of.contains(at) => continue,
                CounterSelection::Addresses => (count.active, count.inactive) = (None, None),
                _ => {
                    let endpoint = SocketAddr::from(([10, 244, 0, 1], 8080));
                    take(CounterSample::Endpoint(*at, endpoint, Some(1), count));
                }
            }
            take(CounterSample::Address(*at, Some("rr"), count));
        }
        Ok(())
    }

    fn tells_more_of_single(&self) -> bool {
        true
    }
}

struct World {
    kernel: Kernel,
    services: ServiceMetrics,
    metrics: Metrics,
    model: Model,
}

impl World {
    fn new(detail: Detail, most: usize) -> Self {
        let (kernel, counters) = (Kernel::default(), Counters::default());
        counters.set(Box::new(kernel.clone()));
        let services = ServiceMetrics::new(Settings { detail, most }, counters).unwrap();
        Self {
            kernel,
            metrics: Metrics::of(None, &Gates::default(), Some(services.clone())),
            services,
            model: Model::new(),
        }
    }

    /// Sets the addresses on which the node serves NodePorts, by their last bytes.
    fn serves_node_ports(&self, last: &[u8]) {
        let addresses = last.iter().map(|last| [192, 0, 2, *last].into());
        let node_ports = NodePorts {
            addresses: addresses.collect(),
            on_localhost: false,
        };
        self.services.note_node_ports(IpFamily::V4, &node_ports);
    }

    /// Makes reads of the kernel fail or succeed.
    fn breaks(&self, is_broken: bool) {
        self.kernel.0.lock().unwrap().is_broken = is_broken;
        lock(&self.services.0.read).at = None;
    }

    fn apply(&mut self, event: Event) {
        self.model.apply(event);
        let changes = self.model.take_changes();
        self.services.note(&self.model, &changes);
    }

    fn holds(&self, servers: &[(At, u64)]) {
        self.kernel.0.lock().unwrap().servers = servers.to_vec();
        // Simulates that more than a second has passed, so that the next scrape reads again.
        lock(&self.services.0.read).at = None;
    }

    fn told(&self) -> String {
        let text = self.metrics.classic();
        let ours = text
            .lines()
            .filter(|line| line.starts_with("kubeproxy_service_") && !line.contains("duration"));
        ours.flat_map(|line| [line, "\n"]).collect()
    }

    fn asked(&self) -> Vec<usize> {
        std::mem::take(&mut self.kernel.0.lock().unwrap().asked)
    }
}

const LABELS: &str = "namespace=\"default\",service=\"web\",port_name=\"http\",protocol=\"TCP\"";

#[test]
fn the_counter_of_a_service_port_is_the_sum_over_its_addresses() {
    let mut world = World::new(Detail::Ports, 10);
    world.apply(service("web", 1, Some(30_080)));
    let cluster_ip = at([10, 96, 0, 1], 80);
    let node_ports = [at([192, 0, 2, 1], 30_080), at([192, 0, 2, 2], 30_080)];
    world.serves_node_ports(&[1, 2]);
    let foreign = [at([192, 0, 2, 9], 443), at([192, 0, 2, 9], 30_080)];
    world.holds(&[
        (cluster_ip, 5),
        (node_ports[0], 2),
        (node_ports[1], 1),
        (foreign[0], 9),
        // The node does not serve NodePorts on this address.
        (foreign[1], 9),
    ]);
    let told = world.told();
    let series = |name: &str, more: &str, value: u64| {
        format!("kubeproxy_service_{name}{{{LABELS}{more}}} {value}\n")
    };
    for line in [
        series("connections_total", "", 8),
        series("packets_total", ",direction=\"in\"", 16),
        series("bytes_total", ",direction=\"out\"", 40),
        series("active_connections", "", 3),
        series("inactive_connections", "", 6),
    ] {
        assert!(told.contains(&line), "{line} in {told}");
    }
    assert!(told.contains("kubeproxy_service_series_left_out{kind=\"ports\"} 0\n"));
    assert_eq!(
        world.asked(),
        [0, 3],
        "once for all, and once for those three"
    );
    world.told();
    assert_eq!(
        world.asked(),
        [0; 0],
        "within a second nothing is asked again"
    );
    world.holds(&[(cluster_ip, 1)]);
    assert!(world.told().contains(&series("connections_total", "", 9)));
}

#[test]
fn only_the_busiest_services_have_metrics() {
    let mut world = World::new(Detail::Endpoints, 2);
    for last in 1..=5 {
        world.apply(service(&format!("s{last}"), last, None));
    }
    let servers = [(1, 0), (2, 7), (3, 0), (4, 9), (5, 0)];
    world.holds(&servers.map(|(last, connections)| (at([10, 96, 0, last], 80), connections)));
    let told = world.told();
    let of = |kind: &str| -> Vec<&str> {
        let lines = told.lines().filter(|line| line.starts_with(kind));
        let names = lines.filter_map(|line| line.split("service=\"").nth(1)?.split('"').next());
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names
    };
    assert_eq!(of("kubeproxy_service_connections_total{"), ["s2", "s4"]);
    assert_eq!(
        of("kubeproxy_service_endpoint_connections_total{"),
        ["s2", "s4"]
    );
    assert!(told.contains("endpoint=\"10.244.0.1:8080\""), "{told}");
    assert!(told.contains("kubeproxy_service_series_left_out{kind=\"ports\"} 3\n"));
    assert!(told.contains("kubeproxy_service_series_left_out{kind=\"endpoints\"} 0\n"));
}

#[test]
fn a_deleted_service_has_no_metrics() {
    let mut world = World::new(Detail::Ports, 10);
    world.apply(service("web", 1, Some(30_080)));
    world.apply(service("older", 1, None));
    world.serves_node_ports(&[1]);
    let servers = [(at([10, 96, 0, 1], 80), 1), (at([192, 0, 2, 1], 30_080), 1)];
    world.holds(&servers);
    let told = world.told();
    // Both Services claim the address, which belongs to the one whose name sorts first.
    assert!(told.contains("service=\"older\"") && told.contains("service=\"web\""));
    for name in ["web", "older"] {
        world.apply(Event::ServiceDeleted(NamespacedName::new("default", name)));
    }
    world.holds(&servers);
    assert!(!world.told().contains("namespace="), "{}", world.told());
    let names = lock(&world.services.0.names);
    assert!(names.find(&servers[0].0).is_none() && names.find(&servers[1].0).is_none());
}

#[test]
fn unreadable_counters_are_missing_instead_of_zero() {
    let mut world = World::new(Detail::Ports, 10);
    world.apply(service("web", 1, None));
    world.holds(&[(at([10, 96, 0, 1], 80), 1)]);
    assert!(
        world
            .told()
            .contains("kubeproxy_service_counters_readable 1\n")
    );
    world.kernel.0.lock().unwrap().is_broken = true;
    world.holds(&[]);
    let told = world.told();
    assert!(
        told.contains("kubeproxy_service_counters_readable 0\n") && !told.contains("connections")
    );
}

#[test]
fn a_failed_read_does_not_change_the_counters() {
    let mut world = World::new(Detail::Endpoints, 10);
    world.apply(service("web", 1, None));
    let series = |name: &str, more: &str, value: u64| {
        format!("kubeproxy_service_{name}connections_total{{{LABELS}{more}}} {value}\n")
    };
    let endpoint = ",endpoint=\"10.244.0.1:8080\"";
    let is_told = |world: &World, value| {
        let told = world.told();
        assert!(told.contains(&series("", "", value)), "{value} in {told}");
        let of_endpoint = series("endpoint_", endpoint, value);
        assert!(told.contains(&of_endpoint), "{of_endpoint} in {told}");
    };
    let one = at([10, 96, 0, 1], 80);
    // Between two reads, another program creates the kernel entry again, so its counter begins at
    // 0.
    for (connections, sum) in [(500, 500), (3, 503), (400, 900)] {
        world.holds(&[(one, connections)]);
        is_told(&world, sum);
    }
    world.breaks(true);
    assert!(!world.told().contains("connections"));
    world.breaks(false);
    is_told(&world, 900);
}

#[test]
fn a_service_port_that_becomes_busiest_again_keeps_its_sum() {
    let mut world = World::new(Detail::Endpoints, 1);
    world.apply(service("web", 1, None));
    world.apply(service("dns", 2, None));
    let (web, dns) = (at([10, 96, 0, 1], 80), at([10, 96, 0, 2], 80));
    for (of_web, of_dns, told_name, sum) in [
        (500, 1, "web", 500),
        (10, 1, "web", 510),
        (20, 30, "dns", 30),
        (40, 30, "web", 540),
    ] {
        world.holds(&[(web, of_web), (dns, of_dns)]);
        let told = world.told();
        for kind in ["", "endpoint_"] {
            let start = format!("kubeproxy_service_{kind}connections_total{{");
            let mut lines = told.lines().filter(|line| line.starts_with(&start));
            let line = lines.next().unwrap();
            assert!(line.contains(&format!("service=\"{told_name}\"")), "{line}");
            assert!(line.ends_with(&format!(" {sum}")), "{sum}: {line}");
            assert_eq!(lines.next(), None);
        }
    }
    // The sums of a deleted Service are dropped.
    for name in ["web", "dns"] {
        world.apply(Event::ServiceDeleted(NamespacedName::new("default", name)));
    }
    world.holds(&[]);
    world.told();
    let read = lock(&world.services.0.read);
    assert!(read.ports.is_empty() && read.endpoints.is_empty());
}

/// A fake relay with the listening ports of one Service port. Each listening port has a number and
/// a count of connections.
struct Relay(Vec<(u64, u64)>);

impl ReadCounters for Relay {
    fn tell(
        &mut self,
        _: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        let name = ServicePortName {
            service: NamespacedName::new("default", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let endpoint = SocketAddr::from(([10, 244, 0, 1], 8080));
        for (listener, connections) in &self.0 {
            let (listener, count) = (Listener(*listener), count(*connections));
            take(CounterSample::Port(&name, listener, count));
            take(CounterSample::PortEndpoint(
                &name, listener, endpoint, count,
            ));
        }
        Ok(())
    }
}

#[test]
fn the_sum_over_listening_ports_does_not_depend_on_their_order() {
    let mut world = World::new(Detail::Endpoints, 10);
    world.apply(service("web", 1, None));
    let (cluster, local, local_again) = (1, 2, 3);
    for (listeners, sum) in [
        (vec![(cluster, 10), (local, 1_000)], 1_010),
        (vec![(local, 1_000), (cluster, 10)], 1_010),
        (vec![(cluster, 10), (local, 1_000)], 1_010),
        // One listening port was closed. Its count stays in the sum.
        (vec![(cluster, 12)], 1_012),
        // The Service port gets a new listening port, whose counter is higher than the last counter
        // of the closed listening port.
        (vec![(cluster, 12), (local_again, 1_001)], 2_013),
    ] {
        world.services.0.counters.set(Box::new(Relay(listeners)));
        lock(&world.services.0.read).at = None;
        let told = world.told();
        for kind in ["", "endpoint_"] {
            let start = format!("kubeproxy_service_{kind}connections_total{{");
            let line = told.lines().find(|line| line.starts_with(&start)).unwrap();
            assert!(line.ends_with(&format!(" {sum}")), "{sum}: {line}");
        }
    }
}

#[test]
fn service_metrics_match_the_documented_list() {
    let mut world = World::new(Detail::Endpoints, 10);
    world.apply(service("web", 1, None));
    world.holds(&[(at([10, 96, 0, 1], 80), 1)]);
    let text = world.metrics.classic();
    let lines: Vec<&str> = OURS.lines().collect();
    for pair in lines.chunks(2) {
        let mut words = pair[0].split(' ');
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let help = pair[1].trim();
        let header = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}");
        assert!(text.contains(&header), "{header}");
        let (_, after) = text.split_once(&header).unwrap();
        let labels = after.lines().next().unwrap().split('}').next().unwrap();
        let mut labels: Vec<&str> = labels
            .trim_start_matches('{')
            .split(',')
            .filter_map(|pair| Some(pair.split_once('=')?.0))
            .collect();
        labels.sort_unstable();
        assert_eq!(labels.join(","), words.next().unwrap_or_default(), "{name}");
    }
    let told = text
        .lines()
        .filter(|line| line.starts_with("# TYPE kubeproxy_service_"));
    let told = told.filter(|line| !line.contains("programming"));
    assert_eq!(told.count(), lines.len() / 2);
}

#[test]
fn disabled_service_metrics_keep_no_counters() {
    let none = Settings {
        detail: Detail::None,
        most: 1_000,
    };
    assert!(ServiceMetrics::new(none, Counters::default()).is_none());
}
