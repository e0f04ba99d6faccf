//! A possible path of a packet, with its steps, doubts and end.

use std::sync::Arc;

use crate::packet::Packet;

/// Maximum number of paths that are followed for one packet. A Service may have thousands of
/// endpoints, and several random choices multiply the number of paths.
pub const MOST_BRANCHES: usize = 4096;

/// Packets and bytes that a rule or an IPVS object has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of counted packets.
    pub packets: u64,
    /// Number of counted bytes.
    pub bytes: u64,
}

/// A step on a packet's path: an object of the kernel, and its effect on the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Place of the object, such as `nat KUBE-SERVICES`, `routing` or `IPVS`.
    pub place: String,
    /// Object, such as a rule or virtual server, in the format of the tool that lists it.
    pub entry: String,
    /// Effect of the object on the packet, as text for the user.
    pub says: String,
    /// Set members that the packet matched, such as `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub members: Vec<String>,
    /// Counters of the object, if it has any.
    pub counters: Option<Counters>,
}

impl Step {
    /// Creates a step without counters and set members.
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

/// Assumption of a path that a rule matches, or that it does not match. A path has a doubt if the
/// rule is not supported, or if an object could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubt {
    /// Text for the user: the chain or hook, the rule or object there, and the reason why the outcome
    /// is unknown.
    pub what: Arc<str>,
    /// True if this path assumes that the rule matches.
    pub matches: bool,
}

/// Way in which a packet's path ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// A rule or IPVS drops the packet without a message to its sender.
    Dropped,
    /// The packet is dropped, and its sender gets this message, such as `ICMP port unreachable`.
    Refused(String),
    /// The packet has no route, for this reason, and its sender gets an error.
    Unrouted(String),
    /// A process on this node receives the packet.
    Local,
    /// The packet leaves this node.
    Forwarded,
    /// The rest of the path is unknown, for this reason.
    Unknown(String),
}

/// One of the possible paths of a packet.
#[derive(Debug, Clone)]
pub struct Branch {
    /// The packet with the changes that the path has made to it.
    pub packet: Packet,
    /// Probability of this path, from 0 to 1.
    pub chance: f64,
    /// Steps so far, in order. Paths share the memory of their common steps.
    pub steps: Vec<Arc<Step>>,
    /// Step of the rule that last changed the destination (DNAT), or `None` if no rule did. IPVS
    /// does not set this field.
    pub redirected_by: Option<Arc<Step>>,
    /// Number of rules that the packet has passed without effect.
    pub passed: usize,
    /// Assumptions on which the path depends.
    pub doubts: Vec<Doubt>,
    /// End of the path, or `None` if the path continues.
    pub end: Option<End>,
}

impl Branch {
    /// Creates the path on which a packet starts.
    pub fn new(packet: Packet) -> Self {
        Self {
            packet,
            chance: 1.0,
            steps: Vec::new(),
            redirected_by: None,
            passed: 0,
            doubts: Vec::new(),
            end: None,
        }
    }

    /// Appends a step to the path.
    pub fn step(&mut self, step: Step) {
        self.steps.push(Arc::new(step));
    }

    /// Returns a copy of this path, with its probability multiplied by `chance`.
    #[must_use]
    pub fn with_chance(&self, chance: f64) -> Self {
        let mut branch = self.clone();
        branch.chance *= chance;
        branch
    }

    /// Splits the path at a rule with unknown outcome: the first path assumes a match, the second
    /// none. `what` names the place, the rule and the reason.
    ///
    /// Both paths keep the full probability, because it is unknown which is more likely. A rule
    /// that cannot affect the packet does not split the path: callers only add a step with a note.
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
