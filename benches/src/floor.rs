//! The bare loader of IPVS mode: a program that only writes the final state, as fast as the kernel
//! allows. Its time is a lower bound for a kube-proxy.
//!
//! - It has no API server and no object model, and reads nothing back.
//! - It prepares its messages before the clock starts. Only messages for set members and addresses
//!   are encoded during the measurement.
//! - After the preparation, it stops itself (SIGSTOP). The benchmark starts the clock, and
//!   continues it (SIGCONT).
//! - It writes in the daemon's order: sets, members, rules, virtual servers with destinations,
//!   addresses.
//! - Like the daemon, it writes the iptables rules with one `iptables-restore` for each IP family.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddrV4};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipset_netlink::{Definition, Entry, Family, IpProtocol, Ipset, SetType};
use ipvs_netlink::{Destination, DestinationKey, Ipvs, Name, Service, ServiceKey};
use lab::Signal;
use netlink_batch::{Batch, Reply};
use proxy::{IpFamily, LocalDetector};
use proxy_ipvs::{Config, Rules, Set, SetKind, Shim, ShimStyle};
use route_netlink::{Address, Rtnetlink};

use crate::kernel::{CLUSTER_IP, IPVS_IPS, LOOP_BACK};
use crate::objects::{CLUSTER_CIDR, Objects, PORT, changed};
use crate::process::Process;
use crate::schema::{Axis, Cell, SubjectKind};

/// Minimum size of an ipset (`maxelem`), as in the daemon.
const LEAST_ROOM: u32 = 65_536;
/// Line that the bare loader prints once it has prepared its messages.
const READY: &str = "ready";
/// Minimum time limit for the bare loader's preparation, which for the axis `change` includes
/// writing the whole initial state.
const PREPARED_WITHIN: Duration = Duration::from_mins(2);

