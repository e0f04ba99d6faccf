//! Scratch space of a case: commands, a folder of its own, and the namespace at the wire's other
//! end.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Gateways that nobody has: the routes are what counts.
const NETWORK: [&str; 7] = [
    "link set lo up",
    "link add eth0 type veth peer name eth0 netns PEER",
    "addr add 192.168.99.10/24 dev eth0",
    "addr add fd00:99::10/64 dev eth0 nodad",
    "link set eth0 up",
    "route add default via 192.168.99.1",
    "route add default via fd00:99::1",
];
/// The commands that a `pre.sh` calls by names that mean the one or the other backend, as the
/// distribution likes.
const PLAIN: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// The standard output of a command that must succeed.
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

/// The namespace of the wire's other end.
#[derive(Debug)]
pub(crate) struct Peer(String);

impl Peer {
    /// Makes the namespace, the wire to it, and this end's addresses and routes.
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

/// A folder of this run.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        // Cases on the host's kernel may have the same process ids, in namespaces of their own, but
        // never the same network namespace.
        let name = fs::read_link("/proc/self/ns/net").context("no network namespace")?;
        let name = name.display().to_string();
        let name: String = name.chars().filter(char::is_ascii_digit).collect();
        let folder = std::env::temp_dir().join(format!("golden-{name}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Runs a command that reads `input`.
    pub(crate) fn feed(&self, command: &str, input: &str) -> Result<()> {
        let file = self.file(input)?;
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        output(command.args(words).stdin(file)).map(drop)
    }

    /// A file to read `input` from.
    pub(crate) fn file(&self, input: &str) -> Result<fs::File> {
        let file = self.0.join("input");
        fs::write(&file, input)?;
        Ok(fs::File::open(&file)?)
    }

    /// A folder in which `iptables` is that of the lab's backend.
    pub(crate) fn tools(&self) -> Result<PathBuf> {
        let folder = self.0.join("bin");
        fs::create_dir_all(&folder)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let backend = format!("tables-{}", lab::iptables_backend());
        for tool in PLAIN {
            let named = tool.replacen("tables", &backend, 1);
            let Some(file) = std::env::split_paths(&path)
                .map(|folder| folder.join(&named))
                .find(|file| file.is_file())
            else {
                bail!("{named} is not installed");
            };
            symlink(file, folder.join(OsStr::new(tool)))?;
        }
        Ok(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
