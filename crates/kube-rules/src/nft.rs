//! The rules of this mode in the kernel's expressions, as `nft` 1.0.6 encodes them, for one IP
//! family.
//!
//! Other versions encode some of them otherwise. That is another rule to whoever compares, and is
//! written anew, once.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use nftables_netlink::{
    AnonymousSet, Bytes, Comparison, Concatenation, CtKey, DataType, DynsetOperation, Element,
    Expression, FIB_DESTINATION, FIB_SOURCE, Family, FibResult, LookupFor, Membership, MetaKey,
    Name, NatKind, NumGenKind, PayloadBase, Register, Rule, SetKind, SetRef, Verdict,
};
use proxy::{IpFamily, LocalDetector, Protocol};

use crate::interval::intervals;

/// `NF_CT_STATE_BIT(IP_CT_NEW)` as the kernel has it in a register (linux/nf_conntrack_common.h).
const NEW: u32 = 8;
/// `IPS_DST_NAT`
const DESTINATION_NAT: u32 = 0x20;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` (linux/netfilter/nf_nat.h)
const FULLY_RANDOM: u32 = 0x10;
/// `RTN_LOCAL` (linux/rtnetlink.h)
const LOCAL: u32 = 2;
/// `NFT_REJECT_TCP_RST`
const TCP_RESET: u32 = 1;
/// `NFT_REJECT_ICMP_UNREACH`
const UNREACHABLE: u32 = 0;
/// `NFT_OBJECT_COUNTER`
pub(crate) const COUNTER: u32 = 1;
/// `IFNAMSIZ` (linux/if.h)
const INTERFACE_NAME: usize = 16;

/// The place behind so many bytes; all that is used here lies within the registers.
const fn after(bytes: usize) -> Register {
    match Register::at(bytes) {
        Some(register) => register,
        None => Register::FIRST,
    }
}

/// Which of a packet's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// Whether a comparison is to hold, or not to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sense {
    Is,
    IsNot,
}

impl Sense {
    fn comparison(self) -> Comparison {
        match self {
            Self::Is => Comparison::Equal,
            Self::IsNot => Comparison::NotEqual,
        }
    }

    fn membership(self) -> Membership {
        match self {
            Self::Is => Membership::In,
            Self::IsNot => Membership::NotIn,
        }
    }
}

/// The type of addresses.
pub(crate) fn address_type(of: IpFamily) -> DataType {
    match of {
        IpFamily::V4 => DataType::Ipv4Addr,
        IpFamily::V6 => DataType::Ipv6Addr,
    }
}

/// A rule that is being written, from left to right.
#[derive(Debug)]
pub(crate) struct Line {
    family: IpFamily,
    expressions: Vec<Expression>,
}

impl Line {
    /// One without anything, for a family.
    pub(crate) fn new(family: IpFamily) -> Self {
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

    #[allow(clippy::cast_possible_truncation, reason = "at most 16")]
    fn address(&self, side: Side, bytes: usize, to: Register) -> Expression {
        let offset = match (self.family, side) {
            (IpFamily::V4, Side::Source) => 12,
            (IpFamily::V4, Side::Destination) => 16,
            (IpFamily::V6, Side::Source) => 8,
            (IpFamily::V6, Side::Destination) => 24,
        };
        Expression::Payload {
            base: PayloadBase::Network,
            offset,
            len: bytes as u32,
            to,
        }
    }

    fn protocol_and_port(behind: usize) -> [Expression; 2] {
        [
            Expression::Meta {
                key: MetaKey::L4Proto,
                to: after(behind),
            },
            Expression::Payload {
                base: PayloadBase::Transport,
                offset: 2,
                len: 2,
                to: after(behind + 4),
            },
        ]
    }

    /// A number of the kernel's own: some of these bits are set in it.
    fn has_bits(self, load: Expression, bits: u32) -> Self {
        self.push([
            load,
            Expression::Bitwise {
                from: Register::FIRST,
                to: Register::FIRST,
                mask: number(bits),
                xor: number(0),
            },
            Expression::Compare {
                register: Register::FIRST,
                how: Comparison::NotEqual,
                with: number(0),
            },
        ])
    }

    // ---- matches ----

    /// `ct state new`
    pub(crate) fn new_connection(self) -> Self {
        let load = Expression::Ct {
            key: CtKey::State,
            to: Register::FIRST,
        };
        self.has_bits(load, NEW)
    }

    /// `ct status dnat`
    pub(crate) fn translated(self) -> Self {
        let load = Expression::Ct {
            key: CtKey::Status,
            to: Register::FIRST,
        };
        self.has_bits(load, DESTINATION_NAT)
    }

    /// `mark and MARK != 0`
    pub(crate) fn marked(self, mark: u32) -> Self {
        let load = Expression::Meta {
            key: MetaKey::Mark,
            to: Register::FIRST,
        };
        self.has_bits(load, mark)
    }

    /// `ip saddr @set`
    pub(crate) fn in_set(self, side: Side, set: impl Into<Name>) -> Self {
        let load = self.address(side, self.address_len(), Register::FIRST);
        self.push([
            load,
            Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Named(set.into()),
                what: LookupFor::Membership(Membership::In),
            },
        ])
    }

    /// `ip saddr . ip daddr . meta l4proto . th dport @set`
    pub(crate) fn connection_in_set(self, set: impl Into<Name>) -> Self {
        let len = self.address_len();
        let loads = [
            self.address(Side::Source, len, Register::FIRST),
            self.address(Side::Destination, len, after(len)),
        ];
        self.push(loads)
            .push(Self::protocol_and_port(2 * len))
            .push([Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Named(set.into()),
                what: LookupFor::Membership(Membership::In),
            }])
    }

    /// `ip saddr != NET`. A length of whole bytes is a shorter load.
    pub(crate) fn in_net(self, side: Side, sense: Sense, net: IpNet) -> Self {
        let (bits, len) = (usize::from(net.prefix_len()), self.address_len());
        let network = octets(net.network());
        let compare = |with: &[u8]| Expression::Compare {
            register: Register::FIRST,
            how: sense.comparison(),
            with: Bytes::from_slice(with),
        };
        if bits > 0 && bits.is_multiple_of(8) {
            let load = self.address(side, bits / 8, Register::FIRST);
            let with = network.get(..bits / 8).unwrap_or_default();
            return self.push([load, compare(with)]);
        }
        let load = self.address(side, len, Register::FIRST);
        self.push([
            load,
            Expression::Bitwise {
                from: Register::FIRST,
                to: Register::FIRST,
                mask: octets(net.netmask()),
                xor: Bytes::from_elem(0, len),
            },
            compare(&network),
        ])
    }

    /// `ip saddr != { NET, ... }`. A single one is a comparison.
    pub(crate) fn in_nets(self, side: Side, sense: Sense, nets: &[IpNet]) -> Self {
        if let [net] = nets {
            return self.in_net(side, sense, *net);
        }
        let load = self.address(side, self.address_len(), Register::FIRST);
        let set = AnonymousSet {
            key: vec![address_type(self.family)],
            kind: SetKind::Set,
            intervals: true,
            elements: intervals(nets, self.address_len()),
        };
        self.push([
            load,
            Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Anonymous(Arc::new(set)),
                what: LookupFor::Membership(sense.membership()),
            },
        ])
    }

    /// `fib saddr type local`
    pub(crate) fn of_this_node(self, side: Side) -> Self {
        let flags = match side {
            Side::Source => FIB_SOURCE,
            Side::Destination => FIB_DESTINATION,
        };
        self.push([
            Expression::Fib {
                result: FibResult::AddressType,
                flags,
                to: Register::FIRST,
            },
            Expression::Compare {
                register: Register::FIRST,
                how: Comparison::Equal,
                with: number(LOCAL),
            },
        ])
    }

    /// From this node's pods, or not. `None` where these are not told apart.
    pub(crate) fn pod_traffic(self, sense: Sense, detector: &LocalDetector) -> Option<Self> {
        let by_interface = |line: Self, name: &str, is_prefix: bool| {
            let mut bytes = Bytes::from_slice(name.as_bytes());
            // The start of a name is compared alone.
            bytes.resize(
                if is_prefix {
                    name.len()
                } else {
                    INTERFACE_NAME
                },
                0,
            );
            line.push([
                Expression::Meta {
                    key: MetaKey::IifName,
                    to: Register::FIRST,
                },
                Expression::Compare {
                    register: Register::FIRST,
                    how: sense.comparison(),
                    with: bytes,
                },
            ])
        };
        Some(match detector {
            LocalDetector::None => return None,
            LocalDetector::SourceNet(net) => self.in_net(Side::Source, sense, *net),
            LocalDetector::Bridge(name) => by_interface(self, name, false),
            LocalDetector::InterfacePrefix(prefix) => by_interface(self, prefix, true),
        })
    }

    /// `meta l4proto PROTOCOL`
    pub(crate) fn protocol(self, protocol: Protocol) -> Self {
        self.push([
            Expression::Meta {
                key: MetaKey::L4Proto,
                to: Register::FIRST,
            },
            Expression::Compare {
                register: Register::FIRST,
                how: Comparison::Equal,
                with: Bytes::from_slice(&[protocol.number()]),
            },
        ])
    }

    // ---- statements ----

    fn verdict_map(self, set: &'static str) -> Self {
        self.push([Expression::Lookup {
            key: Register::FIRST,
            set: SetRef::Named(set.into()),
            what: LookupFor::Verdict,
        }])
    }

    /// `ip daddr . meta l4proto . th dport vmap @map`
    pub(crate) fn by_address_and_port(self, map: &'static str) -> Self {
        let len = self.address_len();
        let load = self.address(Side::Destination, len, Register::FIRST);
        self.push([load])
            .push(Self::protocol_and_port(len))
            .verdict_map(map)
    }

    /// `meta l4proto . th dport vmap @map`
    pub(crate) fn by_port(self, map: &'static str) -> Self {
        self.push(Self::protocol_and_port(0)).verdict_map(map)
    }

    /// `meta l4proto . th dport @set`
    pub(crate) fn port_in_set(self, set: &'static str) -> Self {
        self.push(Self::protocol_and_port(0))
            .push([Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Named(set.into()),
                what: LookupFor::Membership(Membership::In),
            }])
    }

    /// `counter name "counter"`
    pub(crate) fn count_in(self, counter: &'static str) -> Self {
        self.push([Expression::Object {
            kind: COUNTER,
            name: counter.into(),
        }])
    }

    fn change_mark(self, mask: u32, xor: u32) -> Self {
        self.push([
            Expression::Meta {
                key: MetaKey::Mark,
                to: Register::FIRST,
            },
            Expression::Bitwise {
                from: Register::FIRST,
                to: Register::FIRST,
                mask: number(mask),
                xor: number(xor),
            },
            Expression::SetMeta {
                key: MetaKey::Mark,
                from: Register::FIRST,
            },
        ])
    }

    /// `mark set mark or MARK`
    pub(crate) fn set_mark(self, mark: u32) -> Self {
        self.change_mark(!mark, mark)
    }

    /// `mark set mark xor MARK`
    pub(crate) fn flip_mark(self, mark: u32) -> Self {
        self.change_mark(u32::MAX, mark)
    }

    /// `masquerade fully-random`
    pub(crate) fn masquerade(self) -> Self {
        self.push([Expression::Masquerade {
            flags: FULLY_RANDOM,
        }])
    }

    /// `reject`
    pub(crate) fn reject(self) -> Self {
        // The port is unreachable: ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH.
        let code = match self.family {
            IpFamily::V4 => 3,
            IpFamily::V6 => 4,
        };
        let kind = UNREACHABLE;
        self.push([Expression::Reject { kind, code }])
    }

    /// `reject with tcp reset`
    pub(crate) fn reset(self) -> Self {
        let kind = TCP_RESET;
        self.push([Expression::Reject { kind, code: 0 }])
    }

    /// `drop`
    pub(crate) fn drop(self) -> Self {
        self.push([Expression::Verdict(Verdict::Drop)])
    }

    /// `jump CHAIN`
    pub(crate) fn jump(self, chain: impl Into<Name>) -> Self {
        self.push([Expression::Verdict(Verdict::Jump(chain.into()))])
    }

    /// `goto CHAIN`
    pub(crate) fn goto(self, chain: impl Into<Name>) -> Self {
        self.push([Expression::Verdict(Verdict::Goto(chain.into()))])
    }

    /// `update @set { ip saddr }`
    pub(crate) fn remember(self, set: Name) -> Self {
        let load = self.address(Side::Source, self.address_len(), Register::FIRST);
        self.push([
            load,
            Expression::Dynset {
                set: SetRef::Named(set),
                operation: DynsetOperation::Update,
                key: Register::FIRST,
                timeout: None,
            },
        ])
    }

    /// `numgen random mod N`
    fn random(self, modulus: usize) -> Self {
        self.push([Expression::NumGen {
            how: NumGenKind::Random,
            modulus: u32::try_from(modulus).unwrap_or(u32::MAX),
            offset: 0,
            to: Register::FIRST,
        }])
    }

    /// `dnat to ADDRESS:PORT`
    pub(crate) fn translate(self, to: SocketAddr) -> Self {
        // The port stands in the second of the registers that hold an IPv6 address.
        let port = after(16);
        let family = Family::from(self.family);
        self.push([
            Expression::Immediate {
                to: Register::FIRST,
                data: octets(to.ip()),
            },
            Expression::Immediate {
                to: port,
                data: Bytes::from_slice(&to.port().to_be_bytes()),
            },
            Expression::Nat {
                kind: NatKind::Destination,
                family,
                address: Some(Register::FIRST),
                port: Some(port),
                flags: 0,
            },
        ])
    }

    /// `dnat ip addr . port to numgen random mod N map { 0 : ADDRESS . PORT, ... }`
    pub(crate) fn translate_to_one_of(
        self,
        endpoints: impl ExactSizeIterator<Item = SocketAddr>,
    ) -> Self {
        let len = self.address_len();
        let ip_family = self.family;
        let count = endpoints.len();
        let element = |(number, at): (u32, SocketAddr)| {
            let value = Concatenation::new().address(at.ip()).port(at.port());
            Element::of_map(self::number(number), value.into_key())
        };
        let map = AnonymousSet {
            key: vec![DataType::Integer],
            kind: SetKind::Map(vec![address_type(ip_family), DataType::InetService]),
            intervals: false,
            elements: (0..).zip(endpoints).map(element).collect(),
        };
        self.random(count).push([
            Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Anonymous(Arc::new(map)),
                what: LookupFor::Value(Register::FIRST),
            },
            Expression::Nat {
                kind: NatKind::Destination,
                family: ip_family.into(),
                address: Some(Register::FIRST),
                port: Some(after(len)),
                flags: 0,
            },
        ])
    }

    /// `dnat ip to numgen random mod N . ip daddr . tcp dport map @map`. The rule has looked at the
    /// protocol before.
    pub(crate) fn translate_to_one_in(self, map: &'static str, count: u32) -> Self {
        let len = self.address_len();
        let destination = self.address(Side::Destination, len, after(4));
        let port = Expression::Payload {
            base: PayloadBase::Transport,
            offset: 2,
            len: 2,
            to: after(4 + len),
        };
        let family = Family::from(self.family);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.random(count).push([
            destination,
            port,
            Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Named(map.into()),
                what: LookupFor::Value(Register::FIRST),
            },
            Expression::Nat {
                kind: NatKind::Destination,
                family,
                address: Some(Register::FIRST),
                port: Some(after(len)),
                flags: 0,
            },
        ])
    }

    /// `numgen random mod N vmap { 0 : goto CHAIN, ... }`
    pub(crate) fn goto_one_of(self, chains: impl ExactSizeIterator<Item = Name>) -> Self {
        let count = chains.len();
        let element = |(number, chain): (u32, Name)| {
            Element::of_verdicts(self::number(number), Verdict::Goto(chain))
        };
        let map = AnonymousSet {
            key: vec![DataType::Integer],
            kind: SetKind::Verdicts,
            intervals: false,
            elements: (0..).zip(chains).map(element).collect(),
        };
        self.random(count).push([Expression::Lookup {
            key: Register::FIRST,
            set: SetRef::Anonymous(Arc::new(map)),
            what: LookupFor::Verdict,
        }])
    }

    // ---- ends ----

    /// The rule.
    pub(crate) fn rule(self) -> Rule {
        Rule {
            expressions: self.expressions,
            comment: None,
        }
    }

    /// The rule, with a comment.
    pub(crate) fn comment(self, comment: &str) -> Rule {
        Rule {
            expressions: self.expressions,
            comment: Some(comment.into()),
        }
    }
}

/// A number in the kernel's own order.
fn number(number: u32) -> Bytes {
    Bytes::from_slice(&number.to_ne_bytes())
}

/// An address in network order.
pub(crate) fn octets(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::from_slice(&address.octets()),
    }
}
