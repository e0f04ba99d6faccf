//! A mode on a kernel, as histories see it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use chance::Chance;
use proxy::{
    Changes, IpFamily, LocalDetector, Mode, Model, NodeFacts, NodePortAddresses, Notice, Protocol,
    Service,
};

use crate::cluster::{NODE, NODE_ADDRESS, SERVICES, at, name, net};
use crate::turnstile::{Front, Lane, Write};
use crate::verdict::Verdicts;

/// Time within which due work is waited for.
const SOON: Duration = Duration::from_secs(2);

/// More than any start takes.
const MOST_TURNS: usize = 1_000;

/// Entries by name, each with what it is.
pub type Entries = BTreeMap<String, String>;

/// A mode, with the kernel that it is on. The kernel outlives the mode.
pub trait Subject {
    /// The family of all addresses.
    fn family(&self) -> IpFamily;

    /// A process starts: the mode, and its kernel threads.
    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<Lane>);

    /// Changes the settings for the next start. Returns the change in words, or `None` if there is
    /// no other setting.
    fn switch(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// The addresses of the node, those of Services left out.
    fn addresses(&self) -> BTreeSet<IpAddr>;

    /// Returns the verdicts at each of these, by what the kernel does with packets. Where rules are
    /// not asked, a front that nobody serves has none.
    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts;

    /// True if a front that nobody serves is made of several entries. While these come, it may drop
    /// packets, refuse them, or leave them to the node itself.
    fn refuses_in_pieces(&self) -> bool {
        false
    }

    /// True if NodePorts are served at localhost as well.
    fn serves_localhost(&self) -> bool {
        false
    }

    /// True if a front that goes over to another Service must be served without a pause. That is so
    /// where it is one entry for all Services, and not where each Service has chains or listening
    /// ports of its own.
    fn hands_over(&self) -> bool {
        false
    }

    /// Makes the next read miss the entry of this number.
    fn passes_over(&mut self, _which: u64) {}

    /// A write was done.
    fn done(&mut self, _write: &Write) {}

    /// Returns the kernel's events since the last call.
    fn told(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// True if the kernel reports the loss of an entry, which is then restored at once.
    fn is_told(&self, _entry: &str) -> bool {
        false
    }

    /// True if it serves only while its process runs.
    fn ends_with_process(&self) -> bool {
        false
    }

    /// Returns what the kernel refuses for good of what objects are written from. A mode that writes
    /// all of a Service port or nothing cannot write the Services with such a part.
    fn barred(&self) -> &[Barred] {
        &[]
    }

    /// Makes the kernel refuse one object for good, which it does not hold yet; in words.
    fn forbid(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// Reports whether an entry is of a Service.
    fn is_of(&self, entry: &str, value: &str, service: &Service) -> bool {
        let name = service.name.to_string();
        entry.contains(&name) || value.contains(&name)
    }

    /// Reports whether the kernel refuses a write for good, where it refuses a part of these Services.
    fn is_forbidden(&self, _write: &Write, _barred: &[Service]) -> bool {
        false
    }

    /// Returns our entries in the kernel, as far as they make a difference.
    fn ours(&self) -> Entries;

    /// Returns all own entries, those included that take long to read and that a start makes.
    fn all_ours(&self) -> Entries {
        self.ours()
    }

    /// True if an entry may be left at the end that a start does not make.
    fn may_stay(&self, _entry: &str) -> bool {
        false
    }

    /// Returns the foreign entries.
    fn foreign(&self) -> Entries {
        Entries::new()
    }

    /// Returns foreign entries as their owners left them.
    fn foreign_left(&self) -> Entries {
        Entries::new()
    }

    /// Changes our entries as another program: `None` if there is no such entry.
    fn damage(&mut self, chance: &mut Chance) -> Option<Damage>;

    /// Changes foreign entries as another program. Returns the change in words.
    fn change_foreign(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// The node gets an address, or loses one.
    fn change_address(&mut self, chance: &mut Chance) -> Notice;

    /// Returns events that the kernel may send without a reason.
    fn notices(&self) -> &'static [Notice] {
        &[Notice::Ruleset, Notice::Anything]
    }

    /// Connections at what drains end.
    fn end_connections(&mut self) {}

    /// Returns the result of a start on an empty kernel, for these objects and a node with the same
    /// addresses.
    fn afresh(&self, model: &Model) -> Fresh;

    /// Returns the result of a start on a kernel of the same kind: on the real kernel in another
    /// node, else on the fake.
    ///
    /// # Errors
    ///
    /// There is no such node.
    ///
    /// # Errors
    ///
    /// There is no such node.
    fn afresh_on_same(&self, model: &Model) -> Result<Fresh, String> {
        Ok(self.afresh(model))
    }

    /// True on the kernel of this machine.
    fn is_real(&self) -> bool {
        false
    }
}

/// Result of a start.
pub struct Fresh {
    /// The mode and its kernel.
    pub subject: Box<dyn Subject>,
    /// Number of entries that it can never write.
    pub pending: usize,
}

/// A part of objects that the kernel refuses for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barred {
    /// Rules, chains and elements of this Service.
    Service(u8),
    /// Rules, chains and elements of this endpoint.
    Endpoint(IpAddr),
    /// The redirect at this address and port.
    Portal(IpAddr, Protocol, u16),
}

impl Barred {
    /// Chooses a Service or an endpoint.
    pub fn any(family: IpFamily, chance: &mut Chance) -> Self {
        if chance.is_one_in(2) {
            Self::Service(chance.small(SERVICES))
        } else {
            let (node, pod) = (1 + chance.small(2), 1 + chance.small(5));
            Self::Endpoint(at(family, [10, 244, node, pod]))
        }
    }
}

impl fmt::Display for Barred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(number) => name(*number).fmt(f),
            Self::Endpoint(address) => address.fmt(f),
            Self::Portal(address, protocol, port) => write!(f, "{address} {port}/{protocol}"),
        }
    }
}

/// The addresses of a node at first.
pub(crate) fn node_addresses(family: IpFamily) -> [IpAddr; 3] {
    [[127, 0, 0, 1], NODE_ADDRESS, [10, 244, 1, 254]].map(|octets| at(family, octets))
}

/// Returns the network by which a mode tells this node's pods apart.
pub(crate) fn detector(family: IpFamily) -> LocalDetector {
    net(family, [10, 244, 1, 0], 24).map_or(LocalDetector::None, LocalDetector::SourceNet)
}

/// A node that serves NodePorts at all its addresses.
pub(crate) fn node(family: IpFamily) -> NodeFacts {
    let mut node = NodeFacts::new(family, NODE);
    node.node_port_addresses = NodePortAddresses::All;
    node
}

/// Gives the node another address, or takes it away.
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

/// A change by another program.
#[derive(Debug)]
pub struct Damage {
    /// Description of the damage.
    pub what: String,
    /// The kernel's event about it.
    pub told: Option<Notice>,
}

/// Runs a mode, with jobs on this thread, from the start until nothing is left to be done at once.
/// Returns the number of pending entries.
pub fn run_afresh(mode: &mut dyn Mode, model: &Model) -> usize {
    let mut now = Instant::now();
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
