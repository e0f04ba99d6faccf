//! Init (PID 1) of the lab: prepares the root file system, runs the command, reaps processes,
//! reports the exit status, and powers off.
//!
//! User Mode Linux starts init on a read-only hostfs, which shows the host's root. Init mounts an
//! overlay over the hostfs, with its upper layer in memory. Then init changes its root to the
//! overlay. The VM therefore sees the host's files, but its writes stay in the VM. Only writes to
//! the kept directories reach the host.
//!
//! The overlay protects the host's files from accidents, but not from a malicious command, which
//! can mount hostfs again. So run the lab as an unprivileged user. On the host's kernel (host
//! lane), init is PID 1 of new namespaces, and the command uses the host's files directly.
//!
//! ```text
//!  work dir (hostfs, rw, held open only by init)   stdout, stderr, status
//!    root/        tmpfs
//!      upper/ work/
//!      new/       overlay(lower = hostfs of /, ro) ─ pivot_root here
//!                  (if the kernel opens no files through it: a tmpfs with bind mounts)
//!         proc sys dev run (own) · /lib/modules/RELEASE ─▶ modules · kept directories (hostfs, rw)
//! ```

use std::ffi::{CString, OsStr};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{
    Pid, Resource, Rlimit, WaitOptions, chdir, getrlimit, pivot_root, setrlimit, wait,
};
use rustix::system::{RebootCommand, finit_module, reboot, sethostname, uname};

use crate::job::{self, Job};
use crate::signals::kill_all_others;

/// Acts as the lab's init, and never returns, if this process is PID 1 and was started as
/// `PROGRAM init WORKDIR`. Otherwise returns immediately. A program that calls [`crate::run`] must
/// first call this function in `main`.
pub fn maybe_init() {
    let mut args = std::env::args_os().skip(1);
    // Ignores the further arguments that the kernel appends, such as `console=tty0`.
    let (verb, dir) = (args.next(), args.next());
    if std::process::id() != 1 || verb.is_none_or(|verb| verb != "init") {
        return;
    }
    if let Some(dir) = dir
        .map(PathBuf::from)
        .filter(|dir| dir.join(job::FILE).is_file())
    {
        init(&dir);
    }
}

/// Raises the limit on open files from the kernel's default for PID 1 (4,096) to the limit of a
/// container.
fn allow_files() {
    const FILES: u64 = 1 << 20;
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current,
        maximum: Some(FILES),
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("lab: the limit of open files stays as it is: {error}");
    }
}

fn init(dir: &Path) -> ! {
    let job = Job::read(dir);
    let host = job.as_ref().is_ok_and(|job| job.lane == "host");
    let done = job.context("cannot read the job").and_then(|job| {
        let report = if host {
            enter_namespaces().map(|()| Report::open(dir))
        } else {
            allow_files();
            enter_guest(dir, &job)
        };
        let mut report = report.context("cannot set up the lab")??;
        let status = execute(&job, &report);
        // Writes the status last, as a complete line: the runner ignores an incomplete one.
        writeln!(report.status, "{status}").context("cannot write the status")
    });
    if let Err(error) = done {
        // Prints the error on the VM's console. The runner shows the end of the console if it gets
        // no status.
        eprintln!("lab: init: {error:#}");
    }
    if host {
        std::process::exit(0);
    }
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    // PID 1 must not exit, because the kernel panics when it does.
    loop {
        std::thread::park();
    }
}

/// Files in which init reports to the runner: the output streams and the exit status of the
/// command.
struct Report {
    stdout: File,
    stderr: File,
    status: File,
}

impl Report {
    fn open(dir: &Path) -> Result<Self> {
        let open = |name: &str| {
            File::options()
                .append(true)
                .open(dir.join(name))
                .with_context(|| format!("cannot open {name}"))
        };
        Ok(Self {
            stdout: open("stdout")?,
            stderr: open("stderr")?,
            status: open("status")?,
        })
    }
}

