//! The cluster of a test: nodes, pods, an external host, and the daemon on node1.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use lab::{Node, Output, Place, Running, Signal, Transport, World};

use crate::api::ApiServer;
use crate::kernel::{self, VirtualServers};
use crate::object::Service;

/// Timeout for a result that normally follows immediately. It is long, because the machine may be
/// loaded.
pub const SOON: Duration = Duration::from_secs(30);
/// Timeout for one request of [`tally`](crate::tally).
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two checks of an awaited condition.
const GLANCE: Duration = Duration::from_millis(20);

/// Address of the API server, on the external host.
const API: &str = "172.35.0.9:6443";
/// Networks that the external host routes through node1.
const SERVICE_RANGES: &str = "10.96.0.0/16 192.0.2.0/24 fd96::/112 2001:db8::/64";

/// Nodes, pods and a host outside the cluster. The cluster owns at most one daemon at a time, on
/// node1.
///
/// The pods `near` and `far` serve TCP and UDP port 8080, in both families.
#[derive(Debug)]
pub struct Cluster {
    /// World of the lab, in which a test adds nodes and pods.
    pub world: World,
    /// Node of the daemon: 172.35.0.100, fd35::100; pods in 10.244.1.0/24, fd44:1::/64.
    pub node1: Node,
    /// Node without a daemon: 172.35.0.101, fd35::101; pods in 10.244.2.0/24, fd44:2::/64.
    pub node2: Node,
    /// A pod on node1: 10.244.1.10, fd44:1::10.
    pub near: Place,
    /// A pod on node2: 10.244.2.10, fd44:2::10.
    pub far: Place,
    /// A pod on node1 that serves nothing: 10.244.1.99, fd44:1::99.
    pub client: Place,
    /// Host outside the cluster: 172.35.0.9, fd35::9.
    pub outside: Place,
    /// Words before the daemon's path in its command line, such as `setpriv` with its options.
    pub prefix: Vec<OsString>,
    /// Additional flags at the end of every daemon's command line.
    pub flags: Vec<OsString>,
    /// Path of the daemon's binary, or `None` for the binary of this build.
    pub program: Option<PathBuf>,
    /// Timeout for awaited states. The default is [`SOON`].
    pub patience: Duration,
    folder: PathBuf,
    daemon: Option<Running>,
    /// Combined output of this test's daemons that have ended.
    said: String,
}

/// Flags that the daemon has in every test.
const COMMON: [&str; 6] = [
    "--hostname-override=node1",
    // The daemon's default mode. A test may override it with a later flag.
    "--proxy-mode=ipvs",
    "--cluster-cidr=10.244.0.0/16,fd44::/16",
    // Keeps the size of the conntrack table, which only a process in the initial network namespace
    // may change. The daemon runs in node1's namespace.
    "--conntrack-max-per-core=0",
    "--ipvs-min-sync-period=0s",
    "--v=4",
];

