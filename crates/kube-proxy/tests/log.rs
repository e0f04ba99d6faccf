//! Tests of the streams and formats of the program's log.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::process::Command;

/// Runs the program, which logs informational lines and a warning, and then fails. Returns its
/// standard output and its standard error.
fn said(flags: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kube-proxy"))
        .args(["--manifests=/nonexistent/manifests", "-v=1"])
        .args(["--ipvs-scheduler=wrr", "--oom-score-adj=1000"])
        .args(flags)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// Splits klog's header into severity, time, process and source line, as log parsers do.
fn header(line: &str) -> (char, Vec<&str>) {
    let (header, _) = line.split_once("] ").unwrap_or_else(|| panic!("{line}"));
    let severity = header.chars().next().unwrap();
    (severity, header.split_whitespace().collect())
}

#[test]
fn the_text_log_has_klogs_format_on_standard_error() {
    let (stdout, stderr) = said(&[]);
    assert_eq!(stdout, "");
    let mut severities = String::new();
    for line in stderr.lines() {
        let (severity, words) = header(line);
        let [date, time, process, place] = words.as_slice() else {
            panic!("{line}");
        };
        assert_eq!((date.len(), time.len()), (5, 15), "{line}");
        assert!(process.parse::<u32>().is_ok(), "{line}");
        assert!(place.contains(".rs:") && !place.contains('/'), "{line}");
        severities.push(severity);
    }
    assert!(stderr.contains("] FLAG: --v=\"1\"\n"), "{stderr}");
    let warning = "] \"--ipvs-scheduler has no effect: it is of ipvs mode\"\n";
    assert!(stderr.contains(warning), "{stderr}");
    for severity in ['I', 'W', 'E'] {
        assert!(severities.contains(severity), "{stderr}");
    }
    assert!(severities.ends_with('E'), "{stderr}");
}

#[test]
fn the_split_text_log_writes_info_to_standard_output() {
    let gate = "--feature-gates=LoggingAlphaOptions=true";
    let (stdout, stderr) = said(&[gate, "--log-text-split-stream"]);
    let of = |text: &str| -> Vec<char> { text.lines().map(|line| header(line).0).collect() };
    assert!(
        of(&stdout).iter().all(|severity| *severity == 'I'),
        "{stdout}"
    );
    assert!(stdout.contains("FLAG: --v="), "{stdout}");
    assert!(!of(&stderr).contains(&'I'), "{stderr}");
    assert!(
        of(&stderr).contains(&'W') && of(&stderr).contains(&'E'),
        "{stderr}"
    );
}

#[test]
fn the_split_json_log_writes_only_errors_to_standard_error() {
    let gate = "--feature-gates=LoggingAlphaOptions=true";
    let (stdout, stderr) = said(&[gate, "--logging-format=json", "--log-json-split-stream"]);
    let has_verbosity = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line.get("v").is_some()
    };
    assert!(
        stdout.lines().count() > 1 && stdout.lines().all(has_verbosity),
        "{stdout}"
    );
    assert!(stdout.contains("has no effect"), "{stdout}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!has_verbosity(&stderr), "{stderr}");
}

#[test]
fn the_plain_log_has_readable_lines() {
    let (stdout, stderr) = said(&["--logging-format=plain"]);
    assert_eq!(stdout, "");
    for part in [
        " INFO FLAG: --v=\"1\"\n",
        " WARN --ipvs-scheduler has",
        " ERROR ",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}
