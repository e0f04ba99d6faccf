//! Environment in which a case runs: the network namespace of this process is the node `node1`, on
//! which the daemon runs.
//!
//! ```text
//!  this namespace                          another namespace
//!  lo ── API server, kube-proxy            only the other end of the veth pair
//!  eth0 192.168.99.10/24 fd00:99::10/64 ── eth0
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use apiserver::{Cluster, Fault, Kind, Options, Rule, Server};
use lab::Running;
use serde_json::Value;

use crate::case::{Case, NAME, Phase, PresetState};
use crate::differences::{InitialState, without_prefix};
use crate::scratch::{Peer, Scratch, finished, output};
use crate::table::{Dumps, Table};
use crate::{SAID, kernel};

/// Time limit for the daemon's first sync, even on a busy machine.
const SYNCED_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for a command, such as `kube-proxy check`.
const DONE_WITHIN: Duration = Duration::from_secs(20);
/// Time limit for the kernel to reach the expected state of a phase.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);
const GLANCE: Duration = Duration::from_millis(50);
/// Time for which the tables must keep the expected state at the end of a phase.
const QUIET: Duration = Duration::from_millis(300);
/// [`QUIET`] for upstream's kube-proxy, which waits at least 1 s between two syncs, and deletes
/// stale entries only in a sync at least 1 s after they became stale.
const UPSTREAMS_QUIET: Duration = Duration::from_millis(2500);
/// Delay between `ServiceCIDR`s and Services for upstream's kube-proxy, which does not wait for
/// `ServiceCIDR`s. When the dumps were made, it received `ServiceCIDR`s first.
const UPSTREAMS_HEAD_START: Duration = Duration::from_millis(500);
/// Time limit for the daemon to listen on a health-check node port, after its first sync.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);

const NODE_IPS: [&str; 2] = ["192.168.99.10", "fd00:99::10"];
/// Modules to load before the test reads the sysctls for the first time, because some modules add
/// sysctls. Upstream's dumps were made with the same modules.
const MODULES: [&str; 5] = ["ipv6", "veth", "dummy", "nf_conntrack", "nfnetlink_acct"];
/// Module that IPVS mode needs.
const IPVS: &str = "ip_vs";
/// Names of the nfacct objects that iptables mode uses. The kernel refuses a rule whose nfacct
/// object does not exist.
const COUNTERS: [&str; 2] = [
    "ct_state_invalid_dropped_pkts",
    "localhost_nps_accepted_pkts",
];
/// Sysctls that a network namespace may inherit from the machine. A case sets them to 0 at first.
const OFF: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"];

/// Arguments of `ip route` that select a kube-proxy's local routes by their protocol.
const ROUTES: &str = "table local proto 107";

/// A kube-proxy binary (ours or upstream's), and the mode in which it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program<'a> {
    pub(crate) file: &'a Path,
    /// Value of `--proxy-mode`.
    pub(crate) mode: &'a str,
    /// True for upstream's kube-proxy, which lacks our own flags, and does not log the end of a
    /// sync.
    pub(crate) is_upstream: bool,
}

impl Program<'_> {
    /// Returns true if the program runs in nftables mode.
    fn is_nftables(self) -> bool {
        self.mode == NFTABLES
    }

    fn dumps(self) -> Result<Dumps> {
        if !self.is_nftables() {
            return dumps();
        }
        let mut dumps = kernel::dumps()?;
        dumps.extend(iptables()?);
        Ok(dumps)
    }
}

/// Value of `--proxy-mode` for nftables mode.
pub(crate) const NFTABLES: &str = "nftables";

/// Function that compares the dumps at the end of a phase with the expected dumps. Returns the
/// differences as text, empty if there are none.
type Judge<'a> = dyn Fn(&Phase, &Dumps) -> String + 'a;

/// Number of writes that `kube-proxy check` must predict before the daemon starts. The daemon must
/// then make the same number of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Any number: the test does not run `kube-proxy check`.
    Unasked,
    /// No writes, because the kernel already has the wanted state.
    Nothing,
    /// Exactly this number of writes, at least one.
    Writes(u64),
    /// At least one write, because the kernel does not have the wanted state.
    Any,
}

