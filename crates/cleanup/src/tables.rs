//! Removes the nftables tables of modes, and reads the evidence in the tables' sets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use footprint::{Footprint, Says, nft};
use inet::IpFamily;
use ipset_netlink::{Entry, IpProtocol, Mark};
use netlink_batch::Refusal;
use nftables_netlink::{Change, CommitError, Element, ElementData, Error, Family, Transaction};

use crate::evidence::Evidence;
use crate::report::{Cleanup, Manner, Need};

/// Reads the sets in the modes' own nftables tables, and adds their elements to `evidence`. Such a
/// set has the same name as the ipset with the same meaning.
pub(crate) fn read(
    modes: &[&'static Footprint],
    family: IpFamily,
    evidence: &mut Evidence,
) -> Result<(), Error> {
    let of = Family::from(family);
    for mode in modes {
        let sets = (mode.sets)(family).into_iter();
        let telling: Vec<_> = sets.filter(|set| set.says != Says::Nothing).collect();
        for table in mode.nft_tables {
            // None of this mode's sets is evidence, so its tables are not read.
            if telling.is_empty() {
                continue;
            }
            let Some(mut nftables) = nft::open_with(family, table)? else {
                continue;
            };
            for set in &telling {
                let elements = match nftables.elements(of, table, &set.name) {
                    Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
                        errno: libc::ENOENT,
                        ..
                    }))) => continue,
                    elements => elements?,
                };
                let entries = elements.iter();
                for entry in entries.filter_map(|one| entry(set.says, one, family)) {
                    evidence.add(set.says, &entry);
                }
            }
        }
    }
    Ok(())
}

/// Converts an nftables element to the corresponding ipset member. Returns `None` if the element
/// does not fit the meaning of the set.
fn entry(says: Says, element: &Element, family: IpFamily) -> Option<Entry> {
    let key = &element.key[..];
    if let Says::NodePorts(_) = says {
        return Some(Entry::Port(port(key)?));
    }
    let len = match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    };
    let (address, rest) = key.split_at_checked(len)?;
    let ip = address_of(address)?;
    match says {
        Says::Bound => Some(Entry::Ip(ip)),
        Says::VirtualServers | Says::Marks => {
            // The kernel pads each part of the key to four bytes.
            let protocol = IpProtocol(*rest.first()?);
            let port = port(rest.get(4..)?)?;
            Some(match &element.data {
                Some(ElementData::Value(value)) => Entry::IpPortMark {
                    ip,
                    protocol,
                    port,
                    mark: Mark::whole(mark(value)?),
                },
                _ => Entry::IpPort { ip, protocol, port },
            })
        }
        Says::Nothing | Says::NodePorts(_) => None,
    }
}

/// Parses a firewall mark, which the kernel stores in host byte order.
fn mark(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = || <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into());
    v4.or_else(|_| v6()).ok()
}

fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?))
}

