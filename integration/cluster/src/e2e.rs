//! Runs Kubernetes' end-to-end tests (`e2e.test`) and reads their results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Results of the specs that were chosen for a run of `e2e.test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) passed: Vec<String>,
    /// Failed specs, each with the first line of the reason.
    pub(crate) failed: Vec<(String, String)>,
    /// Skipped specs, grouped by the reason that each spec gave.
    pub(crate) skipped: BTreeMap<String, Vec<String>>,
    /// Specs with an unknown result, because they were still running at the time limit.
    pub(crate) cut_off: Vec<String>,
    /// Number of chosen specs that had not started at the time limit.
    pub(crate) not_begun: usize,
}

/// Pattern of the specs to run: the network suite.
pub(crate) const FOCUS: &str = r"\[sig-network\]";
/// Pattern of the specs to skip: specs that take much time, and specs that need a cloud, external
/// hosts, network policies or a DNS server. The lab's VM lacks all of these.
///
/// Specs with a `Feature` label are skipped unless the feature's name begins with `IPv`
/// (dual-stack). The pattern compares the letters of `IPv` one by one, because ginkgo's regular
/// expressions have no negative lookahead.
pub(crate) const SKIP: &str = r"\[Serial\]|\[Disruptive\]|\[Slow\]|\[Alpha\]|\[Feature:([^I]|I[^P]|IP[^v])|\[FeatureGate:|LoadBalancer|Ingress|Internet|DNS|ExternalName|NetworkPolicy|\[Driver:|\[sig-network\] Gateway";

/// Returns the command line of `e2e.test`. After `limit`, `e2e.test` starts no further spec, and
/// reports the finished specs.
pub(crate) fn command(
    program: &Path,
    kubeconfig: &str,
    report: &Path,
    limit: Duration,
    focus: &str,
    skip: &str,
) -> Vec<String> {
    let mut argv = vec![program.display().to_string()];
    argv.extend([
        format!("--kubeconfig={kubeconfig}"),
        "--provider=skeleton".to_owned(),
        format!("--report-dir={}", report.display()),
        format!("--ginkgo.focus={focus}"),
        format!("--ginkgo.skip={skip}"),
        "--ginkgo.no-color".to_owned(),
        format!("--ginkgo.timeout={}s", limit.as_secs()),
        "--disable-log-dump".to_owned(),
        "--allowed-not-ready-nodes=0".to_owned(),
    ]);
    argv
}

/// Reads the results from the JUnit report of `e2e.test`, and the number of chosen specs from its
/// log. If the log lacks this number, all chosen specs count as started. A failure then shows only
/// in the exit status of `e2e.test`.
///
/// # Errors
/// Fails if one of the files does not exist.
pub(crate) fn read(report: &Path, log: &Path) -> Result<Results> {
    let read = |file: &Path| {
        std::fs::read_to_string(file)
            .with_context(|| format!("e2e.test has left no {}; see e2e.log", file.display()))
    };
    let chosen = chosen(&read(log)?).unwrap_or(0);
    Ok(parse(&read(&report.join("junit_01.xml"))?, chosen))
}

