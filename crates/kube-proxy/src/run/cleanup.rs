//! `--cleanup`: removes the entries of a kube-proxy from this node, and prints the outcome.

use std::fmt::Write as _;
use std::process::ExitCode;

use ::cleanup::Cleanup;
use anyhow::Result;
use modes::footprints;
use view::{print, print_error};

use crate::config::options::Options;
use crate::node::kernel_settings;

/// Removes the entries of all modes from the kernel, in both IP families.
///
/// - Standard output lists the removed entries.
/// - Standard error lists the remaining entries, with the next step. The exit status is 1 if
///   entries remain.
/// - Kernel settings stay, as in upstream. The output lists the settings that decide which packets
///   the node accepts.
///
/// # Errors
///
/// Fails if the cleanup thread panics, or if standard output cannot be written. A remaining entry is
/// not an error.
pub async fn cleanup(options: &Options) -> Result<ExitCode> {
    let excluded = options.modes.shared.exclude_cidrs.clone();
    // Uses a blocking thread, because the cleanup waits for the kernel and iptables. The process
    // has no other work.
    let cleanup =
        tokio::task::spawn_blocking(move || ::cleanup::clean_up(footprints::ALL, &excluded))
            .await?;
    let mut text = told(&cleanup);
    for line in kernel_settings::leftovers() {
        let _ = writeln!(text, "stays    {line}");
    }
    let printed = print(&text);
    for line in &cleanup.left {
        print_error(format_args!("kube-proxy: left: {line}"));
    }
    printed?;
    Ok(if cleanup.left.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn told(cleanup: &Cleanup) -> String {
    let mut text = String::new();
    for line in &cleanup.removed {
        let _ = writeln!(text, "removed  {line}");
    }
    for line in &cleanup.absent {
        let _ = writeln!(text, "nothing  in {line}");
    }
    if cleanup.removed.is_empty() && cleanup.left.is_empty() {
        text.push_str("nothing of a kube-proxy was here\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleanup_reports_absent_and_removed_parts_separately() {
        let mut cleanup = Cleanup {
            absent: vec!["IPVS: this kernel has not loaded it".to_owned()],
            ..Cleanup::default()
        };
        assert_eq!(
            told(&cleanup),
            "nothing  in IPVS: this kernel has not loaded it\nnothing of a kube-proxy was here\n"
        );
        cleanup.removed.push("IPv4: 17 ipsets".to_owned());
        assert_eq!(
            told(&cleanup),
            "removed  IPv4: 17 ipsets\nnothing  in IPVS: this kernel has not loaded it\n"
        );
    }
}
