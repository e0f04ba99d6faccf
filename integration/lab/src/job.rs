//! Job: the command that a VM runs, stored as a file in the work dir. No shell or kernel command
//! line interprets it, so arguments, environment variables and paths arrive unchanged.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Name of the job's file in the work dir.
pub(crate) const FILE: &str = "job";

/// Directories that `PATH` must contain. System tools are in `sbin`.
const PATHS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
    /// Name of the [`crate::Lane`] (kernel) on which the command runs.
    pub(crate) lane: String,
    /// Host directory with the modules of the VM's kernel, or `None` if it has no modules.
    pub(crate) modules: Option<PathBuf>,
    /// Host directories to which the VM may write.
    pub(crate) keep: Vec<PathBuf>,
}

impl Job {
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        Ok(serde_json::to_writer(File::create(dir.join(FILE))?, self)?)
    }

    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(FILE))?)?)
    }
}

/// Returns `path` with the default directories that it lacks (`PATHS`) at its end.
pub(crate) fn sane_path(path: Option<&OsStr>) -> OsString {
    let given: Vec<PathBuf> = path
        .map(|path| std::env::split_paths(path).collect())
        .unwrap_or_default();
    let mut sane = path.unwrap_or_default().to_owned();
    for dir in PATHS
        .into_iter()
        .filter(|dir| !given.iter().any(|one| one == Path::new(dir)))
    {
        if !sane.is_empty() {
            sane.push(":");
        }
        sane.push(dir);
    }
    sane
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    use proptest::prelude::*;

    #[test]
    fn each_missing_default_directory_is_added_to_path() {
        assert_eq!(
            sane_path(Some("/opt/x:/usr/bin".as_ref())),
            "/opt/x:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
        );
        assert_eq!(sane_path(None), PATHS.join(":").as_str());
    }

    proptest! {
        #[test]
        fn a_job_survives_encoding_and_decoding_unchanged(list in proptest::collection::vec(proptest::collection::vec(1u8..=255, 0..20), 0..8)) {
            let argv: Vec<OsString> = list.into_iter().map(OsString::from_vec).collect();
            let env = argv.iter().map(|one| (one.clone(), "=b=c".into())).collect();
            let job = Job { argv, env, cwd: "/".into(), lane: "A".into(), modules: None, keep: Vec::new() };
            let text = serde_json::to_vec(&job).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Job>(&text).unwrap(), job);
        }
    }
}
