//! Tests with a real IPVS, each in a separate network namespace. Needs root and `ip_vs`.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ipvs_netlink::{
    Destination, DestinationKey, Family, Flags, Forward, IpFamily, Ipvs, Protocol, Service,
    ServiceKey, Status, Timeouts, Tunnel,
};
use namespace::{example, in_namespace};
use netlink_batch::{Batch, Connection, Reply};

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

/// Runs a test with an IPVS connection in a new network namespace.
fn on_ipvs(story: impl FnOnce(Ipvs) + Send) {
    in_namespace(|| {
        // The namespace needs an address, which creates the routing table "local". Without this
        // table, the kernel refuses every destination with EINVAL.
        loopback_up();
        story(Ipvs::open().unwrap());
    });
}

fn key(protocol: Protocol, address: &str) -> ServiceKey {
    let address: SocketAddr = address.parse().unwrap();
    ServiceKey::new(protocol, address.ip(), address.port())
}

fn service(key: ServiceKey, scheduler: &str) -> Service {
    Service::new(key, scheduler.parse().unwrap())
}

fn destination(address: &str, weight: u32) -> Destination {
    Destination::new(address.parse::<SocketAddr>().unwrap(), weight)
}

fn errnos(replies: &[Reply]) -> Vec<Option<i32>> {
    assert!(!replies.contains(&Reply::Unknown));
    replies.iter().map(Reply::errno).collect()
}

/// Executes a batch, and checks that every message succeeds.
fn execute(ipvs: &mut Ipvs, push: impl FnOnce(Family, &mut Batch)) {
    let mut batch = Batch::new();
    push(ipvs.family(), &mut batch);
    assert_eq!(
        errnos(&ipvs.execute(&batch).unwrap()),
        vec![None; batch.len()]
    );
}

fn services(ipvs: &mut Ipvs) -> Vec<Service> {
    let mut found: Vec<_> = ipvs
        .services()
        .unwrap()
        .iter()
        .map(|entry| entry.service)
        .collect();
    found.sort_by_key(|service| service.key);
    found
}

fn destinations(ipvs: &mut Ipvs, key: &ServiceKey) -> Vec<Destination> {
    let entries = ipvs.destinations(key).unwrap();
    let mut found: Vec<_> = entries.iter().map(|entry| entry.destination).collect();
    found.sort_by_key(|destination| destination.key);
    found
}

