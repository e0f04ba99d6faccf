//! The share of the node's ephemeral ports that the relay may take.
//!
//! A port that the system chooses is one of those by which the node connects to others
//! (`net.ipv4.ip_local_port_range`): where the relay had all of them, not even the kubelet could
//! connect to anything.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

use super::Transport;

/// The kernel's default, where the range cannot be read.
const DEFAULT: Range = Range {
    ports: 32_768..=60_999,
    count: 28_232,
};

/// The ports by which this network namespace connects to others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    ports: RangeInclusive<u16>,
    /// How many of them the system chooses from: reserved ones are left out.
    count: usize,
}

/// How many ephemeral ports this network namespace has, without reserved ones.
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

/// Listening ports among the ephemeral ones, by transport and family. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ephemeral(Arc<Mutex<HashMap<Kind, usize>>>);

/// Ports of one kind keep only ports of the same kind from others. IPv4 and IPv6 share the numbers
/// of TCP where this node connects, and there both take the same ones first: the kernel gives odd
/// numbers to who listens, and even ones to who connects.
type Kind = (Transport, bool);

/// A port that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Ephemeral, Kind);

impl Ephemeral {
    /// Counts one more that is to be opened, if that leaves half of them to the node. Other numbers do
    /// not count.
    ///
    /// # Errors
    ///
    /// It would not; says so.
    pub(crate) fn take(&self, transport: Transport, at: SocketAddr) -> io::Result<Option<Counted>> {
        // Each time: who administrates the node may have widened the range.
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
                "listening ports have {count} of the {all} ephemeral ports of this node, and half of those are left to the \
                 node: widen net.ipv4.ip_local_port_range, or choose another mode, which takes none"
            )));
        }
        *count += 1;
        drop(counts);
        Ok(Some(Counted(self.clone(), kind)))
    }
}

impl Drop for Counted {
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
    fn reserved_ports_do_not_count() {
        assert_eq!(Range::parse("32768\t60999\n", "\n"), Some(DEFAULT));
        let count = |range, reserved| Range::parse(range, reserved).map(|range| range.count);
        assert_eq!(count("40000 40099", "30000,40000-40009,40099"), Some(89));
        assert_eq!(count("40000 40099", "1-65535"), Some(0));
        assert_eq!(count("40099 40000", ""), None);
        assert_eq!(count("", ""), None);
    }
}
