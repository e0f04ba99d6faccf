//! Whether the first datagram of a flow was redirected to where it came: connection tracking knows.

use std::net::SocketAddr;

use conntrack_netlink::{Conntrack, Error, Protocol};
use tracing::warn;

/// Asks connection tracking, in the network namespace of the thread that made it.
pub(crate) struct Redirected(Option<Conntrack>);

impl Redirected {
    /// One that asks.
    pub(crate) fn open() -> Self {
        Self(Conntrack::open().inspect_err(tell).ok())
    }

    /// One that takes everything for redirected.
    pub(crate) const fn never_asked() -> Self {
        Self(None)
    }

    /// Whether what `client` sent, and came to `own`, was sent to another address or port. Where
    /// that cannot be told, it was.
    pub(crate) fn is(&mut self, client: SocketAddr, own: SocketAddr) -> bool {
        let Some(conntrack) = &mut self.0 else {
            return true;
        };
        match conntrack.answered(Protocol::Udp, own, client) {
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

/// Whether the next question would be answered no better.
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
