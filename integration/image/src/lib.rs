//! Runs containers of the image according to the manifests, without a container engine.
//!
//! ```text
//!   archive ─▶ Image: root file system, config ┐
//!   DaemonSet, ConfigMap ─▶ Pod ───────────────┴─▶ Container: namespaces, mounts, capabilities ─▶ the daemon
//! ```
//!
//! This crate does the parts of containerd and the kubelet that restrict a container: the root file
//! system, the mounts, masked and read-only parts of `/proc`, the capability bounding set, no new
//! privileges. Not covered: seccomp, SELinux and AppArmor, cgroups, user namespaces.

mod archive;
mod container;
mod pod;

pub use archive::{Flavour, Image, archive};
pub use container::{Container, Credentials, Spec, maybe_container};
pub use pod::Pod;
