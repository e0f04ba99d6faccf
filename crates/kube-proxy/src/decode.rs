//! Kubernetes objects to our own compact ones.
pub(crate) mod address;
