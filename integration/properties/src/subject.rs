//! Subject of an event sequence: a mode with its kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use chance::Chance;
use engine::{Engine, KernelAccess, Kinds, Lanes};
use proxy::{
    Changes, IpFamily, LocalDetector, Mode, Model, NodeFacts, NodePortAddresses, Notice, Protocol,
    Service, ServiceAddress,
};

use crate::cluster::{NODE, NODE_ADDRESS, SERVICES, at, name, net};
use crate::stepped_threads::{Front, SteppedThread, Turnstile, Write};
use crate::verdict::Verdicts;

/// Longest time by which [`run_afresh`] advances its clock to reach the mode's next work.
const SOON: Duration = Duration::from_secs(2);

/// Maximum number of turns of the loop until a newly started mode has no work left. A correct mode
/// needs far fewer.
const MOST_TURNS: usize = 1_000;

/// Kernel entries by name, each with its value.
pub type Entries = BTreeMap<String, String>;

/// A mode and the kernel on which it runs. The kernel outlives instances of the mode.
pub trait Subject {
    /// Returns the IP family in which the mode runs.
    fn family(&self) -> IpFamily;

    /// Starts a process of the daemon. Returns the mode, and its worker threads.
    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>);

    /// Changes the flags of the next start. Returns a description, or `None` if the mode has no
    /// other flags.
    fn switch(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Returns the node's own addresses, which exclude service addresses.
    fn addresses(&self) -> BTreeSet<IpAddr>;

    /// Returns the verdicts of the kernel on packets to these frontends. If the subject simulates
    /// no packets, the result lacks frontends without an endpoint.
    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts;

    /// Returns true if the mode needs several kernel entries for a frontend without endpoints.
    /// While it writes them, packets may be dropped, rejected or delivered to the node.
    fn refuses_in_pieces(&self) -> bool {
        false
    }

    /// Returns true if the mode may close ports with source ranges because the kernel refused to
    /// let it read this part, which may lack the rules that admit clients.
    fn may_close_unread(&self, _part: &str) -> bool {
        false
    }

    /// Returns true if the mode serves NodePorts at loopback addresses.
    fn serves_localhost(&self) -> bool {
        false
    }

    /// Returns true if a frontend must keep working while it moves to another Service. False for
    /// modes with separate chains or listening ports for each Service.
    fn hands_over(&self) -> bool {
        false
    }

    /// Tells the subject that the daemon's next read misses an entry, selected by this random
    /// number.
    fn passes_over(&mut self, _which: u64) {}

    /// Tells the subject that the kernel has carried out a write.
    fn done(&mut self, _write: &Write) {}

    /// Returns the notifications that the kernel has sent since the last call.
    fn told(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Returns true if the kernel notifies the daemon when another program removes this entry, so
    /// that the daemon restores it at once.
    fn is_told(&self, _entry: &str) -> bool {
        false
    }

    /// Returns true if Services work only while the mode's process runs.
    fn ends_with_process(&self) -> bool {
        false
    }

    /// Returns the parts that the kernel always refuses. A mode that writes each Service port in
    /// one piece cannot write a Service with such a part at all.
    fn barred(&self) -> &[RejectedPart] {
        &[]
    }

    /// Makes the kernel always refuse one entry that it does not have yet. Returns a description,
    /// or `None` if no entry is suitable.
    fn forbid(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Returns true if an entry belongs to this Service.
    fn is_of(&self, entry: &str, value: &str, service: &Service) -> bool {
        let name = service.name.to_string();
        entry.contains(&name) || value.contains(&name)
    }

    /// Returns true if the kernel always refuses this write, because it contains a refused part of
    /// one of these Services.
    fn is_forbidden(&self, _write: &Write, _barred: &[Service]) -> bool {
        false
    }

    /// Returns the daemon's kernel entries, without details that may differ.
    fn ours(&self) -> Entries;

    /// Returns all of the daemon's kernel entries, including those that [`Self::ours`] omits
    /// because they are slow to read and the same after every start.
    fn all_ours(&self) -> Entries {
        self.ours()
    }

    /// Returns true if this entry may remain at the end, although a start on an empty kernel does
    /// not write it.
    fn may_stay(&self, _entry: &str) -> bool {
        false
    }

    /// Returns true if an entry at the end may have another value than after a start on an empty
    /// kernel (`made`).
    fn may_differ(&self, _made: &str) -> bool {
        false
    }

    /// Returns true if a frontend without endpoints may still reach its former endpoints at the
    /// end.
    fn may_serve_former(&self) -> bool {
        false
    }

    /// Returns the frontends that the daemon does not serve, because no kernel entry proves that
    /// their virtual servers are its own. It treats these virtual servers as foreign.
    fn unproven(&self) -> BTreeSet<ServiceAddress> {
        BTreeSet::new()
    }

    /// Returns the entry, or `None` if it belongs to or depends on a frontend in `unproven` (see
    /// [`Self::unproven`]).
    fn beside(&self, entry: String, _unproven: &BTreeSet<ServiceAddress>) -> Option<String> {
        Some(entry)
    }

    /// Returns true if the daemon may remove this entry although it is wanted: the entry proves
    /// ownership of an object that the daemon treats as foreign.
    fn may_disown(&self, _entry: &str) -> bool {
        false
    }

    /// Returns the other programs' entries in the kernel.
    fn foreign(&self) -> Entries {
        Entries::new()
    }

    /// Returns the other programs' entries as these programs last wrote them.
    fn foreign_left(&self) -> Entries {
        Entries::new()
    }

    /// Damages the daemon's kernel entries, as another program might. Returns `None` if no entry is
    /// suitable.
    fn damage(&mut self, chance: &mut Chance) -> Option<Damage>;

    /// Changes other programs' own kernel entries. Returns a description, or `None` if nothing
    /// changes.
    fn change_foreign(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Adds or removes an address of the node. Returns the kernel's notification.
    fn change_address(&mut self, chance: &mut Chance) -> Notice;

    /// Returns notifications that the kernel may send although nothing has changed.
    fn notices(&self) -> &'static [Notice] {
        &[Notice::Ruleset, Notice::Anything]
    }

    /// Ends all connections of draining endpoints.
    fn end_connections(&mut self) {}

    /// Starts the mode on an empty fake kernel with these objects and this node's addresses.
    /// Returns the state that it reaches.
    fn afresh(&self, model: &Model) -> FreshStart;

    /// Starts the mode like [`Self::afresh`], but on the same kind of kernel as this subject. On a
    /// real kernel, this is a new node.
    ///
    /// # Errors
    ///
    /// Returns an error if no new node can be created.
    fn afresh_on_same(&self, model: &Model) -> Result<FreshStart, String> {
        Ok(self.afresh(model))
    }

    /// Returns true if the mode runs on this machine's kernel.
    fn is_real(&self) -> bool {
        false
    }
}

/// State that a mode reaches after a start on an empty kernel, to which an event sequence's end is
/// compared.
pub struct FreshStart {
    /// The started mode with its kernel.
    pub subject: Box<dyn Subject>,
    /// Number of entries that stay pending, because the kernel always refuses them.
    pub pending: usize,
}

/// Part of a Service whose kernel entries a test makes the kernel refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedPart {
    /// The Service with this number (see [`crate::cluster::name`]): its rules, chains and elements.
    Service(u8),
    /// The endpoint with this address: its rules, chains and elements.
    Endpoint(IpAddr),
    /// The redirect at this address, protocol and port (userspace mode).
    Portal(IpAddr, Protocol, u16),
}

impl RejectedPart {
    /// Returns a random Service or a random endpoint.
    pub fn any(family: IpFamily, chance: &mut Chance) -> Self {
        if chance.is_one_in(2) {
            Self::Service(chance.small(SERVICES))
        } else {
            let (node, pod) = (1 + chance.small(2), 1 + chance.small(5));
            Self::Endpoint(at(family, [10, 244, node, pod]))
        }
    }
}

impl fmt::Display for RejectedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(number) => name(*number).fmt(f),
            Self::Endpoint(address) => address.fmt(f),
            Self::Portal(address, protocol, port) => write!(f, "{address} {port}/{protocol}"),
        }
    }
}

