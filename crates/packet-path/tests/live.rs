//! Tests that this crate reads the running kernel's state. Each test has its own network namespace.
//!
//! The tests need root, `ip`, `ipset`, `iptables` and `ipvsadm`, and a kernel with IPVS.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::process::Command;

use inet::{IpFamily, Protocol};
use packet_path::read::{LiveKernel, rules};
use packet_path::{
    Fate, Interface, Kernel, Question, Route, RouteQuestion, Ruleset, Sender, Source, Walk,
};

/// Moves the calling thread into a new network namespace with a node: eth0 with a default route,
/// and cni0 with the pods.
fn node() {
    namespace::enter().unwrap();
    for line in [
        "ip link set lo up",
        "ip link add eth0 type dummy",
        "ip addr add 192.168.99.10/24 dev eth0",
        "ip link set eth0 up",
        "ip link add cni0 type bridge",
        "ip addr add 10.244.1.1/24 dev cni0",
        "ip link set cni0 up",
        "ip route add default via 192.168.99.1",
        "ip route add 10.244.0.0/16 via 192.168.99.2",
    ] {
        run(line);
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
}

fn run(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

fn iptables(arguments: &str) {
    run(&format!("iptables-{} {arguments}", lab::iptables_backend()));
}

fn ask(from: Sender, to: &str) -> Vec<Walk> {
    let found = rules(IpFamily::V4);
    assert_eq!(found.unread, []);
    let backends = found
        .backends
        .iter()
        .map(|(_, tables)| tables as &dyn Ruleset);
    let question = Question {
        protocol: Protocol::Tcp,
        from,
        to: to.parse().unwrap(),
        source_port: None,
    };
    let live = LiveKernel::open().unwrap();
    packet_path::walk(&question, &backends.collect::<Vec<_>>(), &live)
}

fn pod() -> Sender {
    Sender::Other([10, 244, 1, 7].into(), None)
}

#[test]
#[ignore = "needs root and a network namespace"]
fn route_lookup_returns_the_route_that_the_kernel_chooses() {
    node();
    let live = LiveKernel::open().unwrap();
    let asked = |to: [u8; 4], from: Option<([u8; 4], &str)>| {
        let question = RouteQuestion {
            destination: to.into(),
            source: from.map(|(source, _)| source.into()),
            iif: from.map(|(_, name)| Interface {
                index: None,
                name: name.to_owned(),
            }),
            mark: 0,
        };
        live.route(&question).unwrap()
    };
    let Route::Out {
        interface,
        gateway,
        source,
    } = asked([10, 244, 2, 5], None)
    else {
        panic!("it leaves");
    };
    assert_eq!(interface.name, "eth0");
    assert_eq!(gateway, Some([192, 168, 99, 2].into()));
    assert_eq!(source, Some([192, 168, 99, 10].into()));
    let own = asked([192, 168, 99, 10], None);
    assert!(matches!(own, Route::Local { .. }), "{own:?}");
    let pod = ([10, 244, 1, 7], "cni0");
    let through = asked([10, 244, 2, 5], Some(pod));
    assert!(
        matches!(&through, Route::Out { interface, .. } if interface.name == "eth0"),
        "{through:?}"
    );
    let local = asked([127, 0, 0, 1], Some(pod));
    assert!(matches!(local, Route::None { .. }), "{local:?}");
    assert!(
        live.is_bridge(&Interface {
            index: None,
            name: "cni0".to_owned()
        })
        .unwrap()
    );
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    let live = LiveKernel::open().unwrap();
    let question = RouteQuestion {
        destination: [10, 244, 2, 6].into(),
        source: Some([10, 244, 1, 7].into()),
        iif: Some(Interface {
            index: None,
            name: "cni0".to_owned(),
        }),
        mark: 0,
    };
    let Route::None { why, is_told } = live.route(&question).unwrap() else {
        panic!("it is not forwarded");
    };
    assert!(why.contains("ip_forward") && !is_told, "{why}");
}

#[test]
#[ignore = "needs root and iptables"]
fn iptables_rules_and_ipsets_are_read() {
    node();
    run("ipset create KUBE-X hash:ip,port,net");
    run("ipset add KUBE-X 192.168.99.10,tcp:30080,10.244.1.0/24");
    run("ipset create PORTS bitmap:port range 0-65535");
    run("ipset add PORTS 30080");
    iptables("-t nat -N KUBE-SVC");
    iptables(
        "-t nat -A PREROUTING -m set --match-set KUBE-X dst,dst,src -m set --match-set PORTS dst -m addrtype --dst-type LOCAL -j KUBE-SVC",
    );
    iptables(
        "-t nat -A KUBE-SVC -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.1.5:80",
    );
    iptables("-t nat -A KUBE-SVC -p tcp -j DNAT --to-destination 10.244.2.5:80");
    iptables("-t nat -A POSTROUTING -j MASQUERADE");
    let walks = ask(pod(), "192.168.99.10:30080");
    assert_eq!(walks.len(), 2, "{walks:#?}");
    assert!(walks.iter().all(|walk| walk.fate == Fate::Delivered));
    assert_eq!(
        walks[0].source,
        Source::Masqueraded(Some([10, 244, 1, 1].into()))
    );
    assert_eq!(
        walks[1].source,
        Source::Masqueraded(Some([192, 168, 99, 10].into()))
    );
    let jump = &walks[0].steps[0];
    assert_eq!(
        jump.members,
        [
            "KUBE-X 192.168.99.10,tcp:30080,10.244.1.0/24",
            "PORTS 30080"
        ]
    );
    assert_eq!(jump.counters.map(|counted| counted.packets), Some(0));
    let other = ask(pod(), "192.168.99.10:30081");
    assert_eq!(other[0].fate, Fate::Local);
}

#[test]
#[ignore = "needs root and IPVS"]
fn virtual_servers_are_read_by_key() {
    node();
    run("ip link add kube-ipvs0 type dummy");
    run("ip addr add 10.96.0.10/32 dev kube-ipvs0");
    run("ipvsadm -A -t 10.96.0.10:80 -s rr");
    run("ipvsadm -a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m");
    run("ipvsadm -a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m");
    run("ipvsadm -a -t 10.96.0.10:80 -r 10.244.3.5:8080 -m -w 0");
    run("ipvsadm -A -t 10.96.0.10:81 -s rr");
    for from in [pod(), Sender::Node(None)] {
        let walks = ask(from.clone(), "10.96.0.10:80");
        assert_eq!(walks.len(), 2, "{walks:#?}");
        assert!(walks.iter().all(|walk| walk.fate == Fate::Delivered));
        let refused = ask(from, "10.96.0.10:81");
        assert_eq!(refused[0].fate, Fate::Refused);
    }
    // This virtual server handles marked packets to any port. Only one of its destinations has its
    // own port.
    iptables("-t mangle -A PREROUTING -d 192.168.99.10 -p tcp -j MARK --set-mark 77");
    run("ipvsadm -A -f 77 -s rr");
    run("ipvsadm -a -f 77 -r 10.244.1.5:8080 -m");
    run("ipvsadm -a -f 77 -r 10.244.2.5 -m");
    let marked = ask(pod(), "192.168.99.10:80");
    let mut endpoints: Vec<String> = marked
        .iter()
        .filter_map(|walk| Some(walk.endpoint?.to_string()))
        .collect();
    endpoints.sort_unstable();
    assert_eq!(
        endpoints,
        ["10.244.1.5:8080", "10.244.2.5:80"],
        "{marked:#?}"
    );
    let node = ask(Sender::Node(None), "10.96.0.10:80");
    assert!(
        node.iter()
            .all(|walk| walk.source == Source::ServiceAddress)
    );
}
