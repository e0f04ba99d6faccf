//! Runs the host's iptables backend if a user calls this program as `iptables`.
//!
//! In the image, `iptables`, `ip6tables` and their `-save` and `-restore` variants are links to
//! kube-proxy. So a command in the pod shows the same rules that kubelet and kube-proxy use.
//!
//! - This program chooses the backend as the daemon does.
//! - This program needs no shell, and writes nothing to the image. (In Kubernetes' own images, a
//!   wrapper script rewrites the links at its first call.)

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Error};
use iptables::{Backend, Iptables};

use crate::process::capabilities;

/// Executes the host's iptables if this program was called as `iptables`, `ip6tables`, or one of
/// their `-save` and `-restore` variants. The first of `arguments` is that name. Returns `Ok` for
/// any other name.
///
/// # Errors
///
/// Fails if the backend cannot be chosen, or if its program cannot be started.
pub fn stand_in(mut arguments: impl Iterator<Item = OsString>) -> Result<(), Error> {
    let called = arguments.next().unwrap_or_default();
    let Some((stem, verb)) = split(&called) else {
        return Ok(());
    };
    // Passes on the capabilities that a user other than root needs to read rules. If this fails,
    // iptables reports its own error.
    let _ = capabilities::pass_on();
    let backend = Iptables::look(None)?.backend();
    let program = named(stem, verb, backend);
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {program}"))
}

/// Splits a program's path: `/usr/sbin/iptables-save` becomes `iptables` and `-save`.
fn split(called: &OsStr) -> Option<(&'static str, &'static str)> {
    let name = Path::new(called).file_name()?.to_str()?;
    let (stem, verb) = if let Some(verb) = name.strip_prefix("iptables") {
        ("iptables", verb)
    } else {
        ("ip6tables", name.strip_prefix("ip6tables")?)
    };
    ["", "-save", "-restore"]
        .into_iter()
        .find(|one| *one == verb)
        .map(|verb| (stem, verb))
}

fn named(stem: &str, verb: &str, backend: Backend) -> String {
    format!("{stem}-{backend}{verb}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iptables_commands_without_a_backend_in_their_name_run_the_chosen_backend() {
        for (called, expected) in [
            ("iptables", Some("iptables-nft")),
            ("/usr/sbin/iptables-save", Some("iptables-nft-save")),
            ("./ip6tables-restore", Some("ip6tables-nft-restore")),
            ("ip6tables", Some("ip6tables-nft")),
            ("/usr/local/bin/kube-proxy", None),
            ("iptables-nft-save", None),
            ("iptables-legacy", None),
            ("", None),
        ] {
            let found = split(OsStr::new(called));
            let found = found.map(|(stem, verb)| named(stem, verb, Backend::Nft));
            assert_eq!(found.as_deref(), expected, "{called}");
        }
    }
}
