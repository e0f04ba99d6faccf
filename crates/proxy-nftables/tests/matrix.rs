//! Checks the documented packet matrix (docs/packet-matrix.md) against the rules of nftables mode,
//! without packets.
//!
//! The interpreter of the program `explain` evaluates the rules of each Service of the matrix, in
//! each layout. Scenarios in the lab check the same matrix with real packets.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[path = "../../packet-path/tests/nft/node.rs"]
#[allow(dead_code, reason = "what needs a kernel is for others")]
mod node;

use std::net::IpAddr;
use std::time::Instant;

use fixtures::{ALL_KINDS, complete_lists, start_lists};
use nftables_netlink::Family;
use packet_path::nft::{InMemoryTables, Nft};
use proxy::{
    EndpointSlice, Event, IpFamily, LocalDetector, Mode as _, Model, NamespacedName, NodeFacts,
    Protocol, Service, ServiceCidr, ServicePort, ServiceType,
};
use proxy_nftables::fake::FakeKernel;
use proxy_nftables::{Config, Lanes, Layout, Proxier, TABLE};

const MATRIX: &str = include_str!("../../../docs/packet-matrix.md");
const LOCAL: &str = "10.244.1.2";
const REMOTE: &str = "10.244.2.3";

/// Number of ways to detect traffic from pods: with `--cluster-cidr`, without it, and with
/// `--masquerade-all`. A cell of the matrix has the first result, and other results in parentheses.
const DETECTIONS: usize = 3;

fn config(layout: Layout, detection: usize) -> Config {
    let net = LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap());
    Config {
        layout,
        detector: if detection == 1 {
            LocalDetector::None
        } else {
            net
        },
        masquerade_all: detection == 2,
        ..Config::default()
    }
}

/// A section of the matrix, which describes one Service.
#[derive(Clone, Copy)]
struct Section<'a> {
    title: &'a str,
    is_cluster_ip_only: bool,
}

impl Section<'_> {
    fn service(self) -> (Service, EndpointSlice) {
        let has = |words: &str| self.title.starts_with(words);
        let name = NamespacedName::new("default", "web");
        let mut service = Service::at(name.clone(), ["10.96.0.1".parse().unwrap()]);
        service.internal_local = has("internalTrafficPolicy") || has("Both policies Local");
        service.external_local = has("externalTrafficPolicy") || has("Both policies Local");
        service.ports.push(ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: (!self.is_cluster_ip_only).then_some(30_080),
        });
        if !self.is_cluster_ip_only {
            service.kind = ServiceType::LoadBalancer;
            service.ingress_ips = vec!["203.0.113.1".parse().unwrap()];
            service.external_ips = vec!["198.51.100.1".parse().unwrap()];
        }
        let both = [(LOCAL, "node1"), (REMOTE, "node2")];
        let is_remote_only = self.title.ends_with("endpoint only on another node");
        let there = if is_remote_only { &both[1..] } else { &both };
        let endpoints = there.iter().map(|(address, node)| {
            let address: IpAddr = address.parse().unwrap();
            fixtures::endpoint(address, node)
        });
        let slice = fixtures::slice("web-a", "web", &[Protocol::Tcp], endpoints);
        (service, slice)
    }

    fn model(self) -> Model {
        let mut model = Model::new();
        start_lists(&mut model, &ALL_KINDS);
        model.apply(fixtures::node(node::NODE.parse().unwrap()));
        model.apply(Event::ServiceCidrApplied(ServiceCidr {
            name: "kubernetes".into(),
            nets: vec!["10.96.0.0/12".parse().unwrap()],
        }));
        let (service, slice) = self.service();
        model.apply(Event::ServiceApplied(service));
        model.apply(Event::SliceApplied(slice));
        complete_lists(&mut model, &ALL_KINDS, true);
        model
    }

    /// Returns the tables that nftables mode writes for the section's Service.
    fn table(self, config: Config) -> InMemoryTables {
        let mut model = self.model();
        let kernel = FakeKernel::new(IpFamily::V4, &["127.0.0.1", node::NODE]);
        let now = Instant::now();
        let lanes = Lanes::inline(|| kernel.clone());
        let mut proxier = Proxier::new(config, NodeFacts::new(IpFamily::V4, "node1"), lanes, now);
        let changes = model.take_changes();
        proxier.update(&model, &changes, now);
        for _ in 0..8 {
            proxier.proceed(&model, now);
            while let Some(report) = proxier.book(&model, now) {
                assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
            }
        }
        assert_eq!(proxier.standing().pending, 0);
        let content = kernel.state().table.clone().unwrap();
        let mut held = InMemoryTables::default();
        held.add_table(Family::Ip, TABLE);
        for (chain, rules) in content.chains.into_values() {
            held.add_chain(Family::Ip, TABLE, &chain, rules);
        }
        for (set, elements) in content.sets.into_values() {
            held.add_set(Family::Ip, TABLE, &set, elements.into_values().collect());
        }
        held
    }
}

