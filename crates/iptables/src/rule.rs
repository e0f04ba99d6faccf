//! Types for iptables rules. The text form of a rule equals the output of `iptables-save`, so
//! wanted rules can be compared with rules that were read.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};
use ipnet::IpNet;

use crate::table::{ChainName, Table};

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// The source address is in this network.
    Source(IpNet),
    /// The source address is outside this network.
    NotSource(IpNet),
    /// The destination address is in this network.
    Destination(IpNet),
    /// The destination address is outside this network.
    NotDestination(IpNet),
    /// The packet arrived through this interface. A final `+` matches any suffix.
    InInterface(String),
    /// The packet arrived through a different interface, or this node sent the packet.
    NotInInterface(String),
    /// The packet's transport protocol is this protocol.
    Protocol(Protocol),
    /// The packet is ICMP of this family.
    Icmp(IpFamily),
    /// The packet is an ICMP echo request of this family. The rule also needs [`Match::Icmp`],
    /// which comes first.
    EchoRequest(IpFamily),
    /// Always true. Adds a comment for readers of the rules.
    Comment(Cow<'static, str>),
    /// The packet has this transport protocol and this destination port.
    Port(Protocol, u16),
    /// The packet has this transport protocol, as tested by a match module (`-m tcp`). A target
    /// with ports needs this module.
    Module(Protocol),
    /// The source is an address of this node.
    SourceLocal,
    /// The source is no address of this node.
    SourceNotLocal,
    /// The destination is an address of this node.
    DestinationLocal,
    /// The flow has one of these states in connection tracking.
    State(&'static [FlowState]),
    /// The flow has none of these states.
    NotState(&'static [FlowState]),
    /// The packet's mark has all bits of this mark.
    Mark(u32),
    /// The packet's mark lacks at least one bit of this mark.
    NotMark(u32),
    /// These fields of the packet are a member of the ipset with this name.
    InSet(Cow<'static, str>, &'static [Field]),
    /// These fields of the packet are not a member of the ipset with this name.
    NotInSet(Cow<'static, str>, &'static [Field]),
    /// The packet did not arrive through a bridge port.
    NotFromBridgePort,
    /// IPVS forwarded the packet for this virtual server.
    VirtualServer(Protocol, IpAddr, u16),
    /// Always true. Counts packets in the nfacct object with this name.
    Counted(&'static str),
    /// True for one in this many packets, at random.
    OneIn(usize),
    /// The match `recent` has added the source to the list with this name within this many seconds.
    SeenWithin(ChainName, u32, IpFamily),
    /// Always true. Makes the match `recent` add the source to the list with this name.
    Remember(ChainName, IpFamily),
}

/// States of a flow in connection tracking, in the order in which iptables prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowState {
    /// INVALID: the packet belongs to no known flow.
    Invalid,
    /// The first packet of a flow.
    New,
    /// RELATED: the packet begins a flow that belongs to another flow.
    Related,
    /// ESTABLISHED: the flow has had packets in both directions.
    Established,
    /// DNAT: the destination of the flow is translated.
    Dnat,
}

impl FlowState {
    const ALL: [Self; 5] = [
        Self::Invalid,
        Self::New,
        Self::Related,
        Self::Established,
        Self::Dnat,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "INVALID",
            Self::New => "NEW",
            Self::Related => "RELATED",
            Self::Established => "ESTABLISHED",
            Self::Dnat => "DNAT",
        }
    }
}

/// Side of a packet, source or destination, that a rule compares with one dimension of an ipset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The packet's source (`src`).
    Source,
    /// The packet's destination (`dst`).
    Destination,
}

/// The action on a packet that meets all conditions of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Accepts the packet in this table. Other tables may still drop it.
    Accept,
    /// Drops the packet, without a reply to the sender.
    Drop,
    /// Returns to the rule after the jump to this chain.
    Return,
    /// Replies with an ICMP error of this family: port unreachable.
    Reject(IpFamily),
    /// Clears the bits of the mask in the packet's mark, then flips the bits of the value.
    Mark {
        /// Bits of the mark to flip, after the bits in `mask` are cleared.
        value: u32,
        /// Bits of the mark to clear.
        mask: u32,
    },
    /// Applies the mark of the ipset member with these fields to the packet's mark. Changes nothing
    /// if the set has no such member. The kernel accepts this target only in the table mangle.
    MapMark(&'static str, &'static [Field]),
    /// Replaces the source address with the outgoing interface's address.
    Masquerade(SourcePort),
    /// Replaces the destination address and port.
    Dnat(SocketAddr),
    /// Jumps to this chain.
    Chain(ChainName),
}

