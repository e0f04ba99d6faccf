//! Settings that only iptables mode has, read from flags.

use flags::Flags;

use crate::shared::Shared;

/// Settings that only iptables mode has.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// True if `--iptables-localhost-nodeports` asks for NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Value of `--conntrack-tcp-be-liberal`. If true, connection tracking accepts TCP segments
    /// outside of the window, so the mode omits its rule against INVALID packets.
    pub tcp_be_liberal: bool,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Self {
        Self {
            localhost_node_ports: flags.iptables_localhost_nodeports,
            tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        }
    }

    /// Reports whether the mode serves NodePorts on 127.0.0.1: the flag
    /// `--iptables-localhost-nodeports` is set, and `--nodeport-addresses` includes 127.0.0.1.
    pub(super) fn serves_localhost(&self, shared: &Shared) -> bool {
        self.localhost_node_ports && shared.node_port_addresses.has_localhost()
    }
}
