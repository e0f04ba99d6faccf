//! The nat tables of iptables: their length, cheaply, and which Services that of IPv4 carries.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES` (`include/uapi/linux/netfilter_ipv4/ip_tables.h`).
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// The name of the table, with which both questions begin.
const NAME: [u8; 32] = {
    let mut name = [0; 32];
    name[0] = b'n';
    name[1] = b'a';
    name[2] = b't';
    name
};
/// `struct ipt_getinfo`: name, hooks, the number of rules, and last their bytes.
const INFO: usize = 84;
/// `struct ipt_get_entries` up to the entries: name, bytes, padding.
const ENTRIES: usize = 40;

/// Entries of a table without rules: its own four chains, and its end.
const BARE: u32 = 5;

/// The nat tables of the network namespace of the thread that opened them.
#[derive(Debug)]
pub(crate) struct Nat {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Nat {
    /// Opens raw sockets, which are what carries the questions.
    pub(crate) fn open() -> io::Result<Self> {
        let raw =
            Protocol::from_raw(rustix::net::RawProtocol::new(255).ok_or(io::ErrorKind::Other)?);
        let socket = |family| socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(raw));
        Ok(Self {
            v4: socket(AddressFamily::INET)?,
            v6: socket(AddressFamily::INET6)?,
        })
    }

    /// Whether IPv6 has rules, too, where IPv4 has any.
    pub(crate) fn is_in_both(&self) -> Result<bool> {
        let has_rules = |family| Ok::<_, anyhow::Error>(size(family)?.0 > BARE);
        Ok(!has_rules((&self.v4, libc::IPPROTO_IP))? || has_rules((&self.v6, libc::IPPROTO_IPV6))?)
    }

    /// How many rules there are, the ends of chains included; 0 if there is no table.
    pub(crate) fn entries(&self) -> Result<u64> {
        Ok(size(self.v4())?.0.into())
    }

    /// Whether the rules name all of these addresses and not that one. An address is one aligned number in a rule, as a
    /// match or as the target of a DNAT; no text is made of the rules.
    pub(crate) fn names(&self, all: &[Ipv4Addr], but: Option<Ipv4Addr>) -> Result<bool> {
        let (entries, size) = size(self.v4())?;
        if entries == 0 {
            return Ok(false);
        }
        let mut answer = [&NAME[..], &size.to_ne_bytes()].concat();
        answer.resize(ENTRIES + size as usize, 0);
        if let Err(error) = ask(self.v4(), GET_ENTRIES, &mut answer) {
            return match error.raw_os_error() {
                // It was replaced since its size was asked for.
                Some(libc::EAGAIN | libc::EINVAL) => Ok(false),
                _ => Err(error).context("cannot read the nat table"),
            };
        }
        let mut missing: BTreeSet<[u8; 4]> = all.iter().map(Ipv4Addr::octets).collect();
        let but = but.map(|address| address.octets());
        for word in answer.get(ENTRIES..).unwrap_or_default().as_chunks::<4>().0 {
            if Some(*word) == but {
                return Ok(false);
            }
            // Addresses of the objects begin with 10, which spares most look-ups.
            if word[0] == 10 {
                missing.remove(word);
            }
        }
        Ok(missing.is_empty())
    }

    fn v4(&self) -> (&OwnedFd, libc::c_int) {
        (&self.v4, libc::IPPROTO_IP)
    }
}

/// The number of rules, and their bytes.
fn size(family: (&OwnedFd, libc::c_int)) -> Result<(u32, u32)> {
    let mut info = NAME.to_vec();
    info.resize(INFO, 0);
    match ask(family, GET_INFO, &mut info) {
        Ok(()) => {}
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok((0, 0)),
                _ => Err(error).context("cannot read the length of the nat table"),
            };
        }
    }
    match info.as_slice() {
        [.., e0, e1, e2, e3, s0, s1, s2, s3] => Ok((
            u32::from_ne_bytes([*e0, *e1, *e2, *e3]),
            u32::from_ne_bytes([*s0, *s1, *s2, *s3]),
        )),
        _ => Ok((0, 0)),
    }
}

#[allow(unsafe_code, reason = "no crate offers these socket options")]
fn ask(
    (socket, level): (&OwnedFd, libc::c_int),
    option: libc::c_int,
    answer: &mut [u8],
) -> io::Result<()> {
    let mut length = u32::try_from(answer.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the kernel reads and writes at most `length` bytes of `answer`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            answer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
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
