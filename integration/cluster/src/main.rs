//! Runs a Kubernetes cluster in one VM of the lab. The cluster has real kubelets, and kubeadm's
//! DaemonSet of kube-proxy with our image.
//!
//! ```text
//!  host              │ VM
//!  programs, images ─┼─▶ node1: the control plane; containerd, kubelet, pods
//!                    │   node2, node3: containerd, kubelet, pods
//!  logs, reports ◀───┼── outside: connects to node ports
//! ```
//!
//! The user provides Kubernetes' programs in a directory (`KUBERNETES=DIR`). If programs are
//! missing, `make cluster` lists each with the download that contains it.

mod binaries;
mod control_plane;
mod e2e;
mod load;
mod nodes;
mod programs;
mod proxy;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use lab::{Place, World};

use binaries::Binaries;
use control_plane::ControlPlane;
use lab::traffic::Traffic;
use nodes::{Folders, Kubelet};
use proxy::{Image, Proxy};

/// Exit status if Kubernetes' programs or the node's packages are missing.
const MISSING: u8 = 2;

/// Time that `e2e.test` gets for its report: from the last start of a spec until the end of the
/// run.
const TO_REPORT: Duration = Duration::from_mins(2);

/// Script that prepares the kernel modules:
///
/// - It loads the modules that Kubernetes' documentation of IPVS mode requires at boot. Upstream's
///   kube-proxy exits if a conntrack sysctl is missing.
/// - It replaces the VM's link to the module folder with a folder. In a container that mounts
///   `/lib/modules`, the link would be broken.
const MODULES: &str = "
modprobe -q -a nf_conntrack ip_vs ip_vs_rr ip_vs_wrr ip_vs_sh || true
release=/lib/modules/$(uname -r)
[ -L $release ] || exit 0
modules=$(readlink -f $release)
rm $release
mkdir $release
mount --bind $modules $release";

/// A Kubernetes cluster in one guest of the lab.
#[derive(Debug, Parser)]
struct Arguments {
    /// Directory with Kubernetes' programs, and with archives of additional images in images/*.tar
    #[arg(long, value_name = "DIR")]
    kubernetes: Option<PathBuf>,
    /// Archive of the image for kubeadm's DaemonSet
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Value of --proxy-mode: ipvs, iptables or nftables (which needs LANE=B)
    #[arg(long, default_value = "ipvs")]
    mode: String,
    /// Number of nodes, from 1 to 9
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Memory of the VM
    #[arg(long, default_value = "3G")]
    memory: String,
    /// Directory for logs and reports
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Time limit in minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Clone, Subcommand)]
enum Task {
    /// Boot a cluster, send requests to a Service, and print nodes and pods
    Up {
        /// Shell command for the first node, with the administrator's kubeconfig
        #[arg(long)]
        run: Option<String>,
    },
    /// Run the network suite of e2e.test
    E2e {
        /// Pattern of the specs to run
        #[arg(long, default_value = e2e::FOCUS)]
        focus: String,
        /// Pattern of the specs to skip
        #[arg(long, default_value = e2e::SKIP)]
        skip: String,
    },
    /// Replace one image by another and roll back, under load
    Migrate {
        /// Archive of the first image [default: built from the program kube-proxy of DIR]
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        /// Proxy mode of the first image [default: the same mode]
        #[arg(long)]
        from_mode: Option<String>,
    },
}

fn main() -> ExitCode {
    lab::maybe_init();
    let arguments = Arguments::parse();
    let further: &[(&str, &str)] = match &arguments.task {
        Task::Up { .. } | Task::Migrate { from: Some(_), .. } => &[],
        Task::E2e { .. } => &[binaries::E2E],
        Task::Migrate { from: None, .. } => &[binaries::UPSTREAM],
    };
    let binaries = match Binaries::find(arguments.kubernetes.as_deref(), further) {
        Ok(binaries) => binaries,
        Err(missing) => {
            let folder = arguments.kubernetes.as_deref();
            let folder = folder.map_or_else(
                || "KUBERNETES=DIR was not said, so there is no".to_owned(),
                |folder| format!("in {} there is no", folder.display()),
            );
            eprintln!("cluster: nothing is started. {folder}");
            for line in missing {
                eprintln!("  {line}");
            }
            eprintln!(
                "Put the programs into one directory, all of one release of Kubernetes, and name it: KUBERNETES=DIR"
            );
            return ExitCode::from(MISSING);
        }
    };
    let done = if lab::in_lab() {
        inside(&arguments, &binaries)
    } else {
        carry(&arguments)
    };
    done.unwrap_or_else(|error| {
        eprintln!("cluster: {error:#}");
        ExitCode::FAILURE
    })
}

