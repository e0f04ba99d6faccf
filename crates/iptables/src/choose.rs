//! Which backend of iptables is used.
//!
//! The two do not see each other's rules, and a host's kubelet, CNI and kube-proxy must agree on
//! one. It is chosen once, at start, for both families, and called by its own name
//! (`iptables-nft-restore`), never by what the distribution's `iptables` happens to be: in a
//! container that says nothing about the host.

use std::sync::Arc;

use inet::IpFamily;

use crate::backend::{Backend, Why};
use crate::error::{IptablesError, Kind, failure};
use crate::iptables::{Iptables, SAVE_LIMIT};
use crate::program::Program;
use crate::reading::{Readings, Verdict};
use crate::saved::Line;
use crate::table::Table;

/// First version with `iptables-restore -w` and `MASQUERADE --random-fully`.
const MODERN: [u32; 3] = [1, 6, 2];
/// Chains by which the kubelet tells which backend it uses (KEP-3178), in table mangle.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

impl Iptables {
    /// Chooses the backend, for the network namespace of the calling thread: the one asked for;
    /// else the one that the kubelet's hints are in; else the one with `KUBE-*` chains, of whoever;
    /// else the one with more rules; else nft. One that does not work is not chosen. Starts a
    /// process for each family that has to be read to know, which need not be read again, and where
    /// the kernel does not say what it can do.
    ///
    /// # Errors
    ///
    /// None that is wanted is installed, or none of them can write here.
    pub fn choose(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        Self::choose_loading(wanted, &[])
    }

    /// The same; where kernel modules of the backend have to be loaded, these, which its rules or
    /// what they name will need beside [`MODULES`](crate::MODULES), are loaded in the same process:
    /// else each costs a process as it is first needed.
    ///
    /// # Errors
    ///
    /// As [`choose`](Self::choose).
    pub fn choose_loading(
        wanted: Option<Backend>,
        modules: &[&str],
    ) -> Result<Self, IptablesError> {
        let mut never = Vec::new();
        let mut reasons = Vec::new();
        let mut are_absent = true;
        for iptables in Self::candidates(wanted)? {
            iptables.load_modules(modules);
            let verdicts = IpFamily::ALL.map(|family| iptables.verdict(family));
            let is_first = reasons.is_empty() && never.is_empty();
            let iptables = iptables.unless_first(is_first);
            if verdicts.contains(&Verdict::Works) {
                return Ok(iptables);
            }
            if verdicts == [Verdict::Never; 2] {
                never.push(iptables);
                continue;
            }
            match iptables.try_both() {
                Ok(()) => return Ok(iptables),
                Err(error) => {
                    are_absent &= error.kind().is_absence() && iptables.is_absent();
                    reasons.push(error.to_string());
                }
            }
        }
        // Nothing is left: iptables has the words for what the kernel has not.
        for iptables in never {
            match iptables.try_both() {
                Ok(()) => return Ok(iptables),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(unusable(&reasons, are_absent))
    }

    fn try_both(&self) -> Result<(), IptablesError> {
        let works = |family| self.try_writing(family);
        works(IpFamily::V4).or_else(|error| works(IpFamily::V6).map_err(|_| error))
    }

    /// Chooses like [`choose`](Self::choose), but by looking alone: the kernel is asked what it can
    /// do, and where it does not say, reading is tried instead of writing.
    ///
    /// # Errors
    ///
    /// None that is wanted is installed, or none of them can read here.
    pub fn look(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        let mut reasons = Vec::new();
        let mut are_absent = true;
        let candidates = Self::candidates(wanted)?.into_iter();
        // A save succeeds also where nothing could be written: it prints no rules.
        let (unwritable, hopeful): (Vec<_>, Vec<_>) =
            candidates.partition(Self::is_known_unwritable);
        for iptables in hopeful.into_iter().chain(unwritable) {
            match iptables.save(IpFamily::V4) {
                // Rules are there, and who reads them is told why that fails.
                Ok(_) | Err(IptablesError::Native { .. }) => {
                    return Ok(iptables.unless_first(reasons.is_empty()));
                }
                Err(error) => {
                    are_absent &= error.kind().is_absence() && iptables.is_absent();
                    reasons.push(error.to_string());
                }
            }
        }
        Err(unusable(&reasons, are_absent))
    }

    /// One that comes behind others that cannot be used.
    fn unless_first(self, is_first: bool) -> Self {
        let why = if is_first { self.why } else { Why::Usable };
        Self { why, ..self }
    }

    /// All that are installed.
    ///
    /// # Errors
    ///
    /// What there is does not say what it is.
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
        let is_alone = found.len() == 1;
        let mut why = Why::First;
        // Where nothing speaks for any but the first, the order is right.
        if found.iter().skip(1).any(|iptables| !iptables.is_bare()) {
            let mut judged = Vec::with_capacity(found.len());
            for one in found {
                judged.push((one.evidence()?, one));
            }
            judged.sort_by(|(one, _), (two, _)| two.cmp(one));
            if let [(best, _), ..] = &judged[..] {
                why = best.why();
            }
            found = judged.into_iter().map(|(_, one)| one).collect();
        }
        if let Some(first) = found.first_mut() {
            first.why = match wanted {
                Some(_) => Why::Asked,
                None if is_alone => Why::Alone,
                None => why,
            };
        }
        Ok(found)
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
            why: Why::Alone,
        };
        let has = |verb| iptables.program(IpFamily::V4, verb).is_ok();
        (has("save") && has("restore")).then_some(iptables)
    }

