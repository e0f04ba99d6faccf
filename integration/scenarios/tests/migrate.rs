//! Tests migration from upstream's kube-proxy. The daemon adopts the entries that upstream has
//! written on a node, keeps open connections, and removes all entries with `--cleanup`.
//!
//! The node has the addresses of the golden cases, which are dumps of upstream 1.36.2. Tools such
//! as `ipset` and `ipvsadm` load a dump into the kernel.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Node, Output, Place, Running, Transport, World};
use scenarios::{
    Cluster, Outcome, SOON, at, kube_proxy, stories, tell, under_traffic, with_backend,
};

/// A golden case: Kubernetes objects, and the kernel state that upstream programmed for them.
struct UpstreamState {
    objects: &'static str,
    sets: &'static str,
    servers: &'static str,
    rules: [&'static str; 2],
    addresses: &'static str,
    settings: &'static str,
}

macro_rules! golden {
    ($case:literal / $file:literal) => {
        include_str!(concat!("../../golden/cases/ipvs/", $case, "/", $file))
    };
    ($case:literal) => {
        UpstreamState {
            objects: golden!($case / "objects.yaml"),
            sets: golden!($case / "ipset-save"),
            servers: golden!($case / "ipvsadm-save"),
            rules: [
                golden!($case / "iptables-save"),
                golden!($case / "ip6tables-save"),
            ],
            addresses: golden!($case / "kube-ipvs0-addresses"),
            settings: golden!($case / "sysctl-changes"),
        }
    };
}

const DUALSTACK: UpstreamState = golden!("dualstack");
/// A golden case: a Service with a ClusterIP, a NodePort and a load-balancer address, and a pod on
/// each node.
const LOAD_BALANCER: UpstreamState = golden!("lb-ip");
/// Kernel state of upstream's iptables mode for the same objects. It lacks rules with nfacct
/// counters, because no tool can load them.
const IPTABLES_MODE: UpstreamState = UpstreamState {
    sets: "",
    servers: "",
    rules: [
        include_str!("migrate/iptables-mode/iptables-save"),
        include_str!("migrate/iptables-mode/ip6tables-save"),
    ],
    addresses: "",
    settings: "net/ipv4/ip_forward:1\nnet/ipv4/conf/all/route_localnet:1\n",
    ..LOAD_BALANCER
};
/// Number of persistent connections on each path.
const HELD: usize = 2;
const CLUSTER_IP: &str = "10.96.10.10:80";
const NODE_PORT: &str = "192.168.99.10:30080";
const LOAD_BALANCER_IP: &str = "203.0.113.10:80";

/// Service that upstream's fixture adds to the objects of every golden case.
const KUBERNETES: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: \
                          default}\n\
    spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: \
    https, port: 443, targetPort: 6443}]}\n";

fn main() {
    let stories = stories! {
        a_change_to_our_image_and_back_to_upstreams_interrupts_no_connection,
        entries_of_iptables_mode_are_removed_after_ipvs_mode_serves,
        entries_of_ipvs_mode_are_removed_after_iptables_mode_serves,
        upstreams_state_is_adopted_without_losing_connections,
        manually_removed_entries_are_reported_with_their_service,
        a_diff_lists_changes_and_a_cleanup_removes_all,
    };
    tell(&stories, Duration::from_mins(3))
}

/// The node of the golden cases with upstream's kernel state. The tests use this node instead of
/// the cluster's node1.
struct Programmed {
    /// World of the lab, kept because dropping it removes the node, the pods and the host.
    _world: World,
    node: Node,
    /// A server pod on the node: 10.244.1.5.
    near: Place,
    /// A client pod on the node: 10.244.1.99.
    client: Place,
    /// Pods on other nodes: 10.244.2.5, 10.244.3.5.
    _far: [Place; 2],
    /// External host: 192.168.99.9. It routes packets for load-balancer addresses to the node.
    outside: Place,
    flags: Vec<String>,
}

