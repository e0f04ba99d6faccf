//! Counters of a virtual server or destination.

use netlink_batch::{Attribute, Attributes, Malformed};

use crate::uapi::stats;

/// Counters of a virtual server or destination since its creation or last reset, and the kernel's
/// estimates of rates (moving averages). The kernel updates all values every two seconds, so a
/// value is up to two seconds old.
///
/// Since Linux 4.1, the counters have 64 bits. In earlier kernels, the counters of packets and
/// connections have 32 bits and wrap around.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of connections that IPVS has scheduled.
    pub connections: u64,
    /// Number of packets from clients.
    pub incoming_packets: u64,
    /// Number of packets to clients. IPVS counts only packets that pass through this host
    /// (masquerading).
    pub outgoing_packets: u64,
    /// Number of bytes from clients.
    pub incoming_bytes: u64,
    /// Number of bytes to clients. IPVS counts only the packets that `outgoing_packets` counts.
    pub outgoing_bytes: u64,
    /// New connections per second.
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
    /// Parses the attribute `STATS` or `STATS64`. Both have the same inner attributes, in different
    /// widths.
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