/// Prepares the namespaces in which a command runs on the host's kernel (host lane). `unshare` has
/// created them, with private mount propagation.
fn enter_namespaces() -> Result<()> {
    attach("proc", Path::new("/proc"), "proc", "")?;
    attach("sysfs", Path::new("/sys"), "sysfs", "")?;
    std::fs::create_dir_all("/run/netns").context("/run/netns")?;
    attach("tmpfs", Path::new("/run/netns"), "tmpfs", "mode=755")?;
    loopback_up()
}

fn enter_guest(dir: &Path, job: &Job) -> Result<Result<Report>> {
    attach("hostfs", dir, "hostfs", dir)?;
    let report = Report::open(dir);
    let base = dir.join("root");
    std::fs::create_dir(&base).context("cannot write to the work dir")?;
    attach("tmpfs", &base, "tmpfs", "mode=755,size=75%")?;
    let new = base.join("new");
    for name in ["upper", "work", "new"] {
        std::fs::create_dir(base.join(name)).context("cannot write to a tmpfs")?;
    }
    load_overlay(job.modules.as_deref())?;
    let layers = format!(
        "lowerdir=/,upperdir={0}/upper,workdir={0}/work",
        base.display()
    );
    attach("overlay", &new, "overlay", layers)?;
    if let Err(error) = File::open(below(&new, &dir.join(job::FILE))) {
        // This kernel cannot open files through the overlay: Linux 5.10 only lists the files of an
        // overlay over hostfs.
        eprintln!("lab: no overlay over hostfs ({error}): the root is put together instead");
        unmount(&new, UnmountFlags::DETACH).context("cannot detach the overlay")?;
        put_together(&new)?;
    }

    let inner = |path: &str| new.join(path);
    for path in ["proc", "sys", "dev", "run", "tmp"] {
        make_dir(&inner(path))?;
    }
    attach("proc", &inner("proc"), "proc", "")?;
    attach("sysfs", &inner("sys"), "sysfs", "")?;
    attach("devtmpfs", &inner("dev"), "devtmpfs", "mode=755")?;
    attach("tmpfs", &inner("run"), "tmpfs", "mode=755")?;
    for path in ["dev/pts", "dev/shm", "run/netns", "run/lock"] {
        make_dir(&inner(path))?;
    }
    attach("devpts", &inner("dev/pts"), "devpts", "")?;
    attach("tmpfs", &inner("dev/shm"), "tmpfs", "mode=1777")?;
    for (name, target) in [
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        let _ = symlink(
            Path::new("/proc/self").join(target),
            inner("dev").join(name),
        );
    }
    // Mounts cgroup2 for programs that read it. Ignores errors, because no test needs it.
    let _ = attach("cgroup2", &inner("sys/fs/cgroup"), "cgroup2", "");
    if let Some(modules) = &job.modules {
        let release = inner("lib/modules").join(OsStr::from_bytes(uname().release().to_bytes()));
        make_dir(&inner("lib/modules"))?;
        if release.symlink_metadata().is_err() {
            symlink(modules, &release)
                .with_context(|| format!("cannot make {}", release.display()))?;
        }
    }
    for folder in &job.keep {
        let here = below(&new, folder);
        make_dir(&here)?;
        attach("hostfs", &here, "hostfs", folder)?;
    }

    // Mounts the old root over the new root, and detaches it. Afterwards only init's open report
    // files still use the old root.
    chdir(&new).context("chdir")?;
    pivot_root(".", ".").context("pivot_root")?;
    unmount(".", UnmountFlags::DETACH).context("cannot detach the old root")?;
    chdir("/").context("chdir")?;
    sethostname(b"lab").context("sethostname")?;
    loopback_up()?;
    Ok(report)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Builds a root directory without an overlay: read-only bind mounts of the host's directories, a
/// copy of `/etc`, and empty `/tmp` and `/var`.
fn put_together(new: &Path) -> Result<()> {
    const OWN: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];
    attach("tmpfs", new, "tmpfs", "mode=755")?;
    for entry in std::fs::read_dir("/").context("/")? {
        let entry = entry.context("/")?;
        let (name, here) = (entry.file_name(), new.join(entry.file_name()));
        let kind = entry.file_type().context("/")?;
        if kind.is_symlink() || name == "etc" {
            copy(&entry.path(), &here)?;
        } else if kind.is_dir() && OWN.iter().all(|own| name != *own) && name != "var" {
            make_dir(&here)?;
            mount_bind(entry.path(), &here).with_context(|| here.display().to_string())?;
        }
    }
    for folder in ["cache", "lib", "log", "tmp"] {
        make_dir(&new.join("var").join(folder))?;
    }
    symlink("/run", new.join("var/run")).context("/var/run")
}

