//! Runs programs to their end, and includes their output in errors.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lab::{Place, Running};
use serde_json::Value;

use crate::binaries::Binaries;

/// Runs `kubectl` in a place, as the cluster's administrator.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    place: Place,
    program: String,
}

/// Credentials of kubeadm that need no role binding.
pub(crate) const ADMIN: &str = "/etc/kubernetes/super-admin.conf";
/// Interval between two checks of an awaited state.
const GLANCE: Duration = Duration::from_secs(1);

impl Kubectl {
    pub(crate) fn new(place: &Place, binaries: &Binaries) -> Self {
        Self {
            place: place.clone(),
            program: binaries.program("kubectl").display().to_string(),
        }
    }

    /// Returns the output of a command that must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        let own = [self.program.as_str(), "--kubeconfig", ADMIN];
        let argv = own.iter().chain(arguments);
        self.place
            .read(argv)
            .with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    /// Creates the objects of a YAML text. Skips validation, because the text is our own.
    pub(crate) fn create(&self, folder: &Path, name: &str, yaml: &str) -> Result<()> {
        let file = folder.join(name);
        std::fs::write(&file, yaml).with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.display().to_string();
        self.run(&["create", "--validate=false", "-f", &file])?;
        Ok(())
    }

    /// Returns an object or a list as JSON.
    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("kubectl get says no JSON")
    }
}

/// Waits until a condition holds. A failed check counts as false; the timeout error contains its
/// reason.
pub(crate) fn until(
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
        if started.elapsed() > limit {
            return match found {
                Err(error) => Err(error.context(format!("{what}: not so within {limit:.0?}"))),
                Ok(_) => bail!("{what}: not so within {limit:.0?}"),
            };
        }
        std::thread::sleep(GLANCE);
    }
}

/// Starts a program in a place. Its output goes to a file.
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
