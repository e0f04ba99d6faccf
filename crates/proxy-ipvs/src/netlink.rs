//! The real kernel: IPVS, ipset and rtnetlink for one IP family, and iptables for the shim.
//!
//! ```text
//!   NetlinkKernel ─┬─ Servers ── generic netlink ── virtual servers and destinations
//!                  ├─ Sets ───── nfnetlink ──────── the KUBE-* sets
//!                  ├─ Addresses ─ rtnetlink ─────── kube-ipvs0, its addresses or routes, addresses of other interfaces
//!                  └─ Iptables ── processes ─────── the shim
//! ```
//!
//! Its calls block for as long as the kernel works, so it lives on a thread of its own
//! ([`netlink_batch::Worker`]), and in the network namespace of the thread that opened it. A dump
//! begins with new sockets: a module that was reloaded meanwhile has another number, and a socket
//! that failed is not used again. Consecutive writes of one kind go to the kernel together. Every
//! refusal becomes a sentence with a next step: error numbers mean different things from write to
//! write, and those used here were seen on Linux 6.1.

mod addresses;
mod probe;
mod reason;
mod scheduler;
mod servers;
mod sets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use footprint::{Finder, Footprints, nft};
use iptables::{Iptables, IptablesError, Program};
use proxy::{IpFamily, Target};

use crate::config::VipMode;
use crate::footprint::FOOTPRINT;
use crate::kernel::{
    CONNECTIONS, FoundAddresses, FoundRules, FoundSets, Glance, Kernel, KernelError,
};
use crate::leftovers::{Leftovers, Place, beside_the_shim};
use crate::part::Part;
use crate::plan::{Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use addresses::Addresses;
pub use probe::{ProbeError, probe};
use reason::{refused, unsent};
pub use scheduler::{foresee_scheduler, probe_scheduler};
use servers::Servers;
use sets::Sets;

/// The kernel modules, by their aliases, of matches and sets that this mode alone has on the usual
/// node, beside `ip_vs_` and the scheduler: for [`Iptables::choose_loading`]. The kernel itself
/// loads those of rarer rules.
pub const MODULES: [&str; 6] = [
    "ipt_set",
    "ip_set_hash:ip",
    "ip_set_hash:ip,port",
    "ip_set_hash:ip,port,ip",
    "ip_set_hash:ip,port,net",
    "ip_set_bitmap:port",
];

/// Time for `modprobe ip_vs`.
const MODPROBE_LIMIT: Duration = Duration::from_secs(30);

/// The kernel, for one IP family. Each part is opened when it is first used: a lane uses one or
/// two.
#[derive(Debug)]
pub struct NetlinkKernel {
    family: IpFamily,
    vip_mode: VipMode,
    iptables: Iptables,
    /// The modes of which something may be left.
    modes: Footprints,
    servers: Option<Servers>,
    sets: Option<Sets>,
    addresses: Option<Addresses>,
    /// What is left outside the backend that is used. Looked for once: nobody adds to it while this
    /// proxy runs.
    elsewhere: Option<BTreeMap<Place, Arc<Leftovers>>>,
    /// Characters that `iptables-save` last printed: a restore takes its time with them, too.
    saved: usize,
}

/// This machine cannot carry the IPVS mode. Says what is missing, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no IPVS, and it could not be loaded.
    #[error(
        "cannot use IPVS: this kernel offers none and has not loaded it; {tried}. Run `modprobe ip_vs` on the host, or boot a kernel with CONFIG_IP_VS"
    )]
    NoIpvs {
        /// What became of `modprobe ip_vs`.
        tried: String,
    },
    /// IPVS cannot be used.
    #[error("cannot use IPVS: {0}")]
    Ipvs(#[source] ipvs_netlink::Error),
    /// ipset cannot be used: missing, or without `CAP_NET_ADMIN`.
    #[error("cannot use ipset: {0}")]
    Ipset(#[source] ipset_netlink::Error),
    /// Links and addresses cannot be read.
    #[error("cannot use rtnetlink: {0}")]
    Route(#[source] netlink_batch::Error),
    /// The kernel has no such scheduler, and could not load it.
    #[error(
        "cannot use IPVS: the kernel has no scheduler `{name}`, nor could it load one: {reason}. Run `modprobe ip_vs_{name}` on the host, or choose another --ipvs-scheduler (ipvs.scheduler)"
    )]
    Scheduler {
        /// `--ipvs-scheduler`.
        name: String,
        /// What the kernel said.
        reason: String,
    },
    /// iptables cannot write rules of this family.
    #[error("cannot use iptables: {0}")]
    Iptables(#[from] IptablesError),
    /// There is no thread for it.
    #[error(
        "cannot start a thread: {0}; see what limits them (`ulimit -u`, pids.max of the cgroup)"
    )]
    Thread(#[from] std::io::Error),
}

