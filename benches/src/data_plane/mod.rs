//! Measures the data plane: the cost of packets, connections and requests on a node that the
//! measured program has programmed.
//!
//! ```text
//!  client (pod of node1) ── node1: the programmed state ── fabric ── server: all endpoints
//! ```
//!
//! - One server has the addresses of all endpoints, so every Service works. A direct path to a pod
//!   is as long as a path through a Service.
//! - During measurements, the fake API server is stopped. The measured program also, unless it
//!   relays packets itself. So nothing else uses the VM's only CPU.
//! - Blocks of packets alternate between four targets (the first, the middle and the last Service,
//!   and a pod), so that a disturbance affects all of them.
//!
//! In iptables mode, the first Service is the one whose rules come first. In other modes, it is the
//! oldest Service. IPVS inserts new virtual servers at the head of a hash bucket, so it finds the
//! oldest last.

mod anatomy;
mod packets;
mod table;
mod traffic;

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs_netlink::{Destination, DestinationKey, Name, Protocol, Service, ServiceKey};
use lab::{Place, Signal, World};
use serde_json::json;

use crate::kernel::Kernel;
use crate::objects::{NAMESPACE, Objects, PORT, TARGET_PORT};
use crate::process::Process;
use crate::schema::{Axis, Cell, CellFigures, Distribution, Mode, Outcome, SubjectKind};
use crate::stage::Stage;
use crate::subject;
use crate::wait::WaitEnd;

/// Address range of the server: contains all endpoints, but no client.
pub(crate) const SERVERS: &str = "10.128.0.0/10";
/// Range of Service addresses, in CIDR notation.
const SERVICES: &str = "10.96.0.0/12";
/// Address and port of a pod that is not an endpoint of any Service.
const POD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 190, 0, 1), TARGET_PORT);
/// Address of the client pod.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 200, 1, 2);
/// Endpoint of the UDP Service.
const UDP_POD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 191, 0, 1), TARGET_PORT);
/// Name of the series for packets that go directly to a pod.
const DIRECT: &str = "direct";
/// Pause before the first measured packet, in which the measured program finishes its work.
const SETTLE: Duration = Duration::from_secs(1);
/// Number of flows in a block of first packets. A small number keeps the hash chains of the
/// kernel's IPVS connection table (4,096 buckets) short.
const BLOCK: u16 = 128;
const ROUNDS: usize = 21;
/// Number of rounds with a server that replies.
const ANSWERED_ROUNDS: usize = 9;
/// Minimum number of rounds. After them, the measurement ends once it has taken longer than
/// [`ENOUGH`], for example if a packet takes milliseconds.
const LEAST_ROUNDS: usize = 7;
const ENOUGH: Duration = Duration::from_secs(10);

