//! A container: a process with its own root file system, and with the rights of its pod.
//!
//! `unshare` creates the namespaces, and starts the test binary again. The test binary prepares the
//! mounts and rights, and then executes the container's program.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lab::{Output, Place, Running};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use rustix::process::{Pid, Signal, chdir, kill_process, pivot_root};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid,
};
use serde::{Deserialize, Serialize};

/// Paths of `/proc` and `/sys` that containerd hides from an unprivileged container.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// Paths of `/proc` that containerd makes read-only in an unprivileged container.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// First argument that makes the test binary a container. The second argument is the file with the
/// [`Spec`].
const VERB: &str = "become-container";

/// A bind mount of a host directory or file into the container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
}

/// Specification of a container, as a container runtime receives it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// Directory with the container's root file system.
    pub root: PathBuf,
    /// Command line of the container: program and arguments.
    pub argv: Vec<String>,
    /// All environment variables of the container.
    pub env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    pub(crate) mounts: Vec<Mount>,
    /// True if the container gets the host's devices and `/sys`, without masked paths.
    pub privileged: bool,
    pub(crate) read_only_root: bool,
    /// Capabilities in the bounding set, by their names in a manifest (`NET_ADMIN`). `None` grants
    /// all.
    pub capabilities: Option<Vec<String>>,
    /// True if programs in the container may gain privileges (`allowPrivilegeEscalation`).
    pub escalation: bool,
    /// Numeric user ID of the container, which is also its group ID.
    pub user: u32,
}

/// A running container. Dropping it ends all its processes.
#[derive(Debug)]
pub struct Container {
    running: Running,
}

impl Container {
    /// Starts a container in the network namespace of `place`. Writes the specification into
    /// `folder`.
    pub fn start(place: &Place, folder: &Path, spec: &Spec) -> Result<Self> {
        let file = folder.join("container.json");
        fs::write(&file, serde_json::to_vec(spec)?)?;
        let exe = std::env::current_exe().context("cannot find this program's own file")?;
        let running = place.spawn([
            "unshare".as_ref(),
            "--mount".as_ref(),
            "--pid".as_ref(),
            "--ipc".as_ref(),
            "--fork".as_ref(),
            "--kill-child".as_ref(),
            exe.as_os_str(),
            VERB.as_ref(),
            file.as_os_str(),
        ])?;
        Ok(Self { running })
    }

    /// Waits until the container has ended. Returns its output.
    pub fn wait(&mut self, timeout: Duration) -> Result<Output> {
        Ok(self.running.wait(timeout)?)
    }

    /// Sends SIGTERM as the kubelet does, and waits until the container has ended.
    pub fn stop(&mut self, timeout: Duration) -> Result<Output> {
        kill_process(self.process()?, Signal::TERM)?;
        Ok(self.running.wait(timeout)?)
    }

    /// Returns the container's output so far.
    pub fn said(&self) -> String {
        self.running.said()
    }

    /// Returns the user, groups and capabilities of the container's first process, from
    /// `/proc/PID/status`.
    pub fn credentials(&self) -> Result<Credentials> {
        let pid = self.process()?.as_raw_nonzero();
        Ok(Credentials(fs::read_to_string(format!(
            "/proc/{pid}/status"
        ))?))
    }

    /// Returns the container's first process, which is the child of `unshare`.
    fn process(&self) -> Result<Pid> {
        let parent = self.running.id();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // A process may end after this loop has listed `/proc`.
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            if Credentials(status).field("PPid") == parent.to_string() {
                return Pid::from_raw(pid).context("process 0");
            }
        }
        bail!("the container has no process; it said:\n{}", self.said())
    }
}

/// User, groups and capabilities of a process: the text of `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials(String);

impl Credentials {
    /// Returns a field of `/proc/PID/status` (`NoNewPrivs`, `Uid`), with blanks between its values.
    pub fn field(&self, name: &str) -> String {
        let line = self.0.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            (field == name).then_some(value)
        });
        line.unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Returns a set of capabilities, such as `CapEff`, by their manifest names and in numeric
    /// order.
    pub fn capabilities(&self, set: &str) -> Result<Vec<String>> {
        let bits = u64::from_str_radix(&self.field(set), 16).context(set.to_owned())?;
        let set = CapabilitySet::from_bits_retain(bits);
        Ok(set.iter_names().map(|(name, _)| name.to_owned()).collect())
    }
}

