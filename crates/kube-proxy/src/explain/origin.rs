//! What each step of a way comes from, in Kubernetes' words.

mod names;

/// How the origin of what is somebody else's begins.
pub(crate) const NOT_OURS: &str = "not kube-proxy's";
