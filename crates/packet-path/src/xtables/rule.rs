//! One rule of `iptables-save`, parsed into tests and a target.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// A rule of iptables: its tests and its target.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// Tests that a packet must all pass before the target applies.
    pub(super) tests: Vec<Test>,
    /// Target that applies to a packet that passes all tests.
    pub(super) target: Target,
}

/// One test of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    /// True if the test is negated (`!`).
    pub(super) is_inverted: bool,
    /// Property to test.
    pub(super) property: Property,
}

/// A property that a rule can test.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Property {
    /// Network that must contain the source or destination address (`-s`, `-d`).
    Address(Side, IpNet),
    /// Name of an interface (`-i`, `-o`). A final `+` matches any suffix.
    Interface(Side, String),
    /// IANA protocol number of the packet (`-p`).
    Protocol(u8),
    /// Ranges that must contain the source or destination port (`--sport`, `--dports`, ...).
    Ports(PortSide, Vec<RangeInclusive<u16>>),
    /// Connection states, one of which the packet must have (`--ctstate`, `--state`).
    State(Vec<ConntrackState>),
    /// Direction in the connection (`--ctdir`), true for replies.
    IsAnswer(bool),
    /// Network that must contain the address before translation (`--ctorigdst`, `--ctorigsrc`).
    OriginalAddress(Side, IpNet),
    /// Range that must contain the destination port before translation (`--ctorigdstport`).
    OriginalPort(RangeInclusive<u16>),
    /// Value and mask of the packet's mark (`--mark`).
    Mark(u32, u32),
    /// Value and mask of the connection's mark (`-m connmark --mark`).
    ConnectionMark(u32, u32),
    /// Type of an address (`--src-type`, `--dst-type`). The last field, if set, limits the test to
    /// addresses of the input interface (`Side::Source`) or of the output interface
    /// (`Side::Destination`).
    AddressType(Side, Vec<String>, Option<Side>),
    /// Membership in an ipset (`--match-set`): the set's name, and for each part of a member,
    /// whether the packet's source or destination must match.
    Set(String, Vec<Side>),
    /// Test of the packet's bridge ports (`--physdev-is-in` and similar options).
    Bridge(Bridge),
    /// IPVS properties that the packet must have (`-m ipvs`).
    Ipvs(Ipvs),
    /// Probability with which the test passes (`-m statistic`).
    Chance(f64),
    /// List that must contain the source (`-m recent` with `--rcheck` or `--update`).
    Remembered(String),
    /// TCP flags: the tested flags, and the subset that must be set.
    TcpFlags(u8, u8),
    /// Constant that matches every packet (true) or none (false).
    Always(bool),
    /// An unsupported test, as text.
    Unknown(String),
}

/// Source or destination of a packet. For interfaces, the input or output interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Ports of a packet that a test compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortSide {
    Of(Side),
    /// Source port and destination port. A packet passes the test if one of its two ports matches.
    Either,
}

/// State of a packet or connection in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConntrackState {
    New,
    Invalid,
    Untracked,
    Dnat,
    Snat,
    /// State of a reply: `ESTABLISHED`, `SEEN_REPLY`, `CONFIRMED`.
    Established,
    /// State that neither the first packet nor its reply has: `RELATED`, `EXPECTED`, `ASSURED`.
    Later,
}

/// A test of bridge ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bridge {
    IsIn,
    /// The packet leaves by a bridge port. False for every routed packet.
    IsOut,
}

/// Options of `-m ipvs`. The `bool` of an option is false if the option is negated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ipvs {
    pub(super) protocol: Option<(u8, bool)>,
    pub(super) address: Option<(IpNet, bool)>,
    pub(super) port: Option<(u16, bool)>,
}

/// Effect of a rule on matching packets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// The rule has no target, so it only counts packets.
    None,
    Accept,
    Drop,
    Return,
    /// The rule rejects the packet with this ICMP type or TCP reset, such as
    /// `icmp-port-unreachable`.
    Reject(String),
    /// Sets the mark to `(mark & !mask) ^ value`.
    Mark {
        value: u32,
        mask: u32,
    },
    /// Sets the packet's mark to the mark of a member of this ipset. Each side selects the packet's
    /// source or destination for one part of the member.
    MapMark(String, Vec<Side>),
    ConnectionMark(ConnectionMark),
    Masquerade,
    Snat(Nat),
    Dnat(Nat),
    /// Redirection to this node, and to this port if one is given.
    Redirect(Option<u16>),
    NoTrack,
    /// Target with this name, which has no effect on the packet's path.
    Harmless(String),
    /// Calls this chain. The packet may return to the calling chain.
    Jump(String),
    /// Continues in this chain without returning.
    Goto(String),
    /// An unsupported target, as text.
    Unknown(String),
}

/// Change to the marks of packets and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionMark {
    Set { value: u32, mask: u32 },
    Save { from: u32, to: u32 },
    Restore { from: u32, to: u32 },
}

/// New address and port of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

impl Property {
    /// Returns true if the test needs a kernel query.
    pub(super) fn is_dear(&self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::AddressType(..) | Self::Bridge(_)
        )
    }
}