/// The node `node1`, in the network namespace of this process.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    program: Program<'a>,
    is_initial: bool,
    scratch: Scratch,
    _peer: Peer,
    /// Sysctls below `/proc/sys/net` before the first kube-proxy started.
    settings: BTreeMap<String, String>,
    /// Dumps as this version of `nft` lists them, by the original dump.
    relisted: RefCell<BTreeMap<String, String>>,
}

impl<'a> Node<'a> {
    /// Prepares the node in this network namespace. `is_initial` is true if it is the kernel's
    /// initial one.
    pub(crate) fn new(program: Program<'a>, is_initial: bool) -> Result<Self> {
        let scratch = Scratch::new()?;
        // Ignores errors, because modules may be built in.
        let ipvs = (!program.is_nftables()).then_some(IPVS);
        let _ = finished(
            Command::new("modprobe")
                .args(["-q", "-a"])
                .args(MODULES)
                .args(ipvs),
        );
        let peer = Peer::connect(&scratch)?;
        for key in OFF {
            set(key, "0")?;
        }
        if is_initial {
            // Sets a fixed size for the conntrack hash table, which otherwise depends on the VM's
            // memory and would differ between VMs.
            let size = "/sys/module/nf_conntrack/parameters/hashsize";
            fs::write(size, "65536").with_context(|| format!("cannot write {size}"))?;
        }
        Ok(Self {
            program,
            is_initial,
            scratch,
            _peer: peer,
            settings: settings(Path::new("/proc/sys/net"))?,
            relisted: RefCell::default(),
        })
    }

    /// Returns true if the program is upstream's kube-proxy, which must leave exactly the dumps.
    pub(crate) fn is_upstream(&self) -> bool {
        self.program.is_upstream
    }

    /// Creates the kernel state of the case's `pre` files. Returns the state of the node before the
    /// daemon starts.
    pub(crate) fn prepare(&self, case: &Case) -> Result<InitialState> {
        let PresetState {
            is_script,
            nft,
            iptables,
        } = &case.pre;
        if *is_script {
            self.run_script(case)?;
        }
        if let Some(ruleset) = nft {
            self.scratch.feed("nft -f -", ruleset)?;
        }
        if let Some([ip, ip6]) = iptables {
            self.restore("iptables", ip)?;
            self.restore("ip6tables", ip6)?;
            // Sets the sysctl that iptables mode has left: it sets the value 1, and never resets
            // it.
            set("net/ipv4/conf/all/route_localnet", "1")?;
        }
        let mut before = InitialState {
            dumps: Dumps::new(),
            node: node_addresses()?,
            has_no_node_ports: case.has_no_node_ports(),
        };
        if !case.pre.is_none() || self.program.is_nftables() {
            before.dumps = self.program.dumps()?;
        }
        Ok(before)
    }

    fn run_script(&self, case: &Case) -> Result<()> {
        let tools = self.scratch.tools()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .arg("pre.sh")
            .current_dir(&case.folder)
            .env("PATH", format!("{}:{path}", tools.display()));
        output(&mut shell).map(drop)
    }

    /// Loads a dump of `iptables-save` or `ip6tables-save` into the kernel. `tables` is `iptables`
    /// or `ip6tables`.
    fn restore(&self, tables: &str, dump: &str) -> Result<()> {
        for counter in COUNTERS {
            if dump.contains(counter) {
                // Ignores an error, because the nfacct object may exist: rules of IPv4 and IPv6
                // share it.
                finished(Command::new("nfacct").args(["add", counter]))?;
            }
        }
        let backend = lab::iptables_backend();
        self.scratch
            .feed(&format!("{tables}-{backend}-restore"), dump)
    }

