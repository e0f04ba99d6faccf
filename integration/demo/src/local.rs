//! Third example: a Service with `externalTrafficPolicy: Local`. Clients in the cluster and outside
//! of it send requests. In IPVS mode, only `--ipvs-semantics=exact` serves both kinds of clients as
//! Kubernetes defines.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Answer, Place, World};

use crate::Arguments;
use crate::account::{Account, count, start, tally, tcp, wait_for};

const WEB: &str = "203.0.113.10:80";
/// Name and address of each pod of the Service: `pod1` runs on this node, `pod2` on the other node.
const PODS: [(&str, &str); 2] = [("pod1", "10.10.1.2"), ("pod2", "10.10.2.2")];
const REQUESTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn show(arguments: &Arguments, account: &mut Account) -> Result<()> {
    account.part(
        "local: externalTrafficPolicy Local from inside and outside, with upstream and exact",
    );
    let mut world = World::new("local")?;
    let node1 = world.node("node1", "172.37.0.11/24", "10.10.1.1/24")?;
    let node2 = world.node("node2", "172.37.0.12/24", "10.10.2.1/24")?;
    for ((name, address), node) in PODS.into_iter().zip([&node1, &node2]) {
        world.pod(node, name, address)?.serve_tcp(8080)?;
    }
    let client = world.pod(&node1, "client", "10.10.1.9")?;
    let outside = world.host("outside", "172.37.0.9/24")?;
    world.route(&outside, "203.0.113.10/32", &node1)?;
    world.route(&node1, "0.0.0.0/0", &outside)?;
    account.say("kube-proxy runs on node1. Service web has pod1 on node1 and pod2 on node2.");
    account.say(
        "Kubernetes: clients outside reach only pod1; clients inside the cluster reach both pods.",
    );
    let manifests = arguments.examples.join("local");
    account.services(&manifests)?;

    let inside = [("a pod on node1", &client), ("node1 itself", &node1)];
    for (semantics, seen_inside, verdict) in [
        ("upstream", 1, "only pod1, which is wrong"),
        ("exact", 2, "both pods"),
    ] {
        let semantics = format!("--ipvs-semantics={semantics}");
        let flags = ["--cluster-cidr=10.10.0.0/16", &semantics];
        let mut daemon = start(&arguments.kube_proxy, &node1, "node1", &manifests, &flags)?;
        wait_for(&node1, &mut daemon, |servers| {
            tcp(servers, WEB).is_some_and(|server| server.reals.len() == seen_inside)
        })?;
        for _family in 0..2 {
            daemon.wait_for("first sync done", PATIENCE)?;
        }
        for (name, place) in inside {
            let answers = ask(place)?;
            let counts = count(&answers);
            account.claim(
                &format!("{semantics}: {name} reaches {verdict}"),
                counts.len() == seen_inside && counts.contains_key("pod1"),
                &tally(&counts),
            );
        }
        let answers = ask(&outside)?;
        let counts = count(&answers);
        let sources = answers.iter().map(|answer| answer.seen_source.ip());
        let is_kept = sources
            .map(|ip| ip.to_string())
            .all(|ip| ip == "172.37.0.9");
        account.claim(
            &format!("{semantics}: a client outside reaches only pod1, which sees its address"),
            is_kept && counts.keys().eq(&["pod1"]),
            &tally(&counts),
        );
        daemon.stop(PATIENCE)?;
    }
    account.show(
        "ipvsadm -Ln   # on node1, with --ipvs-semantics=exact; FWM: clients outside",
        &node1.read(["ipvsadm", "-Ln"])?,
    );
    Ok(())
}

fn ask(from: &Place) -> Result<Vec<Answer>> {
    let to = WEB.parse()?;
    let ask = |_| {
        let answer = from.ask_tcp(to, PATIENCE);
        answer.with_context(|| format!("{} asks {WEB}", from.name()))
    };
    (0..REQUESTS).map(ask).collect()
}
