//! Measures turns of the daemon's loop with the largest Service that the limits allow. Meanwhile, a
//! change to another Service must wait for at most one turn and one plan.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use proxy::{EndpointPort, EndpointSlice};
use proxy_ipvs::fake::FakeKernel;

use super::support::{HeldParts, Slow};
use super::*;

const PORTS: u16 = 99;
const EXTERNAL_IPS: u8 = 40;
const ENDPOINTS: u8 = 24;
/// Longest turn of the daemon's loop. Changes to other Services wait until the turn ends.
const LONGEST: Duration = Duration::from_millis(100);

fn port_name(number: u16) -> Arc<str> {
    format!("p{number}").into()
}

fn largest() -> Service {
    let port = |number| ServicePort {
        name: port_name(number),
        protocol: Protocol::Tcp,
        port: 1_000 + number,
        node_port: None,
    };
    Service {
        ports: (0..PORTS).map(port).collect(),
        external_ips: (0..EXTERNAL_IPS)
            .map(|host| [203, 0, 113, host].into())
            .collect(),
        ..service("tenant/largest", "10.96.200.1", 80)
    }
}

/// Returns the endpoints of the largest Service. The last one is different in each `turn`.
fn endpoints(turn: u8) -> EndpointSlice {
    let hosts = (1..ENDPOINTS).chain([100 + turn]);
    let all: Vec<String> = hosts.map(|host| format!("10.244.2.{host}@node2")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let port = |number| EndpointPort {
        name: port_name(number),
        protocol: Protocol::Tcp,
        port: 8080,
    };
    EndpointSlice {
        ports: (0..PORTS).map(port).collect(),
        ..slice("tenant/largest", &all)
    }
}

/// Runs the daemon's loop until no write is pending. Returns the duration of its longest turn.
fn longest_turn(world: &mut World<Slow>) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let began = Instant::now();
        world.go_on();
        longest = longest.max(began.elapsed());
        let is_done = world.proxier.is_idle() && world.proxier.standing().pending == 0;
        if is_done && !world.model.has_changes() {
            return longest;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -p proxy-ipvs --test proxier -- --ignored --nocapture largest"]
fn a_turn_of_the_loop_takes_under_100_ms_with_the_largest_service() {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    let mut world = World::threaded(Config::default(), kernel, &HeldParts::default());
    for number in 0..5_000_u16 {
        let [high, low] = number.to_be_bytes();
        let name = format!("others/{number}");
        world.service(service(&name, &format!("10.97.{high}.{low}"), 80));
        world.slice(slice(&name, &PAIR));
    }
    let mut world = world.listed();
    longest_turn(&mut world);
    world.service(largest());
    world.slice(endpoints(0));
    let made = longest_turn(&mut world);
    let mut changed = Duration::ZERO;
    for turn in 1..=5 {
        world.slice(endpoints(turn));
        changed = changed.max(longest_turn(&mut world));
    }
    world.delete_service("tenant/largest");
    let deleted = longest_turn(&mut world);
    eprintln!("longest turn: made {made:?}, one endpoint changes {changed:?}, deleted {deleted:?}");
    assert!(made.max(changed).max(deleted) < LONGEST);
}