impl Cluster {
    /// Creates a cluster without a daemon and with an empty manifest directory, in the lab.
    /// [`tell`](crate::tell) passes a cluster to each test.
    pub fn new(name: &str) -> Result<Self> {
        let mut world = World::new("story")?;
        let node1 = world.node(
            "node1",
            "172.35.0.100/24 fd35::100/64",
            "10.244.1.1/24 fd44:1::1/64",
        )?;
        let node2 = world.node(
            "node2",
            "172.35.0.101/24 fd35::101/64",
            "10.244.2.1/24 fd44:2::1/64",
        )?;
        let near = world.pod(&node1, "near", "10.244.1.10 fd44:1::10")?;
        let far = world.pod(&node2, "far", "10.244.2.10 fd44:2::10")?;
        let client = world.pod(&node1, "client", "10.244.1.99 fd44:1::99")?;
        let outside = world.host("outside", "172.35.0.9/24 fd35::9/64")?;
        world.route(&outside, SERVICE_RANGES, &node1)?;
        for pod in [&near, &far] {
            pod.serve_tcp(8080)?;
            pod.serve_udp(8080)?;
        }
        // Removes colons, because the path may become part of a PATH, in which colons separate
        // directories.
        let name = name.replace(':', "-");
        let folder = std::env::temp_dir().join(format!("scenarios-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("manifests"))?;
        let (prefix, flags) = (Vec::new(), Vec::new());
        Ok(Self {
            world,
            node1,
            node2,
            near,
            far,
            client,
            outside,
            prefix,
            flags,
            program: None,
            patience: SOON,
            folder,
            daemon: None,
            said: String::new(),
        })
    }

    /// Returns the directory for the test's temporary files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the directory from which the daemon reads manifests.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    // ---- objects ----

    /// Writes the manifest of a Service. Overwrites an existing file in place, without a rename.
    pub fn apply(&self, service: &Service) -> Result<()> {
        self.write(service.name(), &service.to_string())
    }

    /// Writes the manifest NAME.yaml. Overwrites an existing file in place, without a rename.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.manifests().join(format!("{name}.yaml"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Deletes the manifest NAME.yaml.
    pub fn delete(&self, name: &str) -> Result<()> {
        let file = self.manifests().join(format!("{name}.yaml"));
        fs::remove_file(&file).with_context(|| format!("cannot delete {}", file.display()))
    }

    /// Creates a stopped API server on the external host. `watch_list` enables streamed initial
    /// lists.
    pub fn api_server(&self, watch_list: bool) -> Result<ApiServer> {
        ApiServer::new(&self.outside, at(API), watch_list)
    }

    // ---- the daemon ----

    /// Starts the daemon with the manifest directory and `flags`, and waits for its first sync.
    pub fn start(&mut self, flags: &[&str]) -> Result<()> {
        self.launch(flags)?;
        self.await_first_sync()
    }

    /// Starts the daemon with `api` as its source and with `flags`. Does not wait for the first
    /// sync.
    pub fn launch_on(&mut self, api: &ApiServer, flags: &[&str]) -> Result<()> {
        let kubeconfig = self.folder.join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig())?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        self.launch_with(&[&[kubeconfig.as_str()], flags].concat())
    }

    /// Starts the daemon with the manifest directory and `flags`. Does not wait for the first sync.
    pub fn launch(&mut self, flags: &[&str]) -> Result<()> {
        let manifests = format!("--manifests={}", self.manifests().display());
        self.launch_with(&[&[manifests.as_str()], flags].concat())
    }

    /// Starts the daemon with `flags`, which must name its source. Does not wait for the first
    /// sync.
    pub fn launch_with(&mut self, flags: &[&str]) -> Result<()> {
        ensure!(self.daemon.is_none(), "there is a daemon already");
        self.daemon = Some(self.spawn(flags)?);
        Ok(())
    }

    fn spawn(&self, flags: &[&str]) -> Result<Running> {
        let mut argv = self.prefix.clone();
        argv.push(match &self.program {
            Some(program) => program.into(),
            None => kube_proxy()?.into(),
        });
        // A later flag overrides an earlier one, so the test's flags override the common flags.
        argv.extend(COMMON.iter().chain(flags).map(Into::into));
        argv.extend(self.flags.iter().cloned());
        Ok(self.node1.spawn(argv)?)
    }

    /// Starts a daemon with the manifests, and waits for its first sync. The cluster does not own
    /// the returned daemon, so the test may start several.
    pub fn start_apart(&self, flags: &[&str]) -> Result<Running> {
        let manifests = format!("--manifests={}", self.manifests().display());
        let mut daemon = self.spawn(&[&[manifests.as_str()], flags].concat())?;
        for _family in 0..2 {
            daemon.wait_for("first sync done", self.patience)?;
        }
        Ok(daemon)
    }

    /// Runs `kube-proxy check` on node1 with the manifests. Returns its output, one change per
    /// line.
    pub fn check(&self, flags: &[&str]) -> Result<String> {
        let (program, manifests) = (kube_proxy()?, self.manifests());
        let given = [
            program.display().to_string(),
            "check".to_owned(),
            format!("--manifests={}", manifests.display()),
        ];
        let given = given.into_iter().map(OsString::from);
        let given = self.prefix.iter().cloned().chain(given);
        let flags = COMMON.iter().chain(flags).map(Into::into);
        let output = self.node1.run(given.chain(flags))?;
        Ok(output.stdout)
    }

    /// Waits until the daemon has logged its first sync of each IP family.
    pub fn await_first_sync(&mut self) -> Result<()> {
        for _family in 0..2 {
            self.await_line("first sync done")?;
        }
        Ok(())
    }

    /// Waits for the daemon's next output line that contains `part`, and returns it.
    pub fn await_line(&mut self, part: &str) -> Result<String> {
        let daemon = self.daemon.as_mut().context("there is no daemon")?;
        Ok(daemon.wait_for(part, self.patience)?)
    }

    /// Stops the daemon with SIGTERM. Fails unless the daemon exits with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.terminate()?;
        ensure!(status.success(), "kube-proxy ended with {status}");
        Ok(())
    }

