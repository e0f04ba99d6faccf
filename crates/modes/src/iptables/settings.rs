//! Settings that only iptables mode has.

use flags::Flags;

use crate::shared::Shared;

/// Settings that only iptables mode has.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// True to serve NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// True if connection tracking treats TCP segments outside of the window as valid. One of the
    /// mode's rules depends on this setting.
    pub tcp_be_liberal: bool,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Self {
        Self {
            localhost_node_ports: flags.iptables_localhost_nodeports,
            tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        }
    }

    /// Reports whether the mode serves NodePorts on 127.0.0.1. Two conditions must hold:
    /// `--iptables-localhost-nodeports` is set, and `--nodeport-addresses` includes 127.0.0.1.
    pub(super) fn serves_localhost(&self, shared: &Shared) -> bool {
        self.localhost_node_ports && shared.node_port_addresses.has_localhost()
    }
}
