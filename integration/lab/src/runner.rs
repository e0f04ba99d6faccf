//! Runs a command in the lab, and returns its output and exit status.
//!
//! Runner and VM share a work directory with these files:
//!
//! - The runner writes the command into a file ([`Job`]).
//! - The VM's init appends to `stdout` and `stderr`. The runner forwards both.
//! - The VM's init writes `status` last.
//!
//! The VM writes to files instead of a console, because a tty would change bytes and mix both
//! streams.
//!
//! A run leaves nothing behind. The VM is one process group, which the runner kills as a whole.
//! Dropping [`WorkDir`] removes the work dir. If the runner itself is killed, its [`sentry`] kills
//! the group and removes the work dir.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, waitpgid,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::job::{Job, sane_path};
use crate::lane::{self, Kernel, Lane, Missing};
use crate::signals::{Signals, unblock_all};

/// Shared library that User Mode Linux preloads to restore vector registers; see `xstate.c`.
const XSTATE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xstate.so"));

const TIMED_OUT: i32 = 124;
const FAILED: i32 = 125;
const NO_KERNEL: i32 = 127;

/// Interval between two reads of the VM's output.
const TICK: Duration = Duration::from_millis(10);
/// Time that a VM has to power off after it has written its status.
const POWER_OFF: Duration = Duration::from_secs(5);

/// Options of a run of the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Time limit of the run, including the VM's boot. Then the runner kills the VM, and returns
    /// status 124.
    pub timeout: Duration,
    /// Memory of the VM in the format of the kernel's `mem=`: digits, then K, M or G.
    pub memory: String,
    /// Number of the host's CPU on which the VM runs. `None` chooses a CPU that no other run uses,
    /// if possible.
    pub cpu: Option<usize>,
    /// Lane (kernel) of the run. `None` chooses the first available: lane B if `kernel` is given,
    /// the host's kernel if it has IPVS, lane A.
    pub lane: Option<Lane>,
    /// Path of a User Mode Linux kernel, which lane B requires. `None` selects Debian's kernel for
    /// lane A.
    pub kernel: Option<PathBuf>,
    /// Host directories to which the VM may write, under the same paths.
    pub keep: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_mins(10),
            memory: "1G".into(),
            cpu: None,
            lane: None,
            kernel: None,
            keep: Vec::new(),
        }
    }
}

impl Options {
    /// Returns the default options, with lane, kernel and memory from the environment variables
    /// `LAB_LANE`, `LAB_KERNEL` and `LAB_MEMORY`. Prints a message about an unknown lane, and
    /// ignores it.
    pub fn from_env() -> Self {
        let lane = std::env::var("LAB_LANE")
            .ok()
            .filter(|lane| !lane.is_empty());
        Self {
            lane: lane.and_then(|lane| {
                lane.parse()
                    .map_err(|error| eprintln!("lab: LAB_LANE: {error}"))
                    .ok()
            }),
            kernel: std::env::var_os("LAB_KERNEL").map(PathBuf::from),
            memory: std::env::var("LAB_MEMORY").unwrap_or_else(|_| Self::default().memory),
            ..Self::default()
        }
    }
}

impl Options {
    /// Chooses the host's kernel for commands that need `nf_tables`, if all of these hold:
    ///
    /// - The user has chosen no lane, and is root.
    /// - The kernel has nf_tables.
    /// - `nft` is installed.
    #[must_use]
    pub fn with_nftables(self) -> Self {
        let is_open = self.lane.is_none() && self.kernel.is_none();
        Self {
            lane: if is_open && lane::host_has_nftables() {
                Some(Lane::Host)
            } else {
                self.lane
            },
            ..self
        }
    }
}

/// Runs the command `argv` in the lab, with this process's environment and working directory.
/// Forwards the command's output. If this process is already in the lab, runs it directly.
///
/// Returns an exit status:
///
/// - the command's status, or 128 + n if signal n ended the command;
/// - 124 after the time limit;
/// - 125 if the VM died. The end of the VM's console goes to standard error;
/// - 127 without a kernel;
/// - 128 + n if signal n (SIGINT, SIGTERM, SIGHUP) ended the run.
pub fn run(argv: &[OsString], options: &Options) -> i32 {
    try_run(argv, options).unwrap_or_else(|error| {
        eprintln!("lab: {error:#}");
        if error.is::<Missing>() {
            NO_KERNEL
        } else {
            FAILED
        }
    })
}