    /// The programs of old, or of a host with only one backend: they tell what they are.
    fn plain() -> Result<Option<Self>, IptablesError> {
        let Some(program) = Program::find("iptables-save") else {
            return Ok(None);
        };
        let said = match program.run(&["--version"], "", SAVE_LIMIT) {
            Ok(finished) if finished.status.success() => finished.stdout,
            result => return Err(failure(&program, result, SAVE_LIMIT, |_| None)),
        };
        let (version, backend) = version(&said);
        Ok(Some(Self {
            backend,
            infix: "",
            is_modern: version >= MODERN,
            readings: Arc::default(),
            why: Why::Alone,
        }))
    }

    /// Reports whether the kernel says that it takes no rules of this backend. Changes nothing, so
    /// that legacy iptables is not asked: its answer makes a table.
    fn is_known_unwritable(&self) -> bool {
        let lacks = |family| matches!(self.verdict(family), Verdict::Never | Verdict::Lacks);
        self.backend == Backend::Nft && IpFamily::ALL.into_iter().all(lacks)
    }

    fn is_bare(&self) -> bool {
        IpFamily::ALL.iter().all(|family| self.is_empty(*family))
    }

    /// # Errors
    ///
    /// Nothing is known of it: with rules that cannot be read now, the choice would be another one.
    fn evidence(&self) -> Result<Evidence, IptablesError> {
        let mut evidence = Evidence::default();
        for family in IpFamily::ALL {
            if self.is_empty(family) {
                continue;
            }
            let mut found = Evidence::default();
            let read = self.save_lines(family, None, &mut |line| found.add(line));
            if let Err(error) = read {
                found = evidence_of_chains(self.backend.chains(family), error)?;
            }
            evidence.add_all(&found);
        }
        Ok(evidence)
    }
}

/// Returns what the chains say of a backend whose rules cannot be read: the kernel knows those of a
/// table that iptables cannot read. One that may not be asked cannot be chosen, so nothing speaks
/// for it.
fn evidence_of_chains(
    chains: Option<Vec<(Table, String)>>,
    error: IptablesError,
) -> Result<Evidence, IptablesError> {
    let mut found = Evidence::default();
    match chains {
        Some(chains) => chains.iter().for_each(|(_, chain)| found.add_chain(chain)),
        None if error.kind() == Kind::NotPermitted || error.kind().is_absence() => {}
        None => return Err(error),
    }
    Ok(found)
}

/// Why none of them can be used, and whether the kernel says of each that it has nothing of it.
fn unusable(reasons: &[String], are_absent: bool) -> IptablesError {
    let reasons = reasons.join("; ");
    if are_absent {
        IptablesError::Absent(reasons)
    } else {
        IptablesError::Unusable(reasons)
    }
}

/// What speaks for a backend, the strongest first.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Evidence {
    has_hint: bool,
    has_chains: bool,
    rules: usize,
}

impl Evidence {
    /// The strongest of it.
    fn why(&self) -> Why {
        match self {
            Self { has_hint: true, .. } => Why::Hint,
            Self {
                has_chains: true, ..
            } => Why::Chains,
            Self { rules: 0, .. } => Why::First,
            Self { .. } => Why::Rules,
        }
    }

    fn add(&mut self, line: &str) {
        match Line::parse(line) {
            Some(Line::Chain(name)) => self.add_chain(name),
            Some(Line::Rule(_)) => self.rules += 1,
            Some(Line::Table(_) | Line::Commit) | None => {}
        }
    }

    fn add_chain(&mut self, name: &str) {
        self.has_hint |= HINTS.contains(&name);
        self.has_chains |= name.starts_with("KUBE-");
    }

    fn add_all(&mut self, other: &Self) {
        self.has_hint |= other.has_hint;
        self.has_chains |= other.has_chains;
        self.rules += other.rules;
    }
}

/// Reads `iptables-save v1.8.9 (nf_tables)`. Before 1.8 there was only legacy, and nothing in
/// parentheses.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend that holds rules would look empty, and the other one be chosen.
    #[test]
    fn a_backend_of_which_nothing_can_be_read_is_not_taken_for_empty() {
        let slow = || IptablesError::TimedOut {
            program: "iptables-nft-save".to_owned(),
            limit: SAVE_LIMIT,
        };
        assert!(evidence_of_chains(None, slow()).is_err());
        let chains = vec![(Table::Nat, "KUBE-SVC-AAAAAAAAAAAAAAAA".to_owned())];
        let told = evidence_of_chains(Some(chains), slow()).unwrap();
        assert!(told > Evidence::default(), "{told:?}");
        let forbidden = IptablesError::Failed {
            program: "iptables-legacy-save".to_owned(),
            kind: Kind::NotPermitted,
            line: None,
            said: "you must be root".to_owned(),
        };
        let told = evidence_of_chains(None, forbidden).unwrap();
        assert_eq!(told, Evidence::default());
    }

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
}
