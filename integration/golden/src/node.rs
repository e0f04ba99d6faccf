//! The surroundings of a case: node1 in the network namespace of this process, which nobody else
//! uses, and the daemon on it.
//!
//! ```text
//!  this namespace                          another one
//!  lo ── API server, kube-proxy            nothing, but the other end of the wire
//!  eth0 192.168.99.10/24 fd00:99::10/64 ── eth0
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use apiserver::{Kind, Options, Server};
use lab::Running;
use serde_json::Value;

use crate::case::Case;
use crate::differences::{Before, without_prefix};
use crate::table::{Dumps, Table};

/// How long the daemon may take to its first sync, on a loaded machine.
const SYNCED_WITHIN: Duration = Duration::from_secs(30);
/// How long one command may take.
const DONE_WITHIN: Duration = Duration::from_secs(20);
/// How long a health-check node port may take to listen after the first sync.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);

const NODE_IPS: [&str; 2] = ["192.168.99.10", "fd00:99::10"];
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
/// Loaded before the first look at the settings, as they were when the dumps were made; some bring
/// settings.
const MODULES: [&str; 6] = [
    "ipv6",
    "veth",
    "dummy",
    "ip_vs",
    "nf_conntrack",
    "nfnetlink_acct",
];
/// What rules of the iptables mode count with; they must be there before the rules.
const COUNTERS: [&str; 2] = [
    "ct_state_invalid_dropped_pkts",
    "localhost_nps_accepted_pkts",
];
/// A namespace may inherit these from the machine; every node of a case starts with 0.
const OFF: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"];
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

/// What starts the daemon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program<'a> {
    pub(crate) file: &'a Path,
    /// `--proxy-mode`
    pub(crate) mode: &'a str,
}

/// What `kube-proxy check` has to foretell of a start, which then must make as many writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// It is not asked.
    Unasked,
    /// Nothing: the state is the wanted one.
    Nothing,
    /// Something, or nothing.
    Any,
}

/// node1 in this namespace.
#[derive(Debug)]
pub(crate) struct Node {
    scratch: Scratch,
    _peer: Peer,
    /// As they were before anything of a proxy.
    settings: BTreeMap<String, String>,
}

impl Node {
    /// Builds it. `is_initial`: this is the kernel's initial network namespace.
    pub(crate) fn new(is_initial: bool) -> Result<Self> {
        let scratch = Scratch::new()?;
        // What is built in needs no loading, so only the outcome counts.
        let _ = finished(Command::new("modprobe").args(["-q", "-a"]).args(MODULES));
        let peer = Peer::connect(&scratch)?;
        for key in OFF {
            set(key, "0")?;
        }
        if is_initial {
            // Whether the table of a small guest has to grow says something about the guest.
            let size = "/sys/module/nf_conntrack/parameters/hashsize";
            fs::write(size, "65536").with_context(|| format!("cannot write {size}"))?;
        }
        Ok(Self {
            scratch,
            _peer: peer,
            settings: settings(Path::new("/proc/sys/net"))?,
        })
    }

    /// Lets the `pre.sh` of a case leave what it does, if there is one.
    pub(crate) fn prepare(&self, case: &Case) -> Result<Before> {
        let mut before = Before::default();
        if case.has_pre {
            let tools = self.scratch.tools()?;
            let path = std::env::var("PATH").unwrap_or_default();
            let mut shell = Command::new("sh");
            shell
                .arg("pre.sh")
                .current_dir(&case.folder)
                .env("PATH", format!("{}:{path}", tools.display()));
            output(&mut shell)?;
            before.dumps = dumps()?;
        }
        before.node = node_addresses()?;
        Ok(before)
    }

    /// Makes the kernel hold what upstream left for a case, with the operator's tools.
    pub(crate) fn load(&self, case: &Case) -> Result<Before> {
        let dump = |table: Table| case.expected.get(&table).map_or("", String::as_str);
        let (created, added): (Vec<&str>, Vec<&str>) = dump(Table::IpsetSave)
            .lines()
            .partition(|line| line.starts_with("create"));
        let sets = [created, added, vec![""]].concat().join("\n");
        let addresses = dump(Table::KubeIpvs0Addresses);
        let mut links = String::new();
        // In IPVS mode there is always one.
        if !addresses.is_empty() {
            links.push_str("link add kube-ipvs0 type dummy\n");
        }
        for address in addresses.lines() {
            links.extend(["address add ", address, " dev kube-ipvs0\n"]);
        }
        for counter in COUNTERS {
            if dump(Table::IptablesSave).contains(counter) {
                output(Command::new("nfacct").args(["add", counter]))?;
            }
        }
        let restore = |tables: &str| format!("{tables}-{}-restore", lab::iptables_backend());
        for (command, input) in [
            ("ip -batch -", links.as_str()),
            ("ipset restore", &sets),
            (&restore("iptables"), dump(Table::IptablesSave)),
            (&restore("ip6tables"), dump(Table::Ip6tablesSave)),
            ("ipvsadm -R", dump(Table::IpvsadmSave)),
        ] {
            self.scratch.feed(command, input)?;
        }
        self.settle(None, case)?;
        Ok(Before {
            dumps: case.expected.clone(),
            node: node_addresses()?,
        })
    }