fn try_run(argv: &[OsString], options: &Options) -> Result<i32> {
    let Some(program) = argv.first() else {
        bail!("no command given")
    };
    if crate::in_lab() {
        let status = Command::new(program)
            .args(argv.get(1..).unwrap_or_default())
            .status();
        return Ok(code(
            status.with_context(|| format!("cannot start {}", program.display()))?,
        ));
    }
    if !memory_is_sane(&options.memory) {
        bail!(
            "memory `{}`: give digits and K, M or G, such as 1G",
            options.memory
        );
    }
    let kernel = Kernel::choose(options.lane, options.kernel.as_deref())?;
    let signals = Signals::catch().context("cannot catch signals")?;
    let dir = WorkDir::new()?;
    prepare(dir.path(), argv, options, &kernel)?;
    let (cpu, _claim) = choose_cpu(options.cpu)?;
    let mut guest = Guest::boot(dir.path(), &kernel, &options.memory, cpu)?;
    let ended = guest.watch(dir.path(), Instant::now() + options.timeout, &signals)?;
    let leader = guest.kill();
    Ok(match ended {
        RunEnd::Status(status) => status,
        RunEnd::TimedOut => {
            eprintln!(
                "lab: time limit of {} s reached, killed",
                options.timeout.as_secs_f64()
            );
            TIMED_OUT
        }
        RunEnd::Signal(signal) => 128 + i32::from(signal),
        // The reader of the runner's output has closed the pipe. A shell returns this status for a
        // program that SIGPIPE has ended.
        RunEnd::OutputClosed => 128 + Signal::PIPE.as_raw(),
        RunEnd::Died => {
            let how = leader
                .map(|status| ExitStatus::from_raw(status.as_raw()).to_string())
                .unwrap_or_default();
            eprintln!(
                "lab: the guest died before the command ended ({how}); the end of its console:"
            );
            eprint!("{}", tail(&dir.path().join("console"), 25));
            FAILED
        }
    })
}

fn memory_is_sane(memory: &str) -> bool {
    let digits = memory
        .strip_suffix(['K', 'M', 'G', 'k', 'm', 'g'])
        .unwrap_or(memory);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Converts a size such as `1G` into bytes.
fn memory_bytes(memory: &str) -> u64 {
    let shift = match memory.as_bytes().last() {
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(b'G' | b'g') => 30,
        _ => 0,
    };
    let digits = memory.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    digits
        .parse::<u64>()
        .map_or(u64::MAX, |number| number.saturating_mul(1 << shift))
}

fn prepare(dir: &Path, argv: &[OsString], options: &Options, kernel: &Kernel) -> Result<()> {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| !["PATH", "LAB", "LAB_LANE"].iter().any(|ours| name == ours))
        .collect();
    env.push((
        "PATH".into(),
        sane_path(std::env::var_os("PATH").as_deref()),
    ));
    env.push(("LAB".into(), "1".into()));
    env.push(("LAB_LANE".into(), kernel.lane().to_string().into()));
    let keep = options.keep.iter().map(|folder| {
        let full = folder
            .canonicalize()
            .with_context(|| format!("--keep {}", folder.display()))?;
        if full.is_dir() {
            Ok(full)
        } else {
            bail!("--keep {}: not a directory", folder.display())
        }
    });
    let job = Job {
        argv: argv.to_vec(),
        env,
        cwd: std::env::current_dir().context("cannot read the working directory")?,
        lane: kernel.lane().to_string(),
        modules: if let Kernel::Uml { modules, .. } = kernel {
            modules.clone()
        } else {
            None
        },
        keep: keep.collect::<Result<_>>()?,
    };
    let step = || format!("cannot write to {}", dir.display());
    job.write(dir).with_context(step)?;
    for name in ["stdout", "stderr", "status", "console"] {
        File::create(dir.join(name)).with_context(step)?;
    }
    std::fs::write(dir.join("xstate.so"), XSTATE).with_context(step)?;
    // Starts init through a link in the work dir. The program's own path may contain spaces, which
    // the kernel's command line cannot quote.
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    std::os::unix::fs::symlink(exe, dir.join("init")).with_context(step)
}

/// Chooses the CPU on which the VM runs. If User Mode Linux moves between CPUs, each system call
/// takes three times as long. An abstract socket reserves the CPU while this process runs, so that
/// concurrent runs use different CPUs. Returns the CPU's number, and the socket if the CPU could be
/// reserved.
fn choose_cpu(wanted: Option<usize>) -> Result<(usize, Option<UnixListener>)> {
    let allowed = sched_getaffinity(None).context("cannot read the CPU affinity")?;
    if let Some(cpu) = wanted {
        if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) {
            return Ok((cpu, None));
        }
        bail!("CPU {cpu} is not among those that this process may use");
    }
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .rev()
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    for &cpu in &cpus {
        let name = SocketAddr::from_abstract_name(format!("kube-proxy-ipvs-lab-cpu-{cpu}"));
        if let Ok(claim) = name.and_then(|name| UnixListener::bind_addr(&name)) {
            return Ok((cpu, Some(claim)));
        }
    }
    let turn = std::process::id() as usize % cpus.len().max(1);
    Ok((cpus.get(turn).copied().unwrap_or(0), None))
}

