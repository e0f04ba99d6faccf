//! Facts about the machine from which the daemon computes kernel settings.

use std::fs;
use std::thread::available_parallelism;

/// Facts about a machine: its kernel and its CPUs.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    /// Number of online CPUs of the machine, even if this process may use fewer.
    pub cpus: u64,
}

impl Machine {
    /// Returns the facts about this machine.
    pub fn this() -> Self {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        Self {
            kernel: version(&release),
            cpus: online_cpus(),
        }
    }
}

fn online_cpus() -> u64 {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    listed
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(|| available_parallelism().map_or(1, |usable| usable.get() as u64))
}

/// Returns the number of CPUs in a list of ranges, such as `0-3,7`. Returns `None` if the list is
/// invalid.
fn count(list: &str) -> Option<u64> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

/// Parses major and minor version of a kernel release: `6.1.0-13-amd64` is (6, 1). An unknown
/// format counts as newer than every kernel.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_parsed() {
        assert_eq!(version("6.1.0-13-amd64"), (6, 1));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version("odd"), (u32::MAX, 0));
    }

    #[test]
    fn cpus_in_a_list_of_ranges_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,7"), Some(5));
        assert_eq!(count("0-3,"), None);
        assert_eq!(count("3-0"), None);
    }
}
