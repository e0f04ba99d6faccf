//! Gate in front of the kernel of IPVS mode, at which each read and write of the daemon waits.

use std::collections::BTreeMap;
use std::time::Instant;

use chance::Chance;
use proxy::{Target, Unreadable};
use proxy_ipvs::{
    Fault, FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Member, Op, Outcome, Plan,
    VirtualServer, VirtualServerKey,
};

use crate::stepped_threads::{
    AffectedClients, Permit, RejectionCause, ThreadOperation, Turnstile, Write,
};

/// Part of the kernel's state that the daemon reads as the shim's rules.
pub(super) const RULES_PART: &str = "the rules beside IPVS";

impl<K: Kernel> Kernel for Turnstile<K> {
    fn clock(&self) -> Instant {
        self.gate.clock()
    }

    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        const PART: &str = "the virtual servers";
        match self.gate.pass(ThreadOperation::Read(PART)) {
            Permit::Go => self.kernel.read_servers(),
            Permit::PassOver(which) => {
                let mut all = self.kernel.read_servers()?;
                let at = Chance::new(which).index(all.len());
                if let Some(key) = all.keys().nth(at).copied() {
                    all.remove(&key);
                }
                Ok(all)
            }
            _ => Err(Unreadable::new(PART, "on purpose")),
        }
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        self.read("the sets", Kernel::read_sets)
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        self.read("the addresses of this node", Kernel::read_addresses)
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        self.read(RULES_PART, Kernel::read_rules)
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        self.read("a glance", |kernel| kernel.glance(one))
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        self.kernel.load_scheduler(name)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for op in &plan.ops {
            let mut apply = || {
                let done = self.kernel.apply(&Plan {
                    ops: vec![op.clone()],
                });
                done.into_iter().next().unwrap_or(Outcome::Unknown)
            };
            outcomes.push(match self.gate.pass(ThreadOperation::Write(write(op))) {
                Permit::Go => apply(),
                Permit::Refuse(blame) => Outcome::Refused {
                    reason: "on purpose".to_owned(),
                    fault: match blame {
                        RejectionCause::Entry => Fault::Entry,
                        RejectionCause::Node => Fault::Node,
                        RejectionCause::Belief => Fault::Belief,
                    },
                },
                Permit::LoseDone => {
                    apply();
                    Outcome::Unknown
                }
                _ => Outcome::Unknown,
            });
        }
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        self.read("connections", |kernel| kernel.connections(keys))
    }
}

fn write(op: &Op) -> Write {
    let serves = match op {
        Op::CreateLink => AffectedClients::All,
        Op::BindAddress(address) | Op::UnbindAddress(address) | Op::UnbindOtherwise(address) => {
            AffectedClients::Address(*address)
        }
        _ => match op.server() {
            Some(key) => key.address().map_or(AffectedClients::All, |at| {
                AffectedClients::Address(at.address)
            }),
            None => match op {
                Op::AddMember(_, member) | Op::RemoveMember(_, member) => match member {
                    Member::Address(address)
                    | Member::AddressPort(address, ..)
                    | Member::AddressPortMark(address, ..) => AffectedClients::Address(*address),
                    Member::AddressPortAddress(address, ..)
                    | Member::AddressPortNet(address, ..) => AffectedClients::Admitted(*address),
                    Member::Port(_) => AffectedClients::All,
                },
                Op::CreateSet(..) | Op::WriteRules { .. } => AffectedClients::All,
                // No client needs any other single entry.
                _ => AffectedClients::Nobody,
            },
        },
    };
    let removes = match op {
        Op::RemoveServer(key) => Some(format!("server {key}")),
        Op::RemoveMember(set, member) => Some(format!("member {set:?} {member}")),
        Op::UnbindAddress(address) => Some(format!("address {address}")),
        _ => None,
    };
    Write {
        what: op.to_string(),
        serves,
        removes,
    }
}
