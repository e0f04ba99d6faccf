//! The `KUBE-*` ipsets of one IP family, read and written over nfnetlink.

use std::collections::BTreeSet;
use std::time::Duration;

use ipset_netlink::{
    Action, Change, Definition, Entry, Error, Family, Header, IpProtocol, Ipset, Mark, Reason,
    SetType,
};
use proxy::{IpFamily, Protocol};

use super::error::SetInTheWay;
use super::reason::{refused, surprise, unsent, wrong};
use crate::footprint::spare;
use crate::kernel::FoundSets;
use crate::plan::{Op, Outcome};
use crate::sets::{Member, Set, SetKind};

/// Access to this proxy's ipsets of one IP family.
#[derive(Debug)]
pub(super) struct Sets {
    ipset: Ipset,
    family: IpFamily,
    /// Sets that could not be created. Writes of their members fail for the same reason.
    refused: BTreeSet<Set>,
}

impl Sets {
    pub(super) fn open(family: IpFamily) -> Result<Self, Error> {
        Ok(Self {
            ipset: Ipset::open()?,
            family,
            refused: BTreeSet::new(),
        })
    }

    pub(super) fn sent(&self) -> u32 {
        self.ipset.sent()
    }

    /// Reads each of our sets separately, because a dump of all sets may contain huge sets of other
    /// programs. Skips a set with our name but another type; the attempt to create our set reports
    /// it.
    pub(super) fn dump(&mut self) -> Result<FoundSets, Error> {
        self.ipset = Ipset::open()?;
        let mut dump = FoundSets::default();
        for set in Set::every() {
            let found = match self.ipset.list(&set.name(self.family)) {
                Err(Error::Refused {
                    reason: Reason::NoSuchSet,
                    ..
                }) => continue,
                found => found?,
            };
            if serves_as(&found.header, set, self.family) {
                dump.sizes.insert(set, size(&found.header));
                // Skips members that this proxy cannot have written.
                let members = found.entries.iter().filter_map(member).collect();
                dump.members.insert(set, members);
            }
        }
        Ok(dump)
    }

    /// Returns other programs' sets that have a name of ours, but another type. The proxy does not
    /// remove them.
    pub(super) fn in_the_way(&mut self) -> Result<Vec<SetInTheWay>, Error> {
        let named = |header: &Header| Set::by_name(&header.name, self.family);
        let there = self.ipset.headers()?.into_iter();
        let there = there.filter_map(|header| Some((named(&header)?, header)));
        let strange = there.filter(|(set, header)| !serves_as(header, *set, self.family));
        Ok(strange
            .map(|(set, exists)| SetInTheWay {
                is_replaced: false,
                message: format!(
                    "ipset {} is there as `{exists}`, which no kube-proxy makes: an administrator or another program has. kube-proxy \
                     needs `{}` in its place, cannot make it, and what the rules take from it ({}) does not work until the \
                     set is gone; {}",
                    exists.name,
                    definition(set, self.family),
                    set.comment(),
                    way_out(&exists)
                ),
            })
            .collect())
    }

    pub(super) fn create(&mut self, op: &Op) -> Outcome {
        let Op::CreateSet(set, size) = op else {
            return Outcome::Unknown;
        };
        let outcome = self.try_create(*set, *size);
        if outcome == Outcome::Done {
            self.refused.remove(set);
        } else {
            self.refused.insert(*set);
        }
        outcome
    }

    /// Removes a set.
    pub(super) fn remove(&mut self, op: &Op) -> Outcome {
        let Op::RemoveSet(set) = op else {
            return Outcome::Unknown;
        };
        let name = set.name(self.family);
        match self.ipset.destroy_released(&name, Duration::ZERO) {
            Ok(_) => Outcome::Done,
            Err(Error::Unknown { .. }) => Outcome::Unknown,
            Err(Error::Netlink(error)) => unsent(&error),
            Err(error) => refused(error.to_string()),
        }
    }

    fn try_create(&mut self, set: Set, size: u32) -> Outcome {
        let wanted = definition(set, self.family).with_maxelem(size);
        match self.ipset.create(&set.name(self.family), &wanted) {
            Ok(_) => Outcome::Done,
            // The existing set has the right type, but another size.
            Err(Error::Mismatch { exists, .. }) if serves_as(&exists, set, self.family) => {
                if self::size(&exists) >= size {
                    return Outcome::Done;
                }
                match self.grow(&set.name(self.family), &wanted) {
                    Ok(()) => Outcome::Done,
                    Err(error) => refused(format!(
                        "{} holds {} members at most and cannot be replaced by a larger one: {error}",
                        exists.name,
                        self::size(&exists)
                    )),
                }
            }
            Err(Error::Mismatch { exists, wanted }) => refused(format!(
                "set {} exists as `{exists}`, wanted is `{wanted}`; {}",
                exists.name,
                way_out(&exists)
            )),
            Err(Error::Unknown { .. }) => Outcome::Unknown,
            Err(Error::Netlink(error)) => unsent(&error),
            Err(error) => refused(error.to_string()),
        }
    }

