//! Prints the virtual servers of this network namespace, as `ipvsadm -Ln` does.
//!
//! ```text
//! cargo build -p ipvs-netlink --example ipvsadm_list && sudo target/debug/examples/ipvsadm_list
//! ```

use std::net::Ipv4Addr;

use ipvs_netlink::{DestinationEntry, Error, Flags, IpFamily, Ipvs, Service};

fn main() -> Result<(), Error> {
    let mut ipvs = Ipvs::open()?;
    let info = ipvs.info()?;
    let [_, major, minor, patch] = info.version.to_be_bytes();
    println!(
        "IP Virtual Server version {major}.{minor}.{patch} (size={})",
        info.table_size
    );
    println!("Prot LocalAddress:Port Scheduler Flags");
    println!("  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn");
    for entry in ipvs.services()? {
        println!("{}", line(&entry.service));
        for entry in ipvs.destinations(&entry.service.key)? {
            let DestinationEntry {
                destination: to,
                active,
                inactive,
                ..
            } = entry;
            let (at, forward) = (to.key.to_string(), format!("{:?}", to.forward));
            println!(
                "  -> {at:<28} {forward:<7} {:<6} {active:<10} {inactive:<10}",
                to.weight
            );
        }
    }
    Ok(())
}

/// Returns the output line of a virtual server: `TCP 192.0.2.1:80 rr persistent 300`.
fn line(service: &Service) -> String {
    let key = service.key.to_string();
    let (protocol, rest) = key.split_once(' ').unwrap_or((&key, ""));
    let mut words = vec![format!("{protocol:<4} {rest} {}", service.scheduler)];
    if service.flags.contains(Flags::PERSISTENT) {
        words.push(format!("persistent {}", service.timeout));
        let family = service.key.family();
        if service.netmask != Service::single_client(family) {
            words.push(match family {
                IpFamily::V4 => format!("mask {}", Ipv4Addr::from(service.netmask)),
                IpFamily::V6 => format!("mask {}", service.netmask),
            });
        }
    }
    if service.flags.contains(Flags::ONE_PACKET) {
        words.push("ops".to_owned());
    }
    words.join(" ")
}
