//! Definitions of ipsets, and the parser for the kernel's replies to `LIST`.
//!
//! For a large set, the kernel's reply to `LIST` has several messages. The first message has the
//! type and the header. Each further message has only the name and more entries. Messages of
//! different sets are never interleaved.

use std::fmt;
use std::net::IpAddr;

use netlink_batch::{Attribute, Attributes, Malformed, Writer};

use crate::wire::{NET_BYTEORDER, WITH_FORCEADD, WITH_SKBINFO, attr, data};
use crate::{Entry, Error};

/// Size in bytes of `struct nfgenmsg`, with which every message begins.
const NFGENMSG: usize = 4;

/// A set type that this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetType {
    /// Type `hash:ip`, whose entries are addresses.
    HashIp,
    /// Type `hash:ip,port`, whose entries have an address, a protocol and a port.
    HashIpPort,
    /// Type `hash:ip,port,ip`, whose entries have two addresses, a protocol and a port.
    HashIpPortIp,
    /// Type `hash:ip,port,net`, whose entries have an address, a protocol, a port and a network.
    HashIpPortNet,
    /// Type `bitmap:port`, whose entries are ports without protocol and address.
    BitmapPort,
}

impl SetType {
    /// All set types that this crate supports.
    pub const ALL: [SetType; 5] = [
        SetType::HashIp,
        SetType::HashIpPort,
        SetType::HashIpPortIp,
        SetType::HashIpPortNet,
        SetType::BitmapPort,
    ];

    /// Returns the kernel's name for the set type, such as `hash:ip,port`.
    pub const fn name(self) -> &'static str {
        match self {
            SetType::HashIp => "hash:ip",
            SetType::HashIpPort => "hash:ip,port",
            SetType::HashIpPortIp => "hash:ip,port,ip",
            SetType::HashIpPortNet => "hash:ip,port,net",
            SetType::BitmapPort => "bitmap:port",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<SetType> {
        SetType::ALL
            .into_iter()
            .find(|set_type| set_type.name() == name)
    }

    /// Returns the name of the kernel module that implements the set type.
    pub(crate) const fn module(self) -> &'static str {
        match self {
            SetType::HashIp => "ip_set_hash_ip",
            SetType::HashIpPort => "ip_set_hash_ipport",
            SetType::HashIpPortIp => "ip_set_hash_ipportip",
            SetType::HashIpPortNet => "ip_set_hash_ipportnet",
            SetType::BitmapPort => "ip_set_bitmap_port",
        }
    }

    /// Returns the newest revision of the type that this crate supports. The newer revisions (of
    /// `ipset` 7.17) only add options.
    pub(crate) const fn revision(self) -> u8 {
        match self {
            SetType::HashIp | SetType::HashIpPortIp => 6,
            SetType::HashIpPort => 7,
            SetType::HashIpPortNet => 8,
            SetType::BitmapPort => 3,
        }
    }

    /// Returns the first revision of the type in which entries may have marks.
    pub(crate) const fn marks_since(self) -> u8 {
        match self {
            SetType::BitmapPort => 3,
            SetType::HashIp => 4,
            SetType::HashIpPort | SetType::HashIpPortIp => 5,
            SetType::HashIpPortNet => 7,
        }
    }

    /// Returns the notation of an entry of this type, for error messages.
    pub(crate) const fn notation(self) -> &'static str {
        match self {
            SetType::HashIp => "an address",
            SetType::HashIpPort => "address,protocol:port",
            SetType::HashIpPortIp => "address,protocol:port,address",
            SetType::HashIpPortNet => "address,protocol:port,network",
            SetType::BitmapPort => "a port",
        }
    }
}

impl fmt::Display for SetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Address family of the entries in a set of a `hash` type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 addresses (`inet`).
    Inet,
    /// IPv6 addresses (`inet6`).
    Inet6,
}

impl Family {
    /// Returns the family of an address. An IPv4-mapped IPv6 address is [`Family::Inet6`].
    pub const fn of(ip: IpAddr) -> Family {
        match ip {
            IpAddr::V4(_) => Family::Inet,
            IpAddr::V6(_) => Family::Inet6,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Family::Inet => 2,
            Family::Inet6 => 10,
        }
    }

    fn from_number(number: u8) -> Option<Family> {
        [Family::Inet, Family::Inet6]
            .into_iter()
            .find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Inet6 => "inet6",
        })
    }
}