    /// Loads the dumps of a case into the kernel with the usual tools (`ip`, `ipset restore`,
    /// `nft -f`, …). Returns the state of the node before the daemon starts.
    pub(crate) fn load(&self, case: &Case) -> Result<InitialState> {
        let dump = |table: Table| case.expected.get(&table).map_or("", String::as_str);
        let (created, added): (Vec<&str>, Vec<&str>) = dump(Table::IpsetSave)
            .lines()
            .partition(|line| line.starts_with("create"));
        let sets = [created, added, vec![""]].concat().join("\n");
        let addresses = dump(Table::KubeIpvs0Addresses);
        let mut links = String::new();
        // Creates kube-ipvs0 if the dump has an address on it, as it always has in IPVS mode.
        if !addresses.is_empty() {
            links.push_str("link add kube-ipvs0 type dummy\n");
        }
        for address in addresses.lines() {
            links.extend(["address add ", address, " dev kube-ipvs0\n"]);
        }
        let routes = dump(Table::LocalRoutes);
        if !routes.is_empty() {
            // The kernel refuses an IPv6 route through a link that is down.
            links.push_str("link set kube-ipvs0 up\n");
        }
        for route in routes.lines() {
            links.extend(["route add ", route, " ", ROUTES, "\n"]);
        }
        for (command, input) in [
            ("ip -batch -", links.as_str()),
            ("ipset restore", &sets),
            ("ipvsadm -R", dump(Table::IpvsadmSave)),
            ("nft -f -", dump(Table::NftIp)),
            ("nft -f -", dump(Table::NftIp6)),
            ("nft -f -", dump(Table::NftShim)),
        ] {
            if !input.trim().is_empty() {
                self.scratch.feed(command, input)?;
            }
        }
        for (tables, table) in [
            ("iptables", Table::IptablesSave),
            ("ip6tables", Table::Ip6tablesSave),
        ] {
            if !dump(table).is_empty() {
                self.restore(tables, dump(table))?;
            }
        }
        kernel::set_details(dump(Table::IpvsDetails))?;
        self.settle(None, case)?;
        let mut dumps = case.expected.clone();
        if self.program.is_nftables() {
            // In nftables mode, the case's script adds the node's addresses. In other modes,
            // nothing that it creates may remain.
            if case.pre.is_script {
                self.run_script(case)?;
            }
            dumps.extend(kernel::dumps()?);
        }
        Ok(InitialState {
            dumps,
            node: node_addresses()?,
            has_no_node_ports: case.has_no_node_ports(),
        })
    }

    /// Runs another kube-proxy of the same mode (`earlier`) through all phases of a case. Returns
    /// the state that it leaves.
    pub(crate) fn run_before(&self, earlier: &Path, case: &Case) -> Result<InitialState> {
        let mut before = self.prepare(case)?;
        let program = Program {
            file: earlier,
            ..self.program
        };
        let no_differences = |_: &Phase, _: &Dumps| String::new();
        (before.dumps, _) =
            self.serve_with(program, case, &case.phases, Check::Unasked, &no_differences)?;
        Ok(before)
    }

