//! Tests the cleanup with iptables programs that do not print their version. The cleanup must
//! report that their rules are unknown, and not that they have no rules.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use cleanup::{ServingMode, disarm_ended, foresee_beside};
use footprint::{Footprint, ServedBy};

const MODE: &Footprint = &Footprint::none("nftables");
const ENDED: &Footprint = &Footprint {
    served_by: ServedBy::Process,
    ..Footprint::none("userspace")
};

/// Runs the test in a child process that mounts another directory over `/usr/sbin`, because the
/// cleanup also searches `/usr/sbin` for programs.
#[test]
fn state_that_a_failing_program_cannot_read_is_reported() {
    const IS_INSIDE: &str = "WITH_PROGRAMS_THAT_FAIL";
    if std::env::var_os(IS_INSIDE).is_none() {
        let folder = std::env::temp_dir().join(format!("programs-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("iptables-save");
        fs::write(&program, "#!/bin/sh\necho 'out of order' >&2\nexit 1\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let own = std::env::current_exe().unwrap();
        let inside = |command: &str| {
            let mut unshare = Command::new("unshare");
            unshare.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
            unshare.arg(format!("mount --bind \"$0\" /usr/sbin; {command}"));
            unshare.arg(&folder).arg(&own).env("PATH", "/usr/bin:/bin");
            unshare
                .env(IS_INSIDE, "1")
                .status()
                .is_ok_and(|status| status.success())
        };
        if inside("true") {
            assert!(inside(
                "exec \"$1\" --exact state_that_a_failing_program_cannot_read_is_reported"
            ));
        } else {
            eprintln!("there are no user namespaces here");
        }
        fs::remove_dir_all(folder).unwrap();
        return;
    }
    let serving = ServingMode {
        mode: MODE,
        iptables: None,
    };
    for cleanup in [
        foresee_beside(&[MODE], &serving, &[]),
        disarm_ended(&[ENDED], "nftables"),
    ] {
        let mut left = cleanup.left.iter();
        let is_told = left.any(|line| {
            line.starts_with("the iptables rules cannot be read") && line.contains("out of order")
        });
        assert!(is_told, "{:?}", cleanup.left);
    }
}
