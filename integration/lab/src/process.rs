//! Reads the CPU time and other resources of a process from `/proc`.

use std::fs;
use std::io;
use std::time::Duration;

/// Length of a clock tick in `/proc` (`USER_HZ` is 100 on the platforms that the tests support).
const TICK: Duration = Duration::from_millis(10);

/// Returns the CPU time of a process, including its children that have ended and been waited for.
///
/// # Errors
/// Returns an error if the process does not exist.
pub fn cpu(pid: u32) -> io::Result<Duration> {
    let times = stat(pid)?.into_iter().skip(11).take(4);
    Ok(TICK * times.filter_map(|ticks| ticks.parse::<u32>().ok()).sum())
}

/// Returns the fields of `/proc/PID/stat` that follow the program's name, beginning with the
/// process state. The name may contain spaces and parentheses.
///
/// # Errors
/// Returns an error if the process does not exist.
pub fn stat(pid: u32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = text.rsplit(')').next().unwrap_or_default();
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

/// Returns the number in a line of `/proc/PID/status`, such as `VmHWM` and `VmRSS` (in KiB) or
/// `Threads`.
///
/// # Errors
/// Returns an error if the process does not exist, or if the file has no such line.
pub fn status(pid: u32, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&text, name).ok_or_else(|| io::Error::other(format!("/proc/{pid}/status has no {name}")))
}

/// Returns the number in the line `name` of a `/proc/PID/status` file, or `None` without this line.
pub fn field(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_use_of_a_process_is_read_from_proc() {
        let own = std::process::id();
        assert!(status(own, "VmHWM").unwrap() > 100);
        assert!(cpu(own).unwrap() < Duration::from_mins(10));
        let parent = std::os::unix::process::parent_id().to_string();
        assert_eq!(stat(own).unwrap()[1], parent);
        let text = "Name:\tx\nVmHWM:\t  120 kB\nvoluntary_ctxt_switches:\t7\n";
        assert_eq!(field(text, "VmHWM"), Some(120));
        assert_eq!(field(text, "voluntary_ctxt_switches"), Some(7));
        assert_eq!(field(text, "nothing"), None);
    }
}
