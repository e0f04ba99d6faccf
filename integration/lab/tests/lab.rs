//! Tests the properties of the lab's network on which tests of kube-proxy rely.

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::{Failure, Node, Place, Signal, Transport, World};
use libtest_mimic::{Arguments, Failed, Trial};

const SOON: Duration = Duration::from_secs(5);
/// Timeout of requests for which the test expects no reply.
const BRIEF: Duration = Duration::from_millis(700);

/// Name of a test, and the test function.
type Story = (&'static str, fn() -> Outcome);
type Outcome = Result<(), Box<dyn Error>>;

fn main() {
    lab::enter(Duration::from_mins(2));
    let stories: &[Story] = &[
        ("pods_reach_each_other", pods_reach_each_other),
        (
            "pods_reach_each_other_over_ipv6_and_ipv4",
            pods_reach_each_other_over_ipv6_and_ipv4,
        ),
        (
            "an_open_connection_keeps_its_server_until_the_server_stops",
            an_open_connection_keeps_its_server_until_the_server_stops,
        ),
        (
            "a_client_can_choose_its_source_address_and_port",
            a_client_can_choose_its_source_address_and_port,
        ),
        (
            "a_udp_flow_keeps_its_server_and_source_port",
            a_udp_flow_keeps_its_server_and_source_port,
        ),
        (
            "sctp_works_if_the_kernel_supports_sctp",
            sctp_works_if_the_kernel_supports_sctp,
        ),
        (
            "connection_failures_are_classified",
            connection_failures_are_classified,
        ),
        (
            "an_outside_host_reaches_pods_only_through_an_added_route",
            an_outside_host_reaches_pods_only_through_an_added_route,
        ),
        (
            "a_test_server_answers_curl_over_ipv4_and_ipv6",
            a_test_server_answers_curl_over_ipv4_and_ipv6,
        ),
        (
            "a_manual_virtual_server_distributes_connections",
            a_manual_virtual_server_distributes_connections,
        ),
        (
            "iptables_rules_apply_to_bridged_packets",
            iptables_rules_apply_to_bridged_packets,
        ),
        (
            "programs_run_in_the_namespace_of_their_place",
            programs_run_in_the_namespace_of_their_place,
        ),
        (
            "a_removed_pod_loses_its_connections_and_frees_its_address",
            a_removed_pod_loses_its_connections_and_frees_its_address,
        ),
        (
            "a_dropped_world_removes_its_namespaces_and_processes",
            a_dropped_world_removes_its_namespaces_and_processes,
        ),
        (
            "a_host_has_only_the_links_eth0_and_lo",
            a_host_has_only_the_links_eth0_and_lo,
        ),
        (
            "an_error_names_the_invalid_address",
            an_error_names_the_invalid_address,
        ),
        (
            "the_kernel_accepts_the_rules_of_each_kube_proxy_mode",
            the_kernel_accepts_the_rules_of_each_kube_proxy_mode,
        ),
        (
            "vector_registers_survive_thread_switches",
            vector_registers_survive_thread_switches,
        ),
    ];
    let run =
        |story: fn() -> Outcome| move || story().map_err(|error| Failed::from(error.to_string()));
    let trials = stories
        .iter()
        .map(|&(name, story)| Trial::test(name, run(story)))
        .collect();
    // Runs one test at a time: the lab has one CPU, and a busy CPU would make tests of timeouts
    // fail.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit();
}

/// A world with two nodes and an external host. The first node has two pods, the second has one.
/// All have IPv4 and IPv6 addresses.
struct Small {
    world: World,
    node1: Node,
    node2: Node,
    a1: Place,
    a2: Place,
    b1: Place,
    outside: Place,
}

fn small() -> Result<Small, lab::Error> {
    let mut world = World::new("small")?;
    let node1 = world.node(
        "node1",
        "172.35.0.100/24 fd35::100/64",
        "192.167.1.1/24 fd67:1::1/64",
    )?;
    let node2 = world.node(
        "node2",
        "172.35.0.101/24 fd35::101/64",
        "192.167.2.1/24 fd67:2::1/64",
    )?;
    let a1 = world.pod(&node1, "a1", "192.167.1.123 fd67:1::123")?;
    let a2 = world.pod(&node1, "a2", "192.167.1.124 fd67:1::124")?;
    let b1 = world.pod(&node2, "b1", "192.167.2.206 fd67:2::206")?;
    let outside = world.host("outside", "172.35.0.9/24 fd35::9/64")?;
    Ok(Small {
        world,
        node1,
        node2,
        a1,
        a2,
        b1,
        outside,
    })
}

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address and a port")
}

