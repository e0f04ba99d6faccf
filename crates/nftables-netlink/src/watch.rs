//! Detects changes to a table while a caller reads the table.
//!
//! The kernel has one generation number for all tables of a namespace. At the end of a transaction,
//! it first increments the number and then reports the changed tables. A read is valid in two
//! cases:
//!
//! * The number is the same as at the start of the read.
//! * Every report up to the new number has arrived, and no report names this table.

use std::io;
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::nftables::Nftables;
use crate::subscription::{Event, Subscription};
use crate::transaction::Generation;
use crate::value::Family;

/// Size in bytes of the buffer for the kernel's reports during a read. A lost report counts as a
/// change to the table.
const ROOM: usize = 4 << 20;
/// Largest number of waits for the end of a transaction that is still running. The largest
/// transactions take about a second.
const WAITS: u32 = 1_000;
const WAIT: Duration = Duration::from_millis(2);

/// A watch for changes to one table, while a caller reads the table.
pub(crate) struct Watch<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    /// Generation of the ruleset at the start of the watch.
    pub(crate) generation: Generation,
    subscription: Subscription,
    /// Generation of the last transaction whose reports have all arrived. `None` until the reports
    /// of one transaction have arrived.
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
        // Discards the reports that have already arrived, because they belong to earlier
        // transactions. The last of these transactions may still send reports: the kernel raises
        // the generation before it reports the end of the transaction.
        watch.listen();
        (watch.told, watch.is_touched) = (None, false);
        Ok(watch)
    }

    /// Processes the reports that have arrived from the kernel.
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
                // A transaction with the initial generation was already running when the watch
                // started. The watch may have missed some reports of this transaction, so the
                // transaction counts as a change to this table.
                self.is_touched |= *generation == self.generation;
                self.told = Some(*generation);
            }
            Event::Lost => self.is_touched = true,
        }
    }

    /// Returns true if the table has certainly not changed since the start of the watch. Waits
    /// about two seconds for the kernel's reports.
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
