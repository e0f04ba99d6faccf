//! Chooses the backend of iptables: nft or legacy.
//!
//! The programs of a backend do not show the rules of the other backend, so a node's kubelet, CNI
//! plugin and kube-proxy must use the same backend. The daemon chooses once, at its start, for both
//! IP families. The daemon runs the programs whose names contain the backend
//! (`iptables-nft-restore`). The default `iptables` in a container may use another backend than the
//! host's `iptables`.

use std::sync::Arc;

use inet::IpFamily;

use crate::backend::{Backend, BackendReason};
use crate::error::{IptablesError, Kind, failure};
use crate::iptables::{Iptables, SAVE_LIMIT};
use crate::program::Program;
use crate::reading::{Readings, RuleSupport};
use crate::saved::Line;
use crate::table::Table;

/// First iptables version with `iptables-restore -w` and `MASQUERADE --random-fully`.
const MODERN: [u32; 3] = [1, 6, 2];
/// Chains in table mangle that the kubelet creates in the backend that it uses (KEP-3178).
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

impl Iptables {
    /// Chooses the backend for the network namespace of the caller. The choice is the first of
    /// these backends that exists and works:
    ///
    /// 1. the backend that the caller requests (`wanted`),
    /// 2. the backend with hint chains of the kubelet,
    /// 3. the backend with `KUBE-*` chains,
    /// 4. the backend with more rules than the other backend,
    /// 5. nft.
    ///
    /// If the choice depends on rules, runs `iptables-save` for each backend and family with rules.
    /// A later [`save`](Self::save) reuses the output. Also runs a program for each question that
    /// the kernel cannot answer.
    ///
    /// # Errors
    ///
    /// Fails if the wanted backend is not installed or cannot write to this kernel. If `wanted` is
    /// `None`, fails if no backend is installed, or if none can write.
    pub fn choose(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        Self::choose_loading(wanted, &[])
    }