/// Waits until the bare loader is prepared and has stopped itself, and continues it. Returns its
/// process, and the time at which it was continued.
pub(crate) fn await_ready(mut process: Process, limit: Duration) -> Result<(Process, Instant)> {
    let asked = Instant::now();
    loop {
        ensure!(!process.is_over(), "the floor ended: {}", process.said());
        ensure!(
            asked.elapsed() < limit.max(PREPARED_WITHIN),
            "the floor is not ready"
        );
        if process.log().lines().any(|line| line == READY) && is_stopped(process.id())? {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let started = Instant::now();
    process.signal(Signal::CONT)?;
    Ok((process, started))
}

fn is_stopped(pid: u32) -> Result<bool> {
    Ok(lab::process::stat(pid)?
        .first()
        .is_some_and(|state| state == "T"))
}

/// Runs the bare loader for a cell (one benchmark run), given as JSON. After its work it sleeps
/// forever, so that the benchmark can still read its CPU time and memory.
pub(crate) fn run(cell: &str) -> Result<()> {
    let cell: Cell = serde_json::from_str(cell).context("cannot read the cell")?;
    if matches!(
        cell.subject.kind,
        SubjectKind::NftFloor | SubjectKind::NftFlatFloor
    ) {
        return crate::nft_floor::run(&cell);
    }
    let objects = Objects::new(cell.size);
    let mut floor = Floor::prepare(&objects)?;
    if cell.axis == Axis::Change {
        floor.load()?;
        let changes = Changes::prepare(&objects, &cell, &floor.ipvs);
        pause()?;
        changes.run(&mut floor.ipvs, &mut floor.ipset)?;
    } else {
        pause()?;
        floor.load()?;
    }
    loop {
        std::thread::park();
    }
}

/// Prints [`READY`], and stops this process (SIGSTOP) until the benchmark continues it.
pub(crate) fn pause() -> Result<()> {
    println!("{READY}");
    std::io::stdout().flush()?;
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    Ok(())
}

struct Floor {
    ipset: Ipset,
    ipvs: Ipvs,
    route: Rtnetlink,
    sets: Vec<(String, Definition)>,
    members: [(&'static str, Vec<Entry>); 3],
    shim: [(&'static str, String); 2],
    servers: Batch,
    objects: Objects,
}

impl Floor {
    fn prepare(objects: &Objects) -> Result<Self> {
        let ipvs = Ipvs::open()?;
        let mut sets = Vec::new();
        for family in IpFamily::ALL {
            for set in Set::all() {
                let room = objects.services().max(LEAST_ROOM);
                sets.push((set.name(family), definition(set, family).with_maxelem(room)));
            }
        }
        Ok(Self {
            members: members(objects),
            shim: [
                ("iptables-restore", shim(IpFamily::V4, ShimStyle::Upstream)?),
                (
                    "ip6tables-restore",
                    shim(IpFamily::V6, ShimStyle::Upstream)?,
                ),
            ],
            servers: servers(objects, &ipvs),
            objects: objects.clone(),
            ipset: Ipset::open()?,
            route: Rtnetlink::open()?,
            ipvs,
            sets,
        })
    }

    /// Writes the whole state. Prints how long each part took, such as `write_members_s 0.12`.
    fn load(&mut self) -> Result<()> {
        let mut lap = Instant::now();
        let mut took = |part: &str| {
            println!("{part}_s {:.6}", lap.elapsed().as_secs_f64());
            lap = Instant::now();
        };
        self.route.create_dummy("kube-ipvs0")?;
        let link = self.route.link("kube-ipvs0")?.context("no link")?.index;
        for (name, definition) in &self.sets {
            self.ipset.create(name, definition)?;
        }
        took("write_sets");
        for (set, members) in &self.members {
            done(&self.ipset.add(set, members)?)?;
        }
        took("write_members");
        for (program, text) in &self.shim {
            restore(program, text)?;
        }
        took("write_rules");
        accepted(&self.ipvs.execute(&self.servers)?, "virtual servers")?;
        took("write_servers");
        // Encodes these messages during the measurement, because they contain the link's index,
        // which only the kernel knows.
        let addresses = addresses(&self.objects, link);
        accepted(&self.route.execute(&addresses)?, "addresses")?;
        took("write_addresses");
        std::io::stdout().flush()?;
        Ok(())
    }
}

/// Returns an error for the first netlink reply that is not a success.
fn accepted(replies: &[Reply], what: &str) -> Result<()> {
    let refused = replies.iter().find(|reply| **reply != Reply::Done);
    ensure!(refused.is_none(), "{what}: {refused:?}");
    Ok(())
}

fn definition(set: Set, family: IpFamily) -> Definition {
    let set_type = match set.kind() {
        SetKind::Address => SetType::HashIp,
        SetKind::AddressPort | SetKind::AddressPortMark => SetType::HashIpPort,
        SetKind::AddressPortAddress => SetType::HashIpPortIp,
        SetKind::AddressPortNet => SetType::HashIpPortNet,
        SetKind::Port => SetType::BitmapPort,
    };
    let family = match family {
        IpFamily::V4 => Family::Inet,
        IpFamily::V6 => Family::Inet6,
    };
    Definition::new(set_type, family)
}

/// Returns the iptables rules of IPVS mode as input for `iptables-restore`.
pub(crate) fn shim(family: IpFamily, style: ShimStyle) -> Result<String> {
    let filled = match family {
        IpFamily::V4 => [Set::ClusterIp, Set::IpvsIps, Set::LoopBack].into(),
        IpFamily::V6 => std::collections::BTreeSet::new(),
    };
    let detector = match family {
        IpFamily::V4 => LocalDetector::SourceNet(CLUSTER_CIDR.parse()?),
        IpFamily::V6 => LocalDetector::None,
    };
    let shim = Shim {
        family,
        filled,
        forbidden_to_node: std::collections::BTreeSet::new(),
        ranges: proxy_ipvs::Ranges::default(),
    };
    let config = Config {
        detector,
        shim: style,
        ..Config::default()
    };
    Ok(shim.rules(&config).restore_text(&Rules::default()))
}

fn restore(program: &str, text: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(["--noflush", "--wait"])
        .stdin(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    child
        .stdin
        .take()
        .context("no standard input")?
        .write_all(text.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// Returns the names and members of the three ipsets that have a member for each Service or local
/// endpoint.
fn members(objects: &Objects) -> [(&'static str, Vec<Entry>); 3] {
    let all = || (0..objects.services()).map(|service| IpAddr::V4(Objects::address(service)));
    let local = (0..objects.services()).flat_map(|service| objects.endpoints(service));
    let local = local.filter(|endpoint| endpoint.is_local);
    let cluster_ip = |ip| Entry::IpPort {
        ip,
        protocol: TCP,
        port: PORT,
    };
    [
        (LOOP_BACK, local.map(|one| loop_back(one.at)).collect()),
        (CLUSTER_IP, all().map(cluster_ip).collect()),
        (IPVS_IPS, all().map(Entry::Ip).collect()),
    ]
}

const TCP: IpProtocol = IpProtocol(6);

/// Returns the ipset member for an endpoint on this node, whose source and destination address are
/// the same (hairpin traffic).
fn loop_back(at: SocketAddrV4) -> Entry {
    let ip = IpAddr::V4(*at.ip());
    Entry::IpPortIp {
        ip,
        protocol: TCP,
        port: at.port(),
        ip2: ip,
    }
}

/// Returns an error for the first ipset operation that failed.
fn done(outcomes: &[ipset_netlink::Outcome]) -> Result<()> {
    let done = ipset_netlink::Outcome::Done;
    let refused = outcomes.iter().find(|outcome| **outcome != done);
    ensure!(refused.is_none(), "set members: {refused:?}");
    Ok(())
}

fn key(service: u32) -> ServiceKey {
    let address = IpAddr::V4(Objects::address(service));
    ServiceKey::new(ipvs_netlink::Protocol::TCP, address, PORT)
}

fn real(at: SocketAddrV4) -> DestinationKey {
    DestinationKey {
        address: IpAddr::V4(*at.ip()),
        port: at.port(),
    }
}

fn servers(objects: &Objects, ipvs: &Ipvs) -> Batch {
    let mut batch = Batch::new();
    let family = ipvs.family();
    for service in 0..objects.services() {
        let key = key(service);
        family.new_service(&mut batch, &Service::new(key, Name::RR));
        for endpoint in objects.endpoints(service) {
            family.new_destination(&mut batch, &key, &Destination::new(real(endpoint.at), 1));
        }
    }
    batch
}

fn addresses(objects: &Objects, link: u32) -> Batch {
    let mut batch = Batch::new();
    for service in 0..objects.services() {
        Address::host(link, Objects::address(service).into()).push_new(&mut batch);
    }
    batch
}

/// Prepared messages for the endpoint changes of the axis `change`.
struct Changes(Vec<OneChange>);

struct OneChange {
    key: ServiceKey,
    /// Messages that add the new destination, and set the weight of the old one to 0.
    made: Batch,
    /// Messages that remove the old destination.
    removed: Batch,
    /// Members to remove from the ipset of local endpoints.
    members: Vec<Entry>,
}

impl Changes {
    fn prepare(objects: &Objects, cell: &Cell, ipvs: &Ipvs) -> Self {
        let mut objects = objects.clone();
        let family = ipvs.family();
        let turns = (0..cell.changes).map(|turn| {
            let (service, index) = changed(cell.size, turn);
            let old = objects.endpoints(service).get(index).copied();
            let new = objects.replace(service, index, turn);
            let key = key(service);
            let (mut made, mut removed, mut members) = (Batch::new(), Batch::new(), Vec::new());
            family.new_destination(&mut made, &key, &Destination::new(real(new.at), 1));
            if let Some(old) = old {
                family.set_destination(&mut made, &key, &Destination::new(real(old.at), 0));
                family.del_destination(&mut removed, &key, &real(old.at));
                members.extend(old.is_local.then(|| loop_back(old.at)));
            }
            OneChange {
                key,
                made,
                removed,
                members,
            }
        });
        Self(turns.collect())
    }

    /// Makes all changes, one after another. Prints the duration of each in milliseconds.
    fn run(&self, ipvs: &mut Ipvs, ipset: &mut Ipset) -> Result<()> {
        let mut took = Vec::with_capacity(self.0.len());
        for change in &self.0 {
            let started = Instant::now();
            accepted(&ipvs.execute(&change.made)?, "a change")?;
            // Like the daemon, first reads whether the old destination still has connections. (In
            // this benchmark, it never has.)
            ipvs.destinations(&change.key)?;
            accepted(&ipvs.execute(&change.removed)?, "a removal")?;
            done(&ipset.delete(LOOP_BACK, &change.members)?)?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
        }
        println!("changes_ms {}", serde_json::to_string(&took)?);
        std::io::stdout().flush()?;
        Ok(())
    }
}
