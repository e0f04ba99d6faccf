//! `--tour`: prints docs/tour.md. The page shows a Service of each type in the output of
//! kube-proxy's subcommands. The output is real: a daemon programs node1, and clients send
//! requests.

mod page;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Connection, Crew, Node, Place, Running, World};

use crate::Arguments;
use crate::account::{copy, start, tcp, wait_for};
use page::Page;

/// Directories of the present manifests, and of changed manifests for `kube-proxy plan`.
const MANIFESTS: &str = "/tmp/shop";
const NEXT: &str = "/tmp/next";
/// Template of the page. Its first lines describe its format.
const PAGE: &str = include_str!("tour/tour.md");
const PORT: u16 = 8080;
const CLUSTER: &str = "10.200.0.1:80";
const DRAINED: &str = "10.200.0.9:80";
/// Address of the endpoint that the tour removes from the Service at [`DRAINED`] while a client's
/// connection to this endpoint is open.
const LEAVING: &str = "10.10.2.3";
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which IPVS has certainly updated its counters, which it does every two seconds.
const COUNTED_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of attempts to show drift with `diff`. An attempt fails if the daemon repairs the
/// kernel's state before `diff` reads it.
const BREAKS: usize = 3;

/// Prints the page. Fails if an exit status or the result of a request differs from the template.
pub(crate) fn print(arguments: &Arguments) -> Result<()> {
    let mut stage = Stage::build(arguments)?;
    let clients = traffic(&stage);
    thread::sleep(COUNTED_AFTER);
    let mut page = Page {
        kube_proxy: &arguments.kube_proxy,
        node: stage.node1.clone(),
        places: stage.askers(),
        flags: flags(),
        seen: None,
        unexpected: Vec::new(),
    };
    let mut connection = None;
    for line in PAGE.lines() {
        match line {
            line if line.starts_with("@#") => {}
            "@flags" => page.flags(),
            "@drain" => connection = Some(stage.drain()?),
            "@hang up" => drop(connection.take()),
            "@break" => stage.break_until_seen(&mut page)?,
            "@await repair" => stage.wait_for_repair()?,
            "@write next" => write_next()?,
            line => page.line(line)?,
        }
    }
    drop(clients);
    page.close()
}

/// Cluster of the tour: two nodes, three server pods, one client pod, two external hosts, and the
/// daemon on node1.
struct Stage {
    _world: World,
    node1: Node,
    client: Place,
    outside: Place,
    stranger: Place,
    daemon: Running,
}

impl Stage {
    fn build(arguments: &Arguments) -> Result<Self> {
        let mut world = World::new("tour")?;
        let node1 = world.node("node1", "172.36.0.11/24", "10.10.1.1/24")?;
        let node2 = world.node("node2", "172.36.0.12/24", "10.10.2.1/24")?;
        for (name, at, address) in [
            ("web-1", &node1, "10.10.1.2"),
            ("web-2", &node2, "10.10.2.2"),
            ("web-3", &node2, LEAVING),
        ] {
            world.pod(at, name, address)?.serve_tcp(PORT)?;
        }
        let client = world.pod(&node1, "client", "10.10.1.9")?;
        let outside = world.host("outside", "172.36.0.9/24")?;
        let stranger = world.host("stranger", "172.36.0.77/24")?;
        for host in [&outside, &stranger] {
            // Routes Service addresses through node1, as a load balancer or router would.
            for address in ["172.36.0.103", "172.36.0.104"] {
                world.route(host, address, &node1)?;
            }
        }
        let manifests = Path::new(MANIFESTS);
        copy(&arguments.examples.join("tour"), manifests)?;
        let flags = ["--cluster-cidr=10.10.0.0/16"];
        let mut daemon = start(&arguments.kube_proxy, &node1, "node1", manifests, &flags)?;
        wait_for(&node1, &mut daemon, |servers| {
            let has = |at: &str, count| tcp(servers, at).is_some_and(|of| of.reals.len() == count);
            has(CLUSTER, 3) && has(DRAINED, 2) && has("172.36.0.103:80", 3)
        })?;
        Ok(Self {
            _world: world,
            node1,
            client,
            outside,
            stranger,
            daemon,
        })
    }