/// Name of a series, with the address to which its packets go.
type Target = (&'static str, SocketAddrV4);

/// Measures a cell (one benchmark run) of the axes first, connect, keptalive, udp, throughput and
/// anatomy. Runs in the lab.
pub(crate) fn measure(cell: &Cell) -> Result<Outcome> {
    if cell.axis == Axis::Anatomy {
        return anatomy::measure(cell);
    }
    let mut stage = Stage::new(cell)?;
    let node = stage.node.clone();
    let client = stage
        .world
        .pod(&node, "client", CLIENT.to_string().as_str())?;
    let server = match cell.axis {
        Axis::First => silent_host(&mut stage.world)?,
        _ => serving_host(&mut stage.world)?,
    };
    stage.world.route(&node, SERVERS, &server)?;
    stage.world.route(&server, "10.200.1.0/24", &node)?;

    let mut measured = CellFigures::default();
    let subject = match programmed(&mut stage, &mut measured)? {
        Ok(subject) => subject,
        Err(outcome) => return Ok(outcome),
    };
    let targets = if cell.axis == Axis::Udp {
        udp_targets(&mut stage, &client, &server)?
    } else {
        targets(&stage)?
    };
    if let Some(subject) = &subject {
        std::thread::sleep(SETTLE);
        // In userspace mode, the daemon must keep running, because it relays the packets.
        if stage.mode() != Mode::Userspace {
            subject.signal(Signal::STOP)?;
        }
    }
    let series = match cell.axis {
        Axis::First => first(&client, &server, &targets)?,
        axis => traffic::measure(axis, &client, &server, &targets)?,
    };
    for (name, unit, values) in series {
        let distribution = Distribution::of(unit, values).context("nothing was measured")?;
        measured.series.insert(name, distribution);
    }
    Ok(Outcome::Measured(Box::new(measured)))
}

/// Adds an external host that has the addresses of all endpoints, and replies at them.
fn serving_host(world: &mut World) -> Result<Place> {
    let server = world.host("server", "172.35.0.200/24")?;
    let_answer(&server)?;
    Ok(server)
}

/// Adds an external host that receives packets to all endpoints, and drops them without a reply.
fn silent_host(world: &mut World) -> Result<Place> {
    let server = world.host("server", "172.35.0.200/24")?;
    server.read(["ip", "route", "add", "blackhole", SERVERS])?;
    Ok(server)
}

/// Makes the addresses of all endpoints local on a host. On ports without a listener, it then
/// replies with a TCP reset.
fn let_answer(host: &Place) -> Result<()> {
    host.read(["ip", "route", "add", "local", SERVERS, "dev", "lo"])?;
    Ok(())
}

/// Starts the measured program, and waits until it has programmed the node. Returns its process
/// (`None` if the kernel state needs none), or the outcome if it fails.
fn programmed(
    stage: &mut Stage,
    measured: &mut CellFigures,
) -> Result<Result<Option<Process>, Outcome>> {
    match stage.cell.subject.kind {
        SubjectKind::Direct => return Ok(Ok(None)),
        SubjectKind::BareIpvs => {
            bare(stage)?;
            return Ok(Ok(None));
        }
        SubjectKind::KubeProxy { .. } => stage.serve()?,
        SubjectKind::Floor | SubjectKind::NftFloor | SubjectKind::NftFlatFloor => {}
        SubjectKind::Tools => bail!("tools have no data plane of their own"),
    }
    let (mut subject, started) = subject::start(stage)?;
    Ok(match stage.until_programmed(&mut subject, started)? {
        WaitEnd::Done(_, state) => {
            measured.state = Some(state);
            Ok(Some(subject))
        }
        WaitEnd::Not(outcome) => Err(outcome),
    })
}

/// Creates only virtual servers of IPVS, and one route that makes their addresses local.
fn bare(stage: &mut Stage) -> Result<()> {
    stage
        .node
        .read(["ip", "route", "add", "local", SERVICES, "dev", "lo"])?;
    write_servers(&mut stage.kernel, &stage.objects)?;
    let (found, wanted) = (stage.kernel.servers()?, stage.wanted().servers);
    ensure!(
        found == wanted,
        "{} virtual servers instead of {}",
        found.len(),
        wanted.len()
    );
    Ok(())
}

fn write_servers(kernel: &mut Kernel, objects: &Objects) -> Result<()> {
    kernel.write_servers(|family, batch| {
        for service in 0..objects.services() {
            let key = ServiceKey::new(Protocol::TCP, Objects::address(service).into(), PORT);
            family.new_service(batch, &Service::new(key, Name::RR));
            for endpoint in objects.endpoints(service) {
                let real = DestinationKey {
                    address: IpAddr::V4(*endpoint.at.ip()),
                    port: endpoint.at.port(),
                };
                family.new_destination(batch, &key, &Destination::new(real, 1));
            }
        }
    })
}

/// Returns the targets of packets: the first, the middle and the last Service (each once), then a
/// pod.
fn targets(stage: &Stage) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    if stage.cell.subject.kind != SubjectKind::Direct {
        let order = order(stage)?;
        let last = order.len().saturating_sub(1);
        let mut places = vec![("first", 0), ("middle", last / 2), ("last", last)];
        places.dedup_by_key(|place| place.1);
        for (name, index) in places {
            let address = *order.get(index).context("there is no Service")?;
            targets.push((name, SocketAddrV4::new(address, PORT)));
        }
    }
    targets.push((DIRECT, POD));
    Ok(targets)
}

/// Returns the addresses of all Services: in iptables mode in the order of their rules in the
/// kernel, otherwise in the order of creation.
fn order(stage: &Stage) -> Result<Vec<Ipv4Addr>> {
    if stage.mode() != Mode::Iptables {
        return Ok((0..stage.objects.services())
            .map(Objects::address)
            .collect());
    }
    let saved = stage.node.read(["iptables-save", "-t", "nat"])?;
    let order = rule_order(&saved);
    ensure!(
        order.len() == stage.objects.services() as usize,
        "{} of {} Services have a rule in KUBE-SERVICES",
        order.len(),
        stage.objects.services()
    );
    Ok(order)
}

/// Returns the addresses of Services with a rule in KUBE-SERVICES, in the order of these rules.
fn rule_order(saved: &str) -> Vec<Ipv4Addr> {
    let rules = saved
        .lines()
        .filter(|line| line.starts_with("-A KUBE-SERVICES ") && line.contains(" -j KUBE-SVC-"));
    rules
        .filter_map(|rule| {
            let (_, rest) = rule.split_once(" -d ")?;
            let (address, _) = rest.split_once('/')?;
            address.parse().ok()
        })
        .collect()
}