    /// Sets the sysctls and IPVS timeouts that upstream left for `case`. Before that, resets the
    /// sysctls of the previous case `before`, because no kube-proxy resets them.
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
        // Form of the dump, in seconds: `Timeout (tcp tcpfin udp): 900 120 300`.
        let timeouts = case.expected.get(&Table::IpvsTimeouts);
        if let Some((_, seconds)) = timeouts.and_then(|line| line.split_once(": ")) {
            let mut command = Command::new("ipvsadm");
            output(command.arg("--set").args(seconds.split_whitespace()))?;
        }
        Ok(())
    }

    /// Starts the daemon with the flags of a case, runs it through `phases`, and stops it. Stops
    /// early after a phase with differences. Returns the final dumps, and the differences.
    pub(crate) fn serve(
        &self,
        case: &Case,
        phases: &[Phase],
        check: Check,
        judge: &Judge<'_>,
    ) -> Result<(Dumps, String)> {
        self.serve_with(self.program, case, phases, check, judge)
    }

    fn serve_with(
        &self,
        program: Program<'_>,
        case: &Case,
        phases: &[Phase],
        check: Check,
        judge: &Judge<'_>,
    ) -> Result<(Dumps, String)> {
        let is_upstream = program.is_upstream;
        let server = Server::spawn(options()).context("cannot start the API server fixture")?;
        if is_upstream {
            let slow = Fault::Slow {
                piece: usize::MAX,
                pause: UPSTREAMS_HEAD_START,
            };
            server
                .faults()
                .add(Rule::from(slow).of(Kind::Service).times(1));
        }
        let mut daemon = None;
        let mut found = Dumps::new();
        for (number, phase) in (1..).zip(phases) {
            give(&server, phase).with_context(|| format!("the objects of phase {number}"))?;
            let daemon: &Running = match &mut daemon {
                Some(daemon) => daemon,
                none => none.insert(self.start(program, case, &server, check)?),
            };
            let differing = self.settled(phase, judge)?;
            if !differing.is_empty() && number < phases.len() {
                let said = last_of(&daemon.said());
                let differing = format!("  phase {number}:\n{differing}  it said:\n{said}");
                return Ok((found, differing));
            }
        }
        let mut daemon = daemon.context("there is no phase")?;
        if let Some(expected) = case.expected.get(&Table::HealthCheckNodePort) {
            let answers = health_checks(&server, expected)?;
            found.insert(Table::HealthCheckNodePort, answers);
        }
        let output = daemon.stop(DONE_WITHIN)?;
        ensure!(
            is_upstream || output.status.success(),
            "kube-proxy ended with {}; it said:\n{}",
            output.status,
            daemon.said()
        );

        // Dumps the final state, on which the next case may start.
        found.extend(self.program.dumps()?);
        let after = settings(Path::new("/proc/sys/net"))?;
        let is_changed = |(key, value): &(&String, &String)| {
            // Only a process in the kernel's initial network namespace can change this sysctl. In
            // any other, the change is not the daemon's.
            let is_ours = self.is_initial || *key != "net/netfilter/nf_conntrack_max";
            is_ours && self.settings.get(*key).is_some_and(|old| old != *value)
        };
        let changes = after.iter().filter(is_changed);
        let changes = changes.flat_map(|(key, value)| [key, ":", value, "\n"]);
        found.insert(Table::SysctlChanges, changes.collect());
        let last = phases.last().context("there is no phase")?;
        let mut differing = judge(last, &found);
        if !differing.is_empty() {
            differing.extend(["  it said:\n", &*last_of(&daemon.said())]);
        }
        Ok((found, differing))
    }

    /// Returns a dump of a case as the installed version of `nft` lists it, because versions of
    /// `nft` list the same kernel state differently.
    pub(crate) fn relisted(&self, table: Table, dump: &str) -> Result<String> {
        if let Some(listing) = self.relisted.borrow().get(dump) {
            return Ok(listing.clone());
        }
        let listing = kernel::relisted(&self.scratch, table, dump)?;
        self.relisted
            .borrow_mut()
            .insert(dump.to_owned(), listing.clone());
        Ok(listing)
    }

    /// Starts the daemon, and waits until it has logged the first sync of each IP family. For
    /// upstream's kube-proxy, which logs no sync, does not wait.
    fn start(
        &self,
        program: Program<'_>,
        case: &Case,
        server: &Server,
        check: Check,
    ) -> Result<Running> {
        let Program {
            file,
            mode,
            is_upstream,
        } = program;
        let kubeconfig = self.scratch.0.join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig())?;
        let mut flags = match &case.config {
            Some(text) => {
                let file = self.scratch.0.join("config.yaml");
                fs::write(
                    &file,
                    text.replace("KUBECONFIG", &kubeconfig.display().to_string()),
                )?;
                vec![format!("--config={}", file.display()), NAME.to_owned()]
            }
            None => vec![
                format!("--proxy-mode={mode}"),
                format!("--kubeconfig={}", kubeconfig.display()),
            ],
        };
        if !is_upstream {
            flags.push(format!("--iptables-backend={}", lab::iptables_backend()));
        }
        if case.config.is_none() {
            flags.extend(case.flags.iter().cloned());
        }
        let command = |first: &[&str]| {
            let mut command = Command::new(file);
            command.args(first).args(&flags);
            command
        };
        let foretold = if check == Check::Unasked {
            None
        } else {
            let mut ask = command(&["check", "--output=json"]);
            let is_wanted = check == Check::Nothing;
            let foretold = foretold(&mut ask, is_wanted)?;
            if let Check::Writes(wanted) = check {
                ensure!(
                    foretold == wanted,
                    "`check` foretold {foretold} writes instead of {wanted}"
                );
            }
            differs(&mut command(&["diff"]), is_wanted, foretold)?;
            Some(foretold)
        };
        let mut daemon = Running::start(command(&[]))?;
        if is_upstream {
            return Ok(daemon);
        }
        // A case with a dump of only the IPv4 table runs on a node without IPv6.
        let nft = [Table::NftIp, Table::NftIp6].map(|table| case.expected.contains_key(&table));
        let families = if nft == [true, false] { 1 } else { 2 };
        let mut written = 0;
        for _family in 0..families {
            let line = daemon.wait_for("first sync done", SYNCED_WITHIN)?;
            written += writes(&line).with_context(|| format!("how many writes: {line}"))?;
        }
        if let Some(foretold) = foretold {
            // In nftables mode, `check` predicts the number of transactions, but the daemon logs
            // the number of changes. So the test only compares whether both are 0.
            let is_so = if self.program.is_nftables() {
                (written == 0) == (foretold == 0)
            } else {
                written == foretold
            };
            ensure!(
                is_so,
                "`check` foretold {foretold} writes, and the start made {written}"
            );
        }
        Ok(daemon)
    }

    /// Waits until the nftables tables have the expected state of a phase and keep it, or until the
    /// timeout. Returns the differences. In other modes, returns no differences at once, because
    /// the test compares only the state at the end of the case.
    fn settled(&self, phase: &Phase, judge: &Judge<'_>) -> Result<String> {
        if !self.program.is_nftables() {
            return Ok(String::new());
        }
        let mut expected = phase.expected.clone();
        expected.retain(|table, _| Table::NFT.contains(table));
        let phase = Phase {
            objects: String::new(),
            expected,
        };
        let differing = || Ok::<_, anyhow::Error>(judge(&phase, &kernel::dumps()?));
        let deadline = Instant::now() + SETTLED_WITHIN;
        while !differing()?.is_empty() && Instant::now() < deadline {
            std::thread::sleep(GLANCE);
        }
        std::thread::sleep(if self.program.is_upstream {
            UPSTREAMS_QUIET
        } else {
            QUIET
        });
        differing()
    }
}

