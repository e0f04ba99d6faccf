//! Compares this crate's messages with messages of the real kernel (6.1) and of `ipvsadm` (1.31).
//! `examples/capture_services.rs` captured these messages on a little-endian machine.
#![cfg(target_endian = "little")]
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::net::{IpAddr, SocketAddr};

use ipvs_netlink::{
    Destination, DestinationEntry, DestinationKey, Family, Flags, Forward, IpFamily, Name,
    Protocol, Service, ServiceEntry, ServiceKey, Statistics, Timeouts, Tunnel,
};
use netlink_batch::{Attributes, Batch, Writer};
use proptest::prelude::*;

const REPLIES: &str = include_str!("data/replies.hex");
const REQUESTS: &str = include_str!("data/requests.hex");

const SERVICE: u16 = 1;
const DEST: u16 = 2;
const STATS: u16 = 10;
const STATS64: u16 = 12;

/// A request to encode. The encoded bytes must equal those of an `ipvsadm` command.
enum Act {
    New(Service),
    Set(Service),
    Del(ServiceKey),
    NewDest(ServiceKey, Destination),
    SetDest(ServiceKey, Destination),
    DelDest(ServiceKey, DestinationKey),
    Zero(Option<ServiceKey>),
    Timeouts(Timeouts),
    Flush,
}

fn key(protocol: Protocol, address: &str) -> ServiceKey {
    let address: SocketAddr = address.parse().unwrap();
    ServiceKey::new(protocol, address.ip(), address.port())
}

fn tcp(address: &str) -> ServiceKey {
    key(Protocol::TCP, address)
}

fn udp(address: &str) -> ServiceKey {
    key(Protocol::UDP, address)
}

fn server(address: &str) -> DestinationKey {
    address.parse::<SocketAddr>().unwrap().into()
}

fn service(key: ServiceKey, scheduler: &str) -> Service {
    Service::new(key, scheduler.parse().unwrap())
}

fn persistent(key: ServiceKey, scheduler: &str, timeout: u32) -> Service {
    Service {
        flags: Flags::PERSISTENT,
        timeout,
        ..service(key, scheduler)
    }
}

fn destination(address: &str, weight: u32) -> Destination {
    Destination::new(server(address), weight)
}

fn via(forward: Forward, address: &str, weight: u32) -> Destination {
    Destination {
        forward,
        ..destination(address, weight)
    }
}

