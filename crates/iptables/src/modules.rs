//! Kernel modules, loaded together: the kernel would start a process for each as it is first needed.
//!
//! Nothing relies on it. What is not loaded here, for want of a module, of the right to or of its file, the kernel still loads by
//! itself, or says that it cannot.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::program::Program;

/// Time for it.
const LIMIT: Duration = Duration::from_secs(30);

/// Loads modules by their names or aliases, in one process of the program that the kernel starts, too. That some cannot be loaded
/// is no error.
pub(crate) fn load<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> io::Result<()> {
    let loader = fs::read_to_string("/proc/sys/kernel/modprobe")?;
    let loader = Program::at(loader.trim_end().into());
    let mut arguments = vec!["-q", "-a"];
    arguments.extend(names);
    loader.run(&arguments, "", LIMIT).map(drop)
}

/// Whether a module may be loaded: it is not there, and files of modules for this kernel are.
pub(crate) fn is_loadable(name: &str) -> bool {
    let release = rustix::system::uname();
    let is_there = Path::new("/sys/module").join(name).exists();
    !is_there
        && release
            .release()
            .to_str()
            .is_ok_and(|release| Path::new("/lib/modules").join(release).exists())
}
