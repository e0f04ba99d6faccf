//! What can go wrong, in words that name the set and the next step.

use netlink_batch::Malformed;

use crate::wire::{command, errno};
use crate::{Definition, Header};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a name that a set can have.
    #[error("{name:?} cannot name a set: {fault}")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The kernel has no ipset.
    #[error("the kernel has no ipset: run `modprobe ip_set` (CONFIG_IP_SET)")]
    NoIpset,
    /// The kernel has no such set type.
    #[error("the kernel lacks the set type {type_name}: run `modprobe {module}`")]
    NoType {
        /// For example `hash:ip,port`.
        type_name: &'static str,
        /// The kernel module that brings it.
        module: &'static str,
    },
    /// The kernel's set type starts at a revision behind the newest that this crate speaks.
    #[error(
        "the kernel's {type_name} wants revision {min} or newer, this program speaks up to {ours}"
    )]
    Revision {
        /// For example `hash:ip,port`.
        type_name: &'static str,
        /// Oldest revision that the kernel takes.
        min: u8,
        /// Newest revision that this crate speaks.
        ours: u8,
    },
    /// No protocol version in common.
    #[error("the kernel speaks ipset protocol {min} to {max}, this program 6 and 7")]
    Version {
        /// Oldest version that the kernel takes.
        min: u8,
        /// Newest version that the kernel speaks.
        max: u8,
    },
    /// A set of this name exists and is another one.
    #[error(
        "set {} exists as `{exists}`, wanted is `{wanted}`: remove it (`ipset destroy {}`) or choose another name",
        exists.name, exists.name
    )]
    Mismatch {
        /// The set that is there.
        exists: Box<Header>,
        /// The set that [`crate::Ipset::create`] was to make.
        wanted: Definition,
    },
    /// The kernel refused.
    #[error("cannot {action} set {name}: {reason}")]
    Refused {
        /// What was tried: `create`, `list`, ...
        action: &'static str,
        /// The set.
        name: String,
        /// Why not.
        reason: Reason,
    },
    /// The acknowledgement was lost: whether it was done can only be told by a list.
    #[error(
        "whether the kernel could {action} set {name} is unknown, its answer was lost: list the set to see"
    )]
    Unknown {
        /// What was tried.
        action: &'static str,
        /// The set.
        name: String,
    },
    /// The answer does not follow the protocol.
    #[error("the kernel's answer to ipset's {action} makes no sense: {fault}")]
    Answer {
        /// What was asked for.
        action: &'static str,
        /// What is missing or broken.
        fault: &'static str,
    },
    /// The socket failed, or a privilege is missing.
    #[error(transparent)]
    Netlink(#[from] netlink_batch::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Netlink(malformed.into())
    }
}

/// Why the kernel refused an entry or a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no set of that name.
    #[error("there is no set of that name")]
    NoSuchSet,
    /// A set of that name exists already.
    #[error("a set of that name exists")]
    NameTaken,
    /// The name is empty, holds a NUL or is longer than 31 bytes.
    #[error("no valid name of a set")]
    InvalidName,
    /// Entry and set, or the two sets of a swap, are of different type or address family.
    #[error("type or address family does not fit the set")]
    TypeMismatch,
    /// The entry is in the set already. Adding does not report this: it succeeds.
    #[error("the entry is in the set")]
    Exists,
    /// The set holds `maxelem` entries.
    #[error("the set is full (maxelem)")]
    Full,
    /// The port is outside of the bitmap's range.
    #[error("the port is outside of the set's range")]
    OutOfRange,
    /// A prefix length that the set cannot hold; 0 is never accepted.
    #[error("invalid prefix length")]
    InvalidPrefix,
    /// The address 0.0.0.0 or ::, which `hash:ip` cannot hold.
    #[error("the all-zero address cannot be in the set")]
    NullEntry,
    /// An IP protocol that the set cannot hold, as 0.
    #[error("invalid IP protocol")]
    InvalidProtocol,
    /// An iptables rule or another set refers to the set.
    #[error("the set is in use by a rule or by another set")]
    InUse,
    /// The kernel holds as many sets as it can (module parameter `max_sets`, 256).
    #[error("the kernel cannot hold more sets (ip_set.max_sets)")]
    TooManySets,
    /// The kernel found the message malformed: it is older or newer than what this crate knows.
    #[error("the kernel found the message malformed")]
    Protocol,
    /// `CAP_NET_ADMIN` is missing.
    #[error("not permitted: CAP_NET_ADMIN is needed")]
    NotPermitted,
    /// The kernel is out of memory.
    #[error("the kernel is out of memory")]
    OutOfMemory,
    /// Any other error number.
    #[error("{}", words(*.0))]
    Other(i32),
}

fn words(number: i32) -> String {
    match number {
        1..4096 => std::io::Error::from_raw_os_error(number).to_string(),
        _ => format!("ipset error {number}"),
    }
}

impl Reason {
    /// Names `number`, the answer to `command`; `bitmap` tells whose numbers those from 4352 on
    /// are.
    pub(crate) fn from_errno(number: i32, command: u16, bitmap: bool) -> Reason {
        match number {
            errno::EPERM => Reason::NotPermitted,
            // "Second name": of a swap it is missing, of a rename it is taken.
            errno::EXIST_SETNAME2 if command != command::SWAP => Reason::NameTaken,
            errno::EXIST_SETNAME2 | errno::ENOENT => Reason::NoSuchSet,
            errno::ENOMEM => Reason::OutOfMemory,
            errno::EEXIST => Reason::NameTaken,
            errno::PROTOCOL => Reason::Protocol,
            errno::MAX_SETS => Reason::TooManySets,
            errno::BUSY | errno::REFERENCED => Reason::InUse,
            errno::EXIST => Reason::Exists,
            errno::INVALID_CIDR => Reason::InvalidPrefix,
            errno::TYPE_MISMATCH
            | errno::INVALID_FAMILY
            | errno::IPADDR_IPV4
            | errno::IPADDR_IPV6 => Reason::TypeMismatch,
            errno::BITMAP_RANGE if bitmap => Reason::OutOfRange,
            errno::HASH_FULL if !bitmap => Reason::Full,
            errno::HASH_ELEM if !bitmap => Reason::NullEntry,
            errno::INVALID_PROTO | errno::MISSING_PROTO if !bitmap => Reason::InvalidProtocol,
            other => Reason::Other(other),
        }
    }
}