    /// Replaces a set with a larger set that has the same members, because the kernel cannot raise
    /// the limit of an existing set (`maxelem`). The swap is atomic, so rules match every member at
    /// all times.
    fn grow(&mut self, name: &str, wanted: &Definition) -> Result<(), Error> {
        let spare = spare(self.family);
        let entries = self.ipset.list(name)?.entries;
        self.ipset.destroy_released(spare, Duration::ZERO)?;
        self.ipset.create(spare, wanted)?;
        let filled = self.ipset.add(spare, &entries).and_then(|outcomes| {
            let failure = outcomes
                .into_iter()
                .find_map(|outcome| add_failure(outcome, spare));
            failure.map_or(Ok(()), Err)
        });
        let grown = filled.and_then(|()| self.ipset.swap(spare, name));
        let destroyed = self.ipset.destroy(spare);
        grown.and(destroyed)
    }

    /// Adds and removes set members.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        let writes: Vec<_> = run.iter().filter_map(write).collect();
        // Consecutive additions to one set, or removals from it, form one request.
        let runs: Vec<_> = writes
            .chunk_by(|one, next| (one.0, one.1) == (next.0, next.1))
            .filter_map(|writes| {
                let (set, action, _) = *writes.first()?;
                let entries: Vec<Entry> = writes.iter().map(|(_, _, entry)| *entry).collect();
                Some((set.name(self.family), action, entries))
            })
            .collect();
        let changes: Vec<Change<'_>> = runs
            .iter()
            .map(|(set, action, entries)| Change {
                set,
                action: *action,
                entries,
            })
            .collect();
        match self.ipset.update(&changes) {
            Ok(outcomes) => outcomes
                .into_iter()
                .flatten()
                .zip(&writes)
                .map(|(outcome, (set, action, _))| self.outcome(outcome, *set, *action))
                .collect(),
            Err(Error::Netlink(error)) => run.iter().map(|_| unsent(&error)).collect(),
            Err(error) => run.iter().map(|_| refused(error.to_string())).collect(),
        }
    }

    fn outcome(&self, outcome: ipset_netlink::Outcome, set: Set, action: Action) -> Outcome {
        let reason = match outcome {
            ipset_netlink::Outcome::Done => return Outcome::Done,
            ipset_netlink::Outcome::Unknown => return Outcome::Unknown,
            ipset_netlink::Outcome::Refused(reason) => reason,
        };
        let name = set.name(self.family);
        match (action, reason) {
            (Action::Delete, Reason::NoSuchSet) => Outcome::Done,
            (_, Reason::NoSuchSet | Reason::Full | Reason::TypeMismatch)
                if self.refused.contains(&set) =>
            {
                refused(format!("{name}: {reason}; it could not be made as needed"))
            }
            (Action::Add, Reason::NoSuchSet) => {
                surprise(format!("{name}: {reason}; kube-proxy creates it again"))
            }
            (_, Reason::Full | Reason::TypeMismatch) => surprise(format!(
                "{name}: {reason}: somebody else has made it anew; the kernel is read again"
            )),
            (
                _,
                Reason::OutOfRange
                | Reason::InvalidPrefix
                | Reason::NullEntry
                | Reason::InvalidProtocol,
            ) => wrong(format!(
                "{name}: {reason}; correct the object that it is of"
            )),
            _ => refused(format!("{name}: {reason}; try it with `ipset` by hand")),
        }
    }
}

/// Returns advice on how to remove another program's set that has our name. It depends on whether
/// rules match the set. Rules name sets, so our own rules may match this set, too.
fn way_out(exists: &Header) -> String {
    let name = &exists.name;
    match exists.references {
        0 => {
            format!("nothing uses it: run `ipset destroy {name}`, and kube-proxy creates it again")
        }
        uses => format!(
            "{uses} rules or sets use it, so that `ipset destroy` alone will not do: stop kube-proxy, remove its rules and sets \
             with `kube-proxy --cleanup`, then other programs' rules that `iptables-save | grep {name}` still shows, run `ipset destroy \
             {name}` if it is still there, and start kube-proxy"
        ),
    }
}

/// Returns the capacity of a set in members. A bitmap has room for every port.
fn size(header: &Header) -> u32 {
    let maxelem = header.definition.and_then(|there| there.maxelem());
    maxelem.unwrap_or(u32::MAX)
}

fn add_failure(outcome: ipset_netlink::Outcome, set: &str) -> Option<Error> {
    let (action, name) = ("add entries to", set.to_owned());
    match outcome {
        ipset_netlink::Outcome::Done => None,
        ipset_netlink::Outcome::Refused(reason) => Some(Error::Refused {
            action,
            name,
            reason,
        }),
        ipset_netlink::Outcome::Unknown => Some(Error::Unknown { action, name }),
    }
}

