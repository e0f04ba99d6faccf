//! Notifications of the kernel about this node's addresses and `kube-ipvs0` (rtnetlink multicast
//! groups of rtnetlink(7)).
//!
//! ```text
//!   kernel ─BPF─▶ Subscription ─▶ Notices ─▶ AddressChanges::next ─▶ each mode
//! ```
//!
//! - The daemon adds tens of thousands of addresses to `kube-ipvs0`. A BPF filter in the kernel
//!   drops the notifications about these addresses.
//! - This module ignores link-local addresses, because they serve no NodePort.
//! - If the receive buffer overflows, messages are lost, and any address may have changed. So the
//!   buffer is large, and a separate task reads it.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use proxy::Notice;
use route_netlink::{Event, Link, Rtnetlink};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::debug;

/// Link on which IPVS mode binds the service addresses.
const SERVICE_LINK: &str = "kube-ipvs0";

/// Size of the socket's receive buffer, in bytes. A message takes about 800 bytes.
const ROOM_BYTES: usize = 8 << 20;

/// Largest number of notices in the queue of the daemon's loop. If more arrive, a single notice
/// replaces them: "any address may have changed".
const MOST_NOTICES: usize = 10_000;

/// Subscription to the kernel's address notifications. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct AddressChanges {
    told: Arc<QueuedNotices>,
    task: JoinHandle<()>,
}

/// Notices that the daemon's loop has not received yet.
#[derive(Debug)]
struct QueuedNotices {
    notices: Mutex<io::Result<Vec<Notice>>>,
    wake: Notify,
}

impl AddressChanges {
    /// Subscribes to the kernel's address notifications. Needs a tokio runtime.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let mut subscription = Subscription::new()?;
        let told = Arc::new(QueuedNotices {
            notices: Mutex::new(Ok(Vec::new())),
            wake: Notify::new(),
        });
        let heard = Arc::clone(&told);
        let task = tokio::spawn(async move {
            loop {
                let next = subscription.next().await;
                let has_ended = next.is_err();
                heard.add(next);
                if has_ended {
                    return;
                }
            }
        });
        Ok(Self { told, task })
    }

    /// Waits until notices are queued, and returns all of them. Cancel safe.
    ///
    /// # Errors
    ///
    /// Fails if the subscription has ended.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<Notice>> {
        loop {
            let notices = self.told.take()?;
            if !notices.is_empty() {
                return Ok(notices);
            }
            self.told.wake.notified().await;
        }
    }
}

impl Drop for AddressChanges {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl QueuedNotices {
    fn add(&self, next: io::Result<Vec<Notice>>) {
        let mut told = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *told, next) {
            (Ok(told), Ok(next)) => {
                told.extend(next);
                if told.len() > MOST_NOTICES {
                    *told = vec![Notice::Anything];
                }
            }
            (told, Err(error)) => *told = Err(error),
            (Err(_), Ok(_)) => {}
        }
        drop(told);
        self.wake.notify_one();
    }

    fn take(&self) -> io::Result<Vec<Notice>> {
        let mut told = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *told, Ok(Vec::new()))
    }
}

struct Subscription {
    socket: AsyncFd<route_netlink::Subscription>,
    /// Link that has the service addresses, according to the last notification or query. `None` if
    /// the link does not exist.
    own_link: Option<Link>,
    /// Index of the link in the BPF filter, which drops notifications about new addresses of this
    /// link. `None`: the socket has no filter.
    left_out: Option<u32>,
}

impl Subscription {
    fn new() -> io::Result<Self> {
        let socket = route_netlink::Subscription::open(ROOM_BYTES)?;
        #[allow(
            unsafe_code,
            reason = "tokio leaves it to its caller to keep the descriptor open while it is registered"
        )]
        // SAFETY: a Subscription owns its descriptor and closes it only when dropped. The AsyncFd
        // owns the Subscription and lends it only by shared reference. The AsyncFd deregisters the
        // Subscription before it drops the Subscription.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        let mut subscription = Self {
            socket: socket.map_err(io::Error::from)?,
            own_link: None,
            left_out: None,
        };
        subscription.look_up_own_link();
        Ok(subscription)
    }

    /// Makes the kernel drop notifications about new addresses of the link `kube-ipvs0`. The daemon
    /// itself adds these addresses: tens of thousands in a first sync.
    fn look_up_own_link(&mut self) {
        self.own_link = link_named(SERVICE_LINK);
        let index = self.own_link.as_ref().map(|link| link.index);
        if let Some(index) = index.filter(|_| index != self.left_out) {
            match self.socket.get_ref().leave_out_added_to(index) {
                Ok(()) => self.left_out = Some(index),
                Err(error) => {
                    debug!(%error, "messages about service addresses are left out one by one");
                }
            }
        }
    }

    /// Waits for address notifications that matter to a mode. Never returns an empty list.
    async fn next(&mut self) -> io::Result<Vec<Notice>> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(events) = ready.try_io(|socket| socket.get_ref().receive()) {
                let notices = self.take(events?);
                if !notices.is_empty() {
                    return Ok(notices);
                }
            }
        }
    }

    fn take(&mut self, events: Vec<Event>) -> Vec<Notice> {
        if self.own_link.is_none() {
            self.look_up_own_link();
        }
        let had_own_link = self.own_link.is_some();
        let notices = notices(events, &mut self.own_link);
        let is_unsure = notices.contains(&Notice::Anything);
        if is_unsure {
            debug!("messages about addresses were lost, or cannot be read");
        }
        if is_unsure || (had_own_link && self.own_link.is_none()) {
            // Looks up `kube-ipvs0` again, because a new link may have replaced the known one.
            self.look_up_own_link();
        }
        notices
    }
}

