//! Runs containers of the image according to the manifests, without a container engine.
//!
//! ```text
//!   archive ─▶ Image: root file system, config ┐
//!   DaemonSet, ConfigMap ─▶ Pod ───────────────┴─▶ Container: namespaces, mounts, rights ─▶ daemon
//! ```
//!
//! This crate restricts a container as containerd and the kubelet do: the root file system, the
//! mounts, masked and read-only parts of `/proc`, the bounding set of capabilities, and no new
//! privileges. It does not cover seccomp, SELinux and AppArmor, cgroups, and user namespaces.

mod archive;
mod container;
mod pod;

pub use archive::{Flavour, Image, archive};
pub use container::{Container, Credentials, Spec, maybe_container};
pub use pod::Pod;