impl Programmed {
    fn new(c: &Cluster, left: &UpstreamState) -> Result<Self> {
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
        let outside = world.host("outside", "192.168.99.9/24")?;
        world.route(&outside, "203.0.113.0/24", &node)?;
        // In modes without kube-ipvs0, the node's own packets to a Service need a route. The
        // gateway is the external host.
        node.read(["ip", "route", "add", "default", "via", "192.168.99.9"])?;
        c.write("objects", left.objects)?;
        c.write("kubernetes", KUBERNETES)?;
        let flags = [
            "--proxy-mode=ipvs",
            "--hostname-override=node1",
            "--cluster-cidr=10.244.0.0/16,fd00:244::/56",
            "--conntrack-max-per-core=0",
            // This node has a bridge with further addresses, which the node of the golden cases
            // lacks. Node ports must not use these addresses.
            "--nodeport-addresses=192.168.99.0/24,fd00:99::/64",
        ];
        let manifests = format!("--manifests={}", c.manifests().display());
        let programmed = Self {
            _world: world,
            node,
            near,
            client,
            _far: far,
            outside,
            flags: flags
                .map(str::to_owned)
                .into_iter()
                .chain([manifests])
                .collect(),
        };
        programmed.load(c, left)?;
        Ok(programmed)
    }

    /// Loads upstream's ipsets, virtual servers, rules, addresses and sysctls into the node's
    /// kernel.
    fn load(&self, c: &Cluster, left: &UpstreamState) -> Result<()> {
        let (created, added): (Vec<&str>, Vec<&str>) = left
            .sets
            .lines()
            .partition(|line| line.starts_with("create"));
        let sets = [created, added].concat().join("\n");
        let mut links = String::new();
        if !left.addresses.is_empty() {
            links.push_str("link add kube-ipvs0 type dummy\n");
        }
        for address in left.addresses.lines() {
            links.extend(["address add ", address, " dev kube-ipvs0\n"]);
        }
        for (command, input) in [
            ("ip -batch", links.as_str()),
            ("ipset restore -file", &(sets + "\n")),
            ("iptables-$backend-restore --noflush", left.rules[0]),
            ("ip6tables-$backend-restore --noflush", left.rules[1]),
        ] {
            let file = c.folder().join("input");
            std::fs::write(&file, input)?;
            self.sh(&format!("{command} {}", file.display()))?;
        }
        let file = c.folder().join("input");
        std::fs::write(&file, left.servers)?;
        self.sh(&format!("ipvsadm -R <{}", file.display()))?;
        for setting in left.settings.lines() {
            let (key, value) = setting.split_once(':').context("sysctl-changes")?;
            // Skips recorded sysctls of network devices that this node lacks.
            self.sh(&format!(
                "[ ! -e /proc/sys/{key} ] || echo {value} >/proc/sys/{key}"
            ))?;
        }
        if left.settings.contains("net/ipv4/vs/conntrack:1") {
            // The recording is from a newer kernel. Before Linux 5.9, upstream also writes
            // conn_reuse_mode.
            self.sh("case $(uname -r) in 4.* | 5.[0-8].*) sysctl -q net.ipv4.vs.conn_reuse_mode=0 ;; esac")?;
        }
        Ok(())
    }

    fn sh(&self, script: &str) -> Result<String> {
        Ok(self.node.read(["sh", "-ec", &with_backend(script)])?)
    }

    /// Waits until a shell command succeeds on the node, at most for about ten seconds.
    fn awaits(&self, script: &str) -> Result<()> {
        let patient =
            format!("for _ in $(seq 200); do if {script}; then exit; fi; sleep 0.05; done; exit 1");
        self.sh(&patient).map(drop)
    }

