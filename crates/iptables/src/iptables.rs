//! Reads rules with the iptables programs of one backend, and checks that these programs can read
//! and write rules.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inet::IpFamily;

use crate::backend::{Backend, BackendReason, exists};
use crate::error::{IptablesError, Kind, failure};
use crate::legacy::LegacyTables;
use crate::native::{self, PrintedTables};
use crate::obstacles::{DormantTable, TakenChain};
use crate::program::{Limit, Program};
use crate::reading::{self, Reading, Readings, RuleSupport, TablesState};
use crate::restore::restore_text;
use crate::rule::{Match, Rule, SourcePort, Target};
use crate::saved::Line;
use crate::table::Table;
use crate::{legacy, modules, nft};

/// Time limit for most runs of an iptables program. The limit is long, because `iptables-save`
/// prints the rules of all programs on the node, which may be very many.
pub(crate) const SAVE_LIMIT: Duration = Duration::from_secs(30);
/// Time limits for an `iptables-save` of all tables whose lines the caller handles while the
/// program prints.
const LONG_SAVE_LIMIT: Limit = Limit {
    whole: Duration::from_mins(5),
    silence: Duration::from_mins(1),
};
/// Name of the temporary chain into which checks write test rules.
const PROBE_CHAIN: &str = "KUBE-PROXY-PROBE";

/// The iptables programs of one backend, for both families, in the network namespace of the calling
/// thread. Stores the rules of the last read, and a number that changes whenever the rules change.
#[derive(Debug, Clone)]
pub struct Iptables {
    pub(crate) backend: Backend,
    /// Part of the programs' names between `iptables` and `-save`, such as `-nft`.
    pub(crate) infix: &'static str,
    /// True if the programs support `iptables-restore -w` and `MASQUERADE --random-fully`.
    pub(crate) is_modern: bool,
    pub(crate) readings: Arc<Readings>,
    pub(crate) why: BackendReason,
}

/// A request to `iptables-save`.
#[derive(Debug, Clone, Copy)]
struct SaveRequest {
    /// Table to print, or `None` for all tables.
    table: Option<Table>,
    /// True if the program prints each rule with its counters.
    is_counted: bool,
    limit: Limit,
}

/// Returns the names of the iptables tables that exist in nf_tables. If `only` is set, considers
/// only this table.
fn nft_tables(family: IpFamily, only: Option<Table>) -> Result<Vec<&'static str>, IptablesError> {
    let mut tables = nft::kernel_rules::tables(family).map_err(|error| unlisted(&error))?;
    tables.retain(|table| only.is_none_or(|only| only.name() == *table));
    Ok(tables)
}

pub(crate) fn unlisted(error: &netlink_batch::Error) -> IptablesError {
    IptablesError::Unlisted {
        why: error.to_string(),
    }
}

impl Backend {
    /// Returns the chains of this backend's tables mangle, filter and nat, in the network namespace
    /// of the caller. Omits the built-in chains of legacy iptables. Returns `None` if the chains
    /// cannot be read. Starts no process.
    pub fn chains(self, family: IpFamily) -> Option<Vec<(Table, String)>> {
        match self {
            Self::Nft => nft::chains(family),
            Self::Legacy => legacy::chains(family),
        }
    }

    /// Returns this backend's tables that nft has made dormant, in the network namespace of the
    /// caller. Starts no process.
    ///
    /// # Errors
    ///
    /// Fails if the query to the kernel fails.
    pub fn dormant_tables(self, family: IpFamily) -> Result<Vec<DormantTable>, IptablesError> {
        let names = match self {
            Self::Nft => nft::dormant_tables(family).map_err(|error| unlisted(&error))?,
            Self::Legacy => Vec::new(),
        };
        let names = names.into_iter();
        Ok(names.map(|name| DormantTable { family, name }).collect())
    }
}

impl Iptables {
    /// Returns the reason for the choice of this backend.
    pub fn why(&self) -> BackendReason {
        self.why
    }

    /// Returns the backend of these programs.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the kind of source port for masqueraded flows: random if the programs support
    /// `MASQUERADE --random-fully` (iptables 1.6.2).
    pub fn source_port(&self) -> SourcePort {
        if self.is_modern {
            SourcePort::Random
        } else {
            SourcePort::Kept
        }
    }

    /// Checks that the programs can write rules of an IP family. Runs a program only if the
    /// kernel's replies to netlink or socket queries leave this open.
    ///
    /// # Errors
    ///
    /// Fails if rules cannot be written. The error contains the reason.
    pub fn check(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.verdict(family) {
            RuleSupport::Works => Ok(()),
            RuleSupport::Never | RuleSupport::Lacks | RuleSupport::Unknown => {
                self.try_writing(family)
            }
        }
    }

