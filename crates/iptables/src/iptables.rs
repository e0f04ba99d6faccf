//! One process to read all rules of a family.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inet::IpFamily;

use crate::backend::{Backend, Why, exists};
use crate::error::{IptablesError, Kind, failure};
use crate::legacy::LegacyTables;
use crate::native::{self, Printed};
use crate::obstacles::{DormantTable, TakenChain};
use crate::program::{Limit, Program};
use crate::reading::{self, Reading, Readings, State, Verdict};
use crate::restore::restore_text;
use crate::rule::{Match, Rule, SourcePort, Target};
use crate::saved::Line;
use crate::table::Table;
use crate::{legacy, modules, nft};

/// A save prints the rules of others, too, of which there may be very many.
pub(crate) const SAVE_LIMIT: Duration = Duration::from_secs(30);
/// One of all tables that is read as it comes has so many rules of our own; but while it works, it
/// tells them.
const LONG_SAVE_LIMIT: Limit = Limit {
    whole: Duration::from_mins(5),
    silence: Duration::from_mins(1),
};
/// What is tried is written into a chain of this name.
const PROBE_CHAIN: &str = "KUBE-PROXY-PROBE";

/// The iptables programs of one backend, for both families, in the network namespace of the threads
/// that use it: what is read is kept, with what tells when it has changed.
#[derive(Debug, Clone)]
pub struct Iptables {
    pub(crate) backend: Backend,
    /// Between `iptables` and `-save` in the programs' names.
    pub(crate) infix: &'static str,
    /// Whether it knows `iptables-restore -w` and `MASQUERADE --random-fully`.
    pub(crate) is_modern: bool,
    pub(crate) readings: Arc<Readings>,
    pub(crate) why: Why,
}

/// Request to `iptables-save`.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// One table, or all.
    table: Option<Table>,
    /// True if each rule comes with what it has counted.
    is_counted: bool,
    limit: Limit,
}

/// Returns the tables of iptables that the kernel has in nf_tables: all, or one of them.
fn nft_tables(family: IpFamily, only: Option<Table>) -> Result<Vec<&'static str>, IptablesError> {
    let mut tables = nft::held::tables(family).map_err(|error| unlisted(&error))?;
    tables.retain(|table| only.is_none_or(|only| only.name() == *table));
    Ok(tables)
}

pub(crate) fn unlisted(error: &netlink_batch::Error) -> IptablesError {
    IptablesError::Unlisted {
        why: error.to_string(),
    }
}

impl Backend {
    /// The chains that somebody has made in its tables, as the kernel says, in the network
    /// namespace of the calling thread. Starts no process; `None` if it cannot be told.
    pub fn chains(self, family: IpFamily) -> Option<Vec<(Table, String)>> {
        match self {
            Self::Nft => nft::chains(family),
            Self::Legacy => legacy::chains(family),
        }
    }

    /// Returns its tables that nft has switched off, in the network namespace of the calling thread.
    /// Starts no process.
    ///
    /// # Errors
    ///
    /// The kernel does not say.
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
    /// Why it was chosen.
    pub fn why(&self) -> Why {
        self.why
    }

    /// What was chosen.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The source port that masqueraded flows can have: a random one where it knows
    /// `MASQUERADE --random-fully` (1.6.2).
    pub fn source_port(&self) -> SourcePort {
        if self.is_modern {
            SourcePort::Random
        } else {
            SourcePort::Kept
        }
    }