/// The source port of a masqueraded flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePort {
    /// The client's source port. The kernel chooses another port only if this port is in use.
    Kept,
    /// A random source port (`--random-fully`).
    Random,
}

impl Target {
    /// Returns a target that sets these bits in the packet's mark.
    pub const fn set_mark(bits: u32) -> Self {
        Self::Mark {
            value: bits,
            mask: bits,
        }
    }

    /// Returns a target that flips these bits in the packet's mark.
    pub const fn flip_mark(bits: u32) -> Self {
        Self::Mark {
            value: bits,
            mask: 0,
        }
    }
}

impl<T: Into<ChainName>> From<T> for Target {
    fn from(chain: T) -> Self {
        Self::Chain(chain.into())
    }
}

impl Match {
    /// Returns a match that only carries a comment.
    pub fn comment(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Comment(text.into())
    }

    /// Returns the rank of a match. `iptables-save` prints matches in the order of their ranks.
    /// Matches of the last rank keep the order in which the rule was written.
    fn rank(&self) -> u8 {
        match self {
            Self::Source(_) | Self::NotSource(_) => 0,
            Self::Destination(_) | Self::NotDestination(_) => 1,
            Self::InInterface(_) | Self::NotInInterface(_) => 2,
            Self::Protocol(_) | Self::Icmp(_) => 3,
            _ => 4,
        }
    }
}

/// One rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    matches: Vec<Match>,
    /// The action, or `None` if the rule only counts packets.
    target: Option<Target>,
}

impl Rule {
    /// Creates a rule that applies `target` to packets that meet all `matches`.
    pub fn new(matches: impl IntoIterator<Item = Match>, target: impl Into<Target>) -> Self {
        Self {
            target: Some(target.into()),
            ..Self::without_target(matches)
        }
    }

    /// Creates a rule without an action, which counts packets or carries a comment.
    pub fn without_target(matches: impl IntoIterator<Item = Match>) -> Self {
        let mut matches: Vec<Match> = matches.into_iter().collect();
        matches.sort_by_key(Match::rank);
        Self {
            matches,
            target: None,
        }
    }

    /// Returns the rule without its comments.
    #[must_use]
    pub fn without_comments(mut self) -> Self {
        self.matches
            .retain(|part| !matches!(part, Match::Comment(_)));
        self
    }

    /// Returns the conditions, in the order in which they are printed.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// Returns the action, or `None` if the rule only counts packets.
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// Appends the rule to `text`, as a line of the chain `chain` without a line feed.
    pub fn render(&self, chain: impl fmt::Display, text: &mut String) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "-A {chain}");
        for part in &self.matches {
            let _ = write!(text, " {part}");
        }
        if let Some(target) = &self.target {
            let _ = write!(text, " -j {target}");
        }
    }

    /// Returns the rule as a line of the chain `chain`: `-A CHAIN ...`.
    pub fn line(&self, chain: impl fmt::Display) -> String {
        let mut line = String::new();
        self.render(chain, &mut line);
        line
    }
}

/// A rule of a built-in chain that leads to another chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// The table of both chains.
    pub table: Table,
    /// The built-in chain that contains the jump.
    pub from: &'static str,
    /// The chain to which the rule jumps.
    pub to: &'static str,
    /// The jump's comment, if any.
    pub comment: Option<&'static str>,
    /// Packets to which the jump applies.
    pub packets: Packets,
}

/// Packets to which a jump applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packets {
    /// All packets of a flow.
    All,
    /// Only the first packet of a flow.
    First,
}

impl Jump {
    /// Creates a jump for all packets, with a comment.
    pub const fn new(
        table: Table,
        from: &'static str,
        to: &'static str,
        comment: &'static str,
    ) -> Self {
        Self {
            table,
            from,
            to,
            comment: Some(comment),
            packets: Packets::All,
        }
    }

