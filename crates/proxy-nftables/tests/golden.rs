//! Compares the table that nftables mode writes with upstream's table, for the Kubernetes objects
//! of each golden case. The same `nft` program lists both tables, each in its own network
//! namespace.
//!
//! The environment variable `GOLDEN` may name another directory of cases. If this directory does
//! not exist, the test compares nothing.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io::Write as _};

use engine::Lanes;
use futures::StreamExt as _;
use futures::executor::block_on;
use ipnet::IpNet;
use namespace::in_namespace;
use proxy::{
    Event, IpFamily, Kind, LocalDetector, Mode as _, Model, NodeFacts, NodePortAddresses,
    ServiceCidr,
};
use proxy_nftables::{Config, NetlinkKernel, Proxier};

fn cases() -> PathBuf {
    let folder = env::var_os("GOLDEN").map(PathBuf::from);
    folder.unwrap_or_else(|| "../../integration/golden/cases/nftables".into())
}

fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Splits the output of `nft list` into blocks (tables, sets, chains), and sorts elements and
/// flags.
fn blocks(listing: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut block = String::new();
    let mut lines = listing.lines().peekable();
    while let Some(line) = lines.next() {
        let depth = line.len() - line.trim_start_matches('\t').len();
        let text = line.trim();
        if depth == 1 && text.ends_with('{') {
            text.trim_end_matches(" {").clone_into(&mut block);
            blocks.entry(block.clone()).or_default();
        } else if let Some(first) = text.strip_prefix("elements = {") {
            let mut all = first.to_owned();
            while !all.contains('}') {
                all.push_str(lines.next().unwrap().trim());
                all.push(' ');
            }
            let all = all.trim().trim_end_matches('}').to_owned();
            let mut all: Vec<String> = all.split(',').map(|one| one.trim().to_owned()).collect();
            all.retain(|one| !one.is_empty());
            all.sort();
            blocks.get_mut(&block).unwrap().extend(all);
        } else if depth == 2 {
            blocks.get_mut(&block).unwrap().push(text.to_owned());
        }
    }
    blocks
}

struct Case {
    flags: Vec<String>,
    folder: PathBuf,
}

impl Case {
    fn flag(&self, name: &str) -> Option<&str> {
        let mut flags = self.flags.iter().rev();
        flags.find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='))
    }

