//! Matches a packet against an iptables rule.

use std::net::IpAddr;

use ipnet::IpNet;
use ipset_netlink::Mark;
use ipvs_netlink::ServiceKey;

use super::rule::{Bridge, ConntrackState, Ipvs, PortSide, Property, Rule, Side, Test};
use crate::bridge::comes_by_port;
use crate::kernel::{AddressType, Kernel, ReadFailure, SetKey};
use crate::packet::{Interface, Packet, SourceNat, Tracking};

/// Result of a match, with the set members that matched.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RuleMatch {
    pub(super) how: MatchResult,
    pub(super) members: Vec<String>,
    /// True if a test of `-m recent` has assumed that the client is not in its list yet.
    pub(super) is_new_client: bool,
}

/// Result of matching a packet against a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MatchResult {
    No,
    Yes,
    /// The rule matches with this probability, between 0 and 1.
    Chance(f64),
    /// The result is unknown, for this reason.
    Unknown(String),
}

/// Evaluates all tests of a rule. Tests that query the kernel come last.
pub(super) fn fit(rule: &Rule, packet: &Packet, kernel: &dyn Kernel) -> RuleMatch {
    let mut fit = RuleMatch {
        how: MatchResult::Yes,
        members: Vec::new(),
        is_new_client: false,
    };
    let mut unknown: Vec<String> = Vec::new();
    let mut chance = 1.0;
    let cheap = rule.tests.iter().filter(|test| !test.property.is_dear());
    let dear = rule.tests.iter().filter(|test| test.property.is_dear());
    for test in cheap.chain(dear) {
        match ask(test, packet, kernel, &mut fit) {
            Ok(TestResult::Yes) => {}
            Ok(TestResult::No) => {
                fit.how = MatchResult::No;
                return fit;
            }
            Ok(TestResult::Chance(part)) => chance *= part,
            Err(reason) => unknown.push(reason),
        }
    }
    fit.how = if !unknown.is_empty() {
        MatchResult::Unknown(unknown.join("; "))
    } else if chance <= 0.0 {
        MatchResult::No
    } else if chance < 1.0 {
        MatchResult::Chance(chance)
    } else {
        MatchResult::Yes
    };
    fit
}

enum TestResult {
    Yes,
    No,
    Chance(f64),
}

impl From<bool> for TestResult {
    fn from(is: bool) -> Self {
        if is { Self::Yes } else { Self::No }
    }
}

fn ask(
    test: &Test,
    packet: &Packet,
    kernel: &dyn Kernel,
    fit: &mut RuleMatch,
) -> Result<TestResult, String> {
    let is = match &test.property {
        Property::Chance(chance) => {
            let chance = if test.is_inverted {
                1.0 - chance
            } else {
                *chance
            };
            return Ok(TestResult::Chance(chance));
        }
        Property::Always(is) => *is,
        Property::Address(side, net) => net.contains(&address(*side, packet)),
        Property::Interface(side, pattern) => is_named(interface(*side, packet), pattern),
        Property::Protocol(number) => packet.protocol == *number,
        Property::Ports(side, ranges) => is_port(*side, ranges, packet)?,
        Property::State(states) => states.iter().any(|state| is_in(*state, packet)),
        Property::IsAnswer(is) => packet.reply.is_some() == *is,
        Property::OriginalAddress(Side::Source, net) => net.contains(&packet.original_source),
        Property::OriginalAddress(Side::Destination, net) => net.contains(&packet.original.ip()),
        Property::OriginalPort(range) => range.contains(&packet.original.port()),
        Property::Mark(value, mask) => packet.mark & mask == *value,
        Property::ConnectionMark(value, mask) => packet.connection_mark & mask == *value,
        Property::AddressType(side, types, limit) => {
            is_of_type(address(*side, packet), types, *limit, packet, kernel)?
        }
        Property::Set(name, sides) => match member(name, sides, packet, kernel)? {
            Some(member) => {
                if !test.is_inverted {
                    fit.members.push(format!("{name} {member}"));
                }
                true
            }
            None => false,
        },
        Property::Bridge(Bridge::IsIn) => {
            comes_by_port(packet, kernel).map_err(|unread| told(&unread))?
        }
        Property::Bridge(Bridge::IsOut) => false,
        Property::Ipvs(wanted) => is_of_server(wanted, packet),
        Property::Remembered(_) => {
            fit.is_new_client = true;
            false
        }
        Property::TcpFlags(mask, set) => {
            packet.protocol == super::TCP && flags(packet) & mask == *set
        }
        Property::Unknown(text) => return Err(format!("`{text}` is not understood")),
    };
    Ok(TestResult::from(is != test.is_inverted))
}

