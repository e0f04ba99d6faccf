//! Programs that the user of `make cluster` must provide or install.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Directory with Kubernetes' programs, all of the same version.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    folder: PathBuf,
}

/// Programs that every cluster needs, each with the download that contains it.
const CLUSTER: [(&str, &str); 7] = [
    ("kube-apiserver", SERVER),
    ("kube-controller-manager", SERVER),
    ("kube-scheduler", SERVER),
    ("kubelet", NODE),
    ("kubectl", NODE),
    ("kubeadm", NODE),
    (
        "etcd",
        "the etcd that this version of Kubernetes is released with; from etcd's release page",
    ),
];
/// Additional program of `make e2e`, with the download that contains it.
pub(crate) const E2E: (&str, &str) = (
    "e2e.test",
    "kubernetes-test-linux-amd64.tar.gz of the Kubernetes release, directory kubernetes/test/bin",
);
/// Program that `make migrate` needs to migrate from upstream, with the download that contains it.
pub(crate) const UPSTREAM: (&str, &str) = ("kube-proxy", NODE);

const SERVER: &str = "kubernetes-server-linux-amd64.tar.gz of the Kubernetes release, directory kubernetes/server/bin";
const NODE: &str =
    "the same archive, or kubernetes-node-linux-amd64.tar.gz, folder kubernetes/node/bin";
/// Programs that a node needs, each with the Debian package that contains it.
const PACKAGES: [(&str, &str); 4] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/bin/ctr", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
];

impl Binaries {
    /// Checks that all needed programs and Debian packages are there. The error has a line for each
    /// missing program.
    pub(crate) fn find(
        folder: Option<&Path>,
        further: &[(&str, &str)],
    ) -> Result<Self, Vec<String>> {
        let mut missing = Vec::new();
        let wanted = CLUSTER.iter().chain(further);
        let lacks = |name: &str| folder.is_none_or(|folder| !is_program(&folder.join(name)));
        for (name, source) in wanted.filter(|(name, _)| lacks(name)) {
            missing.push(format!("{name}: {source}"));
        }
        for (file, package) in PACKAGES {
            if !is_program(Path::new(file)) {
                missing.push(format!(
                    "{file}: Debian's package {package} (integration/deps cluster installs it)"
                ));
            }
        }
        match folder {
            Some(folder) if missing.is_empty() => Ok(Self {
                folder: folder.to_owned(),
            }),
            _ => Err(missing),
        }
    }

    /// Returns the directory that contains the programs.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the program `name` in the directory.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the paths of the image archives `images/*.tar` in the directory, sorted.
    pub(crate) fn images(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("images"));
        let mut archives: Vec<PathBuf> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
            .collect();
        archives.sort();
        archives
    }

    /// Returns true if the image archives include CoreDNS.
    pub(crate) fn has_dns(&self) -> bool {
        let archives = self.images();
        let names = archives.iter().filter_map(|archive| archive.file_name());
        names
            .into_iter()
            .any(|name| name.to_string_lossy().starts_with("coredns"))
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_each_missing_program_and_its_source() {
        let missing = Binaries::find(None, &[E2E]).unwrap_err();
        for name in ["kube-apiserver", "etcd", "kubelet", "kubeadm", "e2e.test"] {
            let line = missing
                .iter()
                .find(|line| line.starts_with(&format!("{name}: ")));
            assert!(
                line.is_some_and(|line| line.len() > name.len() + 20),
                "{missing:?}"
            );
        }
        // A directory with the name of a program does not count as a program.
        let folder = std::env::temp_dir().join(format!("cluster-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("kubelet")).unwrap();
        std::fs::write(folder.join("etcd"), "").unwrap();
        let missing = Binaries::find(Some(&folder), &[]).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            missing.iter().any(|line| line.starts_with("kubelet: ")),
            "{missing:?}"
        );
        assert!(
            missing.iter().any(|line| line.starts_with("etcd: ")),
            "{missing:?}"
        );
    }
}
