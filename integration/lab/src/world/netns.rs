//! Creates, enters and removes named network namespaces.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Error;

/// Directory with one file for each named network namespace, as `ip netns` expects.
const NAMES: &str = "/run/netns";

/// A named network namespace, as `ip netns` shows it. The kernel keeps it until [`remove`] removes
/// its name, even if all handles are dropped. A forgotten handle cannot keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Netns {
    name: String,
}

impl Netns {
    /// Creates a network namespace, like `ip netns add`. Then sets `sysctls`: pairs of a path below
    /// `/proc/sys` and a value.
    pub(super) fn new(name: String, sysctls: &[(&str, &str)]) -> Result<Self, Error> {
        let step = |source| Error::Io {
            step: format!("cannot make network namespace {name}"),
            source,
        };
        std::fs::create_dir_all(NAMES).map_err(step)?;
        let path = path_of(&name);
        File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(step)?;
        let made = in_thread(|| {
            namespace::enter()?;
            mount_bind("/proc/thread-self/ns/net", &path)?;
            write_sysctls(sysctls)
        });
        match made {
            Ok(()) => Ok(Self { name }),
            Err(error) => {
                remove_name(&path);
                Err(step(error))
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `inside` in a new thread in this network namespace, and returns its result. A socket
    /// from `inside` stays in the namespace, and any thread can use it.
    pub(super) fn enter<T: Send>(
        &self,
        inside: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        in_thread(|| {
            let namespace = File::open(path_of(&self.name))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            inside()
        })
    }

    pub(super) fn sysctl(&self, settings: &[(&str, &str)]) -> Result<(), Error> {
        self.enter(|| write_sysctls(settings))
            .map_err(|source| Error::Io {
                step: format!("cannot set sysctls in {}", self.name),
                source,
            })
    }
    /// Runs several `ip` commands in this network namespace, in one process (`ip -batch`).
    pub(super) fn ip(&self, lines: &[String]) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        let script: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
        let text = match ip_batch(&self.name, &script) {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => format!(
                "{}\n{}",
                String::from_utf8_lossy(&output.stderr).trim_end(),
                script.trim_end()
            ),
            Err(error) => error.to_string(),
        };
        Err(Error::Command {
            command: format!("ip -n {} -batch -", self.name),
            text,
        })
    }
}

/// Kills every process whose main thread is in one of these network namespaces, and removes their
/// names. The kernel then removes the namespaces with their links.
pub(super) fn remove(namespaces: &[Netns]) {
    let identity = |path: &Path| {
        std::fs::metadata(path)
            .ok()
            .map(|meta| (meta.dev(), meta.ino()))
    };
    let ours: Vec<_> = namespaces
        .iter()
        .filter_map(|netns| identity(&path_of(&netns.name)))
        .collect();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        if let (Some(pid), Some(here)) = (pid, identity(&process.path().join("ns/net")))
            && ours.contains(&here)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for netns in namespaces {
        remove_name(&path_of(&netns.name));
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

fn remove_name(path: &Path) {
    let _ = unmount(path, UnmountFlags::DETACH);
    let _ = std::fs::remove_file(path);
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
    })
}

/// Sets sysctls of the calling thread's network namespace: pairs of a path below `/proc/sys` and a
/// value.
fn write_sysctls(settings: &[(&str, &str)]) -> io::Result<()> {
    for (name, value) in settings {
        let file: PathBuf = Path::new("/proc/sys").join(name);
        // Skips sysctls of bridges that this namespace lacks: before Linux 5.3, they exist only in
        // the initial namespace. There their value is 1, for all namespaces.
        if name.starts_with("net/bridge/") && !file.exists() {
            continue;
        }
        std::fs::write(&file, value).map_err(|error| {
            io::Error::new(error.kind(), format!("{}={value}: {error}", file.display()))
        })?;
    }
    Ok(())
}

fn ip_batch(name: &str, script: &str) -> io::Result<Output> {
    let mut child = Command::new("ip")
        .args(["-n", name, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // This write cannot block: `ip` stops at the first error, so its output fits into the pipe.
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(script.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}
