//! Chooses the shim: the rules that IPVS mode needs besides virtual servers, in iptables or in
//! nftables.

use anyhow::{Context as _, Result, anyhow};
use iptables::{Backend, Iptables, IptablesError, SourcePort, Table};
use nftables_netlink::Nftables;
use proxy::IpFamily;
use proxy_ipvs::{Carrier, OpenError, ProbeError, ShimStyle};
use tracing::info;

use crate::families::Access;
use crate::programs::Programs;
use crate::settings::Settings;

/// Value of `--ipvs-shim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShimChoice {
    /// Chooses the shim `upstream` if its programs and modules work, otherwise `nftables`. With
    /// exact semantics, chooses `nftables` if the kernel has it, otherwise `upstream`.
    #[default]
    Auto,
    /// The shim that `--ipvs-shim` names, even if this node does not support it.
    Fixed(ShimStyle),
}

/// Shim that this node uses, with its carrier: the iptables programs, or nftables.
#[derive(Debug, Clone)]
pub(super) struct ChosenShim {
    pub(super) style: ShimStyle,
    pub(super) carrier: Carrier,
}

/// Match extension `set` in the shim's rules, with its first revision that exists for both IP
/// families.
const SET_MATCH: (&str, u8) = ("set", 1);

/// Table and chain in which Calico's Felix changes packet marks at the hook `input`, with its
/// iptables data plane.
const FELIX: (Table, &str) = (Table::Filter, "cali-INPUT");
/// Table and chain in which Calico's Felix changes packet marks at the hook `input`, with its
/// nftables data plane.
const FELIX_IN_NFTABLES: (&str, &str) = ("calico", "filter-INPUT");

impl ChosenShim {
    /// Chooses the shim. Blocks. Makes the kernel load the modules of IPVS and of iptables.
    pub(super) fn choose(settings: &Settings, programs: &Programs, access: Access) -> Result<Self> {
        let chosen = Self::choose_any(settings, programs, access)?;
        if let Carrier::Iptables(iptables) = &chosen.carrier
            && settings.ipvs.semantics.is_exact()
            && access == Access::Write
        {
            // Checks only one IP family, because both families use the same kernel modules and
            // extensions.
            let mut there = IpFamily::ALL.into_iter();
            let there = there.find(|family| iptables::exists(*family).is_ok());
            there.map_or(Ok(()), |family| proxy_ipvs::check_marks(iptables, family))?;
        }
        Ok(chosen)
    }

    fn choose_any(settings: &Settings, programs: &Programs, access: Access) -> Result<Self> {
        let of_iptables = |style| {
            let iptables = choose_programs(settings, programs).context("cannot use iptables")?;
            Ok(Self::of(style, iptables))
        };
        match settings.ipvs.shim {
            ShimChoice::Fixed(ShimStyle::Nftables) => Ok(Self::in_nftables()),
            ShimChoice::Fixed(style) => of_iptables(style),
            ShimChoice::Auto if settings.ipvs.semantics.is_exact() => {
                Self::find_exact(settings, programs)
            }
            ShimChoice::Auto => Self::find(settings, programs, access),
        }
    }

    /// Chooses upstream's shim, unless this node lacks a program or kernel feature that this shim
    /// needs. Any other failure may be temporary, so it must not change the shim of the node. If a
    /// flag sets the iptables backend, upstream's shim is the only choice.
    fn find(settings: &Settings, programs: &Programs, access: Access) -> Result<Self> {
        let chosen = choose_programs(settings, programs);
        if settings.shared.iptables_backend.forced().is_some() {
            let iptables = chosen.context("cannot use iptables")?;
            return Ok(Self::of(ShimStyle::Upstream, iptables));
        }
        let (iptables, reason) = match chosen {
            Ok(iptables) => match missing(&iptables, access) {
                None => {
                    info!(shim = "upstream", "the rules beside IPVS");
                    return Ok(Self::of(ShimStyle::Upstream, iptables));
                }
                Some(reason) => (Some(iptables), reason),
            },
            Err(error) if is_absence(&error) => {
                let error = anyhow::Error::from(error);
                (None, error.context("cannot use iptables"))
            }
            Err(error) => return Err(error).context("cannot use iptables"),
        };
        let families = IpFamily::ALL.into_iter();
        let mut there = families.filter(|family| iptables::exists(*family).is_ok());
        let tried = |family| match access {
            Access::Write => proxy_ipvs::probe_nftables(family),
            Access::Read => proxy_ipvs::check_nftables(),
        };
        if !there.any(|family| tried(family).is_ok()) {
            // Neither shim works. Fails if iptables is missing. Otherwise chooses upstream's shim,
            // because a later check fails with an error that names the missing kernel feature.
            let iptables = iptables.ok_or(reason)?;
            return Ok(Self::of(ShimStyle::Upstream, iptables));
        }
        let reason = format!("{reason:#}");
        info!(
            shim = "nftables",
            reason, "the rules beside IPVS: iptables or ipset is not here"
        );
        Ok(Self::in_nftables())
    }