/// Parses the number of chosen specs from `Will run N of M specs`.
fn chosen(log: &str) -> Option<usize> {
    let (_, rest) = log.split_once("Will run ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Parses the `testcase` elements of ginkgo's report. The report marks two kinds of specs as
/// skipped without a reason:
///
/// - specs that were not chosen: the results exclude them;
/// - chosen specs that did not start: the results contain only their number.
fn parse(text: &str, chosen: usize) -> Results {
    let mut results = Results::default();
    for case in text.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let name = attribute(case, "name").unwrap_or_default();
        // Skips the suite's setup and teardown, whose names lack the prefix `[It]`.
        if !name.starts_with("[It]") {
            continue;
        }
        let name = name.trim_start_matches("[It] ").to_owned();
        // The reason is the attribute `message` or, if this is missing, the first line of the
        // element's text.
        let reason = |element: &str| {
            let (_, rest) = case.split_once(&format!("<{element}"))?;
            let message = attribute(rest, "message").unwrap_or_default();
            let (_, text) = rest.split_once('>')?;
            let text = text.split('<').next()?;
            Some(first_line(&if message.trim().is_empty() {
                unescaped(text)
            } else {
                message
            }))
        };
        match attribute(case, "status").as_deref() {
            Some("passed") => results.passed.push(name),
            Some("skipped" | "pending") => {
                // The spec's own reason has the form `skipped - REASON`.
                let reason = reason("skipped").unwrap_or_default();
                if let Some(reason) = reason.strip_prefix("skipped - ") {
                    results
                        .skipped
                        .entry(reason.to_owned())
                        .or_default()
                        .push(name);
                }
            }
            _ => {
                let why = reason("failure").or_else(|| reason("error"));
                let why = why.unwrap_or_default();
                // ginkgo writes this message when the whole suite exceeds its time limit. A timeout
                // of one spec or node has another message.
                if why.contains("A suite timeout occurred") {
                    results.cut_off.push(name);
                } else {
                    results.failed.push((name, why));
                }
            }
        }
    }
    let begun = results.passed.len() + results.failed.len() + results.cut_off.len();
    results.not_begun = chosen.saturating_sub(begun + results.skipped());
    results
}

/// Returns the unescaped value of an attribute in an element's start tag.
fn attribute(element: &str, name: &str) -> Option<String> {
    let head = element.split('>').next()?;
    let (_, rest) = head.split_once(&format!("{name}=\""))?;
    Some(unescaped(rest.split('"').next()?))
}

fn unescaped(text: &str) -> String {
    let escapes = [
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&apos;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#xA;", "\n"),
        ("&#x9;", "\t"),
        ("&amp;", "&"),
    ];
    escapes
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn first_line(text: &str) -> String {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim()
        .to_owned()
}

impl Results {
    fn skipped(&self) -> usize {
        self.skipped.values().map(Vec::len).sum()
    }

    /// Returns true if every chosen spec has finished.
    pub(crate) fn is_complete(&self) -> bool {
        self.cut_off.is_empty() && self.not_begun == 0
    }

    /// Returns a summary: the specs with each result, the reasons of skipped and failed specs, and
    /// the number of specs with each result.
    pub(crate) fn account(&self, took: Duration) -> String {
        let mut text = String::new();
        for name in &self.passed {
            let _ = writeln!(text, "passed   {name}");
        }
        for (reason, names) in &self.skipped {
            let _ = writeln!(text, "skipped  {} because: {reason}", names.len());
            for name in names {
                let _ = writeln!(text, "           {name}");
            }
        }
        for (name, why) in &self.failed {
            let _ = writeln!(text, "FAILED   {name}\n           {why}");
        }
        for name in &self.cut_off {
            let _ = writeln!(text, "cut off  {name}");
        }
        let _ = writeln!(
            text,
            "{} passed, {} failed, {} skipped, in {took:.0?}",
            self.passed.len(),
            self.failed.len(),
            self.skipped()
        );
        if !self.is_complete() {
            let _ = writeln!(
                text,
                "the time was up: {} cut off, {} not begun; MINUTES= gives more",
                self.cut_off.len(),
                self.not_begun
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JUnit report in the format of ginkgo 2.
    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
  <testsuites tests="5" disabled="2" errors="0" failures="1" time="12.5">
      <testsuite name="Kubernetes e2e suite" package="/x" tests="5">
          <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.9"></testcase>
          <testcase name="[It] [sig-network] Services should serve a basic endpoint &lt;from&gt; pods" classname="Kubernetes e2e suite" status="passed" time="6.2">
              <system-err>&gt; Enter</system-err>
          </testcase>
          <testcase name="[It] [sig-network] Services needs a cloud" classname="Kubernetes e2e suite" status="skipped" time="0.1">
              <skipped message="skipped - Only supported for providers [gce] (not skeleton)"></skipped>
          </testcase>
          <testcase name="[It] [sig-storage] Volumes" classname="Kubernetes e2e suite" status="skipped" time="0">
              <skipped message="skipped"></skipped>
          </testcase>
          <testcase name="[It] [sig-network] Services is broken" classname="Kubernetes e2e suite" status="failed" time="3">
              <failure message="timed out &#34;waiting&#34;&#xA;second line" type="failed">at x.go:3</failure>
          </testcase>
          <testcase name="[It] [sig-network] Services has no time" classname="Kubernetes e2e suite" status="timedout" time="64">
              <failure message="" type="timedout">[TIMEDOUT] A suite timeout occurred&#xA;In [It] at: x.go:3</failure>
          </testcase>
          <testcase name="[It] [sig-network] Services is slow" classname="Kubernetes e2e suite" status="timedout" time="64">
              <failure message="" type="timedout">[TIMEDOUT] A spec timeout occurred&#xA;In [It] at: x.go:3</failure>
          </testcase>
          <testcase name="[It] [sig-network] Services has no time, either" classname="Kubernetes e2e suite" status="skipped" time="0">
              <skipped message="skipped"></skipped>
          </testcase>
      </testsuite>
  </testsuites>"#;

    #[test]
    fn the_default_patterns_select_dual_stack_specs() {
        let is_skipped = |spec: &str| {
            let mut grep = std::process::Command::new("sh");
            grep.args([
                "-c",
                "printf %s \"$1\" | grep -qE -- \"$2\"",
                "sh",
                spec,
                SKIP,
            ]);
            grep.status().unwrap().success()
        };
        for kept in [
            "[sig-network] [Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to pod ips",
            "[sig-network] Services should serve a basic endpoint from pods [Conformance]",
        ] {
            assert!(!is_skipped(kept), "{kept}");
        }
        for skipped in [
            "[sig-network] Networking-DNS [Feature:Networking-DNS] x",
            "[sig-network] Ingress API [Feature:Ingress] x",
            "[sig-network] [Feature:IPPool] x",
            "[sig-network] [Feature:IPv6DualStack] Granular Checks [Slow]",
        ] {
            assert!(is_skipped(skipped), "{skipped}");
        }
    }

    #[test]
    fn e2e_results_list_failed_specs_with_their_reasons() {
        let results = parse(REPORT, chosen("x\nWill run 6 of 8 specs\n").unwrap());
        assert_eq!(
            results.passed,
            ["[sig-network] Services should serve a basic endpoint <from> pods"]
        );
        assert_eq!(
            results.failed,
            [
                ("[sig-network] Services is broken", "timed out \"waiting\""),
                (
                    "[sig-network] Services is slow",
                    "[TIMEDOUT] A spec timeout occurred"
                ),
            ]
            .map(|(name, why)| (name.to_owned(), why.to_owned()))
        );
        let reason = "Only supported for providers [gce] (not skeleton)";
        assert_eq!(
            results.skipped[reason],
            ["[sig-network] Services needs a cloud"]
        );
        let account = results.account(Duration::from_secs(12));
        assert!(
            account.ends_with(
                "cut off  [sig-network] Services has no time\n\
                 1 passed, 2 failed, 1 skipped, in 12s\n\
                 the time was up: 1 cut off, 1 not begun; MINUTES= gives more\n"
            ),
            "{account}"
        );
    }
}