/// Definition of a set: its type, its size, and whether its entries may have marks.
///
/// ```
/// use ipset_netlink::{Definition, Family, SetType};
///
/// let set = Definition::new(SetType::HashIpPort, Family::Inet6).with_maxelem(1000);
/// assert_eq!(set.to_string(), "hash:ip,port family inet6 hashsize 1024 maxelem 1000");
/// let ports = Definition::new(SetType::BitmapPort, Family::Inet6).with_ports(30000, 32767);
/// assert_eq!(ports.to_string(), "bitmap:port range 30000-32767");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Definition {
    set_type: SetType,
    size: Size,
    /// True if entries may have marks (`skbinfo`).
    has_marks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Size {
    Hash {
        family: Family,
        hashsize: u32,
        maxelem: u32,
    },
    Ports {
        first: u16,
        last: u16,
    },
}

impl Definition {
    /// Creates a definition with `ipset`'s defaults. A hash gets this family, hashsize 1024 and
    /// maxelem 65536. A bitmap gets all 65536 ports and no family.
    pub const fn new(set_type: SetType, family: Family) -> Definition {
        let size = match set_type {
            SetType::BitmapPort => Size::Ports {
                first: 0,
                last: u16::MAX,
            },
            _ => Size::Hash {
                family,
                hashsize: 1024,
                maxelem: 65536,
            },
        };
        Definition {
            set_type,
            size,
            has_marks: false,
        }
    }

    /// Sets the initial number of buckets of a hash. Has no effect on a bitmap. The kernel rounds
    /// the number up to a power of two, at least 64, and enlarges the hash when it fills up.
    /// Enlarging is slow, so callers should pass the number of entries that they expect.
    #[must_use]
    pub const fn with_hashsize(mut self, buckets: u32) -> Definition {
        if let Size::Hash { hashsize, .. } = &mut self.size {
            *hashsize = buckets;
        }
        self
    }

    /// Sets the maximum number of entries of a hash. Has no effect on a bitmap. Since Linux 5.7, a
    /// hash with more than 1024 buckets accepts a few more entries, because the kernel counts the
    /// entries of each region of the hash separately.
    #[must_use]
    pub const fn with_maxelem(mut self, entries: u32) -> Definition {
        if let Size::Hash { maxelem, .. } = &mut self.size {
            *maxelem = entries;
        }
        self
    }

    /// Sets the first and the last port of a bitmap. Has no effect on a hash.
    #[must_use]
    pub const fn with_ports(mut self, from: u16, to: u16) -> Definition {
        if let Size::Ports { first, last } = &mut self.size {
            (*first, *last) = if from <= to { (from, to) } else { (to, from) };
        }
        self
    }

    /// Allows entries to have marks (`skbinfo`, since Linux 3.18).
    #[must_use]
    pub const fn with_marks(mut self) -> Definition {
        self.has_marks = true;
        self
    }

    /// Returns true if entries may have marks.
    pub const fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// Returns the type of the set.
    pub const fn set_type(&self) -> SetType {
        self.set_type
    }

    /// Returns the address family of a hash, or `None` for a bitmap.
    pub const fn family(&self) -> Option<Family> {
        match self.size {
            Size::Hash { family, .. } => Some(family),
            Size::Ports { .. } => None,
        }
    }

    /// Returns the number of buckets of a hash, or `None` for a bitmap.
    pub const fn hashsize(&self) -> Option<u32> {
        match self.size {
            Size::Hash { hashsize, .. } => Some(hashsize),
            Size::Ports { .. } => None,
        }
    }

    /// Returns the maximum number of entries of a hash, or `None` for a bitmap.
    pub const fn maxelem(&self) -> Option<u32> {
        match self.size {
            Size::Hash { maxelem, .. } => Some(maxelem),
            Size::Ports { .. } => None,
        }
    }

    /// Returns true if a set with this definition can serve in place of a set with the definition
    /// `wanted`. Ignores the hashsize, because the kernel changes it. A set with support for marks
    /// can also serve if `wanted` has no marks.
    fn serves_as(self, wanted: Definition) -> bool {
        let comparable = |definition: Definition| Definition {
            has_marks: wanted.has_marks && definition.has_marks,
            ..definition.with_hashsize(0)
        };
        comparable(self) == comparable(wanted)
    }

    /// Returns the newest revision of the set type that both this crate and the kernel support. The
    /// kernel supports the revisions from `min` to `max`.
    pub(crate) fn revision_between(&self, min: u8, max: u8) -> Result<u8, Error> {
        let type_name = self.set_type.name();
        let (ours, since) = (self.set_type.revision(), self.set_type.marks_since());
        if min > ours {
            return Err(Error::Revision {
                type_name,
                min,
                ours,
            });
        }
        if self.has_marks && max < since {
            // Without this error, the kernel would silently create the set without marks.
            return Err(Error::NoMarks {
                type_name,
                max,
                since,
            });
        }
        Ok(max.min(ours))
    }

    /// Writes the attributes of a `TYPE` request.
    pub(crate) fn encode_type(self, w: &mut Writer<'_>) {
        w.attr_str(attr::TYPENAME, self.set_type.name());
        w.attr_u8(attr::FAMILY, self.family().map_or(0, Family::number));
    }