/// Builds the cluster's images on the host, and runs this program again in the lab.
fn carry(arguments: &Arguments) -> Result<ExitCode> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    let image = Image::read(&arguments.image)?;
    let mut make = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/images"));
    make.arg(out.join("images"));
    let options = lab::Options {
        timeout: Duration::from_secs(arguments.minutes * 60),
        memory: arguments.memory.clone(),
        keep: vec![out.clone()],
        ..lab::Options::from_env()
    };
    if let (Task::Migrate { from: None, .. }, Some(folder)) =
        (&arguments.task, &arguments.kubernetes)
    {
        let is_b = options.kernel.is_some() || options.lane == Some(lab::Lane::B);
        make.arg(folder.join("kube-proxy")).arg(&image.archive);
        make.arg(if is_b { "nft" } else { "legacy" });
    }
    let made = make
        .status()
        .context("cannot start integration/cluster/images")?;
    ensure!(made.success(), "the images could not be made");
    let argv: Vec<OsString> = std::env::args_os().collect();
    let argv = std::iter::once(std::env::current_exe()?.into()).chain(argv.into_iter().skip(1));
    let status = lab::run(&argv.collect::<Vec<OsString>>(), &options);
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// A running cluster in a VM of the lab.
struct Cluster {
    /// Time at which the boot of the cluster started, for the time limit.
    started: Instant,
    control_plane: ControlPlane,
    kubelets: Vec<Kubelet>,
    outside: Place,
    folders: Folders,
    _world: World,
}

fn inside(arguments: &Arguments, binaries: &Binaries) -> Result<ExitCode> {
    let ours = Image::read(&arguments.image)?;
    match &arguments.task {
        Task::Up { run } => {
            let cluster = Cluster::boot(arguments, binaries, &ours, &[], &arguments.mode)?;
            cluster.show()?;
            let Some(script) = run else {
                return Ok(ExitCode::SUCCESS);
            };
            cluster.run_script(script, binaries)
        }
        Task::E2e { focus, skip } => {
            let cluster = Cluster::boot(arguments, binaries, &ours, &[], &arguments.mode)?;
            cluster.e2e(binaries, arguments, focus, skip)
        }
        Task::Migrate { from, from_mode } => {
            let upstream = arguments.out.join("images/upstream.tar");
            let first = Image::read(from.as_deref().unwrap_or(&upstream))?;
            let mode = from_mode.as_deref().unwrap_or(&arguments.mode);
            let cluster = Cluster::boot(
                arguments,
                binaries,
                &first,
                std::slice::from_ref(&ours),
                mode,
            )?;
            cluster.migrate(&first, &ours, mode, &arguments.mode)
        }
    }
}

impl Cluster {
    /// Boots the cluster with `image` in kubeadm's DaemonSet. The nodes' containerd also imports
    /// the images in `further`.
    fn boot(
        arguments: &Arguments,
        binaries: &Binaries,
        image: &Image,
        further: &[Image],
        mode: &str,
    ) -> Result<Self> {
        let started = Instant::now();
        let say = |what: &str| println!("{:6.1} s  {what}", started.elapsed().as_secs_f64());
        let folders = Folders {
            state: "/var/lib/cluster".into(),
            logs: arguments.out.canonicalize()?,
        };
        std::fs::create_dir_all(&folders.state)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=80%", "tmpfs"]);
        mount.arg(&folders.state);
        run_quietly(mount)?;
        let mut modules = Command::new("sh");
        modules.args(["-ec", MODULES]);
        run_quietly(modules)?;
        let mut world = World::new("cluster")?;
        let places = nodes::lay(&mut world, arguments.nodes)?;
        let outside = world.host("outside", "172.35.0.9/24 fd35::9/64")?;
        // Adds a default route, as on any node. Outside IPVS mode, the node has no local Service
        // addresses. The node's own packets to a Service then need a route, because rules translate
        // them only after the route lookup.
        for place in &places {
            world.route(place, "0.0.0.0/0 ::/0", &outside)?;
        }
        let first = places.first().context("no node")?;
        say("the fabric and nodes without Kubernetes");
        let control_plane =
            ControlPlane::start(first, binaries, &folders.state, &folders.logs, mode)?;
        say("the control plane answers");
        let proxy = Proxy {
            kubectl: &control_plane.kubectl,
        };
        control_plane.add_kube_proxy()?;
        proxy.patch(image)?;
        say(&format!(
            "kubeadm's DaemonSet has {} in mode {mode}",
            image.name
        ));
        let pod = arguments.out.join("images/pod.tar").canonicalize()?;
        let mut archives = vec![pod, image.archive.clone()];
        archives.extend(further.iter().map(|image| image.archive.clone()));
        archives.extend(binaries.images());
        let has_dns = binaries.has_dns();
        let kubelets = places
            .iter()
            .map(|node| {
                let kubelet = nodes::start(node, binaries, &control_plane, &folders, &archives)?;
                say(&format!("{}: containerd and the kubelet", node.name()));
                Ok(kubelet)
            })
            .collect::<Result<Vec<_>>>()?;
        nodes::await_ready(&control_plane, &kubelets)?;
        say("all nodes are ready");
        proxy.await_rollout()?;
        say("kube-proxy is ready on all nodes");
        if has_dns {
            control_plane.add_dns()?;
            say("CoreDNS is asked for");
        }
        let last = places.last().context("no node")?;
        proxy::serve_web(&control_plane.kubectl, &folders.state, &outside, last)?;
        say("a Service answers at its node port and its ClusterIP, in both families");
        Ok(Self {
            started,
            control_plane,
            kubelets,
            outside,
            folders,
            _world: world,
        })
    }

