//! A rule of `iptables-save`, parsed into tests and a target.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// An iptables rule: its tests and its target.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// Tests that a packet must all pass for the target to apply.
    pub(super) tests: Vec<Test>,
    /// Action for a packet that passes all tests.
    pub(super) target: Target,
}

/// One test of an iptables rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    /// True for a negated test (`!`).
    pub(super) is_inverted: bool,
    /// Property that the test compares.
    pub(super) property: Property,
}

/// A property of a packet that a test compares.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Property {
    /// Source or destination address in this network (`-s`, `-d`).
    Address(Side, IpNet),
    /// Input or output interface with this name (`-i`, `-o`). A final `+` matches any suffix.
    Interface(Side, String),
    /// IANA protocol number (`-p`).
    Protocol(u8),
    /// Source or destination port in one of these ranges (`--sport`, `--dports`, ...).
    Ports(PortSide, Vec<RangeInclusive<u16>>),
    /// One of these states in connection tracking (`--ctstate`, `--state`).
    State(Vec<ConntrackState>),
    /// Direction in the connection (`--ctdir`): true for replies.
    IsAnswer(bool),
    /// Address before translation in this network (`--ctorigdst`, `--ctorigsrc`).
    OriginalAddress(Side, IpNet),
    /// Destination port before translation in this range (`--ctorigdstport`).
    OriginalPort(RangeInclusive<u16>),
    /// Packet mark with this value under this mask (`--mark`).
    Mark(u32, u32),
    /// Connection mark with this value under this mask (`-m connmark --mark`).
    ConnectionMark(u32, u32),
    /// Address of one of these types (`--src-type`, `--dst-type`). The last field, if any, makes
    /// only addresses of the input interface (`Side::Source`) or of the output interface
    /// (`Side::Destination`) count as local.
    AddressType(Side, Vec<String>, Option<Side>),
    /// Member of the ipset with this name (`--match-set`). Each side selects source or destination
    /// for one part of the member.
    Set(String, Vec<Side>),
    /// Bridge ports of the packet (`--physdev-is-in` and similar options).
    Bridge(Bridge),
    /// IPVS virtual server that has sent the packet (`-m ipvs`).
    Ipvs(Ipvs),
    /// Random choice with this probability (`-m statistic`).
    Chance(f64),
    /// Source address in the list with this name (`-m recent` with `--rcheck` or `--update`).
    Remembered(String),
    /// TCP flags: a mask of compared flags, and those of them that are set.
    TcpFlags(u8, u8),
    /// Constant: true for every packet, or for none.
    Always(bool),
    /// An unsupported property, as the text of its options.
    Unknown(String),
}

/// Source or destination of a packet, or its input or output interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Ports of a packet that a test compares with its ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortSide {
    Of(Side),
    /// Source and destination port, of which one must be in a range.
    Either,
}

/// State or status in connection tracking that a test accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConntrackState {
    New,
    Invalid,
    Untracked,
    Dnat,
    Snat,
    /// State or status of a reply: `ESTABLISHED`, `SEEN_REPLY`, `CONFIRMED`.
    Established,
    /// State or status that neither a first packet nor its reply has: `RELATED`, `EXPECTED`,
    /// `ASSURED`.
    Later,
}

/// A test of the packet's bridge ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bridge {
    IsIn,
    /// The packet leaves through a bridge port, which no routed packet does.
    IsOut,
}

/// Options of `-m ipvs`. Each `bool` is false for a negated option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ipvs {
    pub(super) protocol: Option<(u8, bool)>,
    pub(super) address: Option<(IpNet, bool)>,
    pub(super) port: Option<(u16, bool)>,
}

/// Action of a rule for packets that pass its tests.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// No target: the rule only counts packets.
    None,
    Accept,
    Drop,
    Return,
    /// Rejects the packet with this message, such as `ICMP port unreachable`.
    Reject(String),
    /// Sets the packet mark to `(mark & !mask) ^ value`.
    Mark {
        value: u32,
        mask: u32,
    },
    /// Sets the packet mark to the mark of the matching member of this ipset. Each side selects
    /// source or destination for one part of the member.
    MapMark(String, Vec<Side>),
    ConnectionMark(ConnectionMark),
    Masquerade,
    Snat(Nat),
    Dnat(Nat),
    /// Redirects the packet to this node, at this port or, with `None`, at the packet's own port.
    Redirect(Option<u16>),
    NoTrack,
    /// A target with this name that does not affect the packet's path.
    Harmless(String),
    /// Calls this chain, from which the packet may return.
    Jump(String),
    /// Continues in this chain, from which the packet does not return to the current one.
    Goto(String),
    /// An unsupported target, as the text of its options.
    Unknown(String),
}

/// Change of a connection mark, or of the packet mark from it (`CONNMARK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionMark {
    Set { value: u32, mask: u32 },
    Save { from: u32, to: u32 },
    Restore { from: u32, to: u32 },
}

/// New address and port of a translation. `None` keeps the address or the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

impl Property {
    /// Reports whether the test needs a query to the kernel.
    pub(super) fn is_dear(&self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::AddressType(..) | Self::Bridge(_)
        )
    }
}
