//! Describes writes for operators: the entry, its owner, its current value and the new value.

use std::fmt;
use std::net::SocketAddr;

use proxy::{EntryChange, ServicePortName, Target};

use crate::footprint::LINK;
use crate::plan::Op;
use crate::proxier::Ipvs;
use crate::server::{Properties, RealServer, VirtualServerKey};

impl Ipvs {
    /// Returns the entry that a write changes, or `None` if it changes many. Callers must call this
    /// before they record the outcome, because the current value comes from the tables.
    pub fn entry(&self, family: proxy::IpFamily, op: &Op) -> Option<EntryChange> {
        let none = String::new;
        let (entry, before, after) = match op {
            Op::WriteRules { .. } => return None,
            Op::CreateLink => (format!("link {LINK}"), None, Some(none())),
            Op::CreateSet(set, size) => {
                let room = |size: &u32| format!("for {size} members");
                let before = self.tables.sets.actual(set).map(room);
                (set.name(family), before, Some(room(size)))
            }
            Op::RemoveSet(set) => (set.name(family), Some(none()), None),
            Op::AddMember(set, member) => {
                let entry = format!("{} {member}", set.name(family));
                (entry, None, Some(none()))
            }
            Op::RemoveMember(set, member) => {
                let entry = format!("{} {member}", set.name(family));
                (entry, Some(none()), None)
            }
            Op::ReplaceMember(set, former, member) => {
                let entry = format!("{} {member}", set.name(family));
                (entry, Some(format!("instead of {former}")), Some(none()))
            }
            Op::AddServer(key, wanted) => (key.to_string(), None, Some(wanted.to_string())),
            Op::SetServer(key, wanted) => (
                key.to_string(),
                Some(self.server(key)),
                Some(wanted.to_string()),
            ),
            Op::RemoveServer(key) => (key.to_string(), Some(self.server(key)), None),
            Op::AddDestination(key, real) => {
                (destination(key, real.target), None, Some(real.to_string()))
            }
            Op::SetDestination(key, real) => {
                let before = self.destination(key, real.target);
                (
                    destination(key, real.target),
                    Some(before),
                    Some(real.to_string()),
                )
            }
            Op::RemoveDestination(key, target) => {
                let before = self.destination(key, *target);
                (destination(key, *target), Some(before), None)
            }
            Op::BindAddress(address) => (format!("{address} on {LINK}"), None, Some(none())),
            Op::UnbindAddress(address) => (format!("{address} on {LINK}"), Some(none()), None),
            Op::UnbindOtherwise(address) => {
                let before = "as the other --ipvs-vip-mode has it".to_owned();
                (format!("{address} on {LINK}"), Some(before), None)
            }
            Op::BindRange(net) => (format!("{net} on {LINK}"), None, Some(none())),
            Op::UnbindRange(net) => (format!("{net} on {LINK}"), Some(none()), None),
            Op::RemoveLeftovers(..) => {
                let told = op.to_string();
                let entry = told.strip_prefix("remove ").unwrap_or(&told);
                (entry.to_owned(), Some(none()), None)
            }
        };
        let owner = self.owner(op).cloned();
        Some(EntryChange {
            entry,
            before,
            after,
            owner,
        })
    }

    /// Returns the Service port that wants the written entry, if any.
    fn owner(&self, op: &Op) -> Option<&ServicePortName> {
        let owner = match op {
            Op::AddMember(set, member)
            | Op::RemoveMember(set, member)
            | Op::ReplaceMember(set, _, member) => self.tables.members(*set).owner(member),
            Op::BindAddress(address)
            | Op::UnbindAddress(address)
            | Op::UnbindOtherwise(address) => self.tables.addresses.owner(address),
            op => self.tables.servers.owner(op.server()?),
        };
        owner.map(|owner| &owner.name)
    }

    fn server(&self, key: &VirtualServerKey) -> String {
        let there = self.tables.servers.actual(key);
        there.map_or_else(String::new, |server| server.properties.to_string())
    }

    fn destination(&self, key: &VirtualServerKey, target: Target) -> String {
        let there = self.tables.servers.actual(key);
        let there = there.and_then(|server| server.destination(target));
        there.map_or_else(String::new, |real| real.to_string())
    }
}

fn destination(key: &VirtualServerKey, target: Target) -> String {
    format!("{key} -> {}", SocketAddr::new(target.ip, target.port))
}

/// Formats a virtual server's properties as `ipvsadm` does. Appends flags without a name in
/// `ipvsadm` as a number.
impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scheduler)?;
        if self.flags & Self::PERSISTENT != 0 {
            write!(f, " persistent {}", self.timeout)?;
        }
        let known = Self::PERSISTENT | Self::HASHED | Self::OWNED;
        let mut others = self.flags & !known;
        if matches!(&*self.scheduler, "mh" | "sh") {
            for (flag, name) in [(Self::HASH_PORT, "port"), (Self::FALLBACK, "fallback")] {
                if others & flag != 0 {
                    write!(f, " {}-{name}", self.scheduler)?;
                    others &= !flag;
                }
            }
        }
        match others {
            0 => Ok(()),
            others => write!(f, " flags {others:#x}"),
        }
    }
}

impl fmt::Display for RealServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.weight)?;
        if self.max_connections > 0 {
            write!(f, ", at most {} connections", self.max_connections)?;
        }
        if !self.is_plain {
            f.write_str(", not masqueraded, or with other thresholds")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_server_is_printed_in_the_format_of_ipvsadm() {
        let properties = |flags, timeout| Properties {
            scheduler: "mh".into(),
            flags,
            timeout,
        };
        let told = |flags, timeout| properties(flags, timeout).to_string();
        assert_eq!(told(Properties::OWNED, 0), "mh");
        assert_eq!(told(Properties::PERSISTENT, 10800), "mh persistent 10800");
        assert_eq!(told(Properties::HASH_PORT, 0), "mh mh-port");
        let both = Properties::HASH_PORT | Properties::FALLBACK;
        assert_eq!(told(both, 0), "mh mh-port mh-fallback");
        assert_eq!(told(0x20, 0), "mh flags 0x20");
        assert_eq!(told(0x4, 0), "mh flags 0x4");
        let target = Target {
            ip: [10, 244, 1, 5].into(),
            port: 80,
        };
        let real = RealServer::new(target);
        assert_eq!(real.with_weight(0).to_string(), "weight 0");
        let other = RealServer {
            is_plain: false,
            ..real
        };
        assert_eq!(
            other.to_string(),
            "weight 1, not masqueraded, or with other thresholds"
        );
    }
}