fn pods_reach_each_other() -> Outcome {
    let small = small()?;
    small.a1.serve_tcp(80)?;
    small.b1.serve_tcp(80)?;
    for (from, to, who, source) in [
        (&small.a1, "192.167.2.206:80", "b1", "192.167.1.123"),
        (&small.a2, "192.167.1.123:80", "a1", "192.167.1.124"),
        (&small.node1, "192.167.2.206:80", "b1", "172.35.0.100"),
        (&small.node2, "192.167.1.123:80", "a1", "172.35.0.101"),
        (&small.a1, "127.0.0.1:80", "a1", "127.0.0.1"),
    ] {
        let answer = from.ask_tcp(at(to), SOON)?;
        assert_eq!(
            (&*answer.who, &*answer.seen_source.ip().to_string()),
            (who, source),
            "{} to {to}",
            from.name()
        );
    }
    Ok(())
}

fn pods_reach_each_other_over_ipv6_and_ipv4() -> Outcome {
    let small = small()?;
    let server = small.b1.serve_tcp(80)?;
    small.b1.serve_udp(53)?;
    let source = |answer: lab::Answer| answer.seen_source.ip().to_string();
    assert_eq!(
        source(small.a1.ask_tcp(at("[fd67:2::206]:80"), SOON)?),
        "fd67:1::123"
    );
    assert_eq!(
        source(small.a1.ask_udp(at("[fd67:2::206]:53"), SOON)?),
        "fd67:1::123"
    );
    assert_eq!(
        source(small.a1.ask_tcp(at("192.167.2.206:80"), SOON)?),
        "192.167.1.123"
    );
    assert_eq!(server.answers(), 2);
    Ok(())
}

fn an_open_connection_keeps_its_server_until_the_server_stops() -> Outcome {
    let small = small()?;
    let server = small.b1.serve_tcp(80)?;
    let mut connection = small.a1.open_tcp(at("192.167.2.206:80"), SOON)?;
    let first = connection.ask()?;
    assert_eq!(first.seen_source, connection.source()?);
    assert_eq!(connection.ask()?, first);
    assert_ne!(
        small.a1.ask_tcp(at("192.167.2.206:80"), SOON)?.seen_source,
        first.seen_source
    );
    server.stop();
    assert!(matches!(
        connection.ask(),
        Err(Failure::Closed | Failure::Reset)
    ));
    assert_eq!(
        small.a1.ask_tcp(at("192.167.2.206:80"), SOON),
        Err(Failure::Refused)
    );
    Ok(())
}

fn a_client_can_choose_its_source_address_and_port() -> Outcome {
    let small = small()?;
    small.b1.serve_tcp(80)?;
    small.b1.serve_udp(53)?;
    for (transport, to) in [
        (Transport::Tcp, "192.167.2.206:80"),
        (Transport::Udp, "192.167.2.206:53"),
    ] {
        let dial = small
            .a1
            .dial(transport, at(to))
            .from_port(40_000)
            .from_ip("192.167.1.123".parse()?);
        for _ in 0..3 {
            let answer = dial.clone().reset_on_close().ask()?;
            assert_eq!(answer.seen_source, at("192.167.1.123:40000"));
        }
    }
    Ok(())
}

fn a_udp_flow_keeps_its_server_and_source_port() -> Outcome {
    let small = small()?;
    small.b1.serve_udp(53)?;
    let mut flow = small
        .a1
        .dial(Transport::Udp, at("192.167.2.206:53"))
        .open()?;
    let first = flow.ask()?;
    assert_eq!((&*first.who, first.seen_source), ("b1", flow.source()?));
    assert_eq!(flow.ask()?, first);
    Ok(())
}

fn sctp_works_if_the_kernel_supports_sctp() -> Outcome {
    let small = small()?;
    match small.b1.serve_sctp(9) {
        Err(error) if std::env::var_os("LAB_LANE").is_some_and(|lane| lane == "host") => {
            assert!(
                error
                    .to_string()
                    .contains("b1 cannot serve on port 9: Protocol not supported"),
                "{error}"
            );
        }
        server => {
            server?;
            let answer = small.a1.ask_sctp(at("192.167.2.206:9"), SOON)?;
            assert_eq!(answer.seen_source.ip().to_string(), "192.167.1.123");
        }
    }
    Ok(())
}

fn iptables() -> String {
    format!("iptables-{}", lab::iptables_backend())
}