impl NetlinkKernel {
    /// Opens the sockets and looks whether all that is needed is there. IPVS is brought in by
    /// asking for it and, where the kernel does not load it so, by one `modprobe ip_vs`.
    ///
    /// # Errors
    ///
    /// Names what is missing (IPVS, ipset, rtnetlink, iptables), why, and the next step.
    pub fn open(family: IpFamily, iptables: Iptables) -> Result<Self, OpenError> {
        let mut kernel = Self::lazy(family, iptables);
        kernel.servers = Some(open_loading(family)?);
        kernel.open_rest()?;
        kernel.iptables.check(family)?;
        Ok(kernel)
    }

    /// Opens the sockets to read only: nothing is loaded but what the kernel loads by itself when
    /// it is asked, and iptables is not tried.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    pub fn open_to_read(family: IpFamily, iptables: Iptables) -> Result<Self, OpenError> {
        iptables.check_reading(family)?;
        let mut kernel = Self::lazy(family, iptables);
        kernel.servers().map_err(OpenError::Ipvs)?;
        kernel.open_rest()?;
        Ok(kernel)
    }

    /// Opens nothing yet. For further lanes, once one has shown that all is there.
    pub fn lazy(family: IpFamily, iptables: Iptables) -> Self {
        Self {
            family,
            vip_mode: VipMode::default(),
            iptables,
            modes: &[&FOOTPRINT],
            servers: None,
            sets: None,
            addresses: None,
            elsewhere: None,
            saved: 0,
        }
    }

    fn open_rest(&mut self) -> Result<(), OpenError> {
        self.sets().map_err(OpenError::Ipset)?;
        self.addresses().map_err(OpenError::Route)?;
        Ok(())
    }

    /// The same with service addresses in this form; without, they are addresses.
    #[must_use]
    pub fn with_vip_mode(mut self, vip_mode: VipMode) -> Self {
        self.vip_mode = vip_mode;
        if let Some(addresses) = &mut self.addresses {
            addresses.vip_mode = vip_mode;
        }
        self
    }

    /// The same that looks for what these modes have left; without, for what an earlier run of its
    /// own has.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.modes = modes;
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

    fn addresses(&mut self) -> Result<&mut Addresses, netlink_batch::Error> {
        let addresses = match self.addresses.take() {
            Some(addresses) => addresses,
            None => Addresses::open(self.family, self.vip_mode)?,
        };
        Ok(self.addresses.insert(addresses))
    }

    /// Reads the rules ahead: the first look need not, unless they change before it. Why they
    /// cannot be read, it says.
    pub fn read_ahead(&mut self) {
        drop(self.iptables.save(self.family));
    }

    /// How many netlink messages this has sent since it was opened or each part last read; counts
    /// on from 0 after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        let servers = self.servers.as_ref().map_or(0, Servers::sent);
        let sets = self.sets.as_ref().map_or(0, Sets::sent);
        let addresses = self.addresses.as_ref().map_or(0, Addresses::sent);
        servers.wrapping_add(sets).wrapping_add(addresses)
    }

    /// How long IPVS keeps idle connections: TCP, TCP after a FIN, UDP.
    ///
    /// # Errors
    ///
    /// The socket failed, or the kernel refused (`EPERM`).
    pub fn timeouts(&mut self) -> Result<[Duration; 3], ipvs_netlink::Error> {
        self.servers()?.timeouts()
    }

    /// Sets how long IPVS keeps idle connections (`ipvsadm --set`), for both families of the
    /// network namespace. Whole seconds; zero leaves a time-out as it is.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the kernel can count; else as of [`timeouts`](Self::timeouts).
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

    fn write_rules(&self, op: &Op) -> Outcome {
        let Op::WriteRules { wanted, installed } = op else {
            return Outcome::Unknown;
        };
        let text = wanted.restore_text(installed);
        match self.iptables.restore_among(self.saved, self.family, &text) {
            Ok(()) => Outcome::Done,
            Err(error) => refused(error.to_string()),
        }
    }

    fn remove_leftovers(&mut self, op: &Op) -> Outcome {
        let Op::RemoveLeftovers(place, leftovers) = op else {
            return Outcome::Unknown;
        };
        let iptables = match place {
            Place::Beside(_) => Some(self.iptables.clone()),
            Place::Other(backend) => {
                Iptables::other_than(&self.iptables).find(|other| other.backend() == *backend)
            }
            Place::Nftables => None,
        };
        let removed = match iptables {
            Some(iptables) => {
                let text = leftovers.restore_text();
                iptables
                    .restore_among(self.saved.max(text.len()), self.family, &text)
                    .map_err(|error| error.to_string())
            }
            None => nft_tables(self.modes)
                .try_for_each(|table| nft::remove_table(self.family, table))
                .map_err(|error| error.to_string()),
        };
        match removed {
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

    /// What other modes have left, given what `iptables-save` printed.
    fn leftovers(&mut self, saved: &str) -> BTreeMap<Place, Arc<Leftovers>> {
        let (family, modes) = (self.family, self.modes);
        let elsewhere = self.elsewhere.get_or_insert_with(|| {
            let backends = Iptables::other_than(&self.iptables).filter_map(|other| {
                if other.is_empty(family) {
                    return None;
                }
                // A backend that cannot be read holds nothing that takes packets.
                let found = Leftovers::find(Finder::all(modes), &other.save(family).ok()?);
                (!found.is_empty()).then(|| (Place::Other(other.backend()), Arc::new(found)))
            });
            let is_there = |table| nft::has_table(family, table).unwrap_or(false);
            let is_in_nft = nft_tables(modes).any(is_there);
            let in_nft = is_in_nft.then(|| (Place::Nftables, Arc::default()));
            backends.chain(in_nft).collect()
        });
        let mut leftovers = elsewhere.clone();
        let beside = beside_the_shim(self.modes, saved);
        if !beside.is_empty() {
            leftovers.insert(Place::Beside(self.iptables.backend()), Arc::new(beside));
        }
        leftovers
    }
}

/// The tables of these modes in nftables.
fn nft_tables(modes: Footprints) -> impl Iterator<Item = &'static str> {
    modes.iter().flat_map(|mode| mode.nft_tables).copied()
}