    /// Checks that the programs can read rules of an IP family. Runs a program only if the kernel's
    /// replies to netlink or socket queries leave this open.
    ///
    /// # Errors
    ///
    /// Fails if rules cannot be read. The error contains the reason.
    pub fn check_reading(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.state(family) {
            Some(TablesState::Empty | TablesState::Holds(_)) => Ok(()),
            Some(TablesState::Unsupported) | None => self.save(family).map(drop),
        }
    }

    /// Returns true if the kernel certainly lacks this revision of an iptables match, and false if
    /// the query fails. Starts no process, but the kernel may load a module.
    pub fn lacks_match(&self, family: IpFamily, name: &str, revision: u8) -> bool {
        match self.backend {
            Backend::Legacy => LegacyTables::open(family)
                .and_then(|tables| tables.has_match(name, revision))
                .is_err_and(|error| legacy::is_unknown(&error)),
            Backend::Nft => {
                nft::has_match(family, name, revision).is_err_and(|error| nft::is_unknown(&error))
            }
        }
    }

    /// Returns true if the kernel has not loaded legacy iptables, but has module files for it and
    /// for the module `further`. Loading these modules may then add a missing feature. Returns
    /// false for nft. Loads no module.
    pub fn may_load(&self, family: IpFamily, further: &str) -> bool {
        let tables = match (self.backend, family) {
            // For nft, the kernel loads modules on request.
            (Backend::Nft, _) => return false,
            (Backend::Legacy, IpFamily::V4) => "ip_tables",
            (Backend::Legacy, IpFamily::V6) => "ip6_tables",
        };
        modules::is_loadable(tables) && modules::have_files(&[tables, further])
    }

    /// Returns the built-in and `KUBE-*` chains that this backend cannot use: nft has created
    /// chains of these names with another hook, type or priority. Starts no process.
    ///
    /// # Errors
    ///
    /// Fails if the query to the kernel fails.
    pub fn taken_chains(&self, family: IpFamily) -> Result<Vec<TakenChain>, IptablesError> {
        match self.backend {
            Backend::Nft => native::taken_chains(family).map_err(|error| unlisted(&error)),
            Backend::Legacy => Ok(Vec::new()),
        }
    }

    /// Returns this backend's tables that nft has made dormant. Starts no process.
    ///
    /// # Errors
    ///
    /// Fails if the query to the kernel fails.
    pub fn dormant_tables(&self, family: IpFamily) -> Result<Vec<DormantTable>, IptablesError> {
        self.backend.dormant_tables(family)
    }

    /// Reports whether the kernel lacks support for this backend in both IP families.
    pub(crate) fn is_absent(&self) -> bool {
        IpFamily::ALL.into_iter().all(|family| match self.backend {
            Backend::Legacy => legacy::is_absent(family),
            Backend::Nft => nft::is_absent(family),
        })
    }

    /// Writes a test rule. A save or a `--test` would prove too little: with the nft backend, both
    /// succeed even if the kernel has no NAT in nftables.
    pub(crate) fn try_writing(&self, family: IpFamily) -> Result<(), IptablesError> {
        let (value, mask) = (0, 0);
        let rule = Rule::new([Match::DestinationLocal], Target::Mark { value, mask });
        self.try_rule(family, Table::Nat, &rule)?;
        self.readings.of(self.backend, family).set_works();
        Ok(())
    }

    /// Checks that the kernel accepts a rule. Writes and deletes the rule in one transaction: the
    /// kernel loads the modules for the table, the matches and the target, but its rules stay the
    /// same.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the rule.
    pub fn try_rule(
        &self,
        family: IpFamily,
        table: Table,
        rule: &Rule,
    ) -> Result<(), IptablesError> {
        let text = restore_text(|restore| {
            restore.begin(table)?;
            restore.declare(PROBE_CHAIN)?;
            restore.append(&rule.line(PROBE_CHAIN))?;
            restore.flush(PROBE_CHAIN)?;
            restore.remove(PROBE_CHAIN)?;
            restore.commit()
        });
        self.restore(family, &text)
    }