fn connection_failures_are_classified() -> Outcome {
    let small = small()?;
    assert_eq!(
        small.a1.ask_tcp(at("192.167.2.206:81"), SOON),
        Err(Failure::Refused)
    );
    assert_eq!(
        small.a1.ask_udp(at("192.167.2.206:81"), SOON),
        Err(Failure::Refused)
    );
    // An external host without a route to the destination fails the request itself. A pod gets an
    // ICMP error from its node, which has no route.
    assert_eq!(
        small.outside.ask_tcp(at("10.96.0.10:80"), SOON),
        Err(Failure::Unreachable)
    );
    assert_eq!(
        small.a1.ask_tcp(at("10.96.0.10:80"), SOON),
        Err(Failure::Unreachable)
    );
    small
        .b1
        .read([&iptables(), "-A", "INPUT", "-p", "tcp", "-j", "DROP"])?;
    let started = Instant::now();
    assert_eq!(
        small.a1.ask_tcp(at("192.167.2.206:81"), BRIEF),
        Err(Failure::TimedOut)
    );
    assert!(
        started.elapsed() >= BRIEF && started.elapsed() < 4 * BRIEF,
        "{:?}",
        started.elapsed()
    );
    Ok(())
}

fn an_outside_host_reaches_pods_only_through_an_added_route() -> Outcome {
    let small = small()?;
    small.b1.serve_tcp(80)?;
    let ask = || small.outside.ask_tcp(at("192.167.2.206:80"), SOON);
    assert_eq!(ask(), Err(Failure::Unreachable));
    small
        .world
        .route(&small.outside, "192.167.0.0/16", &small.node1)?;
    assert_eq!(ask()?.seen_source.ip().to_string(), "172.35.0.9");
    Ok(())
}

fn a_test_server_answers_curl_over_ipv4_and_ipv6() -> Outcome {
    let small = small()?;
    small.b1.serve_tcp(80)?;
    let both = [
        "curl",
        "-sS",
        "--max-time",
        "5",
        "http://192.167.2.206/",
        "http://[fd67:2::206]/",
    ];
    let text = small.a1.read(both)?;
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        matches!(lines[..], [four, six] if four.starts_with("b1 192.167.1.123:") && six.starts_with("b1 [fd67:1::123]:")),
        "{text}"
    );
    Ok(())
}

/// Checks that the kernel accepts the rules of every kube-proxy mode, in both IP families and in
/// each of its iptables backends. Checks all IPVS schedulers.
fn the_kernel_accepts_the_rules_of_each_kube_proxy_mode() -> Outcome {
    let small = small()?;
    let is_b = std::env::var_os("LAB_LANE").is_some_and(|lane| lane == "B");
    let mut backends = vec![lab::iptables_backend()];
    let mut schedulers = "rr wrr lc wlc sh dh sed nq mh lblc lblcr fo ovf".to_owned();
    if is_b {
        backends = vec!["nft", "legacy"];
        schedulers.push_str(" twos");
        small
            .node1
            .read(["nfacct", "add", "ct_state_invalid_dropped_pkts"])?;
    }
    // Among the lab's kernels, only lane B has nfacct counters and conntrack zones.
    let more = if is_b {
        "-A FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP\n"
    } else {
        ""
    };
    let raw = if is_b {
        "*raw\n-A PREROUTING -i eth0 -j CT --zone 7\nCOMMIT\n"
    } else {
        ""
    };
    for (tables, net, reject) in [
        ("iptables", "10.96.0.10", "icmp-port-unreachable"),
        ("ip6tables", "fd96::10", "icmp6-port-unreachable"),
    ] {
        let family = if tables == "iptables" {
            "inet"
        } else {
            "inet6"
        };
        small
            .node1
            .read(format!("ipset create {tables} hash:ip,port family {family}").split(' '))?;
        let rules = format!(
            "*filter\n-A FORWARD -m comment --comment \"no endpoints\" -m addrtype --dst-type LOCAL -j REJECT --reject-with {reject}\n{more}COMMIT\n\
             *nat\n:KUBE-SVC - [0:0]\n:KUBE-SEP - [0:0]\n-A PREROUTING -m set --match-set {tables} dst,dst -j KUBE-SVC\n\
             -A KUBE-SVC -m recent --name sep --rcheck --seconds 10800 --reap -j KUBE-SEP\n\
             -A KUBE-SVC -m statistic --mode random --probability 0.5 -j KUBE-SEP\n\
             -A KUBE-SEP -s {net} -m physdev ! --physdev-is-in -j MARK --or-mark 0x4000\n\
             -A KUBE-SEP -p tcp -m recent --name sep --set -j DNAT --to-destination {net}\n\
             -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully\n\
             -A POSTROUTING -m ipvs --ipvs -p udp -m multiport --dports 53,54 -m limit --limit 1/s -j RETURN\nCOMMIT\n{raw}"
        );
        for backend in &backends {
            let script = format!("printf '%s' \"$1\" | {tables}-{backend}-restore -w 5 --noflush");
            small
                .node1
                .read(["sh", "-ec", script.as_str(), "sh", rules.as_str()])?;
            let saved = small.node1.read([format!("{tables}-{backend}-save")])?;
            let count = |text: &str| text.lines().filter(|line| line.starts_with("-A")).count();
            assert_eq!(count(&saved), count(&rules), "{tables}-{backend}: {saved}");
        }
    }
    for (port, scheduler) in schedulers.split(' ').enumerate() {
        let at = format!("10.96.0.10:{}", port + 1);
        small
            .node1
            .read(["ipvsadm", "-A", "-t", at.as_str(), "-s", scheduler])?;
    }
    Ok(())
}

