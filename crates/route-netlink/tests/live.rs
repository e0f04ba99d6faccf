//! Tests with the running kernel, each in its own network namespace. The tests need root. By
//! default, the tests of dummy links are ignored, because some kernels lack dummy links.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libc::{EADDRNOTAVAIL, EEXIST, ENODEV, EOPNOTSUPP, ERANGE, ESRCH};
use netlink_batch::{Error, NLM_F_CREATE, Writer};
use route_netlink::{
    Address, AddressGeneration, Batch, Event, Family, KernelRoutes, LinkState, LocalRoute, Refusal,
    Reply, Rtnetlink, Subscription,
};

const LOOPBACK: u32 = 1;
const DUMMY: &str = "dummy7";
const ROOM: usize = 8 << 20;
/// Route origin (`RTPROT_*`) that no other program uses.
const OURS: u8 = 107;

/// Runs a test on a new thread in a new network namespace.
fn in_namespace(story: impl FnOnce(Rtnetlink) + Send) {
    namespace::in_namespace(|| story(Rtnetlink::open().unwrap()));
}

/// Loads the IPv6 module, which the kernel does not load automatically.
fn load_ipv6() {
    if Path::new("/proc/sys/net/ipv6").exists() {
        return;
    }
    let loaded = Command::new("modprobe").args(["-q", "ipv6"]).status();
    assert!(loaded.unwrap().success());
}

fn refused(result: Result<(), Error>) -> i32 {
    match result {
        Err(Error::Refused(Refusal { errno, .. })) => errno,
        result => panic!("{result:?}"),
    }
}

