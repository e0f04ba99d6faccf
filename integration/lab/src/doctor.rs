//! Reports what the lab finds here: the kernel that it would use, and the tools that worlds and
//! tests call.

use crate::job::sane_path;
use crate::lane::Kernel;
use crate::runner::Options;

/// A program that runs in the lab, and the Debian package that brings it.
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

/// Line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the tool or kernel.
    pub what: String,
    /// Version or path, or the reason why nothing was found.
    pub found: Result<String, String>,
    /// The Debian package to install when it is missing and a package brings it.
    pub package: Option<&'static str>,
}

/// Looks for the kernel that `options` choose and for every tool; nothing is changed (but `ip_vs`
/// may get loaded, as a run would load it).
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
