//! The version of Kubernetes that this program matches.

/// The version of Kubernetes that this program matches: flags, fields, feature gates and metrics are
/// those of its kube-proxy. No other place has this number.
pub const KUBERNETES: Kubernetes = Kubernetes {
    major: "1",
    minor: "37",
    patch: "0",
};

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
    /// Returns the version as `v1.37.0`.
    pub fn git_version(self) -> String {
        format!("v{}", self.number())
    }

    /// Returns the version as `1.37.0`.
    pub fn number(self) -> String {
        let Self {
            major,
            minor,
            patch,
        } = self;
        format!("{major}.{minor}.{patch}")
    }

    /// Returns the version as `1.37`.
    pub fn release(self) -> String {
        let Self { major, minor, .. } = self;
        format!("{major}.{minor}")
    }
}
