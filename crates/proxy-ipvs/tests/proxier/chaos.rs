//! Tests on a slow fake kernel that loses replies, while Services change and another program
//! damages entries. After any events, the kernel's entries must be those after a fresh start.
//!
//! The seed determines the events, but runs differ, because several threads run in parallel.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Instant;

use chance::Chance;
use netlink_batch::Worker;
use proxy::{Changes, Notice, Service, ServiceType, Unreadable};
use proxy_ipvs::{
    FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Lanes, Outcome, Plan, ShimStyle,
    VirtualServerKey,
};

use super::*;

/// Number of simulated nodes, each with a seed of its own.
const SEEDS: u64 = 20;
/// Number of events on each simulated node.
const MOMENTS: u32 = 150;

/// A random number generator that several threads share.
#[derive(Clone)]
struct Shared(Arc<Mutex<Chance>>);

impl Shared {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Chance::new(seed))))
    }

    fn below(&self, limit: u64) -> u64 {
        self.0.lock().unwrap().below(limit)
    }

    fn small(&self, limit: u8) -> u8 {
        self.0.lock().unwrap().small(limit)
    }

    fn is_one_in(&self, times: u64) -> bool {
        self.0.lock().unwrap().is_one_in(times)
    }
}

/// A fake kernel in which each call takes a random time.
struct DelayedKernel(FakeKernel, Shared);

impl DelayedKernel {
    fn rest(&self) {
        if self.1.is_one_in(3) {
            sleep(Duration::from_micros(self.1.below(2_000)));
        }
    }

    /// Reads from the fake kernel, with a random pause before and after the read.
    fn slowly<T>(&mut self, read: impl FnOnce(&mut FakeKernel) -> T) -> T {
        self.rest();
        let found = read(&mut self.0);
        self.rest();
        found
    }
}

impl Kernel for DelayedKernel {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        self.slowly(Kernel::read_servers)
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        self.slowly(Kernel::read_sets)
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        self.slowly(Kernel::read_addresses)
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        self.slowly(Kernel::read_rules)
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        self.0.glance(one)
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        self.0.load_scheduler(name)
    }

    /// Applies a plan in several parts, between which other threads can run.
    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut rest = plan.ops.as_slice();
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(rest.len().min(usize::from(1 + self.1.small(5))));
            rest = others;
            self.0.state().lose_acknowledgements = self.1.is_one_in(40);
            let ops = piece.to_vec();
            outcomes.extend(self.slowly(|kernel| kernel.apply(&Plan { ops })));
        }
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        self.0.connections(keys)
    }
}

/// Changes a random Service or its endpoints.
fn change(world: &mut World<DelayedKernel>, chance: &Shared) {
    let number = chance.small(8);
    let at = format!("default/s{number}");
    match chance.below(6) {
        0 => world.delete_service(&at),
        1 | 2 => world.service(varied(&at, number, chance)),
        _ => {
            let endpoint = |_| {
                let (net, host, node) = (chance.small(2), chance.small(6) + 1, chance.small(2) + 1);
                format!("10.244.{net}.{host}@node{node}")
            };
            let all: BTreeSet<String> = (0..chance.below(5)).map(endpoint).collect();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            world.slice(slice(&at, &all));
        }
    }
}

fn varied(at: &str, number: u8, chance: &Shared) -> Service {
    let mut varied = service(at, &format!("10.96.0.{}", 10 + number), 80);
    varied.created = Some(chance.small(3).into());
    if chance.is_one_in(2) {
        let port = varied.ports.first_mut().unwrap();
        port.node_port = Some(30_000 + u16::from(number));
    }
    if chance.is_one_in(3) {
        // Several Services may claim one external IP.
        varied.external_ips = vec![[198, 51, 100, chance.small(4)].into()];
    }
    if chance.is_one_in(4) {
        varied.kind = ServiceType::LoadBalancer;
        varied.ingress_ips = vec![[203, 0, 113, chance.small(3)].into()];
        if chance.is_one_in(2) {
            varied.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
        }
    }
    varied
}

/// Changes entries as another program would, and sends the kernel's notification about the change,
/// if there is one.
fn damage(world: &mut World<DelayedKernel>, chance: &Shared) {
    let told = {
        let mut state = world.kernel.state();
        let there = &mut state.snapshot;
        let nth = usize::from(chance.small(6));
        match chance.below(4) {
            0 => {
                let other: IpAddr = [192, 168, 99, 11].into();
                Some(if there.interface_addresses.remove(&other) {
                    Notice::AddressRemoved(other)
                } else {
                    there.interface_addresses.insert(other);
                    Notice::AddressAdded(other)
                })
            }
            1 => {
                let key = there.servers.keys().nth(nth).copied();
                key.and_then(|key| there.servers.remove(&key));
                None
            }
            2 => {
                let address = there.bound.iter().nth(nth).copied();
                address.filter(|address| there.bound.remove(address));
                address.map(Notice::ServiceAddressRemoved)
            }
            _ if chance.is_one_in(6) => {
                there.has_link = false;
                there.bound.clear();
                Some(Notice::ServiceLink)
            }
            _ => None,
        }
    };
    if let Some(notice) = told {
        world.proxier.notice(&notice, world.now);
    }
}

