//! A fake node with dumps of kube-proxy 1.36.2 (integration/golden/cases). It has 192.168.99.10 on
//! eth0, its pods on cni0, and a route to other nodes' pods through 192.168.99.2.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use inet::{IpFamily, Protocol};
use ipnet::IpNet;
use ipvs_netlink::{
    Destination, DestinationEntry, Flags, Service, ServiceEntry, ServiceKey, Statistics,
};
use packet_path::{
    Fate, Interface, Question, Ruleset, Sender, Server, Snapshot, Source, Walk, Xtables,
};

/// Rules and other kernel state of a fake node.
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) rules: Xtables,
}

pub(crate) fn interface(index: u32, name: &str) -> Interface {
    Interface {
        index: Some(index),
        name: name.to_owned(),
    }
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Formats the outcome of one path, such as `10.244.1.5:8080 kept` or `dropped`.
pub(crate) fn short(walk: &Walk) -> String {
    let source = match walk.source {
        Source::Kept => "kept".to_owned(),
        Source::ServiceAddress => "vip".to_owned(),
        Source::Masqueraded(Some(by)) => format!("masq {by}"),
        Source::Masqueraded(None) => "masq".to_owned(),
        Source::Rewritten(to) => format!("rewritten {to:?}"),
    };
    match walk.fate {
        Fate::Delivered => format!("{} {source}", walk.endpoint.unwrap()),
        Fate::Local => format!("local {}", walk.endpoint.unwrap()),
        Fate::Forwarded => format!("forwarded {} {source}", walk.endpoint.unwrap()),
        Fate::Refused => format!("refused by {}", walk.why),
        Fate::Unrouted => format!("unrouted: {}", walk.why),
        Fate::Dropped => "dropped".to_owned(),
        Fate::Unknown => format!("unknown: {}", walk.why),
    }
}

impl World {
    /// Builds a node without kube-proxy, with only these iptables rules.
    pub(crate) fn bare(rules: &str) -> Self {
        let (lo, eth0, cni0) = (
            Interface::loopback(),
            interface(2, "eth0"),
            interface(3, "cni0"),
        );
        let gateway = |text: &str| Some(text.parse().unwrap());
        let settings = [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/route_localnet", "0"),
        ];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let snapshot = Snapshot {
            addresses: vec![
                (lo, net("127.0.0.1/8")),
                (eth0.clone(), net("192.168.99.10/24")),
                (eth0.clone(), net("fd00:99::10/64")),
                (cni0.clone(), net("10.244.1.1/24")),
                (cni0.clone(), net("fd00:244:1::1/64")),
            ],
            routes: vec![
                (net("192.168.99.0/24"), eth0.clone(), None),
                (net("fd00:99::/64"), eth0.clone(), None),
                (net("10.244.1.0/24"), cni0.clone(), None),
                (net("fd00:244:1::/64"), cni0, None),
                (net("10.244.0.0/16"), eth0.clone(), gateway("192.168.99.2")),
                (net("fd00:244::/56"), eth0.clone(), gateway("fd00:99::2")),
                (net("0.0.0.0/0"), eth0.clone(), gateway("192.168.99.1")),
                (net("::/0"), eth0, gateway("fd00:99::1")),
            ],
            settings: settings.into_iter().map(owned).collect(),
            ..Snapshot::default()
        };
        Self {
            snapshot,
            rules: Xtables::of(rules),
        }
    }

    /// Builds a node with the rules, ipsets and virtual servers of a golden case, for one IP
    /// family.
    pub(crate) fn golden(mode: &str, case: &str, is_ipv6: bool) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../integration/golden/cases")
            .join(mode)
            .join(case);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let rules = if is_ipv6 {
            "ip6tables-save"
        } else {
            "iptables-save"
        };
        let mut world = Self::bare(&read(rules));
        for line in read("ipset-save").lines() {
            world.set(line);
        }
        for line in read("ipvsadm-save").lines() {
            world.server(line);
        }
        for line in read("kube-ipvs0-addresses").lines() {
            let at = interface(4, "kube-ipvs0");
            world.snapshot.addresses.push((at, net(line)));
        }
        for line in read("sysctl-changes").lines() {
            let (name, value) = line.split_once(':').unwrap();
            world.sysctl(name, value);
        }
        world
    }

    pub(crate) fn sysctl(&mut self, name: &str, value: &str) {
        let settings = &mut self.snapshot.settings;
        settings.insert(name.to_owned(), value.to_owned());
    }

    /// Adds a set or a member, from a line of `ipset save`.
    pub(crate) fn set(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let sets = &mut self.snapshot.sets;
        match *words.as_slice() {
            // The dump is sorted, so a set's `add` lines precede its `create` line.
            ["create", name, kind, ..] => {
                let (type_name, _) = sets.entry(name.to_owned()).or_default();
                kind.clone_into(type_name);
            }
            ["add", name, ref member @ ..] => {
                let (_, members) = sets.entry(name.to_owned()).or_default();
                members.push(member.join(" "));
            }
            _ => panic!("{line}"),
        }
    }

    /// Adds a virtual server or a destination, from a line of `ipvsadm -Sn`.
    pub(crate) fn server(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let value = |option| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let at = |protocol| {
            let at: SocketAddr = words[2].parse().unwrap();
            ServiceKey::new(protocol, at.ip(), at.port())
        };
        let key = match words[1] {
            "-t" => at(ipvs_netlink::Protocol::TCP),
            "-u" => at(ipvs_netlink::Protocol::UDP),
            "-f" => ServiceKey::Fwmark {
                family: IpFamily::V4,
                mark: words[2].parse().unwrap(),
            },
            _ => at(ipvs_netlink::Protocol::SCTP),
        };
        if words[0] == "-A" {
            let mut service = Service::new(key, value("-s").unwrap().parse().unwrap());
            if let Some(timeout) = value("-p") {
                service.flags |= Flags::PERSISTENT;
                service.timeout = timeout.parse().unwrap();
            }
            let entry = ServiceEntry {
                service,
                statistics: Statistics::default(),
            };
            let destinations = Vec::new();
            self.snapshot.servers.insert(
                key,
                Server {
                    entry,
                    destinations,
                },
            );
            return;
        }
        let to: SocketAddr = value("-r").unwrap().parse().unwrap();
        let weight = value("-w").unwrap().parse().unwrap();
        let server = self.snapshot.servers.get_mut(&key).unwrap();
        server.destinations.push(DestinationEntry {
            destination: Destination::new(to, weight),
            active: 0,
            inactive: 0,
            persistent: 0,
            statistics: Statistics::default(),
        });
    }

    /// Formats the outcome of the reply to each packet that arrives, such as `10.244.1.5:8080
    /// forwarded`.
    pub(crate) fn answers(&self, from: &str, to: &str) -> Vec<String> {
        let rulesets: [&dyn Ruleset; 1] = [&self.rules];
        let said = |arrived: &Walk| {
            let answers = packet_path::answer(arrived, &rulesets, &self.snapshot);
            let endpoint = arrived.endpoint.unwrap();
            let said = move |answer: &Walk| match answer.fate {
                Fate::Forwarded => format!("{endpoint} forwarded"),
                Fate::Local => format!("{endpoint} local"),
                Fate::Dropped => {
                    let last = answer.steps.last();
                    format!("{endpoint} dropped by {}", last.unwrap().place)
                }
                _ => format!("{endpoint} {:?}: {}", answer.fate, answer.why),
            };
            answers.iter().map(said).collect::<Vec<_>>()
        };
        self.ask(from, to).iter().flat_map(said).collect()
    }

    pub(crate) fn ask(&self, from: &str, to: &str) -> Vec<Walk> {
        self.ask_by(Protocol::Tcp, from, to)
    }

    /// Follows a packet from `from` (`node` or an address) to `to`. Returns its possible paths.
    pub(crate) fn ask_by(&self, protocol: Protocol, from: &str, to: &str) -> Vec<Walk> {
        let from = match from {
            "node" => Sender::Node(None),
            address => Sender::Other(address.parse::<IpAddr>().unwrap(), None),
        };
        let question = Question {
            protocol,
            from,
            to: to.parse().unwrap(),
            source_port: None,
        };
        let rulesets: [&dyn Ruleset; 1] = [&self.rules];
        packet_path::walk(&question, &rulesets, &self.snapshot)
    }

    /// Returns the outcomes of all paths of a TCP packet, the most probable first.
    pub(crate) fn comes_to(&self, from: &str, to: &str) -> Vec<String> {
        let walks = self.ask(from, to);
        let sum: f64 = walks.iter().map(|walk| walk.chance).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{from} to {to}: {walks:#?}");
        walks.iter().map(short).collect()
    }
}
