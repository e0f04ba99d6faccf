//! Settings that apply to every mode.

use std::net::IpAddr;
use std::time::Duration;

use flags::Flags;
use flags::nets::{items, nets};
use flags::unusable_flag::UnusableFlag;
use flags::words::word;
use ipnet::IpNet;
use iptables::Backend;
use proxy::{IpFamily, NodePortAddresses};

use super::detect_local::DetectLocal;

/// Value of `--nodeport-addresses` for the node's own IP.
pub const PRIMARY: &str = "primary";
/// Value of `--nodeport-addresses` for loopback addresses.
const LOCALHOST: &str = "localhost";
const LOCALHOST_NETWORKS: [&str; 2] = ["127.0.0.0/8", "::1/128"];
/// Value of `--nodeport-addresses` for all addresses of the node.
const ALL: &str = "all";
const ALL_NETWORKS: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Values of `--iptables-backend`.
const BACKENDS: [(&str, IptablesBackend); 3] = [
    ("auto", IptablesBackend::Auto),
    ("legacy", IptablesBackend::Legacy),
    ("nft", IptablesBackend::Nft),
];

/// Settings that apply to every mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// Address in `--bind-address`. Its family is the primary family. If it is unspecified
    /// (`0.0.0.0`, `::`), the node's IP comes from its Node object.
    pub bind_address: IpAddr,
    /// Detection of traffic from this node's pods.
    pub detect_local: DetectLocal,
    /// Addresses that serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// True if all traffic to cluster IPs is masqueraded, in IPVS and iptables mode.
    pub masquerade_all: bool,
    /// Number of the packet mark bit for masquerading, 0 to 31, in IPVS and iptables mode.
    pub masquerade_bit: u8,
    /// iptables programs to use.
    pub iptables_backend: IptablesBackend,
    /// Networks in which virtual servers of other programs stay, for IPVS mode and for the mode
    /// that cleans up after it.
    pub exclude_cidrs: Vec<IpNet>,
    /// Longest time between two comparisons with the kernel, more than zero.
    pub sync_period: Duration,
}

/// Value of `--iptables-backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesBackend {
    /// The backend that the node already uses, else one that works.
    Auto,
    /// The legacy backend, with `iptables-legacy-restore` and related programs.
    Legacy,
    /// The nft backend, with `iptables-nft-restore` and related programs.
    Nft,
}

impl IptablesBackend {
    /// Returns the backend that the flag names, or `None` for `auto`.
    pub(super) fn forced(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Legacy => Some(Backend::Legacy),
            Self::Nft => Some(Backend::Nft),
        }
    }
}

impl Shared {
    /// Reads the flags. `sync_period` belongs to the chosen mode.
    ///
    /// Without `--nodeport-addresses`, NodePorts are served at `node_ports`.
    pub(super) fn read(
        flags: &Flags,
        sync_period: Duration,
        node_ports: NodePortAddresses,
    ) -> Result<Self, UnusableFlag> {
        Ok(Self {
            bind_address: flags.bind_address,
            detect_local: DetectLocal::read(flags)?,
            node_port_addresses: node_port_addresses(flags)?.unwrap_or(node_ports),
            masquerade_all: flags.masquerade_all,
            masquerade_bit: mark_bit("iptables-masquerade-bit", flags.iptables_masquerade_bit)?,
            iptables_backend: word("iptables-backend", &flags.iptables_backend, &BACKENDS)?,
            exclude_cidrs: nets("ipvs-exclude-cidrs", &flags.ipvs_exclude_cidrs)?,
            sync_period,
        })
    }

    /// Returns the mark bit for masquerading as a mask.
    pub(super) fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }

    /// Returns `--bind-address` if it names an address of this family.
    pub(super) fn node_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let bind = self.bind_address;
        (!bind.is_unspecified() && IpFamily::of(bind) == family).then_some(bind)
    }
}

/// Parses the number of a mark bit in `flag`.
pub(super) fn mark_bit(flag: &'static str, number: i32) -> Result<u8, UnusableFlag> {
    match u8::try_from(number) {
        Ok(bit @ 0..=31) => Ok(bit),
        _ => Err(UnusableFlag::new(
            flag,
            &number.to_string(),
            "a packet mark has the bits 0 to 31",
        )),
    }
}

/// Parses `--nodeport-addresses`. Returns `None` if the flag is empty.
fn node_port_addresses(flags: &Flags) -> Result<Option<NodePortAddresses>, UnusableFlag> {
    let given: Vec<&str> = items(&flags.nodeport_addresses).collect();
    if given.is_empty() {
        return Ok(None);
    }
    let has_primary = given.contains(&PRIMARY);
    let networks = given.iter().filter(|item| **item != PRIMARY);
    let networks = networks.flat_map(|item| match *item {
        LOCALHOST => LOCALHOST_NETWORKS.to_vec(),
        ALL => ALL_NETWORKS.to_vec(),
        network => vec![network],
    });
    let networks: Vec<&str> = networks.collect();
    let networks = nets("nodeport-addresses", &networks).map_err(|error| UnusableFlag {
        advice: format!(
            "{}, or one of the words {PRIMARY}, {LOCALHOST} and {ALL}",
            error.advice
        ),
        ..error
    })?;
    Ok(Some(match (has_primary, networks.is_empty()) {
        (true, true) => NodePortAddresses::Primary,
        (true, false) => NodePortAddresses::PrimaryOrWithin(networks),
        (false, _) => NodePortAddresses::Within(networks),
    }))
}