/// Adds to a virtual server the flag that the kernel sets on every virtual server.
fn hashed(mut service: Service) -> Service {
    service.flags |= Flags::HASHED;
    service
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_kernel_reports_its_ipvs_version() {
    on_ipvs(|mut ipvs| {
        let info = ipvs.info().unwrap();
        assert!(info.version >= 0x01_02_00, "{info:?}");
        // Since Linux 7.1, the connection table is created with the first virtual server.
        let size = info.table_size;
        assert!(size == 0 || size.is_power_of_two(), "{info:?}");
        assert_eq!(services(&mut ipvs), []);
        let wanted = service(key(Protocol::TCP, "10.0.0.1:80"), "rr");
        execute(&mut ipvs, |family, batch| {
            family.new_service(batch, &wanted);
        });
        let info = ipvs.info().unwrap();
        assert!(info.table_size.is_power_of_two(), "{info:?}");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_ipvsadm_list_example_prints_the_same_lines_as_ipvsadm() {
    on_ipvs(|mut ipvs| {
        let tcp = key(Protocol::TCP, "10.0.0.1:80");
        let udp = key(Protocol::UDP, "[2001:db8::1]:53");
        execute(&mut ipvs, |family, batch| {
            let persistent = Service {
                flags: Flags::PERSISTENT,
                timeout: 300,
                netmask: 0xffff_ff00,
                ..service(tcp, "rr")
            };
            family.new_service(batch, &persistent);
            let by_packet = Service {
                flags: Flags::ONE_PACKET,
                ..service(udp, "wrr")
            };
            family.new_service(batch, &by_packet);
            let mark = ServiceKey::Fwmark {
                family: IpFamily::V4,
                mark: 7,
            };
            family.new_service(batch, &service(mark, "lc"));
            family.new_destination(batch, &tcp, &destination("10.1.0.1:8080", 3));
            let direct = Destination {
                forward: Forward::Route,
                ..destination("[2001:db8::2]:53", 1)
            };
            family.new_destination(batch, &udp, &direct);
        });
        let tool = Command::new("ipvsadm").arg("-Ln").output().unwrap();
        let tool = String::from_utf8(tool.stdout).unwrap();
        let mut tool: Vec<_> = tool.lines().map(str::trim_end).collect();
        let mut example = example("ipvsadm_list", &[]);
        // `ipvsadm` sorts its lines. The example keeps the kernel's order.
        tool.sort_unstable();
        example.sort_unstable();
        assert_eq!(example, tool);
        assert_eq!(example.len(), 8);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn virtual_servers_of_each_kind_are_created_and_listed() {
    on_ipvs(|mut ipvs| {
        let mut wanted = vec![
            service(key(Protocol::TCP, "10.0.0.1:80"), "rr"),
            service(key(Protocol::UDP, "10.0.0.1:80"), "wrr"),
            service(key(Protocol::SCTP, "10.0.0.1:80"), "lc"),
            service(key(Protocol::TCP, "[fd00::1]:80"), "wlc"),
            service(
                ServiceKey::Fwmark {
                    family: IpFamily::V4,
                    mark: 7,
                },
                "rr",
            ),
            service(
                ServiceKey::Fwmark {
                    family: IpFamily::V6,
                    mark: 7,
                },
                "rr",
            ),
            Service {
                flags: Flags::ONE_PACKET,
                ..service(key(Protocol::UDP, "[fd00::1]:53"), "rr")
            },
            Service {
                flags: Flags::PERSISTENT,
                timeout: 10_800,
                ..service(key(Protocol::TCP, "10.0.0.2:80"), "rr")
            },
            Service {
                flags: Flags::PERSISTENT,
                timeout: 60,
                netmask: 0xffff_0000,
                ..service(key(Protocol::TCP, "10.0.0.3:0"), "rr")
            },
            Service {
                flags: Flags::PERSISTENT,
                timeout: 60,
                netmask: 56,
                ..service(key(Protocol::TCP, "[fd00::3]:80"), "rr")
            },
            Service {
                flags: Flags::SCHED_1 | Flags::SCHED_2,
                ..service(key(Protocol::TCP, "10.0.0.4:80"), "mh")
            },
            Service {
                flags: Flags::PERSISTENT,
                timeout: 60,
                persistence_engine: Some("sip".parse().unwrap()),
                ..service(key(Protocol::UDP, "10.0.0.5:5060"), "rr")
            },
        ];
        wanted.sort_by_key(|service| service.key);
        execute(&mut ipvs, |family, batch| {
            for service in &wanted {
                family.new_service(batch, service);
            }
        });
        let shown: Vec<_> = wanted.iter().copied().map(hashed).collect();
        assert_eq!(services(&mut ipvs), shown);
        for service in &shown {
            assert_eq!(
                ipvs.service(&service.key).unwrap().unwrap().service,
                *service
            );
        }

        let changed = Service {
            scheduler: "sh".parse().unwrap(),
            flags: Flags::PERSISTENT | Flags::SCHED_1,
            timeout: 5,
            netmask: 0xffff_ff00,
            ..service(key(Protocol::TCP, "10.0.0.4:80"), "mh")
        };
        execute(&mut ipvs, |family, batch| {
            family.set_service(batch, &changed);
            family.del_service(batch, &wanted[0].key);
        });
        assert_eq!(
            ipvs.service(&changed.key).unwrap().unwrap().service,
            hashed(changed)
        );
        assert_eq!(ipvs.service(&wanted[0].key).unwrap(), None);
        assert_eq!(services(&mut ipvs).len(), wanted.len() - 1);

        ipvs.flush().unwrap();
        assert_eq!(services(&mut ipvs), []);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn destinations_of_each_kind_are_created_and_listed() {
    on_ipvs(|mut ipvs| {
        let web = key(Protocol::TCP, "10.0.0.1:80");
        let web6 = key(Protocol::TCP, "[fd00::1]:80");
        let mut wanted = vec![
            destination("192.0.2.1:8080", 1),
            Destination {
                upper_threshold: 200,
                lower_threshold: 150,
                ..destination("192.0.2.2:8080", 65_535)
            },
            Destination {
                forward: Forward::Route,
                ..destination("192.0.2.3:80", 0)
            },
            Destination {
                forward: Forward::Tunnel,
                tunnel: Tunnel {
                    kind: 1,
                    port: 6080,
                    flags: 1,
                },
                ..destination("192.0.2.4:80", 1)
            },
            Destination {
                forward: Forward::Tunnel,
                ..destination("[fd00:1::4]:80", 1)
            },
            Destination {
                forward: Forward::Bypass,
                ..destination("192.0.2.5:80", 1)
            },
        ];
        let wanted6 = destination("[fd00:1::1]:8080", 3);
        execute(&mut ipvs, |family, batch| {
            family.new_service(batch, &service(web, "wrr"));
            family.new_service(batch, &service(web6, "rr"));
            for destination in &wanted {
                family.new_destination(batch, &web, destination);
            }
            family.new_destination(batch, &web6, &wanted6);
        });
        wanted.sort_by_key(|destination| destination.key);
        assert_eq!(destinations(&mut ipvs, &web), wanted);
        assert_eq!(destinations(&mut ipvs, &web6), [wanted6]);

        let changed = Destination {
            forward: Forward::Route,
            upper_threshold: 9,
            ..wanted[1]
        };
        let changed = Destination {
            weight: 0,
            lower_threshold: 0,
            ..changed
        };
        execute(&mut ipvs, |family, batch| {
            family.set_destination(batch, &web, &changed);
            family.del_destination(batch, &web, &wanted[0].key);
            family.del_destination(batch, &web6, &wanted6.key);
        });
        let left = destinations(&mut ipvs, &web);
        assert_eq!((left[0], left.len()), (changed, wanted.len() - 1));
        assert_eq!(destinations(&mut ipvs, &web6), []);
        assert_eq!(
            destinations(&mut ipvs, &key(Protocol::TCP, "10.9.9.9:80")),
            []
        );
    });
}

/// The kernel's refusal has the index of the refused change. All other changes in the batch
/// succeed.
#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_refused_ipvs_change_does_not_affect_other_changes() {
    on_ipvs(|mut ipvs| {
        let web = key(Protocol::TCP, "10.0.0.1:80");
        let nowhere = key(Protocol::TCP, "10.9.9.9:80");
        let server = destination("192.0.2.1:8080", 1);
        let other = destination("192.0.2.2:8080", 1);
        let bad_prefix = Service {
            netmask: 0,
            ..service(key(Protocol::TCP, "[fd00::1]:80"), "rr")
        };
        let wrong_family = destination("[fd00:1::1]:80", 1);

        let too_heavy = destination("192.0.2.9:80", 1 << 31);

        let family = ipvs.family();
        let mut batch = Batch::new();
        let mut expected = Vec::new();
        let mut expect = |index: usize, errno: Option<i32>| {
            assert_eq!(index, expected.len());
            expected.push(errno);
        };
        expect(family.new_service(&mut batch, &service(web, "rr")), None);
        expect(
            family.new_service(&mut batch, &service(web, "rr")),
            Some(EEXIST),
        );
        expect(
            family.new_service(&mut batch, &service(nowhere, "nosuch")),
            Some(ENOENT),
        );
        expect(family.new_service(&mut batch, &bad_prefix), Some(EINVAL));
        expect(
            family.set_service(&mut batch, &service(nowhere, "rr")),
            Some(ESRCH),
        );
        expect(family.del_service(&mut batch, &nowhere), Some(ESRCH));
        expect(family.new_destination(&mut batch, &web, &server), None);
        expect(
            family.new_destination(&mut batch, &web, &server),
            Some(EEXIST),
        );
        expect(
            family.new_destination(&mut batch, &nowhere, &server),
            Some(ESRCH),
        );
        expect(
            family.new_destination(&mut batch, &web, &wrong_family),
            Some(EINVAL),
        );
        expect(
            family.new_destination(&mut batch, &web, &too_heavy),
            Some(ERANGE),
        );
        expect(
            family.set_destination(&mut batch, &web, &other),
            Some(ENOENT),
        );
        expect(
            family.del_destination(&mut batch, &web, &other.key),
            Some(ENOENT),
        );
        expect(family.zero(&mut batch, Some(&nowhere)), Some(ESRCH));
        expect(family.new_destination(&mut batch, &web, &other), None);
        assert_eq!(errnos(&ipvs.execute(&batch).unwrap()), expected);

        assert_eq!(services(&mut ipvs), [hashed(service(web, "rr"))]);
        assert_eq!(destinations(&mut ipvs, &web), [server, other]);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_new_ipvs_timeout_keeps_all_other_timeouts() {
    on_ipvs(|mut ipvs| {
        ipvs.set_timeouts(&Timeouts {
            tcp: 1_000,
            tcp_fin: 100,
            udp: 200,
        })
        .unwrap();
        ipvs.set_timeouts(&Timeouts {
            tcp: 0,
            tcp_fin: 50,
            udp: 0,
        })
        .unwrap();
        assert_eq!(
            ipvs.timeouts().unwrap(),
            Timeouts {
                tcp: 1_000,
                tcp_fin: 50,
                udp: 200
            }
        );
        let error = ipvs.set_timeouts(&Timeouts {
            tcp: u32::MAX,
            ..Timeouts::default()
        });
        assert!(
            error
                .unwrap_err()
                .to_string()
                .starts_with("Invalid argument")
        );
    });
}

/// Writes 3,000 virtual servers with two destinations each in one batch.
#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn thousands_of_virtual_servers_are_written_in_one_batch() {
    on_ipvs(|mut ipvs| {
        let keys: Vec<_> = (0..3_000_u32)
            .map(|index| {
                ServiceKey::new(Protocol::TCP, IpAddr::V4((0x0a00_0000 + index).into()), 80)
            })
            .collect();
        execute(&mut ipvs, |family, batch| {
            for key in &keys {
                family.new_service(batch, &service(*key, "rr"));
                for server in ["192.0.2.1:80", "192.0.2.2:80"] {
                    family.new_destination(batch, key, &destination(server, 1));
                }
            }
        });
        let found = services(&mut ipvs);
        assert_eq!(
            found.iter().map(|service| service.key).collect::<Vec<_>>(),
            keys
        );
        for key in keys.iter().step_by(500) {
            assert_eq!(destinations(&mut ipvs, key).len(), 2);
        }
        execute(&mut ipvs, |family, batch| {
            for key in &keys {
                family.del_service(batch, key);
            }
        });
        assert_eq!(services(&mut ipvs), []);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn connections_are_counted_and_counters_can_be_zeroed() {
    on_ipvs(|mut ipvs| {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let web = key(Protocol::TCP, "127.0.0.9:80");
        let target = DestinationKey::from(server.local_addr().unwrap());
        execute(&mut ipvs, |family, batch| {
            family.new_service(batch, &service(web, "rr"));
            family.new_destination(batch, &web, &Destination::new(target, 1));
        });
        let open: Vec<_> = (0..4)
            .map(|_| {
                let mut client = TcpStream::connect("127.0.0.9:80").unwrap();
                let (mut served, _) = server.accept().unwrap();
                client.write_all(b"hello").unwrap();
                served.read_exact(&mut [0; 5]).unwrap();
                (client, served)
            })
            .collect();
        // The kernel updates its counters every two seconds, so the test waits.
        let deadline = Instant::now() + Duration::from_secs(10);
        let statistics = loop {
            let statistics = ipvs.service(&web).unwrap().unwrap().statistics;
            if statistics.connections == 4 && statistics.incoming_packets >= 12 {
                break statistics;
            }
            assert!(Instant::now() < deadline, "{statistics:?}");
            sleep(Duration::from_millis(100));
        };
        // Each client sent a SYN, an ACK and five bytes, and received a SYN and an ACK.
        assert!(
            statistics.incoming_bytes >= 4 * (60 + 52 + 57),
            "{statistics:?}"
        );
        assert!(statistics.outgoing_bytes >= 4 * (60 + 52), "{statistics:?}");
        let entry = ipvs.destinations(&web).unwrap()[0];
        assert_eq!((entry.active, entry.inactive, entry.persistent), (4, 0, 0));
        assert_eq!(entry.statistics.connections, 4);
        // Since Linux 7.1, the kernel describes the tables of this namespace.
        if let Ok(text) = fs::read_to_string("/proc/thread-self/net/ip_vs_status") {
            let status = Status::parse(&text).unwrap();
            assert_eq!((status.connections, status.services), (Some(4), Some(1)));
            let table = &status.connection_table;
            assert_eq!(table.buckets, Some(ipvs.info().unwrap().table_size.into()));
            assert_eq!(
                table.by_length.values().sum::<u64>(),
                table.buckets.unwrap()
            );
            assert!(table.longest() >= Some(1), "{text}");
            let is_of_tables = |line: &String| line.contains("bucket") || line.contains("Conn");
            assert!(!status.others.iter().any(is_of_tables), "{text}");
        }

        ipvs.zero(Some(&web)).unwrap();
        assert_eq!(
            ipvs.service(&web).unwrap().unwrap().statistics.connections,
            0
        );
        ipvs.zero(None).unwrap();
        assert_eq!(
            ipvs.destinations(&web).unwrap()[0].statistics.connections,
            0
        );
        drop(open);
    });
}

/// Sets the loopback link up, like `ip link set lo up`: `RTM_NEWLINK` with an `ifinfomsg` for index
/// 1, in which flags and mask contain `IFF_UP`.
fn loopback_up() {
    let mut batch = Batch::new();
    batch.push(16, 0, |message| {
        message.bytes(&[0; 4]);
        for number in [1_u32, 1, 1] {
            message.bytes(&number.to_ne_bytes());
        }
    });
    let mut connection = Connection::open(netlink_batch::Protocol::Route).unwrap();
    assert_eq!(connection.execute(&batch).unwrap(), [Reply::Done]);
}
