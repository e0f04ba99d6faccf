//! Helpers of a case: running commands, a temporary directory, and the network namespace at the
//! other end of the node's link.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Commands for `ip` that create the node's network. Gateways of its routes do not exist, because
/// the test sends no packets.
const NETWORK: [&str; 7] = [
    "link set lo up",
    "link add eth0 type veth peer name eth0 netns PEER",
    "addr add 192.168.99.10/24 dev eth0",
    "addr add fd00:99::10/64 dev eth0 nodad",
    "link set eth0 up",
    "route add default via 192.168.99.1",
    "route add default via fd00:99::1",
];
/// Runs a command, and returns its standard output. Fails if the command fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let (is_success, stdout, stderr) = finished(command)?;
    ensure!(is_success, "{command:?} failed: {}", stderr.trim_end());
    Ok(stdout)
}

pub(crate) fn finished(command: &mut Command) -> Result<(bool, String, String)> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

/// Name of the network namespace at the other end of the node's veth pair. Dropping this value
/// removes the namespace.
#[derive(Debug)]
pub(crate) struct Peer(String);

impl Peer {
    /// Creates a network namespace and a veth pair that connects it to the node. Adds the node's
    /// addresses and routes.
    pub(crate) fn connect(scratch: &Scratch) -> Result<Self> {
        let name = scratch.0.file_name().unwrap_or_default();
        let peer = Self(name.display().to_string());
        output(Command::new("ip").args(["netns", "add", &peer.0]))?;
        let lines = NETWORK.join("\n").replace("PEER", &peer.0);
        scratch.feed("ip -batch -", &(lines + "\n"))?;
        output(Command::new("ip").args(["-n", &peer.0, "link", "set", "eth0", "up"]))?;
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = finished(Command::new("ip").args(["netns", "del", &self.0]));
    }
}

/// Temporary directory of this run.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        // Names the directory after the network namespace, which only one case uses. Process IDs
        // are not unique: on the host's kernel, cases run in separate PID namespaces.
        let name = fs::read_link("/proc/self/ns/net").context("no network namespace")?;
        let name = name.display().to_string();
        let name: String = name.chars().filter(char::is_ascii_digit).collect();
        let folder = std::env::temp_dir().join(format!("golden-{name}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Runs a command of several words with `input` as its standard input. Fails if the command
    /// fails.
    pub(crate) fn feed(&self, command: &str, input: &str) -> Result<()> {
        let file = self.file(input)?;
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        output(command.args(words).stdin(file)).map(drop)
    }

    /// Writes `input` to a file in the temporary directory, and opens the file for reading.
    pub(crate) fn file(&self, input: &str) -> Result<fs::File> {
        let file = self.0.join("input");
        fs::write(&file, input)?;
        Ok(fs::File::open(&file)?)
    }

    /// Returns a directory with links named `iptables`, … to the programs of the lab's backend, for
    /// the `PATH` of a `pre.sh`.
    pub(crate) fn tools(&self) -> Result<PathBuf> {
        let folder = self.0.join("bin");
        let missing = lab::link_iptables(lab::iptables_backend(), &folder)?;
        if let Some(name) = missing.first() {
            bail!("{name} is not installed");
        }
        Ok(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