    /// Gives the settings that upstream left for a case, in the place of those for the one before
    /// it: no proxy undoes them.
    pub(crate) fn settle(&self, before: Option<&Case>, case: &Case) -> Result<()> {
        let changes = |case: &Case| -> Result<Vec<(String, String)>> {
            let lines = case
                .expected
                .get(&Table::SysctlChanges)
                .map_or("", String::as_str);
            let change = |line: &str| {
                let (key, value) = line.split_once(':').context("sysctl-changes")?;
                Ok((key.to_owned(), value.to_owned()))
            };
            lines.lines().map(change).collect()
        };
        for (key, _) in before.map(changes).transpose()?.unwrap_or_default() {
            let value = self.settings.get(&key);
            set(&key, value.with_context(|| format!("there is no {key}"))?)?;
        }
        for (key, value) in changes(case)? {
            set(&key, &value)?;
        }
        // `Timeout (tcp tcpfin udp): 900 120 300`
        let timeouts = case.expected.get(&Table::IpvsTimeouts);
        if let Some((_, seconds)) = timeouts.and_then(|line| line.split_once(": ")) {
            let mut command = Command::new("ipvsadm");
            output(command.arg("--set").args(seconds.split_whitespace()))?;
        }
        Ok(())
    }

    /// Starts the daemon with the objects and flags of a case, ends it after the first sync of both
    /// families, and dumps what it leaves.
    pub(crate) fn serve(&self, case: &Case, program: Program<'_>, check: Check) -> Result<Dumps> {
        let server = Server::spawn(Options {
            kubernetes_service: true,
            ..Options::default()
        })
        .context("cannot start the API server fixture")?;
        server.apply_yaml(&case.objects).context("objects.yaml")?;
        let kubeconfig = self.scratch.0.join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig())?;
        let flags = [
            format!("--proxy-mode={}", program.mode),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--iptables-backend={}", lab::iptables_backend()),
        ];
        let command = |first: &[&str]| {
            let mut command = Command::new(program.file);
            command.args(first).args(&flags).args(&case.flags);
            command
        };
        let foretold = if check == Check::Unasked {
            None
        } else {
            let mut ask = command(&["check", "--output=json"]);
            Some(foretold(&mut ask, check == Check::Nothing)?)
        };
        let mut daemon = Running::start(command(&[]))?;
        let mut written = 0;
        for _family in 0..2 {
            let line = daemon.wait_for("first sync done", SYNCED_WITHIN)?;
            written += writes(&line).with_context(|| format!("how many writes: {line}"))?;
        }
        if let Some(foretold) = foretold {
            ensure!(
                written == foretold,
                "`check` foretold {foretold} writes, and the start made {written}"
            );
        }
        let mut found = Dumps::new();
        if let Some(expected) = case.expected.get(&Table::HealthCheckNodePort) {
            let answers = health_checks(&server, expected)?;
            found.insert(Table::HealthCheckNodePort, answers);
        }
        let output = daemon.stop(DONE_WITHIN)?;
        ensure!(
            output.status.success(),
            "kube-proxy ended with {}; it said:\n{}",
            output.status,
            daemon.said()
        );

        // What it leaves is what it hands on.
        found.extend(dumps()?);
        let after = settings(Path::new("/proc/sys/net"))?;
        let is_changed = |(key, value): &(&String, &String)| {
            self.settings.get(*key).is_some_and(|old| old != *value)
        };
        let changes = after.iter().filter(is_changed);
        let changes = changes.flat_map(|(key, value)| [key, ":", value, "\n"]);
        found.insert(Table::SysctlChanges, changes.collect());
        Ok(found)
    }
}

fn set(key: &str, value: &str) -> Result<()> {
    fs::write(Path::new("/proc/sys").join(key), value).with_context(|| format!("cannot set {key}"))
}

/// Addresses on all interfaces but `lo` and `kube-ipvs0`.
fn node_addresses() -> Result<BTreeSet<String>> {
    let addresses = addresses_on(|device| !matches!(device, "lo" | "kube-ipvs0"))?;
    Ok(addresses
        .iter()
        .map(|address| without_prefix(address))
        .collect())
}

