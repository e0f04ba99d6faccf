//! What iptables mode alone reads of the flags.

use flags::Flags;

use crate::shared::Shared;

/// What iptables mode alone reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Whether it is to serve NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Whether connection tracking is to let TCP segments outside of the window pass: one of the
    /// mode's rules depends on it.
    pub tcp_be_liberal: bool,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Self {
        Self {
            localhost_node_ports: flags.iptables_localhost_nodeports,
            tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        }
    }

    /// Whether it serves NodePorts on 127.0.0.1: it is asked to, and that address serves any.
    pub(super) fn serves_localhost(&self, shared: &Shared) -> bool {
        self.localhost_node_ports && shared.node_port_addresses.has_localhost()
    }
}
