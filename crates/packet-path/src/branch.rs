//! One of the ways that a packet may go.

use std::sync::Arc;

use crate::packet::Packet;

/// How many ways of one packet are followed: a Service may have some thousand endpoints, and chances
/// in a row would multiply without end.
pub const MOST_BRANCHES: usize = 4096;

/// Packets and bytes that a rule has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One thing that a packet meets and that does something to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where in the kernel: `nat KUBE-SERVICES`, `routing`, `IPVS`.
    pub place: String,
    /// What is there, as its own tools list it: a rule, a virtual server.
    pub entry: String,
    /// What it does to the packet, in plain words.
    pub says: String,
    /// Members of sets by which it was found: `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub members: Vec<String>,
    /// What it has counted, where it counts.
    pub counters: Option<Counters>,
}

impl Step {
    /// One that counts nothing.
    pub fn new(
        place: impl Into<String>,
        entry: impl Into<String>,
        says: impl Into<String>,
    ) -> Self {
        Self {
            place: place.into(),
            entry: entry.into(),
            says: says.into(),
            members: Vec::new(),
            counters: None,
        }
    }
}

/// Something that is not understood, or could not be read, and that this way takes for granted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubt {
    /// The place, what is there, and why it cannot be told.
    pub what: Arc<str>,
    /// Whether this way takes it to match.
    pub matches: bool,
}

/// How a way ends within a chain. What else there is, the walk finds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// Nobody is told anything.
    Dropped,
    /// The sender is told: by which message, as `ICMP port unreachable`.
    Refused(String),
    /// No route leads to where it goes, and the sender is told: why there is none.
    Unrouted(String),
    /// A process of this node has it.
    Local,
    /// It leaves the node.
    Forwarded,
    /// It cannot be told: why.
    Unknown(String),
}

/// One of the ways that a packet may go.
#[derive(Debug, Clone)]
pub struct Branch {
    /// The packet as it is now.
    pub packet: Packet,
    /// How likely it is that the packet comes here, from 0 to 1.
    pub chance: f64,
    /// What it has met, in order. What two ways have in common is held once.
    pub steps: Vec<Arc<Step>>,
    /// How many rules it has passed that did nothing.
    pub passed: usize,
    /// What it takes for granted.
    pub doubts: Vec<Doubt>,
    /// How it has ended, if it has.
    pub end: Option<End>,
}

impl Branch {
    /// The beginning of all ways of a packet.
    pub fn new(packet: Packet) -> Self {
        Self {
            packet,
            chance: 1.0,
            steps: Vec::new(),
            passed: 0,
            doubts: Vec::new(),
            end: None,
        }
    }

    /// Keeps a step.
    pub fn step(&mut self, step: Step) {
        self.steps.push(Arc::new(step));
    }

    /// The same way where something of this chance (within this way) happens.
    #[must_use]
    pub fn with_chance(&self, chance: f64) -> Self {
        let mut branch = self.clone();
        branch.chance *= chance;
        branch
    }

    /// The two ways of what is not understood: it matches, and it does not. `what` names the place,
    /// the rule and the reason. Of a rule that could do nothing to the packet do not ask this, but
    /// keep a step that says so. Both keep the chance, as nobody knows how likely either is.
    #[must_use]
    pub fn doubt(self, what: &str) -> (Self, Self) {
        let what: Arc<str> = what.into();
        let (mut yes, mut no) = (self.clone(), self);
        for (branch, matches) in [(&mut yes, true), (&mut no, false)] {
            let what = Arc::clone(&what);
            branch.doubts.push(Doubt { what, matches });
        }
        (yes, no)
    }
}
