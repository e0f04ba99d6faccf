//! Loads several kernel modules in one process. Otherwise, the kernel would start a process for
//! each module at its first use.
//!
//! This module only saves time. If it cannot load a kernel module, the kernel later loads the
//! module itself or reports the failure.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::program::Program;

/// Aliases of the kernel modules that rules of all modes usually need.
pub const MODULES: [&str; 7] = [
    "ipt_addrtype",
    "ipt_comment",
    "ipt_conntrack",
    "ipt_mark",
    "ipt_MASQUERADE",
    "ipt_REJECT",
    "ip6t_REJECT",
];

/// Time limit of the program that loads modules.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the kernel's module loader once, for the modules of a backend, the modules in [`MODULES`],
/// and the `needed` modules. Ignores errors, because the kernel reports a missing module when it is
/// used.
pub(crate) fn load(backend: &[&str], needed: &[&str]) {
    let Ok(loader) = fs::read_to_string("/proc/sys/kernel/modprobe") else {
        return;
    };
    let arguments = [&["-q", "-a"], backend, &MODULES, needed].concat();
    drop(Program::at(loader.trim_end().into()).run(&arguments, "", LIMIT));
}

/// Reports whether this kernel's `modules.dep` lists all these modules.
pub(crate) fn have_files(names: &[&str]) -> bool {
    let kernel = rustix::system::uname();
    let list = |release: &str| {
        let list = Path::new("/lib/modules").join(release).join("modules.dep");
        fs::read_to_string(list).unwrap_or_default()
    };
    let list = kernel.release().to_str().map(list).unwrap_or_default();
    let paths = list.lines().filter_map(|line| line.split_once(':'));
    let files: HashSet<&str> = paths
        .filter_map(|(path, _)| path.rsplit('/').next()?.split('.').next())
        .collect();
    names.iter().all(|name| files.contains(name))
}

/// Reports whether a module can still be loaded: it is not loaded, and this kernel has module
/// files.
pub(crate) fn is_loadable(name: &str) -> bool {
    let kernel = rustix::system::uname();
    let has_files = |release| Path::new("/lib/modules").join(release).exists();
    !Path::new("/sys/module").join(name).exists() && kernel.release().to_str().is_ok_and(has_files)
}
