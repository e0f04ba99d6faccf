//! Prints the demo's report, and records whether all expected results were observed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Answer, Place, Running};
use scenarios::{VirtualServer, VirtualServers, virtual_servers};
use serde_json::Value;

/// Timeout for the daemon to program a node's Services.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(20);

/// Report of the demo: the number of confirmed claims, and the texts of failed claims.
pub(crate) struct Account {
    seen: usize,
    failures: Vec<String>,
}

impl Account {
    pub(crate) fn new() -> Self {
        Self {
            seen: 0,
            failures: Vec::new(),
        }
    }

    /// Prints the title of a new section of the report.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn part(&self, title: &str) {
        println!("\n== {title}");
    }

    /// Prints a sentence of the report.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn say(&self, text: &str) {
        println!("   {text}");
    }

    /// Prints the Services of a manifest directory, in the format of `kubectl get services`.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn services(&self, manifests: &Path) -> Result<()> {
        let mut rows =
            vec![["SERVICE", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)"].map(str::to_owned)];
        rows.extend(services(manifests)?);
        let width = |column: usize| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(String::len)
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        println!();
        for row in &rows {
            let cells: Vec<_> = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            println!("   {}", cells.join("  ").trim_end());
        }
        println!();
        Ok(())
    }

    /// Prints a command with the prompt `$`, and its output, both indented.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn show(&self, command: &str, output: &str) {
        println!("\n   $ {command}");
        for line in output.lines() {
            println!("   {line}");
        }
        println!();
    }

    /// Prints a claim with the observed result. Counts the claim as confirmed if `is_so`, otherwise
    /// as failed.
    pub(crate) fn claim(&mut self, claim: &str, is_so: bool, seen: &str) {
        if is_so {
            self.seen += 1;
            println!("   [ok]   {claim}: {seen}");
        } else {
            self.failed(&format!("{claim}: {seen}"));
        }
    }

    /// Prints a failed claim, and keeps it for the summary.
    pub(crate) fn failed(&mut self, what: &str) {
        println!("   [FAIL] {what}");
        self.failures.push(what.to_owned());
    }

    /// Prints the number of confirmed claims and all failed claims. Returns the exit status of the
    /// demo.
    pub(crate) fn close(self) -> ExitCode {
        println!();
        if self.failures.is_empty() {
            println!("demo: all {} claims were seen", self.seen);
            return ExitCode::SUCCESS;
        }
        println!(
            "demo: {} claims were seen, {} were NOT:",
            self.seen,
            self.failures.len()
        );
        for failure in &self.failures {
            println!("  - {failure}");
        }
        ExitCode::FAILURE
    }
}

/// Returns a row for each Service in a manifest directory: name, type, cluster IP, load-balancer
/// IPs, ports.
fn services(manifests: &Path) -> Result<Vec<[String; 5]>> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(manifests)? {
        let text = fs::read_to_string(entry?.path())?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        rows.extend(
            objects
                .iter()
                .filter(|object| object["kind"] == "Service")
                .map(row),
        );
    }
    rows.sort();
    Ok(rows)
}

fn row(service: &Value) -> [String; 5] {
    let port = |port: &Value| {
        let outside = match text(port, "/nodePort") {
            number if number.is_empty() => number,
            number => format!(":{number}"),
        };
        let protocol = port
            .get("protocol")
            .and_then(Value::as_str)
            .unwrap_or("TCP");
        format!("{}{outside}/{protocol}", text(port, "/port"))
    };
    [
        text(service, "/metadata/name"),
        text(service, "/spec/type"),
        text(service, "/spec/clusterIP"),
        list(service, "/status/loadBalancer/ingress", |ingress| {
            text(ingress, "/ip")
        }),
        list(service, "/spec/ports", port),
    ]
}

fn text(value: &Value, at: &str) -> String {
    match value.pointer(at) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn list(value: &Value, at: &str, cell: impl Fn(&Value) -> String) -> String {
    match value.pointer(at).and_then(Value::as_array) {
        Some(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        None => "<none>".to_owned(),
    }
}

/// Starts kube-proxy on a node, with a manifest directory as its source and with further `flags`.
pub(crate) fn start(
    kube_proxy: &Path,
    node: &Place,
    name: &str,
    manifests: &Path,
    flags: &[&str],
) -> Result<Running, lab::Error> {
    let mut argv = vec![
        kube_proxy.as_os_str().to_owned(),
        "--manifests".into(),
        manifests.into(),
        format!("--hostname-override={name}").into(),
        "--proxy-mode=ipvs".into(),
        // Keeps the size of the conntrack table, because only a process in the initial network
        // namespace may set the size, and the daemon runs in another namespace.
        "--conntrack-max-per-core=0".into(),
    ];
    argv.extend(flags.iter().map(Into::into));
    node.spawn(argv)
}

/// Returns the virtual server for TCP at an address and port, if it exists.
pub(crate) fn tcp<'a>(servers: &'a VirtualServers, at: &str) -> Option<&'a VirtualServer> {
    servers.get(&format!("TCP {at}"))
}

/// Waits until `is_so` accepts the node's virtual servers, and returns the duration. On a timeout,
/// the error quotes the daemon's output.
pub(crate) fn wait_for(
    node: &Place,
    daemon: &mut Running,
    is_so: impl Fn(&VirtualServers) -> bool,
) -> Result<Duration> {
    let started = Instant::now();
    loop {
        if is_so(&virtual_servers(node)?) {
            return Ok(started.elapsed());
        }
        ensure!(
            started.elapsed() < PROGRAMMED_WITHIN,
            "{} was not programmed in {PROGRAMMED_WITHIN:?}; kube-proxy said:\n{}",
            node.name(),
            daemon.said()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Counts replies by the name of the server that sent them.
pub(crate) fn count<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.who.as_str()).or_default() += 1;
    }
    counts
}

/// Formats each server's number of replies: `a ×2, b ×1`.
pub(crate) fn tally(counts: &BTreeMap<&str, usize>) -> String {
    counts
        .iter()
        .map(|(who, times)| format!("{who} ×{times}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Copies all files of a directory into another directory, which it creates if necessary.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Returns the first `most` lines of a text. If it omits lines, appends a line with their number.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let count = text.lines().count();
    let shown = text.lines().take(most);
    let mut shown: Vec<_> = shown.map(|line| line.trim_end().to_owned()).collect();
    if count > most {
        shown.push(format!("… ({} more lines)", count - most));
    }
    shown.iter().flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_output_states_the_number_of_omitted_lines() {
        assert_eq!(cut("one\ntwo\n", 2), "one\ntwo\n");
        assert_eq!(cut("one  \ntwo\nthree\n", 1), "one\n… (2 more lines)\n");
        assert_eq!(cut("", 5), "");
    }
}