    /// Chooses like [`choose`](Self::choose), and also loads kernel modules that are not loaded
    /// yet: those of the backend, those in [`MODULES`](crate::MODULES), and those in `modules`. One
    /// process loads all of them. Otherwise, the kernel would start a process for each module at
    /// its first use.
    ///
    /// # Errors
    ///
    /// See [`choose`](Self::choose).
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
            if verdicts.contains(&RuleSupport::Works) {
                return Ok(iptables);
            }
            if verdicts == [RuleSupport::Never; 2] {
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
        // No backend works. Runs the programs now, because only their messages explain which
        // features the kernel lacks.
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

    /// Chooses like [`choose`](Self::choose), but writes nothing. If the kernel does not report
    /// whether it supports a backend, reads rules instead of writing a test rule.
    ///
    /// # Errors
    ///
    /// Fails if the wanted backend is not installed or cannot read from this kernel. If `wanted` is
    /// `None`, fails if no backend is installed, or if none can read.
    pub fn look(wanted: Option<Backend>) -> Result<Self, IptablesError> {
        let mut reasons = Vec::new();
        let mut are_absent = true;
        let candidates = Self::candidates(wanted)?.into_iter();
        // Tries a backend last if the kernel is known to refuse its rules. A successful save is no
        // evidence for such a backend: `iptables-save` would print no rules and succeed.
        let (unwritable, hopeful): (Vec<_>, Vec<_>) =
            candidates.partition(Self::is_known_unwritable);
        for iptables in hopeful.into_iter().chain(unwritable) {
            match iptables.save(IpFamily::V4) {
                // This error means that rules exist, so the operator must learn why these rules
                // cannot be read.
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

    /// Sets the reason for the choice to `Usable` if other backends were tried before this backend.
    /// In that case, the preferred backends do not work.
    fn unless_first(self, is_first: bool) -> Self {
        let why = if is_first {
            self.why
        } else {
            BackendReason::Usable
        };
        Self { why, ..self }
    }

    /// Returns all installed backends.
    ///
    /// # Errors
    ///
    /// Fails if a program does not report its backend.
    pub fn installed() -> Result<Vec<Self>, IptablesError> {
        let mut found = Self::named_ones(&Arc::default());
        if found.is_empty() {
            found.extend(Self::plain()?);
        }
        Ok(found)
    }

    /// Returns the installed backends except that of `used`, for the same network namespace.
    pub fn other_than(used: &Self) -> impl Iterator<Item = Self> {
        let all = Self::named_ones(&used.readings).into_iter();
        all.filter(|other| other.backend != used.backend)
    }

    /// Returns the installed backends, or only the wanted backend. The backend with the strongest
    /// evidence is first.
    fn candidates(wanted: Option<Backend>) -> Result<Vec<Self>, IptablesError> {
        let is_wanted = |found: &Self| wanted.is_none_or(|backend| backend == found.backend);
        let mut found = Self::named_ones(&Arc::default());
        found.retain(is_wanted);
        if found.is_empty() {
            found.extend(Self::plain()?.filter(is_wanted));
        }
        if found.is_empty() {
            let infix = wanted.map_or_else(String::new, |backend| format!("-{backend}"));
            return Err(IptablesError::Missing(format!("iptables{infix}-restore")));
        }
        let is_alone = found.len() == 1;
        let mut why = BackendReason::First;
        // Keeps the default order if no backend has rules, or if only the first backend has rules.
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
                Some(_) => BackendReason::Asked,
                None if is_alone => BackendReason::Alone,
                None => why,
            };
        }
        Ok(found)
    }

    fn named_ones(readings: &Arc<Readings>) -> Vec<Self> {
        let named = |backend| Self::named(backend, readings);
        Backend::ALL.into_iter().filter_map(named).collect()
    }

    /// Returns the programs whose names contain the backend, if they are installed. Such programs
    /// exist since iptables 1.8.
    fn named(backend: Backend, readings: &Arc<Readings>) -> Option<Self> {
        let iptables = Self {
            backend,
            infix: match backend {
                Backend::Nft => "-nft",
                Backend::Legacy => "-legacy",
            },
            is_modern: true,
            readings: Arc::clone(readings),
            why: BackendReason::Alone,
        };
        let has = |verb| iptables.program(IpFamily::V4, verb).is_ok();
        (has("save") && has("restore")).then_some(iptables)
    }

    /// Returns the programs whose names contain no backend, if they are installed. Hosts with
    /// iptables before 1.8, or with a single backend, have such programs.
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
            why: BackendReason::Alone,
        }))
    }

    /// Reports whether the kernel is known to refuse all rules of this backend. Always returns
    /// false for legacy iptables, because a query about its tables would create a table.
    fn is_known_unwritable(&self) -> bool {
        let lacks = |family| {
            matches!(
                self.verdict(family),
                RuleSupport::Never | RuleSupport::Lacks
            )
        };
        self.backend == Backend::Nft && IpFamily::ALL.into_iter().all(lacks)
    }

    fn is_bare(&self) -> bool {
        IpFamily::ALL.iter().all(|family| self.is_empty(*family))
    }

    /// Returns the evidence that programs on this node use this backend: hint chains, `KUBE-*`
    /// chains and rules.
    ///
    /// # Errors
    ///
    /// Fails if neither rules nor names of chains can be read, although the backend may have rules.
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

/// Returns the evidence from the names of a backend's chains, after a failed read of the rules.
/// `error` is the cause: for example, iptables cannot express a table. If the kernel lacks the
/// backend or refuses access, returns empty evidence, because such a backend cannot be chosen.
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

/// Returns the error for a node on which no backend works. `are_absent` is true if the kernel lacks
/// every backend.
fn unusable(reasons: &[String], are_absent: bool) -> IptablesError {
    let reasons = reasons.join("; ");
    if are_absent {
        IptablesError::Absent(reasons)
    } else {
        IptablesError::Unusable(reasons)
    }
}

/// Evidence that programs on a node use a backend. The strongest evidence is the first field, so
/// that the derived order compares it first.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Evidence {
    has_hint: bool,
    has_chains: bool,
    rules: usize,
}

impl Evidence {
    /// Returns the strongest evidence, as the reason for a choice.
    fn why(&self) -> BackendReason {
        match self {
            Self { has_hint: true, .. } => BackendReason::Hint,
            Self {
                has_chains: true, ..
            } => BackendReason::Chains,
            Self { rules: 0, .. } => BackendReason::First,
            Self { .. } => BackendReason::Rules,
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

/// Parses the version and backend in `iptables-save v1.8.9 (nf_tables)`. Versions before 1.8 are
/// always legacy and print no parentheses.
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

    /// Checks that a failed read of rules is not taken for an empty backend. Otherwise, `choose`
    /// would choose the other backend.
    #[test]
    fn an_unreadable_iptables_backend_does_not_count_as_empty() {
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
    fn the_version_text_of_iptables_names_version_and_backend() {
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
    fn kubelet_hints_outweigh_chains_and_chains_outweigh_rules_when_a_backend_is_chosen() {
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
