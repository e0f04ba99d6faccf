//! A measured process, and its resource use from `/proc`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::Signal;
use rustix::process::{Pid, kill_process};

/// A running program. Its output goes to a file. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: std::path::PathBuf,
}

impl Process {
    /// Starts a command.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the end of the output.
    pub(crate) fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(8)..);
        tail.unwrap_or_default().join("\n")
    }

    /// Returns all output.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Sends SIGTERM and waits for the process to end. Sends SIGKILL after 20 s.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let limit = Instant::now() + Duration::from_secs(20);
        while !self.is_over() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the CPU time of the process and its ended children, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        cpu_s(self.id())
    }

    /// Returns a field of `/proc/PID/status` in KiB: `VmHWM`, `VmRSS`.
    pub(crate) fn memory_kib(&self, field: &str) -> Result<u64> {
        status_field(self.id(), field)
    }

    /// Returns the number of voluntary context switches of all threads. Each follows a wakeup.
    pub(crate) fn waits(&self) -> Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let text = fs::read_to_string(task?.path().join("status"))?;
            sum += field(&text, "voluntary_ctxt_switches").unwrap_or(0);
        }
        Ok(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the user and system time of a process and its ended children.
pub(crate) fn cpu_s(pid: u32) -> Result<f64> {
    // Ticks per second (USER_HZ). The value is 100 on every Linux platform.
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name. It may contain any character.
    let (_, rest) = text
        .rsplit_once(')')
        .with_context(|| format!("/proc/{pid}/stat is not understood"))?;
    let ticks: u32 = rest
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|ticks| ticks.parse::<u32>().ok())
        .sum();
    Ok(f64::from(ticks) / TICKS)
}

/// Returns a number of `/proc/PID/status`.
pub(crate) fn status_field(pid: u32, name: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&text, name).with_context(|| format!("/proc/{pid}/status has no {name}"))
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the kernel's threads: the children of process 2.
pub(crate) fn kernel_threads() -> Result<BTreeSet<u32>> {
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The process may have ended.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if parent == Some("2") {
            threads.insert(pid);
        }
    }
    Ok(threads)
}

/// Returns the number of processes and threads that this kernel has started, including the kernel's
/// own threads.
pub(crate) fn forks() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("processes "))
        .context("/proc/stat has no number of processes")?;
    Ok(line.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_use_of_a_process_are_read() {
        let own = std::process::id();
        assert!(status_field(own, "VmHWM").unwrap() > 100);
        assert!(cpu_s(own).unwrap() >= 0.0);
        assert!(forks().unwrap() > 0);
        let text = "Name:\tx\nVmHWM:\t  120 kB\nvoluntary_ctxt_switches:\t7\n";
        assert_eq!(field(text, "VmHWM"), Some(120));
        assert_eq!(field(text, "voluntary_ctxt_switches"), Some(7));
        assert_eq!(field(text, "nothing"), None);
    }
}