/// Returns the addresses that a node has at first.
pub(crate) fn node_addresses(family: IpFamily) -> [IpAddr; 3] {
    [[127, 0, 0, 1], NODE_ADDRESS, [10, 244, 1, 254]].map(|octets| at(family, octets))
}

/// Returns a detector of local traffic that knows the address range of the node's pods.
pub(crate) fn detector(family: IpFamily) -> LocalDetector {
    net(family, [10, 244, 1, 0], 24).map_or(LocalDetector::None, LocalDetector::SourceNet)
}

/// Returns facts of a node that serves NodePorts at all its addresses.
pub(crate) fn node(family: IpFamily) -> NodeFacts {
    let mut node = NodeFacts::new(family, NODE);
    node.node_port_addresses = NodePortAddresses::All;
    node
}

/// Adds a random address to the node, or removes it.
pub(crate) fn toggle_address(
    family: IpFamily,
    chance: &mut Chance,
    addresses: &mut BTreeSet<IpAddr>,
) -> Notice {
    let other = at(family, [192, 168, 99, 11 + chance.small(2)]);
    if addresses.remove(&other) {
        Notice::AddressRemoved(other)
    } else {
        addresses.insert(other);
        Notice::AddressAdded(other)
    }
}

/// Damage to the daemon's kernel entries by another program.
#[derive(Debug)]
pub struct Damage {
    /// Description of the damage for the log.
    pub what: String,
    /// Notification by which the kernel reports the damage to the daemon, if it reports it.
    pub told: Option<Notice>,
}

/// Starts a mode with `N` worker threads, each with its own gate in front of the kernel.
pub(crate) fn start<const N: usize, S, K>(
    config: <S::Kinds as Kinds>::Config,
    node: NodeFacts,
    kernel: impl FnMut() -> K,
    now: Instant,
) -> (Box<dyn Mode>, Vec<SteppedThread>)
where
    S: KernelAccess<Turnstile<K>> + 'static,
    K: Send + 'static,
{
    let (lanes, workers) = SteppedThread::all::<N, _>(kernel);
    let mode = Engine::<S, _>::new(config, node, Lanes::new(workers), now);
    (Box::new(mode), lanes)
}

/// Runs a new mode in this thread until it has no work within [`SOON`]. Returns the number of
/// entries that are still pending.
pub(crate) fn run_afresh<S: KernelAccess<K>, K: Send + 'static>(
    config: <S::Kinds as Kinds>::Config,
    node: NodeFacts,
    kernel: impl Fn() -> K,
    model: &Model,
) -> usize {
    let mut now = Instant::now();
    let mut mode = Engine::<S, _>::new(config, node, Lanes::inline(kernel), now);
    let changes = Changes {
        services: model.service_names().cloned().collect(),
        node: true,
        service_cidrs: true,
        ..Changes::default()
    };
    let mut has_updated = false;
    for _ in 0..MOST_TURNS {
        if !has_updated && mode.is_ready() {
            mode.update(model, &changes, now);
            has_updated = true;
        }
        mode.proceed(model, now);
        if mode.book(model, now).is_some() || !mode.is_idle() || !has_updated {
            continue;
        }
        match mode.next_due(now) {
            Some(due) if due <= now + SOON => now = due,
            _ => break,
        }
    }
    mode.standing().pending
}
