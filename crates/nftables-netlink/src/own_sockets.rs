//! Keeps a program's subscriptions from reporting the program's own changes.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::subscription::Subscription;

/// Sockets through which a program writes, and the program's subscriptions. Each subscription
/// ignores changes that were made through these sockets. Otherwise, the write of a large table
/// would fill the buffers of subscriptions.
#[derive(Debug, Default)]
pub struct OwnSockets(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    ports: BTreeSet<u32>,
    subscriptions: Vec<Arc<Subscription>>,
}

impl OwnSockets {
    /// Adds an open socket's netlink port number to the list. Dropping the returned value removes
    /// the number.
    pub(crate) fn note(self: &Arc<Self>, port: u32) -> OwnSocket {
        let mut registry = self.registry();
        registry.ports.insert(port);
        let _ = registry.leave_out();
        let all = Arc::clone(self);
        OwnSocket { all, port }
    }

    /// Makes a subscription ignore the changes through all listed sockets, including sockets that
    /// are listed later.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the filter. The subscription then reports all changes.
    pub fn leave_out_of(&self, subscription: Arc<Subscription>) -> io::Result<()> {
        let mut registry = self.registry();
        registry.subscriptions.push(subscription);
        registry.leave_out()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn leave_out(&self) -> io::Result<()> {
        let all: Vec<u32> = self.ports.iter().copied().collect();
        // Sets the filter of every subscription, even if the kernel refuses the filter of one
        // subscription.
        let subscriptions = self.subscriptions.iter();
        subscriptions
            .map(|subscription| subscription.leave_out(&all))
            .fold(Ok(()), Result::and)
    }
}

/// Entry of an open socket in the list of own sockets. The entry must be removed when the socket
/// closes, because the kernel may then assign the socket's port number to another program.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    all: Arc<OwnSockets>,
    port: u32,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let mut registry = self.all.registry();
        registry.ports.remove(&self.port);
        let _ = registry.leave_out();
    }
}
