//! Opens the kernel for the IP families of a node, and starts the worker threads of a mode.

use std::fs;
use std::io;

use anyhow::{Result, anyhow};
use iptables::{Iptables, IptablesError};
use netlink_batch::Worker;
use proxy::IpFamily;
use tracing::{info, warn};

/// Reason why the daemon does not serve IPv6.
const DISABLED: &str = "IPv6 is disabled on this node (net.ipv6.conf.all.disable_ipv6, or that of default or kube-ipvs0)";

/// Kind of access for which a mode opens the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes. The kernel may load missing modules.
    Write,
    /// Reads only. The mode changes nothing in the kernel.
    Read,
}

impl Access {
    /// Checks that the iptables programs can write rules of `family`, or can read them if `self` is
    /// [`Access::Read`].
    pub(super) fn check(self, iptables: &Iptables, family: IpFamily) -> Result<(), IptablesError> {
        match self {
            Self::Write => iptables.check(family),
            Self::Read => iptables.check_reading(family),
        }
    }
}

/// The first worker thread of each IP family that the node can serve, and the reason for each
/// family that it cannot.
pub struct Families<K> {
    pub(super) opened: Vec<(IpFamily, Worker<K>)>,
    pub(super) left_out: Vec<SkippedFamily>,
}

/// A family that the node cannot serve, with the reason.
pub struct SkippedFamily {
    family: IpFamily,
    reason: String,
    usual: ReasonFrequency,
}

impl SkippedFamily {
    /// Returns the skipped family, and the reason why the node cannot serve it.
    pub fn told(&self) -> (IpFamily, String) {
        (self.family, self.reason.clone())
    }
}

/// Frequency of a reason to skip an IP family. A usual reason (`Yes`), such as disabled IPv6, also
/// occurs on healthy nodes. Only an unusual reason (`No`) causes a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasonFrequency {
    Yes,
    No,
}

/// Failure to start a worker thread, or to open its socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum ThreadError {
    #[error(transparent)]
    Kernel(anyhow::Error),
    #[error(
        "cannot start a thread: {0}; see what limits them (`ulimit -u`, pids.max of the cgroup)"
    )]
    Thread(#[from] io::Error),
}

/// Starts a worker thread whose name begins with `what`. The thread calls `kernel` to open its
/// connection to the kernel.
pub(super) fn thread<K: 'static>(
    what: &str,
    family: IpFamily,
    kernel: impl FnOnce() -> Result<K> + Send + 'static,
) -> Result<Worker<K>, ThreadError> {
    // The kernel truncates the name of a thread to 15 bytes.
    Worker::spawn(&format!("{what}-{family}"), || {
        kernel().map_err(ThreadError::Kernel)
    })
}

impl<K: 'static> Families<K> {
    /// Starts the first worker thread of each IP family that the node can serve: the family is not
    /// disabled and passes `check`, and `kernel` can open it. Returns an error if the node can
    /// serve no family.
    pub(super) fn open(
        check: impl Fn(IpFamily) -> Result<(), IptablesError>,
        is_disabled: impl Fn(IpFamily) -> bool,
        what: &str,
        kernel: impl Fn(IpFamily) -> Result<K> + Clone + Send + 'static,
    ) -> Result<Self> {
        Self::served(is_disabled, check, |family| {
            let kernel = kernel.clone();
            thread(what, family, move || kernel(family))
        })
    }

    fn served(
        is_disabled: impl Fn(IpFamily) -> bool,
        check: impl Fn(IpFamily) -> Result<(), IptablesError>,
        open: impl Fn(IpFamily) -> Result<Worker<K>, ThreadError>,
    ) -> Result<Self> {
        let mut families = Self {
            opened: Vec::new(),
            left_out: Vec::new(),
        };
        for family in IpFamily::ALL {
            let (reason, usual) = if is_disabled(family) {
                (DISABLED.to_owned(), ReasonFrequency::Yes)
            } else if let Err(error) = check(family) {
                (error.to_string(), ReasonFrequency::Yes)
            } else {
                match open(family) {
                    Ok(kernel) => {
                        families.opened.push((family, kernel));
                        continue;
                    }
                    Err(error) => (error.to_string(), ReasonFrequency::No),
                }
            };
            families.left_out.push(SkippedFamily {
                family,
                reason,
                usual,
            });
        }
        match families.left_out.first() {
            Some(SkippedFamily { family, reason, .. }) if families.opened.is_empty() => {
                Err(anyhow!("cannot serve {family}: {reason}"))
            }
            _ => Ok(families),
        }
    }
}

