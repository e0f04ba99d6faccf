//! Checks in connection tracking whether the first datagram of a flow was redirected to this port.

use std::net::SocketAddr;

use conntrack_netlink::{Conntrack, Error, Protocol};
use tracing::warn;

/// A connection to ctnetlink for the check, in the network namespace of the thread that opened it.
/// If `None`, every datagram passes the check.
pub(crate) struct RedirectCheck(Option<Conntrack>);

impl RedirectCheck {
    /// Opens a check that queries connection tracking. If the connection cannot be opened, every
    /// datagram passes.
    pub(crate) fn open() -> Self {
        Self(Conntrack::open().inspect_err(tell).ok())
    }

    /// Creates a check that every datagram passes, without a query.
    pub(crate) const fn never_asked() -> Self {
        Self(None)
    }

    /// Reports whether the kernel redirected the client's datagram to `own`: the client has sent
    /// the datagram to another address or port. Returns true if the query fails.
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

/// Reports whether an error is permanent, so that every later query would fail.
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