    /// Checks that the kernel accepts `rules`, which the caller has grouped by table. Writes the
    /// rules into an unused chain, and then removes this chain. A real write is needed, because the
    /// kernel checks some rules only when a transaction completes.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a rule.
    pub fn try_rules(
        &self,
        family: IpFamily,
        rules: &[(Table, Rule)],
    ) -> Result<(), IptablesError> {
        let mut taken = self.taken_chains(family)?.into_iter();
        if let Some(taken) = taken.find(|taken| taken.is_built_in) {
            return Err(IptablesError::Taken(taken));
        }
        let tables = || rules.chunk_by(|one, next| one.0 == next.0);
        let write = restore_text(|restore| {
            for rules in tables() {
                rules
                    .first()
                    .map_or(Ok(()), |(table, _)| restore.begin(*table))?;
                restore.declare(PROBE_CHAIN)?;
                for (_, rule) in rules {
                    restore.append(&rule.line(PROBE_CHAIN))?;
                }
                restore.commit()?;
            }
            Ok(())
        });
        let forget = restore_text(|restore| {
            for (table, _) in tables().filter_map(<[_]>::first) {
                restore.begin(*table)?;
                restore.declare(PROBE_CHAIN)?;
                restore.remove(PROBE_CHAIN)?;
                restore.commit()?;
            }
            Ok(())
        });
        let written = self.restore(family, &write);
        // Removes the chain from every table, because the program may have written some tables
        // before it failed.
        let forgotten = self.restore(family, &forget);
        written.and(forgotten)
    }

    pub(crate) fn load_modules(&self, needed: &[&str]) {
        match self.backend {
            Backend::Nft => nft::load_modules(needed),
            Backend::Legacy => legacy::load_modules(needed),
        }
    }

    pub(crate) fn verdict(&self, family: IpFamily) -> RuleSupport {
        let slot = self.readings.of(self.backend, family);
        if slot.works() {
            return RuleSupport::Works;
        }
        let verdict = match self.backend {
            Backend::Nft => nft::probe(family),
            Backend::Legacy => legacy::probe(family),
        };
        if verdict == RuleSupport::Works {
            slot.set_works();
        }
        verdict
    }

    fn state(&self, family: IpFamily) -> Option<TablesState> {
        match self.backend {
            Backend::Nft => nft::state(family),
            Backend::Legacy => legacy::state(family),
        }
    }

    /// Returns true if the kernel certainly has no rules of this backend in an IP family. Starts no
    /// process.
    pub fn is_empty(&self, family: IpFamily) -> bool {
        matches!(
            self.state(family),
            Some(TablesState::Empty | TablesState::Unsupported)
        )
    }

    /// Returns the rules of all existing tables as `iptables-save` prints them, or an empty text.
    /// Starts no process if no rules exist, or if the rules are unchanged since the last read.
    ///
    /// # Errors
    ///
    /// Fails if the rules cannot be read.
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

    /// Passes the lines of one table, or of all existing tables, to `line`. Like
    /// [`save`](Self::save), starts a process only if necessary. A read of one table does not wait
    /// while another thread reads all tables.
    ///
    /// # Errors
    ///
    /// Fails if the rules cannot be read. Some lines may have been passed to `line` before.
    pub fn save_lines(
        &self,
        family: IpFamily,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        let Some(table) = table else {
            return self.read(family, LONG_SAVE_LIMIT, line).map(drop);
        };
        if let Some(kept) = self.kept(family) {
            let mut is_within = false;
            for each in kept.lines() {
                let read = Line::parse(each);
                if let Some(Line::Table(name)) = read {
                    is_within = name == table.name();
                }
                if is_within {
                    line(each);
                }
                is_within &= read != Some(Line::Commit);
            }
            return Ok(());
        }
        let request = SaveRequest {
            table: Some(table),
            is_counted: false,
            limit: SAVE_LIMIT.into(),
        };
        self.tell_dormant(family);
        self.stream(family, request, line)
    }

    /// Passes the lines of one table, or of all existing tables, to `line`. Each rule begins with
    /// its counters: `[PACKETS:BYTES] -A CHAIN ...` ([`CountedRule`](crate::CountedRule)). Starts a
    /// process only if rules exist. Does not store the text, and does not wait for other reads.
    ///
    /// # Errors
    ///
    /// See [`save_lines`](Self::save_lines).
    pub fn save_counted(
        &self,
        family: IpFamily,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        if self.is_empty(family) {
            return Ok(());
        }
        let request = SaveRequest {
            table,
            is_counted: true,
            limit: LONG_SAVE_LIMIT,
        };
        self.stream(family, request, line)
    }