/// Event that ended a run.
enum RunEnd {
    Status(i32),
    TimedOut,
    Signal(u8),
    OutputClosed,
    Died,
}

/// The running VM, or the command's namespaces. All processes are in one process group, whose
/// leader is the User Mode Linux kernel or `unshare`.
struct Guest {
    leader: Child,
    sentry: Child,
    killed: bool,
}

impl Guest {
    fn boot(dir: &Path, kernel: &Kernel, memory: &str, cpu: usize) -> Result<Self> {
        let mut command = match kernel {
            Kernel::Host => {
                let mut command = Command::new("unshare");
                command.env("PATH", sane_path(std::env::var_os("PATH").as_deref()));
                command.args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL"]);
                command.arg(dir.join("init")).arg("init").arg(dir);
                command
            }
            Kernel::Uml { kernel, .. } => {
                let mut command = Command::new(kernel);
                command
                    .env_clear()
                    .env("HOME", dir)
                    .env("TMPDIR", memory_dir(dir, memory));
                if !XSTATE.is_empty() {
                    command.env("LD_PRELOAD", dir.join("xstate.so"));
                }
                let shown = dir.display();
                command.arg(format!("mem={memory}"));
                // The VM mounts the host's root read-only. Init mounts the writable directories.
                command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"]);
                command.args([
                    format!("init={shown}/init"),
                    format!("uml_dir={shown}"),
                    "umid=u".into(),
                ]);
                command.args([
                    "con=null",
                    "con0=null,fd:1",
                    "quiet",
                    "panic=-1",
                    "oops=panic",
                ]);
                // Prevents the devices tunl0, sit0 and (if dummy is built in) dummy0, which every
                // new network namespace would contain otherwise.
                command.arg("sysctl.net.core.fb_tunnels_only_for_init_net=2");
                command.arg("dummy.numdummies=0");
                // Since Linux 6.16, User Mode Linux can intercept system calls by seccomp, which is
                // faster than ptrace.
                command.arg("seccomp=auto");
                command.arg("--").arg("init").arg(dir);
                command
            }
        };
        let console = File::options()
            .append(true)
            .open(dir.join("console"))
            .context("cannot open the console file")?;
        command
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .process_group(0);
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        let pin = matches!(kernel, Kernel::Uml { .. });
        #[allow(
            unsafe_code,
            reason = "std has no other way to pin a child and to tie its life to ours"
        )]
        // SAFETY: between fork and exec, the child only makes three system calls, all
        // async-signal-safe. It allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                unblock_all();
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if pin {
                    sched_setaffinity(None, &cpus)?;
                }
                Ok(())
            });
        }
        // A subreaper adopts the orphans of the process group, so that [`Self::kill`] can wait for
        // them.
        set_child_subreaper(Some(getpid())).context("cannot become a subreaper")?;
        let leader = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let sentry = sentry(&leader, dir).context("cannot start sh")?;
        Ok(Self {
            leader,
            sentry,
            killed: false,
        })
    }

    /// Forwards the command's output until the VM has written a status, or until another event ends
    /// the run.
    fn watch(&mut self, dir: &Path, mut deadline: Instant, signals: &Signals) -> Result<RunEnd> {
        let pidfd =
            pidfd_open(Pid::from_child(&self.leader), PidfdFlags::empty()).context("pidfd_open")?;
        let open = |name: &str| {
            File::open(dir.join(name)).with_context(|| format!("cannot read the guest's {name}"))
        };
        let (mut stdout, mut stderr) = (open("stdout")?, open("stderr")?);
        let tick = Timespec::try_from(TICK)?;
        let (mut status, mut gone) = (None, false);
        loop {
            let late = Instant::now() >= deadline;
            status = status.or_else(|| read_status(&dir.join("status")));
            // Checks for the end of the run first, and then forwards output. So the last output
            // before the end is included.
            if pass_on(&mut stdout, &mut io::stdout())? | pass_on(&mut stderr, &mut io::stderr())? {
                return Ok(RunEnd::OutputClosed);
            }
            match status {
                Some(status) if gone || late => return Ok(RunEnd::Status(status)),
                Some(_) => deadline = deadline.min(Instant::now() + POWER_OFF),
                None if gone => return Ok(RunEnd::Died),
                None if late => return Ok(RunEnd::TimedOut),
                None => {}
            }
            if let Some(signal) = signals.next() {
                return Ok(RunEnd::Signal(signal));
            }
            let mut fds = [
                PollFd::new(&pidfd, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&tick)) {
                Ok(_) => gone = !fds[0].revents().is_empty(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("poll"),
            }
        }
    }

    /// Kills the process group, and waits until all its processes have ended. Returns the leader's
    /// status, if it is known.
    fn kill(&mut self) -> Option<WaitStatus> {
        if std::mem::replace(&mut self.killed, true) {
            return None;
        }
        // The leader is not reaped yet, so no other process group can have its number.
        let group = Pid::from_child(&self.leader);
        let _ = kill_process_group(group, Signal::KILL);
        // Waits at most two seconds, because a process that hangs in the host's kernel does not
        // end.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut leader = None;
        while Instant::now() < deadline {
            match waitpgid(group, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == group => leader = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        let _ = self.sentry.kill();
        let _ = self.sentry.wait();
        leader
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the sentry: a shell that cleans up if the runner is killed. It waits for the end of its
/// standard input, which the runner holds open.
///
/// - If the runner exits normally, the runner first kills the sentry.
/// - If the runner is killed, the sentry's input ends. The sentry then kills the VM's process
///   group, and removes the work dir.
fn sentry(leader: &Child, dir: &Path) -> io::Result<Child> {
    let script = r#"read -r _; n=0; while kill -s KILL -- "-$1" && [ $n -lt 40 ]; do n=$((n + 1)); sleep 0.05; done; rm -rf "$2""#;
    Command::new("/bin/sh")
        .args(["-c", script, "lab-sentry", &leader.id().to_string()])
        .arg(dir)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Copies new data of the file `from` to `to`. Returns true if the reader of `to` has closed the
/// pipe.
fn pass_on(from: &mut File, to: &mut impl Write) -> Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    let mut any = false;
    loop {
        let length = from
            .read(&mut buffer)
            .context("cannot read the guest's output")?;
        if length == 0 {
            break;
        }
        any = true;
        if to
            .write_all(buffer.get(..length).unwrap_or_default())
            .is_err()
        {
            return Ok(true);
        }
    }
    Ok(any && to.flush().is_err())
}

/// Returns the exit status in the file, or `None` if it is incomplete (digits and a newline).
fn read_status(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file)
        .ok()?
        .strip_suffix('\n')?
        .parse()
        .ok()
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn tail(file: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all.iter()
        .skip(all.len().saturating_sub(lines))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Returns the directory for the file that is User Mode Linux's memory: `/dev/shm` if it is large
/// enough and allows executable files, otherwise the work dir. In containers, `/dev/shm` is often
/// small, and a VM that fills it dies.
fn memory_dir(dir: &Path, memory: &str) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let executable = rustix::fs::statvfs(shm)
        .is_ok_and(|fs| !fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    if executable && room >= memory_bytes(memory) {
        shm.to_owned()
    } else {
        dir.to_owned()
    }
}

/// Work dir of a run. Dropping this value removes the directory with its content.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new() -> Result<Self> {
        // Spaces would separate arguments of the kernel's command line. The path must be short,
        // because a socket's path has at most 108 bytes.
        let fits = |dir: &PathBuf| {
            dir.is_absolute()
                && dir.as_os_str().len() < 60
                && dir
                    .to_str()
                    .is_some_and(|dir| !dir.contains([' ', '"', ',', ':']))
        };
        let parent = Some(std::env::temp_dir())
            .filter(fits)
            .unwrap_or_else(|| "/tmp".into());
        for turn in 0..1000 {
            let path = parent.join(format!("lab.{}.{turn}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot create {}", path.display()));
                }
            }
        }
        bail!(
            "no free name for a work dir in {}; remove lab.* there",
            parent.display()
        )
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("lab: could not remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_sizes_are_validated_and_converted_to_bytes() {
        for (text, sane) in [
            ("1G", true),
            ("512m", true),
            ("4096", true),
            ("", false),
            ("G", false),
            ("1G x", false),
        ] {
            assert_eq!(memory_is_sane(text), sane, "{text}");
        }
        assert_eq!(memory_bytes("512M"), 512 << 20);
        assert_eq!(memory_bytes("2g"), 2 << 30);
    }

    #[test]
    fn an_incomplete_exit_status_is_ignored() {
        let dir = WorkDir::new().unwrap();
        let file = dir.path().join("status");
        for (text, status) in [("", None), ("1", None), ("12\n", Some(12)), ("x\n", None)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read_status(&file), status);
        }
    }

    #[test]
    fn work_directories_are_unique_and_removed() {
        let (one, two) = (WorkDir::new().unwrap(), WorkDir::new().unwrap());
        assert_ne!(one.path(), two.path());
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
