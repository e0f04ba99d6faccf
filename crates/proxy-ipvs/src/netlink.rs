//! Access to the real kernel for one IP family: IPVS over generic netlink, addresses over
//! rtnetlink, and the shim in iptables and ipset or in nftables.
//!
//! ```text
//!   NetlinkKernel ─┬─ Servers ── generic netlink ── virtual servers and destinations
//!                  ├─ Addresses ─ rtnetlink ─────── kube-ipvs0 and addresses of all interfaces
//!                  │   with iptables:
//!                  ├─ Sets ───── nfnetlink ──────── the KUBE-* sets
//!                  ├─ Iptables ── processes ─────── the shim
//!                  │   with nftables:
//!                  └─ Native ─── nfnetlink ──────── sets and shim, in our table
//! ```
//!
//! - **Threads**: calls block while the kernel works, so they run on a separate thread
//!   ([`netlink_batch::Worker`]).
//! - **Network namespace**: each socket belongs to the network namespace of the thread that opened
//!   it.
//! - **Dumps**: each dump opens a new socket, because a reloaded kernel module has another netlink
//!   family number, and a failed socket is of no more use.
//! - **Batches**: adjacent writes of the same kind are sent together.
//! - **Refusals**: each refusal becomes a message with advice. The meaning of an error number
//!   depends on the write, as observed on Linux 6.1.

mod addresses;
mod carrier;
mod error;
mod former;
mod native;
mod open;
mod probe;
mod reason;
mod scheduler;
mod servers;
mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use footprint::Footprints;
use nftables_netlink::OwnSockets;
use proxy::{IpFamily, Target, Unreadable};