/// If [`Container::start`] has started this process, becomes the container's program, and exits on
/// failure. Otherwise does nothing. The test binary must call this function first in `main`.
pub fn maybe_container() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|verb| verb != VERB) {
        return;
    }
    let mut become_it = || -> Result<()> {
        let file = arguments.next().context("no specification")?;
        let spec: Spec = serde_json::from_slice(&fs::read(file)?)?;
        isolate(&spec).context("cannot make the container's files")?;
        restrict(&spec).context("cannot take rights away")?;
        let (program, arguments) = spec.argv.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(spec.env);
        let error = command.current_dir(&spec.cwd).exec();
        Err(error).with_context(|| format!("cannot start {program}"))
    };
    if let Err(error) = become_it() {
        eprintln!("container: {error:#}");
    }
    std::process::exit(125);
}

/// Creates the container's mounts, and makes `spec.root` the root directory.
fn isolate(spec: &Spec) -> Result<()> {
    let inside = |path: &Path| spec.root.join(path.strip_prefix("/").unwrap_or(path));
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    mount_bind(&spec.root, &spec.root)?;
    // Creates missing mount points like a container runtime, because the image may be empty.
    for folder in ["/proc", "/sys", "/dev"] {
        fs::create_dir_all(inside(folder.as_ref()))?;
    }
    let quiet = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount("proc", inside("/proc".as_ref()), "proc", quiet, None)?;
    let sys = if spec.privileged {
        quiet
    } else {
        quiet | MountFlags::RDONLY
    };
    mount("sysfs", inside("/sys".as_ref()), "sysfs", sys, None)?;
    let dev = inside("/dev".as_ref());
    if spec.privileged {
        mount_bind_recursive("/dev", &dev)?;
    } else {
        mount("tmpfs", &dev, "tmpfs", MountFlags::NOSUID, None)?;
        for device in DEVICES {
            fs::write(dev.join(device), "")?;
            mount_bind(Path::new("/dev").join(device), dev.join(device))?;
        }
    }
    for Mount {
        source,
        target,
        read_only,
    } in &spec.mounts
    {
        let target = inside(&real(&spec.root, target));
        if source.is_dir() {
            fs::create_dir_all(&target)?;
        } else if !target.exists() {
            fs::create_dir_all(target.parent().unwrap_or(&target))?;
            fs::write(&target, "")?;
        }
        mount_bind_recursive(source, &target)
            .with_context(|| format!("{} on {}", source.display(), target.display()))?;
        if *read_only {
            freeze(&target)?;
        }
    }
    if !spec.privileged {
        for path in READ_ONLY.map(|path| inside(path.as_ref())) {
            if path.exists() {
                mount_bind(&path, &path)?;
                freeze(&path)?;
            }
        }
        for path in MASKED.map(|path| inside(path.as_ref())) {
            if path.is_dir() {
                mount("tmpfs", &path, "tmpfs", MountFlags::RDONLY, None)?;
            } else if path.exists() {
                mount_bind("/dev/null", &path)?;
            }
        }
    }
    if spec.read_only_root {
        freeze(&spec.root)?;
    }
    chdir(&spec.root)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}

fn freeze(path: &Path) -> Result<()> {
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")
        .with_context(|| format!("cannot make {} read-only", path.display()))
}

/// Resolves symbolic links in a path, such as `/var/run`, which leads to `/run`. Considers only
/// links that exist under `root`.
fn real(root: &Path, path: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    for part in path.iter().skip(1) {
        found.push(part);
        let inside = root.join(found.strip_prefix("/").unwrap_or(&found));
        if let Ok(link) = fs::read_link(inside) {
            found.pop();
            for part in &link {
                match part.to_str() {
                    Some("..") => drop(found.pop()),
                    Some("/") => found = "/".into(),
                    _ => found.push(part),
                }
            }
        }
    }
    found
}

fn restrict(spec: &Spec) -> Result<()> {
    // The kubelet writes this value for a node-critical pod.
    fs::write("/proc/self/oom_score_adj", "-997")?;
    if !spec.escalation {
        set_no_new_privs(true)?;
    }
    let Some(names) = &spec.capabilities else {
        return Ok(());
    };
    let mut held = CapabilitySet::empty();
    for name in names {
        held |= CapabilitySet::from_name(name)
            .with_context(|| format!("there is no capability {name}"))?;
    }
    for (name, one) in CapabilitySet::all().iter_names() {
        if !held.contains(one)
            && let Err(error) = remove_capability_from_bounding_set(one)
        {
            // The kernel returns EINVAL for a capability that it does not know.
            ensure!(error == rustix::io::Errno::INVAL, "{name}: {error}");
        }
    }
    if spec.user != 0 {
        set_keep_capabilities(true)?;
        set_thread_groups(&[])?;
        set_thread_gid(rustix::process::Gid::from_raw(spec.user))?;
        set_thread_uid(rustix::process::Uid::from_raw(spec.user))?;
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: held,
            permitted: held,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}
