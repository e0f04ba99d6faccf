//! Whether anybody changes a table while it is read.
//!
//! The kernel numbers the ruleset of a namespace, whatever table is changed, and tells of each
//! change which table it was: at the end of a transaction, after the new number counts. So what is
//! read is good if the number is the same, or if all has been told up to the new one and nothing of
//! it was this table's.

use std::io;
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::nftables::Nftables;
use crate::subscription::{Event, Subscription};
use crate::transaction::Generation;
use crate::value::Family;

/// Room for messages of others' transactions, in bytes. What does not fit is lost, and counts as a
/// change.
const ROOM: usize = 4 << 20;
/// How long a transaction that is being made is waited for: so often, so long. The largest take a
/// second.
const WAITS: u32 = 1_000;
const WAIT: Duration = Duration::from_millis(2);

/// Listens for changes of a table.
pub(crate) struct Watch<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    /// That of the beginning.
    pub(crate) generation: Generation,
    subscription: Subscription,
    /// The last transaction of which all was told.
    told: Option<Generation>,
    is_touched: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(
        nftables: &mut Nftables,
        family: Family,
        table: &'a str,
    ) -> Result<Self, Error> {
        let subscription = Subscription::open(ROOM).map_err(|source| {
            Error::from(netlink_batch::Error::Open {
                protocol: netlink_batch::Protocol::Netfilter,
                source,
            })
        })?;
        let mut watch = Self {
            family,
            table,
            generation: nftables.generation()?,
            subscription,
            told: None,
            is_touched: false,
        };
        // What was told by now was made before. A transaction whose number counts already may still
        // be under way; its end is told later then.
        watch.listen();
        (watch.told, watch.is_touched) = (None, false);
        Ok(watch)
    }

    /// Takes in what was told.
    pub(crate) fn listen(&mut self) {
        loop {
            match self.subscription.receive() {
                Ok(events) => events.iter().for_each(|event| self.take(event)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.is_touched = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Touched { family, table } => {
                self.is_touched |= *family == self.family && **table == *self.table;
            }
            Event::Committed { generation, .. } => {
                // One that was under way at the beginning: what it touched may not have been told.
                self.is_touched |= *generation == self.generation;
                self.told = Some(*generation);
            }
            Event::Lost => self.is_touched = true,
        }
    }

    /// Whether nobody has changed the table since the beginning.
    pub(crate) fn saw_nothing(mut self, nftables: &mut Nftables) -> Result<bool, Error> {
        let now = nftables.generation()?;
        for _ in 0..WAITS {
            self.listen();
            if self.is_touched || now == self.generation || self.told == Some(now) {
                return Ok(!self.is_touched);
            }
            thread::sleep(WAIT);
        }
        Ok(false)
    }
}