    /// Writes the attributes of a `CREATE` request, except the name of the set.
    pub(crate) fn encode(self, w: &mut Writer<'_>, revision: u8) {
        w.attr_str(attr::TYPENAME, self.set_type.name());
        w.attr_u8(attr::REVISION, revision);
        w.attr_u8(attr::FAMILY, self.family().map_or(0, Family::number));
        let flags = if self.has_marks { WITH_SKBINFO } else { 0 };
        w.nest(attr::DATA, |w| {
            let encode_flags = |w: &mut Writer<'_>| {
                if flags != 0 {
                    w.attr_be32(data::CADT_FLAGS | NET_BYTEORDER, flags);
                }
            };
            // Writes the attributes in the order of their numbers, like `ipset`.
            match self.size {
                Size::Hash {
                    hashsize, maxelem, ..
                } => {
                    encode_flags(w);
                    w.attr_be32(data::HASHSIZE | NET_BYTEORDER, hashsize);
                    w.attr_be32(data::MAXELEM | NET_BYTEORDER, maxelem);
                }
                Size::Ports { first, last } => {
                    w.attr_be16(data::PORT | NET_BYTEORDER, first);
                    w.attr_be16(data::PORT_TO | NET_BYTEORDER, last);
                    encode_flags(w);
                }
            }
        });
    }
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set_type.fmt(f)?;
        match self.size {
            Size::Hash {
                family,
                hashsize,
                maxelem,
            } => {
                write!(f, " family {family} hashsize {hashsize} maxelem {maxelem}")?;
            }
            Size::Ports { first, last } => write!(f, " range {first}-{last}")?,
        }
        f.write_str(if self.has_marks { " skbinfo" } else { "" })
    }
}

/// Properties of a set in the kernel, without its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name of the set. Bytes that are not valid UTF-8 are replaced.
    pub name: String,
    /// The kernel's name for the set type, such as `hash:ip,port`.
    pub type_name: String,
    /// Revision of the set type that was used to create the set.
    pub revision: u8,
    /// Type and size, or `None` if this crate does not support the type.
    pub definition: Option<Definition>,
    /// Options that change the set's entries or their lifetime, in `ipset`'s notation, such as
    /// `timeout 300`, `netmask 24` or `forceadd`. A set that this crate creates has none. Counters
    /// and comments are omitted. Marks are part of the definition.
    pub options: Vec<String>,
    /// Number of rules and other sets that refer to the set.
    pub references: u32,
    /// Number of entries, or `None` if the kernel does not report this number (before Linux 4.9).
    pub entries: Option<u32>,
    /// Kernel memory that the set uses, in bytes.
    pub memory: u32,
}

impl Header {
    /// Returns true if this set works like a set with the definition `wanted`. Ignores the
    /// hashsize.
    pub fn matches(&self, wanted: &Definition) -> bool {
        self.options.is_empty()
            && self
                .definition
                .is_some_and(|there| there.serves_as(*wanted))
    }

    fn decode(attributes: &CommandAttributes<'_>) -> Result<Header, Error> {
        let set_type = SetType::from_name(attributes.type_name.unwrap_or_default());
        let mut header = Header {
            name: String::from_utf8_lossy(attributes.name.unwrap_or_default()).into_owned(),
            type_name: attributes.type_name.unwrap_or_default().to_owned(),
            revision: attributes.revision.unwrap_or_default(),
            definition: None,
            options: Vec::new(),
            references: 0,
            entries: None,
            memory: 0,
        };
        let (mut hashsize, mut maxelem, mut first, mut last) = (None, None, None, None);
        let mut has_marks = false;
        for attribute in attributes.data.iter().flat_map(Attribute::nested) {
            let attribute = attribute?;
            match attribute.kind {
                data::HASHSIZE => hashsize = Some(attribute.be32()?),
                data::MAXELEM => maxelem = Some(attribute.be32()?),
                data::PORT => first = Some(attribute.be16()?),
                data::PORT_TO => last = Some(attribute.be16()?),
                data::TIMEOUT => header
                    .options
                    .push(format!("timeout {}", attribute.be32()?)),
                data::NETMASK => header.options.push(format!("netmask {}", attribute.u8()?)),
                data::BITMASK => header.options.push("bitmask".to_owned()),
                data::CADT_FLAGS => {
                    let flags = attribute.be32()?;
                    has_marks = flags & WITH_SKBINFO != 0;
                    if flags & WITH_FORCEADD != 0 {
                        header.options.push("forceadd".to_owned());
                    }
                }
                data::ELEMENTS => header.entries = Some(attribute.be32()?),
                data::REFERENCES => header.references = attribute.be32()?,
                data::MEMSIZE => header.memory = attribute.be32()?,
                _ => {}
            }
        }
        header.definition = set_type.and_then(|set_type| {
            let size = if set_type == SetType::BitmapPort {
                let (first, last) = (first?, last?);
                Size::Ports { first, last }
            } else {
                let family = Family::from_number(attributes.family?)?;
                let (hashsize, maxelem) = (hashsize?, maxelem?);
                Size::Hash {
                    family,
                    hashsize,
                    maxelem,
                }
            };
            Some(Definition {
                set_type,
                size,
                has_marks,
            })
        });
        Ok(header)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.definition {
            Some(definition) => definition.fmt(f)?,
            None => f.write_str(&self.type_name)?,
        }
        self.options
            .iter()
            .try_for_each(|option| write!(f, " {option}"))
    }
}