/// How many writes `check` foretells, of both families; an error if any, and `is_wanted`: the state
/// is the wanted one.
fn foretold(check: &mut Command, is_wanted: bool) -> Result<u64> {
    let (_, stdout, stderr) = finished(check)?;
    let answer: Value = serde_json::from_str(&stdout)
        .with_context(|| format!("`check` said {stdout:?} {stderr:?}"))?;
    let would_change = answer.pointer("/wouldChange").and_then(Value::as_bool);
    ensure!(
        !is_wanted || would_change == Some(false),
        "`check` foretells changes where upstream left all that is wanted: {stdout}"
    );
    let of = |family| answer.pointer(family).and_then(Value::as_u64).unwrap_or(0);
    Ok(of("/writes/IPv4") + of("/writes/IPv6"))
}

/// `… written=12 …`
fn writes(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("written=")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn dumps() -> Result<Dumps> {
    let command = |words: &str| {
        let mut words = words.split(' ');
        output(Command::new(words.next().unwrap_or_default()).args(words))
    };
    let save = |tables: &str| command(&format!("{tables}-{}-save", lab::iptables_backend()));
    let bound = addresses_on(|device| device == "kube-ipvs0")?;
    Ok(Dumps::from([
        (Table::IpvsadmSave, command("ipvsadm -Sn")?),
        (Table::IpsetSave, command("ipset save")?),
        (Table::IptablesSave, save("iptables")?),
        (Table::Ip6tablesSave, save("ip6tables")?),
        (Table::KubeIpvs0Addresses, bound.join("\n")),
        (Table::IpvsTimeouts, command("ipvsadm -l --timeout")?),
    ]))
}

/// Addresses with their prefix lengths, by line: `10.96.0.1/32`.
fn addresses_on(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let lines = output(Command::new("ip").args(["-oneline", "address", "show"]))?;
    // `7: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\ …`
    let address = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let is_wanted = is_wanted(words.next()?);
        words.nth(1).filter(|_| is_wanted).map(str::to_owned)
    };
    Ok(lines.lines().filter_map(address).collect())
}

/// Asks every health-check node port over IPv4, then over IPv6, as long as the answers are not
/// those expected: the ports are opened beside the kernel's first sync, not by it.
fn health_checks(server: &Server, expected: &str) -> Result<String> {
    let table = Table::HealthCheckNodePort;
    let expected = table.clean(expected);
    let services = server.list(Kind::Service);
    let ports: Vec<u64> = services
        .iter()
        .filter_map(|service| {
            service
                .pointer("/spec/healthCheckNodePort")
                .and_then(Value::as_u64)
        })
        .collect();
    let deadline = Instant::now() + LISTENS_WITHIN;
    loop {
        let mut answers = String::new();
        for port in &ports {
            for ip in NODE_IPS {
                let host = match ip.parse()? {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                };
                let mut curl = Command::new("curl");
                curl.args(["--silent", "--include", "--globoff", "--max-time", "5"])
                    .arg(format!("http://{host}:{port}/"));
                // Refused is an answer too, but not a text.
                let (_, answer, _) = finished(&mut curl)?;
                answers.push_str(&answer);
                answers.push('\n');
            }
        }
        if table.clean(&answers) == expected || Instant::now() > deadline {
            return Ok(answers);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Every readable file below a folder of /proc/sys, by its path from `net` on.
fn settings(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Ok(value) = fs::read_to_string(entry.path()) {
                // Some can only be written, or only when they were.
                let path = entry.path();
                let key = path
                    .strip_prefix("/proc/sys")
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                found.insert(key, value.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    Ok(found)
}

/// The standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let (is_success, stdout, stderr) = finished(command)?;
    ensure!(is_success, "{command:?} failed: {}", stderr.trim_end());
    Ok(stdout)
}

fn finished(command: &mut Command) -> Result<(bool, String, String)> {
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
struct Peer(String);

impl Peer {
    /// Makes the namespace, the wire to it, and this end's addresses and routes.
    fn connect(scratch: &Scratch) -> Result<Self> {
        let peer = Self(format!("golden-{}", std::process::id()));
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
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("golden-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Runs a command that reads `input`.
    fn feed(&self, command: &str, input: &str) -> Result<()> {
        let file = self.0.join("input");
        fs::write(&file, input)?;
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        output(command.args(words).stdin(fs::File::open(&file)?)).map(drop)
    }

    /// A folder in which `iptables` is that of the lab's backend.
    fn tools(&self) -> Result<PathBuf> {
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
