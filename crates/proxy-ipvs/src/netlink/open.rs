//! Opens the kernel interfaces of IPVS mode: loads IPVS, and checks that the kernel and the node
//! have all required features.

use std::time::Duration;

use ipset_netlink::Ipset;
use iptables::Program;
use proxy::IpFamily;

use super::error::OpenError;
use super::native;
use super::servers::Servers;

/// Timeout for one run of `modprobe ip_vs`.
const MODPROBE_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn nftables_missing(error: &nftables_netlink::Error) -> OpenError {
    match error {
        nftables_netlink::Error::NoNftables => OpenError::NoNftables(error.to_string()),
        error => OpenError::Nftables(error.to_string()),
    }
}

/// Checks that the kernel has ipset. The check may make the kernel load the module.
///
/// # Errors
///
/// Fails if the kernel lacks ipset, or if the process may not use it.
pub fn check_ipset() -> Result<(), OpenError> {
    Ipset::open().map(drop).map_err(OpenError::Ipset)
}

/// Checks that the kernel has nftables tables for IPv4 or IPv6. The check may make the kernel load
/// the module, but creates nothing.
///
/// # Errors
///
/// Fails if the kernel lacks nftables, or if the process may not use it.
pub fn check_nftables() -> Result<(), OpenError> {
    let opened = nftables_netlink::Nftables::open();
    let mut nftables = opened.map_err(|error| nftables_missing(&error))?;
    if IpFamily::ALL.map(|family| native::lacks_tables(&mut nftables, family)) == [true; 2] {
        let why = "the kernel's nf_tables has no tables for IPv4 and IPv6 (CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6)";
        return Err(OpenError::NoNftables(why.to_owned()));
    }
    Ok(())
}

/// Tests whether nftables supports the shim (the rules beside IPVS) of an IP family, in the network
/// namespace of the calling thread. Leaves nothing behind in the kernel.
///
/// # Errors
///
/// Fails if the kernel refuses an object. The error names the object and the reason.
pub fn probe_nftables(family: IpFamily) -> Result<(), OpenError> {
    native::probe(family).map_err(OpenError::Nftables)
}

/// Loads IPVS as [`open`](super::NetlinkKernel::open) does, and sets the timeouts of idle
/// connections as [`set_timeouts`](super::NetlinkKernel::set_timeouts) does. Needs no iptables and
/// writes no rules.
///
/// # Errors
///
/// Fails for the same reasons as [`open`](super::NetlinkKernel::open) and
/// [`set_timeouts`](super::NetlinkKernel::set_timeouts).
pub fn prepare(tcp: Duration, tcp_fin: Duration, udp: Duration) -> Result<(), OpenError> {
    let mut servers = open_loading(IpFamily::V4)?;
    if [tcp, tcp_fin, udp] == [Duration::ZERO; 3] {
        return Ok(());
    }
    let set = servers.set_timeouts(tcp, tcp_fin, udp);
    set.map_err(OpenError::Ipvs)
}

/// Opens IPVS. If the kernel does not load the module itself, runs `modprobe ip_vs` once.
pub(super) fn open_loading(family: IpFamily) -> Result<Servers, OpenError> {
    match Servers::open(family) {
        Err(ipvs_netlink::Error::FamilyMissing) => {
            let tried = modprobe_ip_vs();
            Servers::open(family).map_err(|error| match error {
                ipvs_netlink::Error::FamilyMissing => OpenError::NoIpvs { tried },
                error => OpenError::Ipvs(error),
            })
        }
        opened => opened.map_err(OpenError::Ipvs),
    }
}

/// Runs `modprobe ip_vs`, and returns the result as words for the operator.
fn modprobe_ip_vs() -> String {
    let Some(modprobe) = Program::find("modprobe") else {
        return "there is no `modprobe` here".to_owned();
    };
    match modprobe.run(&["ip_vs"], "", MODPROBE_LIMIT) {
        Ok(finished) if finished.status.success() => "`modprobe ip_vs` did not help".to_owned(),
        Ok(finished) => format!("`modprobe ip_vs` said: {}", finished.stderr.trim()),
        Err(error) => format!("`modprobe ip_vs` could not be run: {error}"),
    }
}
