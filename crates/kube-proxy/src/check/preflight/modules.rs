//! Checks whether kernel modules are loaded, available or missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use modes::definition::{Module, ModuleNeed};
use nftables_netlink::{Error, Family, Feature, Nftables};
use proxy::IpFamily;

use crate::check::finding::{Finding, some};

const NAME: &str = "modules";

/// Kernel modules by state: loaded, listed as available, or tested in the kernel.
#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: BTreeSet<String>,
    /// Modules that are built in or have a file below `/lib/modules`. `None` if no list is usable,
    /// as in a container without that directory.
    listed: Option<BTreeSet<String>>,
    /// Responses of the kernel about modules that are neither loaded nor listed: true if the module
    /// is available. A module may be built in without being in a list.
    answered: BTreeMap<String, bool>,
}

impl Modules {
    /// Reads the module lists below `root`, and keeps the state of the `wanted` modules.
    pub(super) fn read(root: &Path, wanted: &[Module]) -> Self {
        let text = |path: &Path| fs::read_to_string(path).ok();
        let mut loaded = text(&root.join("proc/modules")).map_or_else(BTreeSet::new, |list| {
            let names = list.lines().filter_map(|line| line.split(' ').next());
            names.map(str::to_owned).collect()
        });
        let has_folder = |module: &&Module| root.join("sys/module").join(&*module.name).exists();
        let folders = wanted.iter().filter(has_folder);
        loaded.extend(folders.map(|module| module.name.to_string()));
        let release = text(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        let folder = root.join("lib/modules").join(release.trim());
        let files = text(&folder.join("modules.dep"));
        let listed = files.map(|files| {
            let built_in = text(&folder.join("modules.builtin")).unwrap_or_default();
            let lines = files.lines().chain(built_in.lines());
            lines.filter_map(module_of).collect()
        });
        Self {
            loaded,
            listed: listed.filter(|listed: &BTreeSet<String>| !listed.is_empty()),
            answered: BTreeMap::new(),
        }
    }

    /// Tests, with `ask`, the wanted modules that are neither loaded nor listed.
    pub(super) fn ask(
        &mut self,
        wanted: &[Module],
        ask: impl FnOnce(&[&str]) -> BTreeMap<String, bool>,
    ) {
        let is_open = |name: &&str| {
            let listed = self.listed.as_ref();
            !self.loaded.contains(*name) && !listed.is_some_and(|list| list.contains(*name))
        };
        let open: Vec<&str> = wanted.iter().map(|module| &*module.name).collect();
        let open: Vec<&str> = open.into_iter().filter(is_open).collect();
        if !open.is_empty() {
            self.answered = ask(&open);
        }
    }
}

/// Tests which of these modules the kernel has, and returns the results by name. Omits modules for
/// which the test is inconclusive. Writes nothing, and does not make the kernel load a module file.
pub(super) fn ask_kernel(names: &[&str]) -> BTreeMap<String, bool> {
    let mut answers = BTreeMap::new();
    if names.contains(&"nf_tables")
        && let Some(missing) = missing_of_nftables()
    {
        for module in Feature::ALL.iter().flat_map(|feature| feature.modules()) {
            answers.insert((*module).to_owned(), !missing.contains(module));
        }
    }
    for (name, file) in [
        ("nf_conntrack", "/proc/sys/net/netfilter/nf_conntrack_max"),
        ("ip_vs", "/proc/thread-self/net/ip_vs"),
    ] {
        if Path::new(file).exists() {
            answers.insert(name.to_owned(), true);
        }
    }
    if names.contains(&"ip_set") {
        match proxy_ipvs::check_ipset() {
            Ok(()) => drop(answers.insert("ip_set".to_owned(), true)),
            Err(error) if error.is_absence() => drop(answers.insert("ip_set".to_owned(), false)),
            Err(_) => {}
        }
    }
    answers.retain(|name, _| names.contains(&name.as_str()));
    answers
}

/// Returns the modules that nf_tables lacks for an IP family, or `None` if the kernel does not
/// respond.
fn missing_of_nftables() -> Option<BTreeSet<&'static str>> {
    let mut missing = BTreeSet::new();
    for (of, family) in [(IpFamily::V4, Family::Ip), (IpFamily::V6, Family::Ip6)] {
        if iptables::exists(of).is_err() {
            continue;
        }
        let lacking = match Nftables::open().and_then(|mut nftables| nftables.probe(family)) {
            Ok(lacking) => lacking.iter().map(|of| of.feature).collect(),
            Err(Error::NoNftables) => Feature::ALL.to_vec(),
            Err(_) => return None,
        };
        missing.extend(lacking.iter().flat_map(|feature| feature.modules()));
    }
    Some(missing)
}

/// Returns the module's name in a line of a module list: `ip_vs` for
/// `kernel/net/netfilter/ipvs/ip_vs.ko.xz: ...`. Returns `None` if the line names no module.
fn module_of(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let file = path.rsplit('/').next()?;
    let name = file.split(".ko").next()?;
    Some(name.replace('-', "_"))
}

