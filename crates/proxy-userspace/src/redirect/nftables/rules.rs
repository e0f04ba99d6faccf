//! The chains of the table, and their rules, as `nft` would write them.

use std::net::IpAddr;

use ipnet::IpNet;
use nftables_netlink::{
    BaseChain, Bytes, Chain, ChainKind, Comparison, Expression, FIB_DESTINATION, FibResult, Hook,
    LookupFor, MetaKey, NatKind, PayloadBase, Policy, Register, Rule, SetRef, Verdict,
};
use proxy::{IpFamily, LocalDetector};

use super::layout::Origin;
use crate::plan::{Base, NodePortsAt};

/// `NF_IP_PRI_NAT_DST`, less 10: before iptables, of which rules may be left that lead nowhere.
const PRIORITY: i32 = -110;

/// `RTN_LOCAL` of linux/rtnetlink.h.
const LOCAL: u32 = 2;

/// Which addresses are the node's.
pub(super) const EVERYWHERE: &str = "NodePorts";

/// `IFNAMSIZ` of linux/if.h.
const IFNAMSIZ: usize = 16;

/// The chains with their rules.
pub(super) fn chains(
    family: IpFamily,
    base: &Base,
    detector: &LocalDetector,
) -> Vec<(Chain, Vec<Rule>)> {
    let chain = |name: &str, hook| Chain {
        name: name.into(),
        base: Some(BaseChain {
            kind: ChainKind::Nat,
            hook,
            priority: PRIORITY,
            policy: Policy::Accept,
        }),
        comment: None,
    };
    let pods = local(family, detector);
    let from_pods = pods.map(|pods| (Origin::Pods, pods));
    let from_outside = from_pods.into_iter().chain([(Origin::Outside, Vec::new())]);
    let from_outside: Vec<_> = from_outside.collect();
    let prerouting = from_outside
        .iter()
        .map(|(from, pods)| portals(family, *from, pods))
        .chain(
            from_outside
                .iter()
                .flat_map(|(from, pods)| node_ports(family, *from, pods, base)),
        );
    let own = base.own_mark.into_iter().map(pass_by);
    let output = own
        .chain([portals(family, Origin::Node, &[])])
        .chain(node_ports(family, Origin::Node, &[], base));
    vec![
        (chain("prerouting", Hook::Prerouting), prerouting.collect()),
        (chain("output", Hook::Output), output.collect()),
    ]
}

fn rule(comment: &str, expressions: Vec<Expression>) -> Rule {
    Rule {
        expressions,
        comment: Some(comment.into()),
    }
}

/// Lets what the relay sends go where it is sent.
fn pass_by(mark: u32) -> Rule {
    let mask = Bytes::from_slice(&mark.to_ne_bytes());
    let none = Bytes::from_slice(&0_u32.to_ne_bytes());
    let expressions = vec![
        Expression::Meta {
            key: MetaKey::Mark,
            to: Register::FIRST,
        },
        Expression::Bitwise {
            from: Register::FIRST,
            to: Register::FIRST,
            mask,
            xor: none.clone(),
        },
        compare(Comparison::NotEqual, &none),
        Expression::Verdict(Verdict::Return),
    ];
    rule("connections of kube-proxy itself", expressions)
}

/// Looks an address up.
fn portals(family: IpFamily, from: Origin, pods: &[Expression]) -> Rule {
    let [map, _] = from.maps();
    let len = address_len(family);
    let mut expressions = pods.to_vec();
    expressions.push(destination(family, len));
    expressions.extend(port_behind(len));
    expressions.extend(translate(family, map));
    rule("addresses of Services", expressions)
}

/// Looks NodePorts up, where the address is the node's: a rule for each that is named.
fn node_ports(family: IpFamily, from: Origin, pods: &[Expression], base: &Base) -> Vec<Rule> {
    let [_, map] = from.maps();
    let of = |comment: &str, address: Vec<Expression>| {
        let mut expressions = pods.to_vec();
        expressions.extend(address);
        expressions.extend(port_behind(0));
        expressions.extend(translate(family, map));
        rule(comment, expressions)
    };
    match &base.node_ports {
        NodePortsAt::Everywhere => vec![of(EVERYWHERE, is_local())],
        NodePortsAt::NotAtLocalhost => {
            let expressions = [not_localhost(family), is_local()].concat();
            vec![of(EVERYWHERE, expressions)]
        }
        NodePortsAt::These(addresses) => addresses
            .iter()
            .map(|address| {
                let bytes = bytes_of(*address);
                let expressions = vec![
                    destination(family, bytes.len()),
                    compare(Comparison::Equal, &bytes),
                ];
                of(&comment_of(*address), expressions)
            })
            .collect(),
    }
}