    /// Returns this jump, limited to the first packet of each flow.
    #[must_use]
    pub const fn of_first_packets(mut self) -> Self {
        self.packets = Packets::First;
        self
    }

    /// Returns the jump as a line: `-A CHAIN ...`.
    pub fn line(&self) -> String {
        let is_first = self.packets == Packets::First;
        let state = is_first.then_some(Match::State(&[FlowState::New]));
        let matches = state.into_iter().chain(self.comment.map(Match::comment));
        Rule::new(matches, self.to).line(self.from)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(net) => write!(f, "-s {}", net.trunc()),
            Self::NotSource(net) => write!(f, "! -s {}", net.trunc()),
            Self::Destination(net) => write!(f, "-d {}", net.trunc()),
            Self::NotDestination(net) => write!(f, "! -d {}", net.trunc()),
            Self::InInterface(name) => write!(f, "-i {name}"),
            Self::NotInInterface(name) => write!(f, "! -i {name}"),
            Self::Protocol(protocol) => write!(f, "-p {}", protocol.lower()),
            Self::Icmp(IpFamily::V4) => f.write_str("-p icmp"),
            Self::Icmp(IpFamily::V6) => f.write_str("-p ipv6-icmp"),
            Self::EchoRequest(IpFamily::V4) => f.write_str("-m icmp --icmp-type 8"),
            Self::EchoRequest(IpFamily::V6) => f.write_str("-m icmp6 --icmpv6-type 128"),
            Self::Comment(text) => {
                f.write_str("-m comment --comment \"")?;
                escaped(text, f)?;
                f.write_char('"')
            }
            Self::Port(protocol, port) => write!(f, "-m {} --dport {port}", protocol.lower()),
            Self::Module(protocol) => write!(f, "-m {}", protocol.lower()),
            Self::SourceLocal => f.write_str("-m addrtype --src-type LOCAL"),
            Self::SourceNotLocal => f.write_str("-m addrtype ! --src-type LOCAL"),
            Self::DestinationLocal => f.write_str("-m addrtype --dst-type LOCAL"),
            Self::State(states) => {
                f.write_str("-m conntrack --ctstate ")?;
                joined(states_in_order(states), f)
            }
            Self::NotState(states) => {
                f.write_str("-m conntrack ! --ctstate ")?;
                joined(states_in_order(states), f)
            }
            Self::Mark(mark) => write!(f, "-m mark --mark {mark:#x}/{mark:#x}"),
            Self::NotMark(mark) => write!(f, "-m mark ! --mark {mark:#x}/{mark:#x}"),
            Self::InSet(name, fields) => {
                write!(f, "-m set --match-set {name} ")?;
                joined(names(fields), f)
            }
            Self::NotInSet(name, fields) => {
                write!(f, "-m set ! --match-set {name} ")?;
                joined(names(fields), f)
            }
            Self::NotFromBridgePort => f.write_str("-m physdev ! --physdev-is-in"),
            Self::VirtualServer(protocol, address, port) => write!(
                f,
                "-m ipvs --vproto {} --vaddr {address} --vport {port}",
                protocol.number()
            ),
            // iptables prints two spaces here.
            Self::Counted(name) => write!(f, "-m nfacct --nfacct-name  {name}"),
            Self::OneIn(count) => write!(
                f,
                "-m statistic --mode random --probability {:.11}",
                probability(*count)
            ),
            Self::SeenWithin(list, seconds, family) => write!(
                f,
                "-m recent --rcheck --seconds {seconds} --reap --name {list} --mask {} --rsource",
                whole(*family)
            ),
            Self::Remember(list, family) => write!(
                f,
                "-m recent --set --name {list} --mask {} --rsource",
                whole(*family)
            ),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("ACCEPT"),
            Self::Drop => f.write_str("DROP"),
            Self::Return => f.write_str("RETURN"),
            Self::Reject(IpFamily::V4) => f.write_str("REJECT --reject-with icmp-port-unreachable"),
            Self::Reject(IpFamily::V6) => {
                f.write_str("REJECT --reject-with icmp6-port-unreachable")
            }
            Self::Mark { value, mask } => write!(f, "MARK --set-xmark {value:#x}/{mask:#x}"),
            Self::MapMark(set, fields) => {
                write!(f, "SET --map-set {set} ")?;
                joined(names(fields), f)?;
                f.write_str(" --map-mark")
            }
            Self::Masquerade(SourcePort::Kept) => f.write_str("MASQUERADE"),
            Self::Masquerade(SourcePort::Random) => f.write_str("MASQUERADE --random-fully"),
            Self::Dnat(to) => write!(f, "DNAT --to-destination {to}"),
            Self::Chain(name) => name.fmt(f),
        }
    }
}

