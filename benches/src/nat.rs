//! The nat tables of iptables: their length, cheaply, and which Services that of IPv4 carries.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result};
use iptables::{LegacyTable, LegacyTables};
use proxy::IpFamily;

/// The nat tables of the network namespace of the thread that opened them.
#[derive(Debug)]
pub(crate) struct Nat {
    v4: LegacyTables,
    v6: LegacyTables,
}

impl Nat {
    /// Opens a socket for each family.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            v4: LegacyTables::open(IpFamily::V4)?,
            v6: LegacyTables::open(IpFamily::V6)?,
        })
    }

    /// Whether IPv6 has rules, too, where IPv4 has any.
    pub(crate) fn is_in_both(&self) -> Result<bool> {
        let has_rules = |tables| {
            Ok::<_, anyhow::Error>(table(tables)?.is_some_and(|table| !table.is_untouched()))
        };
        Ok(!has_rules(&self.v4)? || has_rules(&self.v6)?)
    }

    /// How many rules there are, the ends of chains included; 0 if there is no table.
    pub(crate) fn entries(&self) -> Result<u64> {
        Ok(table(&self.v4)?.map_or(0, |table| table.entries.into()))
    }

    /// Whether the rules name all of these addresses and not that one. An address is one aligned number in a rule, as a
    /// match or as the target of a DNAT; no text is made of the rules.
    pub(crate) fn names(&self, all: &[Ipv4Addr], but: Option<Ipv4Addr>) -> Result<bool> {
        let Some(table) = table(&self.v4)? else {
            return Ok(false);
        };
        let content = match self.v4.content(&table) {
            Ok(content) => content,
            Err(error) => {
                return match error.raw_os_error() {
                    // It was replaced since its size was asked for.
                    Some(libc::EAGAIN | libc::EINVAL) => Ok(false),
                    _ => Err(error).context("cannot read the nat table"),
                };
            }
        };
        let mut missing: BTreeSet<[u8; 4]> = all.iter().map(Ipv4Addr::octets).collect();
        let but = but.map(|address| address.octets());
        for word in content.as_chunks::<4>().0 {
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
}

/// The nat table of a family, if the kernel has one.
fn table(tables: &LegacyTables) -> Result<Option<LegacyTable>> {
    match tables.table("nat") {
        Ok(table) => Ok(Some(table)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(None),
            _ => Err(error).context("cannot read the length of the nat table"),
        },
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
