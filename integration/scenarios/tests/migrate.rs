//! Moving over from upstream's kube-proxy: a node that it has programmed is taken over while connections go on, and left clean.
//!
//! The node is that of the golden cases; what upstream 1.36.2 left on it for `dualstack` is loaded with the operator's tools.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Node, Output, Place, Transport, World};
use scenarios::{Cluster, Outcome, SOON, Story, at, kube_proxy, tell, with_backend};

const OBJECTS: &str = include_str!("../../golden/cases/ipvs/dualstack/objects.yaml");
const SETS: &str = include_str!("../../golden/cases/ipvs/dualstack/ipset-save");
const SERVERS: &str = include_str!("../../golden/cases/ipvs/dualstack/ipvsadm-save");
const RULES: &str = include_str!("../../golden/cases/ipvs/dualstack/iptables-save");
const RULES6: &str = include_str!("../../golden/cases/ipvs/dualstack/ip6tables-save");
const ADDRESSES: &str = include_str!("../../golden/cases/ipvs/dualstack/kube-ipvs0-addresses");
const SETTINGS: &str = include_str!("../../golden/cases/ipvs/dualstack/sysctl-changes");

/// The fixture of the golden cases has this Service beside their objects.
const KUBERNETES: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\n\
    spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: https, port: 443, targetPort: 6443}]}\n";

fn main() {
    let story = |name, tell| Story {
        name,
        tell,
        is_possible: || true,
    };
    let stories = [
        story(
            "what_upstream_left_is_taken_over_while_connections_go_on",
            what_upstream_left_is_taken_over_while_connections_go_on,
        ),
        story(
            "a_dry_run_tells_what_differs_and_a_cleanup_leaves_nothing",
            a_dry_run_tells_what_differs_and_a_cleanup_leaves_nothing,
        ),
    ];
    tell(&stories, Duration::from_mins(3))
}

/// The node of the golden cases, programmed by upstream, in the place of the cluster's node1.
struct Programmed {
    /// Owns the places.
    _world: World,
    node: Node,
    /// A pod on it, which serves: 10.244.1.5.
    near: Place,
    /// A pod on it, which asks: 10.244.1.99.
    client: Place,
    /// 10.244.2.5, 10.244.3.5.
    _far: [Place; 2],
    flags: Vec<String>,
}

impl Programmed {
    fn new(c: &Cluster) -> Result<Self> {
        let mut world = World::new("golden")?;
        let node = world.node(
            "node1",
            "192.168.99.10/24 fd00:99::10/64",
            "10.244.1.1/24 fd00:244:1::1/64",
        )?;
        let node2 = world.node(
            "node2",
            "192.168.99.11/24 fd00:99::11/64",
            "10.244.2.1/24 fd00:244:2::1/64",
        )?;
        let node3 = world.node("node3", "192.168.99.12/24 fd00:99::12/64", "10.244.3.1/24")?;
        let near = world.pod(&node, "near", "10.244.1.5 fd00:244:1::5")?;
        let client = world.pod(&node, "client", "10.244.1.99 fd00:244:1::99")?;
        let far = [
            world.pod(&node2, "far", "10.244.2.5 fd00:244:2::5")?,
            world.pod(&node3, "farther", "10.244.3.5")?,
        ];
        for pod in far.iter().chain([&near]) {
            pod.serve_tcp(8080)?;
        }
        c.write("objects", OBJECTS)?;
        c.write("kubernetes", KUBERNETES)?;
        let flags = [
            "--hostname-override=node1",
            "--cluster-cidr=10.244.0.0/16,fd00:244::/56",
            "--conntrack-max-per-core=0",
            // The golden node has no bridge with addresses of its own.
            "--nodeport-addresses=192.168.99.0/24,fd00:99::/64",
        ];
        let manifests = format!("--manifests={}", c.manifests().display());
        let programmed = Self {
            _world: world,
            node,
            near,
            client,
            _far: far,
            flags: flags
                .map(str::to_owned)
                .into_iter()
                .chain([manifests])
                .collect(),
        };
        programmed.load(c)?;
        Ok(programmed)
    }

    /// Makes the kernel hold what upstream left.
    fn load(&self, c: &Cluster) -> Result<()> {
        let (created, added): (Vec<&str>, Vec<&str>) =
            SETS.lines().partition(|line| line.starts_with("create"));
        let sets = [created, added].concat().join("\n");
        let mut links = "link add kube-ipvs0 type dummy\n".to_owned();
        for address in ADDRESSES.lines() {
            links.extend(["address add ", address, " dev kube-ipvs0\n"]);
        }
        for (command, input) in [
            ("ip -batch", links.as_str()),
            ("ipset restore -file", &(sets + "\n")),
            ("iptables-$backend-restore --noflush", RULES),
            ("ip6tables-$backend-restore --noflush", RULES6),
        ] {
            let file = c.folder().join("input");
            std::fs::write(&file, input)?;
            self.sh(&format!("{command} {}", file.display()))?;
        }
        let file = c.folder().join("input");
        std::fs::write(&file, SERVERS)?;
        self.sh(&format!("ipvsadm -R <{}", file.display()))?;
        for setting in SETTINGS.lines() {
            let (key, value) = setting.split_once(':').context("sysctl-changes")?;
            // Devices have other names here.
            self.sh(&format!(
                "[ ! -e /proc/sys/{key} ] || echo {value} >/proc/sys/{key}"
            ))?;
        }
        Ok(())
    }

    fn sh(&self, script: &str) -> Result<String> {
        Ok(self.node.read(["sh", "-ec", &with_backend(script)])?)
    }