    /// Returns the node's kernel state that a proxy in IPVS mode may change.
    fn state(&self) -> Result<String> {
        self.sh(
            "ipvsadm -Sn; ipset save | sort; ip -oneline address show dev kube-ipvs0 | grep -v fe80
            for tables in iptables ip6tables; do $tables-$backend-save | grep -v '^#' | sed 's/ \\[.*//'; done
            for key in ipv4.vs.conntrack ipv4.vs.expire_nodest_conn netfilter.nf_conntrack_tcp_timeout_close_wait; do
              sysctl net.$key; done",
        )
    }

    /// Starts the daemon, and waits for the first sync of both families. `env` is empty, or the
    /// command `env` with variables for the daemon, such as a `PATH` with slow iptables programs.
    fn start(&self, env: &[&str]) -> Result<Running> {
        let program = kube_proxy()?.display().to_string();
        let argv = env.iter().copied().chain([program.as_str()]);
        let mut daemon = self
            .node
            .spawn(argv.chain(self.flags.iter().map(String::as_str)))?;
        for _family in 0..2 {
            daemon.wait_for("first sync done", SOON * 3)?;
        }
        Ok(daemon)
    }

    /// Returns all paths to the Service: pairs of a sender and an address.
    fn ways(&self) -> [(&Place, &str); 6] {
        [
            (&self.client, CLUSTER_IP),
            (&self.client, NODE_PORT),
            (&self.client, LOAD_BALANCER_IP),
            (&self.outside, NODE_PORT),
            (&self.outside, LOAD_BALANCER_IP),
            (&self.node, CLUSTER_IP),
        ]
    }

    /// Opens connections on each path, and runs the test while clients continuously open new
    /// connections. Then sends requests on the first connections. The same pods must reply, and no
    /// request may have failed.
    fn under_traffic(&self, story: impl FnOnce() -> Result<()>) -> Result<()> {
        under_traffic(&self.ways(), HELD, SOON, story)
    }

    /// Runs `kube-proxy` with the arguments `first` and the test's flags until it exits.
    fn kube_proxy(&self, first: &[&str]) -> Result<Output> {
        let program = kube_proxy()?.display().to_string();
        let flags = self.flags.iter().map(String::as_str);
        let argv = [program.as_str()].into_iter().chain(first.iter().copied());
        Ok(self.node.run(argv.chain(flags))?)
    }
}

fn a_change_to_our_image_and_back_to_upstreams_interrupts_no_connection(
    c: &mut Cluster,
) -> Outcome {
    let p = Programmed::new(c, &LOAD_BALANCER)?;
    let before = p.state()?;
    p.under_traffic(|| {
        let mut daemon = p.start(&[])?;
        assert_eq!(p.state()?, before);
        // Removes a pod's endpoint, and adds the endpoint again while its connections drain.
        let without = LOAD_BALANCER.objects.replace("10.244.3.5", "10.244.2.5");
        let destination = "ipvsadm -Sn | grep -q -- '-a -t 10.96.10.10:80 -r 10.244.3.5:8080 -m -w";
        for (objects, weight) in [(without.as_str(), 0), (LOAD_BALANCER.objects, 1)] {
            c.write("objects", objects)?;
            p.awaits(&format!("{destination} {weight}'"))?;
        }
        daemon.stop(SOON)?;
        Ok(())
    })?;
    // The daemon's state must again equal the state that upstream programs for these objects.
    assert_eq!(p.state()?, before);
    Ok(())
}

/// Returns a `PATH` variable with iptables programs that wait a second before each write. `arms`
/// adds cases for the program's input, in the syntax of a shell's `case $input in`.
fn slow_iptables(c: &Cluster, arms: &str) -> Result<String> {
    let slow = c.folder().join("slow");
    std::fs::create_dir_all(&slow)?;
    for tables in ["iptables", "ip6tables"] {
        let name = format!("{tables}-{}-restore", lab::iptables_backend());
        let script = format!(
            "#!/bin/sh\ninput=$(cat)\ncase $input in {arms} *KUBE-PROXY-PROBE*) ;; *) sleep 1 ;; \
             esac\n\
             printf '%s\\n' \"$input\" | /usr/sbin/{name} \"$@\"\n"
        );
        let file = slow.join(name);
        std::fs::write(&file, script)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    }
    let slow = slow.display();
    Ok(format!("PATH={slow}:/usr/sbin:/usr/bin:/sbin:/bin"))
}

