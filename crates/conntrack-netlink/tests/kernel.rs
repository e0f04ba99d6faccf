//! Tests on the running kernel, each in its own network namespace. The program `conntrack` creates
//! the flows, and lists the flows that remain.
//!
//! Needs root, `conntrack`, and a kernel with `nf_conntrack_netlink`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::Command;

use conntrack_netlink::{Conntrack, Flow, IpFamily, Outcome, Protocol};

/// Moves the calling thread into a new network namespace, and opens a connection there.
fn new_namespace() -> Conntrack {
    namespace::enter().unwrap();
    Conntrack::open().unwrap()
}

/// Runs the `conntrack` tool. Returns its output lines without the values that change with time.
fn tool(arguments: &str) -> Vec<String> {
    let output = Command::new("conntrack")
        .args(arguments.split(' '))
        .output()
        .expect("install conntrack to run this test");
    assert!(
        output.status.success(),
        "conntrack {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    // A line looks like `udp 17 599 src=10.0.0.1 ...`. The third word is the remaining time.
    let line = |line: &str| line.split_once(" src=").unwrap().1.to_owned();
    let mut lines: Vec<_> = text.lines().map(line).collect();
    lines.sort();
    lines
}

/// Creates a UDP flow from this source port to 10.96.0.10:53, with replies from 10.244.2.10:5353.
fn udp(source_port: u16) {
    tool(&format!(
        "-I -p udp -s 10.244.1.99 --sport {source_port} -d 10.96.0.10 --dport 53 -r 10.244.2.10 --reply-port-src 5353 \
         -q 10.244.1.99 --reply-port-dst {source_port} -t 600"
    ));
}

fn flows(
    conntrack: &mut Conntrack,
    family: IpFamily,
    protocol: impl Into<Option<Protocol>>,
) -> Vec<Flow> {
    let found = conntrack.find(family, protocol, |_| true).unwrap();
    assert_eq!(found.seen, found.flows.len());
    let mut flows = found.flows;
    flows.sort_by_key(|flow| flow.original.source.port());
    flows
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn a_search_returns_only_the_requested_flows() {
    let mut conntrack = new_namespace();
    assert_eq!(flows(&mut conntrack, IpFamily::V4, Protocol::Udp), []);
    udp(40000);
    udp(40001);
    tool("-I -p udp -s fd44:1::99 --sport 40002 -d fd96::10 --dport 53 -t 600");
    tool(
        "-I -p tcp -s 10.244.1.99 --sport 40003 -d 10.96.0.1 --dport 443 -t 600 --state ESTABLISHED",
    );

    let ends = |flow: &Flow| {
        let ends = [
            flow.original.source,
            flow.original.destination,
            flow.reply.source,
            flow.reply.destination,
        ];
        ends.map(|end| end.to_string()).join(" ")
    };
    let udp: Vec<_> = flows(&mut conntrack, IpFamily::V4, Protocol::Udp)
        .iter()
        .map(ends)
        .collect();
    assert_eq!(
        udp,
        [
            "10.244.1.99:40000 10.96.0.10:53 10.244.2.10:5353 10.244.1.99:40000",
            "10.244.1.99:40001 10.96.0.10:53 10.244.2.10:5353 10.244.1.99:40001",
        ]
    );
    let ports = |flows: Vec<Flow>| -> Vec<_> {
        flows
            .iter()
            .map(|flow| flow.original.source.port())
            .collect()
    };
    assert_eq!(
        ports(flows(&mut conntrack, IpFamily::V6, Protocol::Udp)),
        [40002]
    );
    assert_eq!(
        ports(flows(&mut conntrack, IpFamily::V4, Protocol::Tcp)),
        [40003]
    );
    assert_eq!(flows(&mut conntrack, IpFamily::V6, Protocol::Tcp), []);
    let of_all = flows(&mut conntrack, IpFamily::V4, None::<Protocol>);
    assert_eq!(ports(of_all), [40000, 40001, 40003]);
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn the_list_example_prints_the_same_flows_as_conntrack() {
    let _conntrack = new_namespace();
    udp(40000);
    udp(40001);
    tool(
        "-I -p tcp -s 10.244.1.99 --sport 40003 -d 10.96.0.1 --dport 443 -t 600 --state ESTABLISHED",
    );
    // The example does not print state, timeout and use count, so the comparison ignores them.
    let flows = |lines: Vec<String>| -> Vec<_> {
        let flow = |line: &String| {
            let flow = line.split_once("src=").map_or("", |(_, flow)| flow);
            flow.split(" use=").next().unwrap().to_owned()
        };
        let mut flows: Vec<_> = lines.iter().map(flow).collect();
        flows.sort();
        flows
    };
    let listed = |arguments: &str| {
        let lines = tool(arguments);
        flows(lines.iter().map(|line| format!("src={line}")).collect())
    };
    let all = flows(namespace::example("conntrack_list", &[]));
    assert_eq!(all, listed("-L"));
    assert_eq!(all.len(), 3);
    let dns = flows(namespace::example("conntrack_list", &["53"]));
    assert_eq!(dns, listed("-L -p udp --orig-port-dst 53"));
    assert_eq!(dns.len(), 2);
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn a_flow_is_found_by_the_addresses_of_its_replies() {
    let mut conntrack = new_namespace();
    udp(40000);
    tool("-I -p udp -s fd44:1::99 --sport 40002 -d fd96::10 --dport 53 -t 600");
    let mut meant = |protocol, source: &str, destination: &str| {
        let [source, destination] = [source, destination].map(|at| at.parse().unwrap());
        let found = conntrack
            .find_by_reply(protocol, source, destination)
            .unwrap();
        found.map(|flow| flow.original.destination.to_string())
    };
    let (udp, client) = (Protocol::Udp, "10.244.1.99:40000");
    let v4 = meant(udp, "10.244.2.10:5353", client);
    assert_eq!(v4.as_deref(), Some("10.96.0.10:53"));
    assert_eq!(meant(udp, "10.96.0.10:53", client), None);
    assert_eq!(meant(Protocol::Tcp, "10.244.2.10:5353", client), None);
    let v6 = meant(udp, "[fd96::10]:53", "[fd44:1::99]:40002");
    assert_eq!(v6.as_deref(), Some("[fd96::10]:53"));
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn only_the_given_flows_are_deleted() {
    let mut conntrack = new_namespace();
    udp(40000);
    udp(40001);
    udp(40002);
    tool("-I -p udp -s fd44:1::99 --sport 40000 -d fd96::10 --dport 53 -t 600");
    let all = flows(&mut conntrack, IpFamily::V4, Protocol::Udp);
    assert_eq!(all.len(), 3);

    let named = [all[2], all[0]];
    assert_eq!(
        conntrack.delete(&named).unwrap(),
        [Outcome::Deleted, Outcome::Deleted]
    );
    assert_eq!(flows(&mut conntrack, IpFamily::V4, Protocol::Udp), [all[1]]);
    assert_eq!(tool("-L -f ipv4").len(), 1);
    assert_eq!(tool("-L -f ipv6").len(), 1);

    assert_eq!(
        conntrack.delete(&all).unwrap(),
        [Outcome::Absent, Outcome::Deleted, Outcome::Absent]
    );
    assert_eq!(conntrack.delete(&[]).unwrap(), []);
    let six = flows(&mut conntrack, IpFamily::V6, Protocol::Udp);
    assert_eq!(conntrack.delete(&six).unwrap(), [Outcome::Deleted]);
    assert_eq!(tool("-L -f ipv6"), [""; 0]);
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn zones_distinguish_flows_with_the_same_addresses() {
    let mut conntrack = new_namespace();
    let in_zone = |zone: &str, answerer: &str| {
        let made = Command::new("conntrack")
            .args("-I -p udp -s 10.244.1.99 --sport 40000 -d 10.96.0.10 --dport 53 -t 600 --reply-port-src 53".split(' '))
            .args("--reply-port-dst 40000 -q 10.244.1.99".split(' '))
            .args(["-r", answerer])
            .args(zone.split(' '))
            .output();
        let said = String::from_utf8(made.unwrap().stderr).unwrap();
        assert!(
            said.contains("have been created") || said.contains("Operation not supported"),
            "{said}"
        );
        said.contains("have been created")
    };
    udp(40000);
    if !in_zone("-w 7", "10.244.2.10") {
        assert_ne!(
            std::env::var("LAB_LANE").as_deref(),
            Ok("B"),
            "its kernel has zones"
        );
        eprintln!("skipped: this kernel has no zones (CONFIG_NF_CONNTRACK_ZONES)");
        return;
    }
    assert!(in_zone("--orig-zone 9", "10.244.2.11"));
    let mut all = flows(&mut conntrack, IpFamily::V4, Protocol::Udp);
    all.sort_by_key(|flow| flow.zone + flow.original.zone);
    let zones: Vec<_> = all
        .iter()
        .map(|flow| (flow.zone, flow.original.zone))
        .collect();
    assert_eq!(zones, [(0, 0), (7, 0), (0, 9)]);
    for (index, flow) in all.iter().enumerate() {
        assert_eq!(conntrack.delete(&[*flow]).unwrap(), [Outcome::Deleted]);
        assert_eq!(tool("-L -p udp").len(), 2 - index);
    }
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn a_flow_with_a_different_id_is_not_deleted() {
    let mut conntrack = new_namespace();
    udp(40000);
    let flows = flows(&mut conntrack, IpFamily::V4, Protocol::Udp);
    let earlier = Flow {
        id: !flows[0].id,
        ..flows[0]
    };
    assert_eq!(conntrack.delete(&[earlier]).unwrap(), [Outcome::Absent]);
    assert_eq!(tool("-L").len(), 1);
    assert_eq!(conntrack.delete(&flows).unwrap(), [Outcome::Deleted]);
    assert_eq!(tool("-L"), [""; 0]);
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn thousands_of_flows_are_deleted_in_one_call() {
    const COUNT: u16 = 3000;
    let mut conntrack = new_namespace();
    // The `conntrack` tool can load flows from a file since version 1.4.7.
    let line =
        |port| format!("-A -p udp -s 10.244.1.99 --sport {port} -d 10.96.0.10 --dport 53 -t 600\n");
    let lines: Vec<String> = (1..=COUNT).map(line).collect();
    let file = std::env::temp_dir().join(format!("conntrack-netlink-{}", std::process::id()));
    std::fs::write(&file, lines.concat()).unwrap();
    tool(&format!("-R {}", file.display()));
    std::fs::remove_file(&file).unwrap();

    let odd = |flow: &Flow| flow.original.source.port() % 2 == 1;
    let found = conntrack.find(IpFamily::V4, Protocol::Udp, odd).unwrap();
    assert_eq!((found.flows.len(), found.seen), (1500, usize::from(COUNT)));
    assert!(found.flows.iter().all(odd));
    let all = flows(&mut conntrack, IpFamily::V4, Protocol::Udp);
    assert_eq!(all.len(), usize::from(COUNT));
    let (kept, named) = all.split_first().unwrap();
    assert_eq!(
        conntrack.delete(named).unwrap(),
        vec![Outcome::Deleted; named.len()]
    );
    assert_eq!(flows(&mut conntrack, IpFamily::V4, Protocol::Udp), [*kept]);
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn errors_of_conntrack_calls_name_the_missing_capability() {
    let mut conntrack = new_namespace();
    udp(40000);
    let flow = flows(&mut conntrack, IpFamily::V4, Protocol::Udp);
    namespace::drop_rights();
    let mut conntrack = Conntrack::open().unwrap();
    let find = conntrack.find(IpFamily::V4, Protocol::Udp, |_| true);
    let find = find.unwrap_err().to_string();
    assert!(find.contains("CAP_NET_ADMIN"), "{find}");
    let delete = conntrack.delete(&flow).unwrap_err();
    assert!(delete.to_string().contains("CAP_NET_ADMIN"), "{delete}");
}
