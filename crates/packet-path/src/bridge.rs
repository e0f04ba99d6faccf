//! Bridges that pass their frames to netfilter as packets (`br_netfilter`).

use crate::kernel::{Kernel, ReadFailure};
use crate::packet::Packet;

/// Reports whether the packet enters through a bridge whose packets the kernel passes to
/// netfilter's rules.
pub(crate) fn comes_by_port(packet: &Packet, kernel: &dyn Kernel) -> Result<bool, ReadFailure> {
    let Some(iif) = &packet.iif else {
        return Ok(false);
    };
    let setting = if packet.source.is_ipv4() {
        "net/bridge/bridge-nf-call-iptables"
    } else {
        "net/bridge/bridge-nf-call-ip6tables"
    };
    let calls = kernel.setting(setting)?.is_some_and(|value| value == "1");
    Ok(calls && kernel.is_bridge(iif)?)
}
