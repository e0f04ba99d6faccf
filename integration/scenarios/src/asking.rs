//! Runs `kube-proxy` subcommands on node1, as an operator would.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::{Cluster, kube_proxy};

/// Runs a `kube-proxy` subcommand on node1. Returns its exit status, and its standard output
/// followed by its standard error.
///
/// # Errors
///
/// Fails if the program cannot start or is killed by a signal.
pub fn ask(c: &Cluster, arguments: &[&str]) -> Result<(i32, String)> {
    let program = kube_proxy()?;
    let mut line = vec![program.to_str().context("a path that is text")?];
    line.extend(arguments);
    let output = c.node1.run(line)?;
    let code = output.status.code().context("it was killed")?;
    Ok((code, output.stdout + &output.stderr))
}

/// Runs a `kube-proxy` subcommand with `-o json`. Returns its exit status and the parsed JSON.
///
/// # Errors
///
/// Fails like [`ask`], or if the output is not JSON.
pub fn ask_json(c: &Cluster, arguments: &[&str]) -> Result<(i32, Value)> {
    let (code, text) = ask(c, &[arguments, &["-o", "json"]].concat())?;
    let value = serde_json::from_str(&text).with_context(|| text.clone())?;
    Ok((code, value))
}