    /// Chooses the shim in nftables or, if the kernel lacks nf_tables, upstream's shim in iptables.
    /// Any other failure may be temporary, so it does not change the choice.
    fn find_exact(settings: &Settings, programs: &Programs) -> Result<Self> {
        let Some(lack) = lack_of_nftables() else {
            return Ok(Self::in_nftables());
        };
        let iptables = choose_programs(settings, programs);
        let iptables = iptables.with_context(|| format!("{lack}, and iptables cannot be used"))?;
        info!(shim = "upstream", reason = %lack, "the rules beside IPVS: nftables is not here");
        Ok(Self::of(ShimStyle::Upstream, iptables))
    }

    fn of(style: ShimStyle, iptables: Iptables) -> Self {
        let carrier = Carrier::Iptables(iptables);
        Self { style, carrier }
    }

    fn in_nftables() -> Self {
        Self {
            style: ShimStyle::Nftables,
            carrier: Carrier::Nftables,
        }
    }

    /// Checks that the node can write the shim's rules for `family` or, with read access, read
    /// them.
    pub(super) fn check(&self, family: IpFamily, access: Access) -> Result<(), IptablesError> {
        match &self.carrier {
            Carrier::Iptables(iptables) => access.check(iptables, family),
            Carrier::Nftables => iptables::exists(family),
        }
    }

    /// Returns how the kernel chooses the source port of a masqueraded flow.
    pub(super) fn source_port(&self) -> SourcePort {
        match &self.carrier {
            Carrier::Iptables(iptables) => iptables.source_port(),
            Carrier::Nftables => SourcePort::Random,
        }
    }

    /// Checks that the kernel has the features that the shim needs in `family`. Leaves no entry in
    /// the kernel.
    pub(super) fn probe(&self, family: IpFamily) -> Result<()> {
        match &self.carrier {
            Carrier::Iptables(iptables) => {
                iptables.check(family)?;
                Ok(proxy_ipvs::probe(iptables, family)?)
            }
            Carrier::Nftables => Ok(proxy_ipvs::probe_nftables(family)?),
        }
    }
}

/// Returns a warning if Calico's Felix changes the marks of exact semantics before IPVS compares
/// them. In iptables, only the table mangle can set these marks, and Felix changes marks later, in
/// the table filter. The shim in nftables sets its marks after the table filter.
pub fn mark_conflict(settings: &Settings) -> Option<String> {
    if !settings.ipvs.semantics.is_exact() || is_in_nftables(settings) {
        return None;
    }
    let chain = chain_of_felix()?;
    Some(format!(
        "Calico's Felix changes packet marks ({chain}): requests from outside the cluster to \
         Services with externalTrafficPolicy: Local time out with --ipvs-semantics=exact and rules \
         in iptables; set --ipvs-shim=nftables, or --ipvs-semantics=upstream"
    ))
}

/// Returns a text that names the chain in which Felix changes packet marks, or `None` if the kernel
/// has no such chain.
fn chain_of_felix() -> Option<String> {
    let is_there = |backend: Backend| {
        let mut families = IpFamily::ALL.into_iter();
        families.any(|family| has_felix(&backend.chains(family).unwrap_or_default()))
    };
    if Backend::ALL.into_iter().any(is_there) {
        return Some(format!("chain {}", FELIX.1));
    }
    let (table, chain) = FELIX_IN_NFTABLES;
    let hooked = Nftables::open().and_then(|mut nftables| nftables.base_chains());
    let mut hooked = hooked.unwrap_or_default().into_iter();
    hooked
        .any(|it| &*it.table == table && &*it.chain == chain)
        .then(|| format!("chain {chain} of the nftables table {table}"))
}

fn has_felix(chains: &[(Table, String)]) -> bool {
    let mut chains = chains.iter();
    chains.any(|(table, name)| (*table, name.as_str()) == FELIX)
}

/// Returns the error of a kernel without nf_tables, or `None` if the kernel has it.
fn lack_of_nftables() -> Option<OpenError> {
    let error = proxy_ipvs::check_nftables().err()?;
    error.is_absence().then_some(error)
}