    fn config(&self, family: IpFamily) -> Config {
        let own = |text: &str| {
            let mut nets = text.split(',').filter_map(|net| net.parse::<IpNet>().ok());
            nets.find(|net| IpFamily::of(net.addr()) == family)
        };
        let mut config = Config::default();
        let net = own(self
            .flag("--cluster-cidr")
            .unwrap_or("10.244.0.0/16,fd00:244::/56"));
        config.detector = match self.flag("--detect-local-mode") {
            Some("BridgeInterface") => {
                LocalDetector::Bridge(self.flag("--pod-bridge-interface").unwrap().to_owned())
            }
            Some("NodeCIDR") => {
                let net = if family == IpFamily::V4 {
                    "10.244.1.0/24"
                } else {
                    "fd00:244:1::/64"
                };
                LocalDetector::SourceNet(net.parse().unwrap())
            }
            Some("InterfaceNamePrefix") => LocalDetector::InterfacePrefix(
                self.flag("--pod-interface-name-prefix").unwrap().to_owned(),
            ),
            _ => net.map_or(LocalDetector::None, LocalDetector::SourceNet),
        };
        config.masquerade_all = self.flags.iter().any(|flag| flag == "--masquerade-all");
        if fs::exists(self.folder.join("config.yaml")).unwrap() {
            let text = fs::read_to_string(self.folder.join("config.yaml")).unwrap();
            let bit = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("masqueradeBit: "));
            config.masquerade_mark = 1 << bit.unwrap().parse::<u32>().unwrap();
            if !text.contains("clusterCIDR") {
                config.detector = LocalDetector::None;
            }
        }
        config
    }

    fn node_ports(&self) -> NodePortAddresses {
        match self.flag("--nodeport-addresses") {
            None => NodePortAddresses::Primary,
            Some(nets) => {
                let nets = nets.split(',').map(|net| net.parse().unwrap());
                NodePortAddresses::Within(nets.collect())
            }
        }
    }

    fn model(&self) -> Model {
        let mut model = Model::new();
        let mut text = fs::read_to_string(self.folder.join("objects.yaml")).unwrap();
        text.push_str(
            "\n---\napiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\nspec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{name: https, port: 443, protocol: TCP}]}\n",
        );
        let folder = env::temp_dir().join(format!("golden-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("objects.yaml"), text).unwrap();
        let mut events = source::manifests::stream(&folder, "node1").unwrap();
        while !(model.is_complete() && model.is_node_listed()) {
            model.apply(block_on(events.next()).unwrap());
        }
        model.apply(Event::ListStarted(Kind::ServiceCidr));
        model.apply(Event::ServiceCidrApplied(ServiceCidr {
            name: "kubernetes".into(),
            nets: ["10.96.0.0/12", "fd00:96::/108"]
                .map(|net| net.parse().unwrap())
                .into(),
        }));
        model.apply(Event::ListComplete {
            kind: Kind::ServiceCidr,
            is_whole: true,
        });
        fs::remove_dir_all(&folder).unwrap();
        model
    }
}

/// Cases in which the table intentionally differs from upstream's
/// (docs/nftables-mode-differences.md).
const DIFFERENCES: [&str; 2] = [
    // Unlike in upstream, IPv4 networks in `--nodeport-addresses` do not make IPv6 addresses serve
    // NodePorts.
    "flag-nodeport-addresses-cidr IPv6",
    // Unlike upstream, this mode deletes an unwanted chain without a delay.
    "restart-leftovers IPv4",
];

const ADDRESSES: &str = "ip link set lo up; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up; ip addr add 192.168.99.10/24 dev eth0; ip addr add fd00:99::10/64 dev eth0 nodad";

/// Starts the daemon `lives` times, and returns `nft`'s listing and the number of changes that the
/// last start wrote. Before the first start, loads the ruleset of the file `there` into the kernel.
fn ours(case: &Case, family: IpFamily, there: Option<&Path>, lives: usize) -> (String, usize) {
    let mut model = case.model();
    in_namespace(|| {
        run("sh", &["-c", ADDRESSES], "");
        if let Some(there) = there {
            run("nft", &["-f", there.to_str().unwrap()], "");
        }
        let pre = case.folder.join("pre.nft");
        if pre.exists() && there.is_none() {
            run("nft", &["-f", pre.to_str().unwrap()], "");
        }
        let pre = case.folder.join("pre.sh");
        if pre.exists() {
            run("sh", &[pre.to_str().unwrap()], "");
        }
        let mut written = 0;
        for life in 0..lives {
            let mut node = NodeFacts::new(family, "node1");
            node.node_port_addresses = case.node_ports();
            let now = Instant::now();
            let lanes = Lanes::inline(|| NetlinkKernel::new(family));
            let mut proxier = Proxier::new(case.config(family), node, lanes, now);
            let changes = model.take_changes();
            proxier.update(&model, &changes, now);
            written = 0;
            for _ in 0..20 {
                let now = now + Duration::from_millis(1);
                proxier.proceed(&model, now);
                while let Some(report) = proxier.book(&model, now) {
                    written += report.written;
                    assert!(report.failures.is_empty(), "{:?}", report.failures);
                    assert!(report.unreadable.is_empty(), "{:?}", report.unreadable);
                }
            }
            assert_eq!(proxier.standing().pending, 0, "life {life}");
        }
        let nft = if family == IpFamily::V4 { "ip" } else { "ip6" };
        (
            run("nft", &["-s", "list", "table", nft, "kube-proxy"], ""),
            written,
        )
    })
}

fn theirs(file: &Path, family: IpFamily) -> String {
    in_namespace(|| {
        run("nft", &["-f", file.to_str().unwrap()], "");
        let nft = if family == IpFamily::V4 { "ip" } else { "ip6" };
        run("nft", &["-s", "list", "table", nft, "kube-proxy"], "")
    })
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn the_nftables_mode_writes_the_same_objects_as_upstream() {
    let Ok(folders) = fs::read_dir(cases()) else {
        return;
    };
    let only = env::var("CASE").unwrap_or_default();
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut differing = Vec::new();
    for folder in folders
        .into_iter()
        .filter(|of| of.to_str().unwrap().contains(&only))
    {
        let flags = fs::read_to_string(folder.join("flags")).unwrap_or_default();
        let flags = flags.split_whitespace().map(ToOwned::to_owned).collect();
        let case = Case {
            flags,
            folder: folder.clone(),
        };
        for (family, file) in [(IpFamily::V4, "nft-ip"), (IpFamily::V6, "nft-ip6")] {
            let first = folder.join(format!("{file}-1"));
            let file = if first.exists() {
                first
            } else {
                folder.join(file)
            };
            if !file.exists() {
                continue;
            }
            let (listing, written) = ours(&case, family, None, 2);
            let (ours, theirs) = (blocks(&listing), blocks(&theirs(&file, family)));
            let name = format!("{} {family}", folder.file_name().unwrap().display());
            if written > 0 {
                println!("{name}: {written} changes at a restart");
                differing.push(name.clone());
            }
            let (_, taken_over) = self::ours(&case, family, Some(&file), 1);
            if taken_over > 0 {
                println!("{name}: {taken_over} changes to take it over");
                differing.push(name.clone());
            }
            if ours != theirs {
                let mut keys: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
                keys.sort();
                keys.dedup();
                for key in keys {
                    if ours.get(key) != theirs.get(key) {
                        println!(
                            "{name}: {key}\n  ours {:?}\n  theirs {:?}",
                            ours.get(key),
                            theirs.get(key)
                        );
                    }
                }
                differing.push(name);
            }
        }
    }
    differing.dedup();
    differing.retain(|name| !DIFFERENCES.contains(&name.as_str()));
    assert_eq!(differing, [""; 0]);
}
