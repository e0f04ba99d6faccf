//! Constants of the ctnetlink protocol, from `linux/netfilter/nfnetlink_conntrack.h`. The filter's
//! bits come from the kernel's `net/netfilter/nf_internals.h`.

/// Returns the netlink message type of a ctnetlink command. The high byte is the subsystem number
/// of ctnetlink, and the low byte is the command.
pub(crate) const fn message(command: u16) -> u16 {
    const NFNL_SUBSYS_CTNETLINK: u16 = 1;
    NFNL_SUBSYS_CTNETLINK << 8 | command
}

/// Size of the header `struct nfgenmsg` in bytes: family, version and resource id.
pub(crate) const HEADER: usize = 4;

pub(crate) mod command {
    pub(crate) const NEW: u16 = 0;
    pub(crate) const GET: u16 = 1;
    pub(crate) const DELETE: u16 = 2;
}

/// Attributes of a message about a flow (`CTA_*`).
pub(crate) mod attr {
    pub(crate) const TUPLE_ORIG: u16 = 1;
    pub(crate) const TUPLE_REPLY: u16 = 2;
    pub(crate) const STATUS: u16 = 3;
    pub(crate) const MARK: u16 = 8;
    pub(crate) const ID: u16 = 12;
    pub(crate) const ZONE: u16 = 18;
    pub(crate) const FILTER: u16 = 25;
}

/// Attributes inside a tuple (`CTA_TUPLE_*`).
pub(crate) mod tuple {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PROTO: u16 = 2;
    pub(crate) const ZONE: u16 = 3;
}

/// Attributes inside the attribute `tuple::IP`.
pub(crate) mod ip {
    pub(crate) const V4_SRC: u16 = 1;
    pub(crate) const V4_DST: u16 = 2;
    pub(crate) const V6_SRC: u16 = 3;
    pub(crate) const V6_DST: u16 = 4;
}

/// Attributes inside the attribute `tuple::PROTO`.
pub(crate) mod proto {
    pub(crate) const NUM: u16 = 1;
    pub(crate) const SRC_PORT: u16 = 2;
    pub(crate) const DST_PORT: u16 = 3;
}

/// Attributes inside the attribute `attr::FILTER`. They name the tuple fields in which a dumped
/// flow must equal the request.
pub(crate) mod filter {
    pub(crate) const ORIG_FLAGS: u16 = 1;
    /// Filter bit for the protocol number (`CTA_FILTER_F_CTA_PROTO_NUM`).
    pub(crate) const PROTO_NUM: u32 = 1 << 3;
}

pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const EPROTONOSUPPORT: i32 = 93;
}
