//! Records which programs the daemon starts. Wrappers at the front of the daemon's PATH log each
//! call, and then execute the real program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cluster::Cluster;

/// Names of the programs that our daemon or upstream's kube-proxy may start in IPVS mode.
const PROGRAMS: [&str; 12] = [
    "iptables-legacy-restore",
    "iptables-legacy-save",
    "ip6tables-legacy-restore",
    "ip6tables-legacy-save",
    "iptables-nft-restore",
    "iptables-nft-save",
    "ip6tables-nft-restore",
    "ip6tables-nft-save",
    "modprobe",
    "ipset",
    "ipvsadm",
    "ip",
];

/// Path of the log that the recording wrappers write. A restore that only tests whether the kernel
/// accepts rules appears as `probe`.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Puts recording wrappers first into the PATH of daemons that start later.
    pub fn record(cluster: &mut Cluster) -> Result<Self> {
        let folder = cluster.folder().join("bin");
        fs::create_dir_all(&folder)?;
        let log = folder.join("calls");
        fs::write(&log, "")?;
        for name in PROGRAMS {
            let Some(real) = find(name) else { continue };
            let (real, log) = (real.display(), log.display());
            let script = if name.ends_with("-restore") {
                format!(
                    "#!/bin/sh\ninput=$(cat)\ncase $input in *KUBE-PROXY-PROBE*) what=probe;; *) what=write;; esac\n\
                     echo {name} $what >>{log}\nprintf '%s\\n' \"$input\" | {real} \"$@\"\n"
                )
            } else {
                format!("#!/bin/sh\necho {name} >>{log}\nexec {real} \"$@\"\n")
            };
            write_program(&folder.join(name), &script)?;
        }
        put_first(cluster, &folder);
        Ok(Self(log))
    }

    /// Returns the calls since the previous `take`, such as `iptables-legacy-save` or
    /// `iptables-legacy-restore write`.
    pub fn take(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.0)
            .with_context(|| format!("cannot read {}", self.0.display()))?;
        fs::write(&self.0, "")?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// Returns the path of a program that the PATH contains, or `None`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let search = std::env::var("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&search).map(|dir| dir.join(name));
    files.find(|file| file.is_file())
}

pub(crate) fn write_program(file: &Path, script: &str) -> Result<()> {
    fs::write(file, script)?;
    Ok(fs::set_permissions(
        file,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Puts a directory first into the PATH of daemons that start later.
pub(crate) fn put_first(cluster: &mut Cluster, folder: &Path) {
    let search = std::env::var("PATH").unwrap_or_default();
    let path = format!("PATH={}:{search}", folder.display());
    cluster.prefix = vec!["env".into(), path.into()];
}
