//! One process to read all rules of a family, and one to write any number of them.
//!
//! iptables has two backends that do not see each other's rules, and a host's kubelet, CNI and kube-proxy must agree on
//! one. It is chosen once, at start, for both families, and called by its own name (`iptables-nft-restore`), never by
//! what the distribution's `iptables` happens to be: in a container that says nothing about the host.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::program::{Finished, Input, Limit, Program};
use crate::reading::{self, Reading, Readings, State, Verdict};
use crate::{legacy, nft};

/// Longest time that a restore may take: 5 s of it is its own wait for the lock of legacy iptables.
const RESTORE_LIMIT: Duration = Duration::from_secs(10);
/// Further time for each MiB of rules that are there already.
const MEBIBYTE_LIMIT: Duration = Duration::from_secs(10);
/// A save prints the rules of others, too, of which there may be very many.
const SAVE_LIMIT: Duration = Duration::from_secs(30);
/// One of all tables that is read as it comes has so many rules of our own; but while it works, it tells them.
const LONG_SAVE_LIMIT: Limit = Limit {
    whole: Duration::from_mins(5),
    silence: Duration::from_mins(1),
};
/// First version with `iptables-restore -w` and `MASQUERADE --random-fully`.
const MODERN: [u32; 3] = [1, 6, 2];
/// Chains by which the kubelet tells which backend it uses (KEP-3178), in table mangle.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];
/// What the nft backend says (`Failed to initialize nft: `) where the kernel has no nftables.
const UNSUPPORTED: &str = "Protocol not supported";
/// What is tried is written into a chain of this name.
const PROBE_CHAIN: &str = "KUBE-PROXY-PROBE";
/// Changes nothing, and yet makes the kernel take table nat, a match and a target. Neither a save nor `--test` does: both
/// succeed with the nft backend on a kernel that cannot do NAT with nftables.
const PROBE: &str = "*nat\n:KUBE-PROXY-PROBE - [0:0]\n\
    -A KUBE-PROXY-PROBE -m addrtype --dst-type LOCAL -j MARK --set-xmark 0x0/0x0\n\
    -F KUBE-PROXY-PROBE\n-X KUBE-PROXY-PROBE\nCOMMIT\n";

/// Which of the kernel's two packet filters iptables writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// nftables, through `nft_compat`.
    Nft,
    /// `ip_tables`.
    Legacy,
}

impl Backend {
    /// Preferred first, as upstream's iptables-wrappers do where nothing speaks for either.
    const ALL: [Self; 2] = [Self::Nft, Self::Legacy];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        })
    }
}

/// Why iptables cannot be used, or did not do what it was to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IptablesError {
    /// There is no such program.
    #[error("`{0}` is not here: install the package iptables (in a container: in its image)")]
    Missing(String),
    /// No backend that is installed, or the one asked for, can write to this kernel.
    #[error(
        "no backend of iptables works here ({0}): load its kernel modules (`modprobe -a iptable_nat iptable_filter`, or `modprobe -a nft_compat nft_chain_nat`) or choose another with --iptables-backend"
    )]
    Unusable(String),
    /// The kernel has no IPv6.
    #[error(
        "there is no IPv6 here (no /proc/net/if_inet6): run `modprobe ipv6`, and look for ipv6.disable=1 in /proc/cmdline"
    )]
    NoIpv6,
    /// It could not be started, or read from.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Which program.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// It did not end in time, and was killed.
    #[error("{program} did not end within {} s and was killed: look at what keeps the machine, or the lock /run/xtables.lock, busy (`fuser -v /run/xtables.lock`)", limit.as_secs())]
    TimedOut {
        /// Which program.
        program: String,
        /// The time it had.
        limit: Duration,
    },
    /// It said no.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which program.
        program: String,
        /// What it said, the line of the input that it names, and the next step.
        said: String,
    },
}

impl IptablesError {
    /// Whether the kernel cannot hold any rules of this backend, so that there are none.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Failed { said, .. } if said.contains(UNSUPPORTED))
    }
}

