//! Compares predictions of `kube-proxy explain`, which reads the kernel, with the results of real
//! packets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, kube_proxy};
use serde_json::Value;

/// IPv4 and IPv6 address of the pods on node1 and node2.
const HERE: [&str; 2] = ["10.244.1.10", "fd44:1::10"];
const ELSEWHERE: [&str; 2] = ["10.244.2.10", "fd44:2::10"];

/// Address of a second external host, which only some tests create.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 35, 0, 8));

/// Outputs of explain since the daemon's last start, by Service. Each output covers all senders.
#[derive(Default)]
pub(crate) struct ExplainOutputs {
    services: RefCell<BTreeMap<String, Value>>,
    compared: AtomicUsize,
    unsure: AtomicUsize,
}

impl ExplainOutputs {
    /// Clears the outputs. Tests call this after they restart the daemon with other settings.
    pub(crate) fn forget(&self) {
        self.services.borrow_mut().clear();
    }

    /// Prints the number of compared paths. Fails if `unlike` has differences between explain and
    /// packets.
    pub(crate) fn agree(&self, unlike: &[String]) -> Outcome {
        let compared = self.compared.load(Ordering::Relaxed);
        println!(
            "    explain: {compared} ways compared with packets, {} differ; of {} it does not know whether answers come by here",
            unlike.len(),
            self.unsure.load(Ordering::Relaxed)
        );
        ensure!(compared > 0, "nothing was compared");
        ensure!(
            unlike.is_empty(),
            "explain and packets differ:\n{}",
            unlike.join("\n")
        );
        Ok(())
    }

    /// Compares explain's prediction for one path with the result `seen`. Returns the difference,
    /// if any.
    pub(crate) fn differs(
        &self,
        c: &Cluster,
        from: &Place,
        (transport, to): (Transport, SocketAddr),
        service: &str,
        seen: &str,
    ) -> Result<Option<String>> {
        let said = self.says(c, from, (transport, to), service)?;
        self.compared.fetch_add(1, Ordering::Relaxed);
        // `not sent` means that a rule rejected the packet on output. explain reports this as
        // `refused`.
        let seen = if seen == "not sent" { "refused" } else { seen };
        let from = from.name();
        Ok((said != seen).then(|| {
            format!("{from} to {to} over {transport:?}: explain says {said}, packets {seen}")
        }))
    }

    fn says(
        &self,
        c: &Cluster,
        from: &Place,
        (transport, to): (Transport, SocketAddr),
        service: &str,
    ) -> Result<String> {
        let mut services = self.services.borrow_mut();
        if !services.contains_key(service) {
            services.insert(service.to_owned(), ask(c, service)?);
        }
        let said = services.get(service).context("it was asked")?;
        let is_node = from.name() == c.node1.name();
        let sender = from.addresses().iter().map(IpNet::addr);
        let sender = sender.into_iter().find(|ip| ip.is_ipv4() == to.is_ipv4());
        let is_it = |journey: &&Value| {
            let text = |field: &str| journey[field].as_str().unwrap_or_default();
            let from = text("from");
            let is_from = if is_node {
                from == "this node"
            } else {
                sender.is_some_and(|sender| words(from).any(|ip| ip == sender))
            };
            let protocol = format!("{transport:?}").to_uppercase();
            is_from && text("to") == to.to_string() && text("protocol") == protocol
        };
        let journeys = said["journeys"].as_array().context("no journeys")?;
        let Some(journey) = journeys.iter().find(is_it) else {
            bail!(
                "explain {service} says nothing of {} to {to} over {transport:?}: {said:#}",
                from.name()
            );
        };
        if is_unsure(journey) {
            self.unsure.fetch_add(1, Ordering::Relaxed);
            // explain may be unsure only about packets of an external client that the node forwards
            // to another node without masquerading.
            let is_so = !is_node && from.name() != c.client.name() && from.name() != c.near.name();
            ensure!(
                is_so,
                "explain {service} is not sure of {} to {to}: {journey:#}",
                from.name()
            );
        }
        Ok(word(journey, is_node))
    }
}

