//! Settings that only userspace mode has, read from flags.

use std::time::Duration;

use flags::Flags;
use flags::unusable_flag::UnusableFlag;

use crate::shared::Shared;

/// Settings that only userspace mode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// True if `--iptables-localhost-nodeports` asks for NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Idle time after which a UDP flow ends: no datagram in either direction.
    pub udp_timeout: Duration,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let udp_timeout = flags.udp_timeout;
        if udp_timeout.is_zero() {
            return Err(UnusableFlag::new(
                "udp-timeout",
                "0s",
                "set more than 0, such as 250ms, so that replies arrive",
            ));
        }
        Ok(Self {
            localhost_node_ports: flags.iptables_localhost_nodeports,
            udp_timeout,
        })
    }

    /// Reports whether the mode serves NodePorts on 127.0.0.1: the flag
    /// `--iptables-localhost-nodeports` is set, and `--nodeport-addresses` includes 127.0.0.1.
    pub(super) fn serves_localhost(&self, shared: &Shared) -> bool {
        self.localhost_node_ports && shared.node_port_addresses.has_localhost()
    }
}
