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

/// What is due by then is waited for.
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

    /// It is set otherwise from the next start on; how, in words. `None` if there is no other way.
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

    /// Whether a front that another Service claims from now on has to be served without a pause
    /// meanwhile: where it is one entry, whoever has it. Elsewhere each Service has chains or
    /// listening ports of its own.
    fn hands_over(&self) -> bool {
        false
    }

    /// What is read next leaves out one thing: by this number.
    fn passes_over(&mut self, _which: u64) {}

    /// A write was done.
    fn done(&mut self, _write: &Write) {}

    /// What the kernel tells of everything that was done to it since this was asked last, whoever did
    /// it.
    fn told(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Whether the kernel tells when an entry goes, so that it is put back at once.
    fn is_told(&self, _entry: &str) -> bool {
        false
    }

    /// Whether what it serves ends with its process.
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

    /// All that is ours in the kernel, as far as it makes a difference.
    fn ours(&self) -> Entries;

    /// The same with what takes its time to read, and a start makes as well.
    fn all_ours(&self) -> Entries {
        self.ours()
    }

    /// Whether an entry may be there at the end that a start does not make.
    fn may_stay(&self, _entry: &str) -> bool {
        false
    }

    /// All that is not ours.
    fn foreign(&self) -> Entries {
        Entries::new()
    }

    /// The same, as those whose it is have left it.
    fn foreign_left(&self) -> Entries {
        Entries::new()
    }

    /// Somebody changes what is ours: `None` if there is nothing of the kind.
    fn damage(&mut self, chance: &mut Chance) -> Option<Damage>;

    /// Somebody changes what is not ours; in words.
    fn change_foreign(&mut self, _chance: &mut Chance) -> Option<String> {
        None
    }

    /// The node gets an address, or loses one.
    fn change_address(&mut self, chance: &mut Chance) -> Notice;

    /// What the kernel may tell without a reason.
    fn notices(&self) -> &'static [Notice] {
        &[Notice::Ruleset, Notice::Anything]
    }

    /// Connections at what drains end.
    fn end_connections(&mut self) {}

    /// What a start on an empty kernel makes for these objects, on a node with the same addresses.
    fn afresh(&self, model: &Model) -> Fresh;

    /// The same on a kernel like the one that this is on: where that is the real one, on another
    /// node of it, and not on the fake.
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

/// What a start makes.
pub struct Fresh {
    /// The mode and its kernel.
    pub subject: Box<dyn Subject>,
    /// How many entries it cannot write, whatever happens.
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

/// What somebody has done.
#[derive(Debug)]
pub struct Damage {
    /// In words.
    pub what: String,
    /// What the kernel tells of it.
    pub told: Option<Notice>,
}

/// Has a mode whose jobs run when they begin do all that there is to do at once, from the
/// start. How much is pending then.
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
