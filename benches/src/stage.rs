//! The environment of one cell: a node, the API fixture with all objects, and the measured program.
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

/// Address of the API fixture, on node1.
pub(crate) const API: &str = "127.0.0.1:18080";
/// Time limit for the start of the API fixture. The limit allows more than a second per thousand
/// objects.
const FIXTURE_LIMIT: Duration = Duration::from_mins(5);
/// Environment of a measured program: its node, its objects and its API server.
pub(crate) struct Stage {
    pub(crate) cell: Cell,
    /// The lab's virtual network. A measurement adds pods and hosts to it.
    pub(crate) world: World,
    /// Node of the measured program, 172.35.0.100. The node's pods are in 10.200.1.0/24.
    pub(crate) node: Node,
    /// Objects that the API fixture should hold. [`Stage::serve`] starts the fixture with these
    /// objects. Later, a measurement makes each change both here and in the fixture.
    pub(crate) objects: Objects,
    pub(crate) kernel: Kernel,
    folder: PathBuf,
    fixture: Option<Process>,
    has_legacy: bool,
}

impl Stage {
    /// Creates the cell's node, without objects and without a measured program.
    pub(crate) fn new(cell: &Cell) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bench-{}", std::process::id()));
        // Without a VM, a process of an earlier cell may have had the same id, and may have left
        // this directory.
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

    /// Moves the stage to another node and another measured program, with a new API fixture.
    pub(crate) fn go_on(&mut self, node: Node, subject: Subject) -> Result<()> {
        self.fixture = None;
        self.cell.subject = subject;
        self.kernel = Kernel::open(&node, mode(&self.cell), sets(&self.cell))?;
        self.node = node;
        Ok(())
    }

    /// Returns the mode of the measured program.
    pub(crate) fn mode(&self) -> Mode {
        mode(&self.cell)
    }

    /// Returns the directory for temporary files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns true if the command `iptables` is the legacy variant.
    pub(crate) fn has_legacy_iptables(&self) -> bool {
        self.has_legacy
    }

    /// Returns the time limit of the cell.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.cell.limit_s)
    }

    /// Returns the state that the kernel must hold now.
    pub(crate) fn wanted(&self) -> Snapshot {
        Snapshot::wanted(&self.objects, self.mode())
    }

    /// Starts the API fixture with the objects, and waits until it accepts requests.
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

    /// Returns the CPU time of the API fixture in seconds, or 0 if there is no fixture.
    pub(crate) fn fixture_cpu_s(&self) -> Result<f64> {
        self.fixture.as_ref().map_or(Ok(0.0), Process::cpu_s)
    }

    /// Opens a connection to the API fixture.
    pub(crate) fn api(&self) -> Result<Api> {
        let to: SocketAddr = API.parse()?;
        Api::new(self.node.enter(|| TcpStream::connect(to))?)
    }

    /// Returns the path of strace's output file.
    pub(crate) fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    /// Waits until the kernel holds the state of the objects.
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

/// Returns the path of a program that was built together with this program.
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

/// Makes this process use the legacy variants of the iptables programs, through links in the first
/// directory of its search path. The default variants may be iptables-nft, and the VM's kernel may
/// lack nftables. Returns false if `iptables-legacy` is not installed.
#[allow(unsafe_code, reason = "set_var is unsafe")]
fn prefer_legacy_iptables(folder: &Path) -> Result<bool> {
    let bin = folder.join("bin");
    let missing = lab::link_iptables("legacy", &bin)?;
    let path = std::env::var("PATH").unwrap_or_default();
    // SAFETY: this process still has only one thread. Each cell has its own process, and calls this
    // function first.
    unsafe { std::env::set_var("PATH", format!("{}:{path}", bin.display())) };
    Ok(!missing.iter().any(|name| name == "iptables-legacy"))
}
