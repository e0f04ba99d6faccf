//! Stage: the environment of a cell (benchmark run) with a node, a fake API server with all
//! objects, and the measured program.
//!
//! ```text
//!  node1 ── Kernel (probes)       fixture: a process on node1's loopback, with its own CPU time
//!    └───── Subject (a process)   api: writes to the fixture
//! ```

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Node, World};

use crate::http::Api;
use crate::kernel::{Kernel, SetsIn, Snapshot};
use crate::objects::Objects;
use crate::process::Process;
use crate::schema::{Cell, Mode, NATIVE, Subject, SubjectKind};
use crate::wait::{self, WaitEnd};

/// Listen address of the fake API server, in node1's network namespace.
pub(crate) const API: &str = "127.0.0.1:18080";
/// Time limit for the start of the fake API server: more than a second for each thousand objects.
const FIXTURE_LIMIT: Duration = Duration::from_mins(5);
/// Environment of a measured program: its node, its objects and a fake API server.
pub(crate) struct Stage {
    pub(crate) cell: Cell,
    /// The lab's network. A measurement may add pods and hosts.
    pub(crate) world: World,
    /// Node on which the measured program runs: address 172.35.0.100, pods in 10.200.1.0/24.
    pub(crate) node: Node,
    /// Objects that the fake API server has. [`Stage::serve`] starts the server with them. A
    /// measurement makes each later change both here and in the server.
    pub(crate) objects: Objects,
    pub(crate) kernel: Kernel,
    folder: PathBuf,
    fixture: Option<Process>,
    has_legacy: bool,
}

impl Stage {
    /// Creates a stage with only the node: without a fake API server, and without a measured
    /// program.
    pub(crate) fn new(cell: &Cell) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bench-{}", std::process::id()));
        // On the host's kernel, an earlier cell's process may have had the same process ID, and may
        // have left this directory.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let has_legacy = prefer_legacy_iptables(&folder)?;
        let mut world = World::new("bench")?;
        let node = world.node("node1", "172.35.0.100/24", "10.200.1.1/24")?;
        let kernel = Kernel::open(&node, mode(cell), sets(cell))?;
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

    /// Changes the stage to another node and another subject. Stops the fake API server; the next
    /// [`Stage::serve`] starts a new one.
    pub(crate) fn go_on(&mut self, node: Node, subject: Subject) -> Result<()> {
        self.fixture = None;
        self.cell.subject = subject;
        self.kernel = Kernel::open(&node, mode(&self.cell), sets(&self.cell))?;
        self.node = node;
        Ok(())
    }

    /// Returns the mode of the measured kube-proxy.
    pub(crate) fn mode(&self) -> Mode {
        mode(&self.cell)
    }

    /// Returns the directory for temporary files of this cell.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns true if the command `iptables` is iptables-legacy here.
    pub(crate) fn has_legacy_iptables(&self) -> bool {
        self.has_legacy
    }

    /// Returns the time limit of the cell (benchmark run).
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.cell.limit_s)
    }

    /// Returns the state that the kernel must have for the present objects.
    pub(crate) fn wanted(&self) -> Snapshot {
        Snapshot::wanted(&self.objects, self.mode())
    }

    /// Starts the fake API server with the present objects. Waits until it accepts requests.
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

    /// Returns the CPU time of the fake API server in seconds, or 0 if none runs.
    pub(crate) fn fixture_cpu_s(&self) -> Result<f64> {
        self.fixture.as_ref().map_or(Ok(0.0), Process::cpu_s)
    }

    /// Opens a connection to the fake API server.
    pub(crate) fn api(&self) -> Result<Api> {
        let to: SocketAddr = API.parse()?;
        Api::new(self.node.enter(|| TcpStream::connect(to))?)
    }

    /// Returns the path of the file to which strace writes.
    pub(crate) fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    /// Waits until the kernel has the state that the present objects require.
    pub(crate) fn until_programmed(
        &mut self,
        subject: &mut Process,
        started: Instant,
    ) -> Result<WaitEnd> {
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
        SubjectKind::NftFloor | SubjectKind::NftFlatFloor => Mode::Nftables,
        _ => Mode::Ipvs,
    }
}

fn sets(cell: &Cell) -> SetsIn {
    if cell.subject.kind.has(NATIVE) {
        SetsIn::Nftables
    } else {
        SetsIn::Ipset
    }
}

/// Returns the path of a program in the same build directory as this program.
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

/// Makes this process run the legacy iptables programs, through links in the first directory of
/// `PATH`. The default programs may be iptables-nft, and the kernel may lack nf_tables. Returns
/// false if `iptables-legacy` is not installed.
#[allow(unsafe_code, reason = "set_var is unsafe")]
fn prefer_legacy_iptables(folder: &Path) -> Result<bool> {
    let bin = folder.join("bin");
    let missing = lab::link_iptables("legacy", &bin)?;
    let path = std::env::var("PATH").unwrap_or_default();
    // SAFETY: the process has only one thread. Each cell runs in its own process, which calls this
    // function first.
    unsafe { std::env::set_var("PATH", format!("{}:{path}", bin.display())) };
    Ok(!missing.iter().any(|name| name == "iptables-legacy"))
}