    fn askers(&self) -> Vec<Place> {
        vec![
            self.client.clone(),
            (*self.node1).clone(),
            self.outside.clone(),
            self.stranger.clone(),
        ]
    }

    /// Opens a connection to the pod `web-3`, and then removes this pod's endpoint from the
    /// manifest.
    fn drain(&mut self) -> Result<Connection> {
        let mut kept = None;
        for _ in 0..4 {
            let mut connection = self.client.open_tcp(DRAINED.parse()?, PATIENCE)?;
            if connection.ask()?.who == "web-3" {
                kept = Some(connection);
                break;
            }
        }
        let kept = kept.context("web-3 has answered none of four connections")?;
        let file = Path::new(MANIFESTS).join("drained.yaml");
        let text = fs::read_to_string(&file)?;
        let leaving = text.find(&format!("- addresses:\n  - {LEAVING}"));
        let rest = leaving.and_then(|at| text.get(..at));
        fs::write(&file, rest.context("drained.yaml has no web-3")?)?;
        wait_for(&self.node1, &mut self.daemon, |servers| {
            tcp(servers, DRAINED)
                .is_some_and(|server| server.reals.values().any(|weight| *weight == 0))
        })?;
        Ok(kept)
    }

    /// Removes a destination from the kernel, up to [`BREAKS`] times, until `diff` reports it as
    /// missing.
    fn break_until_seen(&self, page: &mut Page<'_>) -> Result<()> {
        for _ in 0..BREAKS {
            let gone = ["ipvsadm", "-d", "-t", CLUSTER, "-r", "10.10.2.2:8080"];
            self.node1.read(gone)?;
            if page.has_seen("kube-proxy diff $FLAGS", 1)? {
                return Ok(());
            }
        }
        anyhow::bail!("the daemon has mended {BREAKS} times what diff was to show")
    }

    fn wait_for_repair(&mut self) -> Result<()> {
        // Waits for more than one sync period (30 s), because the daemon checks the kernel once in
        // each.
        for _ in 0..3 {
            let is_mended = wait_for(&self.node1, &mut self.daemon, |servers| {
                tcp(servers, CLUSTER).is_some_and(|server| server.reals.len() == 3)
            });
            if is_mended.is_ok() {
                return Ok(());
            }
        }
        anyhow::bail!("the daemon has not mended what was changed")
    }
}

/// Copies the manifests to [`NEXT`], and changes one port in the copy.
fn write_next() -> Result<()> {
    copy(Path::new(MANIFESTS), Path::new(NEXT))?;
    let file = Path::new(NEXT).join("cluster.yaml");
    let text = fs::read_to_string(&file)?;
    let changed = text.replace("  port: 80\n", "  port: 81\n");
    ensure!(changed != text, "cluster.yaml has no port 80");
    Ok(fs::write(&file, changed)?)
}

/// Returns the daemon's flags, with which subcommands such as `diff` predict its actions.
fn flags() -> Vec<String> {
    [
        "--manifests=/tmp/shop",
        "--hostname-override=node1",
        "--proxy-mode=ipvs",
        "--conntrack-max-per-core=0",
        "--cluster-cidr=10.10.0.0/16",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Starts clients that send requests continuously. Dropping the returned crew stops them.
fn traffic(stage: &Stage) -> Crew {
    let mut clients = Crew::default();
    for (from, to, pause) in [
        (&stage.client, CLUSTER, 100),
        (&stage.client, "10.200.0.7:80", 250),
        (&stage.outside, "172.36.0.11:30002", 200),
        (&stage.outside, "172.36.0.11:30005", 500),
    ] {
        let from = from.clone();
        clients.begin(move |over| {
            let Ok(to) = to.parse() else { return };
            while !over.is_over() {
                // Ignores errors, because the page itself shows whether requests succeed.
                let _ = from.ask_tcp(to, PATIENCE);
                thread::sleep(Duration::from_millis(pause));
            }
        });
    }
    clients
}