/// The iptables programs of one backend, for both families, in the network namespace of the threads that use it: what is read is
/// kept, with what tells when it has changed.
#[derive(Debug, Clone)]
pub struct Iptables {
    backend: Backend,
    /// Between `iptables` and `-save` in the programs' names.
    infix: &'static str,
    is_modern: bool,
    readings: Arc<Readings>,
}

impl Iptables {
    /// Chooses the backend, for the network namespace of the calling thread: the one asked for; else the one that the
    /// kubelet's hints are in; else the one with `KUBE-*` chains, of whoever; else the one with more rules; else nft. One
    /// that does not work is not chosen. Starts a process for each family that has to be read to know, which need not be
    /// read again, and where the kernel does not say what it can do.
    pub fn choose(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        Self::choose_loading(wanted, &[])
    }

    /// The same; where kernel modules of the backend have to be loaded, these, which its rules or what they name will need beside
    /// [`MODULES`](crate::MODULES), are loaded in the same process: else each costs a process as it is first needed.
    pub fn choose_loading(
        wanted: Option<Backend>,
        modules: &[&str],
    ) -> Result<Self, IptablesError> {
        let mut never = Vec::new();
        let mut reasons = Vec::new();
        for iptables in Self::candidates(wanted)? {
            iptables.load_modules(modules);
            let verdicts = IpFamily::ALL.map(|family| iptables.verdict(family));
            if verdicts.contains(&Verdict::Works) {
                return Ok(iptables);
            }
            if verdicts == [Verdict::Never; 2] {
                never.push(iptables);
                continue;
            }
            match iptables.try_both() {
                Ok(()) => return Ok(iptables),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        // Nothing is left: iptables has the words for what the kernel has not.
        for iptables in never {
            match iptables.try_both() {
                Ok(()) => return Ok(iptables),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(IptablesError::Unusable(reasons.join("; ")))
    }

    fn try_both(&self) -> Result<(), IptablesError> {
        let works = |family| self.try_writing(family);
        works(IpFamily::V4).or_else(|error| works(IpFamily::V6).map_err(|_| error))
    }

    /// Chooses like [`choose`](Self::choose), but by looking alone: whether it can write is not tried, only whether it can
    /// read.
    pub fn look(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        let mut reasons = Vec::new();
        for iptables in Self::candidates(wanted)? {
            match iptables.save(IpFamily::V4) {
                Ok(_) => return Ok(iptables),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(IptablesError::Unusable(reasons.join("; ")))
    }

    /// All that are installed.
    pub fn installed() -> Result<Vec<Self>, IptablesError> {
        let readings = Arc::default();
        let named = |backend| Self::named(backend, &readings);
        let mut found: Vec<Self> = Backend::ALL.into_iter().filter_map(named).collect();
        if found.is_empty() {
            found.extend(Self::plain()?);
        }
        Ok(found)
    }

    /// The installed ones of other backends, in the same network namespace.
    pub fn other_than(used: &Self) -> impl Iterator<Item = Self> {
        let others = Backend::ALL
            .into_iter()
            .filter(|backend| *backend != used.backend);
        others.filter_map(|backend| Self::named(backend, &used.readings))
    }

    /// Those that are wanted, the one that most speaks for first.
    fn candidates(wanted: Option<Backend>) -> Result<Vec<Self>, IptablesError> {
        let is_wanted = |found: &Self| wanted.is_none_or(|backend| backend == found.backend);
        let readings = Arc::default();
        let mut found: Vec<Self> = Backend::ALL
            .into_iter()
            .filter_map(|backend| Self::named(backend, &readings))
            .filter(is_wanted)
            .collect();
        if found.is_empty() {
            found.extend(Self::plain()?.filter(is_wanted));
        }
        if found.is_empty() {
            let infix = wanted.map_or_else(String::new, |backend| format!("-{backend}"));
            return Err(IptablesError::Missing(format!("iptables{infix}-restore")));
        }
        // Where nothing speaks for any but the first, the order is right.
        if found.iter().skip(1).any(|iptables| !iptables.is_bare()) {
            found.sort_by_cached_key(|iptables| Reverse(iptables.evidence()));
        }
        Ok(found)
    }

    /// What was chosen.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether it knows `MASQUERADE --random-fully` (1.6.2).
    pub fn random_fully(&self) -> bool {
        self.is_modern
    }

    /// Whether it can write rules of a family here. Starts a process where the kernel does not say, or says no.
    pub fn check(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.verdict(family) {
            Verdict::Works => Ok(()),
            Verdict::Never | Verdict::Unknown => self.try_writing(family),
        }
    }

    /// Whether it can read rules of a family here. Starts a process where the kernel does not say, or says no.
    pub fn check_reading(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.state(family) {
            Some(State::Empty | State::Holds(_)) => Ok(()),
            Some(State::Unsupported) | None => self.save(family).map(drop),
        }
    }

    fn try_writing(&self, family: IpFamily) -> Result<(), IptablesError> {
        self.restore(family, PROBE)?;
        self.readings.of(self.backend, family).set_works();
        Ok(())
    }

    /// Whether the kernel takes rules, each with its table before it, those of a table in a row:
    /// what iptables writes behind `-A CHAIN`. They are written into a chain that nothing leads to,
    /// and taken away again: only a transaction that is ended tells, in either backend.
    pub fn try_rules(
        &self,
        family: IpFamily,
        rules: &[(&str, impl AsRef<str>)],
    ) -> Result<(), IptablesError> {
        let (mut write, mut forget) = (String::new(), String::new());
        for rules in rules.chunk_by(|one, next| one.0 == next.0) {
            let table = rules.first().map_or("", |first| first.0);
            let begin = format!("*{table}\n:{PROBE_CHAIN} - [0:0]\n");
            write.push_str(&begin);
            for (_, rule) in rules {
                let _ = writeln!(write, "-A {PROBE_CHAIN} {}", rule.as_ref());
            }
            write.push_str("COMMIT\n");
            let _ = write!(forget, "{begin}-X {PROBE_CHAIN}\nCOMMIT\n");
        }
        let written = self.restore(family, &write);
        // Of several tables, those before the one that was refused are written.
        let forgotten = self.restore(family, &forget);
        written.and(forgotten)
    }

    fn load_modules(&self, needed: &[&str]) {
        match self.backend {
            Backend::Nft => nft::load_modules(needed),
            Backend::Legacy => legacy::load_modules(needed),
        }
    }

    fn verdict(&self, family: IpFamily) -> Verdict {
        let slot = self.readings.of(self.backend, family);
        if slot.works() {
            return Verdict::Works;
        }
        let verdict = match self.backend {
            Backend::Nft => nft::probe(family),
            Backend::Legacy => legacy::probe(family),
        };
        if verdict == Verdict::Works {
            slot.set_works();
        }
        verdict
    }

    fn state(&self, family: IpFamily) -> Option<State> {
        match self.backend {
            Backend::Nft => nft::state(family),
            Backend::Legacy => legacy::state(family),
        }
    }

    /// Whether the kernel says that there is nothing to read of a family. Starts no process.
    pub fn is_empty(&self, family: IpFamily) -> bool {
        matches!(self.state(family), Some(State::Empty | State::Unsupported))
    }

    fn is_bare(&self) -> bool {
        IpFamily::ALL.iter().all(|family| self.is_empty(*family))
    }

    /// The rules of all tables in use, and where there are none, perhaps nothing. Costs a process unless there is nothing to read, or
    /// what was last read is what is there.
    pub fn save(&self, family: IpFamily) -> Result<Arc<str>, IptablesError> {
        let mut saved = String::new();
        let mut line = |line: &str| {
            saved.push_str(line);
            saved.push('\n');
        };
        match self.read(family, SAVE_LIMIT.into(), &mut line)? {
            Some(kept) => Ok(kept),
            None => Ok(saved.into()),
        }
    }

    /// The lines of one table, or of all tables in use, one after the other. Costs a process on the same terms. One table is a
    /// short look, which waits for nobody who reads all of them.
    pub fn save_lines(
        &self,
        family: IpFamily,
        table: Option<&str>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        let Some(table) = table else {
            return self.read(family, LONG_SAVE_LIMIT, line).map(drop);
        };
        if let Some(kept) = self.kept(family) {
            let heading = format!("*{table}");
            let lines = kept.lines().skip_while(|line| *line != heading);
            let (end, mut is_over) = ("COMMIT", false);
            for each in lines {
                if is_over {
                    break;
                }
                line(each);
                is_over = each == end;
            }
            return Ok(());
        }
        self.stream(family, &["-t", table], SAVE_LIMIT.into(), line)
    }

    /// Tells the lines of all tables in use, and gives them as a text if that is kept.
    fn read(
        &self,
        family: IpFamily,
        limit: Limit,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Option<Arc<str>>, IptablesError> {
        let mut last = self.readings.of(self.backend, family).lock();
        // Before the rules: what changes later has another number.
        let number = match self.state(family) {
            Some(State::Empty) => return Ok(Some("".into())),
            Some(State::Holds(number)) => number,
            Some(State::Unsupported) | None => None,
        };
        if let Some(reading) = last.as_ref().filter(|last| Some(last.number) == number) {
            reading.text.lines().for_each(line);
            return Ok(Some(Arc::clone(&reading.text)));
        }
        *last = None;
        let mut text = Some(String::new());
        let mut keep = |each: &str| {
            line(each);
            text = text
                .take()
                .filter(|text| number.is_some() && text.len() + each.len() < reading::MOST);
            if let Some(text) = &mut text {
                text.push_str(each);
                text.push('\n');
            }
        };
        self.stream(family, &[], limit, &mut keep)?;
        let kept = number.zip(text).map(|(number, text)| Reading {
            number,
            text: text.into(),
        });
        let text = kept.as_ref().map(|reading| Arc::clone(&reading.text));
        *last = kept;
        Ok(text)
    }

    /// What was read of all tables, if that is what is there; `None` while they are being read.
    fn kept(&self, family: IpFamily) -> Option<Arc<str>> {
        let last = self.readings.of(self.backend, family).try_lock()?;
        let last = last.as_ref()?;
        let is_there = self.state(family) == Some(State::Holds(Some(last.number)));
        is_there.then(|| Arc::clone(&last.text))
    }

    fn stream(
        &self,
        family: IpFamily,
        arguments: &[&str],
        limit: Limit,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        let program = self.program(family, "save")?;
        let mut output = |source: &mut dyn BufRead| {
            let mut bytes = Vec::new();
            // What could be read before an error still counts, and then the program has failed.
            while source
                .read_until(b'\n', &mut bytes)
                .is_ok_and(|read| read > 0)
            {
                line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
                bytes.clear();
            }
        };
        let began = Instant::now();
        match program.stream(arguments, None, &mut output, limit) {
            Ok(finished) if finished.status.success() => Ok(()),
            result => Err(failure(&program, result, began.elapsed(), |_| None)),
        }
    }

    /// Applies `text` without touching chains that it does not name: each of its tables whole, or not at all.
    pub fn restore(&self, family: IpFamily, text: &str) -> Result<(), IptablesError> {
        self.restore_within(RESTORE_LIMIT, family, text)
    }

    /// The same among rules of which so many characters are there: legacy iptables takes in a table whole and writes it whole.
    pub fn restore_among(
        &self,
        saved: usize,
        family: IpFamily,
        text: &str,
    ) -> Result<(), IptablesError> {
        let mebibytes = u32::try_from(saved >> 20).unwrap_or(u32::MAX);
        let limit = RESTORE_LIMIT.saturating_add(MEBIBYTE_LIMIT.saturating_mul(mebibytes));
        self.restore_within(limit, family, text)
    }

    fn restore_within(
        &self,
        limit: Duration,
        family: IpFamily,
        text: &str,
    ) -> Result<(), IptablesError> {
        self.restore_from(limit, family, &mut |sink| sink.write_all(text.as_bytes()))
    }

    /// The same with a text that is written piece by piece; once more if it is refused, to find the line that is blamed.
    pub fn restore_from(
        &self,
        limit: Duration,
        family: IpFamily,
        text: Input<'_>,
    ) -> Result<(), IptablesError> {
        let _turn = self.readings.turn();
        let program = self.program(family, "restore")?;
        let arguments: &[&str] = if self.is_modern {
            &["-w", "5", "--noflush"]
        } else {
            &["--noflush"]
        };
        match program.stream(arguments, Some(&mut *text), &mut |_| {}, limit) {
            Ok(finished) if finished.status.success() => Ok(()),
            result => Err(failure(&program, result, limit, |number| {
                let mut finder = LineFinder::new(number);
                // That it stops at the line is no failure.
                let _ = text(&mut finder);
                finder.found()
            })),
        }
    }

    /// The programs that are named after the backend. These are there since 1.8.
    fn named(backend: Backend, readings: &Arc<Readings>) -> Option<Self> {
        let iptables = Self {
            backend,
            infix: match backend {
                Backend::Nft => "-nft",
                Backend::Legacy => "-legacy",
            },
            is_modern: true,
            readings: Arc::clone(readings),
        };
        let has = |verb| iptables.program(IpFamily::V4, verb).is_ok();
        (has("save") && has("restore")).then_some(iptables)
    }

    /// The programs of old, or of a host with only one backend: they tell what they are.
    fn plain() -> Result<Option<Self>, IptablesError> {
        let Some(program) = Program::find("iptables-save") else {
            return Ok(None);
        };
        let (version, backend) = version(&run(&program, &["--version"], "", SAVE_LIMIT)?.stdout);
        Ok(Some(Self {
            backend,
            infix: "",
            is_modern: version >= MODERN,
            readings: Arc::default(),
        }))
    }

    fn program(&self, family: IpFamily, verb: &str) -> Result<Program, IptablesError> {
        let stem = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let name = format!("{stem}{}-{verb}", self.infix);
        Program::find(&name).ok_or(IptablesError::Missing(name))
    }

    fn evidence(&self) -> Evidence {
        let mut evidence = Evidence::default();
        for family in IpFamily::ALL {
            if self.is_empty(family) {
                continue;
            }
            let mut found = Evidence::default();
            // What cannot be read says nothing.
            if self
                .save_lines(family, None, &mut |line| found.add(line))
                .is_ok()
            {
                evidence.add_all(&found);
            }
        }
        evidence
    }
}

/// Whether the kernel has a family.
pub fn exists(family: IpFamily) -> Result<(), IptablesError> {
    if family == IpFamily::V6 && !Path::new("/proc/thread-self/net/if_inet6").exists() {
        return Err(IptablesError::NoIpv6);
    }
    Ok(())
}

/// What speaks for a backend, the strongest first.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Evidence {
    has_hint: bool,
    has_chains: bool,
    rules: usize,
}

impl Evidence {
    fn add(&mut self, line: &str) {
        self.has_hint |= HINTS.iter().any(|hint| line.starts_with(hint));
        self.has_chains |= line.starts_with(":KUBE-");
        self.rules += usize::from(line.starts_with("-A "));
    }

    fn add_all(&mut self, other: &Self) {
        self.has_hint |= other.has_hint;
        self.has_chains |= other.has_chains;
        self.rules += other.rules;
    }
}

/// Reads `iptables-save v1.8.9 (nf_tables)`. Before 1.8 there was only legacy, and nothing in parentheses.
fn version(text: &str) -> ([u32; 3], Backend) {
    let number = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('v'));
    let mut version = [0; 3];
    for (part, text) in version
        .iter_mut()
        .zip(number.unwrap_or_default().split('.'))
    {
        *part = text.parse().unwrap_or(0);
    }
    let is_nft = text.contains("(nf_tables)");
    (
        version,
        if is_nft {
            Backend::Nft
        } else {
            Backend::Legacy
        },
    )
}

fn run(
    program: &Program,
    arguments: &[&str],
    input: &str,
    limit: Duration,
) -> Result<Finished, IptablesError> {
    match program.run(arguments, input, limit) {
        Ok(finished) if finished.status.success() => Ok(finished),
        result => Err(failure(program, result, limit, |number| {
            Some(input.lines().nth(number.checked_sub(1)?)?.to_owned())
        })),
    }
}

/// Why it did not succeed. `line` finds a line of the input by its number, from 1 on.
fn failure(
    program: &Program,
    result: io::Result<Finished>,
    limit: Duration,
    line: impl FnOnce(usize) -> Option<String>,
) -> IptablesError {
    let name = program.path().file_name().unwrap_or_default();
    let program = name.to_string_lossy().into_owned();
    match result {
        Ok(finished) => IptablesError::Failed {
            program,
            said: match explain(&finished.stderr, line) {
                said if said.is_empty() => finished.status.to_string(),
                said => said,
            },
        },
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            IptablesError::TimedOut { program, limit }
        }
        Err(source) => IptablesError::Run { program, source },
    }
}

/// A sink that keeps one line of what is written to it, and takes nothing behind that.
struct LineFinder {
    /// How many lines are before it still; `None` when it is complete.
    before: Option<usize>,
    line: Vec<u8>,
}

impl LineFinder {
    fn new(number: usize) -> Self {
        Self {
            before: number.checked_sub(1),
            line: Vec::new(),
        }
    }

    fn found(self) -> Option<String> {
        let is_found = self.before.is_none() && !self.line.is_empty();
        is_found.then(|| String::from_utf8_lossy(&self.line).into_owned())
    }
}

impl Write for LineFinder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match (self.before, byte) {
                (None, _) => return Err(io::ErrorKind::WriteZero.into()),
                (Some(0), b'\n') => self.before = None,
                (Some(0), byte) => self.line.push(*byte),
                (Some(before), b'\n') => self.before = Some(before - 1),
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What iptables said, made readable: its first lines, the input line that it blames, and what to do.
fn explain(stderr: &str, line: impl FnOnce(usize) -> Option<String>) -> String {
    let lines = stderr.lines().map(str::trim).filter(|line| {
        !(line.is_empty()
            || line.starts_with("Try `")
            || line.starts_with("Error occurred at line"))
    });
    let mut said = lines.take(4).collect::<Vec<_>>().join("; ");
    let blamed = stderr
        .match_indices("line")
        .filter_map(|(at, word)| stderr.get(at + word.len()..))
        .find_map(|rest| {
            let rest = rest.trim_start_matches([':', ' ']);
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest.get(..digits)?.parse::<usize>().ok()
        })
        .and_then(|number| Some((number, line(number)?)));
    if let Some((number, line)) = &blamed {
        let _ = write!(said, "; line {number} is `{line}`");
    }
    let next = if said.contains("xtables lock")
        || said.contains("xtables.lock") && said.contains("unavailable")
    {
        "find who holds the lock (`fuser -v /run/xtables.lock`); it will be tried again"
    } else if ["ermission denied", "must be root", "open socket to ipset"]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "run as root, or with CAP_NET_ADMIN and CAP_NET_RAW and a writable /run/xtables.lock"
    } else if said.contains("Set ") && said.contains("exist") {
        "see why the set could not be made; the rules will be tried again"
    } else if blamed.is_some_and(|(_, line)| line == "COMMIT")
        || [
            "initialize table",
            "missing kernel module",
            "TABLE_ADD",
            "RULE_APPEND",
            "Couldn't load",
        ]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "a kernel module that the rules need may be missing: see `dmesg`, and run `modprobe -a xt_set xt_comment xt_mark \
         xt_addrtype xt_conntrack xt_physdev xt_ipvs xt_MASQUERADE` and the modules of the backend; legacy iptables needs \
         CAP_NET_RAW, too"
    } else {
        return said;
    };
    let _ = write!(said, "; {next}");
    said
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn versions_tell_backend_and_age() {
        let read = |text| version(text);
        assert_eq!(
            read("iptables-save v1.8.9 (legacy)\n"),
            ([1, 8, 9], Backend::Legacy)
        );
        assert_eq!(
            read("iptables-nft-save v1.8.9 (nf_tables)\n"),
            ([1, 8, 9], Backend::Nft)
        );
        assert_eq!(read("iptables-save v1.6.1\n"), ([1, 6, 1], Backend::Legacy));
        assert_eq!(read("iptables-save v1.10\n"), ([1, 10, 0], Backend::Legacy));
        assert_eq!(read("nonsense"), ([0, 0, 0], Backend::Legacy));
        assert!(
            read("v1.6.1").0 < MODERN && read("v1.6.2").0 >= MODERN && read("v2.0").0 >= MODERN
        );
    }

    #[test]
    fn hints_count_more_than_chains_and_chains_more_than_rules() {
        let of = |saved: &str| {
            let mut evidence = Evidence::default();
            saved.lines().for_each(|line| evidence.add(line));
            evidence
        };
        let hint = of("*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n");
        let chains = of("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n");
        let rules = of(
            "*filter\n:INPUT DROP [1:2]\n-A INPUT -j ACCEPT\n-A INPUT -j KUBE-SERVICES\nCOMMIT\n",
        );
        let nothing =
            of("# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n");
        assert!(hint > chains && chains > rules && rules > nothing);
        assert!(!of(":KUBE-IPTABLES-HINTS - [0:0]").has_hint);
        assert_eq!(nothing, Evidence::default());
    }

    #[test]
    fn a_look_at_one_table_does_not_wait_for_who_reads_all() {
        let iptables = Iptables {
            backend: Backend::Legacy,
            infix: "-legacy",
            is_modern: true,
            readings: Arc::default(),
        };
        let looker = iptables.clone();
        let _reading = iptables.readings.of(Backend::Legacy, IpFamily::V4).lock();
        let (say, told) = mpsc::channel();
        thread::spawn(move || say.send(looker.kept(IpFamily::V4)));
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(None));
    }

    // What iptables 1.8.9 really says, on Linux 6.1.

    fn said_of(stderr: &str, input: &str) -> String {
        explain(stderr, |number| {
            let mut finder = LineFinder::new(number);
            let _ = finder.write(input.as_bytes());
            finder.found()
        })
    }

    const INPUT: &str =
        "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -m set --match-set NOPE dst -j RETURN\nCOMMIT\n";

    #[test]
    fn the_line_that_iptables_blames_is_shown() {
        let said = said_of(
            "iptables-restore v1.8.9 (legacy): Set NOPE doesn't exist.\n\nError occurred at line: 3\n\
             Try `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
            INPUT,
        );
        assert_eq!(
            said,
            "iptables-restore v1.8.9 (legacy): Set NOPE doesn't exist.; line 3 is `-A KUBE-X -m set --match-set NOPE dst \
             -j RETURN`; see why the set could not be made; the rules will be tried again"
        );
    }

    #[test]
    fn missing_modules_are_suspected_where_the_kernel_refuses_a_table() {
        for stderr in [
            "Warning: Extension physdev revision 0 not supported, missing kernel module?\niptables-restore: line 4 failed\n",
            "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'\nError occurred at line: 1\n",
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: TABLE_ADD failed (Operation not supported): table nat\n\
             line 2: CHAIN_USER_ADD failed (No such file or directory): chain KUBE-X\n",
        ] {
            let said = said_of(stderr, INPUT);
            assert!(said.contains("modprobe -a xt_set"), "{said}");
            assert!(said.contains("; line "), "{said}");
        }
    }

    #[test]
    fn other_refusals_have_their_own_next_step() {
        let lock = "Can't lock /run/xtables.lock: Resource temporarily unavailable\n\
             Another app is currently holding the xtables lock. Stopped waiting after 5s.\n";
        assert!(said_of(lock, INPUT).contains("fuser"));
        let rights = "Fatal: can't open lock file /run/xtables.lock: Permission denied\n";
        assert!(said_of(rights, INPUT).contains("CAP_NET_RAW"));
        // The match `set` asks ipset through a raw socket, in both backends.
        let raw = "iptables-nft-restore v1.8.9 (nf_tables): Can't open socket to ipset.\n";
        assert!(said_of(raw, INPUT).contains("CAP_NET_RAW"));
        assert_eq!(said_of("no reason\n", INPUT), "no reason");
        assert_eq!(
            said_of("line 99999999999999999999 line 0 line", INPUT)
                .matches(" is `")
                .count(),
            0
        );
        assert_eq!(said_of("", ""), "");
    }
}
