use std::time::Duration;

use super::*;
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, Placement, Protocol, Service, ServiceType,
    Standing,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::events::RecordedEvent;

fn name() -> NamespacedName {
    NamespacedName::new("default", "web")
}

/// Returns a TCP port that no process uses.
fn free_port() -> u16 {
    let any = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    any.local_addr().unwrap().port()
}

/// The node `node1` with the Service `default/web`. The Service has a health-check node port and
/// two endpoints on the node.
struct World {
    port: u16,
    model: Model,
    checks: HealthChecks,
    health: Arc<Health>,
    recorded: mpsc::Receiver<RecordedEvent>,
}

impl World {
    async fn new(line: &str) -> Self {
        let line = format!("kube-proxy --hostname-override=node1 {line}");
        let Ok(crate::config::command_line::Command::Run(options)) =
            crate::config::command_line::parse(line.split_whitespace())
        else {
            panic!("{line}");
        };
        let health = Arc::new(Health::new(options.modes.shared.sync_period));
        let (recorder, recorded) = Recorder::queued();
        let mut world = Self {
            port: free_port(),
            model: Model::new(),
            checks: HealthChecks::new(
                IpFamily::V4,
                &options.process.node_name,
                &options.modes.shared.node_port_addresses,
                Answering {
                    health: Arc::clone(&health),
                    runtime: Handle::current(),
                },
                recorder,
            ),
            health,
            recorded,
        };
        world.service(Some(world.port));
        world.endpoints(&["node1", "node1", "node2"]);
        world.update(&["127.0.0.1"]).await;
        world
    }

    fn service(&mut self, port: Option<u16>) {
        self.model.apply(Event::ServiceApplied(Service {
            uid: "2fd4".into(),
            kind: ServiceType::LoadBalancer,
            external_local: true,
            health_check_node_port: port,
            ..Service::at(name(), ["10.96.0.1".parse().unwrap()])
        }));
    }