fn entries_of_iptables_mode_are_removed_after_ipvs_mode_serves(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c, &IPTABLES_MODE)?;
    p.sh(
        "iptables-$backend -t mangle -N KUBE-KUBELET-CANARY; iptables-$backend -t nat -N KUBE-SVC
        iptables-$backend -t nat -A KUBE-SVC -j RETURN",
    )?;
    let path = slow_iptables(c, "")?;
    let foretold = p.kube_proxy(&["check"])?;
    assert_eq!(foretold.status.code(), Some(1), "{}", foretold.stderr);
    let line = "remove 12 chains and 8 jumps of the iptables mode from iptables";
    assert!(foretold.stdout.contains(line), "{}", foretold.stdout);
    p.under_traffic(|| {
        p.start(&["env", &path])?.stop(SOON)?;
        Ok(())
    })?;
    let state = p.state()?;
    let chains = state.lines().filter(|line| line.starts_with(":KUBE-"));
    // The shim has 11 chains in each family. The kubelet has two chains, and other programs have
    // two chains with similar names.
    assert_eq!(chains.count(), 2 * 11 + 4, "{state}");
    assert!(
        !state.contains("-j DNAT") && !state.contains("KUBE-SVC-"),
        "{state}"
    );
    for kept in [
        ":KUBE-KUBELET-CANARY",
        ":KUBE-FIREWALL",
        "-A KUBE-SVC -j RETURN",
    ] {
        assert!(state.contains(kept), "{kept}: {state}");
    }
    let again = p.kube_proxy(&["check"])?;
    assert!(
        again.stdout.starts_with("nothing would change\n"),
        "{}",
        again.stdout
    );
    Ok(())
}

fn entries_of_ipvs_mode_are_removed_after_iptables_mode_serves(c: &mut Cluster) -> Outcome {
    let mut p = Programmed::new(c, &LOAD_BALANCER)?;
    p.flags.push("--proxy-mode=iptables".to_owned());
    let before = p.state()?;
    let foretold = p.kube_proxy(&["check", "-o", "json"])?;
    assert_eq!(foretold.status.code(), Some(1), "{}", foretold.stderr);
    for line in [
        "remove leftovers of another mode: link kube-ipvs0 with ",
        "remove leftovers of another mode: IPv4: 4 virtual servers",
        "remove chain KUBE-IPVS-FILTER of table filter",
    ] {
        assert!(
            foretold.stdout.contains(line),
            "{line}: {}",
            foretold.stdout
        );
    }
    assert_eq!(p.state()?, before);
    // Each daemon adopts the node's state from its predecessor, and IPVS keeps the open
    // connections. The first daemon's iptables lacks nfacct.
    let path = slow_iptables(c, "*nfacct*) exit 2 ;;")?;
    p.under_traffic(|| {
        let mut daemon = p.start(&["env", &path])?;
        daemon.wait_for("keep their open connections", SOON)?;
        daemon.stop(SOON)?;
        Ok(())
    })?;
    let draining =
        p.sh("ipvsadm -Sn | grep -- '-w 0'; ip route show table local dev kube-ipvs0")?;
    assert!(
        draining.contains("local 10.96.10.10 proto 107"),
        "{draining}"
    );
    // The clients have closed their connections. The restarted daemon continues the drain and,
    // after its timeout, ends it.
    p.flags.push("--ipvs-drain-timeout=1s".to_owned());
    let mut daemon = p.start(&["env", &path])?;
    p.awaits("! ip link show kube-ipvs0 >/dev/null 2>&1 && [ -z \"$(ipset list -name)\" ]")?;
    daemon.stop(SOON)?;
    assert_eq!(p.sh("ipvsadm -Sn")?, "");
    let saved = || p.sh("iptables-$backend-save; ip6tables-$backend-save");
    let uncounted = saved()?;
    for gone in ["IPVS", "match-set", "KUBE-LOAD-BALANCER", "nfacct"] {
        assert!(!uncounted.contains(gone), "{gone}: {uncounted}");
    }
    // With nfacct, the daemon adds rules that count packets. Open connections must survive this,
    // too.
    p.under_traffic(|| Ok(p.start(&[])?.stop(SOON).map(drop)?))?;
    let counted = saved()?;
    assert_eq!(
        counted.matches("-m nfacct").count(),
        2,
        "of each family, what was INVALID: {counted}"
    );
    let again = p.kube_proxy(&["check"])?;
    assert!(
        again.stdout.starts_with("nothing would change\n"),
        "{}",
        again.stdout
    );
    let output = p.kube_proxy(&["--cleanup"])?;
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr);
    let left = saved()?;
    let left: Vec<&str> = left.lines().filter(|line| line.contains("KUBE-")).collect();
    // Only the kubelet's chain KUBE-FIREWALL stays.
    assert!(
        left.len() == 2 * 3 && left.iter().all(|line| line.contains("KUBE-FIREWALL")),
        "{left:?}"
    );
    Ok(())
}

