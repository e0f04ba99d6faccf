//! nf_tables rules for one IP family, as the expressions that `nft` 1.0.6 sends to the kernel.
//!
//! Other versions of `nft` encode some rules differently. A mode treats a rule with another
//! encoding as another program's change, and replaces it once.

mod interval;
mod marks;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
pub use iptables::SourcePort;
use nftables_netlink::{
    AnonymousSet, Bytes, Comparison, Concatenation, CtKey, DataType, DynsetOperation, Element,
    Expression, FIB_DESTINATION, FIB_SOURCE, FibResult, LookupFor, Membership, MetaKey, Name,
    NatKind, NumGenKind, PayloadBase, Register, Rule, SetKind, SetRef, Verdict,
};
use proxy::{IpFamily, LocalDetector, Protocol};

use interval::intervals;

/// Value of `ct state` for the first packet of a connection: `NF_CT_STATE_BIT(IP_CT_NEW)`.
const NEW: u32 = 8;
/// Bit of `ct status` for a connection with a translated destination (`IPS_DST_NAT`).
const DESTINATION_NAT: u32 = 0x20;
/// NAT flag for a fully random source port: `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
/// (linux/netfilter/nf_nat.h).
const FULLY_RANDOM: u32 = 0x10;
/// Route type for the node's own addresses: `RTN_LOCAL` (linux/rtnetlink.h).
const LOCAL: u32 = 2;
/// Type of `reject` that sends a TCP reset (`NFT_REJECT_TCP_RST`).
const TCP_RESET: u32 = 1;
/// Type of `reject` that sends ICMP unreachable (`NFT_REJECT_ICMP_UNREACH`).
const UNREACHABLE: u32 = 0;
/// Type of a named counter among nf_tables objects (`NFT_OBJECT_COUNTER`).
pub const COUNTER: u32 = 1;
/// Length of an interface name in a register, in bytes: `IFNAMSIZ` (linux/if.h).
const INTERFACE_NAME: usize = 16;

/// Returns the first register behind `bytes` bytes of values. Every key of this crate fits into the
/// registers.
const fn after(bytes: usize) -> Register {
    match Register::at(bytes) {
        Some(register) => register,
        None => Register::FIRST,
    }
}

/// Source or destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source of the packet.
    Source,
    /// The destination of the packet.
    Destination,
}

/// A packet field that can be part of a set's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The source or destination address: `ip saddr`, `ip daddr`.
    Address(Side),
    /// The transport protocol: `meta l4proto`.
    Protocol,
    /// The destination port: `th dport`.
    Port,
}

/// Key field with the source address: `ip saddr`.
pub const SOURCE: Field = Field::Address(Side::Source);
/// Key field with the destination address: `ip daddr`.
pub const DESTINATION: Field = Field::Address(Side::Destination);
/// Key of a destination port: `meta l4proto . th dport`.
pub const PORT: &[Field] = &[Field::Protocol, Field::Port];
/// Key of a destination address and port: `ip daddr . meta l4proto . th dport`.
pub const ADDRESS_AND_PORT: &[Field] = &[DESTINATION, Field::Protocol, Field::Port];
/// Key of a client and a destination: `ip saddr . ip daddr . meta l4proto . th dport`.
pub const CONNECTION: &[Field] = &[SOURCE, DESTINATION, Field::Protocol, Field::Port];

/// Condition under which a comparison or set look-up matches a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// The packet matches if the values are equal, or if the set contains the value.
    Is,
    /// The packet matches if the values differ, or if the set lacks the value.
    IsNot,
}

impl Sense {
    fn comparison(self) -> Comparison {
        match self {
            Self::Is => Comparison::Equal,
            Self::IsNot => Comparison::NotEqual,
        }
    }

    fn membership(self) -> LookupFor {
        LookupFor::Membership(match self {
            Self::Is => Membership::In,
            Self::IsNot => Membership::NotIn,
        })
    }
}

/// Returns the data type of an IP family's addresses.
pub fn address_type(of: IpFamily) -> DataType {
    match of {
        IpFamily::V4 => DataType::Ipv4Addr,
        IpFamily::V6 => DataType::Ipv6Addr,
    }
}

/// A rule under construction. The caller adds clauses in the order of their evaluation. Each clause
/// loads its values from the first register on, and uses no value that an earlier clause has
/// loaded.
#[derive(Debug, Clone)]
#[must_use]
pub struct Line {
    family: IpFamily,
    expressions: Vec<Expression>,
}

