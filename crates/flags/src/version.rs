//! The version of Kubernetes that this program matches.

/// The version of Kubernetes whose kube-proxy this program matches. It moves when the
/// flags, fields, feature gates and metrics of a newer one are taken over, and nowhere else is it
/// written.
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
