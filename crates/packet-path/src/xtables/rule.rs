//! One rule of `iptables-save`, read into what it asks and what it does.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// What it asks; all of it has to hold.
    pub(super) tests: Vec<Test>,
    /// What it does then.
    pub(super) target: Target,
}

/// One thing that a rule asks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    /// Whether it has to be otherwise (`!`).
    pub(super) is_inverted: bool,
    /// What.
    pub(super) ask: Ask,
}

/// What a rule may ask.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// `-s`, `-d`.
    Address(Side, IpNet),
    /// `-i`, `-o`: the name, `+` at its end for whatever follows.
    Interface(Side, String),
    /// `-p`, by IANA's number.
    Protocol(u8),
    /// `--sport`, `--dports`, ...
    Ports(PortSide, Vec<RangeInclusive<u16>>),
    /// `--ctstate`, `--state`.
    State(Vec<State>),
    /// `--ctdir`: whether it is an answer.
    IsAnswer(bool),
    /// `--ctorigdst`, `--ctorigsrc`.
    OriginalAddress(Side, IpNet),
    /// `--ctorigdstport`.
    OriginalPort(RangeInclusive<u16>),
    /// `--mark`, as value and mask.
    Mark(u32, u32),
    /// `-m connmark --mark`.
    ConnectionMark(u32, u32),
    /// `--src-type`, `--dst-type`; the last says whether only the interface's own addresses count.
    AddressType(Side, Vec<String>, Option<Side>),
    /// `--match-set`: the name, and which side each part of a member is.
    Set(String, Vec<Side>),
    /// `--physdev-is-in` and its like.
    Bridge(Bridge),
    /// `-m ipvs`.
    Ipvs(Ipvs),
    /// One in so many, as a chance.
    Chance(f64),
    /// `-m recent` with `--rcheck` or `--update`: whether the source is in the list of this name.
    Remembered(String),
    /// Flags of TCP: which are looked at, and which of these are set.
    TcpFlags(u8, u8),
    /// Holds for all packets, or for none.
    Always(bool),
    /// What is not understood, as it is written.
    Unknown(String),
}

/// Source or destination; of interfaces, in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Which port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortSide {
    Of(Side),
    /// Either of them.
    Either,
}

/// What connection tracking says of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    New,
    Invalid,
    Untracked,
    Dnat,
    Snat,
    /// `ESTABLISHED`, `SEEN_REPLY`, `CONFIRMED`: of an answer.
    Established,
    /// `RELATED`, `EXPECTED`, `ASSURED`: of neither a first packet nor the answer to it.
    Later,
}

/// What is asked of ports of bridges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bridge {
    IsIn,
    /// What no routed packet is.
    IsOut,
}

/// `-m ipvs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ipvs {
    pub(super) protocol: Option<(u8, bool)>,
    pub(super) address: Option<(IpNet, bool)>,
    pub(super) port: Option<(u16, bool)>,
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// It counts.
    None,
    Accept,
    Drop,
    Return,
    /// By which message.
    Reject(String),
    /// The mark becomes `(mark & !mask) ^ value`.
    Mark {
        value: u32,
        mask: u32,
    },
    ConnectionMark(ConnectionMark),
    Masquerade,
    Snat(Nat),
    Dnat(Nat),
    /// To which port.
    Redirect(Option<u16>),
    NoTrack,
    /// It does nothing to the packet that matters here: its name.
    Harmless(String),
    /// Through this chain, and back.
    Jump(String),
    /// Through this chain, and back to where this one was led to from.
    Goto(String),
    /// What is not understood.
    Unknown(String),
}

/// What becomes of marks of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionMark {
    Set { value: u32, mask: u32 },
    Save { from: u32, to: u32 },
    Restore { from: u32, to: u32 },
}

/// An address and port that another is translated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

impl Ask {
    /// Whether the kernel has to be asked to answer it.
    pub(super) fn is_dear(&self) -> bool {
        matches!(
            self,
            Self::Set(..) | Self::AddressType(..) | Self::Bridge(_)
        )
    }
}
