//! Starts and stops a measured process, and reads its CPU time and memory from `/proc`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::{Signal, process};
use rustix::process::{Pid, kill_process};

/// A running program that writes its output to a file. Dropping this value kills the program.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: std::path::PathBuf,
}

impl Process {
    /// Starts a command, whose standard output and standard error go to the file `log`.
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

    /// Returns the end of the program's output so far, for error messages.
    pub(crate) fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(8)..);
        tail.unwrap_or_default().join("\n")
    }

    /// Returns the program's whole output so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Sends SIGTERM, and waits until the process has ended. Sends SIGKILL after 20 s.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let limit = Instant::now() + Duration::from_secs(20);
        while !self.is_over() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the CPU time in seconds of the process and of its children that have ended.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        Ok(process::cpu(self.id())?.as_secs_f64())
    }

    /// Returns a value of `/proc/PID/status` in KiB: `VmHWM` (peak memory) or `VmRSS` (resident
    /// memory).
    pub(crate) fn memory_kib(&self, field: &str) -> Result<u64> {
        Ok(process::status(self.id(), field)?)
    }

    /// Returns the number of voluntary context switches of all threads, which is the number of
    /// their wakeups.
    pub(crate) fn waits(&self) -> Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let text = fs::read_to_string(task?.path().join("status"))?;
            sum += process::field(&text, "voluntary_ctxt_switches").unwrap_or(0);
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

/// Returns the process IDs of all kernel threads: the children of process 2 (kthreadd).
pub(crate) fn kernel_threads() -> Result<BTreeSet<u32>> {
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has ended meanwhile has no `stat` file.
        let stat = process::stat(pid).unwrap_or_default();
        if stat.get(1).is_some_and(|parent| parent == "2") {
            threads.insert(pid);
        }
    }
    Ok(threads)
}

/// Returns how many processes and threads were started since boot, including kernel threads.
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
    fn started_processes_are_counted() {
        assert!(forks().unwrap() > 0);
    }
}
