//! The kernel settings that IPVS needs to serve Services, as upstream sets them.
//!
//! Written only where they differ, so that a container which may not write /proc/sys works on a node that is set up already.
//! Never undone: others may rely on them by then.

use std::fs;
use std::path::{Path, PathBuf};

/// One setting.
struct Row {
    /// Below /proc/sys.
    key: &'static str,
    value: &'static str,
    applies: fn(&Facts) -> bool,
}

/// What decides whether a setting applies.
struct Facts {
    /// Major and minor version of the kernel.
    kernel: (u32, u32),
    strict_arp: bool,
}

/// In the order they are written. Why: see the comment of each.
const ROWS: [Row; 7] = [
    // Masquerading of IPVS connections is done by conntrack.
    Row {
        key: "net/ipv4/vs/conntrack",
        value: "1",
        applies: |_| true,
    },
    // Before 5.9, a reused source port was rescheduled with one second of delay (k/k#70747); from 5.9 on the kernel's
    // own default is right (k/k#93297). Before 4.1 there is no such setting.
    Row {
        key: "net/ipv4/vs/conn_reuse_mode",
        value: "0",
        applies: |facts| (4, 1) <= facts.kernel && facts.kernel < (5, 9),
    },
    // Connections to a destination that was removed end at once, instead of timing out.
    Row {
        key: "net/ipv4/vs/expire_nodest_conn",
        value: "1",
        applies: |_| true,
    },
    // Session affinity lets go of a destination that drains (k/k#71809).
    Row {
        key: "net/ipv4/vs/expire_quiescent_template",
        value: "1",
        applies: |_| true,
    },
    Row {
        key: "net/ipv4/ip_forward",
        value: "1",
        applies: |_| true,
    },
    // Answer ARP only for addresses of the interface that is asked: service addresses belong to every node.
    Row {
        key: "net/ipv4/conf/all/arp_ignore",
        value: "1",
        applies: |facts| facts.strict_arp,
    },
    Row {
        key: "net/ipv4/conf/all/arp_announce",
        value: "2",
        applies: |facts| facts.strict_arp,
    },
];

/// A setting that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot set sysctl {key} to {value} (it is {found}): {source}; {advice}")]
pub(crate) struct SysctlError {
    key: String,
    value: &'static str,
    found: String,
    advice: &'static str,
    source: std::io::Error,
}

/// Brings every setting that applies to its value; returns those that were written. `ip_vs` must be loaded.
pub(crate) fn apply(strict_arp: bool) -> Result<Vec<&'static str>, SysctlError> {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    apply_below(
        Path::new("/proc/sys"),
        &Facts {
            kernel: version(&release),
            strict_arp,
        },
    )
}

fn apply_below(root: &Path, facts: &Facts) -> Result<Vec<&'static str>, SysctlError> {
    let mut written = Vec::new();
    for row in ROWS.iter().filter(|row| (row.applies)(facts)) {
        let path: PathBuf = root.join(row.key);
        let found = fs::read_to_string(&path).map(|text| text.trim().to_owned());
        if found.as_deref().is_ok_and(|found| found == row.value) {
            continue;
        }
        fs::write(&path, row.value).map_err(|source| SysctlError {
            key: row.key.replace('/', "."),
            value: row.value,
            found: found.unwrap_or_else(|_| "unreadable".to_owned()),
            advice: match source.kind() {
                std::io::ErrorKind::NotFound => {
                    "the kernel lacks it: is ip_vs loaded (modprobe ip_vs)?"
                }
                _ => "set it on the node (sysctl -w), or let this process write /proc/sys",
            },
            source,
        })?;
        written.push(row.key);
    }
    Ok(written)
}

/// `6.1.0-13-amd64` is (6, 1); what cannot be read is taken for new.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-13-amd64"), (6, 1));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version("odd"), (u32::MAX, 0));
    }

    fn fake_proc(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("sysctl-{}-{name}", std::process::id()));
        for row in &ROWS {
            let path = root.join(row.key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "0\n").unwrap();
        }
        root
    }

    #[test]
    fn only_what_differs_is_written() {
        let root = fake_proc("differs");
        fs::write(root.join("net/ipv4/ip_forward"), "1\n").unwrap();
        let facts = Facts {
            kernel: (6, 1),
            strict_arp: false,
        };
        let written = apply_below(&root, &facts).unwrap();
        assert_eq!(
            written,
            [
                "net/ipv4/vs/conntrack",
                "net/ipv4/vs/expire_nodest_conn",
                "net/ipv4/vs/expire_quiescent_template"
            ]
        );
        assert_eq!(apply_below(&root, &facts).unwrap(), Vec::<&str>::new());
        let strict = Facts {
            kernel: (5, 4),
            strict_arp: true,
        };
        fs::write(root.join("net/ipv4/vs/conn_reuse_mode"), "1\n").unwrap();
        assert_eq!(apply_below(&root, &strict).unwrap().len(), 3);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_error_names_the_setting_and_the_next_step() {
        let root = fake_proc("missing");
        fs::remove_dir_all(root.join("net/ipv4/vs")).unwrap();
        let error = apply_below(
            &root,
            &Facts {
                kernel: (6, 1),
                strict_arp: false,
            },
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("net.ipv4.vs.conntrack") && error.contains("modprobe ip_vs"),
            "{error}"
        );
        fs::remove_dir_all(root).unwrap();
    }
}
