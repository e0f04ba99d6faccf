//! A golden case: a directory with the input of a kube-proxy, and with the kernel state that must
//! result. Upstream's kube-proxy 1.36.2 has left this state; in a recording, an earlier version of
//! this program has.
//!
//! Files of a case:
//!
//! - `objects.yaml`: objects of the API server in the first phase, besides `default/kubernetes`.
//! - `objects-2.yaml`, `-3`, …: all objects of the next phase, applied at once when the kernel has
//!   the state of the phase before.
//! - `flags`: flags in addition to the default flags, separated by spaces. Optional.
//! - `config.yaml`: configuration file instead of the flags. In it, `KUBECONFIG` stands for the
//!   kubeconfig's path. Optional.
//! - `pre.sh`, `pre.nft`, `pre-iptables-save`, `pre-ip6tables-save`: a script to run, and kernel
//!   state to load, before the daemon starts. Optional.
//! - One file for each [`Table`]: dump of the kernel state at the end of the case. The test does
//!   not compare a table without a file.
//! - `nft-ip-1`, `nft-ip6-1`, …: dump at the end of phase 1. Without this file, the phase must
//!   already have the state at the end of the case.
//! - `writes`: number of writes, only in a recording; 0 without this file. The current version must
//!   make this many writes when it starts on the recorded state, and the recorded version when it
//!   starts on the current version's state.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::table::{Dumps, Table};

/// Flag with the node's name, which the daemon accepts even with a configuration file.
pub(crate) const NAME: &str = "--hostname-override=node1";
/// Flags of every case. The file `flags` of a case comes after them, and overrides them.
const FLAGS: [&str; 3] = [
    NAME,
    "--cluster-cidr=10.244.0.0/16,fd00:244::/56",
    "--conntrack-max-per-core=0",
];
/// Entry of the file `flags` that removes the default flag `--cluster-cidr`.
const NO_CLUSTER_CIDR: &str = "--cluster-cidr=";

/// A golden case, as read from its directory.
#[derive(Debug)]
pub(crate) struct Case {
    /// Absolute path of the case's directory.
    pub(crate) folder: PathBuf,
    /// Phases of the case: at least one.
    pub(crate) phases: Vec<Phase>,
    /// Flags of the daemon: the default flags, then those of the case.
    pub(crate) flags: Vec<String>,
    /// Configuration file that replaces the flags, if any.
    pub(crate) config: Option<String>,
    pub(crate) pre: PresetState,
    /// Expected dumps of all tables at the end of the case.
    pub(crate) expected: Dumps,
    /// Number of writes that the daemon must make when it starts on the expected state, or on the
    /// state that the program of `--after` leaves.
    pub(crate) writes: u64,
}

/// Objects that the API server gets at once, and the dumps of the kernel state that must result.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) objects: String,
    /// Expected dumps at the end of the phase. The last phase has all dumps of the case; earlier
    /// phases have only those of nftables mode.
    pub(crate) expected: Dumps,
}

/// Kernel state that a case creates before the daemon starts.
#[derive(Debug, Default)]
pub(crate) struct PresetState {
    /// True if the case has a `pre.sh`.
    pub(crate) is_script: bool,
    /// Content of `pre.nft`, a ruleset for `nft -f`.
    pub(crate) nft: Option<String>,
    /// Contents of `pre-iptables-save` and `pre-ip6tables-save`: leftovers of iptables mode.
    pub(crate) iptables: Option<[String; 2]>,
}

