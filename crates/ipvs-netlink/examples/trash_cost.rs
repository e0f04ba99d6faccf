//! Measures the kernel's cost of replacing destinations repeatedly. Destinations that were removed
//! recently slow down later additions.
//!
//! ```text
//! cargo build --release -p ipvs-netlink -p lab --example trash_cost --bin lab
//! target/release/lab run --timeout 1800 -- target/release/examples/trash_cost
//! ```
//!
//! Removed destinations stay in the kernel for 120 to 180 s after their removal or their last
//! connection:
//!
//! 1. The kernel inserts a removed destination at the head of a list of the network namespace
//!    (`dest_trash`), with or without connections.
//! 2. A timer scans the list every 60 s. The timer records when it first finds a destination
//!    without connections.
//! 3. The timer frees this destination 120 s later.
//!
//! For each added destination, the kernel first searches this list from the head, under a lock that
//! disables soft interrupts. If the list does not contain the destination, this search covers the
//! whole list.
//!
//! Each line of the output is one round of a case. Each case runs in a separate network namespace,
//! which `unshare` creates. With arguments, `trash_cost many|one COUNT CASE` runs one [`Case`] in
//! the current namespace.
//!
//! Source: `net/netfilter/ipvs/ip_vs_ctl.c` (`ip_vs_trash_get_dest`, `__ip_vs_del_dest`,
//! `ip_vs_dest_trash_expire`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::env::{args, current_exe};
use std::error::Error;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ipvs_netlink::{
    Destination, DestinationKey, Family, Flags, Ipvs, Name, Protocol, Service, ServiceKey, Timeouts,
};
use netlink_batch::{Batch, Reply};

const CASES: [(&str, u32, &str); 18] = [
    ("many", 20_000, "add-remove"),
    ("many", 20_000, "remove-add"),
    ("many", 20_000, "weight"),
    ("many", 20_000, "bounded"),
    ("many", 20_000, "return"),
    ("many", 20_000, "return-backwards"),
    ("many", 20_000, "return-weight"),
    ("many", 20_000, "servers"),
    ("many", 20_000, "servers-backwards"),
    ("many", 20_000, "flush"),
    ("many", 20_000, "flush-backwards"),
    ("one", 5_000, "add-remove"),
    ("one", 5_000, "weight"),
    ("one", 5_000, "return"),
    ("one", 5_000, "return-backwards"),
    ("many", 5_000, "wait"),
    ("many", 5_000, "wait-connections"),
    ("one", 10_000, "spares"),
];

const ROUNDS: u32 = 4;
/// Maximum length of the kernel's list of removed destinations (`dest_trash`) in the case
/// `bounded`.
const BOUND: usize = 4_096;
/// Number of destinations that the case `wait` adds in each measurement.
const PROBES: u32 = 64;
/// Number of packets that the case `spares` sends.
const PACKETS: u32 = 2_000;
/// Time between two measurements of the case `wait`.
const STEP: Duration = Duration::from_secs(15);

/// Steps of one round. Most cases replace the old destinations by new destinations. Some cases
/// remove the old destinations and add them again. If `backwards` is true, one of these two steps
/// has the reverse order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Adds the new destinations, then removes the old destinations.
    AddRemove,
    /// Removes the old destinations, then adds the new destinations.
    RemoveAdd,
    /// Adds the new destinations, and sets the weight of the old destinations to 0. After the last
    /// round, removes all old destinations.
    Weight,
    /// Like `Weight`, but removes just enough old destinations to keep the kernel's list within
    /// [`BOUND`].
    Bounded,
    /// Removes all destinations, and adds the same destinations again.
    Return { backwards: bool },
    /// Sets the weight of all destinations to 0, then restores the weight.
    ReturnWeight,
    /// Removes all virtual servers. Then adds the same virtual servers and destinations again.
    Servers { backwards: bool },
    /// Flushes all virtual servers (`ipvsadm -C`). Then adds the same virtual servers again, in
    /// their order or in the reverse order of the last dump.
    Flush { backwards: bool },
    /// Removes all destinations once. Then repeatedly measures the cost of adding other
    /// destinations, until this cost is normal again.
    Wait { connections: bool },
    /// Measures how destinations with weight 0 slow down the scheduling of a packet (round robin).
    /// Only one destination has a weight above 0.
    Spares,
}

