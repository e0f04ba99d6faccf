//! The nat table of iptables: its length, cheaply, and which Services it carries.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

/// `IPT_SO_GET_INFO` (`include/uapi/linux/netfilter_ipv4/ip_tables.h`).
const GET_INFO: libc::c_int = 64;

/// `struct ipt_getinfo`
#[repr(C)]
struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// The nat table of IPv4, of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Nat(OwnedFd);

impl Nat {
    /// Opens a raw socket, which is what carries the question.
    pub(crate) fn open() -> io::Result<Self> {
        let raw =
            Protocol::from_raw(rustix::net::RawProtocol::new(255).ok_or(io::ErrorKind::Other)?);
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(raw),
        )?;
        Ok(Self(socket))
    }

    /// How many rules there are, the ends of chains included; 0 if there is no table.
    #[allow(unsafe_code, reason = "no crate offers this socket option")]
    pub(crate) fn entries(&self) -> Result<u64> {
        let mut name = [0; 32];
        name[..3].copy_from_slice(b"nat");
        let mut info = Info {
            name,
            valid_hooks: 0,
            hook_entry: [0; 5],
            underflow: [0; 5],
            num_entries: 0,
            size: 0,
        };
        let mut length = u32::try_from(size_of::<Info>())?;
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, the size of `info`, into `info`,
        // which is plain numbers.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::IPPROTO_IP,
                GET_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            return Ok(info.num_entries.into());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(0),
            _ => Err(error).context("cannot read the length of the nat table"),
        }
    }
}

/// Who serves which address and port, of what `iptables-save -t nat` says.
pub(crate) fn servers(saved: &str) -> Result<BTreeMap<SocketAddrV4, BTreeSet<SocketAddrV4>>> {
    let mut chains: BTreeMap<&str, SocketAddrV4> = BTreeMap::new();
    let mut endpoints: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut targets: BTreeMap<&str, SocketAddrV4> = BTreeMap::new();
    for line in saved.lines() {
        let Some(rest) = line.strip_prefix("-A ") else {
            continue;
        };
        let Some((chain, rest)) = rest.split_once(' ') else {
            continue;
        };
        let word = |flag: &str| {
            let (_, after) = rest.split_once(flag)?;
            after.split_whitespace().next()
        };
        let jump = word("-j ").unwrap_or_default();
        let read = || format!("iptables-save: {line}");
        if chain == "KUBE-SERVICES" && jump.starts_with("KUBE-SVC-") {
            let address = word("-d ").with_context(read)?;
            let address = address.trim_end_matches("/32").parse().with_context(read)?;
            let port = word("--dport ")
                .with_context(read)?
                .parse()
                .with_context(read)?;
            chains.insert(jump, SocketAddrV4::new(address, port));
        } else if chain.starts_with("KUBE-SVC-") && jump.starts_with("KUBE-SEP-") {
            endpoints.entry(chain).or_default().push(jump);
        } else if chain.starts_with("KUBE-SEP-") && jump == "DNAT" {
            let to = word("--to-destination ").with_context(read)?;
            targets.insert(chain, to.parse().with_context(read)?);
        }
    }
    Ok(chains
        .into_iter()
        .map(|(chain, at)| {
            let reals = endpoints.get(chain).into_iter().flatten();
            (
                at,
                reals.filter_map(|sep| targets.get(sep).copied()).collect(),
            )
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_in_rules() {
        let saved = "*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.1.0/32 -p tcp -m comment --comment \"a b\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-A ! -s 10.128.0.0/9 -d 10.96.1.0/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-A -j KUBE-SEP-2
-A KUBE-SEP-1 -s 10.128.1.0/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -p tcp -m tcp -j DNAT --to-destination 10.128.1.0:8080
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.128.1.1:8080
COMMIT
";
        let servers = servers(saved).unwrap();
        let (at, reals) = servers.first_key_value().unwrap();
        assert_eq!((at.to_string(), reals.len()), ("10.96.1.0:80".into(), 2));
    }
}
