//! What tells apart what one does oneself from what others do.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::subscription::Subscription;

/// The sockets that one program writes with, and the subscriptions that leave out what they change:
/// each of them all, so that who writes one table fills nobody's room.
#[derive(Debug, Default)]
pub struct OwnSockets(Mutex<Both>);

#[derive(Debug, Default)]
struct Both {
    ports: BTreeSet<u32>,
    subscriptions: Vec<Arc<Subscription>>,
}

impl OwnSockets {
    /// Notes the number of an open socket that is one of them, until the note is dropped.
    pub(crate) fn note(self: &Arc<Self>, port: u32) -> OwnSocket {
        let mut both = self.both();
        both.ports.insert(port);
        let _ = both.leave_out();
        let all = Arc::clone(self);
        OwnSocket { all, port }
    }

    /// Has a subscription leave out what all of them change, those of later among them.
    ///
    /// # Errors
    ///
    /// The kernel takes no filter: all is told.
    pub fn leave_out_of(&self, subscription: Arc<Subscription>) -> io::Result<()> {
        let mut both = self.both();
        both.subscriptions.push(subscription);
        both.leave_out()
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Both {
    fn leave_out(&self) -> io::Result<()> {
        let all: Vec<u32> = self.ports.iter().copied().collect();
        // Where one takes no filter, the others may.
        let subscriptions = self.subscriptions.iter();
        subscriptions
            .map(|subscription| subscription.leave_out(&all))
            .fold(Ok(()), Result::and)
    }
}

/// A socket that is one of them. Its number may be another program's afterwards.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    all: Arc<OwnSockets>,
    port: u32,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let mut both = self.all.both();
        both.ports.remove(&self.port);
        let _ = both.leave_out();
    }
}
