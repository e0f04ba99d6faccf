//! Kernel modules: loaded, to be loaded, missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::check::finding::{Finding, some};
use crate::modes::definition::{Module, ModuleNeed};

const NAME: &str = "modules";

/// What is known of modules.
#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: BTreeSet<String>,
    /// In the kernel itself, or in files for it; `None` where there are no lists, as in a container
    /// without `/lib/modules`.
    listed: Option<BTreeSet<String>>,
}

impl Modules {
    /// Those below `root`, of which `wanted` are looked at.
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
        Self { loaded, listed }
    }
}

/// `kernel/net/netfilter/ipvs/ip_vs.ko.xz: ...` is `ip_vs`.
fn module_of(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let file = path.rsplit('/').next()?;
    let name = file.split(".ko").next()?;
    Some(name.replace('-', "_"))
}

/// What follows for the modules that a mode wants. `is_read`: the kernel could be read for it.
pub(super) fn judge(wanted: &[Module], modules: &Modules, is_read: bool) -> Vec<Finding> {
    let (mut loaded, mut loadable) = (Vec::new(), Vec::new());
    let (mut unknown, mut findings) = (Vec::new(), Vec::new());
    for Module { name, need } in wanted {
        let is_listed = modules.listed.as_ref().map(|list| list.contains(&**name));
        if modules.loaded.contains(&**name) {
            loaded.push(name.to_string());
            continue;
        }
        match is_listed {
            Some(true) => loadable.push(name.to_string()),
            None => unknown.push(name.to_string()),
            Some(false) => {
                let message = format!(
                    "the kernel has no {name}, and there is no module file of it: install the package with \
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
    told(&loaded, "there");
    told(
        &loadable,
        "not loaded yet; the kernel loads them when they are asked for",
    );
    if !unknown.is_empty() {
        findings.push(Finding::ok(
            NAME,
            format!(
                "not loaded, or built in, which cannot be told here without /lib/modules: {}; --init-only tries \
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
    fn modules_are_there_to_be_loaded_missing_or_unknown() {
        let wanted = [
            module("ip_vs", ModuleNeed::All),
            module("xt_set", ModuleNeed::Some),
            module("nf_conntrack", ModuleNeed::All),
        ];
        let mut modules = Modules {
            loaded: names(&["ip_vs"]),
            listed: Some(names(&["ip_vs", "xt_set"])),
        };
        let told = |modules: &Modules, is_read| {
            let findings = judge(&wanted, modules, is_read).into_iter();
            let told = findings.map(|finding| (finding.status, finding.message));
            told.collect::<Vec<_>>()
        };
        let findings = told(&modules, false);
        assert_eq!(findings.len(), 3);
        assert!(findings[0].0 == Status::Fail && findings[0].1.contains("no nf_conntrack"));
        assert_eq!(findings[1], (Status::Ok, "there: ip_vs".to_owned()));
        assert!(findings[2].1.ends_with("asked for: xt_set"));
        assert_eq!(told(&modules, true)[0].0, Status::Warn);
        modules.listed = None;
        let findings = told(&modules, false);
        assert!(findings.iter().all(|(status, _)| *status == Status::Ok));
        assert!(
            findings[1].1.contains("xt_set, nf_conntrack"),
            "{findings:?}"
        );
    }

    #[test]
    fn the_lists_of_modules_are_read() {
        let line = "kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/lib/libcrc32c.ko.xz";
        assert_eq!(module_of(line).as_deref(), Some("ip_vs"));
        let built_in = "kernel/net/netfilter/nf-conntrack.ko";
        assert_eq!(module_of(built_in).as_deref(), Some("nf_conntrack"));
    }
}