fn states_in_order(states: &[FlowState]) -> impl Iterator<Item = &'static str> {
    let given = FlowState::ALL.into_iter();
    let given = given.filter(|state| states.contains(state));
    given.map(FlowState::name)
}

fn names(fields: &[Field]) -> impl Iterator<Item = &'static str> {
    fields.iter().map(|field| match field {
        Field::Source => "src",
        Field::Destination => "dst",
    })
}

/// Writes words, separated by commas.
fn joined(words: impl Iterator<Item = &'static str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, word) in words.enumerate() {
        if at > 0 {
            f.write_char(',')?;
        }
        f.write_str(word)?;
    }
    Ok(())
}

/// Returns the netmask of a single address in this family.
fn whole(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "255.255.255.255",
        IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// Returns the probability 1/`count` with upstream's ten digits, rounded to the kernel's units of
/// 2⁻³¹.
fn probability(count: usize) -> f64 {
    const UNITS: f64 = 2_147_483_648.0;
    #[allow(
        clippy::cast_precision_loss,
        reason = "a Service has fewer than 2⁵² endpoints"
    )]
    let given = format!("{:.10}", 1.0 / count as f64);
    (given.parse::<f64>().unwrap_or(1.0) * UNITS).round() / UNITS
}

/// Writes text inside quotation marks, and escapes all characters that would end the quotation or
/// the line.
fn escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_special = |character: char| matches!(character, '"' | '\\' | '\'');
    // Most texts contain no special character.
    if !text.contains(|character: char| is_special(character) || character.is_control()) {
        return f.write_str(text);
    }
    for character in text.chars().filter(|character| !character.is_control()) {
        if is_special(character) {
            f.write_char('\\')?;
        }
        f.write_char(character)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_probabilities_equal_the_kernels_rounding() {
        let shown = |count| format!("{:.11}", probability(count));
        assert_eq!(shown(2), "0.50000000000");
        assert_eq!(shown(3), "0.33333333349");
        assert_eq!(shown(10), "0.10000000009");
        assert_eq!(shown(10_000), "0.00009999983");
    }

    #[test]
    fn a_rule_is_formatted_as_by_iptables_save() {
        let net = |net: &str| net.parse::<IpNet>().unwrap();
        let rule = Rule::new(
            [
                Match::comment("a \"b\"\nc"),
                Match::Port(Protocol::Tcp, 80),
                Match::Protocol(Protocol::Tcp),
                Match::NotInInterface("cni0".to_owned()),
                Match::Destination(net("10.0.0.1/32")),
                Match::NotSource(net("10.0.0.9/8")),
            ],
            "X",
        );
        assert_eq!(
            rule.line("C"),
            "-A C ! -s 10.0.0.0/8 -d 10.0.0.1/32 ! -i cni0 -p tcp -m comment --comment \"a \\\"b\\\"c\" -m tcp --dport 80 -j X"
        );
    }

    #[test]
    fn conntrack_states_and_set_fields_have_the_order_of_iptables_save() {
        use FlowState::{Dnat, Established, Related};
        let unordered = Match::NotState(&[Dnat, Established, Related]);
        assert_eq!(
            unordered.to_string(),
            "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
        );
        let set = Match::InSet("S".into(), &[Field::Destination, Field::Source]);
        assert_eq!(set.to_string(), "-m set --match-set S dst,src");
        let map = Target::MapMark("S", &[Field::Destination, Field::Destination]);
        assert_eq!(map.to_string(), "SET --map-set S dst,dst --map-mark");
    }

    #[test]
    fn a_jump_is_formatted_as_one_rule() {
        let jump = Jump::new(Table::Filter, "INPUT", "KUBE-X", "why");
        assert_eq!(
            jump.of_first_packets().line(),
            "-A INPUT -m conntrack --ctstate NEW -m comment --comment \"why\" -j KUBE-X"
        );
    }
}