/// Logs the families that the node cannot serve, with the reasons.
pub fn log_skipped_families(left_out: &[SkippedFamily]) {
    for SkippedFamily {
        family,
        reason,
        usual,
    } in left_out
    {
        match usual {
            ReasonFrequency::Yes => {
                info!(%family, %reason, "kube-proxy does not serve this family");
            }
            ReasonFrequency::No => warn!(%family, %reason, "kube-proxy does not serve this family"),
        }
    }
}

/// Checks that `family` is not among the skipped families.
///
/// # Errors
///
/// Fails if it is, with the reason why the node cannot serve the family.
pub fn require(left_out: &[SkippedFamily], family: IpFamily) -> Result<()> {
    match left_out.iter().find(|left_out| left_out.family == family) {
        Some(SkippedFamily { reason, .. }) => Err(anyhow!("cannot serve {family}: {reason}")),
        None => Ok(()),
    }
}

/// Reports whether the sysctl `disable_ipv6` of `interface` disables `family`. Returns `None` if
/// the interface does not exist.
pub(super) fn is_disabled(family: IpFamily, interface: &str) -> Option<bool> {
    if family == IpFamily::V4 {
        return Some(false);
    }
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let value = fs::read_to_string(path).ok()?;
    Some(value.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpFamily = IpFamily::V4;
    const V6: IpFamily = IpFamily::V6;

    /// Opens families on fake kernels: `disabled` families are off, `unchecked` ones fail the
    /// check, and `unopened` ones cannot be opened.
    fn families(
        disabled: &[IpFamily],
        unchecked: &[IpFamily],
        unopened: &[IpFamily],
    ) -> Result<Families<()>> {
        let unless = |fails| {
            if fails {
                Err(IptablesError::NoIpv6)
            } else {
                Ok(())
            }
        };
        Families::served(
            |family| disabled.contains(&family),
            |family| unless(unchecked.contains(&family)),
            |family| {
                unless(unopened.contains(&family))
                    .map_err(|error| ThreadError::Kernel(error.into()))?;
                thread("served", family, || Ok(()))
            },
        )
    }

    #[test]
    fn an_unusable_ip_family_is_skipped_if_the_other_family_works() {
        let of = |families: Families<()>| {
            let opened = families.opened.iter().map(|(family, _)| *family);
            let left_out = families.left_out.iter();
            let left_out =
                left_out.map(|left_out| (left_out.family, left_out.usual == ReasonFrequency::Yes));
            (opened.collect::<Vec<_>>(), left_out.collect::<Vec<_>>())
        };
        let all = of(families(&[], &[], &[]).unwrap());
        assert_eq!(all, (vec![V4, V6], vec![]));
        let disabled = of(families(&[V6], &[], &[]).unwrap());
        assert_eq!(disabled, (vec![V4], vec![(V6, true)]));
        let unchecked = of(families(&[], &[V6], &[]).unwrap());
        assert_eq!(unchecked, (vec![V4], vec![(V6, true)]));
        let unopened = of(families(&[], &[], &[V4]).unwrap());
        assert_eq!(unopened, (vec![V6], vec![(V4, false)]));
        let Err(error) = families(&[V6], &[], &[V4]) else {
            panic!("nothing is served")
        };
        assert!(
            error.to_string().starts_with("cannot serve IPv4: "),
            "{error}"
        );
    }

    #[test]
    fn the_primary_ip_family_cannot_be_skipped() {
        let Families { left_out, .. } = families(&[], &[V6], &[]).unwrap();
        assert!(require(&left_out, V4).is_ok());
        let error = require(&left_out, V6).unwrap_err().to_string();
        assert!(error.starts_with("cannot serve IPv6: "), "{error}");
        assert!(error.contains("modprobe ipv6"), "{error}");
    }
}
