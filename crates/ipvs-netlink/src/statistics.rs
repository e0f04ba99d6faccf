//! Counters of a service or destination.

use netlink_batch::{Attribute, Attributes, Malformed};

use crate::uapi::stats;

/// Counters since creation or the last reset, and the kernel's rate estimates (a moving average).
/// The kernel updates both every two seconds, so they lag up to two seconds.
///
/// The counters have 64 bits since Linux 4.1. Before, the kernel's 32-bit counters (bytes: 64)
/// wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub incoming_packets: u64,
    /// Packets to clients. They are counted only if they pass through this host (masquerading).
    pub outgoing_packets: u64,
    /// Bytes from clients.
    pub incoming_bytes: u64,
    /// Bytes to clients, like `outgoing_packets`.
    pub outgoing_bytes: u64,
    /// Connections per second.
    pub connection_rate: u64,
    /// Packets per second from clients.
    pub incoming_packet_rate: u64,
    /// Packets per second to clients.
    pub outgoing_packet_rate: u64,
    /// Bytes per second from clients.
    pub incoming_byte_rate: u64,
    /// Bytes per second to clients.
    pub outgoing_byte_rate: u64,
}

impl Statistics {
    /// Parses `STATS` or `STATS64`, which have the same attributes in different widths.
    pub(crate) fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut read = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            let counter = match attribute.kind {
                stats::CONNS => &mut read.connections,
                stats::INPKTS => &mut read.incoming_packets,
                stats::OUTPKTS => &mut read.outgoing_packets,
                stats::INBYTES => &mut read.incoming_bytes,
                stats::OUTBYTES => &mut read.outgoing_bytes,
                stats::CPS => &mut read.connection_rate,
                stats::INPPS => &mut read.incoming_packet_rate,
                stats::OUTPPS => &mut read.outgoing_packet_rate,
                stats::INBPS => &mut read.incoming_byte_rate,
                stats::OUTBPS => &mut read.outgoing_byte_rate,
                _ => continue,
            };
            *counter = number(&attribute)?;
        }
        Ok(read)
    }
}

fn number(attribute: &Attribute<'_>) -> Result<u64, Malformed> {
    match attribute.payload.len() {
        4 => attribute.u32().map(u64::from),
        _ => attribute.u64(),
    }
}