/// Returns the commands of `examples/capture_services.rs`, each with the corresponding request of
/// this crate.
fn acts() -> Vec<(&'static str, Act)> {
    let web = tcp("10.0.0.1:80");
    let web6 = tcp("[fd00::1]:80");
    let mark = ServiceKey::Fwmark {
        family: IpFamily::V4,
        mark: 7,
    };
    let mark6 = ServiceKey::Fwmark {
        family: IpFamily::V6,
        mark: 8,
    };
    let one_packet = Service {
        flags: Flags::ONE_PACKET,
        ..service(udp("10.0.0.1:53"), "wrr")
    };
    let per_network = Service {
        netmask: 0xffff_ff00,
        ..persistent(tcp("10.0.0.3:443"), "wrr", 300)
    };
    let per_network6 = Service {
        netmask: 64,
        ..persistent(tcp("[fd00::2]:80"), "rr", 300)
    };
    let maglev = Service {
        flags: Flags::SCHED_1 | Flags::SCHED_2,
        ..service(tcp("10.0.0.4:80"), "mh")
    };
    let source_hash = Service {
        flags: Flags::SCHED_1,
        ..service(tcp("10.0.0.5:80"), "sh")
    };
    let sip = Service {
        persistence_engine: Some("sip".parse().unwrap()),
        ..persistent(udp("10.0.0.6:5060"), "rr", 60)
    };
    let limited = Destination {
        upper_threshold: 200,
        lower_threshold: 150,
        ..destination("192.0.2.2:8080", 100)
    };
    let gue = Destination {
        tunnel: Tunnel {
            kind: 1,
            port: 6080,
            flags: 1,
        },
        ..via(Forward::Tunnel, "192.0.2.5:80", 1)
    };
    vec![
        ("-A -t 10.0.0.1:80 -s rr", Act::New(service(web, "rr"))),
        ("-A -u 10.0.0.1:53 -s wrr -o", Act::New(one_packet)),
        (
            "-A --sctp-service 10.0.0.1:9 -s rr",
            Act::New(service(key(Protocol::SCTP, "10.0.0.1:9"), "rr")),
        ),
        (
            "-A -t 10.0.0.2:443 -s wrr -p 10800",
            Act::New(persistent(tcp("10.0.0.2:443"), "wrr", 10_800)),
        ),
        (
            "-A -t 10.0.0.3:443 -s wrr -p 300 -M 255.255.255.0",
            Act::New(per_network),
        ),
        (
            "-A -t 10.0.0.4:80 -s mh -b mh-fallback,mh-port",
            Act::New(maglev),
        ),
        (
            "-A -t 10.0.0.5:80 -s sh -b sh-fallback",
            Act::New(source_hash),
        ),
        ("-A -u 10.0.0.6:5060 -s rr -p 60 --pe sip", Act::New(sip)),
        ("-A -f 7 -s rr", Act::New(service(mark, "rr"))),
        (
            "-A -f 8 -6 -s rr -p 90",
            Act::New(persistent(mark6, "rr", 90)),
        ),
        ("-A -t [fd00::1]:80 -s rr", Act::New(service(web6, "rr"))),
        (
            "-A -u [fd00::1]:53 -s rr -p 10800",
            Act::New(persistent(udp("[fd00::1]:53"), "rr", 10_800)),
        ),
        (
            "-A -t [fd00::2]:80 -s rr -p 300 -M 64",
            Act::New(per_network6),
        ),
        (
            "-a -t 10.0.0.1:80 -r 192.0.2.1:8080 -m -w 1",
            Act::NewDest(web, destination("192.0.2.1:8080", 1)),
        ),
        (
            "-a -t 10.0.0.1:80 -r 192.0.2.2:8080 -m -w 100 -x 200 -y 150",
            Act::NewDest(web, limited),
        ),
        (
            "-a -t 10.0.0.1:80 -r 192.0.2.3:80 -g -w 0",
            Act::NewDest(web, via(Forward::Route, "192.0.2.3:80", 0)),
        ),
        (
            "-a -t 10.0.0.1:80 -r 192.0.2.4:80 -i -w 65535",
            Act::NewDest(web, via(Forward::Tunnel, "192.0.2.4:80", 65_535)),
        ),
        (
            "-a -t 10.0.0.1:80 -r 192.0.2.5:80 -i --tun-type gue --tun-port 6080 --tun-csum",
            Act::NewDest(web, gue),
        ),
        (
            "-a -t 10.0.0.1:80 -r 127.0.0.1:80 -g -w 1",
            Act::NewDest(web, via(Forward::Route, "127.0.0.1:80", 1)),
        ),
        (
            "-a -f 7 -r 192.0.2.1 -m",
            Act::NewDest(mark, destination("192.0.2.1:0", 1)),
        ),
        (
            "-a -t [fd00::1]:80 -r [fd00:1::1]:8080 -m -w 3",
            Act::NewDest(web6, destination("[fd00:1::1]:8080", 3)),
        ),
        (
            "-a -t 10.0.0.2:443 -r [fd00:1::2]:443 -i -w 1",
            Act::NewDest(
                tcp("10.0.0.2:443"),
                via(Forward::Tunnel, "[fd00:1::2]:443", 1),
            ),
        ),
        (
            "-E -t 10.0.0.1:80 -s wrr -p 60",
            Act::Set(persistent(web, "wrr", 60)),
        ),
        (
            "-e -t 10.0.0.1:80 -r 192.0.2.1:8080 -m -w 7",
            Act::SetDest(web, destination("192.0.2.1:8080", 7)),
        ),
        (
            "-d -t 10.0.0.1:80 -r 192.0.2.1:8080",
            Act::DelDest(web, server("192.0.2.1:8080")),
        ),
        (
            "-d -t [fd00::1]:80 -r [fd00:1::1]:8080",
            Act::DelDest(web6, server("[fd00:1::1]:8080")),
        ),
        ("-D -u 10.0.0.1:53", Act::Del(udp("10.0.0.1:53"))),
        ("-D -f 8 -6", Act::Del(mark6)),
        ("-Z -t 10.0.0.1:80", Act::Zero(Some(web))),
        ("-Z", Act::Zero(None)),
        (
            "--set 900 120 300",
            Act::Timeouts(Timeouts {
                tcp: 900,
                tcp_fin: 120,
                udp: 300,
            }),
        ),
        ("-C", Act::Flush),
    ]
}

