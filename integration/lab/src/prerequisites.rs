//! Reports whether a machine can run the lab: the kernel that a run would use, and the required
//! programs.

use crate::job::sane_path;
use crate::lane::Kernel;
use crate::runner::Options;

/// Programs that the lab or its tests run, each with its Debian package.
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

/// Result for one required program or for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the program, or of the kernel.
    pub what: String,
    /// Version or path, or the reason why the program or kernel is missing.
    pub found: Result<String, String>,
    /// Debian package to install if the program is missing.
    pub package: Option<&'static str>,
}

/// Reports the kernel that `options` choose, and each required program. May load the module
/// `ip_vs`, like a run of the lab, but changes nothing else.
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
