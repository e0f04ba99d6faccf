//! What every mode reads of the flags.

use std::net::IpAddr;
use std::time::Duration;

use flags::Flags;
use flags::nets::{items, nets};
use flags::unusable::UnusableFlag;
use flags::words::word;
use ipnet::IpNet;
use iptables::Backend;
use proxy::{IpFamily, NodePortAddresses};

use super::detect_local::DetectLocal;

/// The word of `--nodeport-addresses` for the node's own IP.
pub const PRIMARY: &str = "primary";
/// The word for loopback addresses.
const LOCALHOST: &str = "localhost";
const LOCALHOST_NETWORKS: [&str; 2] = ["127.0.0.0/8", "::1/128"];
/// The word for all addresses of the node.
const ALL: &str = "all";
const ALL_NETWORKS: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The words of `--iptables-backend`.
const BACKENDS: [(&str, IptablesBackend); 3] = [
    ("auto", IptablesBackend::Auto),
    ("legacy", IptablesBackend::Legacy),
    ("nft", IptablesBackend::Nft),
];

/// What every mode reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// `--bind-address`; unspecified (`0.0.0.0`, `::`) if the node's IP comes from its Node object.
    /// Its family is the primary one.
    pub bind_address: IpAddr,
    /// How traffic of this node's pods is told apart.
    pub detect_local: DetectLocal,
    /// Which addresses serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// Whether all traffic to cluster IPs is masqueraded, by ipvs and iptables mode.
    pub masquerade_all: bool,
    /// The bit of the packet mark that says "masquerade", 0 to 31, in the same modes.
    pub masquerade_bit: u8,
    /// Which iptables commands to use.
    pub iptables_backend: IptablesBackend,
    /// Networks in which virtual servers of others are left alone, by IPVS mode and by whichever
    /// clears up after it.
    pub exclude_cidrs: Vec<IpNet>,
    /// The longest time between two comparisons with the kernel, more than zero.
    pub sync_period: Duration,
}

/// `--iptables-backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesBackend {
    /// What the node already uses, else what works.
    Auto,
    /// `iptables-legacy-restore` and its siblings.
    Legacy,
    /// `iptables-nft-restore` and its siblings.
    Nft,
}

impl IptablesBackend {
    /// The one to use, if it is not to be found out.
    pub(super) fn forced(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Legacy => Some(Backend::Legacy),
            Self::Nft => Some(Backend::Nft),
        }
    }
}

impl Shared {
    /// Reads the flags; `sync_period` is that of the mode that is chosen.
    ///
    /// NodePorts are served at `node_ports` where nothing is given.
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

    /// The bit of the packet mark that says "masquerade", as a mask.
    pub(super) fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }

    /// `--bind-address`, if it names this node's address of a family.
    pub(super) fn node_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let bind = self.bind_address;
        (!bind.is_unspecified() && IpFamily::of(bind) == family).then_some(bind)
    }
}

/// A bit of a packet mark, of which `flag` gives the number.
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

/// `None` if nothing is given.
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