impl Line {
    /// Creates a rule without clauses for packets of one IP family.
    pub fn new(family: IpFamily) -> Self {
        Self {
            family,
            expressions: Vec::new(),
        }
    }

    fn push(mut self, expressions: impl IntoIterator<Item = Expression>) -> Self {
        self.expressions.extend(expressions);
        self
    }

    fn address_len(&self) -> usize {
        address_type(self.family).len()
    }

    // ---- loads ----

    /// Returns an expression that loads the first `bytes` bytes of the packet's source or
    /// destination address into the register `to`.
    fn address(&self, side: Side, bytes: usize, to: Register) -> Expression {
        let offset = match (self.family, side) {
            (IpFamily::V4, Side::Source) => 12,
            (IpFamily::V4, Side::Destination) => 16,
            (IpFamily::V6, Side::Source) => 8,
            (IpFamily::V6, Side::Destination) => 24,
        };
        payload(PayloadBase::Network, offset, bytes, to)
    }

    /// Loads fields into consecutive registers. The first field begins `at` bytes after the start
    /// of the registers.
    fn load(mut self, fields: &[Field], mut at: usize) -> Self {
        let len = self.address_len();
        for field in fields {
            let to = after(at);
            let expression = match field {
                Field::Address(side) => self.address(*side, len, to),
                Field::Protocol => meta(MetaKey::L4Proto, to),
                Field::Port => payload(PayloadBase::Transport, 2, 2, to),
            };
            self.expressions.push(expression);
            at += match field {
                Field::Address(_) => len,
                Field::Protocol | Field::Port => 4,
            };
        }
        self
    }

    fn look_up(self, set: SetRef, what: LookupFor) -> Self {
        let key = Register::FIRST;
        self.push([Expression::Lookup { key, set, what }])
    }

    /// Matches if the number that `load` loads, in host byte order, has at least one of these bits.
    fn has_bits(self, load: Expression, bits: u32) -> Self {
        let masked = bitwise(number(bits), number(0));
        self.push([load, masked, compare(Comparison::NotEqual, number(0))])
    }

    // ---- matches ----

    /// Matches the first packet of a connection: `ct state new`.
    pub fn new_connection(self) -> Self {
        self.has_bits(ct(CtKey::State), NEW)
    }

    /// Matches packets of connections whose destination is translated: `ct status dnat`.
    pub fn translated(self) -> Self {
        self.has_bits(ct(CtKey::Status), DESTINATION_NAT)
    }

    /// Matches packets with at least one of these mark bits: `mark and MARK != 0`.
    pub fn marked(self, mark: u32) -> Self {
        self.has_bits(meta(MetaKey::Mark, Register::FIRST), mark)
    }

    /// Matches packets with all of these mark bits: `mark and MARK == MARK`.
    pub fn marked_whole(self, mark: u32) -> Self {
        let masked = bitwise(number(mark), number(0));
        let load = meta(MetaKey::Mark, Register::FIRST);
        self.push([load, masked, compare(Comparison::Equal, number(mark))])
    }

    /// Matches packets whose key is in a set or, with [`Sense::IsNot`], is not in it: `ip daddr .
    /// meta l4proto . th dport != @set`.
    pub fn in_set(self, key: &[Field], sense: Sense, set: impl Into<Name>) -> Self {
        let set = SetRef::Named(set.into());
        self.load(key, 0).look_up(set, sense.membership())
    }