/// Returns findings about the modules that a mode needs. `is_read` is true if the mode's kernel
/// state could be read. A missing module is then only a warning.
pub(super) fn judge(wanted: &[Module], modules: &Modules, is_read: bool) -> Vec<Finding> {
    let (mut loaded, mut loadable) = (Vec::new(), Vec::new());
    let (mut unknown, mut findings) = (Vec::new(), Vec::new());
    for Module { name, need } in wanted {
        let is_listed = modules.listed.as_ref().map(|list| list.contains(&**name));
        let answer = modules.answered.get(&**name).copied();
        let is_listed = answer.filter(|has| !has).or(is_listed);
        if modules.loaded.contains(&**name) || answer == Some(true) {
            loaded.push(name.to_string());
            continue;
        }
        match is_listed {
            Some(true) => loadable.push(name.to_string()),
            None => unknown.push(name.to_string()),
            Some(false) => {
                let message = format!(
                    "the kernel has no {name}, and no module file has it: install the package with \
                     the kernel's modules"
                );
                findings.push(match need {
                    ModuleNeed::All if !is_read => Finding::fail(NAME, message),
                    _ => Finding::warn(NAME, message),
                });
            }
        }
    }
    let mut told = |names: &[String], what: &str| {
        if !names.is_empty() {
            findings.push(Finding::ok(NAME, format!("{what}: {}", names.join(", "))));
        }
    };
    told(&loaded, "available");
    told(&loadable, "not loaded yet; the kernel loads them on demand");
    if !unknown.is_empty() {
        findings.push(Finding::ok(
            NAME,
            format!(
                "not loaded, or built in, which is unknown here without /lib/modules: {}; \
                 --init-only tries \
                 what the mode needs",
                some(&unknown)
            ),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Status;

    fn module(name: &'static str, need: ModuleNeed) -> Module {
        Module {
            name: name.into(),
            need,
        }
    }

    fn names(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_module_is_reported_as_loaded_loadable_missing_or_unknown() {
        let wanted = [
            module("ip_vs", ModuleNeed::All),
            module("xt_set", ModuleNeed::Some),
            module("nf_conntrack", ModuleNeed::All),
        ];
        let mut modules = Modules {
            loaded: names(&["ip_vs"]),
            listed: Some(names(&["ip_vs", "xt_set"])),
            ..Modules::default()
        };
        let told = |modules: &Modules, is_read| {
            let findings = judge(&wanted, modules, is_read).into_iter();
            let told = findings.map(|finding| (finding.status, finding.message));
            told.collect::<Vec<_>>()
        };
        let findings = told(&modules, false);
        assert_eq!(findings.len(), 3);
        assert!(findings[0].0 == Status::Fail && findings[0].1.contains("no nf_conntrack"));
        assert_eq!(findings[1], (Status::Ok, "available: ip_vs".to_owned()));
        assert!(findings[2].1.ends_with("on demand: xt_set"));
        assert_eq!(told(&modules, true)[0].0, Status::Warn);
        modules.listed = None;
        let findings = told(&modules, false);
        assert!(findings.iter().all(|(status, _)| *status == Status::Ok));
        assert!(
            findings[1].1.contains("xt_set, nf_conntrack"),
            "{findings:?}"
        );
    }

    /// In a pod, `modules.builtin` may be empty although all modules are built into the kernel.
    #[test]
    fn the_kernels_answer_overrides_the_module_lists() {
        let wanted = [
            module("nf_tables", ModuleNeed::All),
            module("nft_numgen", ModuleNeed::Some),
            module("nf_nat", ModuleNeed::All),
        ];
        let told = |modules: &Modules| {
            let findings = judge(&wanted, modules, true).into_iter();
            let told = findings.map(|finding| (finding.status, finding.message));
            told.collect::<Vec<_>>()
        };
        let root = std::env::temp_dir().join(format!("modules-{}", std::process::id()));
        let lists = root.join("lib/modules/6.1");
        fs::create_dir_all(&lists).unwrap();
        fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        fs::write(root.join("proc/sys/kernel/osrelease"), "6.1\n").unwrap();
        fs::write(lists.join("modules.dep"), "").unwrap();
        let empty = Modules::read(&root, &wanted);
        // Adds an unrelated module to the list, so that the list is not empty.
        fs::write(lists.join("modules.dep"), "kernel/drivers/net/dummy.ko:\n").unwrap();
        let mut other = Modules::read(&root, &wanted);
        fs::remove_dir_all(&root).unwrap();
        let findings = told(&empty);
        assert!(
            findings.len() == 1 && findings[0].1.contains("is unknown here"),
            "{findings:?}"
        );
        assert_eq!(told(&other).len(), 3, "by files alone");
        other.ask(&wanted, |asked| {
            assert_eq!(asked, ["nf_tables", "nft_numgen", "nf_nat"]);
            let answers = [("nf_tables", true), ("nf_nat", true), ("nft_numgen", false)];
            BTreeMap::from(answers.map(|(name, has)| (name.to_owned(), has)))
        });
        let findings = told(&other);
        assert!(
            findings.len() == 2 && findings[0].1.contains("no nft_numgen"),
            "{findings:?}"
        );
        assert_eq!(
            findings[1],
            (Status::Ok, "available: nf_tables, nf_nat".to_owned())
        );
    }

    #[test]
    fn module_lists_are_parsed() {
        let line = "kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/lib/libcrc32c.ko.xz";
        assert_eq!(module_of(line).as_deref(), Some("ip_vs"));
        let built_in = "kernel/net/netfilter/nf-conntrack.ko";
        assert_eq!(module_of(built_in).as_deref(), Some("nf_conntrack"));
    }
}
