//! The kernel interface of iptables mode, which reads and writes rules as text.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use footprint::Footprints;
use iptables::{Input, Iptables, Kind, Table};
use proxy::{IpFamily, Unreadable};

/// Aliases of kernel modules to load at the start ([`Iptables::choose_loading`]). They contain
/// matches and targets that usually only this mode needs. The kernel loads the modules of rarer
/// rules on demand.
pub const MODULES: [&str; 3] = ["ipt_statistic", "ipt_tcp", "ipt_DNAT"];

/// Time limit of a restore, including a wait of up to 5 s for the xtables lock. The limit is long,
/// because legacy iptables reads and writes whole tables, which takes minutes for very many rules.
const RESTORE_LIMIT: Duration = Duration::from_mins(5);

/// Kernel operations of this mode for one IP family. There are two implementations: one runs the
/// iptables programs, and one is a strict fake that refuses the same input.
pub trait Kernel: Send + 'static {
    /// Returns the current time, for example to measure the duration of a read. A fake kernel may
    /// have its own clock.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// Returns the addresses of all interfaces of this node, including loopback addresses.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Passes each line of `iptables-save` to `line`, for one table or for all tables. Starts a
    /// process.
    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable>;

    /// Passes `text` to `iptables-restore`, which writes each table completely or not at all. If
    /// iptables refuses a table, the earlier tables stay written. Starts a process.
    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal>;
}

/// Error of a restore that iptables refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Reason why iptables refused the write, with advice for the operator.
    pub reason: String,
    /// Kind of failure that caused the refusal.
    pub kind: Kind,
}

/// Access to the real kernel through the iptables programs.
#[derive(Debug)]
pub struct IptablesKernel {
    family: IpFamily,
    iptables: Iptables,
    /// Names of the links that modes create, such as `kube-ipvs0`. Their addresses do not count as
    /// addresses of the node.
    links: Vec<&'static str>,
}

impl IptablesKernel {
    /// Creates access to the kernel for one IP family. [`Iptables::check`] must have succeeded.
    pub fn new(family: IpFamily, iptables: Iptables) -> Self {
        Self {
            family,
            iptables,
            links: Vec::new(),
        }
    }

    /// Excludes the addresses on the links of these modes (such as `kube-ipvs0`) from the node's
    /// addresses.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.links = footprint::links(modes);
        self
    }
}

impl Kernel for IptablesKernel {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        route_netlink::all_addresses(self.family, &self.links)
            .map_err(|error| Unreadable::new("the addresses of this node", error))
    }

    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable> {
        let saved = self.iptables.save_lines(self.family, table, line);
        saved.map_err(|error| Unreadable::new("the iptables rules", error))
    }

    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal> {
        let restored = self.iptables.restore_from(RESTORE_LIMIT, self.family, text);
        restored.map_err(|error| Refusal {
            kind: error.kind(),
            reason: error.to_string(),
        })
    }
}
