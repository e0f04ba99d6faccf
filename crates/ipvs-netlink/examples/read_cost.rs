//! Measures the cost of reading the counters of 50,000 virtual servers (or a given number) with two
//! destinations each. Measures three kinds of reads:
//!
//! * One dump reads all virtual servers.
//! * For each virtual server, a further dump reads its destinations.
//! * A scrape reads 1,000 of the virtual servers one by one, with their destinations.
//!
//! ```text
//! cargo build --release -p ipvs-netlink -p lab --example read_cost --bin lab
//! target/release/lab run -- target/release/examples/read_cost [SERVICES]
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first surprise"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use ipvs_netlink::{Destination, Ipvs, Protocol, Service, ServiceKey};
use netlink_batch::Batch;

fn main() {
    let count: u32 = std::env::args()
        .nth(1)
        .map_or(50_000, |count| count.parse().unwrap());
    let mut ipvs = Ipvs::open().unwrap();
    let mut batch = Batch::new();
    for number in 0..count {
        let address = Ipv4Addr::from_bits(0x0a60_0000 + number);
        let key = ServiceKey::new(Protocol::TCP, address.into(), 80);
        let service = Service::new(key, "rr".parse().unwrap());
        ipvs.family().new_service(&mut batch, &service);
        for last in 1..=2 {
            let at = SocketAddr::from((Ipv4Addr::from_bits(0x0af0_0000 + number), last));
            ipvs.family()
                .new_destination(&mut batch, &key, &Destination::new(at, 1));
        }
    }
    let made = ipvs.execute(&batch).unwrap();
    assert!(made.iter().all(|reply| reply.errno().is_none()));
    for _ in 0..3 {
        let began = Instant::now();
        let services = ipvs.services().unwrap();
        let dumped = began.elapsed();
        let began = Instant::now();
        let found: usize = services
            .iter()
            .map(|entry| ipvs.destinations(&entry.service.key).unwrap().len())
            .sum();
        let all = began.elapsed();
        let began = Instant::now();
        let few = services.iter().take(1_000);
        let again: usize = few
            .filter_map(|entry| {
                let key = &entry.service.key;
                ipvs.service(key).unwrap()?;
                Some(ipvs.destinations(key).unwrap().len())
            })
            .sum();
        println!(
            "{} services in {dumped:?}, {found} destinations in {all:?}, {again} of single services in {:?}",
            services.len(),
            began.elapsed()
        );
    }
}