/// Evaluates the rules for a packet, and describes the outcome in the words of the matrix.
fn words(held: &mut InMemoryTables, from: &str, to: &str) -> String {
    let from = match from {
        "pod" => "10.244.1.77",
        "node" => node::NODE,
        "outside" => "192.0.2.7",
        other => panic!("{other}"),
    };
    let to = match to {
        "ClusterIP" | "ClusterIP only" => "10.96.0.1:80",
        "NodePort" => "192.168.99.10:30080",
        "LoadBalancer" => "203.0.113.1:80",
        "externalIP" => "198.51.100.1:80",
        other => panic!("{other}"),
    };
    let packet = node::packet(6, from, to);
    let nft = Nft::read(held, packet.family()).unwrap();
    let outcomes = node::outcomes(&node::journey(&nft, &packet));
    let outcomes: Vec<&str> = outcomes.iter().map(String::as_str).collect();
    let told = match outcomes.as_slice() {
        ["dropped"] => "timeout",
        ["refused"] => "refused",
        ["10.244.1.2:8080 kept"] => "local, client",
        ["10.244.1.2:8080 masq"] => "local, node",
        ["10.244.2.3:8080 kept"] => "remote, client",
        ["10.244.2.3:8080 masq"] => "remote, node",
        ["10.244.1.2:8080 kept 50%", "10.244.2.3:8080 kept 50%"] => "both, client",
        ["10.244.1.2:8080 masq 50%", "10.244.2.3:8080 masq 50%"] => "both, node",
        other => return format!("{other:?}"),
    };
    told.to_owned()
}

/// Returns the outcomes that the matrix lists for nftables mode, one for each way to detect pods.
fn wanted(columns: &[&str]) -> [String; DETECTIONS] {
    let [ipvs, would, ..] = columns else {
        panic!("{columns:?}");
    };
    let cell = if *would == "as IPVS" { ipvs } else { would };
    let (main, others) = cell.split_once(" (").unwrap_or((cell, ""));
    let other = |condition: &str| {
        let Some((_, rest)) = others.split_once(condition) else {
            return main.to_owned();
        };
        let result = rest.trim_start_matches(": ").split(')').next().unwrap();
        // A parenthesis omits the endpoint if only the source differs.
        match main.split_once(", ") {
            Some((endpoint, _)) if ["client", "node", "VIP"].contains(&result) => {
                format!("{endpoint}, {result}")
            }
            _ => result.to_owned(),
        }
    };
    [
        main.to_owned(),
        other("without `--cluster-cidr`"),
        other("with `--masquerade-all`"),
    ]
}

#[test]
fn the_documented_packet_matrix_follows_from_the_nftables_rules() {
    let (mut title, mut rows) = ("", 0);
    for line in MATRIX.lines() {
        if let Some(of) = line.strip_prefix("## ") {
            title = of;
        }
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", clients, to, columns @ ..] = columns.as_slice() else {
            continue;
        };
        let clients = clients.split(", ");
        let clients = clients.filter(|client| ["pod", "node", "outside"].contains(client));
        let ways = clients.flat_map(|from| to.split(", ").map(move |to| (from, to)));
        for (from, to) in ways {
            rows += 1;
            let section = Section {
                title,
                is_cluster_ip_only: to == "ClusterIP only",
            };
            for layout in [Layout::Upstream, Layout::Flat] {
                for (detection, wanted) in wanted(columns).into_iter().enumerate() {
                    let mut held = section.table(config(layout, detection));
                    let found = words(&mut held, from, to);
                    let place =
                        format!("{title}: {from} to {to}, {layout:?}, detection {detection}");
                    assert_eq!(found, wanted, "{place}");
                }
            }
        }
    }
    assert!(rows > 90, "{rows}");
}