/// Copies a file, a symbolic link, or a directory with its content. Skips special files and
/// unreadable files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let about = || format!("cannot copy {}", from.display());
    let kind = from.symlink_metadata().with_context(about)?.file_type();
    if kind.is_symlink() {
        return symlink(std::fs::read_link(from).with_context(about)?, to).with_context(about);
    }
    if kind.is_dir() {
        make_dir(to)?;
        for entry in std::fs::read_dir(from).with_context(about)? {
            let entry = entry.with_context(about)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if kind.is_file() {
        match std::fs::copy(from, to) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                return Err(error).with_context(about);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Loads the module overlay, which Debian's kernel does not contain. Cannot use `modprobe`, which
/// looks in the host's directory of modules until the root has changed.
fn load_overlay(modules: Option<&Path>) -> Result<()> {
    let Some(file) = modules
        .map(|dir| dir.join("kernel/fs/overlayfs/overlay.ko"))
        .filter(|file| file.is_file())
    else {
        return Ok(()); // built in; otherwise the mount fails
    };
    let module = File::open(&file).with_context(|| file.display().to_string())?;
    match finit_module(&module, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot load {}", file.display())),
    }
}

fn attach(source: &str, target: &Path, kind: &str, data: impl AsRef<OsStr>) -> Result<()> {
    let data = CString::new(data.as_ref().as_bytes())?;
    mount(
        source,
        target,
        kind,
        MountFlags::empty(),
        Some(data.as_c_str()),
    )
    .with_context(|| format!("cannot mount {kind} on {}", target.display()))
}

fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .with_context(|| format!("cannot make {}", path.display()))
}

fn loopback_up() -> Result<()> {
    let path = job::sane_path(None);
    let status = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .env("PATH", path)
        .status();
    match status.context("cannot start ip; apt-get install -y iproute2")? {
        status if status.success() => Ok(()),
        status => bail!("ip link set lo up: {status}"),
    }
}

/// Runs the command until it exits, then kills all remaining processes. Returns the exit status as
/// a shell does: 128 + n if signal n ended the command.
fn execute(job: &Job, report: &Report) -> i32 {
    let complain = |text: String, status| {
        let _ = writeln!(&report.stderr, "lab: {text}");
        status
    };
    let Some((program, args)) = job.argv.split_first() else {
        return complain("no command".into(), 125);
    };
    if !job.cwd.is_dir() {
        return complain(
            format!("{}: no such directory in the lab", job.cwd.display()),
            125,
        );
    }
    let child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&job.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let status = if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            return complain(
                format!("cannot start {}: {error}", program.display()),
                status,
            );
        }
    };
    // Copies the command's output from pipes into the report files. A program that opens
    // /dev/stdout would truncate a report file if the command wrote to it directly. But if the
    // kernel panics, output in the pipes is lost.
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let pid = Pid::from_child(&child);
    std::thread::scope(|scope| {
        scope.spawn(|| stdout.map(|from| pump(from, &report.stdout)));
        scope.spawn(|| stderr.map(|from| pump(from, &report.stderr)));
        let status = reap_until(pid);
        kill_all_others();
        // Waits until all processes have ended, because each may hold the pipes open.
        while matches!(wait(WaitOptions::empty()), Ok(_) | Err(Errno::INTR)) {}
        status
    })
}

/// Reaps ended processes, as PID 1 must, until the process `pid` ends. Returns its exit status.
fn reap_until(pid: Pid) -> i32 {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => {
                return status
                    .exit_status()
                    .unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 125, // impossible: init reaps the command itself
        }
    }
}

fn pump(mut from: impl Read, mut to: &File) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            // Ignores a failed write, for example to a full disk of the host, so that the command
            // continues.
            Ok(length) => drop(to.write_all(buffer.get(..length).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
