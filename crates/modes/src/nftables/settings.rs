//! Settings that only nftables mode has, read from flags.

use std::time::Duration;

use flags::Flags;
use flags::gates::{Gates, LOCALHOST_NODE_PORTS};
use flags::unusable_flag::UnusableFlag;
use flags::words::word;
use proxy::IpFamily;
use proxy_nftables::{Layout, LocalhostNodePorts, ProbeError};

use crate::shared::{Shared, mark_bit};

/// Layouts of the mode's nftables table, with their names in `--nftables-layout`.
pub(super) const LAYOUTS: [(&str, Layout); 2] =
    [("upstream", Layout::Upstream), ("flat", Layout::Flat)];

/// Allowed values of `--nftables-layout`.
const CHOICES: [(&str, LayoutChoice); 3] = [
    ("auto", LayoutChoice::Auto),
    ("upstream", LayoutChoice::Always(Layout::Upstream)),
    ("flat", LayoutChoice::Always(Layout::Flat)),
];

/// Value of `--nftables-layout`: the layout of the mode's nftables table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutChoice {
    /// The number of Service ports decides the layout
    /// ([`LayoutSizes::AUTO`](proxy_nftables::LayoutSizes)). On a kernel that lacks support for the
    /// layout `flat`, the table always has upstream's.
    Auto,
    /// The table always has this layout, for any number of Service ports.
    Always(Layout),
}

/// Settings that only nftables mode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// True if the rules masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Index of the packet mark's bit for masquerading: 0 to 31.
    pub masquerade_bit: u8,
    /// Choice of the table's layout.
    pub layout: LayoutChoice,
    /// True if the feature gate for NodePorts on localhost is on. Otherwise, the mode's rules
    /// ignore such NodePorts.
    pub localhost_node_ports: bool,
}

impl LayoutChoice {
    /// Returns the layout that the mode gives to a new table.
    pub(super) fn first(self) -> Layout {
        match self {
            Self::Auto => Layout::Upstream,
            Self::Always(layout) => layout,
        }
    }
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        Ok(Self {
            masquerade_all: flags.nftables_masquerade_all,
            masquerade_bit: mark_bit("nftables-masquerade-bit", flags.nftables_masquerade_bit)?,
            layout: word("nftables-layout", &flags.nftables_layout, &CHOICES)?,
            localhost_node_ports: Gates::new(flags.feature_gates.iter().cloned())
                .is_on(LOCALHOST_NODE_PORTS),
        })
    }

    /// Returns the policy for NodePorts on localhost in `family`. A relay serves them if the
    /// feature gate is on, and `--nodeport-addresses` names a loopback network (KEP-6032).
    pub fn localhost(&self, shared: &Shared, family: IpFamily) -> LocalhostNodePorts {
        if !self.localhost_node_ports {
            LocalhostNodePorts::Off
        } else if shared.node_port_addresses.names_loopback(family) {
            LocalhostNodePorts::Served
        } else {
            LocalhostNodePorts::Refused
        }
    }

    /// Tests whether the kernel accepts this mode's rules in an IP family. Writes nothing. The
    /// kernel may load modules.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a rule, or if the process may not use nf\_tables.
    pub fn probe(&self, shared: &Shared, family: IpFamily) -> Result<(), ProbeError> {
        proxy_nftables::probe(family, self.layout.first(), self.localhost(shared, family))
    }

    /// Returns the packet mark for masquerading, in which only the bit `masquerade_bit` is set.
    pub(super) fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }
}

/// Copies values of iptables mode's flags into the settings of nftables mode, for a daemon without
/// a configuration file. As in upstream, no flag sets the mark bit of nftables mode.
pub(super) fn take_flags(flags: &mut Flags) {
    flags.nftables_masquerade_all = flags.masquerade_all;
    flags.nftables_sync_period = flags.iptables_sync_period;
    flags.nftables_min_sync_period = flags.iptables_min_sync_period;
}

/// Returns the longest and the shortest time between two syncs, each with the name of its flag or
/// configuration field.
pub(super) fn periods(flags: &Flags) -> [(&'static str, Duration); 2] {
    let (sync, min_sync) = if flags.config.is_empty() {
        ("iptables-sync-period", "iptables-min-sync-period")
    } else {
        ("nftables-sync-period", "nftables-min-sync-period")
    };
    [
        (sync, flags.nftables_sync_period),
        (min_sync, flags.nftables_min_sync_period),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{ProxyMode, Settings as All};

    #[test]
    fn localhost_node_ports_need_the_flag_and_the_feature_gate() {
        use LocalhostNodePorts::{Off, Refused, Served};
        let localhost = |gate: Option<bool>, addresses: &str| {
            let gates = gate.map(|on| (LOCALHOST_NODE_PORTS.to_owned(), on));
            let flags = Flags {
                feature_gates: gates.into_iter().collect(),
                nodeport_addresses: vec![addresses.to_owned()],
                ..Flags::defaults()
            };
            let mode = ProxyMode::Nftables;
            let all = All::read(&flags, mode, &mode.periods(&flags).unwrap()).unwrap();
            IpFamily::ALL.map(|family| all.nftables.localhost(&all.shared, family))
        };
        for gate in [None, Some(false)] {
            assert_eq!(localhost(gate, "primary,localhost"), [Off, Off]);
        }
        for (addresses, what) in [
            ("", [Refused, Refused]),
            ("primary", [Refused, Refused]),
            ("all", [Refused, Refused]),
            ("0.0.0.0/0", [Refused, Refused]),
            ("primary,localhost", [Served, Served]),
            ("all,localhost", [Served, Served]),
            ("primary,127.0.0.1/32", [Served, Refused]),
            ("0.0.0.0/0,127.0.0.0/8", [Served, Refused]),
            ("::1/128", [Refused, Served]),
            ("126.0.0.0/7", [Refused, Refused]),
        ] {
            assert_eq!(localhost(Some(true), addresses), what, "{addresses}");
        }
    }
}
