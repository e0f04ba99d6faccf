//! Measures the time to encode netlink messages in two ways: from typed messages, and as
//! hand-written bytes. For comparison, measures the kernel's time for the same messages.
//!
//! ```text
//! cargo build --release -p route-netlink --example encode_cost
//! unshare --net target/release/examples/encode_cost
//! ```
//!
//! Adds 20,000 IPv4 addresses and as many local routes to the loopback device of this network
//! namespace. Adds the addresses and the routes only once. Prints the fastest of several runs for
//! all other steps.

use std::error::Error;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use libc::{IFA_ADDRESS, IFA_LOCAL, RTA_DST, RTA_OIF, RTM_GETADDR, RTM_NEWADDR, RTM_NEWROUTE};
use netlink_batch::{Connection, NLM_F_CREATE, NLM_F_EXCL, Protocol};
use route_netlink::{Address, Batch, Family, LocalRoute, Reply, Rtnetlink};

const COUNT: u32 = 20_000;
const LOOPBACK: u32 = 1;
const PROTOCOL: u8 = 107;
const RUNS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rtnetlink = Rtnetlink::open()?;
    rtnetlink.set_link_state("lo", route_netlink::LinkState::Up)?;

    let addresses = typed_addresses();
    same(&addresses, &addresses_by_hand());
    line("encode addresses, typed", fastest(typed_addresses));
    line("encode addresses, by hand", fastest(addresses_by_hand));
    line("add them", execute(&mut rtnetlink, &addresses)?);

    let mut connection = Connection::open(Protocol::Route)?;
    let mut raw = || {
        connection.dump(RTM_GETADDR, 0, |message| {
            message.bytes(&[2, 0, 0, 0, 0, 0, 0, 0]);
        })
    };
    assert!(raw()?.len() >= COUNT as usize, "all are there");
    line("dump them, not decoded", fastest(&mut raw));
    line(
        "dump them, decoded",
        fastest(|| rtnetlink.addresses(Family::Inet)),
    );

    let routes = typed_routes();
    same(&routes, &routes_by_hand());
    line("encode routes, typed", fastest(typed_routes));
    line("encode routes, by hand", fastest(routes_by_hand));
    line("add them", execute(&mut rtnetlink, &routes)?);
    let found = || rtnetlink.local_routes(Family::Inet, PROTOCOL);
    line("dump them, decoded", fastest(found));
    Ok(())
}

fn all() -> impl Iterator<Item = Ipv4Addr> {
    (1..=COUNT).map(|number| Ipv4Addr::from(0x0a60_0000 + number))
}

fn typed_addresses() -> Batch {
    let mut batch = Batch::new();
    for address in all() {
        Address::host(LOOPBACK, address.into()).push_new(&mut batch);
    }
    batch
}

fn addresses_by_hand() -> Batch {
    let mut batch = Batch::new();
    let [a, b, c, d] = LOOPBACK.to_ne_bytes();
    for address in all() {
        batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.bytes(&[2, 32, 0x80, 0, a, b, c, d]);
            message.attr(IFA_LOCAL, &address.octets());
            message.attr(IFA_ADDRESS, &address.octets());
        });
    }
    batch
}

fn typed_routes() -> Batch {
    let mut batch = Batch::new();
    for address in all() {
        LocalRoute::host(LOOPBACK, address.into(), PROTOCOL).push_new(&mut batch);
    }
    batch
}

fn routes_by_hand() -> Batch {
    let mut batch = Batch::new();
    for address in all() {
        batch.push(RTM_NEWROUTE, NLM_F_CREATE, |message| {
            message.bytes(&[2, 32, 0, 0, 255, PROTOCOL, 254, 2, 0, 0, 0, 0]);
            message.attr(RTA_DST, &address.octets());
            message.attr_u32(RTA_OIF, LOOPBACK);
        });
    }
    batch
}

fn same(one: &Batch, other: &Batch) {
    let last = COUNT as usize - 1;
    assert_eq!(
        (one.byte_len(), one.get(last)),
        (other.byte_len(), other.get(last))
    );
}

fn fastest<T>(mut run: impl FnMut() -> T) -> Duration {
    let times = (0..RUNS).map(|_| {
        let started = Instant::now();
        black_box(run());
        started.elapsed()
    });
    times.min().unwrap_or_default()
}

fn execute(rtnetlink: &mut Rtnetlink, batch: &Batch) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let replies = rtnetlink.execute(batch)?;
    match replies.iter().find(|reply| **reply != Reply::Done) {
        Some(reply) => Err(format!("{reply:?}").into()),
        None => Ok(started.elapsed()),
    }
}

fn line(what: &str, time: Duration) {
    println!("{what:26} {:9.2} ms", time.as_secs_f64() * 1e3);
}