/// Returns the TCP flags of a connection's first packet (SYN) or of the reply (SYN, ACK).
fn flags(packet: &Packet) -> u8 {
    match packet.reply {
        None => super::SYN,
        Some(_) => super::SYN | super::ACK,
    }
}

fn address(side: Side, packet: &Packet) -> IpAddr {
    match side {
        Side::Source => packet.source,
        Side::Destination => packet.destination,
    }
}

fn interface(side: Side, packet: &Packet) -> Option<&Interface> {
    match side {
        Side::Source => packet.iif.as_ref(),
        Side::Destination => packet.oif.as_ref(),
    }
}

/// Compares an interface's name with a pattern such as `eth+`. A missing interface has an empty
/// name.
fn is_named(interface: Option<&Interface>, pattern: &str) -> bool {
    let name = interface.map_or("", |interface| &interface.name);
    match pattern.strip_suffix('+') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

fn is_port(
    side: PortSide,
    ranges: &[std::ops::RangeInclusive<u16>],
    packet: &Packet,
) -> Result<bool, String> {
    let is = |port: u16| ranges.iter().any(|range| range.contains(&port));
    let of = |port: Option<u16>, lowest: u16, which: &str| match port {
        Some(port) => Ok(is(port)),
        // The port is unknown, but ephemeral: `lowest` or higher. The result is known if all ranges
        // are below, or if one range contains all ephemeral ports.
        None if ranges.iter().all(|range| *range.end() < lowest) => Ok(false),
        None if ranges
            .iter()
            .any(|range| *range.start() <= lowest && *range.end() == u16::MAX) =>
        {
            Ok(true)
        }
        None => Err(format!("it depends on the {which} port")),
    };
    let (source, destination) = (packet.source_port, packet.destination_port());
    match side {
        PortSide::Of(Side::Destination) => of(destination, ANSWERED, "destination"),
        PortSide::Of(Side::Source) => of(source, EPHEMERAL, "source"),
        PortSide::Either => Ok(source.is_some_and(is)
            || destination.is_some_and(is)
            || (of(source, EPHEMERAL, "source")? || of(destination, ANSWERED, "destination")?)),
    }
}

/// Lowest port that a client is assumed to send from.
const EPHEMERAL: u16 = 1024;
/// Lowest port that a reply is assumed to go to: the start of Linux's ephemeral ports
/// (`ip_local_port_range`). Other systems start at 49152.
const ANSWERED: u16 = 32_768;

fn is_in(state: ConntrackState, packet: &Packet) -> bool {
    let is_tracked = packet.is_tracked();
    match state {
        ConntrackState::New => packet.tracking == Tracking::New,
        ConntrackState::Established => packet.tracking == Tracking::Established,
        ConntrackState::Invalid => packet.tracking == Tracking::NotYet,
        ConntrackState::Untracked => packet.tracking == Tracking::Untracked,
        ConntrackState::Dnat => is_tracked && packet.destination_changed,
        ConntrackState::Snat => is_tracked && packet.source_nat.is_some(),
        ConntrackState::Later => false,
    }
}

fn is_of_type(
    address: IpAddr,
    types: &[String],
    limit: Option<Side>,
    packet: &Packet,
    kernel: &dyn Kernel,
) -> Result<bool, String> {
    let limit = limit.and_then(|side| interface(side, packet));
    let found = kernel
        .address_type(address, limit)
        .map_err(|unread| told(&unread))?;
    let name = match found {
        AddressType::Unicast => "UNICAST",
        AddressType::Local => "LOCAL",
        AddressType::Broadcast => "BROADCAST",
        AddressType::Multicast => "MULTICAST",
        AddressType::Blackhole => "BLACKHOLE",
        AddressType::Unreachable => "UNREACHABLE",
        AddressType::Prohibit => "PROHIBIT",
    };
    Ok(types.iter().any(|wanted| wanted == name))
}

/// Returns the ipset member that matches the packet. `sides` selects source or destination for each
/// part of the member.
fn member(
    set: &str,
    sides: &[Side],
    packet: &Packet,
    kernel: &dyn Kernel,
) -> Result<Option<String>, String> {
    let Some(type_name) = kernel.set_type(set).map_err(|unread| told(&unread))? else {
        return Err(format!("there is no ipset {set}"));
    };
    let Some(key) = key(&type_name, sides, packet)? else {
        return Ok(None);
    };
    kernel.member(set, &key).map_err(|unread| told(&unread))
}

/// Returns the ipset member that matches the packet, with its mark. `sides` selects source or
/// destination for each part of the member.
pub(super) fn marked_member(
    set: &str,
    sides: &[Side],
    packet: &Packet,
    kernel: &dyn Kernel,
) -> Result<Option<(String, Mark)>, String> {
    let Some(member) = member(set, sides, packet, kernel)? else {
        return Ok(None);
    };
    let type_name = kernel.set_type(set).map_err(|unread| told(&unread))?;
    let Some(key) = key(&type_name.unwrap_or_default(), sides, packet)? else {
        return Ok(None);
    };
    let mark = kernel.mark(set, &key).map_err(|unread| told(&unread))?;
    Ok(mark.map(|mark| (member, mark)))
}

/// Returns the packet's key for a set of the type `type_name`. Returns `None` if the rule names too
/// few sides, so that it never matches.
fn key(type_name: &str, sides: &[Side], packet: &Packet) -> Result<Option<SetKey>, String> {
    let unknown = || format!("sets of type {type_name} are not understood");
    let (_, parts) = type_name.split_once(':').ok_or_else(unknown)?;
    let mut key = SetKey::default();
    for (index, part) in parts.split(',').enumerate() {
        // As in the kernel, a rule that names too few sides (`src`, `dst`) never matches.
        let Some(side) = sides.get(index) else {
            return Ok(None);
        };
        match part {
            "ip" | "net" if key.ip.is_none() => key.ip = Some(address(*side, packet)),
            "ip" | "net" => key.ip2 = Some(address(*side, packet)),
            "port" => {
                let port = match side {
                    // The destination port of a reply is unknown. Assumes an ordinary ephemeral
                    // port, which no set should contain.
                    Side::Destination => packet.destination_port().unwrap_or(Packet::CLIENT_PORT),
                    Side::Source => packet.source_port.ok_or("it depends on the source port")?,
                };
                key.port = Some((packet.protocol, port));
            }
            _ => return Err(unknown()),
        }
    }
    Ok(Some(key))
}

fn is_of_server(wanted: &Ipvs, packet: &Packet) -> bool {
    let Some(server) = packet.server else {
        return false;
    };
    let ServiceKey::Address {
        protocol,
        address,
        port,
    } = server
    else {
        return wanted.address.is_none() && wanted.port.is_none();
    };
    let holds = |is: bool, is_wanted: bool| is == is_wanted;
    let of = |net: IpNet| net.contains(&address);
    wanted
        .protocol
        .is_none_or(|(number, is)| holds(protocol.0 == number, is))
        && wanted.address.is_none_or(|(net, is)| holds(of(net), is))
        && wanted
            .port
            .is_none_or(|(number, is)| holds(port == number, is))
}

fn told(unread: &ReadFailure) -> String {
    unread.to_string()
}

/// Describes a source translation, as text for the user.
pub(super) fn source_words(nat: &SourceNat) -> String {
    match nat {
        SourceNat::To(Some(address), _) => format!("its source becomes {address}"),
        SourceNat::To(None, _) => "a new source port is chosen".to_owned(),
        SourceNat::Masquerade(Some(address)) => {
            format!(
                "masqueraded: its source becomes {address}, of the interface by which it leaves"
            )
        }
        SourceNat::Masquerade(None) => {
            "masqueraded: its source becomes an address of this node".to_owned()
        }
    }
}