impl PresetState {
    pub(crate) fn is_none(&self) -> bool {
        !self.is_script && self.nft.is_none() && self.iptables.is_none()
    }
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
        let mut expected = Dumps::new();
        for table in Table::all() {
            if let Some(text) = text(table.file())? {
                expected.insert(table, text);
            }
        }
        // Adds a line that the dumps lack, because they are from a newer kernel: before Linux 5.9,
        // upstream sets this sysctl as well.
        if let Some(changes) = expected.get_mut(&Table::SysctlChanges)
            && changes.contains("net/ipv4/vs/conntrack:1")
            && is_before_5_9(&fs::read_to_string("/proc/sys/kernel/osrelease")?)
        {
            changes.push_str("net/ipv4/vs/conn_reuse_mode:0\n");
        }
        let mut objects = vec![objects];
        while let Some(next) = text(&format!("objects-{}.yaml", objects.len() + 1))? {
            objects.push(next);
        }
        let last = objects.len();
        let mut phases = Vec::new();
        for (number, objects) in (1..).zip(objects) {
            let mut own = expected.clone();
            if number < last {
                own.retain(|table, _| Table::NFT.contains(table));
                for (table, dump) in &mut own {
                    if let Some(text) = text(&format!("{}-{number}", table.file()))? {
                        *dump = text;
                    }
                }
            }
            phases.push(Phase {
                objects,
                expected: own,
            });
        }
        let pre = PresetState {
            is_script: folder.join("pre.sh").exists(),
            nft: text("pre.nft")?,
            iptables: text("pre-iptables-save")?
                .zip(text("pre-ip6tables-save")?)
                .map(Into::into),
        };
        let config = text("config.yaml")?;
        let writes = text("writes")?.unwrap_or_else(|| "0".to_owned());
        let writes = writes.trim().parse().context("writes")?;
        Ok(Self {
            folder,
            phases,
            flags,
            config,
            pre,
            expected,
            writes,
        })
    }

    /// Returns an error if the case has no dump, because it would compare nothing.
    pub(crate) fn ensure_comparable(&self) -> Result<()> {
        ensure!(
            !self.expected.is_empty(),
            "{} says nothing about the kernel: it has none of the dumps",
            self.folder.display()
        );
        Ok(())
    }

    /// Returns true for each IP family (IPv4, IPv6) whose node ports stay closed, because
    /// `--nodeport-addresses` names only networks of the other family.
    pub(crate) fn has_no_node_ports(&self) -> [bool; 2] {
        let flag = "--nodeport-addresses=";
        let networks = self
            .flags
            .iter()
            .rev()
            .find_map(|one| one.strip_prefix(flag));
        let Some(networks) = networks.filter(|networks| *networks != "primary") else {
            return [false; 2];
        };
        let is_there = |is_ipv6| networks.split(',').any(|one| one.contains(':') == is_ipv6);
        [!is_there(false), !is_there(true)]
    }

    /// Returns the sorted names of the cases, which are the directories in `cases`.
    pub(crate) fn names(cases: &Path) -> Result<Vec<String>> {
        let entries = fs::read_dir(cases)
            .with_context(|| format!("cannot read the directory of cases {}", cases.display()))?;
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
            "there is no case in {}: each is a directory",
            cases.display()
        );
        Ok(names)
    }

    /// Returns true if the case sets the size of the conntrack table, which only a process in the
    /// kernel's initial network namespace can do.
    pub(crate) fn needs_initial_namespace(&self) -> bool {
        if self.config.is_some() {
            return false;
        }
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

/// Returns true if a kernel release, such as `5.4.286`, is older than Linux 5.9.
fn is_before_5_9(release: &str) -> bool {
    let mut numbers = release.trim().split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (5, 9),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_case_follow_the_default_flags() {
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
    fn kernel_releases_before_5_9_are_recognized() {
        for (release, is_before) in [
            ("4.19.304", true),
            ("5.4.286\n", true),
            ("5.10.0-30", false),
        ] {
            assert_eq!(is_before_5_9(release), is_before, "{release}");
        }
        assert!(!is_before_5_9("odd"));
    }

    #[test]
    fn a_case_that_sets_conntrack_needs_the_initial_namespace() {
        let case = |further: &str| Case {
            folder: PathBuf::new(),
            phases: Vec::new(),
            flags: flags(further),
            config: None,
            pre: PresetState::default(),
            expected: Dumps::new(),
            writes: 0,
        };
        assert!(!case("").needs_initial_namespace());
        assert!(
            case("--conntrack-max-per-core=32768 --conntrack-min=131072").needs_initial_namespace()
        );
    }
}
