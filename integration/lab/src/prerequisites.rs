//! Reports the lab's prerequisites: the chosen kernel, and the tools for worlds and tests.

use crate::job::sane_path;
use crate::lane::Kernel;
use crate::runner::Options;

/// Names of required programs, with the Debian packages that contain them.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("modprobe", "kmod"),
    ("unshare", "util-linux"),
    ("ipvsadm", "ipvsadm"),
    ("ipset", "ipset"),
    ("iptables-legacy", "iptables"),
    ("conntrack", "conntrack"),
    ("sysctl", "procps"),
    ("curl", "curl"),
];

/// Line of the report, about one tool or one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the tool or kernel.
    pub what: String,
    /// Version or path, or the reason for its absence.
    pub found: Result<String, String>,
    /// Debian package that contains a missing tool, if any.
    pub package: Option<&'static str>,
}

/// Looks for the kernel that `options` choose, and for every tool. May load the module `ip_vs`, as
/// a run would, but changes nothing else.
pub fn doctor(options: &Options) -> Vec<Finding> {
    let kernel = Kernel::choose(options.lane, options.kernel.as_deref());
    let package = matches!(kernel, Err(crate::Missing::Uml(_))).then_some("user-mode-linux");
    let kernel = Finding {
        what: "kernel".into(),
        found: kernel
            .map(|kernel| kernel.to_string())
            .map_err(|missing| missing.to_string()),
        package,
    };
    let path = sane_path(std::env::var_os("PATH").as_deref());
    let tools = TOOLS.map(|(tool, package)| {
        let found = std::env::split_paths(&path)
            .map(|dir| dir.join(tool))
            .find(|file| file.is_file());
        Finding {
            what: tool.into(),
            found: found
                .map(|file| file.display().to_string())
                .ok_or_else(|| "not found".into()),
            package: Some(package),
        }
    });
    std::iter::once(kernel).chain(tools).collect()
}