use crate::config::VipMode;
use crate::footprint::FOOTPRINT;
use crate::kernel::{CONNECTIONS, FoundAddresses, FoundRules, FoundSets, Glance, Kernel};
use crate::leftovers::{LeftoverPlace, Leftovers, beside_the_shim};
use crate::part::Part;
use crate::plan::{Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use addresses::Addresses;
pub use carrier::Carrier;
pub use error::{OpenError, SetInTheWay};
use former::{LeftoverSearch, until_known};
use native::Native;
pub use open::{check_ipset, check_nftables, prepare, probe_nftables};
use open::{nftables_missing, open_loading};
pub use probe::{ProbeError, check_marks, probe};
use reason::{refused, unsent};
pub use scheduler::{foresee_scheduler, probe_scheduler};
use servers::Servers;
use sets::Sets;

/// Aliases of the kernel modules that IPVS mode loads at its start
/// ([`iptables::Iptables::choose_loading`]). Other code loads `ip_vs` and the scheduler's module.
/// The kernel itself loads the modules of rarer rules.
pub const MODULES: [&str; 6] = [
    "ipt_set",
    "ip_set_hash:ip",
    "ip_set_hash:ip,port",
    "ip_set_hash:ip,port,ip",
    "ip_set_hash:ip,port,net",
    "ip_set_bitmap:port",
];

/// Access to the kernel for one IP family. It opens each kernel interface at the first use, because
/// a lane (worker thread) uses only one or two of them.
#[derive(Debug)]
pub struct NetlinkKernel {
    family: IpFamily,
    vip_mode: VipMode,
    /// True if packets from the node itself to service addresses must have a node address as
    /// source.
    has_node_source: bool,
    carrier: Carrier,
    /// Modes whose leftovers the proxy removes.
    modes: Footprints,
    servers: Option<Servers>,
    /// Access to the ipsets, if the shim is in iptables.
    sets: Option<Sets>,
    /// Access to our nftables table, if the shim is in nftables.
    native: Option<Native>,
    /// Sockets through which this process changes nftables. It ignores the kernel's notifications
    /// about these changes.
    own: Arc<OwnSockets>,
    addresses: Option<Addresses>,
    /// Leftovers outside the iptables backend in use, or `None` until all of them have been read.
    /// One read suffices, because no other kube-proxy runs on this node to add leftovers.
    elsewhere: Option<BTreeMap<LeftoverPlace, Arc<Leftovers>>>,
    /// True once the sets of the former shim have been read.
    has_looked_for_former_sets: bool,
    /// Length of the last `iptables-save` output, in bytes, from which the duration of
    /// `iptables-restore` is estimated.
    saved: usize,
}

impl NetlinkKernel {
    /// Opens the sockets, and checks that the kernel has all required features. The first request
    /// makes the kernel load IPVS. If it does not, this runs `modprobe ip_vs` once.
    ///
    /// # Errors
    ///
    /// Fails if IPVS, ipset, rtnetlink or iptables cannot be used. The error names it, the reason
    /// and the next step.
    pub fn open(family: IpFamily, carrier: impl Into<Carrier>) -> Result<Self, OpenError> {
        let mut kernel = Self::lazy(family, carrier);
        kernel.servers = Some(open_loading(family)?);
        kernel.open_rest()?;
        match &kernel.carrier {
            Carrier::Iptables(iptables) => iptables.check(family)?,
            Carrier::Nftables => native::probe(family).map_err(OpenError::Nftables)?,
        }
        Ok(kernel)
    }

    /// Opens the sockets for reading only, without a test whether iptables can write. A read may
    /// make the kernel load a module.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open).
    pub fn open_to_read(family: IpFamily, carrier: impl Into<Carrier>) -> Result<Self, OpenError> {
        let mut kernel = Self::lazy(family, carrier);
        if let Carrier::Iptables(iptables) = &kernel.carrier {
            iptables.check_reading(family)?;
        }
        kernel.servers().map_err(OpenError::Ipvs)?;
        kernel.open_rest()?;
        Ok(kernel)
    }

    /// Prepares access for a further lane (worker thread), after the first has opened all kernel
    /// interfaces. Opens no socket yet.
    pub fn lazy(family: IpFamily, carrier: impl Into<Carrier>) -> Self {
        Self {
            family,
            vip_mode: VipMode::default(),
            has_node_source: false,
            carrier: carrier.into(),
            modes: &[&FOOTPRINT],
            servers: None,
            sets: None,
            native: None,
            own: Arc::default(),
            addresses: None,
            elsewhere: None,
            has_looked_for_former_sets: false,
            saved: 0,
        }
    }

    fn open_rest(&mut self) -> Result<(), OpenError> {
        match &self.carrier {
            Carrier::Iptables(_) => drop(self.sets().map_err(OpenError::Ipset)?),
            Carrier::Nftables => drop(self.native().map_err(|error| nftables_missing(&error))?),
        }
        self.addresses().map_err(OpenError::Route)?;
        Ok(())
    }

    /// Sets the way in which service addresses become local. The default is as addresses on the
    /// link.
    #[must_use]
    pub fn with_vip_mode(mut self, vip_mode: VipMode) -> Self {
        self.vip_mode = vip_mode;
        if let Some(addresses) = &mut self.addresses {
            addresses.vip_mode = vip_mode;
        }
        self
    }

    /// Sets whether the node's own packets to service addresses must have a node address as source.
    /// If so, our routes to service addresses name this source. The default is no.
    #[must_use]
    pub fn with_node_source(mut self, has_node_source: bool) -> Self {
        self.has_node_source = has_node_source;
        if let Some(addresses) = &mut self.addresses {
            addresses.has_node_source = has_node_source;
        }
        self
    }

    /// Sets the modes whose leftovers the proxy removes. Without this call, only IPVS mode's.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.modes = modes;
        self
    }

    /// Adds the sockets of this instance to `own`, so that their changes to nftables cause no
    /// notification.
    #[must_use]
    pub fn one_of(mut self, own: Arc<OwnSockets>) -> Self {
        self.own = own;
        self.native = None;
        self
    }

    fn servers(&mut self) -> Result<&mut Servers, ipvs_netlink::Error> {
        let servers = match self.servers.take() {
            Some(servers) => servers,
            None => Servers::open(self.family)?,
        };
        Ok(self.servers.insert(servers))
    }

    fn sets(&mut self) -> Result<&mut Sets, ipset_netlink::Error> {
        let sets = match self.sets.take() {
            Some(sets) => sets,
            None => Sets::open(self.family)?,
        };
        Ok(self.sets.insert(sets))
    }

    fn native(&mut self) -> Result<&mut Native, nftables_netlink::Error> {
        let native = match self.native.take() {
            Some(native) => native,
            None => Native::open(self.family, Arc::clone(&self.own))?,
        };
        Ok(self.native.insert(native))
    }

    fn addresses(&mut self) -> Result<&mut Addresses, netlink_batch::Error> {
        let mut addresses = match self.addresses.take() {
            Some(addresses) => addresses,
            None => Addresses::open(self.family, self.vip_mode)?,
        };
        addresses.has_node_source = self.has_node_source;
        Ok(self.addresses.insert(addresses))
    }

    /// Returns other programs' sets that have a name of ours, but another type.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    pub fn sets_in_the_way(&mut self) -> Result<Vec<SetInTheWay>, Unreadable> {
        let unreadable = |error: &dyn fmt::Display| Unreadable::new(Part::Sets.name(), error);
        if self.carrier.is_nftables() {
            let native = self.native().map_err(|error| unreadable(&error))?;
            native.in_the_way().map_err(|error| unreadable(&error))
        } else {
            let sets = self.sets().map_err(|error| unreadable(&error))?;
            sets.in_the_way().map_err(|error| unreadable(&error))
        }
    }

    /// Reads the rules before the first regular read, which then starts no process if the rules
    /// have not changed. If this read fails, the regular read reports the error.
    pub fn read_ahead(&mut self) {
        if let Carrier::Iptables(iptables) = &self.carrier {
            drop(iptables.save(self.family));
        }
    }

    /// Returns the number of netlink messages that this instance has sent. The count of an
    /// interface restarts when the interface is reopened, and the sum wraps around at `u32::MAX`.
    pub fn sent(&self) -> u32 {
        let servers = self.servers.as_ref().map_or(0, Servers::sent);
        let sets = self.sets.as_ref().map_or(0, Sets::sent);
        let addresses = self.addresses.as_ref().map_or(0, Addresses::sent);
        let native = self.native.as_ref().map_or(0, Native::sent);
        let others = sets.wrapping_add(addresses).wrapping_add(native);
        servers.wrapping_add(others)
    }

    /// Returns the timeouts of idle IPVS connections: TCP, TCP after a FIN, UDP.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request (`EPERM`).
    pub fn timeouts(&mut self) -> Result<[Duration; 3], ipvs_netlink::Error> {
        self.servers()?.timeouts()
    }

    /// Sets the timeouts of idle IPVS connections (`ipvsadm --set`) for both IP families of the
    /// network namespace, in whole seconds. A timeout of zero leaves the present value.
    ///
    /// # Errors
    ///
    /// Fails with `EINVAL` if a timeout is too large for the kernel, and for the reasons of
    /// [`timeouts`](Self::timeouts).
    pub fn set_timeouts(
        &mut self,
        tcp: Duration,
        tcp_fin: Duration,
        udp: Duration,
    ) -> Result<(), ipvs_netlink::Error> {
        self.servers()?.set_timeouts(tcp, tcp_fin, udp)
    }

    fn apply_run(&mut self, kind: Kind, run: &[Op]) -> Vec<Outcome> {
        let of_all = |outcome: Outcome| vec![outcome; run.len()];
        match kind {
            Kind::Link => match self.addresses() {
                Ok(addresses) => run.iter().map(|_| addresses.create_link()).collect(),
                Err(error) => of_all(unsent(&error)),
            },
            Kind::Address => match self.addresses() {
                Ok(addresses) => addresses.apply(run),
                Err(error) => of_all(unsent(&error)),
            },
            Kind::Set if self.carrier.is_nftables() => match self.native() {
                Ok(native) => native.create(run),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::SetRemoval if self.carrier.is_nftables() => match self.native() {
                Ok(native) => run.iter().map(|op| native.remove(op)).collect(),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::SetRemoval => match self.sets() {
                Ok(sets) => run.iter().map(|op| sets.remove(op)).collect(),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::Member if self.carrier.is_nftables() => match self.native() {
                Ok(native) => native.apply(run),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::Set => match self.sets() {
                Ok(sets) => run.iter().map(|op| sets.create(op)).collect(),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::Member => match self.sets() {
                Ok(sets) => sets.apply(run),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::Server => match self.servers() {
                Ok(servers) => servers.apply(run),
                Err(error) => of_all(refused(error.to_string())),
            },
            Kind::Rules => run.iter().map(|op| self.write_rules(op)).collect(),
            Kind::Leftovers => run.iter().map(|op| self.remove_leftovers(op)).collect(),
        }
    }

    fn write_rules(&mut self, op: &Op) -> Outcome {
        let Op::WriteRules { wanted, installed } = op else {
            return Outcome::Unknown;
        };
        match &self.carrier {
            Carrier::Iptables(iptables) => {
                let text = wanted.restore_text(installed);
                match iptables.restore_among(self.saved, self.family, &text) {
                    Ok(()) => Outcome::Done,
                    Err(error) => refused(error.to_string()),
                }
            }
            Carrier::Nftables => match self.native() {
                Ok(native) => native.write_content(wanted.native(), installed.native()),
                Err(error) => refused(error.to_string()),
            },
        }
    }

    fn remove_leftovers(&mut self, op: &Op) -> Outcome {
        let Op::RemoveLeftovers(place, leftovers) = op else {
            return Outcome::Unknown;
        };
        let former = self.former();
        match former.remove(*place, leftovers, self.saved) {
            Ok(()) => {
                if let Some(elsewhere) = &mut self.elsewhere {
                    elsewhere.remove(place);
                }
                Outcome::Done
            }
            Err(error) => refused(format!(
                "{error}; `kube-proxy --cleanup` on a node without a kube-proxy removes it, too"
            )),
        }
    }

    fn former(&self) -> LeftoverSearch<'_> {
        LeftoverSearch {
            family: self.family,
            carrier: &self.carrier,
            modes: self.modes,
        }
    }

    /// Returns other modes' leftovers. `saved` is the output of `iptables-save`, if it was read.
    fn leftovers(&mut self, saved: Option<&str>) -> BTreeMap<LeftoverPlace, Arc<Leftovers>> {
        let mut known = self.elsewhere.take();
        let mut leftovers = until_known(&mut known, || self.former().find());
        self.elsewhere = known;
        if let (Some(saved), Carrier::Iptables(iptables)) = (saved, &self.carrier) {
            let beside = beside_the_shim(self.modes, saved);
            if !beside.is_empty() {
                leftovers.insert(LeftoverPlace::Beside(iptables.backend()), Arc::new(beside));
            }
        }
        leftovers
    }

    /// Returns the members that an earlier run left in the former shim's sets.
    fn former_sets(&mut self) -> Result<BTreeMap<Set, BTreeSet<Member>>, Unreadable> {
        if self.has_looked_for_former_sets {
            return Ok(BTreeMap::new());
        }
        let found = self.former().members();
        let found = found.map_err(|reason| Unreadable::new(Part::Sets.name(), reason))?;
        self.has_looked_for_former_sets = true;
        Ok(found)
    }
}

/// Kind of a write. Adjacent writes of the same kind can be sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Link,
    Set,
    SetRemoval,
    Member,
    Rules,
    Server,
    Address,
    Leftovers,
}

impl Kind {
    fn of(op: &Op) -> Self {
        match op {
            Op::CreateLink => Self::Link,
            Op::CreateSet(..) => Self::Set,
            Op::RemoveSet(_) => Self::SetRemoval,
            Op::AddMember(..) | Op::RemoveMember(..) | Op::ReplaceMember(..) => Self::Member,
            Op::WriteRules { .. } => Self::Rules,
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => Self::Server,
            Op::BindAddress(_)
            | Op::UnbindAddress(_)
            | Op::UnbindOtherwise(_)
            | Op::BindRange(_)
            | Op::UnbindRange(_) => Self::Address,
            Op::RemoveLeftovers(..) => Self::Leftovers,
        }
    }
}

impl Kernel for NetlinkKernel {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        let read = self.servers().and_then(Servers::dump);
        read.map_err(|error| Unreadable::new(Part::Servers.name(), error))
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        let of_sets = |error: &dyn std::error::Error| Unreadable::new(Part::Sets.name(), error);
        let mut found = match &self.carrier {
            Carrier::Iptables(_) => {
                let read = self.sets().and_then(Sets::dump);
                read.map_err(|error| of_sets(&error))?
            }
            Carrier::Nftables => {
                let read = self.native().and_then(Native::dump);
                read.map_err(|error| of_sets(&error))?
            }
        };
        found.former = self.former_sets()?;
        Ok(found)
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        let read = self.addresses().and_then(Addresses::dump);
        read.map_err(|error| Unreadable::new(Part::Addresses.name(), error))
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        let of_rules = |error: &dyn std::error::Error| Unreadable::new(Part::Rules.name(), error);
        match &self.carrier {
            Carrier::Iptables(iptables) => {
                let saved = iptables.save(self.family);
                let saved = saved.map_err(|error| of_rules(&error))?;
                self.saved = saved.len();
                Ok(FoundRules {
                    leftovers: self.leftovers(Some(&saved)),
                    rules: Rules::parse(&saved),
                })
            }
            Carrier::Nftables => {
                let read = self.native().and_then(Native::read);
                let content = read.map_err(|error| of_rules(&error))?;
                Ok(FoundRules {
                    leftovers: self.leftovers(None),
                    rules: Rules::in_nftables(content),
                })
            }
        }
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        let glanced = self.servers().and_then(|servers| servers.glance(one));
        glanced.map_err(|error| Unreadable::new(Part::Servers.name(), error))
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        probe_scheduler(name).map_err(|error| match error {
            OpenError::Scheduler { name, reason } => format!(
                "the kernel has no scheduler `{name}`, nor could it load one: {reason}; run `modprobe ip_vs_{name}` on the host"
            ),
            other => other.to_string(),
        })
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        plan.ops
            .chunk_by(|one, next| Kind::of(one) == Kind::of(next))
            .filter_map(|run| Some((Kind::of(run.first()?), run)))
            .flat_map(|(kind, run)| self.apply_run(kind, run))
            .collect()
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        let read = self.servers().and_then(|servers| servers.connections(keys));
        read.map_err(|error| Unreadable::new(CONNECTIONS, error))
    }
}
