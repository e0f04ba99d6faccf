//! Jobs as files in the work dir. Files are lists of NUL-terminated byte strings, so that
//! arguments, variables and paths arrive unchanged, without a shell and without quoting.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Default `PATH`. System tools are in `sbin`.
const PATHS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
    /// Name of the [`crate::Lane`].
    pub(crate) lane: String,
    /// Host folder with the VM kernel's modules.
    pub(crate) modules: Option<PathBuf>,
    /// Host folders that the VM may write to.
    pub(crate) keep: Vec<PathBuf>,
}

impl Job {
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let put = |name: &str, list: Vec<&OsStr>| std::fs::write(dir.join(name), encode(list));
        let pairs: Vec<OsString> = self
            .env
            .iter()
            .map(|(name, value)| join(name, value))
            .collect();
        put("argv", self.argv.iter().map(OsString::as_os_str).collect())?;
        put("env", pairs.iter().map(OsString::as_os_str).collect())?;
        put("cwd", vec![self.cwd.as_os_str()])?;
        put("lane", vec![self.lane.as_ref()])?;
        put(
            "modules",
            self.modules.iter().map(|dir| dir.as_os_str()).collect(),
        )?;
        put(
            "keep",
            self.keep.iter().map(|dir| dir.as_os_str()).collect(),
        )
    }

    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let get = |name: &str| std::fs::read(dir.join(name)).map(|bytes| decode(&bytes));
        let first = |name: &str| get(name).map(|list| list.into_iter().next());
        Ok(Self {
            argv: get("argv")?,
            env: get("env")?.iter().map(|pair| split(pair)).collect(),
            cwd: first("cwd")?.unwrap_or_else(|| "/".into()).into(),
            lane: first("lane")?
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            modules: first("modules")?.map(PathBuf::from),
            keep: get("keep")?.into_iter().map(PathBuf::from).collect(),
        })
    }
}

fn encode<'a>(list: impl IntoIterator<Item = &'a OsStr>) -> Vec<u8> {
    list.into_iter()
        .flat_map(|item| item.as_bytes().iter().copied().chain([0]))
        .collect()
}

fn decode(bytes: &[u8]) -> Vec<OsString> {
    bytes
        .split_inclusive(|&byte| byte == 0)
        .map(|item| OsString::from_vec(item.strip_suffix(&[0]).unwrap_or(item).to_vec()))
        .collect()
}

fn join(name: &OsStr, value: &OsStr) -> OsString {
    [name, "=".as_ref(), value].into_iter().collect()
}

/// Splits a variable like the C library: at the first `=` that is not the first byte.
fn split(pair: &OsStr) -> (OsString, OsString) {
    let bytes = pair.as_bytes();
    let at = bytes
        .iter()
        .skip(1)
        .position(|&byte| byte == b'=')
        .map_or(bytes.len(), |at| at + 1);
    let (name, value) = bytes.split_at(at);
    (
        OsString::from_vec(name.to_vec()),
        OsString::from_vec(value.get(1..).unwrap_or_default().to_vec()),
    )
}

/// Returns `path`, extended by the missing default folders.
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
    use proptest::prelude::*;

    #[test]
    fn path_keeps_what_was_given_and_gains_sbin() {
        assert_eq!(
            sane_path(Some("/opt/x:/usr/bin".as_ref())),
            "/opt/x:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
        );
        assert_eq!(sane_path(None), PATHS.join(":").as_str());
    }

    #[test]
    fn odd_environment() {
        assert_eq!(split("A=b=c".as_ref()), ("A".into(), "b=c".into()));
        assert_eq!(split("=C:=x".as_ref()), ("=C:".into(), "x".into()));
        assert_eq!(split("A=".as_ref()), ("A".into(), "".into()));
    }

    proptest! {
        #[test]
        fn lists_survive(list in proptest::collection::vec(proptest::collection::vec(1u8..=255, 0..20), 0..8)) {
            let list: Vec<OsString> = list.into_iter().map(OsString::from_vec).collect();
            prop_assert_eq!(decode(&encode(list.iter().map(OsString::as_os_str))), list);
        }
    }
}
