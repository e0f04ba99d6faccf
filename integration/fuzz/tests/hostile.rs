//! Tests hostile objects. The source reads them, and every mode programs them on a fake kernel.
//! Time and memory must stay below limits, and a valid Service among the hostile objects must work.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use properties::modes::FORMS;
use properties::stepped_threads::{ClientLocation, Front};
use properties::verdict;
use proxy::{AddressRules, IpFamily, Model, NamespacedName, Protocol};
use source::Settings;

/// Names of the tested modes and IPVS shims. Other variants of these modes compile Services in the
/// same way.
const TRIED: [&str; 5] = ["ipvs", "ipvs-nftables", "iptables", "nftables", "userspace"];
/// Time limit for the source to read all objects, in a debug build on a loaded machine.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for one mode to program all objects, in a debug build.
const DONE_WITHIN: Duration = Duration::from_mins(1);
/// Maximum peak memory of this process, including all fake kernels, in KiB.
const MEMORY_MAX: u64 = 256 * 1024;

const GOOD: &str = "
{apiVersion: v1, kind: Service, metadata: {name: good}, spec: {clusterIPs: [10.96.0.10, 'fd96:1::10'], ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: good-4, labels: {kubernetes.io/service-name: good}},
 addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: [10.244.1.10]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: good-6, labels: {kubernetes.io/service-name: good}},
 addressType: IPv6, ports: [{port: 8080}], endpoints: [{addresses: ['fd44:1::10']}]}
";

fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn model() -> Model {
    let folder = std::env::temp_dir().join(format!("hostile-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("good.yaml"), GOOD).unwrap();
    for (name, text) in scenarios::hostile::files(2_000, 10_000) {
        fs::write(folder.join(format!("{name}.yaml")), text).unwrap();
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let model = runtime.block_on(async {
        let settings = Settings::Manifests(folder.clone());
        let opened = source::connect(
            &settings,
            "node1",
            source::uncounted,
            source::ConnectHooks::default(),
        )
        .await;
        let mut events = opened.ok().unwrap().events;
        let mut model = Model::of_node("node1").with_address_rules(AddressRules::default());
        let read = async {
            while !model.is_complete() {
                model.apply(events.next().await.unwrap());
            }
        };
        tokio::time::timeout(READ_WITHIN, read).await.unwrap();
        model
    });
    fs::remove_dir_all(&folder).unwrap();
    model
}

#[test]
fn each_mode_serves_a_valid_service_among_hostile_objects() {
    let model = model();
    // The source drops Services without a valid name or address, and keeps all other Services.
    for (name, is_there) in [
        ("ports", true),
        ("ranges", true),
        ("twins", true),
        ("texts", true),
        ("endpoints", true),
        (&*"n".repeat(253), true),
        (&*"n".repeat(254), false),
        ("families", false),
        ("empty", false),
    ] {
        let view = model.view(&NamespacedName::new("default", name));
        assert_eq!(view.is_some(), is_there, "{name}");
    }
    let of = |name: &str| model.view(&NamespacedName::new("default", name)).unwrap();
    assert_eq!(of("ports").service.ports.len(), 2_000);
    assert_eq!(of("texts").service.ports.len(), 0);
    assert_eq!(of("twins").service.external_ips.len(), 1);
    let endpoints = of("endpoints").slices().map(|slice| slice.endpoints.len());
    // The broadcast address, another Service's address and the node's own address are valid
    // endpoint addresses. Link-local addresses are invalid.
    assert_eq!(endpoints.collect::<Vec<_>>(), [4, 1]);
    let node = of("node")
        .service
        .external_ips
        .iter()
        .map(ToString::to_string);
    assert_eq!(
        node.collect::<Vec<_>>(),
        ["172.35.0.100", "169.254.1.1", "203.0.113.9"],
        "the good one's cluster IP is its own"
    );

    for family in IpFamily::ALL {
        let good = of("good").service.cluster_ip(family).unwrap();
        let front = Front {
            address: good,
            protocol: Protocol::Tcp,
            port: 80,
            from: ClientLocation::Outside,
        };
        for form in FORMS.iter().filter(|form| TRIED.contains(&form.name)) {
            let began = Instant::now();
            let done = form.subject(family).afresh(&model);
            let took = began.elapsed();
            let verdicts = done.subject.verdicts(&BTreeSet::from([front]));
            let ours = done.subject.ours();
            println!(
                "{:22} {family}: {took:.1?}, {} entries, {} pending, {} MiB so far",
                form.name,
                ours.len(),
                done.pending,
                peak_memory() / 1024
            );
            // The fake node has no route to IPv6 endpoints in other networks.
            let is_served =
                verdicts.get(&front).is_some_and(verdict::is_served) || family == IpFamily::V6;
            assert!(is_served, "{} {family}", form.name);
            assert!(took < DONE_WITHIN, "{} {family}: {took:?}", form.name);
            let odd = ours.iter().find(|(name, what)| {
                [name, what]
                    .iter()
                    .any(|text| text.contains("-j DROP\n-A INPUT"))
            });
            assert_eq!(odd, None);
        }
    }
    let memory = peak_memory();
    assert!(memory < MEMORY_MAX, "{memory} KiB");
}