fn execute(rtnetlink: &mut Rtnetlink, batch: &Batch) -> Vec<Option<i32>> {
    let replies = rtnetlink.execute(batch).unwrap();
    assert!(!replies.contains(&Reply::Unknown));
    replies.iter().map(Reply::errno).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns `count` different addresses of an IP family.
fn many(family: Family, count: u32) -> impl Iterator<Item = IpAddr> {
    (1..=count).map(move |number| match family {
        Family::Inet => IpAddr::V4((0x0a60_0000 + number).into()),
        Family::Inet6 => IpAddr::V6(((0xfd96_u128 << 112) + u128::from(number)).into()),
    })
}

fn addresses(rtnetlink: &mut Rtnetlink, link: u32, family: Family) -> BTreeSet<IpAddr> {
    let of_link = rtnetlink.addresses_of(link, family).unwrap();
    let mut all = rtnetlink.addresses(family).unwrap();
    all.retain(|address| address.link == link);
    assert_eq!(of_link, all);
    all.into_iter().map(|address| address.address).collect()
}

fn routes(rtnetlink: &mut Rtnetlink, link: u32, family: Family, protocol: u8) -> BTreeSet<IpAddr> {
    let mut routes = rtnetlink.local_routes(family, protocol).unwrap();
    routes.retain(|route| route.link == link);
    routes.into_iter().map(|route| route.address).collect()
}

#[test]
fn a_link_lookup_finds_only_existing_links() {
    in_namespace(|mut rtnetlink| {
        let lo = rtnetlink.link("lo").unwrap().unwrap();
        assert_eq!((lo.index, lo.state), (LOOPBACK, LinkState::Down));
        rtnetlink.set_link_state("lo", LinkState::Up).unwrap();
        let lo = rtnetlink.link("lo").unwrap().unwrap();
        assert_eq!((lo.state, &*lo.kind), (LinkState::Up, ""));
        assert_eq!(rtnetlink.link("no-such-link").unwrap(), None);
        let up = rtnetlink.set_link_state("no-such-link", LinkState::Up);
        assert_eq!(refused(up), ENODEV);
        rtnetlink.delete_link("no-such-link").unwrap();
        assert_eq!(refused(rtnetlink.delete_link("lo")), EOPNOTSUPP);
        assert_eq!(rtnetlink.addresses_of(4711, Family::Inet).unwrap(), []);
    });
}

#[test]
fn a_link_name_that_is_too_long_is_refused() {
    in_namespace(|mut rtnetlink| {
        for length in [16, 100_000] {
            let created = rtnetlink.create_dummy(&"x".repeat(length));
            assert_eq!(refused(created), ERANGE, "{length}");
        }
    });
}

#[test]
fn each_added_or_removed_address_gets_a_reply() {
    in_namespace(|mut rtnetlink| {
        let mut batch = Batch::new();
        let one = Address::host(LOOPBACK, ip("10.0.0.1"));
        one.push_new(&mut batch);
        one.push_new(&mut batch);
        Address::host(4711, ip("10.0.0.2")).push_new(&mut batch);
        let network = Address {
            prefix: 24,
            ..Address::host(LOOPBACK, ip("10.0.1.1"))
        };
        network.push_new(&mut batch);
        Address::host(LOOPBACK, ip("10.0.1.1")).push_del(&mut batch);
        assert_eq!(
            execute(&mut rtnetlink, &batch),
            [None, Some(EEXIST), Some(ENODEV), None, Some(EADDRNOTAVAIL)]
        );
        assert_eq!(rtnetlink.addresses(Family::Inet).unwrap(), [one, network]);
        assert_eq!(rtnetlink.addresses(Family::Inet6).unwrap(), []);
        let mut batch = Batch::new();
        one.push_del(&mut batch);
        network.push_del(&mut batch);
        assert_eq!(execute(&mut rtnetlink, &batch), [None, None]);
        assert_eq!(rtnetlink.addresses(Family::Inet).unwrap(), []);
        assert_eq!(rtnetlink.sent(), 5 + 2 + 3);
    });
}

#[test]
fn a_replaced_route_has_only_the_new_source() {
    load_ipv6();
    in_namespace(|mut rtnetlink| {
        rtnetlink.set_link_state("lo", LinkState::Up).unwrap();
        for (net, prefix, sources) in [
            ("10.96.0.0", 12, ["192.0.2.1", "192.0.2.2"]),
            ("fd96::", 112, ["2001:db8::1", "2001:db8::2"]),
        ] {
            let range = LocalRoute {
                prefix,
                ..LocalRoute::host(LOOPBACK, ip(net), OURS)
            };
            let from = |source| LocalRoute {
                source: Some(ip(source)),
                ..range
            };
            let [former, current] = sources.map(from);
            let mut batch = Batch::new();
            for source in sources {
                Address::host(LOOPBACK, ip(source)).push_new(&mut batch);
            }
            former.push_replace(&mut batch);
            current.push_replace(&mut batch);
            assert_eq!(execute(&mut rtnetlink, &batch), [None; 4]);
            let family = Family::of(ip(net));
            assert_eq!(rtnetlink.local_routes(family, OURS).unwrap(), [current]);
            // A request without a source removes the route regardless of its source.
            let mut batch = Batch::new();
            range.push_del(&mut batch);
            assert_eq!(execute(&mut rtnetlink, &batch), [None]);
            assert_eq!(rtnetlink.local_routes(family, OURS).unwrap(), []);
        }
    });
}

#[test]
fn kernel_routes_and_own_routes_are_distinguished_by_protocol() {
    in_namespace(|mut rtnetlink| {
        rtnetlink.set_link_state("lo", LinkState::Up).unwrap();
        let address = ip("10.96.0.1");
        let mut batch = Batch::new();
        Address::host(LOOPBACK, address).push_new(&mut batch);
        let ours = LocalRoute::host(LOOPBACK, address, OURS);
        ours.push_new(&mut batch);
        ours.push_new(&mut batch);
        assert_eq!(execute(&mut rtnetlink, &batch), [None, None, Some(EEXIST)]);
        let mut found = |protocol| routes(&mut rtnetlink, LOOPBACK, Family::Inet, protocol);
        assert!(found(LocalRoute::KERNEL).contains(&address));
        assert_eq!(found(OURS), [address].into());
        let mut batch = Batch::new();
        ours.push_del(&mut batch);
        ours.push_del(&mut batch);
        assert_eq!(execute(&mut rtnetlink, &batch), [None, Some(ESRCH)]);
        let mut found = |protocol| routes(&mut rtnetlink, LOOPBACK, Family::Inet, protocol);
        assert_eq!(found(OURS), [].into());
        assert!(found(LocalRoute::KERNEL).contains(&address));
    });
}

#[test]
#[ignore = "needs dummy links"]
fn a_dummy_link_is_created_and_deleted() {
    in_namespace(|mut rtnetlink| {
        rtnetlink.create_dummy(DUMMY).unwrap();
        assert_eq!(refused(rtnetlink.create_dummy(DUMMY)), EEXIST);
        let link = rtnetlink.link(DUMMY).unwrap().unwrap();
        assert_eq!((link.state, &*link.kind), (LinkState::Down, "dummy"));
        rtnetlink.set_link_state(DUMMY, LinkState::Up).unwrap();
        let up = rtnetlink.link(DUMMY).unwrap().unwrap();
        assert_eq!((up.state, up.index), (LinkState::Up, link.index));
        rtnetlink.set_link_state(DUMMY, LinkState::Down).unwrap();
        let down = rtnetlink.link(DUMMY).unwrap().unwrap();
        assert_eq!(down, link);
        rtnetlink.delete_link(DUMMY).unwrap();
        assert_eq!(rtnetlink.link(DUMMY).unwrap(), None);
        rtnetlink.delete_link(DUMMY).unwrap();
    });
}

#[test]
#[ignore = "needs dummy links and IPv6"]
fn the_generation_mode_decides_whether_a_link_gets_a_link_local_address() {
    load_ipv6();
    in_namespace(|mut rtnetlink| {
        for (name, generation, expected) in [
            ("dummy1", AddressGeneration::Eui64, 1),
            ("dummy2", AddressGeneration::None, 0),
        ] {
            rtnetlink.create_dummy(name).unwrap();
            rtnetlink.set_address_generation(name, generation).unwrap();
            rtnetlink.set_link_state(name, LinkState::Up).unwrap();
            let link = rtnetlink.link(name).unwrap().unwrap();
            let own = addresses(&mut rtnetlink, link.index, Family::Inet6);
            assert_eq!(own.len(), expected, "{own:?}");
        }
    });
}

#[test]
#[ignore = "needs dummy links and IPv6"]
fn thousands_of_addresses_and_routes_are_written_in_one_batch() {
    const COUNT: u32 = 2_000;
    load_ipv6();
    in_namespace(|mut rtnetlink| {
        rtnetlink.create_dummy(DUMMY).unwrap();
        // An IPv6 route needs a link that is up.
        rtnetlink.set_link_state(DUMMY, LinkState::Up).unwrap();
        let link = rtnetlink.link(DUMMY).unwrap().unwrap().index;
        for family in [Family::Inet, Family::Inet6] {
            let all: BTreeSet<_> = many(family, COUNT).collect();
            let mut batch = Batch::new();
            for address in many(family, COUNT) {
                Address::host(link, address).push_new(&mut batch);
            }
            let done = vec![None; all.len()];
            assert!(execute(&mut rtnetlink, &batch) == done);
            let found = addresses(&mut rtnetlink, link, family);
            assert!(all.is_subset(&found) && found.len() <= all.len() + 1);
            let mut batch = Batch::new();
            for address in many(family, COUNT) {
                Address::host(link, address).push_del(&mut batch);
            }
            assert!(execute(&mut rtnetlink, &batch) == done);
            assert!(addresses(&mut rtnetlink, link, family).len() <= 1);
        }
        // When a link loses its last IPv4 address, the kernel removes the link's IPv4 routes.
        let mut batch = Batch::new();
        Address::host(link, ip("127.107.0.1")).push_new(&mut batch);
        execute(&mut rtnetlink, &batch);
        for family in [Family::Inet, Family::Inet6] {
            let route = |address| LocalRoute::host(link, address, OURS);
            let all: BTreeSet<_> = many(family, COUNT).collect();
            let mut batch = Batch::new();
            for address in many(family, COUNT) {
                route(address).push_new(&mut batch);
            }
            let done = vec![None; all.len()];
            assert!(execute(&mut rtnetlink, &batch) == done);
            assert_eq!(routes(&mut rtnetlink, link, family, OURS), all);
            let mut batch = Batch::new();
            for address in many(family, COUNT) {
                route(address).push_del(&mut batch);
            }
            assert!(execute(&mut rtnetlink, &batch) == done);
            assert_eq!(routes(&mut rtnetlink, link, family, OURS), [].into());
        }
    });
}

/// Returns the source address that the kernel chooses for packets to an address.
fn source(to: IpAddr) -> IpAddr {
    let socket = UdpSocket::bind("[::]:0").unwrap();
    socket.connect((to, 9)).unwrap();
    socket.local_addr().unwrap().ip()
}

#[test]
#[ignore = "needs dummy links and IPv6"]
fn a_tentative_address_is_used_as_source_only_after_its_route_exists() {
    load_ipv6();
    in_namespace(|mut rtnetlink| {
        rtnetlink.create_dummy(DUMMY).unwrap();
        let link = rtnetlink.link(DUMMY).unwrap().unwrap();
        assert!(!link.resolves_neighbours);
        // With one CPU, as in the lab, the kernel's workers run only while this thread waits.
        let script = "ip link set lo up; ip link add name dummy8 up type dummy
            ip address add fd35::1/64 dev dummy8 nodad; ip -6 route add default dev dummy8
            exec chrt --fifo --pid 1";
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().display();
        let script = format!("{script} {thread}");
        let status = Command::new("sh").args(["-ec", &script]).status();
        assert!(status.unwrap().success());
        for address in many(Family::Inet6, 20) {
            let subscription = KernelRoutes::subscribe(1).unwrap();
            let mut batch = Batch::new();
            Address::host(link.index, address).push_new_tentative(&mut batch);
            assert_eq!(execute(&mut rtnetlink, &batch), [None]);
            let before = source(address);
            let mut local = || {
                routes(
                    &mut rtnetlink,
                    link.index,
                    Family::Inet6,
                    LocalRoute::KERNEL,
                )
            };
            // With several CPUs, the kernel may have created the route already.
            assert!(before == ip("fd35::1") || local().contains(&address));
            let mut missing = BTreeSet::from([address]);
            let patience = Duration::from_secs(5);
            let waited = subscription.wait(&mut rtnetlink, &mut missing, patience);
            assert_eq!((waited.unwrap(), missing), ((), [].into()));
            assert_eq!(source(address), address);
            let local = routes(
                &mut rtnetlink,
                link.index,
                Family::Inet6,
                LocalRoute::KERNEL,
            );
            assert!(local.contains(&address));
        }
    });
}

#[test]
#[ignore = "needs dummy links and IPv6"]
fn the_wait_for_routes_survives_lost_notifications() {
    load_ipv6();
    in_namespace(|mut rtnetlink| {
        rtnetlink.create_dummy(DUMMY).unwrap();
        let link = rtnetlink.link(DUMMY).unwrap().unwrap().index;
        // The receive buffer is too small for all notifications, so the kernel drops some of them.
        let subscription = KernelRoutes::subscribe(0).unwrap();
        let mut missing: BTreeSet<_> = many(Family::Inet6, 3_000).collect();
        let mut batch = Batch::new();
        for address in &missing {
            Address::host(link, *address).push_new_tentative(&mut batch);
        }
        execute(&mut rtnetlink, &batch);
        let patience = Duration::from_secs(5);
        subscription
            .wait(&mut rtnetlink, &mut missing, patience)
            .unwrap();
        assert_eq!(missing.len(), 0);
        // For an address that gets no route, the wait ends after `patience`.
        let mut missing = BTreeSet::from([ip("fd97::1")]);
        let patience = Duration::from_millis(20);
        subscription
            .wait(&mut rtnetlink, &mut missing, patience)
            .unwrap();
        assert_eq!(missing.len(), 1);
    });
}

/// Returns the events that arrive within one second. Returns earlier if `is_enough` accepts the
/// events so far.
fn told(subscription: &Subscription, is_enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut told = Vec::new();
    while !is_enough(&told) && Instant::now() < deadline {
        match subscription.receive() {
            Ok(events) => told.extend(events),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    told
}

#[test]
fn events_of_addresses_added_to_a_filtered_link_are_not_received() {
    in_namespace(|mut rtnetlink| {
        let subscription = Subscription::open(ROOM).unwrap();
        assert_eq!(
            subscription.receive().unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        let address = Address::host(LOOPBACK, ip("10.0.0.1"));
        let mut batch = Batch::new();
        address.push_new(&mut batch);
        address.push_del(&mut batch);
        execute(&mut rtnetlink, &batch);
        let both = [Event::AddressAdded(address), Event::AddressRemoved(address)];
        assert_eq!(told(&subscription, |told| told.len() == 2), both);
        subscription.leave_out_added_to(LOOPBACK).unwrap();
        execute(&mut rtnetlink, &batch);
        assert_eq!(told(&subscription, |told| !told.is_empty()), both[1..]);
        subscription.leave_out_added_to(4711).unwrap();
        execute(&mut rtnetlink, &batch);
        assert_eq!(told(&subscription, |told| told.len() == 2), both);
    });
}

#[test]
fn an_address_whose_label_is_not_utf8_is_read() {
    in_namespace(|mut rtnetlink| {
        let subscription = Subscription::open(ROOM).unwrap();
        let mut batch = Batch::new();
        batch.push(libc::RTM_NEWADDR, 0, |message| {
            message.bytes(&[2, 32, 0, 0]);
            message.bytes(&LOOPBACK.to_ne_bytes());
            message.attr(libc::IFA_LOCAL, &[10, 0, 0, 1]);
            message.attr(libc::IFA_LABEL, b"lo:\xff\0");
        });
        assert_eq!(execute(&mut rtnetlink, &batch), [None]);
        let address = Address::host(LOOPBACK, ip("10.0.0.1"));
        assert_eq!(rtnetlink.addresses(Family::Inet).unwrap(), [address]);
        let told = told(&subscription, |told| !told.is_empty());
        assert_eq!(told, [Event::AddressAdded(address)]);
    });
}

#[test]
fn a_subscription_reports_that_it_lost_address_events() {
    in_namespace(|mut rtnetlink| {
        let subscription = Subscription::open(4_096).unwrap();
        let mut batch = Batch::new();
        for address in many(Family::Inet, 500) {
            Address::host(LOOPBACK, address).push_new(&mut batch);
        }
        execute(&mut rtnetlink, &batch);
        let all = told(&subscription, |told| told.contains(&Event::Lost));
        assert!(all.contains(&Event::Lost), "{all:?}");
        // The subscription still works after the error.
        while subscription.receive().is_ok() {}
        let last = Address::host(LOOPBACK, ip("10.1.0.1"));
        let mut batch = Batch::new();
        last.push_new(&mut batch);
        execute(&mut rtnetlink, &batch);
        let then = told(&subscription, |told| !told.is_empty());
        assert_eq!(then, [Event::AddressAdded(last)]);
    });
}

#[test]
#[ignore = "needs dummy links"]
fn a_subscription_receives_link_events() {
    in_namespace(|mut rtnetlink| {
        let subscription = Subscription::open(ROOM).unwrap();
        rtnetlink.create_dummy(DUMMY).unwrap();
        let down = rtnetlink.link(DUMMY).unwrap().unwrap();
        rtnetlink.set_link_state(DUMMY, LinkState::Up).unwrap();
        let up = rtnetlink.link(DUMMY).unwrap().unwrap();
        rtnetlink.delete_link(DUMMY).unwrap();
        let is_end =
            |event: &Event| matches!(event, Event::LinkRemoved(link) if link.index == down.index);
        let told = told(&subscription, |told| told.iter().any(is_end));
        let at = |wanted: &Event| told.iter().position(|event| event == wanted);
        let (first, then) = (at(&Event::Link(down.clone())), at(&Event::Link(up)));
        assert!(first.is_some() && first < then, "{told:?}");
        assert!(told.iter().any(is_end), "{told:?}");
    });
}

#[test]
#[ignore = "needs dummy links"]
fn events_of_a_link_with_an_invalid_name_are_received() {
    in_namespace(|mut rtnetlink| {
        let subscription = Subscription::open(ROOM).unwrap();
        let named = |message: &mut Writer<'_>| {
            message.bytes(&[0; 16]);
            message.attr(libc::IFLA_IFNAME, b"d\xff\xfe\0");
        };
        let mut batch = Batch::new();
        batch.push(libc::RTM_NEWLINK, NLM_F_CREATE, |message| {
            named(message);
            message.nest(libc::IFLA_LINKINFO, |info| {
                info.attr_str(libc::IFLA_INFO_KIND, "dummy");
            });
        });
        batch.push(libc::RTM_DELLINK, 0, named);
        assert_eq!(execute(&mut rtnetlink, &batch), [None, None]);
        let is_end = |event: &Event| matches!(event, Event::LinkRemoved(_));
        let told = told(&subscription, |told| told.iter().any(is_end));
        assert!(told.iter().any(is_end), "{told:?}");
        assert!(!told.contains(&Event::Lost), "{told:?}");
    });
}