/// Brings IPVS in as [`NetlinkKernel::open`] does, and sets how long it keeps idle connections, as
/// [`NetlinkKernel::set_timeouts`]. Needs no iptables, and writes no rule.
///
/// # Errors
///
/// As of [`NetlinkKernel::open`] and [`NetlinkKernel::set_timeouts`].
pub fn prepare(tcp: Duration, tcp_fin: Duration, udp: Duration) -> Result<(), OpenError> {
    let mut servers = open_loading(IpFamily::V4)?;
    if [tcp, tcp_fin, udp] == [Duration::ZERO; 3] {
        return Ok(());
    }
    let set = servers.set_timeouts(tcp, tcp_fin, udp);
    set.map_err(OpenError::Ipvs)
}

/// Opens IPVS, with `modprobe ip_vs` where the kernel does not load it by itself.
fn open_loading(family: IpFamily) -> Result<Servers, OpenError> {
    match Servers::open(family) {
        Err(ipvs_netlink::Error::FamilyMissing) => {
            let tried = modprobe_ip_vs();
            Servers::open(family).map_err(|error| match error {
                ipvs_netlink::Error::FamilyMissing => OpenError::NoIpvs { tried },
                error => OpenError::Ipvs(error),
            })
        }
        opened => opened.map_err(OpenError::Ipvs),
    }
}

/// What was tried, and how it ended.
fn modprobe_ip_vs() -> String {
    let Some(modprobe) = Program::find("modprobe") else {
        return "there is no `modprobe` here".to_owned();
    };
    match modprobe.run(&["ip_vs"], "", MODPROBE_LIMIT) {
        Ok(finished) if finished.status.success() => "`modprobe ip_vs` did not help".to_owned(),
        Ok(finished) => format!("`modprobe ip_vs` said: {}", finished.stderr.trim()),
        Err(error) => format!("`modprobe ip_vs` could not be run: {error}"),
    }
}

/// Which writes may go to the kernel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Link,
    Set,
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
            Op::AddMember(..) | Op::RemoveMember(..) => Self::Member,
            Op::WriteRules { .. } => Self::Rules,
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => Self::Server,
            Op::BindAddress(_) | Op::UnbindAddress(_) | Op::UnbindOtherwise(_) => Self::Address,
            Op::RemoveLeftovers(..) => Self::Leftovers,
        }
    }
}

impl Kernel for NetlinkKernel {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, KernelError> {
        let read = self.servers().and_then(Servers::dump);
        read.map_err(|error| unreadable(Part::Servers.name(), &error))
    }

    fn read_sets(&mut self) -> Result<FoundSets, KernelError> {
        let read = self.sets().and_then(Sets::dump);
        read.map_err(|error| unreadable(Part::Sets.name(), &error))
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, KernelError> {
        let read = self.addresses().and_then(Addresses::dump);
        read.map_err(|error| unreadable(Part::Addresses.name(), &error))
    }

    fn read_rules(&mut self) -> Result<FoundRules, KernelError> {
        let saved = self.iptables.save(self.family);
        let saved = saved.map_err(|error| unreadable(Part::Rules.name(), &error))?;
        self.saved = saved.len();
        Ok(FoundRules {
            leftovers: self.leftovers(&saved),
            rules: Rules::parse(&saved),
        })
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, KernelError> {
        let glanced = self.servers().and_then(|servers| servers.glance(one));
        glanced.map_err(|error| unreadable(Part::Servers.name(), &error))
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
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError> {
        let read = self.servers().and_then(|servers| servers.connections(keys));
        read.map_err(|error| unreadable(CONNECTIONS, &error))
    }
}

fn unreadable(what: &'static str, error: &dyn std::error::Error) -> KernelError {
    KernelError {
        what,
        reason: error.to_string(),
    }
}
