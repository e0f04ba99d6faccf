//! Finds other kube-proxies that run in this network namespace.

use std::fs;
use std::path::Path;

/// Flags with which a process is no daemon.
const OTHER_USES: [&[u8]; 4] = [b"--cleanup", b"--init-only", b"--help", b"--version"];

/// Returns the daemons in this network namespace except this process, such as `kube-proxy[812]`.
/// Processes of other PID namespaces are not visible.
pub(crate) fn others() -> Vec<String> {
    let own = std::process::id();
    let network = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let here = network(Path::new("/proc/self"));
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let daemons = all.filter_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        if name.trim() != "kube-proxy" || number == own {
            return None;
        }
        let arguments = fs::read(process.path().join("cmdline")).ok()?;
        let is_one = is_daemon(&arguments) && network(&process.path()) == here;
        is_one.then(|| format!("kube-proxy[{number}]"))
    });
    daemons.collect()
}

/// Reports whether a kube-proxy with these arguments, each ended by a zero byte, is a daemon. Other
/// uses begin with a subcommand, or have a flag of [`OTHER_USES`].
fn is_daemon(arguments: &[u8]) -> bool {
    let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
    let mut given = arguments.split(|byte| *byte == 0).skip(1).peekable();
    given.peek().is_none_or(|first| first.starts_with(b"-"))
        && !given.any(|one| OTHER_USES.iter().any(|other| one.starts_with(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_recognised_by_its_arguments() {
        for (arguments, wanted) in [
            ("/usr/bin/kube-proxy\0", true),
            ("kube-proxy\0--proxy-mode=ipvs\0--config\0/etc/c\0", true),
            ("kube-proxy\0status\0-w\0", false),
            ("kube-proxy\0--proxy-mode=ipvs\0--cleanup\0", false),
            ("kube-proxy\0--init-only=true\0", false),
        ] {
            assert_eq!(is_daemon(arguments.as_bytes()), wanted, "{arguments:?}");
        }
    }
}
