//! A case is a folder: what a kube-proxy is given, and what kube-proxy 1.36.2 leaves in the kernel
//! for that.
//!
//! | file | |
//! |---|---|
//! | `objects.yaml` | what the API server is told, besides its own `default/kubernetes` |
//! | `flags` | further flags, separated by blanks; may be empty or missing |
//! | `pre.sh` | leaves something behind before the daemon starts; may be missing |
//! | one for each [`Table`] | what is in the kernel afterwards; one that is missing is not compared |

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::table::Table;

/// What every daemon is started with; `flags` come behind, and so win.
const FLAGS: [&str; 3] = [
    "--hostname-override=node1",
    "--cluster-cidr=10.244.0.0/16,fd00:244::/56",
    "--conntrack-max-per-core=0",
];
/// In `flags`: the default of this flag is not given either.
const NO_CLUSTER_CIDR: &str = "--cluster-cidr=";

/// One folder.
#[derive(Debug)]
pub(crate) struct Case {
    /// Absolute.
    pub(crate) folder: PathBuf,
    pub(crate) objects: String,
    /// All of them, those that every case has too.
    pub(crate) flags: Vec<String>,
    pub(crate) has_pre: bool,
    pub(crate) expected: BTreeMap<Table, String>,
}

impl Case {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?;
        let text = |file: &str| match folder.join(file) {
            file if file.exists() => fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))
                .map(Some),
            _ => Ok(None),
        };
        let objects = text("objects.yaml")?
            .with_context(|| format!("{} has no objects.yaml", folder.display()))?;
        let flags = flags(&text("flags")?.unwrap_or_default());
        let mut expected = BTreeMap::new();
        for table in Table::ALL {
            if let Some(text) = text(table.file())? {
                expected.insert(table, text);
            }
        }
        ensure!(
            !expected.is_empty(),
            "{} says nothing about the kernel: it has none of the dumps",
            folder.display()
        );
        let has_pre = folder.join("pre.sh").exists();
        Ok(Self {
            folder,
            objects,
            flags,
            has_pre,
            expected,
        })
    }

    /// The folders below `cases` by name, one case each.
    pub(crate) fn names(cases: &Path) -> Result<Vec<String>> {
        let entries = fs::read_dir(cases)
            .with_context(|| format!("cannot read the folder of cases {}", cases.display()))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.path().is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        ensure!(
            !names.is_empty(),
            "there is no case in {}: each is a folder",
            cases.display()
        );
        Ok(names)
    }

    /// Whether it has to run in the kernel's initial network namespace: the size of the conntrack
    /// table is the kernel's, not a namespace's, and can be written only there.
    pub(crate) fn needs_initial_namespace(&self) -> bool {
        let last = self
            .flags
            .iter()
            .rev()
            .find_map(|flag| flag.strip_prefix("--conntrack-max-per-core="));
        last.is_none_or(|value| value != "0")
    }
}

fn flags(further: &str) -> Vec<String> {
    let (none, further): (Vec<&str>, Vec<&str>) = further
        .split_whitespace()
        .partition(|flag| *flag == NO_CLUSTER_CIDR);
    let common = FLAGS
        .iter()
        .filter(|flag| none.is_empty() || !flag.starts_with(NO_CLUSTER_CIDR));
    common.copied().chain(further).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_flags_come_behind_and_an_empty_cluster_cidr_is_none() {
        assert_eq!(
            flags("--masquerade-all\n").last().unwrap(),
            "--masquerade-all"
        );
        assert_eq!(flags("").len(), FLAGS.len());
        assert_eq!(
            flags("--cluster-cidr= --v=4"),
            [
                "--hostname-override=node1",
                "--conntrack-max-per-core=0",
                "--v=4"
            ]
        );
        assert_eq!(flags("--cluster-cidr=10.0.0.0/8").len(), FLAGS.len() + 1);
    }

    #[test]
    fn the_conntrack_table_is_the_kernels() {
        let case = |further: &str| Case {
            folder: PathBuf::new(),
            objects: String::new(),
            flags: flags(further),
            has_pre: false,
            expected: BTreeMap::new(),
        };
        assert!(!case("").needs_initial_namespace());
        assert!(
            case("--conntrack-max-per-core=32768 --conntrack-min=131072").needs_initial_namespace()
        );
    }
}