fn upstreams_state_is_adopted_without_losing_connections(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c, &DUALSTACK)?;
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
    for part in [
        "nothing would change\n\nPreflight\n",
        "\nProgrammed by: ipvs (upstream's kube-proxy or this one); to be served by: ipvs\n",
        "\n  connections: open ones go on",
    ] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    assert!(!output.stdout.contains("[fail]"), "{}", output.stdout);
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

fn manually_removed_entries_are_reported_with_their_service(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c, &DUALSTACK)?;
    let equal = p.kube_proxy(&["diff"])?;
    assert_eq!(equal.status.code(), Some(0), "{equal:?}");
    assert_eq!(equal.stdout, "");
    p.sh(
        "ipvsadm -D -t 203.0.113.10:80; ipset del KUBE-CLUSTER-IP 10.96.10.10,tcp:80
        ip address del 198.51.100.7/32 dev kube-ipvs0; iptables-$backend -t nat -D OUTPUT 1
        ipvsadm -e -t 10.96.10.10:80 -r 10.244.2.5:8080 -m -w 7
        ipset add KUBE-CLUSTER-IP 10.96.10.10,tcp:81; ipvsadm -A -t 10.96.10.10:81 -s wlc",
    )?;
    let before = p.state()?;
    let diff = p.kube_proxy(&["diff"])?;
    assert_eq!(diff.status.code(), Some(1), "{diff:?}");
    let lines: Vec<&str> = diff.stdout.lines().collect();
    for line in [
        "IPv4 virtual servers",
        "+ 203.0.113.10:80/TCP rr   # default/web",
        "- 10.96.10.10:81/TCP wlc   # default/web",
        "IPv4 destinations",
        "+ 203.0.113.10:80/TCP -> 10.244.1.5:8080 weight 1   # default/web",
        "~ 10.96.10.10:80/TCP -> 10.244.2.5:8080: weight 7 => weight 1   # default/web",
        "IPv4 set members",
        "+ KUBE-CLUSTER-IP 10.96.10.10,tcp:80   # default/web",
        "- KUBE-CLUSTER-IP 10.96.10.10,tcp:81   # default/web",
        "IPv4 addresses",
        "+ 198.51.100.7 on kube-ipvs0   # default/web",
        "IPv4 rules",
        "+ table nat: -A OUTPUT -m comment --comment \"kubernetes service portals\" -j \
         KUBE-SERVICES",
    ] {
        assert!(lines.contains(&line), "{line}: {}", diff.stdout);
    }
    // The output has 10 entries in five sections, five headings, and four blank lines between the
    // sections.
    assert_eq!(lines.len(), 10 + 5 + 4, "{}", diff.stdout);
    let planned = p.kube_proxy(&["plan", "-o", "wide"])?;
    assert_eq!(planned.status.code(), Some(1), "{planned:?}");
    for part in [
        "10 changes in 10 writes: IPv4 10\n",
        "IPv4, services\n",
        "   add virtual server 203.0.113.10:80/TCP   # default/web\n",
        "IPv4, rules\n   add in table nat: -A OUTPUT",
    ] {
        assert!(planned.stdout.contains(part), "{part}: {}", planned.stdout);
    }
    let dry = p.kube_proxy(&["--dry-run", "-o", "json"])?;
    let dry: serde_json::Value = serde_json::from_str(&dry.stdout)?;
    let changes = dry.pointer("/changes").and_then(|of| of.as_array());
    assert_eq!(changes.map(Vec::len), Some(10), "{dry}");
    assert_eq!(p.state()?, before);
    // After a daemon has repaired the state, `diff` reports no differences.
    p.start(&[])?.stop(SOON)?;
    let mended = p.kube_proxy(&["diff"])?;
    assert_eq!(
        (mended.status.code(), &*mended.stdout),
        (Some(0), ""),
        "{mended:?}"
    );
    // While an object is unreadable, entries without a known Service stay, because they may belong
    // to this object.
    c.write(
        "broken",
        "apiVersion: v1\nkind: Service\nmetadata: {name: broken\n",
    )?;
    let unsure = p.kube_proxy(&["diff"])?;
    assert_eq!(unsure.status.code(), Some(2), "{unsure:?}");
    assert!(
        unsure.stdout.is_empty() && unsure.stderr.contains("some objects cannot be read"),
        "{unsure:?}"
    );
    c.delete("broken")?;
    let program = kube_proxy()?.display().to_string();
    let unasked = p.node.run([program.as_str(), "diff"])?;
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    assert!(
        unasked.stderr.contains("kubectl -n kube-system exec"),
        "{unasked:?}"
    );
    Ok(())
}