    /// All that a proxy may touch.
    fn state(&self) -> Result<String> {
        self.sh(
            "ipvsadm -Sn; ipset save | sort; ip -oneline address show dev kube-ipvs0 | grep -v fe80
            for tables in iptables ip6tables; do $tables-$backend-save | grep -v '^#' | sed 's/ \\[.*//'; done
            for key in ipv4.vs.conntrack ipv4.vs.expire_nodest_conn netfilter.nf_conntrack_tcp_timeout_close_wait; do
              sysctl net.$key; done",
        )
    }

    /// Runs the daemon's program to its end.
    fn kube_proxy(&self, first: &[&str]) -> Result<Output> {
        let program = kube_proxy()?.display().to_string();
        let flags = self.flags.iter().map(String::as_str);
        let argv = [program.as_str()].into_iter().chain(first.iter().copied());
        Ok(self.node.run(argv.chain(flags))?)
    }
}

fn what_upstream_left_is_taken_over_while_connections_go_on(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c)?;
    let before = p.state()?;
    let mut connections = Vec::new();
    for to in [
        "10.96.10.10:80",
        "10.96.10.10:80",
        "10.96.10.10:80",
        "[fd00:96::10]:80",
    ] {
        connections.push(p.client.dial(Transport::Tcp, at(to)).timeout(SOON).open()?);
    }
    let mut answered = Vec::new();
    for connection in &mut connections {
        answered.push(connection.ask()?.who);
    }

    let output = p.kube_proxy(&["check"])?;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        output.stdout,
        output.stderr
    );
    assert_eq!(output.stdout, "nothing would change\n");
    assert_eq!(p.state()?, before);

    let program = kube_proxy()?.display().to_string();
    let argv = [&program].into_iter().chain(&p.flags);
    let mut daemon = p.node.spawn(argv)?;
    for _family in 0..2 {
        let line = daemon.wait_for("first sync done", SOON)?;
        assert!(line.contains("written=0"), "{line}");
    }
    assert_eq!(p.state()?, before);
    for (connection, who) in connections.iter_mut().zip(&answered) {
        assert_eq!(&connection.ask()?.who, who);
    }
    let anew = p.client.dial(Transport::Tcp, at("10.96.10.10:80"));
    anew.timeout(SOON).ask()?;
    let output = daemon.stop(SOON)?;
    assert!(output.status.success(), "{}", daemon.said());
    for (connection, who) in connections.iter_mut().zip(&answered) {
        assert_eq!(&connection.ask()?.who, who);
    }
    Ok(())
}

fn a_dry_run_tells_what_differs_and_a_cleanup_leaves_nothing(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c)?;
    p.sh(
        "ipvsadm -A -t 9.9.9.9:9 -s rr; ipset create OTHER hash:ip; iptables-$backend -t nat -N OTHER
        ipvsadm -A -t 10.96.10.10:81 -s rr; ipvsadm -e -t 10.96.10.10:80 -r 10.244.2.5:8080 -m -w 7
        ipset del KUBE-CLUSTER-IP 10.96.0.1,tcp:443; ip address del 198.51.100.7/32 dev kube-ipvs0
        iptables-$backend -t nat -D OUTPUT 1; sysctl -q net.ipv4.vs.conntrack=0",
    )?;
    let before = p.state()?;
    let output = p.kube_proxy(&["check"])?;
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}{}",
        output.stdout,
        output.stderr
    );
    let (lines, counts) = output.stdout.split_once("\n\n").context("two parts")?;
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "IPv4     add 10.96.0.1,tcp:443 to set ClusterIp",
            "IPv4     add in table nat: -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            "IPv4     bind 198.51.100.7 to kube-ipvs0",
            "IPv4     remove virtual server 10.96.10.10:81/TCP",
            "IPv4     set destination 10.244.2.5:8080 of 10.96.10.10:80/TCP to weight 1",
            "node     set net.ipv4.vs.conntrack to 1 (it is 0)",
        ]
    );
    for part in [
        "\nIPv4     virtual servers       0       0       1\n",
        "\n6 changes; nothing was written\n",
    ] {
        assert!(counts.contains(part), "{counts}");
    }
    let json = p.kube_proxy(&["check", "-o", "json"])?;
    let answer: serde_json::Value = serde_json::from_str(&json.stdout)?;
    let changes = answer
        .pointer("/changes")
        .and_then(|changes| changes.as_array());
    assert_eq!(changes.map(Vec::len), Some(6), "{answer}");
    let unreadable = p.kube_proxy(&["check", "--iptables-masquerade-bit=99"])?;
    assert_eq!(unreadable.status.code(), Some(2), "{}", unreadable.stderr);
    assert_eq!(p.state()?, before);

    let output = p.kube_proxy(&["--cleanup"])?;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        output.stdout,
        output.stderr
    );
    let left = p.sh(
        "ipvsadm -Sn; ipset save -name; iptables-$backend-save; ip6tables-$backend-save; ip link",
    )?;
    assert!(
        !left.contains("KUBE") && !left.contains("kube-ipvs0"),
        "{left}"
    );
    let foreign = ["9.9.9.9:9", "create OTHER ", ":OTHER "];
    assert!(foreign.iter().all(|part| left.contains(part)), "{left}");
    let again = p.kube_proxy(&["--cleanup"])?;
    assert_eq!(again.stdout, "nothing of a kube-proxy was here\n");
    p.near.ask_tcp(at("10.244.2.5:8080"), SOON)?;
    Ok(())
}