/// Checks that the lab's IPVS works: `ipvsadm` adds a virtual server, and the kernel distributes
/// connections to its destinations.
fn a_manual_virtual_server_distributes_connections() -> Outcome {
    let small = small()?;
    small.a1.serve_tcp(80)?;
    small.b1.serve_tcp(80)?;
    for command in [
        "ip link add kube-ipvs0 type dummy",
        "ip address add 10.96.0.10/32 dev kube-ipvs0",
        "ipvsadm -A -t 10.96.0.10:80 -s rr",
        "ipvsadm -a -t 10.96.0.10:80 -r 192.167.1.123:80 -m",
        "ipvsadm -a -t 10.96.0.10:80 -r 192.167.2.206:80 -m",
        "sysctl -qw net.ipv4.vs.conntrack=1",
    ] {
        small.node1.read(command.split(' '))?;
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        let answer = small.a2.ask_tcp(at("10.96.0.10:80"), SOON)?;
        assert_eq!(answer.seen_source.ip().to_string(), "192.167.1.124");
        seen.push(answer.who);
    }
    seen.sort();
    assert_eq!(seen, ["a1", "a1", "b1", "b1"]);
    assert!(!small.node2.read(["ipvsadm", "-Ln"])?.contains("10.96.0.10"));
    Ok(())
}

/// Checks that iptables rules apply to packets between two pods of a node, which cross only its
/// bridge. kube-proxy relies on this.
fn iptables_rules_apply_to_bridged_packets() -> Outcome {
    let small = small()?;
    small.a1.serve_tcp(80)?;
    small.a2.ask_tcp(at("192.167.1.123:80"), SOON)?;
    small.node1.read([
        &iptables(),
        "-A",
        "FORWARD",
        "-p",
        "tcp",
        "-j",
        "REJECT",
        "--reject-with",
        "tcp-reset",
    ])?;
    assert_eq!(
        small.a2.ask_tcp(at("192.167.1.123:80"), SOON),
        Err(Failure::Refused)
    );
    Ok(())
}