fn a_diff_lists_changes_and_a_cleanup_removes_all(c: &mut Cluster) -> Outcome {
    let p = Programmed::new(c, &DUALSTACK)?;
    p.sh(
        "ipvsadm -A -t 9.9.9.9:9 -s rr; ipset create OTHER hash:ip; iptables-$backend -t nat -N \
         OTHER
        ipvsadm -A -t 10.96.10.10:81 -s rr; ipset add KUBE-CLUSTER-IP 10.96.10.10,tcp:81; ipvsadm -e -t 10.96.10.10:80 -r 10.244.2.5:8080 -m -w 7
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
            "IPv4     add 10.96.0.1,tcp:443 to set KUBE-CLUSTER-IP",
            "IPv4     add in table nat: -A OUTPUT -m comment --comment \"kubernetes service \
             portals\" -j KUBE-SERVICES",
            "IPv4     bind 198.51.100.7 to kube-ipvs0",
            "IPv4     remove 10.96.10.10,tcp:81 from set KUBE-CLUSTER-IP",
            "IPv4     remove virtual server 10.96.10.10:81/TCP",
            "IPv4     set destination 10.244.2.5:8080 of 10.96.10.10:80/TCP to weight 1",
            "node     set net.ipv4.vs.conntrack to 1 (it is 0)",
        ]
    );
    for part in [
        "\nIPv4     virtual servers       0       0       1\n",
        "\n7 changes; nothing was written\n",
    ] {
        assert!(counts.contains(part), "{counts}");
    }
    let json = p.kube_proxy(&["check", "-o", "json"])?;
    let answer: serde_json::Value = serde_json::from_str(&json.stdout)?;
    let changes = answer
        .pointer("/changes")
        .and_then(|changes| changes.as_array());
    assert_eq!(changes.map(Vec::len), Some(7), "{answer}");
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
