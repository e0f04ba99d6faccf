//! Kernel modules that are unavailable during a test.

use std::fs;
use std::io;
use std::process::Command;

const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// Guard that keeps the kernel from loading modules: `kernel.modprobe` has an invalid path.
/// Dropping the guard restores the saved path of the module loader.
#[derive(Debug)]
#[must_use]
pub struct Modprobe(String);

impl Modprobe {
    /// Makes `kernel.modprobe` invalid, so that the kernel loads no modules on demand.
    pub fn take_away() -> io::Result<Self> {
        let before = fs::read_to_string(MODPROBE)?;
        fs::write(MODPROBE, "/nonexistent")?;
        Ok(Self(before))
    }
}

impl Drop for Modprobe {
    fn drop(&mut self) {
        let _ = fs::write(MODPROBE, self.0.trim_end());
    }
}

/// Returns true if the tests run in a VM of the lab whose kernel has `name` as a loadable module.
pub fn is_module(name: &str) -> bool {
    let is_guest = std::env::var_os("LAB_LANE").is_none_or(|lane| lane != "host");
    let file = || {
        Command::new("modinfo")
            .args(["-F", "filename", name])
            .output()
    };
    is_guest && file().is_ok_and(|output| output.stdout.starts_with(b"/"))
}
