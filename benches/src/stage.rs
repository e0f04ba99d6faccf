//! What a cell is measured on: a node, the API fixture beside it with all objects, and the subject.
//!
//! ```text
//!  node1 ── Kernel (probes)          fixture: a process on node1's loopback, so that its CPU can be told apart
//!    └───── Subject (a process)      api: writes to it
//! ```

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Node, World};

use crate::http::Api;
use crate::kernel::{Kernel, Snapshot};
use crate::objects::{CLUSTER_CIDR, Objects};
use crate::process::Process;
use crate::schema::{Cell, Mode, SubjectKind};
use crate::wait::{self, Waited};

/// Where the fixture listens, on node1.
const API: &str = "127.0.0.1:18080";
/// What starting the fixture may take, a second for each thousand objects being far too much.
const FIXTURE_LIMIT: Duration = Duration::from_mins(5);
/// iptables' programs, which go by other names where iptables-nft is the default. The guest's kernel need not have nftables.
const IPTABLES: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// The surroundings of a subject.
pub(crate) struct Stage {
    pub(crate) cell: Cell,
    /// To add pods and hosts to.
    pub(crate) world: World,
    /// Where the subject runs: 172.35.0.100; pods in 10.200.1.0/24.
    pub(crate) node: Node,
    /// To be changed before [`Stage::serve`], or together with the fixture's.
    pub(crate) objects: Objects,
    pub(crate) kernel: Kernel,
    folder: PathBuf,
    fixture: Option<Process>,
    /// Whether iptables is the legacy one.
    has_legacy: bool,
}

