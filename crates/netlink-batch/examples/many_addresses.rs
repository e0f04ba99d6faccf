//! Adds 1,000 addresses to the loopback device with one batch, and removes them again.
//!
//! ```text
//! cargo build -p netlink-batch --example many_addresses
//! sudo unshare --net target/debug/examples/many_addresses
//! ```

use std::net::Ipv4Addr;
use std::time::Instant;

use netlink_batch::{Batch, Connection, Error, NLM_F_CREATE, NLM_F_EXCL, Protocol, Reply};

// Constants of linux/rtnetlink.h and linux/if_addr.h.
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;
/// Index of the loopback device.
const LOOPBACK: u32 = 1;

fn main() -> Result<(), Error> {
    let mut connection = Connection::open(Protocol::Route)?;
    for (name, kind, flags) in [
        ("added", RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL),
        ("removed", RTM_DELADDR, 0),
    ] {
        let mut batch = Batch::new();
        for number in 0..1_000 {
            batch.push(kind, flags, |message| {
                // struct ifaddrmsg: family, prefix length, flags, scope, index of the device.
                message.bytes(&[AF_INET, 32, 0, 0]);
                message.bytes(&LOOPBACK.to_ne_bytes());
                let first = u32::from(Ipv4Addr::new(198, 18, 0, 1));
                message.attr(IFA_LOCAL, &Ipv4Addr::from(first + number).octets());
            });
        }
        let began = Instant::now();
        let replies = connection.execute(&batch)?;
        let took = began.elapsed();
        let done = replies.iter().filter(|reply| **reply == Reply::Done);
        println!("{name} {} addresses in {took:.1?}", done.count());
        // Finds the first failed reply. Its index is that of the message.
        let failed = replies
            .iter()
            .enumerate()
            .find(|(_, reply)| **reply != Reply::Done);
        if let Some((number, reply)) = failed {
            println!("address {number}: {reply:?}");
        }
    }
    Ok(())
}