fn programs_run_in_the_namespace_of_their_place() -> Outcome {
    let small = small()?;
    let links = small.node1.read(["ls", "/sys/class/net"])?;
    assert!(
        links.contains("cni0") && !links.contains("fabric"),
        "{links}"
    );
    let output = small
        .a1
        .run(["sh", "-c", "echo out; echo err >&2; exit 4"])?;
    assert_eq!(
        (output.status.code(), &*output.stdout, &*output.stderr),
        (Some(4), "out\n", "err\n")
    );
    assert!(small.a1.read(["false"]).is_err());

    let mut daemon = small.node1.spawn([
        "sh",
        "-c",
        "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    ])?;
    daemon.wait_for("ready", SOON)?;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for("bye", SOON)?, "bye");
    assert!(daemon.wait(SOON)?.status.success());

    let forgotten = small.node1.spawn(["sleep", "60"])?;
    let alive = format!("/proc/{}", forgotten.id());
    assert!(std::path::Path::new(&alive).exists());
    drop(forgotten);
    assert!(!std::path::Path::new(&alive).exists());
    Ok(())
}

fn a_removed_pod_loses_its_connections_and_frees_its_address() -> Outcome {
    let mut small = small()?;
    small.b1.serve_tcp(80)?;
    let mut connection = small.a1.open_tcp(at("192.167.2.206:80"), BRIEF)?;
    connection.ask()?;
    small.world.remove(&small.b1);
    assert!(connection.ask().is_err());
    let again = small.world.pod(&small.node2, "b1-again", "192.167.2.206")?;
    again.serve_tcp(80)?;
    assert_eq!(
        small.a1.ask_tcp(at("192.167.2.206:80"), SOON)?.who,
        "b1-again"
    );
    Ok(())
}

fn a_dropped_world_removes_its_namespaces_and_processes() -> Outcome {
    let names = || std::fs::read_dir("/run/netns").map_or(0, Iterator::count);
    let before = names();
    let small = small()?;
    assert_eq!(names(), before + 7);
    let pod = small.a1.clone();
    let mut stray = Command::new("ip")
        .args(["netns", "exec", small.a2.netns_name(), "sleep", "60"])
        .spawn()?;
    // At first, the process is `ip`, which enters the network namespace and then executes `sleep`.
    // Waits for `sleep`.
    while std::fs::read_to_string(format!("/proc/{}/comm", stray.id()))? != "sleep\n" {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(small);
    assert_eq!(names(), before);
    assert!(!stray.wait()?.success(), "what ran there was killed");
    assert!(pod.serve_tcp(80).is_err());
    Ok(())
}

fn a_host_has_only_the_links_eth0_and_lo() -> Outcome {
    let mut world = World::new("lone")?;
    let host = world.host("host", "172.35.0.9/24")?;
    let mut links: Vec<String> = host
        .read(["ls", "/sys/class/net"])?
        .split_whitespace()
        .map(Into::into)
        .collect();
    links.retain(|link| link != "bonding_masters");
    assert_eq!(links, ["eth0", "lo"]);
    Ok(())
}

fn an_error_names_the_invalid_address() -> Outcome {
    let mut world = World::new("wrong")?;
    let node = world.node("node", "172.35.0.100/24", "192.167.1.1/24")?;
    for (address, part) in [
        ("192.167.9.1", "in no pod range of node"),
        ("192.167.1.300", "192.167.1.300"),
    ] {
        let error = world
            .pod(&node, "pod", address)
            .expect_err("must be refused")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = world
        .node("six", "fd35::1/64", "192.167.1.1/24")
        .and_then(|six| world.route(&six, "10.0.0.0/8", &six));
    assert!(
        error
            .expect_err("no IPv4 way")
            .to_string()
            .contains("no address of its family")
    );
    Ok(())
}

/// Checks that several threads on one CPU keep their own vector registers, which User Mode Linux
/// saves and restores itself (partly in `xstate.c`).
#[cfg(target_arch = "x86_64")]
fn vector_registers_survive_thread_switches() -> Outcome {
    /// Loads `$given` into a vector register, runs a long loop, and stores the register into
    /// `$seen`.
    macro_rules! hold {
        ($mov:literal, $register:literal, $given:expr, $seen:expr) => {
            std::arch::asm!(
                concat!($mov, " ", $register, ", [{given}]"), "2:", "dec {rounds}", "jnz 2b",
                concat!($mov, " [{seen}], ", $register),
                given = in(reg) $given.as_ptr(), seen = in(reg) $seen.as_mut_ptr(),
                rounds = inout(reg) 200_000_000u64 => _, out("xmm15") _
            )
        };
    }
    fn held(given: [u64; 8]) -> [u64; 8] {
        // A smaller register fills only the first elements of `seen`. The remaining elements
        // already have the expected value.
        let mut seen = given;
        #[allow(
            unsafe_code,
            reason = "only assembly keeps a value in a register for sure"
        )]
        // SAFETY: the CPU supports each instruction that runs. The instructions access only the two
        // arrays.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                seen = [0; 8];
                hold!("vmovupd", "zmm15", given, seen);
            } else if is_x86_feature_detected!("avx") {
                seen[..4].fill(0);
                hold!("vmovupd", "ymm15", given, seen);
            } else {
                seen[..2].fill(0);
                hold!("movupd", "xmm15", given, seen);
            }
        }
        seen
    }
    let given = [1, 2, 3, 4].map(|seed| [1, 2, 3, 4, 5, 6, 7, 8].map(|lane| 10 * seed + lane));
    let threads = given.map(|given| (given, std::thread::spawn(move || held(given))));
    for (given, thread) in threads {
        assert_eq!(thread.join().map_err(|_| "panicked")?, given);
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_registers_survive_thread_switches() -> Outcome {
    Ok(()) // only x86-64 has User Mode Linux
}