    /// Matches packets whose key is in a set of networks: `ip daddr . meta l4proto . th dport . ip
    /// saddr & 255.255.0.0 @set`. The key's last address keeps only its first `prefix` bits.
    pub fn in_set_of_nets(self, key: &[Field], prefix: u8, set: impl Into<Name>) -> Self {
        let all = match self.family {
            IpFamily::V4 => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), prefix.min(32)),
            IpFamily::V6 => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), prefix.min(128)),
        };
        let len = self.address_len();
        let is_whole = all.prefix_len() == all.max_prefix_len();
        let mut line = self.load(key, 0);
        if let (Some(Expression::Payload { to, .. }), false) = (line.expressions.last(), is_whole) {
            let place = *to;
            line = line.push([Expression::Bitwise {
                from: place,
                to: place,
                mask: octets(all.netmask()),
                xor: Bytes::from_elem(0, len),
            }]);
        }
        line.look_up(
            SetRef::Named(set.into()),
            LookupFor::Membership(Membership::In),
        )
    }

    /// Matches an address inside a network or, with [`Sense::IsNot`], outside of it: `ip saddr !=
    /// NET`. If the prefix length is a multiple of 8, the rule loads only the bytes of the prefix.
    pub fn in_net(self, side: Side, sense: Sense, net: IpNet) -> Self {
        let (bits, len) = (usize::from(net.prefix_len()), self.address_len());
        let network = octets(net.network());
        if bits > 0 && bits.is_multiple_of(8) {
            let load = self.address(side, bits / 8, Register::FIRST);
            let with = Bytes::from_slice(network.get(..bits / 8).unwrap_or_default());
            return self.push([load, compare(sense.comparison(), with)]);
        }
        let load = self.address(side, len, Register::FIRST);
        let masked = bitwise(octets(net.netmask()), Bytes::from_elem(0, len));
        self.push([load, masked, compare(sense.comparison(), network)])
    }

    /// Matches an address inside one of the networks or, with [`Sense::IsNot`], outside of all: `ip
    /// saddr != { NET, ... }`. For a single network, the rule uses no set.
    pub fn in_nets(self, side: Side, sense: Sense, nets: &[IpNet]) -> Self {
        if let [net] = nets {
            return self.in_net(side, sense, *net);
        }
        let set = AnonymousSet {
            key: vec![address_type(self.family)],
            kind: SetKind::Set,
            intervals: true,
            elements: intervals(nets, self.address_len()),
        };
        let set = SetRef::Anonymous(Arc::new(set));
        self.load(&[Field::Address(side)], 0)
            .look_up(set, sense.membership())
    }

    /// Matches packets whose source or destination is an address of this node: `fib saddr type
    /// local`.
    pub fn of_this_node(self, side: Side) -> Self {
        self.push([fib_type(side), compare(Comparison::Equal, number(LOCAL))])
    }

    /// Matches traffic from pods of this node or, with [`Sense::IsNot`], all other traffic. Returns
    /// `None` if the detector is [`LocalDetector::None`].
    pub fn pod_traffic(self, sense: Sense, detector: &LocalDetector) -> Option<Self> {
        Some(match detector {
            LocalDetector::None => return None,
            LocalDetector::SourceNet(net) => self.in_net(Side::Source, sense, *net),
            LocalDetector::Bridge(name) => self.input_interface(sense, name),
            // Compares only the first bytes of the interface name.
            LocalDetector::InterfacePrefix(prefix) => {
                self.input_interface_start(sense, prefix, prefix.len())
            }
        })
    }

    /// Matches packets that arrive on the named interface or, with [`Sense::IsNot`], on another
    /// one: `iifname NAME`.
    pub fn input_interface(self, sense: Sense, name: &str) -> Self {
        self.input_interface_start(sense, name, INTERFACE_NAME)
    }

    fn input_interface_start(self, sense: Sense, name: &str, len: usize) -> Self {
        let mut bytes = Bytes::from_slice(name.as_bytes());
        bytes.resize(len, 0);
        let load = meta(MetaKey::IifName, Register::FIRST);
        self.push([load, compare(sense.comparison(), bytes)])
    }

    /// Matches packets of a transport protocol: `meta l4proto PROTOCOL`.
    pub fn protocol(self, protocol: Protocol) -> Self {
        let with = Bytes::from_slice(&[protocol.number()]);
        self.load(&[Field::Protocol], 0)
            .push([compare(Comparison::Equal, with)])
    }

    /// Matches echo requests (`ping`): `meta l4proto icmp icmp type echo-request`, or `meta l4proto
    /// ipv6-icmp icmpv6 type echo-request`.
    pub fn echo_request(self) -> Self {
        // IPPROTO_ICMP with ICMP_ECHO, and IPPROTO_ICMPV6 with ICMPV6_ECHO_REQUEST.
        let (protocol, kind) = match self.family {
            IpFamily::V4 => (1, 8),
            IpFamily::V6 => (58, 128),
        };
        let is = |byte: u8| compare(Comparison::Equal, Bytes::from_slice(&[byte]));
        let load = payload(PayloadBase::Transport, 0, 1, Register::FIRST);
        self.load(&[Field::Protocol], 0)
            .push([is(protocol), load, is(kind)])
    }

    // ---- statements ----

    /// Applies the verdict that a verdict map has for the packet's key: `ip daddr . meta l4proto .
    /// th dport vmap @map`.
    pub fn verdict_by(self, key: &[Field], map: impl Into<Name>) -> Self {
        let map = SetRef::Named(map.into());
        self.load(key, 0).look_up(map, LookupFor::Verdict)
    }

    /// Counts packets in a named counter: `counter name "counter"`.
    pub fn count_in(self, counter: &'static str) -> Self {
        self.push([Expression::Object {
            kind: COUNTER,
            name: counter.into(),
        }])
    }

    /// Replaces the source by the node's address: `masquerade`, or `masquerade fully-random` for a
    /// random source port.
    pub fn masquerade(self, port: SourcePort) -> Self {
        let flags = match port {
            SourcePort::Kept => 0,
            SourcePort::Random => FULLY_RANDOM,
        };
        self.push([Expression::Masquerade { flags }])
    }

    /// Rejects packets with ICMP port unreachable: `reject`.
    pub fn reject(self) -> Self {
        // ICMP_PORT_UNREACH (3) or ICMPV6_PORT_UNREACH (4).
        let code = match self.family {
            IpFamily::V4 => 3,
            IpFamily::V6 => 4,
        };
        let kind = UNREACHABLE;
        self.push([Expression::Reject { kind, code }])
    }

    /// Rejects packets with a TCP reset: `reject with tcp reset`.
    pub fn reset(self) -> Self {
        let kind = TCP_RESET;
        self.push([Expression::Reject { kind, code: 0 }])
    }

    /// Applies a verdict, such as `drop` or `jump CHAIN`.
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.push([Expression::Verdict(verdict)])
    }

    /// Drops packets: `drop`.
    pub fn drop(self) -> Self {
        self.verdict(Verdict::Drop)
    }

    /// Jumps to a chain: `jump CHAIN`.
    pub fn jump(self, chain: impl Into<Name>) -> Self {
        self.verdict(Verdict::Jump(chain.into()))
    }

    /// Continues in a chain without returning: `goto CHAIN`.
    pub fn goto(self, chain: impl Into<Name>) -> Self {
        self.verdict(Verdict::Goto(chain.into()))
    }

    /// Adds the source address to a set, or restarts the timeout of its element: `update @set { ip
    /// saddr }`.
    pub fn remember(self, set: Name) -> Self {
        self.load(&[SOURCE], 0).push([Expression::Dynset {
            set: SetRef::Named(set),
            operation: DynsetOperation::Update,
            key: Register::FIRST,
            timeout: None,
        }])
    }

    /// Loads a random number below `modulus` into the first register: `numgen random mod N`.
    fn random(self, modulus: usize) -> Self {
        self.push([Expression::NumGen {
            how: NumGenKind::Random,
            modulus: u32::try_from(modulus).unwrap_or(u32::MAX),
            offset: 0,
            to: Register::FIRST,
        }])
    }

    /// Translates the destination to the address and port in these registers. `None` keeps the
    /// address or the port.
    fn translate_to_registers(self, address: Option<Register>, port: Option<Register>) -> Self {
        let family = self.family.into();
        self.push([Expression::Nat {
            kind: NatKind::Destination,
            family,
            address,
            port,
            flags: 0,
        }])
    }

    /// Translates the destination to the address and port that `map` has for the loaded key.
    fn translate_to_found(self, map: SetRef) -> Self {
        let port = after(self.address_len());
        self.look_up(map, LookupFor::Value(Register::FIRST))
            .translate_to_registers(Some(Register::FIRST), Some(port))
    }

    /// Translates the destination of a protocol's packets to its current port: `meta l4proto tcp
    /// dnat to :tcp dport`. The packet does not change, but no later nat chain can translate it. A
    /// translation to the current address would be slower: the kernel then searches for a flow with
    /// the same addresses and ports (`get_unique_tuple` in `nf_nat_core.c`).
    pub fn keep_destination(self, protocol: Protocol) -> Self {
        self.protocol(protocol)
            .load(&[Field::Port], 0)
            .translate_to_registers(None, Some(Register::FIRST))
    }

    /// Translates the destination to a fixed address and port: `dnat to ADDRESS:PORT`.
    pub fn translate(self, to: SocketAddr) -> Self {
        // The port is behind the registers that an IPv6 address needs.
        let port = after(16);
        self.push([
            Expression::Immediate {
                to: Register::FIRST,
                data: octets(to.ip()),
            },
            Expression::Immediate {
                to: port,
                data: Bytes::from_slice(&to.port().to_be_bytes()),
            },
        ])
        .translate_to_registers(Some(Register::FIRST), Some(port))
    }

    /// Translates the destination to the address and port that a map has for the packet's key:
    /// `dnat ip to ip daddr . meta l4proto . th dport map @map`.
    pub fn translate_by(self, key: &[Field], map: impl Into<Name>) -> Self {
        self.load(key, 0)
            .translate_to_found(SetRef::Named(map.into()))
    }

    /// Translates the destination to a random one of `endpoints`: `dnat ip addr . port to numgen
    /// random mod N map { 0 : ADDRESS . PORT, ... }`.
    pub fn translate_to_one_of(self, endpoints: impl ExactSizeIterator<Item = SocketAddr>) -> Self {
        let value = vec![address_type(self.family), DataType::InetService];
        let count = endpoints.len();
        let element = |(number, at): (u32, SocketAddr)| {
            let value = Concatenation::new().address(at.ip()).port(at.port());
            Element::of_map(self::number(number), value.into_key())
        };
        let elements = (0..).zip(endpoints).map(element);
        let map = numbered(SetKind::Map(value), elements.collect());
        self.random(count).translate_to_found(map)
    }

    /// Translates the destination to a random endpoint from a map that several Services share:
    /// `dnat ip to numgen random mod N . ip daddr . tcp dport map @map`. An earlier clause of the
    /// rule must match the protocol.
    pub fn translate_to_one_in(self, map: &'static str, count: u32) -> Self {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.random(count)
            .load(&[DESTINATION, Field::Port], 4)
            .translate_to_found(SetRef::Named(map.into()))
    }

    /// Continues in a random one of `chains`: `numgen random mod N vmap { 0 : goto CHAIN, ... }`.
    pub fn goto_one_of(self, chains: impl ExactSizeIterator<Item = Name>) -> Self {
        let count = chains.len();
        let element = |(number, chain): (u32, Name)| {
            Element::of_verdicts(self::number(number), Verdict::Goto(chain))
        };
        let elements = (0..).zip(chains).map(element);
        let map = numbered(SetKind::Verdicts, elements.collect());
        self.random(count).look_up(map, LookupFor::Verdict)
    }

    // ---- ends of rules ----

    /// Returns the finished rule, without a comment.
    pub fn rule(self) -> Rule {
        Rule {
            expressions: self.expressions,
            comment: None,
        }
    }

    /// Returns the finished rule, with a comment.
    pub fn comment(self, comment: &str) -> Rule {
        Rule {
            expressions: self.expressions,
            comment: Some(comment.into()),
        }
    }
}

