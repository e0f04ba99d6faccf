//! The version of this program, and the Kubernetes version that it matches.
//!
//! There are two kinds of readers:
//!
//! - Tools that compare the versions in a cluster need the Kubernetes version: the alert
//!   `KubeVersionMismatch`, and scripts that call `--version`.
//! - People who debug this program need its own version.

use flags::version::KUBERNETES;

/// This program's own version, such as `0.1.0`.
pub const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Full commit hash of the build, from git or from the builder. `unknown` if neither knows the
/// commit.
pub const COMMIT: &str = env!("KUBE_PROXY_COMMIT");

/// Number of digits of a shortened commit hash.
const SHORT: usize = 12;

/// Returns the shortened commit hash, such as `0123456789ab`.
pub fn short_commit() -> &'static str {
    COMMIT.get(..SHORT).unwrap_or(COMMIT)
}

/// Returns the output of `--version`: one line with the same beginning as upstream's. Scripts use
/// the second word of the line as the version.
pub fn told() -> String {
    let kubernetes = KUBERNETES.git_version();
    format!("Kubernetes {kubernetes} ({})\n", program())
}

/// Returns the program's name and version, such as `kube-proxy-ipvs v0.1.0, commit 0123456789ab`.
pub fn program() -> String {
    format!("kube-proxy-ipvs v{OWN_VERSION}, commit {}", short_commit())
}
