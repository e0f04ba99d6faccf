//! Notifies a mode of changes that other programs make to its nftables tables.
//!
//! ```text
//!   kernel ─BPF: not by this process─▶ Subscription ─▶ Notice::Ruleset ─▶ the family's mode
//! ```
//!
//! Each table has its own subscription. A subscription ignores transactions through sockets of this
//! process.

use std::io;
use std::sync::Arc;

use footprint::Footprint;
use futures::stream::{self, BoxStream, StreamExt as _};
use nftables_netlink::{Event, Family, OwnSockets, Subscription};
use proxy::{IpFamily, Notice};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, warn};

/// Size of a subscription's receive buffer, in bytes.
const ROOM_BYTES: usize = 1 << 20;

/// A stream of notices, each with the IP family of the mode that gets it.
pub type Notices = BoxStream<'static, (IpFamily, Notice)>;

/// Opens a subscription to the kernel's nftables notifications.
///
/// # Errors
///
/// Fails if the kernel does not support the subscription.
pub(super) fn subscribe() -> io::Result<Arc<Subscription>> {
    Subscription::open(ROOM_BYTES).map(Arc::new)
}

/// Makes a subscription ignore transactions of this process. If the kernel cannot filter them out,
/// each one causes a notification, and the mode reads its table again.
pub(super) fn leave_out(own: &OwnSockets, of: &Arc<Subscription>) {
    if let Err(error) = own.leave_out_of(Arc::clone(of)) {
        warn!(%error, "the kernel cannot filter out our own nftables changes: the table is read after each write");
    }
}

/// Returns a stream with one notice for each transaction in which another program may have changed
/// `table`. The caller must run in a tokio runtime. If the subscription fails, the stream logs the
/// error and ends.
pub(super) fn follow(
    family: IpFamily,
    table: &'static str,
    subscription: Arc<Subscription>,
) -> io::Result<Notices> {
    #[allow(
        unsafe_code,
        reason = "tokio leaves it to its caller to keep the descriptor open while it is registered"
    )]
    // SAFETY: a Subscription owns its descriptor, and closes it only when it is dropped. The
    // AsyncFd owns the Subscription and lends it only by shared reference. The AsyncFd deregisters
    // the descriptor before it drops the Subscription.
    let socket = unsafe { AsyncFd::register_with_interest(subscription, Interest::READABLE) };
    let socket = socket.map_err(io::Error::from)?;
    let heard = TableEvents {
        family,
        table,
        is_touched: false,
    };
    let notices = stream::unfold((socket, heard), move |(socket, mut heard)| async move {
        loop {
            match receive(&socket).await {
                Ok(events) if heard.is_news(&events) => {
                    return Some(((family, Notice::Ruleset), (socket, heard)));
                }
                Ok(_) => {}
                Err(error) => {
                    warn!(%family, %error, "the kernel no longer reports foreign changes of table {table}: restart kube-proxy");
                    return None;
                }
            }
        }
    });
    Ok(notices.boxed())
}

/// Subscribes to all nftables tables of `mode` in each IP family, with one subscription for each
/// table.
pub(super) fn follow_all(
    mode: &'static Footprint,
    families: impl Iterator<Item = IpFamily>,
    own: &OwnSockets,
) -> io::Result<Vec<Notices>> {
    let mut all = Vec::new();
    for family in families {
        for table in mode.nft_tables {
            let subscription = subscribe()?;
            leave_out(own, &subscription);
            all.push(follow(family, table, subscription)?);
        }
    }
    Ok(all)
}

async fn receive(socket: &AsyncFd<Arc<Subscription>>) -> io::Result<Vec<Event>> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(events) = ready.try_io(|socket| socket.get_ref().receive()) {
            return events;
        }
    }
}

/// State of the nf_tables events that a subscription has received about one table.
#[derive(Debug)]
struct TableEvents {
    family: IpFamily,
    table: &'static str,
    /// True if an event of the current, unfinished transaction reports a change of the table.
    is_touched: bool,
}

impl TableEvents {
    /// Returns true if `events` end a transaction in which another program may have changed the
    /// table. The events of one transaction may arrive in several calls.
    fn is_news(&mut self, events: &[Event]) -> bool {
        let family = Family::from(self.family);
        let mut is_news = false;
        for event in events {
            match event {
                Event::Touched { family: of, table } => {
                    self.is_touched |= *of == family && **table == *self.table;
                }
                Event::Committed { .. } => is_news |= std::mem::take(&mut self.is_touched),
                Event::Lost => {
                    debug!("messages about nftables were lost, or cannot be read");
                    is_news = true;
                }
            }
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use nftables_netlink::Generation;

    use super::*;

    fn touched(family: Family, table: &str) -> Event {
        Event::Touched {
            family,
            table: table.into(),
        }
    }

    fn by(name: &str) -> Event {
        Event::Committed {
            generation: Generation(1),
            process: None,
            process_name: Some(name.into()),
        }
    }

    fn heard() -> TableEvents {
        TableEvents {
            family: IpFamily::V4,
            table: "kube-proxy",
            is_touched: false,
        }
    }

    #[test]
    fn only_changes_of_the_modes_own_table_are_reported() {
        let tells = |event| heard().is_news(&[event, by("nft")]);
        assert!(tells(touched(Family::Ip, "kube-proxy")));
        assert!(!tells(touched(Family::Ip6, "kube-proxy")));
        assert!(!tells(touched(Family::Ip, "filter")));
        assert!(tells(Event::Lost));
        // The events of one transaction may arrive in two calls. The call with the transaction's
        // end returns true and resets the state.
        let mut heard = heard();
        assert!(!heard.is_news(&[touched(Family::Ip, "kube-proxy")]));
        assert!(heard.is_news(&[by("nft")]));
        assert!(!heard.is_news(&[by("nft")]));
    }
}