/// A set in the kernel, with its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name, definition and other properties of the set.
    pub header: Header,
    /// Entries of the set, in no meaningful order.
    pub entries: Vec<Entry>,
    /// Number of entries that [`Entry`] cannot express: all entries of an unsupported type, and
    /// exceptions (`nomatch`).
    pub others: usize,
}

impl Set {
    /// Parses the messages of a reply to a `LIST`, each without its `nlmsghdr`.
    pub(crate) fn decode_list<'a>(
        messages: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<Set>, Error> {
        let mut sets: Vec<Set> = Vec::new();
        let mut name = None;
        for payload in messages {
            let attributes = CommandAttributes::decode(payload)?;
            if attributes.type_name.is_some() {
                let header = Header::decode(&attributes)?;
                let entries =
                    Vec::with_capacity(header.entries.map_or(0, |n| n.min(65536) as usize));
                sets.push(Set {
                    header,
                    entries,
                    others: 0,
                });
                name = attributes.name;
            }
            let Some(set) = sets.last_mut().filter(|_| attributes.name == name) else {
                return Err(Error::Answer {
                    action: "list",
                    fault: "entries of a set that was not introduced",
                });
            };
            let set_type = SetType::from_name(&set.header.type_name);
            for attribute in attributes.adt.iter().flat_map(Attribute::nested) {
                let attribute = attribute?;
                if attribute.kind != attr::DATA {
                    continue;
                }
                let entry = match set_type {
                    Some(set_type) => Entry::decode(attribute.nested(), set_type)?,
                    None => None,
                };
                match entry {
                    Some(entry) => set.entries.push(entry),
                    None => set.others += 1,
                }
            }
        }
        Ok(sets)
    }
}

/// Attributes of one ipset message, by kind.
#[derive(Default)]
pub(crate) struct CommandAttributes<'a> {
    pub(crate) protocol: Option<u8>,
    /// Oldest protocol version, if the message names one. In a reply to `TYPE`, the oldest revision
    /// of the set type.
    pub(crate) protocol_min: Option<u8>,
    /// Name of a set, without the NUL at its end. The name may be invalid UTF-8.
    name: Option<&'a [u8]>,
    pub(crate) type_name: Option<&'a str>,
    pub(crate) revision: Option<u8>,
    pub(crate) family: Option<u8>,
    /// Line number of the entry that the kernel refused, if the kernel reports it.
    pub(crate) line: Option<u32>,
    data: Option<Attribute<'a>>,
    adt: Option<Attribute<'a>>,
}

impl<'a> CommandAttributes<'a> {
    pub(crate) fn decode(payload: &'a [u8]) -> Result<CommandAttributes<'a>, Malformed> {
        let mut found = CommandAttributes::default();
        for attribute in Attributes::after(NFGENMSG, payload)? {
            let attribute = attribute?;
            match attribute.kind {
                attr::PROTOCOL => found.protocol = Some(attribute.u8()?),
                attr::PROTOCOL_MIN => found.protocol_min = Some(attribute.u8()?),
                attr::SETNAME => found.name = attribute.payload.split(|byte| *byte == 0).next(),
                attr::TYPENAME => found.type_name = Some(attribute.string()?),
                attr::REVISION => found.revision = Some(attribute.u8()?),
                attr::FAMILY => found.family = Some(attribute.u8()?),
                attr::LINENO => found.line = Some(attribute.be32()?),
                attr::DATA => found.data = Some(attribute),
                attr::ADT => found.adt = Some(attribute),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Returns the type of a set from the kernel's reply to `HEADER`, with the family if the set
    /// has one. Returns `None` if this crate does not support the type.
    pub(crate) fn set_type(&self) -> Option<(SetType, Option<Family>)> {
        let set_type = SetType::from_name(self.type_name?)?;
        Some((set_type, self.family.and_then(Family::from_number)))
    }
}

#[cfg(test)]
mod tests;
