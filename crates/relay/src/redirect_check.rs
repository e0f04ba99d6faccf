//! The check by connection tracking that a flow's first datagram was redirected to this port.

use std::net::SocketAddr;

use conntrack_netlink::{Conntrack, Error, Protocol};
use tracing::warn;

/// The conntrack connection for the check, in the network namespace of the thread that opened it.
pub(crate) struct RedirectCheck(Option<Conntrack>);

impl RedirectCheck {
    /// Opens a check that queries connection tracking.
    pub(crate) fn open() -> Self {
        Self(Conntrack::open().inspect_err(tell).ok())
    }

    /// Creates a check that accepts every datagram as redirected.
    pub(crate) const fn never_asked() -> Self {
        Self(None)
    }

    /// Reports whether `client` sent to an address or port other than `own`, where the datagram
    /// arrived. Returns true if the query fails.
    pub(crate) fn is(&mut self, client: SocketAddr, own: SocketAddr) -> bool {
        let Some(conntrack) = &mut self.0 else {
            return true;
        };
        match conntrack.find_by_reply(Protocol::Udp, own, client) {
            Ok(flow) => flow.is_some_and(|flow| flow.original.destination != own),
            Err(error) => {
                if is_for_good(&error) {
                    tell(&error);
                    self.0 = None;
                }
                true
            }
        }
    }
}

/// Reports whether the next query would fail as well.
fn is_for_good(error: &Error) -> bool {
    matches!(
        error,
        Error::NoConntrack | Error::Netlink(netlink_batch::Error::Permission { .. })
    )
}

fn tell(error: &Error) {
    warn!(
        %error,
        "connection tracking cannot be asked: whoever finds a UDP port of this process reaches its Service"
    );
}