impl Case {
    fn parse(text: &str) -> Option<Self> {
        let backwards = text.ends_with("-backwards");
        Some(match text {
            "add-remove" => Self::AddRemove,
            "remove-add" => Self::RemoveAdd,
            "weight" => Self::Weight,
            "bounded" => Self::Bounded,
            "return-weight" => Self::ReturnWeight,
            "return" | "return-backwards" => Self::Return { backwards },
            "servers" | "servers-backwards" => Self::Servers { backwards },
            "flush" | "flush-backwards" => Self::Flush { backwards },
            "wait" => Self::Wait { connections: false },
            "wait-connections" => Self::Wait { connections: true },
            "spares" => Self::Spares,
            _ => return None,
        })
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;
/// A virtual server and one of its destinations.
type Pair = (ServiceKey, DestinationKey);

fn main() -> Result<()> {
    let arguments: Vec<_> = args().skip(1).collect();
    if let [shape, count, case] = &*arguments {
        let case =
            Case::parse(case).ok_or("no such case: see the head of this example's source")?;
        return Table::open(shape == "one", count.parse()?)?.run(case);
    }
    // Loads the module. With the module, each new namespace has IPVS from the start.
    drop(Ipvs::open()?);
    let program = current_exe()?;
    for (shape, count, case) in CASES {
        println!("{shape} virtual server(s), {count} destinations, {case}");
        let status = Command::new("unshare")
            .arg("--net")
            .arg(&program)
            .args([shape, &count.to_string(), case])
            .status()?;
        if !status.success() {
            return Err(format!("{case}: {status}").into());
        }
    }
    Ok(())
}

/// Virtual servers in the kernel, with `count` destinations in total: one virtual server with all
/// of them, or one virtual server for each destination.
struct Table {
    ipvs: Ipvs,
    is_one: bool,
    count: u32,
}

impl Table {
    fn open(is_one: bool, count: u32) -> Result<Self> {
        // In a namespace without an address, the kernel accepts no destination.
        Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()?;
        fs::write("/proc/sys/net/ipv4/vs/expire_nodest_conn", "0")?;
        let ipvs = Ipvs::open()?;
        Ok(Self {
            ipvs,
            is_one,
            count,
        })
    }

    fn service(&self, number: u32) -> ServiceKey {
        let number = if self.is_one { 0 } else { number };
        let address = Ipv4Addr::from(0x7f10_0000 + number);
        ServiceKey::new(Protocol::UDP, address.into(), 80)
    }

    /// Returns the destinations of one generation, in the order of their addresses. A round
    /// replaces one generation by the next.
    fn pairs(&self, generation: u32) -> Vec<Pair> {
        let pair = |number| {
            let address = Ipv4Addr::from(0x7f20_0000 + (generation << 17) + number);
            let target = SocketAddr::new(IpAddr::V4(address), 8080);
            (self.service(number), DestinationKey::from(target))
        };
        (0..self.count).map(pair).collect()
    }

    /// Pushes a message for each item of `all`, and sends the messages in batches. Returns the
    /// total time.
    fn each<T>(&mut self, all: &[T], push: impl Fn(Family, &mut Batch, &T)) -> Result<Duration> {
        let family = self.ipvs.family();
        let began = Instant::now();
        let mut batch = Batch::new();
        for part in all.chunks(512) {
            batch.clear();
            for one in part {
                push(family, &mut batch, one);
            }
            let replies = self.ipvs.execute(&batch)?;
            if let Some(reply) = replies.iter().find(|reply| **reply != Reply::Done) {
                return Err(format!("{reply:?}").into());
            }
        }
        Ok(began.elapsed())
    }

    fn add_servers(&mut self) -> Result<Duration> {
        let servers = if self.is_one { 1 } else { self.count };
        let keys: Vec<_> = (0..servers).map(|number| self.service(number)).collect();
        self.each(&keys, |family, batch, key| {
            family.new_service(batch, &Service::new(*key, Name::RR));
        })
    }

    fn add(&mut self, pairs: &[Pair]) -> Result<Duration> {
        self.each(pairs, |family, batch, (service, target)| {
            family.new_destination(batch, service, &Destination::new(*target, 1));
        })
    }

    fn weigh(&mut self, pairs: &[Pair], weight: u32) -> Result<Duration> {
        self.each(pairs, |family, batch, (service, target)| {
            family.set_destination(batch, service, &Destination::new(*target, weight));
        })
    }

    fn remove(&mut self, pairs: &[Pair]) -> Result<Duration> {
        self.each(pairs, |family, batch, (service, target)| {
            family.del_destination(batch, service, target);
        })
    }

    fn run(&mut self, case: Case) -> Result<()> {
        self.add_servers()?;
        let first = self.pairs(0);
        let took = self.add(&first)?;
        line(0, "add", took, self.count, 0);
        match case {
            Case::Wait { connections } => return self.wait(&first, connections),
            Case::Spares => return self.schedule(&first),
            _ => {}
        }
        // The length of the kernel's list of removed destinations (`dest_trash`), and the old
        // destinations that remain with weight 0.
        let (mut list, mut spare) = (0, Vec::new());
        for round in 1..=ROUNDS {
            let (old, new) = (self.pairs(round - 1), self.pairs(round));
            let all = self.count as usize;
            match case {
                Case::AddRemove => {
                    let took = self.add(&new)?;
                    line(round, "add", took, self.count, list);
                    line(round, "remove", self.remove(&old)?, self.count, list);
                    list += all;
                }
                Case::RemoveAdd => {
                    line(round, "remove", self.remove(&old)?, self.count, list);
                    list += all;
                    let took = self.add(&new)?;
                    line(round, "add", took, self.count, list);
                }
                Case::Weight | Case::Bounded => {
                    let took = self.add(&new)?;
                    line(round, "add", took, self.count, list);
                    let took = self.weigh(&old, 0)?;
                    line(round, "weight 0", took, self.count, list);
                    spare.extend(old);
                    let room = if case == Case::Bounded {
                        BOUND - list
                    } else {
                        0
                    };
                    let removed: Vec<_> = spare.drain(..room).collect();
                    self.remove(&removed)?;
                    list += removed.len();
                }
                Case::Return { backwards } => {
                    let mut gone = first.clone();
                    if backwards {
                        gone.reverse();
                    }
                    let took = self.remove(&gone)?;
                    line(round, "remove", took, self.count, 0);
                    line(round, "add", self.add(&first)?, self.count, all);
                }
                Case::ReturnWeight => {
                    let took = self.weigh(&first, 0)?;
                    line(round, "weight 0", took, self.count, 0);
                    let took = self.weigh(&first, 1)?;
                    line(round, "weight 1", took, self.count, 0);
                }
                Case::Servers { backwards } => {
                    let mut keys: Vec<_> = first.iter().map(|(service, _)| *service).collect();
                    keys.dedup();
                    if backwards {
                        keys.reverse();
                    }
                    let took = self.each(&keys, |family, batch, key| {
                        family.del_service(batch, key);
                    })?;
                    line(round, "remove", took, self.count, 0);
                    self.add_servers()?;
                    line(round, "add", self.add(&first)?, self.count, all);
                }
                Case::Flush { backwards } => {
                    let mut back = first.clone();
                    if backwards {
                        let dump = self.ipvs.services()?;
                        let keys = dump.iter().map(|entry| entry.service.key);
                        let place: HashMap<_, _> = keys.zip(0_usize..).collect();
                        back.sort_by_key(|(service, _)| Reverse(place.get(service)));
                    }
                    let began = Instant::now();
                    self.ipvs.flush()?;
                    line(round, "flush", began.elapsed(), self.count, 0);
                    self.add_servers()?;
                    line(round, "add", self.add(&back)?, self.count, all);
                }
                Case::Wait { .. } | Case::Spares => {}
            }
        }
        if !spare.is_empty() {
            let took = self.remove(&spare)?;
            line(ROUNDS, "remove", took, u32::try_from(spare.len())?, list);
        }
        Ok(())
    }

    fn schedule(&mut self, all: &[Pair]) -> Result<()> {
        // With this flag, IPVS schedules each packet separately.
        let (key, flags) = (self.service(0), Flags::ONE_PACKET);
        self.each(&[key], |family, batch, key| {
            let service = Service::new(*key, Name::RR);
            family.set_service(batch, &Service { flags, ..service });
        })?;
        let (live, spare) = all.split_first().ok_or("one at least")?;
        self.remove(spare)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let ServiceKey::Address { address, port, .. } = live.0 else {
            return Ok(());
        };
        let mut there = 0;
        for wanted in [0, 100, 1_000, spare.len()] {
            let more = spare.get(there..wanted).unwrap_or_default();
            self.add(more)?;
            self.weigh(more, 0)?;
            there = wanted;
            let began = Instant::now();
            for _ in 0..PACKETS {
                // No process listens at this address. The kernel's ICMP error may make a later call
                // on this socket fail, so errors are ignored.
                let _ = socket.send_to(b"x", (address, port));
            }
            let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(PACKETS);
            println!("   beside {there:>6} at weight 0: {each:7.1} µs a packet");
        }
        Ok(())
    }

    fn wait(&mut self, all: &[Pair], connections: bool) -> Result<()> {
        if connections {
            self.ipvs.set_timeouts(&Timeouts {
                udp: 60,
                ..Timeouts::default()
            })?;
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            for (service, _) in all {
                if let ServiceKey::Address { address, port, .. } = service {
                    // No process listens at this address. The kernel's ICMP error may make a later
                    // call on this socket fail, so errors are ignored.
                    let _ = socket.send_to(b"x", (*address, *port));
                }
            }
        }
        let took = self.remove(all)?;
        line(1, "remove", took, self.count, 0);
        let began = Instant::now();
        for others in self.pairs(1).chunks(PROBES as usize).take(24) {
            let took = self.add(others)?;
            self.remove(others)?;
            let each = took.as_secs_f64() * 1e6 / f64::from(PROBES);
            let after = began.elapsed();
            println!("   {:>4} s after: add {each:7.1} µs each", after.as_secs());
            sleep(STEP);
        }
        Ok(())
    }
}

fn line(round: u32, what: &str, took: Duration, count: u32, list: usize) {
    println!(
        "   round {round}: {what:8} {count:>6} in {:6.2} s, {:7.1} µs each, with {list:>6} in the kernel's list",
        took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / f64::from(count),
    );
}