/// Reports whether this node certainly uses the shim in nftables, without a check of iptables.
pub(super) fn is_in_nftables(settings: &Settings) -> bool {
    match settings.ipvs.shim {
        ShimChoice::Fixed(style) => style.is_native(),
        ShimChoice::Auto => settings.ipvs.semantics.is_exact() && lack_of_nftables().is_none(),
    }
}

fn choose_programs(settings: &Settings, programs: &Programs) -> Result<Iptables, IptablesError> {
    let scheduler = format!("ip_vs_{}", settings.ipvs.scheduler);
    let modules: Vec<&str> = proxy_ipvs::MODULES
        .into_iter()
        .chain([&*scheduler])
        .collect();
    programs.choose(&modules)
}

/// Reports whether iptables is missing: no program is installed, or the kernel supports neither the
/// nft nor the legacy backend.
fn is_absence(error: &IptablesError) -> bool {
    matches!(error, IptablesError::Missing(_) | IptablesError::Absent(_))
}

/// Returns an error if the kernel lacks ipsets or their iptables match, which upstream's shim
/// needs. Returns `None` otherwise.
fn missing(iptables: &Iptables, access: Access) -> Option<anyhow::Error> {
    if let Err(error) = proxy_ipvs::check_ipset()
        && error.is_absence()
    {
        return Some(error.into());
    }
    let (name, revision) = SET_MATCH;
    let mut there = IpFamily::ALL
        .into_iter()
        .filter(|family| iptables::exists(*family).is_ok());
    let is_lacking = there.all(|family| {
        iptables.lacks_match(family, name, revision)
            && (access == Access::Write || !iptables.may_load(family, "xt_set"))
    });
    // Tests one rule in each family with the iptables programs, which also makes the kernel load
    // the modules.
    let is_refused =
        || IpFamily::ALL.map(|family| is_refused_for_good(iptables, family)) == [true; 2];
    let is_missing = is_missing(is_lacking, access, is_refused);
    is_missing.then(|| anyhow!("the kernel has no rules that match sets (xt_set)"))
}

/// Reports whether iptables rules on this node cannot match ipsets.
///
/// - With read access, `is_lacking` decides: the kernel lacks the match, and no module file would
///   add it.
/// - With write access, the kernel must also refuse a test rule (`is_refused`).
fn is_missing(is_lacking: bool, access: Access, is_refused: impl FnOnce() -> bool) -> bool {
    is_lacking
        && match access {
            Access::Read => true,
            Access::Write => is_refused(),
        }
}

fn is_refused_for_good(iptables: &Iptables, family: IpFamily) -> bool {
    let is_absence =
        |error: &IptablesError| matches!(error, IptablesError::NoIpv6) || error.kind().is_absence();
    if let Err(error) = iptables.check(family) {
        return is_absence(&error);
    }
    match proxy_ipvs::probe(iptables, family) {
        Err(ProbeError::Rule(error)) => is_absence(&error),
        Err(ProbeError::Set(_) | ProbeError::Marks(_) | ProbeError::MarkTarget(_)) | Ok(()) => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use iptables::Kind;

    use super::*;

    /// A preview must choose the same shim as the start of the daemon.
    #[test]
    fn a_preview_reports_a_missing_set_match_and_writes_no_test_rule() {
        let nothing_tried = || unreachable!("nothing may be tried");
        assert!(is_missing(true, Access::Read, nothing_tried));
        for access in [Access::Read, Access::Write] {
            assert!(!is_missing(false, access, nothing_tried), "{access:?}");
        }
        for is_refused in [true, false] {
            let tried = is_missing(true, Access::Write, || is_refused);
            assert_eq!(tried, is_refused);
        }
    }

    #[test]
    fn only_the_absence_of_iptables_selects_the_nftables_shim() {
        let program = || "iptables-nft-restore".to_owned();
        let failed = |kind| IptablesError::Failed {
            program: program(),
            kind,
            line: None,
            said: "no".to_owned(),
        };
        let passing = [
            IptablesError::TimedOut {
                program: program(),
                limit: Duration::from_secs(10),
            },
            IptablesError::Run {
                program: program(),
                source: io::Error::from_raw_os_error(libc::EAGAIN),
            },
            IptablesError::Unusable("another app is holding the lock".to_owned()),
            failed(Kind::LockHeld),
            failed(Kind::NotPermitted),
            failed(Kind::Refused),
        ];
        for error in passing {
            assert!(!is_absence(&error), "{error}");
        }
        assert!(is_absence(&IptablesError::Missing(program())));
        assert!(is_absence(&IptablesError::Absent("no table".to_owned())));
    }
}
