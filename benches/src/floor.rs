//! The floor: a bare loader that sends the final state of the IPVS mode as messages that were
//! encoded before the clock starts, in the batches and in the order that the daemon has: sets,
//! members, rules, virtual servers with destinations, addresses.
//!
//! It has no API server, no model and no read-back. The shim is one `iptables-restore` for each
//! family, as the daemon's. It prepares, stops itself (SIGSTOP), and starts its work when it is
//! continued.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddrV4};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipset_netlink::{Definition, Family, Ipset, SetType};
use ipvs_netlink::{Destination, DestinationKey, Ipvs, Name, Service, ServiceKey};
use lab::Signal;
use netlink_batch::{Batch, Connection, NLM_F_CREATE, NLM_F_EXCL, Protocol, Reply, Writer};
use proxy::{IpFamily, LocalDetector};
use proxy_ipvs::{Config, Rules, Set, SetKind, Shim, ShimStyle};

use crate::kernel::{CLUSTER_IP, IPVS_IPS, LOOP_BACK};
use crate::objects::{CLUSTER_CIDR, Objects, PORT, changed};
use crate::process::Process;
use crate::schema::{Axis, Cell, SubjectKind};

/// What the daemon gives its sets room for, at least.
const LEAST_ROOM: u32 = 65_536;
/// What it says when it is ready.
const READY: &str = "ready";
/// At least; before changes it writes the whole state.
const PREPARED_WITHIN: Duration = Duration::from_mins(2);

/// Waits until a floor has prepared, and lets it go.
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
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(text
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// The verb `floor`: what a cell's floor does, in a process of its own. It waits at the end, to be
/// looked at.
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
        changes.run(&mut floor.ipvs, &mut floor.netfilter)?;
    } else {
        pause()?;
        floor.load()?;
    }
    loop {
        std::thread::park();
    }
}

/// Says that it is ready, and stops until it is continued.
pub(crate) fn pause() -> Result<()> {
    println!("{READY}");
    std::io::stdout().flush()?;
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    Ok(())
}

struct Floor {
    ipset: Ipset,
    netfilter: Connection,
    ipvs: Ipvs,
    route: Connection,
    sets: Vec<(String, Definition)>,
    members: Batch,
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
            netfilter: Connection::open(Protocol::Netfilter)?,
            route: Connection::open(Protocol::Route)?,
            ipvs,
            sets,
        })
    }

    /// Sends everything, and prints how long each part took.
    fn load(&mut self) -> Result<()> {
        let mut lap = Instant::now();
        let mut took = |part: &str| {
            println!("{part}_s {:.6}", lap.elapsed().as_secs_f64());
            lap = Instant::now();
        };
        let link = self.create_link()?;
        for (name, definition) in &self.sets {
            self.ipset.create(name, definition)?;
        }
        took("write_sets");
        accepted(&self.netfilter.execute(&self.members)?, "set members")?;
        took("write_members");
        for (program, text) in &self.shim {
            restore(program, text)?;
        }
        took("write_rules");
        accepted(&self.ipvs.execute(&self.servers)?, "virtual servers")?;
        took("write_servers");
        // The number of the link is not known before.
        let addresses = addresses(&self.objects, link);
        accepted(&self.route.execute(&addresses)?, "addresses")?;
        took("write_addresses");
        std::io::stdout().flush()?;
        Ok(())
    }

    fn create_link(&mut self) -> Result<u32> {
        const RTM_NEWLINK: u16 = 16;
        const RTM_GETLINK: u16 = 18;
        let named = |message: &mut Writer<'_>| {
            message.bytes(&[0; 16]);
            message.attr_str(3, "kube-ipvs0");
        };
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
            named(message);
            message.nest(18, |kind| kind.attr_str(1, "dummy"));
        });
        accepted(&self.route.execute(&batch)?, "the link")?;
        let answer = self.route.request(RTM_GETLINK, 0, named)?;
        let (_, payload) = answer.iter().next().context("no answer about the link")?;
        let index = payload.get(4..8).and_then(|bytes| bytes.first_chunk());
        Ok(u32::from_ne_bytes(
            *index.context("a link without a number")?,
        ))
    }
}

/// Fails with the first refusal.
fn accepted(replies: &[Reply], what: &str) -> Result<()> {
    let refused = replies.iter().find(|reply| **reply != Reply::Done);
    ensure!(refused.is_none(), "{what}: {refused:?}");
    Ok(())
}