/// Empties the chains in the nftables tables of modes that use virtual servers. Packets then pass
/// these tables unchanged, and the tables' sets stay readable as evidence. Returns true if such a
/// table existed.
pub(crate) fn disarm(modes: &[&'static Footprint], family: IpFamily) -> Result<bool, CommitError> {
    let of = Family::from(family);
    let mut has_any = false;
    let modes = modes.iter().filter(|mode| mode.virtual_servers.is_some());
    for table in modes.flat_map(|mode| mode.nft_tables) {
        let Some(mut nftables) = nft::open_with(family, table)? else {
            continue;
        };
        let chains = nftables.chains(of, table)?.into_iter();
        let emptied = Transaction {
            family: of,
            table: (*table).into(),
            changes: chains.map(|chain| Change::FlushChain(chain.name)).collect(),
        };
        nftables.commit(&emptied, None)?;
        has_any = true;
    }
    Ok(has_any)
}

/// Removes the nftables tables of these modes. If a table's sets are evidence for virtual servers,
/// keeps the table until these virtual servers are deleted.
pub(crate) fn remove(
    modes: &[&'static Footprint],
    family: IpFamily,
    need: Need,
    manner: Manner,
    cleanup: &mut Cleanup,
) {
    for mode in modes {
        let is_evidence = mode.virtual_servers.is_some() && need != Need::Over;
        for table in mode.nft_tables {
            let what = format!("the {} mode's table {table}", mode.mode);
            let removed = nft::has_table(family, table).and_then(|is_there| {
                if is_there && !is_evidence && manner != Manner::Count {
                    nft::remove_table(family, table)?;
                }
                Ok(is_there)
            });
            match removed {
                Ok(true) if is_evidence && need == Need::Draining => {}
                Ok(true) if is_evidence => {
                    let why = "its sets prove which virtual servers are kube-proxy's; remove the \
                               other leftovers, then run this again";
                    cleanup.leave(family, &format_args!("{what} stays"), &why);
                }
                Ok(true) => cleanup.removed.push(format!("{family}: {what}")),
                Ok(false) => {}
                Err(error) => cleanup.leave(family, &what, &error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use footprint::OwnSet;
    use inet::Protocol;
    use nftables_netlink::Bytes;

    use super::*;

    #[test]
    fn nftables_elements_are_converted_to_ipset_members() {
        let element = |key: &[u8]| Element::of_set(Bytes::from_slice(key));
        let key = [10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0];
        let (ip, protocol, port) = ("10.96.0.1".parse().unwrap(), IpProtocol(6), 80);
        let v4 = IpFamily::V4;
        assert_eq!(
            entry(Says::VirtualServers, &element(&key), v4),
            Some(Entry::IpPort { ip, protocol, port })
        );
        assert_eq!(
            entry(Says::Bound, &element(&key[..4]), v4),
            Some(Entry::Ip(ip))
        );
        let mut marked = element(&key);
        let value = Bytes::from_slice(&0x1001_u32.to_ne_bytes());
        marked.data = Some(ElementData::Value(value));
        assert_eq!(
            entry(Says::Marks, &marked, v4),
            Some(Entry::IpPortMark {
                ip,
                protocol,
                port,
                mark: Mark::whole(0x1001),
            })
        );
        let ports = Says::NodePorts(Protocol::Tcp);
        assert_eq!(
            entry(ports, &element(&[117, 48]), v4),
            Some(Entry::Port(30_000))
        );
        assert_eq!(entry(Says::VirtualServers, &element(&key[..6]), v4), None);
        assert_eq!(entry(ports, &element(&[]), v4), None);
    }

    /// Simulates an unreadable table: a thread without capabilities queries the kernel.
    #[test]
    fn an_unreadable_table_is_not_reported_as_absent() {
        const MODE: &Footprint = &Footprint {
            nft_tables: &["kube-proxy-ipvs"],
            sets: |_| {
                vec![OwnSet {
                    name: "KUBE-CLUSTER-IP".to_owned(),
                    says: Says::VirtualServers,
                    origin: "",
                }]
            },
            ..Footprint::none("ipvs")
        };
        let look = || {
            namespace::drop_rights();
            let is_here = !matches!(nftables_netlink::Nftables::open(), Err(Error::NoNftables));
            let mut cleanup = Cleanup::default();
            let read = read(&[MODE], IpFamily::V4, &mut Evidence::default());
            remove(
                &[MODE],
                IpFamily::V4,
                Need::Over,
                Manner::Remove,
                &mut cleanup,
            );
            (is_here, read.is_err(), cleanup)
        };
        // Capabilities belong to a thread, so only this thread loses them.
        let (is_here, is_error, cleanup) = thread::spawn(look).join().unwrap();
        if is_here {
            assert!(is_error);
            assert!(cleanup.removed.is_empty(), "{cleanup:?}");
            assert_eq!(cleanup.left.len(), 1, "{cleanup:?}");
        }
    }
}
