//! Which version this program has, and which Kubernetes version it is as.
//!
//! Two versions, because two kinds of readers ask. What compares the parts of a cluster with each
//! other (the alert `KubeVersionMismatch`, scripts around `--version`) asks for Kubernetes'; who
//! looks for a bug asks for this program's.

use flags::version::KUBERNETES;

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
