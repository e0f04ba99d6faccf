//! nftables mode on this machine's kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nftables_netlink::{Change, Table, Transaction};
use proxy::IpFamily;
use proxy_nftables::fake::{Content, FakeState};
use proxy_nftables::{Kernel as _, Layout, LocalhostNodePorts, NetlinkKernel, Object, TABLE};

use crate::real::set_addresses;

/// Access to the real kernel for the test itself, which reads and damages the kernel's state.
pub(super) struct RealKernel {
    family: IpFamily,
    kernel: NetlinkKernel,
}

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kernel that cannot be read or damaged ends the history"
)]
impl RealKernel {
    /// Opens the kernel's interfaces in the network namespace of the calling thread.
    pub(super) fn open(family: IpFamily, layout: Layout) -> Result<Self, String> {
        proxy_nftables::probe(family, layout, LocalhostNodePorts::Off)
            .map_err(|error| error.to_string())?;
        let kernel = NetlinkKernel::new(family);
        Ok(Self { family, kernel })
    }

    /// Reads the real kernel's state into `state`.
    pub(super) fn look(&mut self, state: &mut FakeState) {
        state.addresses = self.kernel.addresses().expect("the addresses");
        let mut there: Option<Content> = None;
        let mut tell = |object| match (object, &mut there) {
            (Object::Begin, there) => *there = None,
            (Object::Table(table), there) => {
                let content = Content {
                    activity: table.activity,
                    ..Content::default()
                };
                *there = Some(content);
            }
            (Object::Set(set, _), Some(there)) => {
                there
                    .sets
                    .entry(set.name.clone())
                    .or_insert((set, [].into()));
            }
            (Object::Chain(chain, _), Some(there)) => {
                there.chains.insert(chain.name.clone(), (chain, Vec::new()));
            }
            (Object::Elements(set, elements), Some(there)) => {
                let of = there.sets.get_mut(&set).expect("a set before its elements");
                let keyed = elements.into_iter().map(|one| (one.key.clone(), one));
                of.1.extend(keyed);
            }
            (Object::Counter(name), Some(there)) => {
                there.counters.insert(name);
            }
            (Object::Rule(chain, rule), Some(there)) => {
                let of = there.chains.get_mut(&chain);
                of.expect("a chain before its rules").1.push(rule);
            }
            (object, None) => panic!("{object:?} of no table"),
        };
        self.kernel.table(&mut tell).expect("the table");
        state.table = there;
    }

    /// Makes another program's change in the real kernel: from the state `before` to the state
    /// `after`.
    pub(super) fn follow(
        &mut self,
        before: &(BTreeSet<IpAddr>, Option<Content>),
        after: &FakeState,
    ) {
        set_addresses(&before.0, &after.addresses);
        let Some(was) = &before.1 else {
            return;
        };
        let changes = match &after.table {
            None => vec![Change::DeleteTable],
            Some(now) => self.changes(was, now),
        };
        if changes.is_empty() {
            return;
        }
        let transaction = Transaction {
            family: self.family.into(),
            table: TABLE.into(),
            changes,
        };
        let done = self.kernel.commit(&transaction);
        assert_eq!(done, Ok(()), "{:?}", transaction.changes);
    }

    fn changes(&self, was: &Content, now: &Content) -> Vec<Change> {
        let table = Change::AddTable(Table {
            family: self.family.into(),
            activity: now.activity,
            name: TABLE.into(),
            comment: None,
        });
        if now.chains.is_empty() && now.sets.is_empty() && was != now {
            return vec![Change::DeleteTable, table];
        }
        let mut changes = Vec::new();
        if was.activity != now.activity {
            changes.push(table);
        }
        for (name, (_, rules)) in &now.chains {
            if was.chains.get(name).is_some_and(|(_, had)| had != rules) {
                changes.push(Change::FlushChain(name.clone()));
                let rules = rules.iter();
                changes.extend(rules.map(|rule| Change::AddRule(name.clone(), rule.clone())));
            }
        }
        for (name, (_, elements)) in &now.sets {
            let Some((_, had)) = was.sets.get(name) else {
                continue;
            };
            let gone = had
                .iter()
                .filter(|(key, one)| elements.get(*key) != Some(one));
            let gone: Vec<_> = gone.map(|(_, one)| one.clone()).collect();
            let new = elements
                .iter()
                .filter(|(key, one)| had.get(*key) != Some(one));
            let new: Vec<_> = new.map(|(_, one)| one.clone()).collect();
            if elements.is_empty() && !gone.is_empty() {
                changes.push(Change::FlushSet(name.clone()));
            } else if !gone.is_empty() {
                changes.push(Change::DeleteElements(name.clone(), gone));
            }
            if !new.is_empty() {
                changes.push(Change::AddElements(name.clone(), new));
            }
        }
        changes
    }
}
