//! What the demo prints, and whether all of it was as claimed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Answer, Place, Running};

/// How long the daemon may take to program a node.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(20);

/// The account so far.
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

    /// A new part of the story.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn part(&self, title: &str) {
        println!("\n== {title}");
    }

    /// A sentence of it.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn say(&self, text: &str) {
        println!("   {text}");
    }

    /// Output of a tool, indented.
    #[allow(clippy::unused_self, reason = "the account is what is printed")]
    pub(crate) fn show(&self, command: &str, output: &str) {
        println!("\n   $ {command}");
        for line in output.lines() {
            println!("   {line}");
        }
        println!();
    }

    /// Claims that something is so.
    pub(crate) fn claim(&mut self, claim: &str, is_so: bool, seen: &str) {
        if is_so {
            self.seen += 1;
            println!("   [ok]   {claim}: {seen}");
        } else {
            self.failed(&format!("{claim}: {seen}"));
        }
    }

    /// Something was not as claimed.
    pub(crate) fn failed(&mut self, what: &str) {
        println!("   [FAIL] {what}");
        self.failures.push(what.to_owned());
    }

    /// The last line, and the exit status.
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

/// Starts kube-proxy at a node on a folder of manifests.
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
    ];
    argv.extend(flags.iter().map(Into::into));
    node.spawn(argv)
}

/// The virtual servers of a node with their real servers, as `ipvsadm` saves them.
pub(crate) fn virtual_servers(node: &Place) -> Result<BTreeMap<String, VirtualServer>, lab::Error> {
    let mut servers = BTreeMap::<String, VirtualServer>::new();
    for line in node.read(["ipvsadm", "-Sn"])?.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("-A"), Some(_), Some(at)) => {
                servers.entry(at.to_owned()).or_default().properties =
                    words.collect::<Vec<_>>().join(" ");
            }
            (Some("-a"), Some(_), Some(at)) => {
                let real = words.skip(1).collect::<Vec<_>>().join(" ");
                servers.entry(at.to_owned()).or_default().reals.push(real);
            }
            _ => {}
        }
    }
    for server in servers.values_mut() {
        server.reals.sort();
    }
    Ok(servers)
}

/// One of them: `-s rr`, and `192.167.1.123:80 -m -w 1` for each real server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualServer {
    pub(crate) properties: String,
    pub(crate) reals: Vec<String>,
}

/// Members of one set, as `ipset` saves them, sorted.
pub(crate) fn members(node: &Place, set: &str) -> Result<Vec<String>, lab::Error> {
    let saved = node.read(["ipset", "save", set])?;
    let mut members: Vec<_> = saved
        .lines()
        .filter_map(|line| line.strip_prefix("add "))
        .filter_map(|line| line.split_once(' '))
        .map(|(_, member)| member.trim().to_owned())
        .collect();
    members.sort();
    Ok(members)
}

/// Waits until `is_so` of the node's virtual servers; fails with what the daemon said.
pub(crate) fn wait_for(
    node: &Place,
    daemon: &mut Running,
    is_so: impl Fn(&BTreeMap<String, VirtualServer>) -> bool,
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

/// Who answered how often.
pub(crate) fn count<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.who.as_str()).or_default() += 1;
    }
    counts
}

/// `a ×2, b ×1`
pub(crate) fn tally(counts: &BTreeMap<&str, usize>) -> String {
    counts
        .iter()
        .map(|(who, times)| format!("{who} ×{times}"))
        .collect::<Vec<_>>()
        .join(", ")
}