/// Parses a file of captured messages into tuples of `ipvsadm` command, kind of message, and bytes.
fn captured(text: &'static str) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut command = "";
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(next) = line.strip_prefix("$ ") {
            command = next.strip_prefix("ipvsadm ").unwrap_or(next);
            continue;
        }
        let (what, hex) = line.split_once(' ').unwrap();
        let bytes = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        lines.push((command, what, bytes.collect()));
    }
    lines
}

fn reply(what: &str, command: &str) -> Vec<u8> {
    let found = captured(REPLIES)
        .into_iter()
        .find(|line| line.0.starts_with(command) && line.1 == what);
    found
        .unwrap_or_else(|| panic!("no {what} captured for {command}"))
        .2
}

/// Returns the attributes of a message as tuples of outer kind, inner kind, and payload.
fn attributes(payload: &[u8]) -> Vec<(u16, u16, &[u8])> {
    let outer = Attributes::after(4, payload).unwrap().map(Result::unwrap);
    outer
        .flat_map(|outer| {
            outer
                .nested()
                .map(Result::unwrap)
                .map(move |inner| (outer.kind, inner.kind, inner.payload))
        })
        .collect()
}

#[test]
fn requests_equal_those_of_ipvsadm() {
    let family = Family::from_id(26);
    let acts = acts();
    let requests = captured(REQUESTS);
    assert_eq!(
        requests.iter().map(|request| request.0).collect::<Vec<_>>(),
        acts.iter().map(|act| act.0).collect::<Vec<_>>()
    );
    for ((command, act), (_, _, theirs)) in acts.iter().zip(&requests) {
        let mut batch = Batch::new();
        let index = match act {
            Act::New(service) => family.new_service(&mut batch, service),
            Act::Set(service) => family.set_service(&mut batch, service),
            Act::Del(key) => family.del_service(&mut batch, key),
            Act::NewDest(key, destination) => family.new_destination(&mut batch, key, destination),
            Act::SetDest(key, destination) => family.set_destination(&mut batch, key, destination),
            Act::DelDest(key, destination) => family.del_destination(&mut batch, key, destination),
            Act::Zero(key) => family.zero(&mut batch, key.as_ref()),
            Act::Timeouts(timeouts) => family.set_timeouts(&mut batch, timeouts),
            Act::Flush => family.flush(&mut batch),
        };
        assert_eq!((index, batch.len()), (0, 1));
        let message = batch.get(0).unwrap();
        assert_eq!((message.kind, message.flags), (26, 1));
        let ours = message.payload;
        // This crate sends only the few attributes that identify an object. ipvsadm also sends
        // further attributes, which the kernel ignores.
        let named: &[u16] = match act {
            Act::NewDest(..) | Act::SetDest(..) => &[SERVICE],
            Act::Del(_) | Act::DelDest(..) | Act::Zero(Some(_)) => &[SERVICE, DEST],
            Act::New(_) | Act::Set(_) | Act::Zero(None) | Act::Timeouts(_) | Act::Flush => {
                assert_eq!(ours, theirs, "{command}");
                continue;
            }
        };
        let mut theirs_named = attributes(theirs);
        theirs_named.retain(|(outer, inner, _)| {
            let identifies: &[u16] = if *outer == SERVICE {
                &[1, 2, 3, 4, 5]
            } else {
                &[1, 2, 11]
            };
            !named.contains(outer) || identifies.contains(inner)
        });
        assert_eq!(ours[..4], theirs[..4], "{command}");
        assert_eq!(attributes(ours), theirs_named, "{command}");
    }
}