fn link_named(name: &str) -> Option<Link> {
    Rtnetlink::open().ok()?.link(name).ok()?
}

/// Converts rtnetlink events to notices for the modes, and updates `own_link`.
fn notices(events: Vec<Event>, own_link: &mut Option<Link>) -> Vec<Notice> {
    let notices = events.into_iter().filter_map(|event| {
        let own_index = own_link.as_ref().map(|link| link.index);
        match event {
            Event::AddressAdded(added) if Some(added.link) != own_index => {
                counted(added.address).map(Notice::AddressAdded)
            }
            Event::AddressRemoved(removed) if Some(removed.link) == own_index => {
                counted(removed.address).map(Notice::ServiceAddressRemoved)
            }
            Event::AddressRemoved(removed) => counted(removed.address).map(Notice::AddressRemoved),
            Event::LinkRemoved(link) if Some(link.index) == own_index => {
                *own_link = None;
                Some(Notice::ServiceLink)
            }
            Event::Link(link) => {
                let own = own_link.as_mut().filter(|own| own.index == link.index)?;
                let before = mem::replace(&mut own.state, link.state);
                (before != link.state).then_some(Notice::ServiceLink)
            }
            Event::AddressAdded(_) | Event::LinkRemoved(_) => None,
            Event::Lost => Some(Notice::Anything),
        }
    });
    notices.collect()
}

/// Returns `address`, or `None` if it is link-local. A link-local address serves no NodePort.
fn counted(address: IpAddr) -> Option<IpAddr> {
    let is_link_local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    (!is_link_local).then_some(address)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use route_netlink::{Address, LinkState};

    use super::*;

    fn link(index: u32, state: LinkState) -> Link {
        Link {
            index,
            state,
            resolves_neighbours: false,
            kind: "dummy".into(),
        }
    }

    fn told(events: &[Event]) -> Vec<Notice> {
        notices(events.to_vec(), &mut Some(link(7, LinkState::Down)))
    }

    fn added(link: u32, address: &str) -> Event {
        Event::AddressAdded(Address::host(link, ip(address)))
    }

    fn removed(link: u32, address: &str) -> Event {
        Event::AddressRemoved(Address::host(link, ip(address)))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_events_are_translated_to_notices() {
        let node = ip("192.168.0.1");
        let (new, gone) = (Notice::AddressAdded(node), Notice::AddressRemoved(node));
        assert_eq!(told(&[added(2, "192.168.0.1")]), [new]);
        assert_eq!(notices(vec![added(2, "192.168.0.1")], &mut None), [new]);
        assert_eq!(told(&[removed(2, "192.168.0.1")]), [gone]);
        let unbound = Notice::ServiceAddressRemoved(ip("10.96.0.1"));
        assert_eq!(told(&[removed(7, "10.96.0.1")]), [unbound]);
        assert_eq!(told(&[added(7, "10.96.0.1")]), []);
        assert_eq!(told(&[added(2, "fe80::1")]), []);
        assert_eq!(told(&[removed(7, "fe80::1")]), []);
        let all = [added(7, "10.96.0.1"), removed(2, "192.168.0.1")];
        assert_eq!(told(&all), [gone]);
        assert_eq!(told(&[Event::Lost]), [Notice::Anything]);
    }

    #[test]
    fn only_removal_and_state_changes_of_kube_ipvs0_cause_notices() {
        let (down, up) = (link(7, LinkState::Down), link(7, LinkState::Up));
        let (other, gone) = (link(8, LinkState::Up), Event::LinkRemoved(down.clone()));
        assert_eq!(told(slice::from_ref(&gone)), [Notice::ServiceLink]);
        assert_eq!(told(&[Event::LinkRemoved(other.clone())]), []);
        assert_eq!(notices(vec![gone], &mut None), []);
        // The carrier and other flags of the link change, but its addresses do not.
        assert_eq!(told(&[Event::Link(down.clone())]), []);
        assert_eq!(told(&[Event::Link(up.clone())]), [Notice::ServiceLink]);
        let twice = [up.clone(), up, down].map(Event::Link);
        assert_eq!(told(&twice), [Notice::ServiceLink; 2]);
        let then = [Event::Link(other), added(2, "192.168.0.1")];
        assert_eq!(told(&then).len(), 1);
    }

    #[test]
    fn a_network_link_is_found_by_name() {
        assert_eq!(link_named("lo").unwrap().index, 1);
        assert_eq!(link_named("no-such-link"), None);
    }

    #[test]
    fn too_many_notices_become_one_full_resync_notice() {
        let told = QueuedNotices {
            notices: Mutex::new(Ok(Vec::new())),
            wake: Notify::new(),
        };
        let notice = Notice::ServiceAddressRemoved(ip("10.96.0.1"));
        told.add(Ok(vec![notice; MOST_NOTICES]));
        assert_eq!(told.take().unwrap().len(), MOST_NOTICES);
        for _ in 0..=MOST_NOTICES {
            told.add(Ok(vec![notice]));
        }
        assert_eq!(told.take().unwrap(), [Notice::Anything]);
        assert_eq!(told.take().unwrap(), []);
        told.add(Err(io::Error::other("ended")));
        assert!(told.take().is_err());
    }
}
