//! Kernel settings of IPVS mode, in writing order, each with its reason.

use crate::sysctl::row::{End, Rows, SysctlRow};

/// Inputs from which IPVS mode computes the values of its kernel settings.
pub(super) struct Context {
    /// Major and minor version of the kernel.
    pub(super) kernel: (u32, u32),
    pub(super) strict_arp: bool,
}

pub(super) static ROWS: &Rows<Context> = &[
    // Makes connection tracking follow IPVS connections. Masquerading needs this.
    (SysctlRow::needed("proc/sys/net/ipv4/vs/conntrack"), |_| {
        Some(1)
    }),
    // Before Linux 5.9, this setting avoids a delay of one second for connections whose source port
    // is reused (kubernetes/kubernetes#70747). Since 5.9, the kernel's default needs no change
    // (kubernetes/kubernetes#93297). Before 4.1, the setting does not exist.
    (
        SysctlRow::comfort("proc/sys/net/ipv4/vs/conn_reuse_mode"),
        |Context { kernel, .. }| ((4, 1) <= *kernel && *kernel < (5, 9)).then_some(0),
    ),
    // Makes IPVS end a connection to a removed destination at its next packet, instead of dropping
    // its packets until a timeout.
    (
        SysctlRow::comfort("proc/sys/net/ipv4/vs/expire_nodest_conn"),
        |_| Some(1),
    ),
    // Makes session affinity choose another destination while the client's own drains
    // (kubernetes/kubernetes#71809).
    (
        SysctlRow::comfort("proc/sys/net/ipv4/vs/expire_quiescent_template"),
        |_| Some(1),
    ),
    // Makes the kernel forward packets for Services to pods.
    (SysctlRow::needed("proc/sys/net/ipv4/ip_forward"), |_| {
        Some(1)
    }),
    // Makes the node answer an ARP request only for addresses of the interface that received it.
    // Otherwise, all nodes would answer for service addresses.
    (
        of_strict_arp("proc/sys/net/ipv4/conf/all/arp_ignore", "1"),
        |Context { strict_arp, .. }| strict_arp.then_some(1),
    ),
    (
        of_strict_arp("proc/sys/net/ipv4/conf/all/arp_announce", "2"),
        |Context { strict_arp, .. }| strict_arp.then_some(2),
    ),
];

const fn of_strict_arp(path: &'static str, wanted: &'static str) -> SysctlRow {
    SysctlRow {
        end: End::IsSetBack {
            wanted,
            by: "ipvs mode with strictARP",
            default: 0,
        },
        ..SysctlRow::needed(path)
    }
}
