//! The kernel as this mode sees it: rules as text, in and out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use footprint::Footprints;
use iptables::{Input, Iptables, Kind, Table};
use proxy::{IpFamily, Unreadable};

/// The kernel modules, by their aliases, of matches and targets that this mode alone has on the
/// usual node: for [`Iptables::choose_loading`]. The kernel itself loads those of rarer rules.
pub const MODULES: [&str; 3] = ["ipt_statistic", "ipt_tcp", "ipt_DNAT"];

/// Longest time that a restore may take. It waits 5 s for the lock; the rest is work: legacy
/// iptables takes in a table whole and writes it whole, which with very many rules takes minutes.
const RESTORE_LIMIT: Duration = Duration::from_mins(5);

/// What can be read and written, for one IP family. Two implementations: the iptables programs, and
/// a strict fake that refuses what they refuse.
pub trait Kernel: Send + 'static {
    /// What time it is, for what is measured: how long reading takes. A kernel of tests may have a
    /// time of its own.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// The addresses of all interfaces of this node, those of localhost included.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Tells each line of `iptables-save`, of one table or of all. Costs a process.
    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable>;

    /// Carries out what `text` writes, each of its tables whole or not at all: those before one
    /// that is refused stay done. Costs a process.
    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal>;
}

/// Rules were not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Why, and what to do.
    pub reason: String,
    /// What kind of refusal it is.
    pub kind: Kind,
}

/// The kernel, through the iptables programs.
#[derive(Debug)]
pub struct IptablesKernel {
    family: IpFamily,
    iptables: Iptables,
    /// Of modes; what they hold are no addresses of the node.
    links: Vec<&'static str>,
}

impl IptablesKernel {
    /// For one family, which iptables can write ([`Iptables::check`]).
    pub fn new(family: IpFamily, iptables: Iptables) -> Self {
        Self {
            family,
            iptables,
            links: Vec::new(),
        }
    }

    /// The same that takes what the links of these modes hold for no addresses of the node.
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
