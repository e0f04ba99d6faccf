//! A possible path of a packet.

use std::sync::Arc;

use crate::packet::Packet;

/// Largest number of paths of one packet. A Service may have thousands of endpoints, and several
/// random choices multiply the number of paths.
pub const MOST_BRANCHES: usize = 4096;

/// Numbers of packets and bytes that a rule has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of counted packets.
    pub packets: u64,
    /// Number of counted bytes.
    pub bytes: u64,
}

/// An object on the packet's path that affects the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Place in the kernel, such as `nat KUBE-SERVICES`, `routing` or `IPVS`.
    pub place: String,
    /// Object in the format of the tool that lists it, such as a rule or a virtual server.
    pub entry: String,
    /// Effect of the object on the packet, as text for the user.
    pub says: String,
    /// Set members that matched, such as `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub members: Vec<String>,
    /// Counters of the object, if it has any.
    pub counters: Option<Counters>,
}

impl Step {
    /// Creates a step without counters.
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

/// Assumption of a path: a rule matches, or it does not match. A path needs an assumption if the
/// rule is not supported, or if an object could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubt {
    /// Text for the user: the uncertain rule or object, its place in the kernel, and the reason why
    /// its outcome is unknown.
    pub what: Arc<str>,
    /// True if this path assumes that the rule matches.
    pub matches: bool,
}

/// End of a packet's path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// The packet is dropped without a message.
    Dropped,
    /// The packet is dropped, and its sender gets this message, such as `ICMP port unreachable`.
    Refused(String),
    /// The packet has no route, for this reason. The kernel notifies the packet's sender.
    Unrouted(String),
    /// A process on this node receives the packet.
    Local,
    /// The packet leaves the node.
    Forwarded,
    /// The packet's outcome is unknown, for this reason.
    Unknown(String),
}

/// One of the possible paths of a packet.
#[derive(Debug, Clone)]
pub struct Branch {
    /// The packet, as it is at this point of the path.
    pub packet: Packet,
    /// Probability that the packet takes this path, from 0 to 1.
    pub chance: f64,
    /// Steps so far, in order. Paths share their common steps.
    pub steps: Vec<Arc<Step>>,
    /// Number of rules on the path that had no effect.
    pub passed: usize,
    /// Assumptions on which the path depends.
    pub doubts: Vec<Doubt>,
    /// End of the path, or `None` if the path continues.
    pub end: Option<End>,
}

impl Branch {
    /// Creates the initial path of a packet.
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

    /// Appends a step to the path.
    pub fn step(&mut self, step: Step) {
        self.steps.push(Arc::new(step));
    }

    /// Returns the path after an event with probability `chance`: a copy of this path, whose
    /// probability is multiplied by `chance`.
    #[must_use]
    pub fn with_chance(&self, chance: f64) -> Self {
        let mut branch = self.clone();
        branch.chance *= chance;
        branch
    }

    /// Splits the path at a rule with unknown outcome. One path assumes that the rule matches, and
    /// the other path assumes that it does not match. `what` describes the place, the rule and the
    /// reason.
    ///
    /// Both paths keep the full probability, because neither is known to be more likely. If a rule
    /// cannot affect the packet, callers do not split the path, but add a step with a note.
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