/// Returns true if an existing set can hold the members of our set. Ignores the capacity.
fn serves_as(header: &Header, set: Set, family: IpFamily) -> bool {
    let size = header.definition.and_then(|there| there.maxelem());
    header.matches(&definition(set, family).with_maxelem(size.unwrap_or_default()))
}

fn definition(set: Set, family: IpFamily) -> Definition {
    let set_type = match set.kind() {
        SetKind::Address => SetType::HashIp,
        SetKind::AddressPort | SetKind::AddressPortMark => SetType::HashIpPort,
        SetKind::AddressPortAddress => SetType::HashIpPortIp,
        SetKind::AddressPortNet => SetType::HashIpPortNet,
        SetKind::Port => SetType::BitmapPort,
    };
    let family = match family {
        IpFamily::V4 => Family::Inet,
        IpFamily::V6 => Family::Inet6,
    };
    let definition = Definition::new(set_type, family);
    match set.kind() {
        SetKind::AddressPortMark => definition.with_marks(),
        _ => definition,
    }
}

fn write(op: &Op) -> Option<(Set, Action, Entry)> {
    match op {
        // Adding an existing entry replaces its mark.
        Op::AddMember(set, member) | Op::ReplaceMember(set, _, member) => {
            Some((*set, Action::Add, entry(*member)))
        }
        Op::RemoveMember(set, member) => Some((*set, Action::Delete, entry(*member))),
        _ => None,
    }
}

fn entry(member: Member) -> Entry {
    let number = |protocol: Protocol| IpProtocol(protocol.number());
    match member {
        Member::Address(ip) => Entry::Ip(ip),
        Member::AddressPort(ip, protocol, port) => Entry::IpPort {
            ip,
            protocol: number(protocol),
            port,
        },
        Member::AddressPortMark(ip, protocol, port, mark) => Entry::IpPortMark {
            ip,
            protocol: number(protocol),
            port,
            mark: Mark::whole(mark),
        },
        Member::AddressPortAddress(ip, protocol, port, ip2) => Entry::IpPortIp {
            ip,
            protocol: number(protocol),
            port,
            ip2,
        },
        Member::AddressPortNet(ip, protocol, port, net) => Entry::IpPortNet {
            ip,
            protocol: number(protocol),
            port,
            net,
        },
        Member::Port(port) => Entry::Port(port),
    }
}

fn member(entry: &Entry) -> Option<Member> {
    let known = |protocol: IpProtocol| Protocol::from_number(protocol.0);
    Some(match *entry {
        Entry::Ip(ip) => Member::Address(ip),
        Entry::IpPortMark {
            ip,
            protocol,
            port,
            mark,
        } if mark == Mark::whole(mark.value) => {
            Member::AddressPortMark(ip, known(protocol)?, port, mark.value)
        }
        // An entry with an unexpected mark mask becomes a member without a mark, which no Service
        // wants, so the proxy removes it. In a removal, the kernel ignores the mark.
        Entry::IpPort { ip, protocol, port }
        | Entry::IpPortMark {
            ip, protocol, port, ..
        } => Member::AddressPort(ip, known(protocol)?, port),
        Entry::IpPortIp {
            ip,
            protocol,
            port,
            ip2,
        } => Member::AddressPortAddress(ip, known(protocol)?, port, ip2),
        Entry::IpPortNet {
            ip,
            protocol,
            port,
            net,
        } => Member::AddressPortNet(ip, known(protocol)?, port, net),
        Entry::Port(port) => Member::Port(port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipset_entries_decode_to_the_encoded_members() {
        let (ip, net) = ("fd00::1".parse().unwrap(), "fd00:1::/64".parse().unwrap());
        for there in [
            Member::Address(ip),
            Member::AddressPort(ip, Protocol::Sctp, 9),
            Member::AddressPortMark(ip, Protocol::Tcp, 80, 0x1001),
            Member::AddressPortAddress(ip, Protocol::Udp, 53, ip),
            Member::AddressPortNet(ip, Protocol::Tcp, 80, net),
            Member::Port(30000),
        ] {
            assert_eq!(member(&entry(there)), Some(there));
            let text = there.to_string().replace(",0x", " skbmark 0x");
            assert_eq!(entry(there).to_string(), text);
        }
        let icmp = Entry::IpPort {
            ip,
            protocol: IpProtocol(1),
            port: 0,
        };
        assert_eq!(member(&icmp), None);
        let masked = Entry::parse("fd00::1,sctp:9 skbmark 0x1/0xff", SetType::HashIpPort).unwrap();
        let bare = Member::AddressPort(ip, Protocol::Sctp, 9);
        assert_eq!(member(&masked), Some(bare));
    }
}
