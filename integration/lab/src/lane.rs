//! Lanes: the kernels on which the lab can run a command. They are the host's kernel, if it has
//! IPVS, and two kinds of User Mode Linux kernels.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Path, in the user's cache directory, of the kernel that `integration/kernel/packaged 6.12`
/// downloads. A VM needs less CPU time on it than on Linux 6.1.
const FETCHED: &str = "kube-proxy-ipvs/packaged-6.12/linux";

/// Kernel that Debian's package `user-mode-linux` installs.
const INSTALLED: &str = "/usr/bin/linux.uml";
const INSTALLED_MODULES: &str = "/usr/lib/uml/modules";

/// Kernel on which the lab runs a command: the host's, or one of two kinds of User Mode Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The host's kernel, in new network, mount and PID namespaces. A command can change the host's
    /// files.
    Host,
    /// Debian's User Mode Linux with its modules: the downloaded Linux 6.12, otherwise the
    /// installed package. It supports only legacy iptables. `--kernel` selects the kernel of
    /// another Debian release.
    A,
    /// A User Mode Linux kernel with iptables-nft, given by `--kernel`. Either Debian's kernel with
    /// more modules (`integration/kernel/modules`), or a kernel without modules
    /// (`integration/kernel/build`), which boots in half a second.
    B,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::A => "A",
            Self::B => "B",
        })
    }
}

impl FromStr for Lane {
    type Err = String;

    /// Parses the name of a lane: `host`, `A`, `B`, or `uml` (an alias for `A`).
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "host" => Ok(Self::Host),
            "A" | "a" | "uml" => Ok(Self::A),
            "B" | "b" => Ok(Self::B),
            other => Err(format!("no lane `{other}`: choose host, A (or uml) or B")),
        }
    }
}

/// Reason why the lab cannot use the chosen kernel. The message includes what the user can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The host's kernel has no IPVS, and Debian's User Mode Linux is not installed.
    #[error(
        "no IPVS here: the host's kernel does not offer it, and {0} is missing; run `make deps`, which fetches User Mode Linux"
    )]
    Uml(PathBuf),
    /// The path in `--kernel` does not name an executable file.
    #[error(
        "{0} is not an executable kernel; build it, or leave --kernel away for Debian's package"
    )]
    Kernel(PathBuf),
    /// Lane B was chosen without `--kernel`, but it has no default kernel.
    #[error(
        "lane B needs its kernel: --kernel PATH, or LAB_KERNEL in the environment (`integration/kernel/modules` and `integration/kernel/build` print the path)"
    )]
    NoKernel,
    /// The host's kernel was chosen, but this process is not root with CAP_SYS_ADMIN.
    #[error(
        "the host's kernel cannot be used: run as root with CAP_SYS_ADMIN (network, mount and PID namespaces)"
    )]
    Host,
}

/// A kernel that exists on this machine, with its lane and the paths of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kernel {
    Host,
    Uml {
        lane: Lane,
        kernel: PathBuf,
        modules: Option<PathBuf>,
    },
}

impl Kernel {
    /// Finds the kernel of the chosen lane. Without a chosen lane, takes the first of these:
    ///
    /// 1. lane B, if a kernel is given;
    /// 2. the host's kernel, if it has IPVS;
    /// 3. Debian's package (lane A).
    pub(crate) fn choose(lane: Option<Lane>, kernel: Option<&Path>) -> Result<Self, Missing> {
        let lane = match (lane, kernel) {
            (Some(lane), _) => lane,
            (None, Some(_)) => Lane::B,
            (None, None) if host_has_ipvs() && can_unshare() => Lane::Host,
            (None, None) => Lane::A,
        };
        match (lane, kernel) {
            (Lane::Host, _) if can_unshare() => Ok(Self::Host),
            (Lane::Host, _) => Err(Missing::Host),
            (Lane::B, None) => Err(Missing::NoKernel),
            (_, Some(path)) if !executable(path) => Err(Missing::Kernel(path.to_owned())),
            (lane, path) => {
                let kernel = path.map_or_else(packaged, Path::to_owned);
                if !executable(&kernel) {
                    return Err(Missing::Uml(kernel));
                }
                let modules = modules_of(&kernel);
                Ok(Self::Uml {
                    lane,
                    kernel,
                    modules,
                })
            }
        }
    }