#[test]
fn kernel_replies_decode_to_the_requested_services() {
    let mut checked = 0;
    for (command, act) in acts() {
        match act {
            Act::New(mut service) => {
                service.flags |= Flags::HASHED;
                let entry = ServiceEntry::decode(&reply("service", command)).unwrap();
                assert_eq!(
                    entry,
                    ServiceEntry {
                        service,
                        statistics: Statistics::default()
                    }
                );
            }
            Act::NewDest(service, destination) => {
                let payload = reply("destination", command);
                let entry = DestinationEntry::decode(&payload, service.family()).unwrap();
                assert_eq!(entry.destination, destination, "{command}");
                assert_eq!((entry.active, entry.inactive, entry.persistent), (0, 0, 0));
                assert_eq!(entry.statistics, Statistics::default());
            }
            _ => continue,
        }
        checked += 1;
    }
    assert_eq!(checked, 22);
}

/// Decodes the counters after three connections of 16 bytes each. Two connections are closed, and
/// one connection is open.
#[test]
fn ipvs_counters_and_numbers_of_connections_are_decoded() {
    let command = "three connections";
    let service = ServiceEntry::decode(&reply("service", command)).unwrap();
    let destination =
        DestinationEntry::decode(&reply("destination", command), IpFamily::V4).unwrap();
    assert_eq!(
        (
            destination.active,
            destination.inactive,
            destination.persistent
        ),
        (1, 2, 0)
    );
    assert_eq!(
        destination.destination.key.address,
        IpAddr::from([127, 0, 0, 1])
    );
    assert_eq!(service.statistics, STATISTICS);
    assert_eq!(destination.statistics, STATISTICS);
}

const STATISTICS: Statistics = Statistics {
    connections: 3,
    incoming_packets: 13,
    outgoing_packets: 8,
    incoming_bytes: 748,
    outgoing_bytes: 440,
    connection_rate: 0,
    incoming_packet_rate: 1,
    outgoing_packet_rate: 1,
    incoming_byte_rate: 70,
    outgoing_byte_rate: 41,
};

/// Returns a copy of the message `payload` with a new outer attribute. `keep` writes the inner
/// attributes that the copy should contain.
fn rebuilt(payload: &[u8], keep: impl Fn(&mut Writer<'_>, u16, &[u8])) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(1, 0, |message| {
        message.bytes(&payload[..4]);
        let inner = attributes(payload);
        message.nest(inner[0].0, |nest| {
            for (_, kind, payload) in inner {
                keep(nest, kind, payload);
            }
        });
    });
    batch.get(0).unwrap().payload.to_vec()
}

#[test]
fn replies_of_old_kernels_are_decoded() {
    for what in ["service", "destination"] {
        let old = rebuilt(&reply(what, "three connections"), |nest, kind, payload| {
            if kind != STATS64 && (what, kind) != ("destination", 11) {
                nest.attr(kind, payload);
            }
        });
        let statistics = match what {
            "service" => ServiceEntry::decode(&old).unwrap().statistics,
            _ => {
                DestinationEntry::decode(&old, IpFamily::V4)
                    .unwrap()
                    .statistics
            }
        };
        assert_eq!(statistics, STATISTICS);
    }
}

#[test]
fn unknown_netlink_attributes_are_ignored() {
    let payload = reply("service", "-A -t [fd00::2]:80");
    let longer = rebuilt(&payload, |nest, kind, payload| {
        nest.attr(kind, payload);
        nest.attr(999, b"from the future");
    });
    assert_eq!(
        ServiceEntry::decode(&longer),
        ServiceEntry::decode(&payload)
    );
}

/// Every known attribute has a fixed size, so an empty attribute is an error. The error must name
/// the attribute.
#[test]
fn truncated_netlink_attributes_are_errors() {
    for what in ["service", "destination"] {
        let payload = reply(what, "three connections");
        for (_, victim, _) in attributes(&payload) {
            // An empty list of counters is valid: all counters are zero.
            if [STATS, STATS64].contains(&victim) {
                continue;
            }
            let short = rebuilt(&payload, |nest, kind, payload| {
                nest.attr(kind, if kind == victim { &[] } else { payload });
            });
            let error = match what {
                "service" => ServiceEntry::decode(&short).map(drop),
                _ => DestinationEntry::decode(&short, IpFamily::V4).map(drop),
            };
            let error = error
                .expect_err("an empty attribute was accepted")
                .to_string();
            assert!(
                error.contains(&format!("netlink attribute {victim} ")),
                "{error}"
            );
        }
    }
}

