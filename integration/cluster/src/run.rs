//! Runs `kubectl` until it exits, and includes its output in errors.

use std::path::Path;

use anyhow::{Context as _, Result};
use lab::Place;
use serde_json::Value;

use crate::binaries::Binaries;
use crate::programs::Programs;

/// Runner of `kubectl` on a node, as the cluster's administrator.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    place: Place,
    program: String,
    /// Programs that must keep running during each wait.
    pub(crate) programs: Programs,
}

/// Path of kubeadm's admin kubeconfig, which works without a ClusterRoleBinding.
pub(crate) const ADMIN: &str = "/etc/kubernetes/super-admin.conf";

impl Kubectl {
    pub(crate) fn new(place: &Place, binaries: &Binaries) -> Self {
        Self {
            place: place.clone(),
            program: binaries.program("kubectl").display().to_string(),
            programs: Programs::default(),
        }
    }

    /// Runs `kubectl` with these arguments, and returns its standard output. Fails if `kubectl`
    /// fails.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        let own = [self.program.as_str(), "--kubeconfig", ADMIN];
        let argv = own.iter().chain(arguments);
        self.place
            .read(argv)
            .with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    /// Creates the objects of a YAML text, which it writes to the file `name` in `folder`. Skips
    /// kubectl's validation, because this program wrote the text.
    pub(crate) fn create(&self, folder: &Path, name: &str, yaml: &str) -> Result<()> {
        let file = folder.join(name);
        std::fs::write(&file, yaml).with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.display().to_string();
        self.run(&["create", "--validate=false", "-f", &file])?;
        Ok(())
    }

    /// Runs `kubectl get -o json`, and returns the object or list.
    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("kubectl get says no JSON")
    }
}
