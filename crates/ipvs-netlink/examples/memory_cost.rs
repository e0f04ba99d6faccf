//! Measures the kernel memory of virtual servers with very many destinations.
//!
//! ```text
//! cargo build -p ipvs-netlink -p lab --example memory_cost --bin lab
//! target/debug/lab run --timeout 600 -- target/debug/examples/memory_cost 16 18750
//! ```
//!
//! The arguments are the number of virtual servers, and the number of destinations of each. The
//! program prints the growth of `Slab`, `Percpu` and `VmallocUsed` in /proc/meminfo. The program
//! flushes IPVS before and after the measurement. The result depends on the number of CPUs, because
//! a destination has counters for each CPU.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::env::args;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ipvs_netlink::{Destination, DestinationKey, Ipvs, Name, Protocol, Service, ServiceKey};
use netlink_batch::{Batch, Reply};

/// Number of netlink messages in a batch.
const PIECE: u32 = 512;

fn main() -> Result<()> {
    let mut numbers = args().skip(1).map(|text| text.parse::<u32>());
    let mut next = || {
        numbers
            .next()
            .context("give two numbers")?
            .context("no number")
    };
    let (servers, destinations) = (next()?, next()?);
    let mut ipvs = Ipvs::open()?;
    ipvs.flush()?;
    let before = memory()?;
    let began = Instant::now();
    for server in 0..servers {
        let address = Ipv4Addr::from(0x7f10_0000 + server);
        let key = ServiceKey::new(Protocol::TCP, address.into(), 80);
        let mut batch = Batch::new();
        ipvs.family()
            .new_service(&mut batch, &Service::new(key, Name::RR));
        send(&mut ipvs, &mut batch)?;
        for first in (0..destinations).step_by(PIECE as usize) {
            for number in first..destinations.min(first + PIECE) {
                let address = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number));
                let target = DestinationKey::from(SocketAddr::new(address, 8080));
                let family = ipvs.family();
                family.new_destination(&mut batch, &key, &Destination::new(target, 1));
            }
            send(&mut ipvs, &mut batch)?;
        }
    }
    let took = began.elapsed();
    let grown = memory()?.saturating_sub(before);
    let all = u64::from(servers) * u64::from(destinations);
    println!(
        "{all} destinations of {servers} virtual servers: {} MB of the kernel, {} bytes each, made in {took:.1?}",
        grown / 1_000_000,
        grown / all.max(1)
    );
    Ok(ipvs.flush()?)
}

fn send(ipvs: &mut Ipvs, batch: &mut Batch) -> Result<()> {
    let replies = ipvs.execute(batch)?;
    let refused = replies.iter().find(|reply| **reply != Reply::Done);
    ensure!(refused.is_none(), "{refused:?}");
    batch.clear();
    Ok(())
}

/// Returns the size of the kernel's own memory (slab, per-CPU and vmalloc), in bytes.
fn memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kinds = ["Slab:", "Percpu:", "VmallocUsed:"];
    let lines = text
        .lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    let sizes = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(sizes.sum::<u64>() * 1024)
}