    fn first(&self) -> Result<&Place> {
        let first = self.kubelets.first().context("no node")?;
        Ok(&first.node)
    }

    fn last(&self) -> Result<&Place> {
        let last = self.kubelets.last().context("no node")?;
        Ok(&last.node)
    }

    /// Prints nodes, pods, Services and EndpointSlices as `kubectl get` prints them.
    fn show(&self) -> Result<()> {
        let kubectl = &self.control_plane.kubectl;
        print!("{}", kubectl.run(&["get", "nodes", "-o", "wide"])?);
        print!("{}", kubectl.run(&["get", "pods", "-A", "-o", "wide"])?);
        print!(
            "{}",
            kubectl.run(&["get", "services,endpointslices", "-A"])?
        );
        Ok(())
    }

    /// Runs the shell command of `--run` on the first node, and forwards its output.
    fn run_script(&self, script: &str, binaries: &Binaries) -> Result<ExitCode> {
        let mut command = self.first()?.command("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-c", script])
            .env("KUBECONFIG", run::ADMIN)
            .env("PATH", format!("{}:{path}", binaries.folder().display()));
        let status = command.status().context("cannot start sh")?;
        Ok(ExitCode::from(
            u8::try_from(status.code().unwrap_or(1)).unwrap_or(1),
        ))
    }

    fn e2e(
        &self,
        binaries: &Binaries,
        arguments: &Arguments,
        focus: &str,
        skip: &str,
    ) -> Result<ExitCode> {
        let report = self.folders.logs.join("e2e");
        let _ = std::fs::remove_dir_all(&report);
        std::fs::create_dir_all(&report)?;
        if !binaries.has_dns() {
            println!(
                "there is no images/coredns*.tar: specs that ask for a Service by its name will fail"
            );
        }
        // The specs get the remaining time of the run, minus the time for the report.
        let limit = Duration::from_secs(arguments.minutes * 60);
        let left = limit.saturating_sub(self.started.elapsed());
        let argv = e2e::command(
            &binaries.program("e2e.test"),
            run::ADMIN,
            &report,
            left.saturating_sub(TO_REPORT),
            focus,
            skip,
        );
        let started = Instant::now();
        let log = self.folders.logs.join("e2e.log");
        println!("e2e.test runs, and tells in {}", log.display());
        let mut running = programs::start(self.first()?, &log, &argv)?;
        let ended = running.wait(left)?;
        let results = e2e::read(&report, &log)?;
        let account = results.account(started.elapsed());
        print!("{account}");
        std::fs::write(self.folders.logs.join("e2e.txt"), &account)?;
        ensure!(
            !results.is_complete() || !results.passed.is_empty() || !results.failed.is_empty(),
            "no spec was run: {focus} without {skip} chooses none"
        );
        // Also checks the exit status, because only this status shows a failed setup or teardown of
        // the suite.
        ensure!(
            ended.status.success() || !results.failed.is_empty() || !results.is_complete(),
            "e2e.test ended with {}, though no spec failed: see e2e.log",
            ended.status
        );
        Ok(if results.failed.is_empty() && results.is_complete() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Migrates the DaemonSet from the image `first` to another image and back, while clients send
    /// requests.
    fn migrate(
        &self,
        first: &Image,
        ours: &Image,
        first_mode: &str,
        mode: &str,
    ) -> Result<ExitCode> {
        let proxy = Proxy {
            kubectl: &self.control_plane.kubectl,
        };
        let mut failed = 0;
        for (image, from_mode, mode) in [(ours, first_mode, mode), (first, mode, first_mode)] {
            let mut traffic = Traffic::default();
            for (from, to) in proxy::ways(&self.outside, self.last()?)? {
                load::start(&mut traffic, &from, to);
            }
            std::thread::sleep(Duration::from_secs(5));
            proxy.swap(image)?;
            if mode != from_mode {
                proxy.set_mode(mode)?;
            }
            let took = proxy.await_rollout()?;
            std::thread::sleep(Duration::from_secs(10));
            println!("to {} in mode {mode}: rolled out in {took:.0?}", image.name);
            traffic.stop()?;
            for (way, account) in traffic.accounts() {
                println!("  {way}: {account}");
                failed += account.failed;
            }
        }
        std::fs::write(self.folders.logs.join("kube-proxy.log"), proxy.said())?;
        println!("{failed} requests failed");
        Ok(if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn run_quietly(mut command: Command) -> Result<()> {
    let output = command.output().context("cannot start a program")?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