/// Creates a UDP Service, as the last Service, and waits until its endpoint replies.
fn udp_targets(stage: &mut Stage, client: &Place, server: &Place) -> Result<Vec<Target>> {
    traffic::serve_udp(server, POD)?;
    traffic::serve_udp(server, UDP_POD)?;
    let at = SocketAddrV4::new(Objects::address(stage.objects.services()), PORT);
    match stage.cell.subject.kind {
        SubjectKind::Direct => return Ok(vec![(DIRECT, POD)]),
        SubjectKind::KubeProxy { .. } => {
            let mut api = stage.api()?;
            let (service, slice) = udp_objects(*at.ip());
            let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
            api.post(&slices, &slice)?;
            api.post(
                &format!("/api/v1/namespaces/{NAMESPACE}/services"),
                &service,
            )?;
        }
        SubjectKind::BareIpvs => stage.kernel.write_servers(|family, batch| {
            let key = ServiceKey::new(Protocol::UDP, (*at.ip()).into(), PORT);
            family.new_service(batch, &Service::new(key, Name::RR));
            let real = DestinationKey {
                address: (*UDP_POD.ip()).into(),
                port: UDP_POD.port(),
            };
            family.new_destination(batch, &key, &Destination::new(real, 1));
        })?,
        SubjectKind::Floor
        | SubjectKind::NftFloor
        | SubjectKind::NftFlatFloor
        | SubjectKind::Tools => {
            bail!("{} has no UDP Service", stage.cell.subject.name)
        }
    }
    let asked = Instant::now();
    while !traffic::answers_udp(client, at)? {
        ensure!(
            asked.elapsed() < stage.limit(),
            "the UDP Service does not answer within {} s",
            stage.cell.limit_s
        );
    }
    Ok(vec![("last", at), (DIRECT, POD)])
}

fn udp_objects(address: Ipv4Addr) -> (serde_json::Value, serde_json::Value) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "udp", "namespace": NAMESPACE },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "ports": [{ "name": "udp", "protocol": "UDP", "port": PORT, "targetPort": TARGET_PORT }],
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "udp-0", "namespace": NAMESPACE,
            "labels": { "kubernetes.io/service-name": "udp" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "udp", "protocol": "UDP", "port": TARGET_PORT }],
        "endpoints": [{
            "addresses": [UDP_POD.ip()],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": "node2",
        }],
    });
    (service, slice)
}

/// Measures the first packets of flows to each target, in blocks: at first with a server that drops
/// them, then with one that replies with TCP resets. The time of the resets back to the client
/// counts. Returns series like [`in_turns`].
fn first(
    client: &Place,
    server: &Place,
    targets: &[Target],
) -> Result<Vec<(String, &'static str, Vec<f64>)>> {
    let mut sender = packets::Sender::new(server)?;
    let mut lanes = Vec::new();
    for &(name, to) in targets {
        lanes.push((name, packets::ClientSocket::open(client, CLIENT, to)?));
    }
    let mut series = in_turns(&mut sender, &lanes, "", ROUNDS)?;
    let_answer(server)?;
    series.extend(in_turns(&mut sender, &lanes, " answered", ANSWERED_ROUNDS)?);
    Ok(series)
}

/// Sends a block of new flows to each target, in each round. Returns each series with its name, its
/// unit and its values: the time per packet in nanoseconds.
fn in_turns(
    sender: &mut packets::Sender,
    lanes: &[(&str, packets::ClientSocket)],
    suffix: &str,
    rounds: usize,
) -> Result<Vec<(String, &'static str, Vec<f64>)>> {
    for (_, lane) in lanes {
        sender.warm_up(lane)?;
    }
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); lanes.len()];
    let begun = Instant::now();
    for round in 0..rounds {
        if round >= LEAST_ROUNDS && begun.elapsed() > ENOUGH {
            break;
        }
        for ((_, lane), values) in lanes.iter().zip(&mut values) {
            values.push(sender.new_flows(lane, BLOCK)?);
        }
    }
    let names = lanes.iter().map(|(name, _)| format!("{name}{suffix}"));
    Ok(names
        .zip(values)
        .map(|(name, values)| (name, "ns", values))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_in_the_order_of_their_iptables_rules() {
        let saved = "*nat
-A KUBE-SERVICES -d 10.96.1.7/32 -p tcp -m comment --comment \"bench/svc-00007:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-AAAA
-A KUBE-SERVICES -d 10.96.1.2/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-BBBB
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAA ! -s 10.128.0.0/9 -d 10.96.1.7/32 -p tcp -j KUBE-MARK-MASQ
";
        let order = ["10.96.1.7", "10.96.1.2"].map(|text| text.parse::<Ipv4Addr>().unwrap());
        assert_eq!(rule_order(saved), order);
    }
}
