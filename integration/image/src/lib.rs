//! Runs containers of the image according to the manifests, without a container engine.
//!
//! ```text
//!   archive ─▶ Image: root file system, config ┐
//!   DaemonSet, ConfigMap ─▶ Pod ───────────────┴─▶ Container: namespaces, mounts, capabilities ─▶ the daemon
//! ```
//!
//! What containerd and the kubelet do is done here as far as it takes rights away: the root file
//! system, which mounts there are and how, masked and read-only parts of `/proc`, the bounding set,
//! no new privileges. Not here: seccomp, SELinux and AppArmor, cgroups, user namespaces.

mod archive;
mod container;
mod pod;

pub use archive::{Flavour, Image, archive};
pub use container::{Container, Credentials, Spec, maybe_container};
pub use pod::Pod;
