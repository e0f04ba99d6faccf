//! Errors of ipset calls. Each error names the set and the next step for the operator.

use netlink_batch::Malformed;

use crate::wire::{command, errno};
use crate::{Definition, Header};

/// Error of a call to [`Ipset`](crate::Ipset).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The given name cannot be the name of a set.
    #[error("{name:?} cannot name a set: {fault}")]
    Name {
        /// Invalid name that the caller gave.
        name: String,
        /// Reason why the name is invalid.
        fault: &'static str,
    },
    /// The kernel does not have ipset.
    #[error("the kernel has no ipset: run `modprobe ip_set` (CONFIG_IP_SET)")]
    NoIpset,
    /// The kernel does not support the set type.
    #[error("the kernel lacks the set type {type_name}: run `modprobe {module}`")]
    NoType {
        /// Name of the set type, such as `hash:ip,port`.
        type_name: &'static str,
        /// Name of the kernel module for the type.
        module: &'static str,
    },
    /// The kernel supports this set type only in revisions that are too new for this crate.
    #[error(
        "the kernel's {type_name} wants revision {min} or newer, this program speaks up to {ours}"
    )]
    Revision {
        /// Name of the set type, such as `hash:ip,port`.
        type_name: &'static str,
        /// Oldest revision that the kernel accepts.
        min: u8,
        /// Newest revision that this crate supports.
        ours: u8,
    },
    /// In this kernel, the set type is too old for entries with marks.
    #[error(
        "the kernel's {type_name} has no marks (skbinfo): it has revision {max}, and {since} is needed (Linux 3.18)"
    )]
    NoMarks {
        /// Name of the set type, such as `hash:ip,port`.
        type_name: &'static str,
        /// Newest revision that the kernel supports.
        max: u8,
        /// First revision in which entries can have marks.
        since: u8,
    },
    /// The kernel and this crate have no protocol version in common.
    #[error("the kernel speaks ipset protocol {min} to {max}, this program 6 and 7")]
    Version {
        /// Oldest version that the kernel accepts.
        min: u8,
        /// Newest version that the kernel supports.
        max: u8,
    },
    /// A set with this name exists, but its definition differs from the wanted definition.
    #[error(
        "set {} exists as `{exists}`, wanted is `{wanted}`: remove it (`ipset destroy {}`) or choose another name",
        exists.name, exists.name
    )]
    Mismatch {
        /// Header of the existing set.
        exists: Box<Header>,
        /// Definition that the caller of [`crate::Ipset::create`] wanted.
        wanted: Definition,
    },
    /// The kernel refused an action on a set.
    #[error("cannot {action} set {name}: {reason}")]
    Refused {
        /// Action that the kernel refused, such as `create` or `list`.
        action: &'static str,
        /// Name of the set that the action concerned.
        name: String,
        /// Reason why the kernel refused the action.
        reason: Reason,
    },
    /// The kernel's acknowledgement was lost, so the action may have taken effect. A list of the
    /// set shows whether it has.
    #[error(
        "whether the kernel could {action} set {name} is unknown, its answer was lost: list the set to see"
    )]
    Unknown {
        /// Action that may have taken effect.
        action: &'static str,
        /// Name of the set that the action concerned.
        name: String,
    },
    /// The kernel's reply is malformed.
    #[error("the kernel's answer to ipset's {action} makes no sense: {fault}")]
    Answer {
        /// Action to which the kernel replied.
        action: &'static str,
        /// Part of the reply that is missing or malformed.
        fault: &'static str,
    },
    /// The netlink socket failed, or the process lacks a privilege such as `CAP_NET_ADMIN`.
    #[error(transparent)]
    Netlink(#[from] netlink_batch::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Netlink(malformed.into())
    }
}

/// Reason why the kernel refused an entry or a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// No set has the given name.
    #[error("there is no set of that name")]
    NoSuchSet,
    /// Another set already has the given name.
    #[error("a set of that name exists")]
    NameTaken,
    /// The name is empty, contains a NUL, or is longer than 31 bytes.
    #[error("no valid name of a set")]
    InvalidName,
    /// The entry does not fit the set's type or address family. For a swap: the types of the two
    /// sets differ.
    #[error("type or address family does not fit the set")]
    TypeMismatch,
    /// The entry is already in the set. Adding it again succeeds.
    #[error("the entry is in the set")]
    Exists,
    /// The set already has its maximum number of entries (`maxelem`).
    #[error("the set is full (maxelem)")]
    Full,
    /// The port is outside of the bitmap's range.
    #[error("the port is outside of the set's range")]
    OutOfRange,
    /// The set cannot have a network with this prefix length. No set accepts length 0.
    #[error("invalid prefix length")]
    InvalidPrefix,
    /// The address is 0.0.0.0 or ::, which a set of type `hash:ip` cannot have.
    #[error("the all-zero address cannot be in the set")]
    NullEntry,
    /// The set cannot have an entry with this IP protocol, such as 0.
    #[error("invalid IP protocol")]
    InvalidProtocol,
    /// An iptables rule or another set refers to the set.
    #[error("the set is in use by a rule or by another set")]
    InUse,
    /// The kernel has no free index for another set (`IPSET_ERR_MAX_SETS`).
    #[error("the kernel cannot hold more sets (ip_set.max_sets)")]
    TooManySets,
    /// The kernel refused the message as malformed. The kernel and this crate may use different
    /// protocol versions.
    #[error("the kernel found the message malformed")]
    Protocol,
    /// The process lacks `CAP_NET_ADMIN`.
    #[error("not permitted: CAP_NET_ADMIN is needed")]
    NotPermitted,
    /// The kernel is out of memory.
    #[error("the kernel is out of memory")]
    OutOfMemory,
    /// The kernel returned an error number that has no other variant.
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
    /// Returns the reason for the error `number` of `command`. If `bitmap` is true, interprets
    /// numbers from 4352 on as errors of a bitmap type.
    pub(crate) fn from_errno(number: i32, command: u16, bitmap: bool) -> Reason {
        match number {
            errno::EPERM => Reason::NotPermitted,
            // `IPSET_ERR_EXIST_SETNAME2` has two meanings. After a swap, the second set does not
            // exist. After any other command, a set with the new name already exists.
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
            | errno::SKBINFO
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
