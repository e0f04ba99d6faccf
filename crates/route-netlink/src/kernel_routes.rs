//! Waits for the routes that the kernel creates for IPv6 addresses.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libc::{RTM_NEWROUTE, RTNLGRP_IPV6_ROUTE};
use netlink_batch::{Error, Malformed, Message, Protocol};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use socket2::SockRef;

use crate::{Family, LocalRoute, Rtnetlink};

/// Size in bytes of the receive buffer to reserve for each expected route.
const ROUTE_BYTES: usize = 1_024;
/// Size in bytes of the receive buffer to reserve for the routes of other programs.
const SPARE_BYTES: usize = 256 << 10;

/// Maximum wait for the next notification after the socket has lost notifications. After this time,
/// a dump of the routes replaces them.
const PAUSE: Duration = Duration::from_millis(10);

/// A subscription to new IPv6 routes.
///
/// The kernel acknowledges a new IPv6 address before the address has its route of type local. A
/// kernel worker adds the route later: usually within a millisecond, but only after seconds if the
/// worker gets no CPU. Until then, the host forwards packets to the address instead of receiving
/// them.
#[derive(Debug)]
pub struct KernelRoutes(Socket);

/// Result of one read from the notification socket.
enum Received {
    Addresses(Vec<IpAddr>),
    /// Some notifications were lost or malformed.
    Lost,
    Timeout,
}

impl KernelRoutes {
    /// Subscribes in the calling thread's network namespace. A caller must subscribe before it adds
    /// its `count` addresses.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Open`] if the socket cannot be opened.
    pub fn subscribe(count: usize) -> Result<Self, Error> {
        let room = count.saturating_mul(ROUTE_BYTES) + SPARE_BYTES;
        let open = || {
            let socket = netlink_batch::subscribe(NETLINK_ROUTE, &[RTNLGRP_IPV6_ROUTE], room)?;
            SockRef::from(&socket).set_nonblocking(false)?;
            Ok(Self(socket))
        };
        open().map_err(|source| Error::Open {
            protocol: Protocol::Route,
            source,
        })
    }

    /// Waits until the kernel has created the routes of the IPv6 addresses in `missing`. Removes an
    /// address from `missing` once this address has its route. Ends early if `patience` passes
    /// without a route to a missing address.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot receive notifications, or if notifications were lost and the
    /// routes cannot be dumped.
    pub fn wait(
        &self,
        rtnetlink: &mut Rtnetlink,
        missing: &mut BTreeSet<IpAddr>,
        patience: Duration,
    ) -> Result<(), Error> {
        let mut is_any_lost = false;
        let mut deadline = Instant::now() + patience;
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let within = if is_any_lost { left.min(PAUSE) } else { left };
            let before = missing.len();
            match self.receive(within)? {
                Received::Addresses(added) => {
                    for address in added {
                        missing.remove(&address);
                    }
                }
                Received::Lost => is_any_lost = true,
                Received::Timeout if is_any_lost => {
                    match rtnetlink.local_routes(Family::Inet6, LocalRoute::KERNEL) {
                        Ok(routes) => {
                            for route in routes.iter().filter(|route| route.is_host()) {
                                missing.remove(&route.address);
                            }
                            is_any_lost = false;
                        }
                        // The kernel is still adding routes, so the dump was interrupted.
                        Err(Error::Interrupted { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Received::Timeout => return Ok(()),
            }
            let now = Instant::now();
            if missing.len() < before {
                deadline = now + patience;
            } else if now >= deadline {
                return Ok(());
            }
        }
        Ok(())
    }

    fn receive(&self, within: Duration) -> Result<Received, Error> {
        let end = Instant::now() + within;
        loop {
            // The kernel reads a timeout of 0 as no limit.
            let left = end.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            let received = SockRef::from(&self.0)
                .set_read_timeout(Some(left))
                .and_then(|()| self.0.recv_from_full());
            return match received {
                Ok((datagram, _)) => Ok(added(&datagram)),
                // A signal, or a stop of the process, interrupts a read that has a timeout
                // (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Received::Lost),
                Err(error) if is_timeout(&error) => Ok(Received::Timeout),
                Err(source) => Err(Error::Io {
                    doing: "receive",
                    source,
                }),
            };
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the IPv6 addresses for which a datagram reports new local routes.
fn added(datagram: &[u8]) -> Received {
    let mut addresses = Vec::new();
    for message in netlink_batch::messages(datagram) {
        match message.and_then(address) {
            Ok(address) => addresses.extend(address),
            Err(_) => return Received::Lost,
        }
    }
    Received::Addresses(addresses)
}

/// Returns the destination of a new route, if the kernel created the route for a single address.
/// Returns `None` for any other message.
fn address(message: Message<'_>) -> Result<Option<IpAddr>, Malformed> {
    if message.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let route = LocalRoute::parse(message.payload, Family::Inet6, LocalRoute::KERNEL)?;
    let host = route.filter(LocalRoute::is_host);
    Ok(host.map(|route| route.address))
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};

    use netlink_batch::Batch;

    use super::*;

    /// Checks that a wait continues after a stop of the process. The stop interrupts a read that
    /// has a timeout (signal(7)).
    #[test]
    fn a_wait_continues_after_sigstop_and_sigcont() {
        let routes = KernelRoutes::subscribe(0).unwrap();
        let within = Duration::from_secs(2);
        let begin = Instant::now();
        let script = format!(
            "sleep 0.3; kill -STOP {0}; sleep 0.1; kill -CONT {0}",
            process::id()
        );
        let mut stop = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        // Receives repeatedly, because another program may add a route meanwhile.
        while begin.elapsed() < within {
            let left = within.saturating_sub(begin.elapsed());
            if let Received::Timeout = routes.receive(left).unwrap() {
                break;
            }
        }
        assert!(begin.elapsed() >= within, "{:?}", begin.elapsed());
        assert!(stop.wait().unwrap().success());
    }

    #[test]
    fn only_new_host_routes_created_by_the_kernel_are_returned() {
        let to = |text: &str, prefix, protocol| LocalRoute {
            prefix,
            ..LocalRoute::host(7, text.parse().unwrap(), protocol)
        };
        let mut batch = Batch::new();
        to("fd96::1", 128, LocalRoute::KERNEL).push_new(&mut batch);
        to("fd96::2", 128, 107).push_new(&mut batch);
        to("fd96::", 64, LocalRoute::KERNEL).push_new(&mut batch);
        to("fd96::3", 128, LocalRoute::KERNEL).push_del(&mut batch);
        let all = (0..batch.len()).filter_map(|index| address(batch.get(index)?).unwrap());
        let expected: IpAddr = "fd96::1".parse().unwrap();
        assert_eq!(all.collect::<Vec<_>>(), [expected]);
        assert!(matches!(added(b"nonsense"), Received::Lost));
    }
}