impl Stage {
    /// A node without anything.
    pub(crate) fn new(cell: &Cell) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let has_legacy = prefer_legacy_iptables(&folder)?;
        let mut world = World::new("bench")?;
        let node = world.node("node1", "172.35.0.100/24", "10.200.1.1/24")?;
        let kernel = Kernel::open(&node, mode(cell))?;
        Ok(Self {
            cell: cell.clone(),
            objects: Objects::new(cell.size),
            world,
            node,
            kernel,
            folder,
            fixture: None,
            has_legacy,
        })
    }

    /// The mode whose state is wanted.
    pub(crate) fn mode(&self) -> Mode {
        mode(&self.cell)
    }

    /// A folder for files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The time limit.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.cell.limit_s)
    }

    /// What the kernel must hold now.
    pub(crate) fn wanted(&self) -> Snapshot {
        Snapshot::wanted(&self.objects, self.mode())
    }

    /// Starts the fixture with the objects, and waits until it serves.
    pub(crate) fn serve(&mut self) -> Result<()> {
        let objects = self.folder.join("objects");
        self.objects.write(&objects)?;
        let log = self.folder.join("fixture.log");
        let mut command = self.node.command(beside("apiserver")?);
        command.args(["--notes-sent", "--listen", API, "--objects"]);
        command.arg(&objects);
        let mut fixture = Process::start(command, &log)?;
        let started = Instant::now();
        while !fixture.log().lines().any(|line| line == API) {
            ensure!(
                !fixture.is_over(),
                "the API fixture ended: {}",
                fixture.said()
            );
            ensure!(
                started.elapsed() < FIXTURE_LIMIT,
                "the API fixture is not up: {}",
                fixture.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::remove_dir_all(&objects)?;
        self.fixture = Some(fixture);
        Ok(())
    }

    /// CPU time of the fixture so far, in seconds; 0 if there is none.
    pub(crate) fn fixture_cpu_s(&self) -> Result<f64> {
        self.fixture.as_ref().map_or(Ok(0.0), Process::cpu_s)
    }

    /// A connection to the fixture.
    pub(crate) fn api(&self) -> Result<Api> {
        let to: SocketAddr = API.parse()?;
        Api::new(self.node.enter(|| TcpStream::connect(to))?)
    }

    /// The subject's command: it does all its work and goes on, or waits.
    pub(crate) fn command(&self) -> Result<Command> {
        match &self.cell.subject.kind {
            SubjectKind::KubeProxy {
                path,
                mode,
                flags,
                is_ours,
            } => {
                let mut command = if self.cell.is_counting {
                    let mut command = self.node.command("strace");
                    // -D: the child is the subject, which signals are for. Everything that is sent, whole.
                    command
                        .args(["-D", "-f", "-qq", "-s", "1000000", "-o"])
                        .arg(self.trace());
                    command.arg(path);
                    command
                } else {
                    self.node.command(path)
                };
                command
                    .arg(format!("--master=http://{API}"))
                    .arg(format!("--proxy-mode={}", mode.name()))
                    .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
                    .args([
                        "--hostname-override=node1",
                        // Only the initial network namespace may size the connection tracking table.
                        "--conntrack-max-per-core=0",
                        "--ipvs-min-sync-period=0s",
                        "--iptables-min-sync-period=0s",
                    ])
                    .args(flags);
                if *is_ours && self.has_legacy && lab::iptables_backend() == "nft" {
                    // Others have what `iptables` is; ours would look for nftables itself.
                    command.arg("--iptables-backend=legacy");
                }
                Ok(command)
            }
            SubjectKind::Floor => {
                let mut command = self.node.command(std::env::current_exe()?);
                command.args(["floor", &serde_json::to_string(&self.cell)?]);
                Ok(command)
            }
            SubjectKind::Tools => crate::tools::command(self),
            SubjectKind::BareIpvs | SubjectKind::Direct => {
                bail!(
                    "{} writes nothing that could be measured",
                    self.cell.subject.name
                )
            }
        }
    }

    /// What strace wrote.
    pub(crate) fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    /// Starts the subject; when it was, too.
    pub(crate) fn start(&self) -> Result<(Process, Instant)> {
        let log = self.folder.join("subject.log");
        if self.cell.subject.kind == SubjectKind::Floor {
            // It prepares, stops itself, and writes when it is continued.
            let process = Process::start(self.command()?, &log)?;
            crate::floor::await_ready(process)
        } else {
            let command = self.command()?;
            let started = Instant::now();
            Ok((Process::start(command, &log)?, started))
        }
    }

    /// Waits until the kernel holds what the objects say.
    pub(crate) fn until_programmed(
        &mut self,
        subject: &mut Process,
        started: Instant,
    ) -> Result<Waited> {
        let wanted = self.wanted();
        let (mode, limit) = (self.mode(), self.limit());
        let services = self.cell.size.services.max(self.objects.services());
        wait::until(
            &mut self.kernel,
            mode,
            &wanted,
            services,
            started,
            limit,
            || {
                ensure!(!subject.is_over(), "the subject ended: {}", subject.said());
                Ok(())
            },
        )
    }
}

fn mode(cell: &Cell) -> Mode {
    match cell.subject.kind {
        SubjectKind::KubeProxy { mode, .. } => mode,
        _ => Mode::Ipvs,
    }
}

/// A program of this workspace, built as this one was.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let file = own.with_file_name(name);
    ensure!(
        file.is_file(),
        "there is no {}: build it with this program, as `make bench` does",
        file.display()
    );
    Ok(file)
}

/// Puts links to the legacy programs first in this process's search path, where there are any: whether there are.
#[allow(unsafe_code, reason = "set_var is unsafe")]
fn prefer_legacy_iptables(folder: &Path) -> Result<bool> {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut has_legacy = false;
    for program in IPTABLES {
        let legacy = program.replacen("tables", "tables-legacy", 1);
        let found = path
            .split(':')
            .map(|folder| Path::new(folder).join(&legacy))
            .find(|file| file.is_file());
        if let Some(file) = found {
            symlink(file, bin.join(program))?;
            has_legacy = true;
        }
    }
    // SAFETY: this process has one thread yet: a cell is measured by a process of its own, and this comes first in it.
    unsafe { std::env::set_var("PATH", format!("{}:{path}", bin.display())) };
    Ok(has_legacy)
}
