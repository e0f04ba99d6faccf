//! Limits the number of ephemeral ports that the relay uses.
//!
//! The kernel chooses the relay's listening ports from the same range as the ports of the node's
//! outgoing connections (`net.ipv4.ip_local_port_range`). If the relay used the whole range, no
//! program of the node could open a connection, not even the kubelet.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

use super::Transport;

/// The kernel's default range of ephemeral ports. The relay uses this range if it cannot read the
/// actual range.
const DEFAULT: Range = Range {
    ports: 32_768..=60_999,
    count: 28_232,
};

/// Range of ephemeral ports in this network namespace, with the number of usable ports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    ports: RangeInclusive<u16>,
    /// Number of ports in the range, without reserved ports (`ip_local_reserved_ports`).
    count: usize,
}

/// Returns the number of ephemeral ports in this network namespace, without reserved ports.
pub(crate) fn ephemeral() -> usize {
    Range::read().count
}

impl Range {
    fn read() -> Self {
        let read = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        let range = read("ip_local_port_range").unwrap_or_default();
        let reserved = read("ip_local_reserved_ports").unwrap_or_default();
        Self::parse(&range, &reserved).unwrap_or(DEFAULT)
    }

    fn parse(range: &str, reserved: &str) -> Option<Self> {
        let mut ends = range.split_ascii_whitespace();
        let [first, last] = [ends.next()?, ends.next()?].map(str::parse::<u16>);
        let (first, last) = (first.ok()?, last.ok()?);
        let of = |part: &str| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.parse::<u16>().ok()?, high.parse::<u16>().ok()?);
            Some((low.max(first)..=high.min(last)).len())
        };
        let reserved = reserved.trim().split(',').filter_map(of).sum::<usize>();
        let ports = first..=last;
        let count = ports.len().saturating_sub(reserved);
        (first <= last).then_some(Self { ports, count })
    }
}

/// Counts of the relay's listening ports in the ephemeral range, for each transport and IP family.
/// Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ephemeral(Arc<Mutex<HashMap<Kind, usize>>>);

/// Kind of a port: its transport, and true for IPv6. Ports of different kinds may have the same
/// number, so each kind is counted separately. The kernel prefers odd numbers for listeners, and
/// even numbers for outgoing connections. So the listeners of both IP families share the odd
/// numbers.
type Kind = (Transport, bool);

/// Guard that counts one ephemeral port as in use until it is dropped.
#[derive(Debug)]
pub(crate) struct EphemeralPort(Ephemeral, Kind);

impl Ephemeral {
    /// Counts a port before it is opened. At least half of the ephemeral ports must stay free for
    /// the node. Returns `None` for a port number outside the ephemeral range.
    ///
    /// # Errors
    ///
    /// Fails if the relay already uses half of the ephemeral ports.
    pub(crate) fn take(
        &self,
        transport: Transport,
        at: SocketAddr,
    ) -> io::Result<Option<EphemeralPort>> {
        // Reads the range for each port, because the operator may have widened it.
        let range = Range::read();
        if at.port() != 0 && !range.ports.contains(&at.port()) {
            return Ok(None);
        }
        let kind = (transport, at.is_ipv6());
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind).or_default();
        let all = range.count;
        if *count >= all / 2 {
            return Err(io::Error::other(format!(
                "listening ports have {count} of the {all} ephemeral ports of this node, and half \
                 of those are left to the \
                 node: widen net.ipv4.ip_local_port_range, or choose another mode, which uses none"
            )));
        }
        *count += 1;
        drop(counts);
        Ok(Some(EphemeralPort(self.clone(), kind)))
    }
}

impl Drop for EphemeralPort {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_do_not_count_as_ephemeral() {
        assert_eq!(Range::parse("32768\t60999\n", "\n"), Some(DEFAULT));
        let count = |range, reserved| Range::parse(range, reserved).map(|range| range.count);
        assert_eq!(count("40000 40099", "30000,40000-40009,40099"), Some(89));
        assert_eq!(count("40000 40099", "1-65535"), Some(0));
        assert_eq!(count("40099 40000", ""), None);
        assert_eq!(count("", ""), None);
    }
}