    /// Applies an EndpointSlice with one ready endpoint on each of the nodes `nodes`.
    fn endpoints(&mut self, nodes: &[&str]) {
        let endpoint = |(number, node): (u8, &&str)| Endpoint {
            address: [10, 0, 0, number].into(),
            ready: true,
            serving: true,
            terminating: false,
            placement: Arc::new(Placement {
                node: Some((*node).into()),
                ..Placement::default()
            }),
        };
        self.model.apply(Event::SliceApplied(EndpointSlice {
            name: NamespacedName::new("default", "web-a"),
            service: name(),
            family: IpFamily::V4,
            ports: [EndpointPort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port: 80,
            }]
            .into_iter()
            .collect(),
            endpoints: (1..).zip(nodes).map(endpoint).collect(),
            change_trigger: None,
        }));
    }

    async fn update(&mut self, node_ports: &[&str]) {
        let node_ports: Vec<IpAddr> = node_ports.iter().map(|ip| ip.parse().unwrap()).collect();
        let settled: Vec<_> = self.model.take_changes().services.into_iter().collect();
        self.checks
            .update(&self.model, &settled, Some(&node_ports))
            .await;
    }

    /// Returns the response to a request. Returns an error if the port is closed.
    async fn get(&self, address: &str, request: &str) -> Result<String, io::ErrorKind> {
        let stream = TcpStream::connect((address, self.port)).await;
        let mut stream = stream.map_err(|error| error.kind())?;
        let head = format!("{request} HTTP/1.1\r\nHost: node1\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (before, date) = answer.split_once("Date: ").unwrap();
        let (_, after) = date.split_once("\r\n").unwrap();
        Ok(format!("{before}{after}").replace('\r', ""))
    }

    /// Returns the status and the weight of the response as text, such as `200 ×2`, or `closed` if
    /// the port is closed.
    async fn told(&self) -> String {
        let Ok(answer) = self.get("127.0.0.1", "GET /").await else {
            return "closed".into();
        };
        let word_after = |text: &str| {
            let (_, rest) = answer.split_once(text).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let weight = word_after("X-Load-Balancing-Endpoint-Weight: ");
        format!("{} ×{weight}", word_after("HTTP/1.1 "))
    }
}

/// Compares the response with upstream 1.36.2, except the order of headers and the header
/// `Connection`.
#[tokio::test]
async fn the_health_check_response_equals_that_of_upstream() {
    let world = World::new("").await;
    for request in ["GET /", "GET /healthz?a=b", "POST /"] {
        assert_eq!(
            world.get("127.0.0.1", request).await.unwrap(),
            "HTTP/1.1 200 OK\n\
             Content-Type: application/json\n\
             X-Content-Type-Options: nosniff\n\
             X-Load-Balancing-Endpoint-Weight: 2\n\
             Connection: close\n\
             Content-Length: 114\n\
             \n\
             {\n\
             \t\"service\": {\n\
             \t\t\"namespace\": \"default\",\n\
             \t\t\"name\": \"web\"\n\
             \t},\n\
             \t\"localEndpoints\": 2,\n\
             \t\"serviceProxyHealthy\": true\n\
             }",
            "{request}"
        );
    }
}

#[tokio::test]
async fn the_health_check_fails_without_local_endpoints_or_if_the_proxy_is_late() {
    let mut world = World::new("").await;
    world.endpoints(&["node2"]);
    world.update(&[]).await;
    assert_eq!(world.told().await, "503 ×0");
    world.endpoints(&["node1"]);
    world.update(&[]).await;
    assert_eq!(world.told().await, "200 ×1");
    let long_ago = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
    let note = |stuck_since| {
        let standing = Standing {
            stuck_since,
            ..Standing::default()
        };
        world
            .health
            .note(IpFamily::V6, &standing, None, Instant::now());
    };
    note(Some(long_ago));
    assert_eq!(world.told().await, "503 ×1");
    note(None);
    assert_eq!(world.told().await, "200 ×1");
}

#[tokio::test]
async fn the_health_check_changes_after_the_service_is_written() {
    let mut world = World::new("").await;
    world.endpoints(&["node1"]);
    world.checks.update(&world.model, &[], None).await;
    assert_eq!(world.told().await, "200 ×2");
    world.update(&[]).await;
    assert_eq!(world.told().await, "200 ×1");
}

#[tokio::test]
async fn the_health_check_port_closes_with_its_service() {
    let mut world = World::new("").await;
    let before = mem::replace(&mut world.port, free_port());
    world.service(Some(world.port));
    world.update(&[]).await;
    assert_eq!(world.told().await, "200 ×2");
    let now = mem::replace(&mut world.port, before);
    assert_eq!(world.told().await, "closed");
    world.port = now;
    world.model.apply(Event::ServiceDeleted(name()));
    world.update(&[]).await;
    assert_eq!(world.told().await, "closed");
    assert!(world.checks.servers.is_empty() && world.checks.unbound.is_empty());
}

/// Checks that a server that closes also closes idle connections of load balancers.
#[tokio::test]
async fn a_closed_health_check_server_closes_its_connections() {
    let mut world = World::new("").await;
    let mut stream = TcpStream::connect(("127.0.0.1", world.port)).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")
        .await
        .unwrap();
    let mut buffer = [0; 1024];
    assert!(stream.read(&mut buffer).await.unwrap() > 0);
    world.service(None);
    world.update(&[]).await;
    assert_eq!(stream.read(&mut buffer).await.unwrap_or(0), 0);
}

/// Checks that load balancers get responses while other clients keep silent connections open.
#[tokio::test]
async fn connections_without_a_request_do_not_block_health_checks() {
    let world = World::new("").await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.9.0.1:0".parse().unwrap()).unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, world.port));
        idle.push(socket.connect(at).await.unwrap());
    }
    let told = timeout(Duration::from_secs(1), world.told()).await;
    assert_eq!(told.unwrap(), "200 ×2");
}

