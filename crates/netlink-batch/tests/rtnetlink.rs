//! Tests with the real kernel: rtnetlink on the loopback device of a new network namespace. Needs
//! root, or `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::io;
use std::net::Ipv4Addr;

use namespace::in_namespace;
use netlink_batch::{
    Attributes, Batch, Buffers, Connection, Error, NLM_F_CREATE, NLM_F_EXCL, Protocol, Reply,
    Worker,
};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const IFA_LOCAL: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const LOOPBACK: u32 = 1;
const NOWHERE: u32 = 4711;

const EPERM: i32 = 1;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EADDRNOTAVAIL: i32 = 99;

fn open() -> Connection {
    Connection::open(Protocol::Route).unwrap()
}

/// Returns a `struct ifaddrmsg` for a /32 IPv4 address of a device.
fn ifaddrmsg(device: u32) -> [u8; 8] {
    let [a, b, c, d] = device.to_ne_bytes();
    [2, 32, 0, 0, a, b, c, d]
}

fn address(batch: &mut Batch, kind: u16, device: u32, address: u32) -> usize {
    // NLM_F_EXCL is only for additions. In a delete request, the kernel reads the same bit as
    // NLM_F_BULK.
    let flags = if kind == RTM_NEWADDR {
        NLM_F_CREATE | NLM_F_EXCL
    } else {
        0
    };
    batch.push(kind, flags, |message| {
        message.bytes(&ifaddrmsg(device));
        message.attr(IFA_LOCAL, &Ipv4Addr::from_bits(address).octets());
    })
}

fn errnos(replies: &[Reply]) -> Vec<Option<i32>> {
    assert!(!replies.contains(&Reply::Unknown));
    replies.iter().map(Reply::errno).collect()
}

/// Returns the IPv4 addresses of the loopback device. The kernel filters the dump by device.
fn addresses(connection: &mut Connection) -> Vec<u32> {
    let dump = connection
        .dump(RTM_GETADDR, 0, |message| {
            message.bytes(&[2, 0, 0, 0, 1, 0, 0, 0]);
        })
        .unwrap();
    let mut found = Vec::new();
    for (kind, payload) in dump.iter() {
        assert_eq!(kind, RTM_NEWADDR);
        for attribute in Attributes::after(8, payload).unwrap() {
            let attribute = attribute.unwrap();
            if attribute.kind == IFA_LOCAL {
                found.push(attribute.be32().unwrap());
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn each_message_has_its_own_reply() {
    in_namespace(|| {
        let mut connection = open();
        let mut batch = Batch::new();
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0001);
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0001);
        address(&mut batch, RTM_NEWADDR, NOWHERE, 0x0a00_0002);
        batch.push(RTM_NEWLINK, 0, |message| {
            message.bytes(&[0; 16]);
            message.attr_str(IFLA_IFNAME, "nowhere0");
        });
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0003);
        address(&mut batch, RTM_DELADDR, LOOPBACK, 0x0a00_0009);
        let replies = connection.execute(&batch).unwrap();
        assert_eq!(
            errnos(&replies),
            [
                None,
                Some(EEXIST),
                Some(ENODEV),
                Some(ENODEV),
                None,
                Some(EADDRNOTAVAIL)
            ]
        );
        // The kernel may add a text (NLMSGERR_ATTR_MSG), so the test checks only the beginning of
        // the message.
        let Some(Reply::Refused(refusal)) = replies.get(1) else {
            panic!("{replies:?}")
        };
        assert_eq!(refusal.request, []);
        assert!(refusal.to_string().starts_with("File exists"), "{refusal}");
        assert_eq!(addresses(&mut connection), [0x0a00_0001, 0x0a00_0003]);
    });
}

#[test]
fn the_many_addresses_example_adds_and_removes_a_thousand_addresses() {
    in_namespace(|| {
        let lines = namespace::example("many_addresses", &[]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("added 1000 addresses in "),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("removed 1000 addresses in "),
            "{lines:?}"
        );
        assert_eq!(addresses(&mut open()), []);
    });
}

#[test]
fn an_empty_batch_returns_no_replies() {
    in_namespace(|| assert_eq!(open().execute(&Batch::new()).unwrap(), []));
}

#[test]
fn two_thousand_messages_each_get_a_reply() {
    in_namespace(|| {
        let mut connection = open();
        let mut batch = Batch::new();
        for index in 0..2_000 {
            let device = if index % 7 == 3 { NOWHERE } else { LOOPBACK };
            assert_eq!(
                address(&mut batch, RTM_NEWADDR, device, 0x0a00_0000 + index),
                index as usize
            );
        }
        let replies = errnos(&connection.execute(&batch).unwrap());
        for (index, errno) in replies.iter().enumerate() {
            assert_eq!(
                *errno,
                (index % 7 == 3).then_some(ENODEV),
                "message {index}"
            );
        }
        let expected: Vec<u32> = (0..2_000)
            .filter(|index| index % 7 != 3)
            .map(|index| 0x0a00_0000 + index)
            .collect();
        assert_eq!(addresses(&mut connection), expected);
    });
}

#[test]
fn lost_replies_are_unknown_and_the_connection_stays_usable() {
    in_namespace(|| {
        let mut connection = Connection::open_with(
            Protocol::Route,
            Buffers {
                receive: 4_096,
                send: 1 << 20,
            },
        )
        .unwrap();
        let mut batch = Batch::new();
        for index in 0..600 {
            address(&mut batch, RTM_NEWADDR, NOWHERE, 0x0a00_0000 + index);
        }
        let replies = connection.execute(&batch).unwrap();
        assert_eq!(replies.len(), 600);
        assert_eq!(replies[0].errno(), Some(ENODEV));
        assert_eq!(
            (&replies[511], &replies[599]),
            (&Reply::Unknown, &Reply::Unknown)
        );
        assert!(
            replies
                .iter()
                .all(|reply| *reply == Reply::Unknown || reply.errno() == Some(ENODEV))
        );

        batch.clear();
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0001);
        assert_eq!(connection.execute(&batch).unwrap(), [Reply::Done]);
        assert_eq!(addresses(&mut connection), [0x0a00_0001]);
    });
}