#[test]
fn missing_identifying_attributes_are_errors() {
    for (what, needed) in [
        ("service", [1, 2, 3, 4, 6].as_slice()),
        ("destination", &[1, 2, 3, 4]),
    ] {
        for victim in needed {
            let without = rebuilt(&reply(what, "three connections"), |nest, kind, payload| {
                if kind != *victim {
                    nest.attr(kind, payload);
                }
            });
            let error = match what {
                "service" => ServiceEntry::decode(&without).map(drop),
                _ => DestinationEntry::decode(&without, IpFamily::V4).map(drop),
            };
            assert!(error.unwrap_err().to_string().ends_with("is missing"));
        }
    }
    assert!(ServiceEntry::decode(&[1, 1, 0, 0]).is_err());
    assert!(ServiceEntry::decode(&[]).is_err());
}

/// Generates any virtual server that the types can express.
fn any_service() -> impl Strategy<Value = Service> {
    let key = prop_oneof![
        (any::<u8>(), any::<IpAddr>(), any::<u16>()).prop_map(|(protocol, address, port)| {
            ServiceKey::new(Protocol(protocol), address, port)
        }),
        (any::<bool>(), any::<u32>()).prop_map(|(inet, mark)| ServiceKey::Fwmark {
            family: if inet { IpFamily::V4 } else { IpFamily::V6 },
            mark
        }),
    ];
    let name = || "[a-z0-9-]{1,15}".prop_map(|name| name.parse::<Name>().unwrap());
    (
        key,
        name(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        proptest::option::of(name()),
    )
        .prop_map(
            |(key, scheduler, flags, timeout, netmask, persistence_engine)| Service {
                key,
                scheduler,
                flags: Flags::from_bits_retain(flags),
                timeout,
                netmask,
                persistence_engine,
            },
        )
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let tunnel = (any::<u8>(), any::<u16>(), any::<u16>());
    (any::<IpAddr>(), any::<u16>(), numbers, tunnel).prop_map(|(address, port, numbers, tunnel)| {
        let (forward, weight, upper_threshold, lower_threshold) = numbers;
        let (kind, tunnel_port, flags) = tunnel;
        Destination {
            key: DestinationKey { address, port },
            forward: Forward::from(forward),
            weight,
            upper_threshold,
            lower_threshold,
            tunnel: Tunnel {
                kind,
                port: tunnel_port,
                flags,
            },
        }
    })
}

proptest! {
    /// A request has the same attributes as a response, so the decoder can read every encoded
    /// request.
    #[test]
    fn encoded_virtual_servers_decode_to_the_same_values(service in any_service()) {
        let mut batch = Batch::new();
        Family::from_id(26).new_service(&mut batch, &service);
        let entry = ServiceEntry::decode(batch.get(0).unwrap().payload).unwrap();
        prop_assert_eq!(entry.service, service);
    }

    #[test]
    fn encoded_destinations_decode_to_the_same_values(service in any_service(), destination in any_destination()) {
        let mut batch = Batch::new();
        Family::from_id(26).new_destination(&mut batch, &service.key, &destination);
        let payload = batch.get(0).unwrap().payload;
        let entry = DestinationEntry::decode(payload, service.key.family()).unwrap();
        prop_assert_eq!(entry.destination, destination);
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_ipvs_decoder(payload: Vec<u8>) {
        let _ = ServiceEntry::decode(&payload);
        let _ = DestinationEntry::decode(&payload, IpFamily::V6);
    }

    /// Damaged replies of the kernel reach more code of the decoder than random bytes would.
    #[test]
    fn damaged_replies_never_panic_the_ipvs_decoder(
        which: prop::sample::Index,
        cut: prop::sample::Index,
        damage: Vec<(prop::sample::Index, u8)>,
    ) {
        let replies = captured(REPLIES);
        let mut payload = which.get(&replies).2.clone();
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        payload.truncate(cut.index(payload.len() + 1));
        let _ = ServiceEntry::decode(&payload);
        let _ = DestinationEntry::decode(&payload, IpFamily::V4);
    }
}
