//! Which version this program has, and which Kubernetes version it is as.
//!
//! Two versions, because two kinds of readers ask. What compares the parts of a cluster with each
//! other (the alert `KubeVersionMismatch`, scripts around `--version`) asks for Kubernetes'; who
//! looks for a bug asks for this program's.

/// The version of Kubernetes whose kube-proxy this program does the same as. It moves when the
/// flags, fields, feature gates and metrics of a newer one are taken over, and nowhere else is it
/// written.
pub const KUBERNETES: Kubernetes = Kubernetes {
    major: "1",
    minor: "37",
    patch: "0",
};

/// This program's own version, as `0.1.0`.
pub const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that was built, in full, or `unknown`: by git's word, or that of whoever built.
pub const COMMIT: &str = env!("KUBE_PROXY_COMMIT");

/// So many digits of a commit are enough for a reader.
const SHORT: usize = 12;

/// The commit in short, as `0123456789ab`.
pub fn short_commit() -> &'static str {
    COMMIT.get(..SHORT).unwrap_or(COMMIT)
}

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kubernetes {
    /// `1`.
    pub major: &'static str,
    /// `37`.
    pub minor: &'static str,
    /// `0`.
    pub patch: &'static str,
}

impl Kubernetes {
    /// As `v1.37.0`.
    pub fn git_version(self) -> String {
        format!("v{}", self.number())
    }

    /// As `1.37.0`.
    pub fn number(self) -> String {
        let Self {
            major,
            minor,
            patch,
        } = self;
        format!("{major}.{minor}.{patch}")
    }

    /// As `1.37`.
    pub fn release(self) -> String {
        let Self { major, minor, .. } = self;
        format!("{major}.{minor}")
    }
}

/// What `--version` prints: one line that begins as upstream's, whose second word scripts take for
/// the version.
pub fn told() -> String {
    let kubernetes = KUBERNETES.git_version();
    format!("Kubernetes {kubernetes} ({})\n", program())
}

/// This program, as `kube-proxy-ipvs v0.1.0, commit 0123456789ab`.
pub fn program() -> String {
    format!("kube-proxy-ipvs v{OWN_VERSION}, commit {}", short_commit())
}