    /// Passes the lines of all existing tables to `line`. Also returns the whole text, unless it is
    /// too large to be stored.
    fn read(
        &self,
        family: IpFamily,
        limit: Limit,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Option<Arc<str>>, IptablesError> {
        let mut last = self.readings.of(self.backend, family).lock();
        // Queries the state's number before it reads the rules. If the rules change during the
        // read, a later query returns a different number.
        let number = match self.state(family) {
            Some(TablesState::Empty) => return Ok(Some("".into())),
            Some(TablesState::Holds(number)) => number,
            Some(TablesState::Unsupported) | None => None,
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
        let request = SaveRequest {
            table: None,
            is_counted: false,
            limit,
        };
        self.stream(family, request, &mut keep)?;
        self.tell_dormant(family);
        let kept = number.zip(text).map(|(number, text)| Reading {
            number,
            text: text.into(),
        });
        let text = kept.as_ref().map(|reading| Arc::clone(&reading.text));
        *last = kept;
        Ok(text)
    }

    /// Logs each table when nft makes it dormant, and again when it is active again.
    fn tell_dormant(&self, family: IpFamily) {
        // If the query fails, the next read repeats it.
        let Ok(mut dormant) = self.dormant_tables(family) else {
            return;
        };
        dormant.retain(|table| table.serves());
        let slot = self.readings.of(self.backend, family);
        let before = slot.replace_dormant(&dormant);
        for table in dormant.iter().filter(|table| !before.contains(table)) {
            tracing::error!(%family, "{table}");
        }
        for table in before.iter().filter(|table| !dormant.contains(table)) {
            let name = table.name;
            tracing::info!(%family, "table {name} of iptables is no longer dormant");
        }
    }

    /// Returns the stored rules of all tables if they are current. Returns `None` while another
    /// thread reads rules, because the wait for that thread could be long.
    fn kept(&self, family: IpFamily) -> Option<Arc<str>> {
        let last = self.readings.of(self.backend, family).try_lock()?;
        let last = last.as_ref()?;
        let is_there = self.state(family) == Some(TablesState::Holds(Some(last.number)));
        is_there.then(|| Arc::clone(&last.text))
    }

    /// Passes the requested lines to the caller: first the lines that `iptables-save` prints, then
    /// the lines of rules that `iptables-save` omits without an error.
    fn stream(
        &self,
        family: IpFamily,
        request: SaveRequest,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        if self.backend == Backend::Legacy {
            let mut printed = PrintedTables::default();
            self.print(family, request, &mut |each| {
                printed.add(each);
                line(each);
            })?;
            // `iptables-legacy-save` reports an error if it cannot read a table, so its output has
            // no gaps.
            return self.is_whole(family, &printed);
        }
        let existing = nft_tables(family, request.table)?;
        let mut printed = PrintedTables::default();
        match self.print(family, request, &mut |each| printed.pass(each, line)) {
            Ok(()) => self.is_whole(family, &printed)?,
            // `iptables-save` exits at the first rule that it cannot read.
            Err(IptablesError::Failed {
                kind: Kind::Unreadable | Kind::Refused,
                ..
            }) if printed.cut_short().is_some() => {}
            Err(error) => return Err(error),
        }
        let restore = || self.program(family, "restore");
        for gap in printed.gaps(&existing) {
            let limit = request.limit;
            native::read(
                &restore,
                family,
                &printed,
                gap,
                request.is_counted,
                limit,
                line,
            )?;
        }
        Ok(())
    }

    /// Returns an error if the output of the last table is incomplete.
    fn is_whole(&self, family: IpFamily, printed: &PrintedTables) -> Result<(), IptablesError> {
        let Some(table) = printed.cut_short() else {
            return Ok(());
        };
        let program = self.program(family, "save")?.name();
        let said = format!("its output ends within table {table}");
        Err(IptablesError::CutShort { program, said })
    }

    /// Runs `iptables-save` and passes its lines to the caller.
    fn print(
        &self,
        family: IpFamily,
        request: SaveRequest,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        let program = self.program(family, "save")?;
        let mut output = |source: &mut dyn BufRead| {
            let mut bytes = Vec::new();
            // Passes on the lines before a read error. The program's exit status then shows the
            // failure.
            while source
                .read_until(b'\n', &mut bytes)
                .is_ok_and(|read| read > 0)
            {
                line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
                bytes.clear();
            }
        };
        let counters = request.is_counted.then_some("-c");
        let table = request.table.map(|table| ["-t", table.name()]);
        let arguments: Vec<&str> = counters
            .into_iter()
            .chain(table.into_iter().flatten())
            .collect();
        let began = Instant::now();
        match program.stream(&arguments, None, &mut output, request.limit) {
            Ok(finished) if finished.status.success() => Ok(()),
            result => Err(failure(&program, result, began.elapsed(), |_| None)),
        }
    }

    pub(crate) fn program(&self, family: IpFamily, verb: &str) -> Result<Program, IptablesError> {
        let stem = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let name = format!("{stem}{}-{verb}", self.infix);
        Program::find(&name).ok_or(IptablesError::Missing(name))
    }
}

#[cfg(test)]
mod tests;