/// Returns the last [`SAID`] lines of a text, indented.
fn last_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(SAID);
    let lines = lines.iter().skip(first);
    lines.flat_map(|line| ["    ", line, "\n"]).collect()
}

/// Returns the options of the API server for which upstream's dumps were made.
fn options() -> Options {
    Options {
        kubernetes_service: true,
        service_cidrs: ["10.96.0.0/12", "fd00:96::/108"],
        ..Options::default()
    }
}

/// Changes the objects of the API server into those of a phase. Deletes objects that the phase
/// lacks.
fn give(server: &Server, phase: &Phase) -> Result<()> {
    let wanted = Cluster::new(&options());
    wanted.apply_yaml(&phase.objects)?;
    let cluster = server.cluster();
    for kind in [
        Kind::Node,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::ServiceCidr,
    ] {
        for object in cluster.list(kind) {
            let text = |path| {
                object
                    .pointer(path)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            if wanted.get(kind, namespace, name).is_none() {
                cluster.delete(kind, namespace, name)?;
            }
        }
    }
    // Objects that are equal already do not change, and cause no watch event.
    cluster.apply_yaml(&phase.objects)?;
    Ok(())
}

fn set(key: &str, value: &str) -> Result<()> {
    fs::write(Path::new("/proc/sys").join(key), value).with_context(|| format!("cannot set {key}"))
}

/// Returns the node's addresses, except those of `lo` and `kube-ipvs0`.
fn node_addresses() -> Result<BTreeSet<String>> {
    let addresses = addresses_on(|device| !matches!(device, "lo" | "kube-ipvs0"))?;
    Ok(addresses
        .iter()
        .map(|address| without_prefix(address))
        .collect())
}

/// Runs `kube-proxy check`. Returns the number of writes that it predicts for both IP families. If
/// the kernel has the wanted state (`is_wanted`), any predicted change is an error.
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

/// Runs `kube-proxy diff`, and checks its result. If the kernel has the wanted state (`is_wanted`),
/// it must print nothing and exit with 0. Otherwise it may also print differences and exit with 1.
fn differs(diff: &mut Command, is_wanted: bool, foretold: u64) -> Result<()> {
    let output = diff
        .output()
        .with_context(|| format!("cannot run {diff:?}"))?;
    let is_so = match output.status.code() {
        Some(0) => output.stdout.is_empty() && foretold == 0,
        // `diff` prints sysctls as well, which do not count as writes.
        Some(1) => !output.stdout.is_empty() && !is_wanted,
        _ => false,
    };
    ensure!(
        is_so,
        "`check` foretold {foretold} writes, and `diff` says otherwise: {output:?}"
    );
    Ok(())
}

/// Returns the number of writes in a log line with `written=12`, or `None` if the line has none.
fn writes(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("written=")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn dumps() -> Result<Dumps> {
    let command = |words: &str| {
        let mut words = words.split(' ');
        output(Command::new(words.next().unwrap_or_default()).args(words))
    };
    let bound = addresses_on(|device| device == "kube-ipvs0")?;
    let mut dumps = Dumps::from([
        (Table::IpvsadmSave, command("ipvsadm -Sn")?),
        (Table::IpsetSave, command("ipset save")?),
        (Table::KubeIpvs0Addresses, bound.join("\n")),
        (Table::LocalRoutes, routes()?),
        (Table::IpvsDetails, kernel::details()?),
        (Table::NftShim, kernel::shims()?),
        (Table::IpvsTimeouts, command("ipvsadm -l --timeout")?),
    ]);
    dumps.extend(iptables()?);
    Ok(dumps)
}

fn iptables() -> Result<Dumps> {
    let save = |tables: &str| {
        output(&mut Command::new(format!(
            "{tables}-{}-save",
            lab::iptables_backend()
        )))
    };
    Ok(Dumps::from([
        (Table::IptablesSave, save("iptables")?),
        (Table::Ip6tablesSave, save("ip6tables")?),
    ]))
}

/// Returns the local routes that a kube-proxy has added, one per line, such as
/// `local 10.96.0.1 dev kube-ipvs0 scope host`.
fn routes() -> Result<String> {
    let mut routes = String::new();
    for family in ["-4", "-6"] {
        let words = ["ip", family, "route", "show"].into_iter();
        let mut words = words.chain(ROUTES.split(' '));
        let mut command = Command::new(words.next().unwrap_or_default());
        for line in output(command.args(words))?.lines() {
            // Removes flags that describe the link's state, which are not part of the route.
            let is_state = |word: &&str| matches!(*word, "dead" | "linkdown");
            let route: Vec<&str> = line.split_whitespace().filter(|w| !is_state(w)).collect();
            routes.extend([&*route.join(" "), "\n"]);
        }
    }
    Ok(routes)
}

/// Returns the addresses on the wanted devices, with prefix lengths, such as `10.96.0.1/32`.
fn addresses_on(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let lines = output(Command::new("ip").args(["-oneline", "address", "show"]))?;
    // Lines have the form `7: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\ …`.
    let address = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let is_wanted = is_wanted(words.next()?);
        words.nth(1).filter(|_| is_wanted).map(str::to_owned)
    };
    Ok(lines.lines().filter_map(address).collect())
}

/// Requests every health-check node port over IPv4 and IPv6, and returns the responses. Repeats
/// this until they are as `expected` or a time limit is over, because the daemon opens these ports
/// after its first sync.
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
                // A refused connection is no error: its response is empty.
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

/// Returns the content of each readable file in a directory of `/proc/sys`, by its path from `net`
/// on.
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
                // Skips files that are write-only, or readable only after a write.
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
