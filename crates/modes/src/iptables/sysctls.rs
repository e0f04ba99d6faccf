//! Kernel settings of iptables mode.

use crate::sysctl::row::{End, Need, Rows, SysctlRow};

/// Inputs from which iptables mode computes the values of its kernel settings.
pub(super) struct Context {
    pub(super) serves_localhost: bool,
}

pub(super) static ROWS: &Rows<Context> = &[
    // Makes the kernel route packets from 127.0.0.1 to pods, and accept the replies. Rules of the
    // mode drop other hosts' packets to 127.0.0.0/8 (kubernetes/kubernetes#90259).
    (
        SysctlRow {
            need: Need::Part {
                then: "NodePorts at 127.0.0.1 are not served, and everything else is",
            },
            end: End::IsSetBack {
                wanted: "1",
                by: "iptables mode for NodePorts at 127.0.0.1",
                default: 0,
            },
            ..SysctlRow::flagged(ROUTE_LOCALNET, "--iptables-localhost-nodeports=false")
        },
        |Context { serves_localhost }| serves_localhost.then_some(1),
    ),
];

const ROUTE_LOCALNET: &str = "proc/sys/net/ipv4/conf/all/route_localnet";

/// Reports whether `row` is the setting that NodePorts on 127.0.0.1 need.
pub(super) fn is_for_localhost(row: &SysctlRow) -> bool {
    row.path == ROUTE_LOCALNET
}