fn definition(set: Set, family: IpFamily) -> Definition {
    let set_type = match set.kind() {
        SetKind::Address => SetType::HashIp,
        SetKind::AddressPort => SetType::HashIpPort,
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

/// The shim's rules with what the objects fill, as input of `iptables-restore`.
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

/// Members of the three sets, 32 KiB to a message.
fn members(objects: &Objects) -> Batch {
    let mut batch = Batch::new();
    let all = 0..objects.services();
    let at = |service| SocketAddrV4::new(Objects::address(service), PORT);
    let local = all.clone().flat_map(|service| objects.endpoints(service));
    let local = local
        .filter(|endpoint| endpoint.is_local)
        .map(|endpoint| endpoint.at);
    write_members(&mut batch, ADD, LOOP_BACK, local, loop_back);
    write_members(
        &mut batch,
        ADD,
        CLUSTER_IP,
        all.clone().map(at),
        |data, at| {
            address(data, 1, at);
            port(data, at);
        },
    );
    write_members(&mut batch, ADD, IPVS_IPS, all.map(at), |data, at| {
        address(data, 1, at);
    });
    batch
}

/// `NLA_F_NET_BYTEORDER`
const BIG_ENDIAN: u16 = 1 << 14;

fn address(data: &mut Writer<'_>, kind: u16, at: SocketAddrV4) {
    data.nest(kind, |ip| ip.attr(1 | BIG_ENDIAN, &at.ip().octets()));
}

fn port(data: &mut Writer<'_>, at: SocketAddrV4) {
    data.attr(4 | BIG_ENDIAN, &at.port().to_be_bytes());
    data.attr_u8(7, 6);
}

/// A local endpoint, with itself as the source.
fn loop_back(data: &mut Writer<'_>, at: SocketAddrV4) {
    address(data, 1, at);
    port(data, at);
    address(data, 20, at);
}

/// `IPSET_CMD_ADD` and `IPSET_CMD_DEL` of nfnetlink's subsystem 6
/// (`include/uapi/linux/netfilter/ipset/ip_set.h`).
const ADD: u16 = 0x0609;
const DELETE: u16 = 0x060a;

/// Adds or deletes members, 32 KiB to a message.
fn write_members(
    batch: &mut Batch,
    command: u16,
    set: &str,
    members: impl Iterator<Item = SocketAddrV4>,
    encode: impl Fn(&mut Writer<'_>, SocketAddrV4),
) {
    const MESSAGE_BYTES: usize = 32 * 1024;
    let mut members = members.peekable();
    while members.peek().is_some() {
        batch.push(command, 0, |message| {
            message.bytes(&[libc::AF_INET.to_le_bytes()[0], 0, 0, 0]);
            message.attr_u8(1, 7);
            message.attr_str(2, set);
            message.attr_be32(9 | BIG_ENDIAN, 0);
            message.nest(8, |list| {
                let full = list.len() + MESSAGE_BYTES;
                let mut line = 0;
                while list.len() < full
                    && let Some(member) = members.next()
                {
                    line += 1;
                    list.nest(7, |data| {
                        encode(data, member);
                        data.attr_be32(9 | BIG_ENDIAN, line);
                    });
                }
            });
        });
    }
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
    const RTM_NEWADDR: u16 = 20;
    const IFA_F_PERMANENT: u8 = 0x80;
    let mut batch = Batch::new();
    let [a, b, c, d] = link.to_ne_bytes();
    for service in 0..objects.services() {
        let address = Objects::address(service).octets();
        batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.bytes(&[2, 32, IFA_F_PERMANENT, 0, a, b, c, d]);
            message.attr(2, &address);
            message.attr(1, &address);
        });
    }
    batch
}

/// The changes of the axis change, as the daemon makes them.
struct Changes(Vec<OneChange>);

struct OneChange {
    key: ServiceKey,
    /// A destination more, and weight 0 for the one that goes.
    made: Batch,
    /// It goes.
    removed: Batch,
    /// What the set of local endpoints loses.
    members: Batch,
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
            let (mut made, mut removed, mut members) = (Batch::new(), Batch::new(), Batch::new());
            family.new_destination(&mut made, &key, &Destination::new(real(new.at), 1));
            if let Some(old) = old {
                family.set_destination(&mut made, &key, &Destination::new(real(old.at), 0));
                family.del_destination(&mut removed, &key, &real(old.at));
                let local = std::iter::once(old.at).filter(|_| old.is_local);
                write_members(&mut members, DELETE, LOOP_BACK, local, loop_back);
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

    /// Sends one after another, and prints how long each took, in milliseconds.
    fn run(&self, ipvs: &mut Ipvs, netfilter: &mut Connection) -> Result<()> {
        let mut took = Vec::with_capacity(self.0.len());
        for change in &self.0 {
            let started = Instant::now();
            accepted(&ipvs.execute(&change.made)?, "a change")?;
            // Whether it has connections left; here nobody has any.
            ipvs.destinations(&change.key)?;
            accepted(&ipvs.execute(&change.removed)?, "a removal")?;
            accepted(&netfilter.execute(&change.members)?, "a change's member")?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
        }
        println!("changes_ms {}", serde_json::to_string(&took)?);
        std::io::stdout().flush()?;
        Ok(())
    }
}
