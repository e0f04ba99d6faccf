//! Constants of the ipset netlink protocol, from `linux/netfilter/ipset/ip_set.h`, `ip_set_hash.h`
//! and `ip_set_bitmap.h`.

/// Returns the netlink message type of a command: nfnetlink's subsystem number in the high byte,
/// and ipset's command in the low byte.
pub(crate) const fn message(command: u16) -> u16 {
    const NFNL_SUBSYS_IPSET: u16 = 6;
    NFNL_SUBSYS_IPSET << 8 | command
}

pub(crate) mod command {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const CREATE: u16 = 2;
    pub(crate) const DESTROY: u16 = 3;
    pub(crate) const FLUSH: u16 = 4;
    pub(crate) const RENAME: u16 = 5;
    pub(crate) const SWAP: u16 = 6;
    pub(crate) const LIST: u16 = 7;
    pub(crate) const ADD: u16 = 9;
    pub(crate) const DELETE: u16 = 10;
    pub(crate) const TEST: u16 = 11;
    pub(crate) const HEADER: u16 = 12;
    pub(crate) const TYPE: u16 = 13;
}

/// Attribute flag for network byte order (`NLA_F_NET_BYTEORDER`). ipset requires it for each number
/// of several bytes, and for each address.
pub(crate) const NET_BYTEORDER: u16 = 1 << 14;

/// Attributes of a command or its reply (`IPSET_ATTR_*`).
pub(crate) mod attr {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const SETNAME: u16 = 2;
    pub(crate) const TYPENAME: u16 = 3;
    pub(crate) const SETNAME2: u16 = 3;
    pub(crate) const REVISION: u16 = 4;
    pub(crate) const FAMILY: u16 = 5;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const DATA: u16 = 7;
    pub(crate) const ADT: u16 = 8;
    pub(crate) const LINENO: u16 = 9;
    /// Attribute in a reply to `TYPE`: the oldest revision of the set type that the kernel
    /// supports.
    pub(crate) const PROTOCOL_MIN: u16 = 10;
}

/// Attributes inside the attribute `DATA`, which describes either a set (its header) or an entry.
pub(crate) mod data {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const PORT_TO: u16 = 5;
    pub(crate) const TIMEOUT: u16 = 6;
    pub(crate) const PROTO: u16 = 7;
    pub(crate) const CADT_FLAGS: u16 = 8;
    pub(crate) const BITMASK: u16 = 12;
    // The following attributes describe a set.
    pub(crate) const HASHSIZE: u16 = 18;
    pub(crate) const MAXELEM: u16 = 19;
    pub(crate) const NETMASK: u16 = 20;
    pub(crate) const ELEMENTS: u16 = 24;
    pub(crate) const REFERENCES: u16 = 25;
    pub(crate) const MEMSIZE: u16 = 26;
    // The following attributes describe an entry.
    pub(crate) const IP2: u16 = 20;
    pub(crate) const CIDR2: u16 = 21;
    pub(crate) const SKBMARK: u16 = 27;
}

/// Attributes inside an address attribute (`IPSET_ATTR_IPADDR_*`).
pub(crate) mod address {
    pub(crate) const IPV4: u16 = 1;
    pub(crate) const IPV6: u16 = 2;
}

/// Flag in `attr::FLAGS` of a list request (`IPSET_FLAG_LIST_HEADER`). The kernel then returns only
/// the headers of the sets, without their entries.
pub(crate) const LIST_HEADER: u32 = 1 << 2;
/// Flag in an entry's `data::CADT_FLAGS` for an entry that excludes packets from the set
/// (`IPSET_FLAG_NOMATCH`).
pub(crate) const NOMATCH: u32 = 1 << 2;
/// Flag in a header's `data::CADT_FLAGS` for a set whose entries have marks
/// (`IPSET_FLAG_WITH_SKBINFO`).
pub(crate) const WITH_SKBINFO: u32 = 1 << 6;
/// Flag in a header's `data::CADT_FLAGS` for a set that, when full, evicts random entries
/// (`IPSET_FLAG_WITH_FORCEADD`).
pub(crate) const WITH_FORCEADD: u32 = 1 << 5;

/// Maximum length of a set's name, in bytes. (`IPSET_MAXNAMELEN` also counts the terminating NUL.)
pub(crate) const MAX_NAME: usize = 31;

/// Error numbers of three kinds: generic numbers, `IPSET_ERR_*`, and numbers that only some set
/// types use.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const EPROTONOSUPPORT: i32 = 93;
    pub(crate) const PROTOCOL: i32 = 4097;
    pub(crate) const FIND_TYPE: i32 = 4098;
    pub(crate) const MAX_SETS: i32 = 4099;
    pub(crate) const BUSY: i32 = 4100;
    pub(crate) const EXIST_SETNAME2: i32 = 4101;
    pub(crate) const TYPE_MISMATCH: i32 = 4102;
    pub(crate) const EXIST: i32 = 4103;
    pub(crate) const INVALID_CIDR: i32 = 4104;
    pub(crate) const INVALID_FAMILY: i32 = 4106;
    pub(crate) const REFERENCED: i32 = 4108;
    pub(crate) const IPADDR_IPV4: i32 = 4109;
    pub(crate) const IPADDR_IPV6: i32 = 4110;
    pub(crate) const SKBINFO: i32 = 4114;
    /// Error numbers from 4352 on have a different meaning for each set type. This number means
    /// "full" for a hash, and "out of range" for a bitmap.
    pub(crate) const HASH_FULL: i32 = 4352;
    pub(crate) const BITMAP_RANGE: i32 = 4352;
    pub(crate) const HASH_ELEM: i32 = 4353;
    pub(crate) const INVALID_PROTO: i32 = 4354;
    pub(crate) const MISSING_PROTO: i32 = 4355;
}