/// What the rule of one address says of itself.
pub(super) fn comment_of(address: IpAddr) -> String {
    format!("{EVERYWHERE} at {address}")
}

const fn address_len(family: IpFamily) -> usize {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}

fn bytes_of(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::from_slice(&address.octets()),
    }
}

fn register(bytes: usize) -> Register {
    // None of the keys here is so long.
    Register::at(bytes).unwrap_or(Register::FIRST)
}

/// The first bytes of the destination address.
fn destination(family: IpFamily, len: usize) -> Expression {
    let offset = match family {
        IpFamily::V4 => 16,
        IpFamily::V6 => 24,
    };
    network(offset, len)
}

/// The first bytes of the source address.
fn source(family: IpFamily, len: usize) -> Expression {
    let offset = match family {
        IpFamily::V4 => 12,
        IpFamily::V6 => 8,
    };
    network(offset, len)
}

fn network(offset: u32, len: usize) -> Expression {
    Expression::Payload {
        base: PayloadBase::Network,
        offset,
        len: u32::try_from(len).unwrap_or_default(),
        to: Register::FIRST,
    }
}

fn compare(how: Comparison, with: &[u8]) -> Expression {
    Expression::Compare {
        register: Register::FIRST,
        how,
        with: Bytes::from_slice(with),
    }
}

/// The protocol and the destination port, behind a key of so many bytes.
fn port_behind(bytes: usize) -> [Expression; 2] {
    [
        Expression::Meta {
            key: MetaKey::L4Proto,
            to: register(bytes),
        },
        Expression::Payload {
            base: PayloadBase::Transport,
            offset: 2,
            len: 2,
            to: register(bytes + 4),
        },
    ]
}

/// Sends what is found in a map to the address and port that are found there.
fn translate(family: IpFamily, map: &str) -> [Expression; 2] {
    [
        Expression::Lookup {
            key: Register::FIRST,
            set: SetRef::Named(map.into()),
            what: LookupFor::Value(Register::FIRST),
        },
        Expression::Nat {
            kind: NatKind::Destination,
            family: family.into(),
            address: Some(Register::FIRST),
            port: Some(register(address_len(family))),
            flags: 0,
        },
    ]
}

/// The destination is an address of this node.
fn is_local() -> Vec<Expression> {
    vec![
        Expression::Fib {
            result: FibResult::AddressType,
            flags: FIB_DESTINATION,
            to: Register::FIRST,
        },
        compare(Comparison::Equal, &LOCAL.to_ne_bytes()),
    ]
}

fn not_localhost(family: IpFamily) -> Vec<Expression> {
    let localhost = bytes_of(family.localhost());
    // 127.0.0.0/8, or ::1.
    let len = match family {
        IpFamily::V4 => 1,
        IpFamily::V6 => localhost.len(),
    };
    let localhost = localhost.get(..len).unwrap_or_default();
    vec![
        destination(family, len),
        compare(Comparison::NotEqual, localhost),
    ]
}

/// What comes from this node's pods; `None` where that is not told apart.
fn local(family: IpFamily, detector: &LocalDetector) -> Option<Vec<Expression>> {
    let name = |bytes: &[u8]| {
        let to = Register::FIRST;
        let key = MetaKey::IifName;
        vec![
            Expression::Meta { key, to },
            compare(Comparison::Equal, bytes),
        ]
    };
    match detector {
        LocalDetector::None => None,
        LocalDetector::SourceNet(net) => Some(within(family, net)),
        LocalDetector::Bridge(bridge) => {
            let mut bytes = bridge.as_bytes().to_vec();
            bytes.resize(IFNAMSIZ, 0);
            Some(name(&bytes))
        }
        LocalDetector::InterfacePrefix(prefix) => Some(name(prefix.as_bytes())),
    }
}

fn within(family: IpFamily, net: &IpNet) -> Vec<Expression> {
    let (address, mask) = (bytes_of(net.network()), bytes_of(net.netmask()));
    let prefix = usize::from(net.prefix_len());
    // Of whole bytes only those are loaded that count.
    if prefix.is_multiple_of(8) {
        let len = prefix / 8;
        let address = address.get(..len).unwrap_or_default();
        return vec![source(family, len), compare(Comparison::Equal, address)];
    }
    let xor = Bytes::from_elem(0, mask.len());
    let bits = Expression::Bitwise {
        from: Register::FIRST,
        to: Register::FIRST,
        mask,
        xor,
    };
    vec![
        source(family, address.len()),
        bits,
        compare(Comparison::Equal, &address),
    ]
}
