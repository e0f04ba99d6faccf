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

/// Value of `--nodeport-addresses` that selects the node's primary IP of each family.
pub const PRIMARY: &str = "primary";
/// Value of `--nodeport-addresses` that selects loopback addresses.
const LOCALHOST: &str = "localhost";
const LOCALHOST_NETWORKS: [&str; 2] = ["127.0.0.0/8", "::1/128"];
/// Value of `--nodeport-addresses` that selects all addresses of the node.
const ALL: &str = "all";
const ALL_NETWORKS: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Allowed values of `--iptables-backend`.
const BACKENDS: [(&str, IptablesBackend); 3] = [
    ("auto", IptablesBackend::Auto),
    ("legacy", IptablesBackend::Legacy),
    ("nft", IptablesBackend::Nft),
];

/// Settings that apply to every mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// Address in `--bind-address`, which decides the primary IP family. If it is unspecified
    /// (`0.0.0.0`, `::`), the node's IP is the address in the Node object.
    pub bind_address: IpAddr,
    /// Method by which rules recognise traffic from pods of this node.
    pub detect_local: DetectLocal,
    /// Addresses that serve NodePorts (`--nodeport-addresses`).
    pub node_port_addresses: NodePortAddresses,
    /// True if the rules masquerade all traffic to cluster IPs. Used by iptables and IPVS mode.
    pub masquerade_all: bool,
    /// Index (0 to 31) of the packet mark's bit for masquerading, in iptables and IPVS mode.
    pub masquerade_bit: u8,
    /// Backend of the iptables programs, as `--iptables-backend` selects it.
    pub iptables_backend: IptablesBackend,
    /// Networks in which virtual servers belong to other programs (`--ipvs-exclude-cidrs`). IPVS
    /// mode keeps these virtual servers, and so does a mode that removes an earlier IPVS mode's
    /// entries.
    pub exclude_cidrs: Vec<IpNet>,
    /// Longest time between two comparisons of the kernel's entries with the wanted entries. Never
    /// zero.
    pub sync_period: Duration,
}

/// Value of `--iptables-backend`: a choice of iptables programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesBackend {
    /// The backend that the node already uses or, if it uses none yet, a backend that works on it.
    Auto,
    /// The legacy backend, with `iptables-legacy-restore` and its related programs.
    Legacy,
    /// The nft backend, with `iptables-nft-restore` and its related programs.
    Nft,
}

impl IptablesBackend {
    /// Returns the backend that `--iptables-backend` names, or `None` for `auto`.
    pub(super) fn forced(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Legacy => Some(Backend::Legacy),
            Self::Nft => Some(Backend::Nft),
        }
    }
}

impl Shared {
    /// Reads the settings from flags. `sync_period` belongs to the chosen mode. `node_ports`
    /// selects the NodePort addresses if `--nodeport-addresses` is empty.
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
            exclude_cidrs: {
                let items: Vec<&str> = items(&flags.ipvs_exclude_cidrs).collect();
                nets("ipvs-exclude-cidrs", &items)?
            },
            sync_period,
        })
    }

    /// Returns the packet mark for masquerading, in which only the bit `masquerade_bit` is set.
    pub(super) fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }

    /// Returns the address in `--bind-address` if it is a specific address of `family`, not
    /// `0.0.0.0` or `::`.
    pub(super) fn node_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let bind = self.bind_address;
        (!bind.is_unspecified() && IpFamily::of(bind) == family).then_some(bind)
    }
}

/// Checks that `number`, the value of `flag`, is the index of a packet mark's bit.
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

/// Parses `--nodeport-addresses`. Returns `None` if it is empty.
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