/// Returns an anonymous map whose keys are the numbers from 0 on.
fn numbered(kind: SetKind, elements: Vec<Element>) -> SetRef {
    SetRef::Anonymous(Arc::new(AnonymousSet {
        key: vec![DataType::Integer],
        kind,
        intervals: false,
        elements,
    }))
}

#[allow(clippy::cast_possible_truncation, reason = "at most 16")]
fn payload(base: PayloadBase, offset: u32, bytes: usize, to: Register) -> Expression {
    Expression::Payload {
        base,
        offset,
        len: bytes as u32,
        to,
    }
}

fn meta(key: MetaKey, to: Register) -> Expression {
    Expression::Meta { key, to }
}

fn set_meta(key: MetaKey, from: Register) -> Expression {
    Expression::SetMeta { key, from }
}

/// Returns an expression that loads the route type of the packet's source or destination into the
/// first register.
fn fib_type(side: Side) -> Expression {
    Expression::Fib {
        result: FibResult::AddressType,
        flags: match side {
            Side::Source => FIB_SOURCE,
            Side::Destination => FIB_DESTINATION,
        },
        to: Register::FIRST,
    }
}

fn ct(key: CtKey) -> Expression {
    let to = Register::FIRST;
    Expression::Ct { key, to }
}

/// Returns an expression that sets the first register to `(register & mask) ^ xor`.
fn bitwise(mask: Bytes, xor: Bytes) -> Expression {
    Expression::Bitwise {
        from: Register::FIRST,
        to: Register::FIRST,
        mask,
        xor,
    }
}

fn compare(how: Comparison, with: Bytes) -> Expression {
    Expression::Compare {
        register: Register::FIRST,
        how,
        with,
    }
}

/// Returns a number as four bytes in host byte order.
fn number(number: u32) -> Bytes {
    Bytes::from_slice(&number.to_ne_bytes())
}

/// Returns the bytes of an address in network byte order.
pub fn octets(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::from_slice(&address.octets()),
    }
}
