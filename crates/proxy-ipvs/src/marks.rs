//! Marks of virtual servers for clients from outside the cluster (`--ipvs-semantics=exact`).
//!
//! A restart keeps all marks, because the kernel stores them as elements of the map
//! KUBE-LOCAL-MARK.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{IpFamily, Owner, Protocol, ServiceAddress};

use crate::config::{MarkBits, Semantics};
use crate::server::VirtualServerKey;
use crate::sets::Member;
use crate::tables::Tables;

/// Marks by Service port, for one IP family.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    bits: Option<MarkBits>,
    of_owners: HashMap<Arc<Owner>, u32>,
    /// Marks in use, each with the protocol of its Service port.
    taken: BTreeMap<u32, Protocol>,
    /// Last mark of each address, from the kernel at the start or given since. `None` until the
    /// kernel was read: before, no mark is given.
    last: Option<HashMap<ServiceAddress, u32>>,
    /// Lower bound of the free numbers.
    next: u32,
    /// True if Services must be compiled again, because marks are available now.
    is_news: bool,
    /// True once the log has reported that no mark is free.
    is_lack_told: bool,
}

impl Marks {
    /// Returns the state without marks.
    pub(crate) fn new(semantics: Semantics) -> Self {
        Self {
            bits: match semantics {
                Semantics::Upstream => None,
                Semantics::Exact(bits) => Some(bits),
            },
            next: 1,
            ..Self::default()
        }
    }

    /// True if marks are available, or not needed.
    pub(crate) fn is_open(&self) -> bool {
        self.bits.is_none() || self.last.is_some()
    }

    /// True if Services must be compiled again, because marks are available now.
    pub(crate) fn has_news(&self) -> bool {
        self.is_news
    }

    /// Returns [`has_news`](Self::has_news) and resets it.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Stores the elements of the map, from the first read of the kernel.
    pub(crate) fn open(&mut self, members: impl Iterator<Item = Member>) {
        let Some(bits) = self.bits.filter(|_| self.last.is_none()) else {
            return;
        };
        let of = members.filter_map(|member| match member {
            Member::AddressPortMark(address, protocol, port, mark) if bits.can_hold(mark) => {
                Some((ServiceAddress::new(address, port, protocol), mark))
            }
            _ => None,
        });
        self.last = Some(of.collect());
        self.is_news = true;
    }

    /// Returns the mark for a Service port with these addresses, or `None` if no mark is free.
    pub(crate) fn of(
        &mut self,
        owner: &Arc<Owner>,
        at: &[ServiceAddress],
        tables: &Tables,
    ) -> Option<u32> {
        if let Some(mark) = self.of_owners.get(owner) {
            return Some(*mark);
        }
        let last = self.last.as_ref()?;
        let kept = at.iter().find_map(|at| last.get(at)).copied();
        let kept = kept.filter(|mark| !self.taken.contains_key(mark));
        let family = IpFamily::of(at.first()?.address);
        let mark = kept.or_else(|| self.free(family, tables));
        let Some(mark) = mark else {
            if !std::mem::replace(&mut self.is_lack_told, true) {
                tracing::warn!(
                    service = %owner.name,
                    "all marks of --ipvs-mark-bits are in use: clients inside the cluster reach only the local endpoints of this and further \
                     Services with externalTrafficPolicy Local at their external addresses; add bits that nothing else uses"
                );
            }
            return None;
        };
        if let Some(last) = &mut self.last {
            last.extend(at.iter().map(|at| (*at, mark)));
        }
        self.taken.insert(mark, owner.name.protocol);
        self.of_owners.insert(Arc::clone(owner), mark);
        Some(mark)
    }

    /// Returns the protocol of the Service port with this mark.
    pub(crate) fn protocol(&self, mark: u32) -> Option<Protocol> {
        self.taken.get(&mark).copied()
    }

    /// Returns the mark that a Service port has.
    pub(crate) fn get(&self, owner: &Arc<Owner>) -> Option<u32> {
        self.of_owners.get(owner).copied()
    }

    /// Frees the mark of a Service port.
    pub(crate) fn release(&mut self, owner: &Arc<Owner>) {
        if let Some(mark) = self.of_owners.remove(owner) {
            self.taken.remove(&mark);
            self.next = 1;
            self.is_lack_told = false;
        }
    }

    /// Returns a mark that no virtual server uses, of any program.
    fn free(&mut self, family: IpFamily, tables: &Tables) -> Option<u32> {
        let bits = self.bits?;
        loop {
            let mark = bits.mark(self.next)?;
            self.next += 1;
            let key = VirtualServerKey::Mark { family, mark };
            let is_used = self.taken.contains_key(&mark)
                || tables.foreign.stands_at(&key)
                || tables.is_ours(&key);
            if !is_used {
                let last = self.last.iter_mut();
                last.for_each(|last| last.retain(|_, of| *of != mark));
                return Some(mark);
            }
        }
    }
}