#[tokio::test]
async fn a_port_of_another_services_health_checks_is_reported_with_its_name() {
    let mut world = World::new("").await;
    let other = NamespacedName::new("default", "other");
    let service = world.model.view(&name()).unwrap().service.clone();
    world.model.apply(Event::ServiceApplied(Service {
        name: other.clone(),
        ..service
    }));
    world.update(&[]).await;
    let failing = world.checks.failing(&world.model, 9, Instant::now());
    assert_eq!(failing.len(), 1);
    let failure = &failing[0].0;
    assert_eq!(failure.owner.as_ref().unwrap().service, other);
    assert!(
        failure
            .reason
            .contains("of Service default/web use the port"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_health_check_port_that_is_a_node_port_is_reported() {
    let mut world = World::new("").await;
    let failing = |world: &World| world.checks.failing(&world.model, 9, Instant::now());
    let mut service = Service::at(NamespacedName::new("a", "b"), [[10, 96, 0, 9].into()]);
    for (protocol, count) in [(Protocol::Udp, 0), (Protocol::Tcp, 1)] {
        service.ports = std::iter::once(proxy::ServicePort {
            name: "".into(),
            protocol,
            port: 80,
            node_port: Some(world.port),
        })
        .collect();
        world.model.apply(Event::ServiceApplied(service.clone()));
        assert_eq!(failing(&world).len(), count, "{protocol}");
    }
    let failure = &failing(&world)[0].0;
    assert_eq!(failure.owner.as_ref().unwrap().service, name());
    assert!(
        failure.reason.contains("NodePort of Service a/b"),
        "{failure}"
    );
    world.service(None);
    world.update(&[]).await;
    assert!(failing(&world).is_empty());
}

#[tokio::test]
async fn a_health_check_port_in_use_is_retried() {
    let mut world = World::new("").await;
    world.port = free_port();
    let other = std::net::TcpListener::bind(("0.0.0.0", world.port)).unwrap();
    world.service(Some(world.port));
    world.update(&[]).await;
    assert!(world.checks.servers[&name()].failed.is_some());
    world.update(&[]).await;
    let event = world.recorded.try_recv().unwrap().event;
    let in_use = io::Error::from_raw_os_error(rustix::io::Errno::ADDRINUSE.raw_os_error());
    let at = format!("0.0.0.0:{}", world.port);
    let expected =
        crate::events::Event::health_check_failed(&name(), &world.model, "node1", at, &in_use);
    assert_eq!(event, expected);
    assert!(world.recorded.try_recv().is_err(), "it is told once");
    drop(other);
    world.update(&[]).await;
    assert!(world.checks.servers[&name()].failed.is_none());
    assert_eq!(world.told().await, "200 ×2");
    assert!(world.checks.unbound.is_empty(), "nothing is left to try");
}

#[tokio::test]
async fn two_services_can_swap_health_check_ports() {
    let mut world = World::new("").await;
    let other = NamespacedName::new("default", "other");
    let service = |world: &World| world.model.view(&name()).unwrap().service.clone();
    let mut second = service(&world);
    (second.name, second.health_check_node_port) = (other.clone(), Some(free_port()));
    world.model.apply(Event::ServiceApplied(second.clone()));
    world.update(&[]).await;
    let mut first = service(&world);
    mem::swap(
        &mut first.health_check_node_port,
        &mut second.health_check_node_port,
    );
    world.model.apply(Event::ServiceApplied(first));
    world.model.apply(Event::ServiceApplied(second));
    world.update(&[]).await;
    assert!(
        world
            .checks
            .servers
            .values()
            .all(|server| server.failed.is_none())
    );
    assert_eq!(world.told().await, "503 ×0", "this is the other's now");
}

#[tokio::test]
async fn health_check_servers_listen_only_on_node_port_addresses() {
    let mut world = World::new("--nodeport-addresses=127.0.0.0/8").await;
    let is_open = async |world: &World, address| world.get(address, "GET /").await.is_ok();
    assert!(is_open(&world, "127.0.0.1").await);
    assert!(!is_open(&world, "127.0.0.2").await);
    world.update(&["127.0.0.1", "127.0.0.2"]).await;
    assert!(is_open(&world, "127.0.0.1").await && is_open(&world, "127.0.0.2").await);
    world.update(&["127.0.0.2"]).await;
    assert!(!is_open(&world, "127.0.0.1").await);
    assert!(is_open(&world, "127.0.0.2").await);
}

#[tokio::test]
async fn health_check_servers_follow_changed_node_port_addresses() {
    let mut world = World::new("").await;
    let is_open = async |world: &World, address| world.get(address, "GET /").await.is_ok();
    assert!(is_open(&world, "127.0.0.1").await && is_open(&world, "127.0.0.2").await);
    let nets = vec!["127.0.0.2/32".parse().unwrap()];
    world.checks.select(&NodePortAddresses::Within(nets));
    world.update(&["127.0.0.2"]).await;
    assert!(!is_open(&world, "127.0.0.1").await);
    assert!(is_open(&world, "127.0.0.2").await);
    world.checks.select(&NodePortAddresses::All);
    world.update(&["127.0.0.2"]).await;
    assert!(is_open(&world, "127.0.0.1").await && is_open(&world, "127.0.0.2").await);
}

#[test]
fn nodeport_addresses_with_all_addresses_make_servers_listen_on_the_unspecified_address() {
    let within = |nets: &[&str]| {
        NodePortAddresses::Within(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    for (addresses, v4, v6) in [
        (NodePortAddresses::All, false, false),
        (NodePortAddresses::Primary, true, true),
        (within(&["10.0.0.0/8"]), true, false),
        (NodePortAddresses::PrimaryOrWithin(Vec::new()), true, true),
        (within(&["10.0.0.0/8", "fd00::/8"]), true, true),
        (within(&["10.0.0.0/8", "0.0.0.0/0", "::/0"]), false, false),
    ] {
        assert_eq!(
            IpFamily::ALL.map(|family| is_selective(&addresses, family)),
            [v4, v6],
            "{addresses:?}"
        );
    }
}
