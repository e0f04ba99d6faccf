//! Prints the tracked TCP, UDP and SCTP flows of this network namespace, like `conntrack -L`.
//!
//! ```text
//! cargo build -p conntrack-netlink --example conntrack_list
//! sudo target/debug/examples/conntrack_list        # all flows
//! sudo target/debug/examples/conntrack_list 53     # flows to this port
//! ```

use std::error::Error;

use conntrack_netlink::{Conntrack, Flow, IpFamily, Tuple};

/// Status bit of a flow that has had packets in both directions (`IPS_SEEN_REPLY`).
const SEEN_REPLY: u32 = 1 << 1;
/// Status bit of a flow that the kernel does not evict early (`IPS_ASSURED`).
const ASSURED: u32 = 1 << 2;

fn main() -> Result<(), Box<dyn Error>> {
    let port: Option<u16> = std::env::args()
        .nth(1)
        .map(|text| text.parse())
        .transpose()?;
    let is_wanted = |flow: &Flow| port.is_none_or(|port| flow.original.destination.port() == port);
    let mut conntrack = Conntrack::open()?;
    for family in IpFamily::ALL {
        for flow in conntrack.find(family, None, is_wanted)?.flows {
            println!("{}", line(&flow));
        }
    }
    Ok(())
}

fn line(flow: &Flow) -> String {
    let (protocol, number) = (flow.protocol.lower(), flow.protocol.number());
    let status = |bit, is_set, text| {
        if (flow.status & bit != 0) == is_set {
            text
        } else {
            ""
        }
    };
    format!(
        "{protocol:<8} {number} {} {}{} {}mark={}",
        tuple(&flow.original),
        status(SEEN_REPLY, false, "[UNREPLIED] "),
        tuple(&flow.reply),
        status(ASSURED, true, "[ASSURED] "),
        flow.mark,
    )
}

fn tuple(of: &Tuple) -> String {
    let (from, to) = (of.source, of.destination);
    format!(
        "src={} dst={} sport={} dport={}",
        from.ip(),
        to.ip(),
        from.port(),
        to.port()
    )
}