    /// Stops the daemon with SIGTERM, and returns its exit status.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        Ok(self.end(true)?.status)
    }

    /// Waits until the daemon exits with status 1, and returns its standard error.
    pub fn refusal(&mut self) -> Result<String> {
        self.failure(1)
    }

    /// Waits until the daemon exits with status 2, which means invalid flags or an invalid
    /// configuration file. Returns its standard error.
    pub fn usage_error(&mut self) -> Result<String> {
        self.failure(2)
    }

    fn failure(&mut self, status: i32) -> Result<String> {
        let output = self.end(false)?;
        ensure!(
            output.status.code() == Some(status),
            "kube-proxy ended with {}: {}",
            output.status,
            output.stderr
        );
        Ok(output.stderr)
    }

    /// Waits until the daemon exits with status 0 by itself, as `--cleanup` does.
    pub fn await_end(&mut self) -> Result<()> {
        let output = self.end(false)?;
        ensure!(
            output.status.success(),
            "kube-proxy ended with {}: {}",
            output.status,
            output.stderr
        );
        Ok(())
    }

    /// Kills the daemon with SIGKILL, as the kernel's out-of-memory killer would, and waits for its
    /// exit.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.end(false).map(drop)
    }

    fn end(&mut self, by_signal: bool) -> Result<Output> {
        let mut daemon = self.daemon.take().context("there is no daemon")?;
        let output = if by_signal {
            daemon.stop(SOON)
        } else {
            daemon.wait(SOON)
        };
        self.said.push_str(&daemon.said());
        self.said.push_str("\n-- it ended\n");
        Ok(output?)
    }

    /// Returns the process id of the daemon.
    pub fn daemon_id(&self) -> Result<u32> {
        let daemon = self.daemon.as_ref().context("there is no daemon")?;
        Ok(daemon.id())
    }

    /// Sends a signal to the daemon.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        let daemon = self.daemon.as_mut().context("there is no daemon")?;
        daemon.signal(signal);
        Ok(())
    }

    /// Returns the output of all daemons of this test, including the running daemon.
    pub fn said(&self) -> String {
        self.said.clone() + &self.daemon.as_ref().map(Running::said).unwrap_or_default()
    }

    // ---- the kernel of node1 ----

    /// Returns the IPVS virtual servers of node1.
    pub fn servers(&self) -> Result<VirtualServers> {
        kernel::virtual_servers(&self.node1)
    }

    /// Returns the destinations of a virtual server with their weights, separated by blanks:
    /// `10.244.1.10:8080*1 10.244.2.10:8080*0`. Returns an empty text if the virtual server does
    /// not exist.
    pub fn reals(&self, server: &str) -> Result<String> {
        Ok(self
            .servers()?
            .get(server)
            .map(|server| server.weights().join(" "))
            .unwrap_or_default())
    }

    /// Returns the members of an ipset on node1, or no members if the set does not exist.
    pub fn members(&self, set: &str) -> Result<BTreeSet<String>> {
        kernel::members(&self.node1, set)
    }

    /// Returns the addresses of node1 with their devices: `kube-ipvs0 10.96.0.10/32`. A local route
    /// is `kube-ipvs0 local 10.96.0.10`.
    pub fn addresses(&self) -> Result<BTreeSet<String>> {
        kernel::addresses(&self.node1)
    }

    /// Returns the kernel state on node1 that a proxy may change. Equal states give equal texts.
    pub fn state(&self) -> Result<String> {
        kernel::state(&self.node1)
    }

    /// Runs a shell script on node1, and returns its standard output. The script may use the
    /// variable of [`with_backend`]. Fails if the script fails.
    pub fn sh(&self, script: &str) -> Result<String> {
        Ok(self.node1.read(["sh", "-ec", &with_backend(script)])?)
    }

    // ---- waiting ----

    /// Waits until a condition holds, at most for [`Cluster::patience`]. Returns the duration.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
        let started = Instant::now();
        loop {
            if holds()? {
                return Ok(started.elapsed());
            }
            let patience = self.patience;
            ensure!(
                started.elapsed() < patience,
                "{what}: not so within {patience:?}"
            );
            std::thread::sleep(GLANCE);
        }
    }

    /// Waits until node1's kernel has this Service's addresses and virtual servers. Each virtual
    /// server must have exactly the Service's endpoints with weight 1. Other destinations may drain
    /// with weight 0.
    pub fn until_served(&self, service: &Service) -> Result<Duration> {
        let node: Vec<IpAddr> = self.node1.addresses().iter().map(IpNet::addr).collect();
        let wanted = service.wanted(&node);
        let mut missing = String::new();
        let took = self.until("the virtual servers", || {
            let servers = self.servers()?;
            missing = wanted
                .iter()
                .filter(|(key, reals)| !servers.get(key).is_some_and(|server| server.serves(reals)))
                .fold(String::new(), |text, (key, reals)| {
                    format!("{text}\n{key} → {}", reals.join(" "))
                });
            Ok(missing.is_empty())
        });
        let took =
            took.with_context(|| format!("Service {} is not served:{missing}", service.name()))?;
        let bound = |ip: IpAddr| format!("kube-ipvs0 {ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
        let more = self.until("its addresses on kube-ipvs0", || {
            let addresses = self.addresses()?;
            Ok(service.vips().all(|ip| {
                addresses.contains(&bound(ip))
                    || addresses.contains(&format!("kube-ipvs0 local {ip}"))
            }))
        });
        Ok(took + more.with_context(|| format!("Service {}", service.name()))?)
    }

    /// Waits until node1's kernel has no virtual server `server`, such as `TCP 10.96.0.10:80`.
    pub fn until_gone(&self, server: &str) -> Result<Duration> {
        self.until(&format!("{server} is gone"), || {
            Ok(!self.servers()?.contains_key(server))
        })
    }

    /// Waits until a virtual server has exactly these destinations, in the format of
    /// [`reals`](Self::reals).
    pub fn until_reals(&self, server: &str, reals: &str) -> Result<Duration> {
        let mut found = String::new();
        let took = self.until("the destinations", || {
            found = self.reals(server)?;
            Ok(found == reals)
        });
        took.with_context(|| format!("{server} has {found:?} instead of {reals:?}"))
    }

    /// Waits until a TCP request from `from` to `to` gets a reply.
    pub fn until_answered(&self, from: &Place, to: &str) -> Result<Duration> {
        let mut last = None;
        let took = self.until("an answer", || {
            last = from
                .dial(Transport::Tcp, at(to))
                .timeout(Duration::from_millis(500))
                .ask()
                .err();
            Ok(last.is_none())
        });
        took.with_context(|| format!("{} asks {to}: {last:?}", from.name()))
    }

    /// Fails if a TCP request from `from` to `to` gets a reply.
    pub fn refuses(&self, from: &Place, to: &str) -> Result<()> {
        match from
            .dial(Transport::Tcp, at(to))
            .timeout(Duration::from_millis(700))
            .ask()
        {
            Ok(answer) => bail!("{} asks {to}, and {} answers", from.name(), answer.who),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Parses an address and port, such as `10.96.0.10:80`. Use only for literals in a test.
///
/// # Panics
/// Panics if the text is invalid.
#[allow(clippy::panic, reason = "a story with a slip in it")]
pub fn at(address: &str) -> SocketAddr {
    address
        .parse()
        .unwrap_or_else(|_| panic!("{address} is no address and port"))
}

/// Returns a shell script that sets `backend` to `nft` or `legacy`, depending on the lab's kernel.
/// The script can then run `iptables-$backend`.
pub fn with_backend(script: &str) -> String {
    format!("backend={}\n{script}", lab::iptables_backend())
}

/// Returns the path of the daemon's binary, which is in the directory of the running program or,
/// for a test binary, in the parent directory.
pub fn kube_proxy() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let folders = exe.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join("kube-proxy"))
        .find(|file| file.is_file())
        .with_context(|| {
            format!(
                "there is no kube-proxy beside {}: run `cargo build -p kube-proxy`",
                exe.display()
            )
        })
}