    pub(crate) fn lane(&self) -> Lane {
        match self {
            Self::Host => Lane::Host,
            Self::Uml { lane, .. } => *lane,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("lane host: this kernel, in fresh namespaces"),
            Self::Uml {
                lane,
                kernel,
                modules,
            } => {
                write!(f, "lane {lane}: User Mode Linux {}", kernel.display())?;
                modules
                    .iter()
                    .try_for_each(|dir| write!(f, ", modules {}", dir.display()))
            }
        }
    }
}

/// Returns the path of lane A's default kernel, even if the file is missing.
fn packaged() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let fetched = cache.or_else(home).map(|cache| cache.join(FETCHED));
    let fetched = fetched.filter(|kernel| executable(kernel));
    fetched.unwrap_or_else(|| INSTALLED.into())
}

/// Returns the directory with the modules of a kernel file. The installed package has its own. For
/// any other kernel, this is a subdirectory of `modules`, next to the kernel file.
fn modules_of(kernel: &Path) -> Option<PathBuf> {
    if kernel == Path::new(INSTALLED) {
        newest_release(Path::new(INSTALLED_MODULES))
    } else {
        newest_release(&kernel.with_file_name("modules"))
    }
}

/// Returns the subdirectory of the newest kernel release. Subdirectories are named after releases.
fn newest_release(modules: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(modules).ok()?.flatten();
    // Compares the numbers in the names: 6.12.117 is newer than 6.12.9.
    let numbers = |path: &PathBuf| -> Vec<u32> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = name.split(|part: char| !part.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    entries.map(|entry| entry.path()).max_by_key(numbers)
}

fn executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns true if the host's kernel has IPVS. Tries to load the module, which only root can.
fn host_has_ipvs() -> bool {
    let there = || Path::new("/proc/net/ip_vs").exists();
    rustix::process::geteuid().is_root()
        && (there() || succeeds("modprobe", &["-q", "ip_vs"]) && there())
}

/// Returns true if the host's kernel can create an nftables table, which it tries in a temporary
/// network namespace.
pub(crate) fn host_has_nftables() -> bool {
    rustix::process::geteuid().is_root()
        && succeeds("unshare", &["--net", "nft", "add", "table", "inet", "lab"])
        && can_unshare()
}

fn can_unshare() -> bool {
    succeeds("unshare", &["--net", "--mount", "--pid", "--fork", "true"])
}

pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .env(
            "PATH",
            crate::job::sane_path(std::env::var_os("PATH").as_deref()),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_name_parses_to_its_lane() {
        for lane in [Lane::Host, Lane::A, Lane::B] {
            assert_eq!(lane.to_string().parse(), Ok(lane));
        }
        assert_eq!("uml".parse(), Ok(Lane::A));
        assert!("C".parse::<Lane>().is_err());
    }

    #[test]
    fn a_lab_kernel_uses_the_modules_directory_beside_its_file() {
        let folder = std::env::temp_dir().join(format!("lab-lane-{}", std::process::id()));
        let kernel = folder.join("linux");
        let release = folder.join("modules/6.12.1");
        std::fs::create_dir_all(&release).unwrap();
        std::fs::copy("/bin/true", &kernel).unwrap();
        let chosen = [Lane::A, Lane::B].map(|lane| Kernel::choose(Some(lane), Some(&kernel)));
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = [Lane::A, Lane::B].map(|lane| {
            Ok(Kernel::Uml {
                lane,
                kernel: kernel.clone(),
                modules: Some(release.clone()),
            })
        });
        assert_eq!(chosen, expected);
    }

    #[test]
    fn a_lab_kernel_given_by_path_is_lane_b() {
        let kernel = Path::new("/bin/sh");
        let Ok(Kernel::Uml { lane, modules, .. }) = Kernel::choose(None, Some(kernel)) else {
            panic!("not chosen")
        };
        assert_eq!((lane, modules), (Lane::B, None));
        assert_eq!(Kernel::choose(Some(Lane::B), None), Err(Missing::NoKernel));
        assert_eq!(
            Kernel::choose(None, Some(Path::new("/nonexistent"))),
            Err(Missing::Kernel("/nonexistent".into()))
        );
    }
}
