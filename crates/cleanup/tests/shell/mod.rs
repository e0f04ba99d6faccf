//! Runs shell scripts in the network namespace of the calling thread.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Returns the iptables backend of the lab's kernel, from `LAB_LANE`. Scripts use it as `$backend`.
pub(crate) fn backend() -> &'static str {
    match std::env::var("LAB_LANE").as_deref() {
        Ok("B") => "nft",
        _ => "legacy",
    }
}

/// Runs a script with `input` on its standard input. Returns its output.
pub(crate) fn feed_sh(script: &str, input: &str) -> String {
    let mut child = Command::new("sh")
        .args(["-ec", script])
        .env("backend", backend())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Ignores the error, because the script may end before it has read all its input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8(output.stdout).unwrap()
}
