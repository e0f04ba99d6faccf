use std::net::IpAddr;

use packet_path::Packet;
use view::{Address, Endpoint, Port, Service, ServiceName};

use super::*;
use crate::journeys::{Hop, Routing};

/// Fake kernel in which every packet has this number of paths, each to a different endpoint.
struct Fake(u16);

impl Routing for Fake {
    fn hop(&self, _: IpAddr) -> Option<Hop> {
        Some(Hop {
            interface: "eth0".to_owned(),
            is_local: false,
            is_service: false,
            is_neighbour: true,
            is_inner: true,
        })
    }
}

impl EndpointReplies for Fake {
    fn answers(&self, _: &packet_path::Walk) -> Vec<packet_path::Walk> {
        Vec::new()
    }

    fn listens(&self, _: std::net::SocketAddr, _: proxy::Protocol) -> Result<bool, String> {
        Ok(false)
    }
}

impl PacketTracer for Fake {
    fn follow(&self, planned: &TracedPacket<'_>) -> Vec<packet_path::Walk> {
        let mut packet = Packet::new(6, [10, 0, 0, 1].into(), planned.to.ip(), planned.to.port());
        packet.translate(Some([10, 244, 2, 1].into()), None);
        let walk = |port: u16| packet_path::Walk {
            chance: 1.0 / f64::from(self.0),
            fate: packet_path::Fate::Delivered,
            presumed: packet_path::Fate::Delivered,
            endpoint: Some(([10, 244, 2, 1], port).into()),
            why: String::new(),
            source: packet_path::Source::Kept,
            steps: Vec::new(),
            redirected_by: None,
            passed: 0,
            doubts: Vec::new(),
            packet: packet.clone(),
        };
        (1..=self.0).map(walk).collect()
    }

    fn unread(&self) -> Vec<String> {
        vec!["the moon cannot be read".to_owned()]
    }
}

fn objects(ports: u16, ways: u16) -> Objects {
    let endpoint = |port: u16| Endpoint {
        at: format!("10.244.2.1:{port}"),
        local: true,
        ..Endpoint::default()
    };
    let port = |number: u16| Port {
        protocol: "TCP".to_owned(),
        port: number,
        addresses: vec![Address {
            at: format!("10.96.0.9:{number}"),
            ..Address::default()
        }],
        endpoints: (1..=ways).map(endpoint).collect(),
        ..Port::default()
    };
    let service = Service {
        name: ServiceName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        ports: (1..=ports).map(port).collect(),
        ..Service::default()
    };
    Objects {
        mode: Some("ipvs".to_owned()),
        services: vec![service],
        ..Objects::default()
    }
}

fn explained(ports: u16, ways: u16) -> Explanation {
    let asked = TraceRequest::parse("default/web", "node", "").unwrap();
    explain(
        &asked,
        &objects(ports, ways),
        &Fake(ways),
        &|_, _, _| None,
        Quotes::All,
        MODES,
    )
}

#[test]
fn each_explanation_has_packet_paths_and_a_verdict() {
    let explanation = explained(2, 2);
    assert_eq!(explanation.mode.as_deref(), Some("ipvs"));
    let [first, _] = &*explanation.journeys else {
        panic!("{explanation:?}");
    };
    assert_eq!((&*first.from, &*first.to), ("this node", "10.96.0.9:1"));
    assert_eq!(first.of.as_deref(), Some("clusterIP of default/web"));
    assert!(
        first
            .verdict
            .starts_with("this node reaches 10.244.2.1:1 or 10.244.2.1:2, half each")
    );
    assert_eq!(explanation.notes, ["the moon cannot be read"]);
    assert_eq!(exit_status(&explanation), 0);
}

#[test]
fn the_size_of_an_explanation_is_limited() {
    let many = explained(300, 1);
    assert_eq!(many.journeys.len(), JOURNEYS_MAX);
    assert!(
        many.notes[0].starts_with("200 of 300 journeys were followed"),
        "{:?}",
        many.notes
    );
    let wide = explained(5, 5_000);
    let listed: usize = wide.journeys.iter().map(|one| one.walks.len()).sum();
    assert_eq!(listed, WALKS_MAX);
    assert!(
        wide.notes[0].contains("500 of 5000 ways are listed"),
        "{:?}",
        wide.notes[0]
    );
    // The verdict counts all 5,000 paths, including those that the response does not list.
    assert!(wide.journeys[0].verdict.contains("one in 5000 each"));
}

#[test]
fn the_exit_status_of_explain_tells_whether_packets_are_lost() {
    let with = |fate| {
        let mut explanation = explained(2, 1);
        explanation.journeys[1].walks[0].fate = fate;
        exit_status(&explanation)
    };
    assert_eq!(with(Fate::Delivered), 0);
    assert_eq!(with(Fate::Local), 0);
    for fate in [Fate::Dropped, Fate::Refused, Fate::Reset, Fate::Forwarded] {
        assert_eq!(with(fate), 1, "{fate:?}");
    }
    assert_eq!(with(Fate::Unknown), 2);
    assert_eq!(exit_status(&Explanation::default()), 2);
    let mut lost = explained(1, 1);
    lost.journeys[0].walks[0].unanswered = Some("it is deaf".to_owned());
    assert_eq!(exit_status(&lost), 1);
}

#[test]
fn a_certain_failure_outweighs_an_unknown_reply() {
    let journey = |walk: Walk| Journey {
        walks: vec![walk],
        ..Journey::default()
    };
    let arrives = || Walk {
        fate: Fate::Delivered,
        ..Walk::default()
    };
    let unsure = || Walk {
        unsure: Some("it goes by another node".to_owned()),
        ..arrives()
    };
    let lost = || Walk {
        unanswered: Some("a rule drops it".to_owned()),
        ..arrives()
    };
    for (walks, status) in [
        (vec![arrives()], 0),
        (vec![arrives(), unsure()], 2),
        (vec![unsure(), lost()], 1),
        (vec![lost(), Walk::default()], 2),
    ] {
        let told = Explanation {
            journeys: walks.into_iter().map(journey).collect(),
            ..Explanation::default()
        };
        assert_eq!(exit_status(&told), status, "{told:?}");
    }
}

/// Compares times of this machine, because a look-up of each path among all endpoints would take 16
/// times as long for four times as many.
#[test]
fn the_time_for_an_explanation_grows_linearly_with_endpoints() {
    let time = |ways| {
        let took = || {
            let began = std::time::Instant::now();
            drop(explained(1, ways));
            began.elapsed()
        };
        [(); 3].map(|()| took()).into_iter().min().unwrap()
    };
    let (few, many) = (time(2_000), time(8_000));
    assert!(many < few * 9, "{few:?}, {many:?}");
}