/// Returns the IP addresses in a text that separates words by blanks or commas.
fn words(text: &str) -> impl Iterator<Item = IpAddr> {
    text.split([' ', ',']).filter_map(|word| word.parse().ok())
}

/// Runs explain for a Service or address, with all senders of these tests.
fn ask(c: &Cluster, service: &str) -> Result<Value> {
    let program = kube_proxy()?.display().to_string();
    // If the argument is an address, explain accepts only senders of the same family.
    let at = service
        .rsplit_once('/')
        .and_then(|(at, _)| at.parse::<SocketAddr>().ok());
    let is_asked = |ip: &IpAddr| at.is_none_or(|at| at.is_ipv4() == ip.is_ipv4());
    let places = [&c.client, &c.near, &c.outside];
    let senders = places.iter().flat_map(|place| place.addresses());
    let senders = senders.map(IpNet::addr).chain([OTHER]).filter(is_asked);
    let senders: Vec<String> = senders.map(|ip| ip.to_string()).collect();
    let from = format!("--from=node,{}", senders.join(","));
    let argv = [&*program, "explain", service, &from, "-o", "json"];
    let output = c.node1.run(argv)?;
    // Exit status 1: a path fails. Exit status 2: explain does not know whether replies return.
    if !matches!(output.status.code(), Some(0..=2)) || output.stdout.is_empty() {
        bail!(
            "explain {service} ends with {}: {} {}",
            output.status,
            output.stderr,
            output.stdout
        );
    }
    serde_json::from_str(&output.stdout)
        .with_context(|| format!("explain {service}: {}", output.stdout))
}

/// Returns true if explain does not know whether replies return, which they do in this lab.
fn is_unsure(journey: &Value) -> bool {
    let walks = journey["walks"].as_array().map_or(&[][..], Vec::as_slice);
    walks.iter().any(|walk| walk["unsure"].is_string())
}

/// Returns explain's result for one path, in the terms of the table (`both kept`, `timeout`).
fn word(journey: &Value, is_node: bool) -> String {
    let walks = journey["walks"].as_array().map_or(&[][..], Vec::as_slice);
    let words: BTreeSet<String> = walks.iter().map(|walk| walk_word(walk, is_node)).collect();
    for source in ["kept", "masq", "vip"] {
        let both = ["local", "remote"].map(|who| format!("{who} {source}"));
        if words == both.into() {
            return format!("both {source}");
        }
    }
    Vec::from_iter(words).join(", ")
}

fn walk_word(walk: &Value, is_node: bool) -> String {
    let text = |field: &str| walk[field].as_str().unwrap_or_default();
    let fate = text("fate");
    match fate {
        "delivered" if !text("unanswered").is_empty() => "timeout".to_owned(),
        "delivered" => {
            let endpoint = text("endpoint").parse::<SocketAddr>().map(|at| at.ip());
            let ip = endpoint.map_or_else(|_| String::new(), |ip| ip.to_string());
            let who = if HERE.contains(&&*ip) {
                "local"
            } else if ELSEWHERE.contains(&&*ip) {
                "remote"
            } else {
                return format!("delivered to {ip}");
            };
            let source = text("source");
            let source = if !source.starts_with("kept") {
                "masq"
            } else if is_node && !is_of_node(text("seenAs")) {
                "vip"
            } else {
                "kept"
            };
            format!("{who} {source}")
        }
        "refused" | "reset" => fate.to_owned(),
        // In this lab, a packet that the node forwards unchanged gets no reply.
        "dropped" | "forwarded" => "timeout".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns true if node1 has the address.
fn is_of_node(address: &str) -> bool {
    ["172.35.0.100", "fd35::100", "10.244.1.1", "fd44:1::1"].contains(&address)
}
