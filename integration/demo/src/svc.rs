//! Second example: three pods on three nodes. Shows round robin, session affinity, a pod that calls
//! itself, and a NodePort on a node without a pod.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Answer, Failure, Place, World};

use crate::account::{Account, copy, count, cut, start, tally, tcp, wait_for};
use crate::{Arguments, bare};

const CLUSTER_IP: &str = "10.200.1.201:9000";
/// Maximum number of output lines that the demo prints for a subcommand.
const LINES: usize = 16;
const NODE_PORT: &str = "172.36.0.14:30900";

pub(crate) fn show(arguments: &Arguments, account: &mut Account) -> Result<()> {
    account.part("svc: four nodes with kube-proxy, three pods on three of them");
    let mut world = World::new("svc")?;
    let mut nodes = Vec::new();
    let mut pods = Vec::new();
    for (number, pod) in [
        (1, "10.10.1.2"),
        (2, "10.10.2.2"),
        (3, "10.10.3.3"),
        (4, ""),
    ] {
        let gateway = format!("10.10.{number}.1/24");
        let node = world.node(
            &format!("node{number}"),
            format!("172.36.0.{}/24", 10 + number).as_str(),
            gateway.as_str(),
        )?;
        if !pod.is_empty() {
            let place = world.pod(&node, &format!("pod{number}"), pod)?;
            place.serve_tcp(80)?;
            pods.push(place);
        }
        nodes.push(node);
    }
    let node1 = nodes.first().context("node1")?.clone();
    let node4 = nodes.last().context("node4")?.clone();
    let pod1 = pods.first().context("pod1")?.clone();
    let client = world.pod(&node1, "client", "10.10.1.9")?;
    let outside = world.host("outside", "172.36.0.9/24")?;

    // Copies the manifests into a directory that the demo may change.
    let manifests = std::env::temp_dir().join("svc");
    copy(&arguments.examples.join("svc"), &manifests)?;
    let mut daemons = Vec::new();
    for node in &nodes {
        let flags = ["--cluster-cidr=10.10.0.0/16", "--ipvs-min-sync-period=0"];
        let daemon = start(&arguments.kube_proxy, node, node.name(), &manifests, &flags)?;
        daemons.push(daemon);
    }
    for (node, daemon) in nodes.iter().zip(&mut daemons) {
        wait_for(node, daemon, |servers| {
            tcp(servers, CLUSTER_IP).is_some_and(|server| server.reals.len() == 3)
        })?;
    }
    account.say("kube-proxy runs on node1 to node4; pod1 to pod3 (10.10.1.2, 10.10.2.2, 10.10.3.3) on the first three.");
    account.services(&manifests)?;

    let answers = ask(&client, CLUSTER_IP, 99)?;
    let counts = count(&answers);
    let is_even = counts.len() == 3 && counts.values().all(|times| *times == 33);
    account.claim(
        "99 requests by a pod on node1 are spread 33/33/33",
        is_even,
        &tally(&counts),
    );
    let kept = answers
        .iter()
        .all(|answer| answer.seen_source.ip().to_string() == "10.10.1.9");
    account.claim("the pods saw the client's own address", kept, "10.10.1.9");

    let itself = ask(&pod1, CLUSTER_IP, 6)?;
    let own: Vec<_> = itself
        .iter()
        .filter(|answer| answer.who == "pod1")
        .collect();
    let seen = own.first().map_or_else(
        || "never".to_owned(),
        |answer| answer.seen_source.ip().to_string(),
    );
    account.claim(
        "pod1 calls its own Service and reaches itself too, its source rewritten to the bridge's",
        own.len() == 2 && seen == "10.10.1.1",
        &format!("{}; itself from {seen}", tally(&count(&itself))),
    );

    let answers = ask(&outside, NODE_PORT, 9)?;
    let counts = count(&answers);
    let is_rewritten = answers
        .iter()
        .all(|answer| answer.seen_source.ip().to_string() == "172.36.0.14");
    account.claim(
        "NodePort 30900 of node4, which has no pod, answers an outside host from all three",
        counts.len() == 3,
        &tally(&counts),
    );
    account.claim(
        "the source was rewritten to node4's",
        is_rewritten,
        "172.36.0.14 instead of 172.36.0.9",
    );

    account.say("now sessionAffinity: ClientIP is written into svc-clusterip.yaml ...");
    let file = manifests.join("svc-clusterip.yaml");
    let text = fs::read_to_string(&file)?;
    fs::write(
        &file,
        text.replace("sessionAffinity: None", "sessionAffinity: ClientIP"),
    )?;
    let daemon = daemons.first_mut().context("the daemon of node1")?;
    let took = wait_for(&node1, daemon, |servers| {
        tcp(servers, CLUSTER_IP).is_some_and(|server| server.properties.contains("-p 10800"))
    })?;
    let answers = ask(&client, CLUSTER_IP, 20)?;
    let counts = count(&answers);
    account.claim(
        "20 requests of one client all go to one pod",
        counts.len() == 1,
        &tally(&counts),
    );
    account.say(&format!(
        "(the edit was in the kernel after {took:.1?}, seen by polling every 0.1 s)"
    ));

    fs::remove_file(&file)?;
    let daemon = daemons.first_mut().context("the daemon of node1")?;
    wait_for(&node1, daemon, |servers| tcp(servers, CLUSTER_IP).is_none())?;
    let gone = client.ask_tcp(CLUSTER_IP.parse()?, Duration::from_secs(2));
    account.claim(
        "svc-clusterip.yaml is removed, and nobody answers any more",
        gone.is_err(),
        &text_of(&gone),
    );
    account.show(
        "ipvsadm -Ln   # on node4, which only forwards",
        &node4.read(["ipvsadm", "-Ln"])?,
    );
    let explain = ["explain", "172.36.0.14:30900", "--from", "172.36.0.9"];
    for command in [&["status"][..], &explain] {
        let program = arguments.kube_proxy.as_os_str();
        let words = command.iter().map(AsRef::as_ref);
        let told = node4.read(std::iter::once(program).chain(words))?;
        account.show(
            &format!("kube-proxy {}   # on node4", command.join(" ")),
            &cut(&told, LINES),
        );
    }
    if arguments.without_iptables {
        bare::claim_that_iptables_is_unused(account, &node1)?;
        account.show(
            "nft list table ip kube-proxy-ipvs   # on node1",
            &node1.read(["nft", "list", "table", "ip", "kube-proxy-ipvs"])?,
        );
        return Ok(());
    }
    account.show(
        "ipset save | grep ^add   # on node1",
        &adds(&node1.read(["ipset", "save"])?),
    );
    Ok(())
}

fn ask(from: &Place, to: &str, times: usize) -> Result<Vec<Answer>> {
    (0..times)
        .map(|_| {
            from.ask_tcp(to.parse()?, Duration::from_secs(5))
                .with_context(|| format!("{} asks {to}", from.name()))
        })
        .collect()
}

fn text_of(answer: &Result<Answer, Failure>) -> String {
    match answer {
        Ok(answer) => format!("{} answered", answer.who),
        Err(failure) => failure.to_string(),
    }
}

fn adds(saved: &str) -> String {
    saved
        .lines()
        .filter(|line| line.starts_with("add "))
        .collect::<Vec<_>>()
        .join("\n")
}
