//! Runs the programs of a cluster, and makes each wait fail if a program has ended.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lab::{Place, Running};

/// Pause between two checks of an awaited condition, and of the running programs.
const GLANCE: Duration = Duration::from_secs(1);
/// Number of output lines that an error quotes if a program has ended.
const LINES: usize = 15;

/// Running programs of the control plane and of the nodes. Dropping the last clone kills the
/// programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Programs(Arc<Mutex<Vec<Program>>>);

#[derive(Debug)]
struct Program {
    name: String,
    /// Log file of the program, or `None` if [`Running`] collects the output.
    log: Option<PathBuf>,
    running: Running,
}

impl Programs {
    /// Adds a running program whose output [`Running`] collects.
    pub(crate) fn add(&self, name: &str, running: Running) {
        self.push(name, None, running);
    }

    /// Starts a program on a node or host, with its output in a file, and adds it.
    pub(crate) fn start(
        &self,
        place: &Place,
        name: &str,
        log: &Path,
        argv: &[String],
    ) -> Result<()> {
        let running = start(place, log, argv)?;
        self.push(name, Some(log.to_owned()), running);
        Ok(())
    }

    fn push(&self, name: &str, log: Option<PathBuf>, running: Running) {
        let name = name.to_owned();
        let program = Program { name, log, running };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(program);
    }

    /// Fails if a program has ended, and quotes the last lines of its output.
    fn check(&self) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for program in all.iter_mut() {
            let Some(status) = program.running.status() else {
                continue;
            };
            let mut text = program.running.said();
            if let Some(log) = &program.log {
                text += &std::fs::read_to_string(log).unwrap_or_default();
            }
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(LINES)..);
            let last = last.unwrap_or_default().join("\n");
            bail!("{} has ended ({status}):\n{last}", program.name);
        }
        Ok(())
    }

    /// Waits until a condition holds. Fails immediately if a program has ended. If the condition
    /// returns an error, checks the condition again later. On a timeout, fails with the condition's
    /// last error.
    pub(crate) fn until(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut() -> Result<bool>,
    ) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let found = holds();
            if matches!(found, Ok(true)) {
                return Ok(started.elapsed());
            }
            self.check().context(what.to_owned())?;
            if started.elapsed() > limit {
                return match found {
                    Err(error) => Err(error.context(format!("{what}: not so within {limit:.0?}"))),
                    Ok(_) => bail!("{what}: not so within {limit:.0?}"),
                };
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// Starts a program on a node or host, with its output in the file `log`.
pub(crate) fn start(place: &Place, log: &Path, argv: &[String]) -> Result<Running> {
    let mut whole = vec![
        "sh".to_owned(),
        "-c".to_owned(),
        "log=$1; shift; exec \"$@\" >\"$log\" 2>&1".to_owned(),
        "sh".to_owned(),
        log.display().to_string(),
    ];
    whole.extend_from_slice(argv);
    Ok(place.spawn(whole)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_wait_fails_with_the_last_output_of_an_exited_program() {
        let programs = Programs::default();
        let mut command = Command::new("sleep");
        command.arg("60");
        programs.add("etcd", Running::start(command).unwrap());
        let mut command = Command::new("sh");
        // The program writes only to stdout. If it also wrote to stderr, the order of the lines of
        // both streams would be lost.
        command.args(["-c", "seq 100; echo no certificate; exit 3"]);
        programs.add("kube-apiserver", Running::start(command).unwrap());
        let started = Instant::now();
        let limit = Duration::from_mins(4);
        let error = programs.until("the API server is ready", limit, || Ok(false));
        let error = format!("{:#}", error.unwrap_err());
        assert!(started.elapsed() < Duration::from_secs(30));
        for part in [
            "the API server is ready: kube-apiserver has ended (exit status: 3)",
            "no certificate",
            "\n99\n",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("\n80\n"), "{error}");
    }
}
