//! A fake node with nf_tables rules, and the outcomes of packets on it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use inet::{IpFamily, Protocol};
use ipvs_netlink::ServiceKey;
use namespace::in_namespace;
use nftables_netlink::Nftables;
use packet_path::nft::{Nft, Reader};
use packet_path::{
    AddressType, Branch, Fate, Hook, Interface, Kernel, Packet, Question, ReadFailure, Route,
    RouteQuestion, Ruleset, Sender, Server, SetKey, Source, Walk, walk,
};

pub(crate) const NODE: &str = "192.168.99.10";
pub(crate) const NODE6: &str = "fd00:99::10";

/// Runs `story` on a separate thread, in a new network namespace with the ruleset `rules`.
pub(crate) fn with_rules<T: Send>(rules: &str, story: impl FnOnce(&mut Nftables) -> T + Send) -> T {
    in_namespace(|| {
        nft(&["-f", "-"], rules);
        story(&mut Nftables::open().unwrap())
    })
}

pub(crate) fn nft(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?} {input}");
    String::from_utf8(output.stdout).unwrap()
}

/// A fake node with the addresses `NODE`, `NODE6` and localhost. Its pods have addresses in
/// 10.244.1.0/24 and fd00:244:1::/64, behind veth7. All other addresses are behind eth0.
pub(crate) struct Node;

fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || [NODE, NODE6].iter().any(|own| own.parse() == Ok(address))
}

fn interface(address: IpAddr) -> Interface {
    let text = address.to_string();
    let is_pod = text.starts_with("10.244.1.") || text.starts_with("fd00:244:1:");
    let (index, name) = match is_pod {
        _ if is_local(address) => (1, "lo"),
        true => (7, "veth7"),
        false => (2, "eth0"),
    };
    Interface {
        index: Some(index),
        name: name.to_owned(),
    }
}

impl Kernel for Node {
    fn route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure> {
        let to = question.destination;
        Ok(if is_local(to) {
            Route::Local { source: None }
        } else {
            Route::Out {
                interface: interface(to),
                gateway: None,
                source: None,
            }
        })
    }

    fn address_type(
        &self,
        address: IpAddr,
        _: Option<&Interface>,
    ) -> Result<AddressType, ReadFailure> {
        Ok(if is_local(address) {
            AddressType::Local
        } else {
            AddressType::Unicast
        })
    }

    fn address_of(&self, _: &Interface, to: IpAddr) -> Result<Option<IpAddr>, ReadFailure> {
        let own = if to.is_ipv4() { NODE } else { NODE6 };
        Ok(own.parse().ok())
    }

    fn set_type(&self, _: &str) -> Result<Option<String>, ReadFailure> {
        Ok(None)
    }

    fn member(&self, _: &str, _: &SetKey) -> Result<Option<String>, ReadFailure> {
        Ok(None)
    }

    fn mark(&self, _: &str, _: &SetKey) -> Result<Option<ipset_netlink::Mark>, ReadFailure> {
        Ok(None)
    }

    fn server(&self, _: &ServiceKey) -> Result<Option<Server>, ReadFailure> {
        Ok(None)
    }

    fn is_bridge(&self, _: &Interface) -> Result<bool, ReadFailure> {
        Ok(false)
    }

    fn setting(&self, _: &str) -> Result<Option<String>, ReadFailure> {
        Ok(None)
    }
}

/// Creates the first packet of a flow. If `from` is an address of the node, the node sends it.
pub(crate) fn packet(protocol: u8, from: &str, to: &str) -> Packet {
    let to: SocketAddr = to.parse().unwrap();
    let from: IpAddr = from.parse().unwrap();
    let mut packet = Packet::new(protocol, from, to.ip(), to.port());
    if !is_local(from) {
        packet.iif = Some(interface(from));
    }
    packet
}

/// Follows a packet through all hooks of the node.
pub(crate) fn journey<R: Reader>(nft: &Nft<R>, packet: &Packet) -> Vec<Walk> {
    let question = Question {
        protocol: Protocol::from_number(packet.protocol).unwrap(),
        from: match &packet.iif {
            Some(iif) => Sender::Other(packet.source, Some(iif.clone())),
            None => Sender::Node(Some(packet.source)),
        },
        to: packet.to(),
        source_port: None,
    };
    walk(&question, &[nft], &Node)
}

/// Moves a packet through all base chains of one hook.
pub(crate) fn at<R: Reader>(nft: &Nft<R>, hook: Hook, packet: Packet) -> Vec<Branch> {
    let mut bases = nft.base_chains(hook);
    bases.sort_by_key(|base| base.priority);
    let mut branches = vec![Branch::new(packet)];
    for base in bases {
        let walked = branches.into_iter();
        let walked = walked.flat_map(|branch| match branch.end {
            Some(_) => vec![branch],
            None => nft.walk(&base, branch, &Node),
        });
        branches = walked.collect();
    }
    branches
}

/// Formats the outcomes of a packet, the most probable first, such as `10.244.1.5:8080 masq 50%`.
pub(crate) fn outcomes(walks: &[Walk]) -> Vec<String> {
    let mut all: Vec<(String, f64)> = Vec::new();
    for walk in walks {
        let mut words = match (walk.presumed, walk.endpoint) {
            (Fate::Dropped, _) => "dropped".to_owned(),
            (Fate::Refused, _) => "refused".to_owned(),
            (Fate::Unrouted, _) => "unrouted".to_owned(),
            (_, Some(endpoint)) => {
                let source = match &walk.source {
                    Source::Kept => "kept".to_owned(),
                    Source::ServiceAddress => "vip".to_owned(),
                    Source::Masqueraded(_) => "masq".to_owned(),
                    Source::Rewritten(to) => format!("{to:?}"),
                };
                format!("{endpoint} {source}")
            }
            (_, None) => format!("unknown: {}", walk.why),
        };
        for doubt in &walk.doubts {
            let _ = write!(words, " if {} {}", doubt.what, doubt.matches);
        }
        match all.iter_mut().find(|(of, _)| *of == words) {
            Some((_, chance)) => *chance += walk.chance,
            None => all.push((words, walk.chance)),
        }
    }
    all.sort_by(|(one, a), (other, b)| {
        let (a, b) = ((a * 1e6).round(), (b * 1e6).round());
        b.total_cmp(&a).then_with(|| one.cmp(other))
    });
    let told = all.into_iter();
    let told = told.map(|(words, chance)| match (chance * 100.0).round() {
        100.0 => words,
        percent => format!("{words} {percent}%"),
    });
    told.collect()
}

/// Returns the outcomes of a packet in the ruleset that `reader` reads.
pub(crate) fn ask<R: Reader>(reader: &mut R, packet: &Packet) -> Vec<String> {
    let nft = Nft::read(reader, packet.family()).unwrap();
    outcomes(&journey(&nft, packet))
}

/// Returns the outcomes of a TCP packet from `from` to `to`.
pub(crate) fn tcp<R: Reader>(reader: &mut R, from: &str, to: &str) -> Vec<String> {
    ask(reader, &packet(6, from, to))
}

pub(crate) const FAMILIES: [IpFamily; 2] = IpFamily::ALL;
