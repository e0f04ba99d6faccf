//! The Kubernetes version that this program matches.

/// Kubernetes version that this program matches: it has the flags, fields, feature gates and
/// metrics of that version's kube-proxy. Only this constant defines the version.
pub const KUBERNETES: Kubernetes = Kubernetes {
    major: "1",
    minor: "37",
    patch: "0",
};

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kubernetes {
    /// Major version, such as `1`.
    pub major: &'static str,
    /// Minor version, such as `37`.
    pub minor: &'static str,
    /// Patch version, such as `0`.
    pub patch: &'static str,
}

impl Kubernetes {
    /// Formats the version as `v1.37.0`.
    pub fn git_version(self) -> String {
        format!("v{}", self.number())
    }

    /// Formats the version as `1.37.0`.
    pub fn number(self) -> String {
        let Self {
            major,
            minor,
            patch,
        } = self;
        format!("{major}.{minor}.{patch}")
    }

    /// Formats the version as `1.37`.
    pub fn release(self) -> String {
        let Self { major, minor, .. } = self;
        format!("{major}.{minor}")
    }
}
