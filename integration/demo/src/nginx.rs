//! First example: a ClusterIP, a NodePort and a LoadBalancer Service. All three Services select the
//! same three nginx pods, one of which runs on the node.

use std::time::Duration;

use anyhow::Result;
use lab::World;
use scenarios::{members, virtual_servers};

use crate::account::{Account, count, start, tally, wait_for};
use crate::{Arguments, bare};

const VIRTUAL_SERVERS: [&str; 6] = [
    "TCP 10.103.1.234:80",
    "TCP 10.96.98.173:80",
    "TCP 10.97.229.148:80",
    "TCP 172.35.0.100:30781",
    "TCP 172.35.0.100:30915",
    "TCP 172.35.0.200:80",
];
const PODS: [&str; 3] = ["192.167.1.123", "192.167.2.206", "192.167.2.231"];
const REQUESTS: usize = 9;

pub(crate) fn show(arguments: &Arguments, account: &mut Account) -> Result<()> {
    account.part("nginx: one node programmed by kube-proxy, three pods, three Services");
    let mut world = World::new("nginx")?;
    let node = world.node("node-100", "172.35.0.100/24", "192.167.1.1/24")?;
    let other = world.node("node-101", "172.35.0.101/24", "192.167.2.1/24")?;
    for (name, at, address) in [
        ("nginx-123", &node, PODS[0]),
        ("nginx-206", &other, PODS[1]),
        ("nginx-231", &other, PODS[2]),
    ] {
        world.pod(at, name, address)?.serve_tcp(80)?;
    }
    let client = world.host("client", "172.35.0.9/24")?;
    world.route(&client, "10.96.0.0/12", &node)?;
    account.say("node-100 (172.35.0.100) runs pod 192.167.1.123; node-101, without a daemon, runs the other two;");
    account.say("a client outside (172.35.0.9) sends what is for 10.96.0.0/12 to node-100.");

    let manifests = arguments.examples.join("nginx");
    let flags = [
        "--cluster-cidr=192.167.0.0/16",
        "--nodeport-addresses=primary",
    ];
    let mut daemon = start(&arguments.kube_proxy, &node, "node-100", &manifests, &flags)?;
    let took = wait_for(&node, &mut daemon, |servers| {
        servers.len() == VIRTUAL_SERVERS.len()
            && servers
                .values()
                .all(|server| server.reals.len() == PODS.len())
    })?;
    account.say(&format!(
        "kube-proxy --proxy-mode=ipvs {} on {}: programmed after {took:.1?}.",
        flags.join(" "),
        "examples/nginx"
    ));
    account.services(&manifests)?;

    let found = virtual_servers(&node)?;
    let keys: Vec<&str> = found.keys().map(String::as_str).collect();
    account.claim(
        "exactly six virtual servers",
        keys == VIRTUAL_SERVERS,
        &keys.join(" "),
    );
    let reals = PODS.map(|pod| format!("{pod}:80*1"));
    let are_equal = found
        .values()
        .all(|server| server.properties == "rr" && server.weights() == reals);
    account.claim(
        "each rr, with three Masq real servers of weight 1",
        are_equal,
        &reals.join(", "),
    );
    for (set, wanted) in [
        (
            "KUBE-CLUSTER-IP",
            &[
                "10.103.1.234,tcp:80",
                "10.96.98.173,tcp:80",
                "10.97.229.148,tcp:80",
            ][..],
        ),
        ("KUBE-LOAD-BALANCER", &["172.35.0.200,tcp:80"]),
        ("KUBE-NODE-PORT-TCP", &["30781", "30915"]),
        ("KUBE-LOOP-BACK", &["192.167.1.123,tcp:80,192.167.1.123"]),
    ] {
        let found = if arguments.without_iptables {
            bare::members(&node, set)?
        } else {
            members(&node, set)?
        };
        account.claim(
            &format!("{set} holds exactly these"),
            found.iter().eq(wanted),
            &Vec::from_iter(found).join(" "),
        );
    }

    if arguments.without_iptables {
        bare::claim_that_iptables_is_unused(account, &node)?;
    }
    for server in VIRTUAL_SERVERS {
        let to = server.trim_start_matches("TCP ").parse()?;
        let answers: Result<Vec<_>, _> = (0..REQUESTS)
            .map(|_| client.ask_tcp(to, Duration::from_secs(5)))
            .collect();
        match answers {
            Ok(answers) => {
                let counts = count(&answers);
                account.claim(
                    &format!("{server} answers from all three pods"),
                    counts.len() == 3,
                    &tally(&counts),
                );
            }
            Err(failure) => account.failed(&format!("{server} was asked: {failure}")),
        }
    }
    account.show(
        "ipvsadm -Ln   # on node-100, after the traffic",
        &node.read(["ipvsadm", "-Ln"])?,
    );
    account.show(
        "ip -4 -brief address show kube-ipvs0",
        &node.read(["ip", "-4", "-brief", "address", "show", "kube-ipvs0"])?,
    );
    Ok(())
}