    /// Whether it can write rules of a family here. Starts a process where the kernel does not say,
    /// or says no.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn check(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.verdict(family) {
            Verdict::Works => Ok(()),
            Verdict::Never | Verdict::Lacks | Verdict::Unknown => self.try_writing(family),
        }
    }

    /// Whether it can read rules of a family here. Starts a process where the kernel does not say,
    /// or says no.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn check_reading(&self, family: IpFamily) -> Result<(), IptablesError> {
        exists(family)?;
        match self.state(family) {
            Some(State::Empty | State::Holds(_)) => Ok(()),
            Some(State::Unsupported) | None => self.save(family).map(drop),
        }
    }

    /// Whether the kernel says that it has no match of this revision for rules of a family; that it
    /// cannot be asked says nothing. Starts no process; the kernel may load a module to answer.
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

    /// Reports whether the kernel has not loaded this backend but has the files for it and for the
    /// module `further`: then nothing follows from what it says that it lacks. Nothing is loaded.
    pub fn may_load(&self, family: IpFamily, further: &str) -> bool {
        let tables = match (self.backend, family) {
            // The kernel loads what it is asked for.
            (Backend::Nft, _) => return false,
            (Backend::Legacy, IpFamily::V4) => "ip_tables",
            (Backend::Legacy, IpFamily::V6) => "ip6_tables",
        };
        modules::is_loadable(tables) && modules::have_files(&[tables, further])
    }

    /// Returns the chains that rules of this backend cannot stand in, or lead to, since nft has made
    /// chains of these names with another hook, type or priority. Starts no process.
    ///
    /// # Errors
    ///
    /// The kernel does not say.
    pub fn taken_chains(&self, family: IpFamily) -> Result<Vec<TakenChain>, IptablesError> {
        match self.backend {
            Backend::Nft => native::taken_chains(family).map_err(|error| unlisted(&error)),
            Backend::Legacy => Ok(Vec::new()),
        }
    }

    /// Returns the tables of this backend that nft has switched off. Starts no process.
    ///
    /// # Errors
    ///
    /// The kernel does not say.
    pub fn dormant_tables(&self, family: IpFamily) -> Result<Vec<DormantTable>, IptablesError> {
        self.backend.dormant_tables(family)
    }

    /// Whether the kernel says that it has nothing to hold rules of this backend with.
    pub(crate) fn is_absent(&self) -> bool {
        IpFamily::ALL.into_iter().all(|family| match self.backend {
            Backend::Legacy => legacy::is_absent(family),
            Backend::Nft => nft::is_absent(family),
        })
    }

    /// Neither a save nor `--test` tells: both succeed with the nft backend on a kernel that cannot
    /// do NAT with nftables.
    pub(crate) fn try_writing(&self, family: IpFamily) -> Result<(), IptablesError> {
        let (value, mask) = (0, 0);
        let rule = Rule::new([Match::DestinationLocal], Target::Mark { value, mask });
        self.try_rule(family, Table::Nat, &rule)?;
        self.readings.of(self.backend, family).set_works();
        Ok(())
    }

    /// Whether the kernel takes a rule. One transaction that changes nothing, and yet makes the
    /// kernel take the table and the rule's match and target.
    ///
    /// # Errors
    ///
    /// Why it does not.
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

    /// Whether the kernel takes rules, those of a table in a row, and rules that lead to them. They are written into a chain
    /// that nothing leads to, and taken away again: of some rules only a transaction that is ended
    /// tells, in either backend.
    ///
    /// # Errors
    ///
    /// Why it does not.
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
        // Of several tables, those before the one that was refused are written.
        let forgotten = self.restore(family, &forget);
        written.and(forgotten)
    }

    pub(crate) fn load_modules(&self, needed: &[&str]) {
        match self.backend {
            Backend::Nft => nft::load_modules(needed),
            Backend::Legacy => legacy::load_modules(needed),
        }
    }

    pub(crate) fn verdict(&self, family: IpFamily) -> Verdict {
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

    /// The rules of all tables in use, and where there are none, perhaps nothing. Costs a process
    /// unless there is nothing to read, or what was last read is what is there.
    ///
    /// # Errors
    ///
    /// Why it could not be read.
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

    /// The lines of one table, or of all tables in use, one after the other. Costs a process on the
    /// same terms. One table is a short look, which waits for nobody who reads all of them.
    ///
    /// # Errors
    ///
    /// Why it could not be read, or not to its end: lines may have been told.
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
        let asked = Asked {
            table: Some(table),
            is_counted: false,
            limit: SAVE_LIMIT.into(),
        };
        self.tell_dormant(family);
        self.stream(family, asked, line)
    }

    /// The lines of one table, each rule's with what it has counted before it: `[PACKETS:BYTES] -A
    /// CHAIN ...` ([`Counted`](crate::Counted)). Costs a process each time.
    ///
    /// # Errors
    ///
    /// As of [`save_lines`](Self::save_lines).
    pub fn save_counted(
        &self,
        family: IpFamily,
        table: Table,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        if self.is_empty(family) {
            return Ok(());
        }
        let asked = Asked {
            table: Some(table),
            is_counted: true,
            limit: LONG_SAVE_LIMIT,
        };
        self.stream(family, asked, line)
    }

    /// The lines of all tables in use, whatever tables these are, in the same form. Costs a process
    /// unless there is nothing to read. Nothing is kept, and nobody is waited for.
    ///
    /// # Errors
    ///
    /// As of [`save_lines`](Self::save_lines).
    pub fn save_all_counted(
        &self,
        family: IpFamily,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        if self.is_empty(family) {
            return Ok(());
        }
        let asked = Asked {
            table: None,
            is_counted: true,
            limit: LONG_SAVE_LIMIT,
        };
        self.stream(family, asked, line)
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
        let asked = Asked {
            table: None,
            is_counted: false,
            limit,
        };
        self.stream(family, asked, &mut keep)?;
        self.tell_dormant(family);
        let kept = number.zip(text).map(|(number, text)| Reading {
            number,
            text: text.into(),
        });
        let text = kept.as_ref().map(|reading| Arc::clone(&reading.text));
        *last = kept;
        Ok(text)
    }

    /// Logs tables that are switched off, each once for as long as it is.
    fn tell_dormant(&self, family: IpFamily) {
        // Where the kernel does not say, nothing is known, and the next look asks again.
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

    /// What was read of all tables, if that is what is there; `None` while they are being read.
    fn kept(&self, family: IpFamily) -> Option<Arc<str>> {
        let last = self.readings.of(self.backend, family).try_lock()?;
        let last = last.as_ref()?;
        let is_there = self.state(family) == Some(State::Holds(Some(last.number)));
        is_there.then(|| Arc::clone(&last.text))
    }

    /// Tells the lines of all tables that are asked for: what `iptables-save` prints, and what it
    /// does not print and yet ends with success.
    fn stream(
        &self,
        family: IpFamily,
        asked: Asked,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), IptablesError> {
        if self.backend == Backend::Legacy {
            let mut printed = Printed::default();
            self.print(family, asked, &mut |each| {
                printed.add(each);
                line(each);
            })?;
            // Its program fails where it cannot read a table.
            return self.is_whole(family, &printed);
        }
        let existing = nft_tables(family, asked.table)?;
        let mut printed = Printed::default();
        match self.print(family, asked, &mut |each| printed.pass(each, line)) {
            Ok(()) => self.is_whole(family, &printed)?,
            // It ends at a rule that it cannot read.
            Err(IptablesError::Failed {
                kind: Kind::Unreadable | Kind::Refused,
                ..
            }) if printed.cut_short().is_some() => {}
            Err(error) => return Err(error),
        }
        let restore = || self.program(family, "restore");
        for gap in printed.gaps(&existing) {
            let limit = asked.limit;
            native::read(
                &restore,
                family,
                &printed,
                gap,
                asked.is_counted,
                limit,
                line,
            )?;
        }
        Ok(())
    }

    /// Fails if the last table that was printed has no end.
    fn is_whole(&self, family: IpFamily, printed: &Printed) -> Result<(), IptablesError> {
        let Some(table) = printed.cut_short() else {
            return Ok(());
        };
        let program = self.program(family, "save")?.name();
        let said = format!("its output ends within table {table}");
        Err(IptablesError::CutShort { program, said })
    }

    /// Tells the lines that `iptables-save` prints.
    fn print(
        &self,
        family: IpFamily,
        asked: Asked,
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
        let counters = asked.is_counted.then_some("-c");
        let table = asked.table.map(|table| ["-t", table.name()]);
        let arguments: Vec<&str> = counters
            .into_iter()
            .chain(table.into_iter().flatten())
            .collect();
        let began = Instant::now();
        match program.stream(&arguments, None, &mut output, asked.limit) {
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
