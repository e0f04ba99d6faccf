//! Service address of each firewall mark, shared by the writer of virtual servers and the readers
//! of counters.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::{IpFamily, ServiceAddress};

type Addresses = HashMap<(IpFamily, u32), ServiceAddress>;

/// Service address of each firewall mark. A connection with a mark belongs to the Service at that
/// address. All clones share one table.
#[derive(Debug, Clone, Default)]
pub struct MarkAddresses(Arc<Mutex<Addresses>>);

impl MarkAddresses {
    /// Returns the service address of a mark, or `None` if the mark is not one of ours.
    pub fn get(&self, family: IpFamily, mark: u32) -> Option<ServiceAddress> {
        self.lock().get(&(family, mark)).copied()
    }

    /// Returns the marks that stand for these service addresses.
    pub fn at(&self, addresses: &[ServiceAddress]) -> Vec<(IpFamily, u32)> {
        let all = self.lock();
        if all.is_empty() {
            return Vec::new();
        }
        let wanted: BTreeSet<&ServiceAddress> = addresses.iter().collect();
        let marks = all.iter().filter(|(_, at)| wanted.contains(at));
        marks.map(|(mark, _)| *mark).collect()
    }

    /// Sets the service address of a mark.
    pub fn set(&self, family: IpFamily, mark: u32, at: ServiceAddress) {
        self.lock().insert((family, mark), at);
    }

    /// Removes a mark that no Service has any more. Another program may use it next.
    pub(crate) fn remove(&self, family: IpFamily, mark: u32) {
        self.lock().remove(&(family, mark));
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for MarkAddresses {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MarkAddresses {}