#[test]
fn a_batch_succeeds_with_a_small_send_buffer() {
    in_namespace(|| {
        let mut connection = Connection::open_with(
            Protocol::Route,
            Buffers {
                receive: 1 << 20,
                send: 4_096,
            },
        )
        .unwrap();
        let mut batch = Batch::new();
        for index in 0..1_000 {
            address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0000 + index);
        }
        assert_eq!(
            connection.execute(&batch).unwrap(),
            vec![Reply::Done; 1_000]
        );
        assert_eq!(addresses(&mut connection).len(), 1_000);
    });
}

#[test]
fn requests_get_replies_and_refused_dumps_fail() {
    in_namespace(|| {
        let mut connection = open();
        let get = |name: &'static str| {
            move |message: &mut netlink_batch::Writer<'_>| {
                message.bytes(&[0; 16]);
                message.attr_str(IFLA_IFNAME, name);
            }
        };
        let answer = connection.request(RTM_GETLINK, 0, get("lo")).unwrap();
        let [(RTM_NEWLINK, payload)] = answer.iter().collect::<Vec<_>>()[..] else {
            panic!("{answer:?}")
        };
        let name = Attributes::after(16, payload)
            .unwrap()
            .flatten()
            .find(|attribute| attribute.kind == IFLA_IFNAME)
            .unwrap();
        assert_eq!(name.string(), Ok("lo"));

        let refused = connection.request(RTM_GETLINK, 0, get("nowhere0"));
        assert!(matches!(refused, Err(Error::Refused(refusal)) if refusal.errno == ENODEV));

        // For a device that does not exist, the kernel refuses a dump of its addresses, because of
        // strict checking.
        let refused = connection.dump(RTM_GETADDR, 0, |message| message.bytes(&ifaddrmsg(NOWHERE)));
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        assert_eq!(addresses(&mut connection), []);
    });
}

#[test]
fn a_socket_without_cap_net_admin_gets_each_message_refused() {
    in_namespace(|| {
        let mut connection = open();
        namespace::drop_rights();
        let mut batch = Batch::new();
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0001);
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0002);
        assert_eq!(
            errnos(&connection.execute(&batch).unwrap()),
            [Some(EPERM); 2]
        );

        // nfnetlink refuses the whole send. The sysctls limit the buffers of this unprivileged
        // process.
        let mut netfilter = Connection::open(Protocol::Netfilter).unwrap();
        batch.clear();
        for _ in 0..3 {
            batch.push(0x0601, 0, |message| message.bytes(&[0; 4]));
        }
        let refused = netfilter.execute(&batch).unwrap_err();
        assert!(
            matches!(
                refused,
                Error::Permission {
                    protocol: Protocol::Netfilter
                }
            ),
            "{refused}"
        );
        let refused = netfilter
            .request(0x0601, 0, |message| message.bytes(&[0; 4]))
            .unwrap_err();
        assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
    });
}

#[test]
fn a_worker_runs_requests_on_its_connection() {
    in_namespace(|| {
        let build = || Ok::<_, io::Error>(Connection::open(Protocol::Route).unwrap());
        let worker = Worker::spawn("rtnetlink", build).unwrap();
        let mut batch = Batch::new();
        address(&mut batch, RTM_NEWADDR, LOOPBACK, 0x0a00_0001);
        let call = worker.call(move |connection| connection.execute(&batch).unwrap());
        assert_eq!(futures::executor::block_on(call), Ok(vec![Reply::Done]));
        assert_eq!(addresses(&mut open()), [0x0a00_0001]);
    });
}