/// Runs the daemon's loop without new events until no work is left. The clock advances only while
/// no worker thread is busy.
fn calm_down(world: &mut World<DelayedKernel>, ahead: &mut Duration) {
    let began = Instant::now();
    let mut rests = 0;
    while rests < 60 {
        assert!(began.elapsed() < Duration::from_mins(1), "it has no end");
        go_on(world, *ahead);
        if world.proxier.is_idle() {
            *ahead += Duration::from_millis(150);
            rests += 1;
        }
        sleep(Duration::from_micros(200));
    }
}

/// Runs one turn of the daemon's loop at a simulated time, which is `ahead` of the real time.
fn go_on(world: &mut World<DelayedKernel>, ahead: Duration) {
    world.go_on_at(Instant::now() + ahead);
}

/// Returns the entries that serve packets: bound addresses, virtual servers, and sets with members.
fn serving(snapshot: &Snapshot) -> impl PartialEq + std::fmt::Debug {
    let sets = snapshot
        .sets
        .iter()
        .filter(|(_, members)| !members.is_empty());
    let sets: Vec<_> = sets.map(|(set, of)| (*set, of.clone())).collect();
    (snapshot.bound.clone(), snapshot.servers.clone(), sets)
}

#[test]
fn any_sequence_of_events_ends_in_the_state_of_a_fresh_start() {
    with_shim(ShimStyle::Upstream, 1..=SEEDS);
}

#[test]
fn the_nftables_shim_ends_in_the_state_of_a_fresh_start_after_any_events() {
    with_shim(ShimStyle::Nftables, SEEDS + 1..=SEEDS + SEEDS / 2);
}

fn with_shim(shim: ShimStyle, seeds: RangeInclusive<u64>) {
    let config = || Config {
        shim,
        ..Config::default()
    };
    for seed in seeds {
        let chance = Shared::new(seed);
        let addresses = ["192.168.99.10", "192.168.99.11"].map(ip);
        let kernel = FakeKernel::new(IpFamily::V4, &addresses);
        kernel.state().shim = shim;
        let lane = || {
            let restless = DelayedKernel(kernel.clone(), chance.clone());
            Worker::spawn("fake", move || Ok::<_, io::Error>(restless)).unwrap()
        };
        let lanes = Lanes::new([lane(), lane(), lane(), lane()]);
        let mut world = World::on(config(), kernel.clone(), lanes).listed();
        let mut ahead = Duration::ZERO;
        for _ in 0..MOMENTS {
            match chance.below(3) {
                0 => change(&mut world, &chance),
                1 => damage(&mut world, &chance),
                _ if chance.is_one_in(5) => world.proxier.check(world.now),
                _ => {}
            }
            ahead += Duration::from_millis(chance.below(40));
            go_on(&mut world, ahead);
            sleep(Duration::from_micros(chance.below(1_000)));
        }
        calm_down(&mut world, &mut ahead);
        let told = kernel.state().snapshot.bound.clone();
        // Two checks, because some changes by other programs cause no notification.
        for _ in 0..2 {
            world.proxier.check(world.now);
            calm_down(&mut world, &mut ahead);
        }
        assert_eq!(world.proxier.standing().pending, 0, "seed {seed}");
        let there = kernel.state().snapshot.clone();
        assert_eq!(told, there.bound, "seed {seed}: what the kernel tells");
        let carried: Vec<IpAddr> = there.interface_addresses.iter().copied().collect();
        let new = FakeKernel::new(IpFamily::V4, &carried);
        new.state().shim = shim;
        let mut fresh = World::with(config(), new);
        std::mem::swap(&mut fresh.model, &mut world.model);
        fresh.take_over(&Changes {
            services: fresh.model.service_names().cloned().collect(),
            node: true,
            ..Changes::default()
        });
        let made = fresh.kernel.state().snapshot.clone();
        assert_eq!(serving(&there), serving(&made), "seed {seed}");
        if shim == ShimStyle::Nftables {
            assert_eq!(there.rules, made.rules, "seed {seed}");
        }
    }
}
