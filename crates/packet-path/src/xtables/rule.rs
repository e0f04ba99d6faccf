//! One rule of `iptables-save`, parsed into tests and a target.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// A rule: tests and a target.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// The tests; all of them must hold.
    pub(super) tests: Vec<Test>,
    /// The effect if they hold.
    pub(super) target: Target,
}

/// One test of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    /// True if the test is negated (`!`).
    pub(super) is_inverted: bool,
    /// The tested property.
    pub(super) property: Property,
}

/// A property that a rule can test.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Property {
    /// `-s`, `-d`.
    Address(Side, IpNet),
    /// `-i`, `-o`: the name; a final `+` matches any suffix.
    Interface(Side, String),
    /// `-p`, the IANA protocol number.
    Protocol(u8),
    /// `--sport`, `--dports`, ...
    Ports(PortSide, Vec<RangeInclusive<u16>>),
    /// `--ctstate`, `--state`.
    State(Vec<State>),
    /// `--ctdir`: true for replies.
    IsAnswer(bool),
    /// `--ctorigdst`, `--ctorigsrc`.
    OriginalAddress(Side, IpNet),
    /// `--ctorigdstport`.
    OriginalPort(RangeInclusive<u16>),
    /// `--mark`: value and mask.
    Mark(u32, u32),
    /// `-m connmark --mark`.
    ConnectionMark(u32, u32),
    /// `--src-type`, `--dst-type`; the last field limits the test to one interface's addresses.
    AddressType(Side, Vec<String>, Option<Side>),
    /// `--match-set`: the name, and the packet side of each part of a member.
    Set(String, Vec<Side>),
    /// `--physdev-is-in` and similar options.
    Bridge(Bridge),
    /// `-m ipvs`.
    Ipvs(Ipvs),
    /// `-m statistic`: the probability of a match.
    Chance(f64),
    /// `-m recent` with `--rcheck` or `--update`: the list that must contain the source.
    Remembered(String),
    /// TCP flags: the tested ones, and those of them that must be set.
    TcpFlags(u8, u8),
    /// Matches every packet, or none.
    Always(bool),
    /// An unsupported test, as text.
    Unknown(String),
}

/// Source or destination; for interfaces, input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// The port or ports that a test applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortSide {
    Of(Side),
    /// Either of them.
    Either,
}

/// A state in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    New,
    Invalid,
    Untracked,
    Dnat,
    Snat,
    /// `ESTABLISHED`, `SEEN_REPLY`, `CONFIRMED`: states of a reply.
    Established,
    /// `RELATED`, `EXPECTED`, `ASSURED`: states of neither a first packet nor its reply.
    Later,
}

/// A test of bridge ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bridge {
    IsIn,
    /// Never holds for a routed packet.
    IsOut,
}

/// The options of `-m ipvs`, each with false if it is negated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ipvs {
    pub(super) protocol: Option<(u8, bool)>,
    pub(super) address: Option<(IpNet, bool)>,
    pub(super) port: Option<(u16, bool)>,
}

/// The effect of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// Counts only.
    None,
    Accept,
    Drop,
    Return,
    /// Rejects with this message.
    Reject(String),
    /// Sets the mark to `(mark & !mask) ^ value`.
    Mark {
        value: u32,
        mask: u32,
    },
    ConnectionMark(ConnectionMark),
    Masquerade,
    Snat(Nat),
    Dnat(Nat),
    /// Redirects to this node, and to this port if given.
    Redirect(Option<u16>),
    NoTrack,
    /// Has no effect on the packet's path; its name.
    Harmless(String),
    /// Calls this chain.
    Jump(String),
    /// Continues in this chain without returning.
    Goto(String),
    /// An unsupported target, as text.
    Unknown(String),
}

/// A change of marks of packets and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionMark {
    Set { value: u32, mask: u32 },
    Save { from: u32, to: u32 },
    Restore { from: u32, to: u32 },
}

/// The new address and port of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

impl Property {
    /// Returns true if the test needs a question to the kernel.
    pub(super) fn is_dear(&self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::AddressType(..) | Self::Bridge(_)
        )
    }
}
