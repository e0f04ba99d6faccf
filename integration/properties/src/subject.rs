//! A mode with its kernel, as event sequences see it.

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

/// Longest time for which [`run_afresh`] waits for the next due work.
const SOON: Duration = Duration::from_secs(2);

/// Maximum number of turns of the loop until a started mode has no work left. More turns are a bug.
const MOST_TURNS: usize = 1_000;

/// Values of kernel entries, by the entry's name.
pub type Entries = BTreeMap<String, String>;

/// A mode with its kernel. The kernel outlives the mode.
pub trait Subject {
    /// Returns the IP family of this subject.
    fn family(&self) -> IpFamily;

    /// Starts a process: the mode, and its threads that read and write the kernel.
    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>);

    /// Changes the settings for the next start. Returns a description, or `None` if the mode has no
    /// other settings.
    fn switch(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Returns the addresses of the node, without Service addresses.
    fn addresses(&self) -> BTreeSet<IpAddr>;

    /// Returns the verdicts at these frontends, computed from the kernel's packet processing. If
    /// the subject does not evaluate rules, a frontend without an endpoint has no verdict.
    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts;

    /// Returns true if a frontend without endpoints consists of several entries. While the daemon
    /// adds these entries, the kernel may drop packets, reject them, or deliver them to the node.
    fn refuses_in_pieces(&self) -> bool {
        false
    }

    /// Returns true if the mode serves NodePorts at localhost, too.
    fn serves_localhost(&self) -> bool {
        false
    }

    /// Returns true if a frontend must work without interruption when it moves to another Service.
    /// Modes with separate chains or listening ports for each Service return false.
    fn hands_over(&self) -> bool {
        false
    }

    /// Informs the subject that the daemon's next read misses an entry. The random number selects
    /// the entry.
    fn passes_over(&mut self, _which: u64) {}

    /// Informs the subject that a write is complete.
    fn done(&mut self, _write: &Write) {}

    /// Returns the kernel's notifications since the last call.
    fn told(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Returns true if the kernel notifies the daemon of this entry's removal. The daemon then
    /// restores the entry immediately.
    fn is_told(&self, _entry: &str) -> bool {
        false
    }

    /// Returns true if the mode works only while its process runs.
    fn ends_with_process(&self) -> bool {
        false
    }

    /// Returns the parts of objects that the kernel permanently refuses. A mode that writes a
    /// Service port atomically cannot write any Service with such a part.
    fn barred(&self) -> &[RejectedPart] {
        &[]
    }

    /// Makes the kernel permanently refuse one missing entry. Returns a description.
    fn forbid(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Reports whether an entry belongs to a Service.
    fn is_of(&self, entry: &str, value: &str, service: &Service) -> bool {
        let name = service.name.to_string();
        entry.contains(&name) || value.contains(&name)
    }

    /// Reports whether the kernel permanently refuses a write, because the write contains a refused
    /// part of these Services.
    fn is_forbidden(&self, _write: &Write, _barred: &[Service]) -> bool {
        false
    }

    /// Returns the daemon's entries in the kernel, without irrelevant details.
    fn ours(&self) -> Entries;

    /// Returns all entries of the daemon in the kernel, including those that [`Self::ours`] omits.
    /// Such entries are slow to read, and every start creates them.
    fn all_ours(&self) -> Entries {
        self.ours()
    }

    /// Returns true if the kernel may still have this entry at the end, although a fresh start does
    /// not create it.
    fn may_stay(&self, _entry: &str) -> bool {
        false
    }

    /// Returns true if an entry's value at the end may differ from the value that a fresh start
    /// writes (`made`).
    fn may_differ(&self, _made: &str) -> bool {
        false
    }

    /// Returns true if a frontend without an endpoint may reach its former endpoints at the end.
    fn may_serve_former(&self) -> bool {
        false
    }

    /// Returns the frontends that the daemon cannot serve, because nothing in the kernel proves
    /// that the daemon created their entries. The daemon treats these entries as foreign, and
    /// retries.
    fn unproven(&self) -> BTreeSet<ServiceAddress> {
        BTreeSet::new()
    }

    /// Returns the entry, or `None` if the entry belongs to the frontends in `unproven` (see
    /// [`Self::unproven`]) or depends on them.
    fn beside(&self, entry: String, _unproven: &BTreeSet<ServiceAddress>) -> Option<String> {
        Some(entry)
    }

    /// Returns true if an entry proves the ownership of an object that the daemon may treat as
    /// foreign. The daemon may remove such an entry, even if the entry is wanted.
    fn may_disown(&self, _entry: &str) -> bool {
        false
    }

    /// Returns the entries of other programs that exist now.
    fn foreign(&self) -> Entries {
        Entries::new()
    }

    /// Returns the expected entries of other programs: the content that these programs last wrote.
    fn foreign_left(&self) -> Entries {
        Entries::new()
    }

    /// Damages entries of the daemon, as another program might. Returns `None` if no entry fits.
    fn damage(&mut self, chance: &mut Chance) -> Option<Damage>;

    /// Changes entries of another program, as that program would. Returns a description.
    fn change_foreign(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Adds or removes an address of the node.
    fn change_address(&mut self, chance: &mut Chance) -> Notice;

    /// Returns the notifications that the kernel may send without a change.
    fn notices(&self) -> &'static [Notice] {
        &[Notice::Ruleset, Notice::Anything]
    }

    /// Ends the connections of draining endpoints.
    fn end_connections(&mut self) {}

    /// Returns the result of a start on an empty kernel. The start has these objects, and a node
    /// with the same addresses.
    fn afresh(&self, model: &Model) -> FreshStart;

    /// Returns the result of a start on an empty kernel of the same kind. If this subject uses the
    /// real kernel, the start uses another node of the real kernel.
    ///
    /// # Errors
    ///
    /// Fails if no such node can be created.
    fn afresh_on_same(&self, model: &Model) -> Result<FreshStart, String> {
        Ok(self.afresh(model))
    }

    /// Returns true if this subject uses this machine's kernel.
    fn is_real(&self) -> bool {
        false
    }
}

/// Result of a start on an empty kernel.
pub struct FreshStart {
    /// The started mode with its kernel.
    pub subject: Box<dyn Subject>,
    /// Number of entries that the mode can never write, because the kernel refuses them.
    pub pending: usize,
}

/// Kernel entries that a test makes the kernel refuse permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedPart {
    /// Rules, chains and elements of the Service that [`crate::cluster::name`] gives this number.
    Service(u8),
    /// Rules, chains and elements of this endpoint.
    Endpoint(IpAddr),
    /// The redirect from this address and port.
    Portal(IpAddr, Protocol, u16),
}

impl RejectedPart {
    /// Returns a random Service or endpoint as the refused part.
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

/// Returns the initial addresses of a node.
pub(crate) fn node_addresses(family: IpFamily) -> [IpAddr; 3] {
    [[127, 0, 0, 1], NODE_ADDRESS, [10, 244, 1, 254]].map(|octets| at(family, octets))
}

/// Returns the detector of local traffic, with the network of this node's pods.
pub(crate) fn detector(family: IpFamily) -> LocalDetector {
    net(family, [10, 244, 1, 0], 24).map_or(LocalDetector::None, LocalDetector::SourceNet)
}

/// Returns a node that serves NodePorts at all its addresses.
pub(crate) fn node(family: IpFamily) -> NodeFacts {
    let mut node = NodeFacts::new(family, NODE);
    node.node_port_addresses = NodePortAddresses::All;
    node
}

/// Adds or removes an address of the node.
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

/// Damage that another program has caused to the daemon's entries.
#[derive(Debug)]
pub struct Damage {
    /// Description of the damage, for the log.
    pub what: String,
    /// Notification of the damage that the kernel sends to the daemon, if any.
    pub told: Option<Notice>,
}

/// Starts a mode on the kernel. A turnstile stands before the kernel in each of the mode's `N`
/// threads that read and write the kernel.
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

/// Runs a new mode on this thread until no immediate work is left. Returns the number of pending
/// entries.
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
