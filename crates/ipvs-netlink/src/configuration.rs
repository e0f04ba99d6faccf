//! Version, connection table size and timeouts of IPVS in a network namespace.

use netlink_batch::{Attributes, Malformed};

use crate::uapi::{self, info, top};

/// Version of IPVS, and size of its connection table, as `IPVS_CMD_GET_INFO` returns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// Version of IPVS, with one byte each for major, minor and patch (0x010201 is 1.2.1).
    pub version: u32,
    /// Number of slots in the connection table. Since Linux 7.1, this number is 0 until the network
    /// namespace has its first virtual server. The kernel then creates the table, which grows as
    /// needed.
    pub table_size: u32,
}

/// Timeouts of idle connections, in seconds, for the whole network namespace. In a request, a
/// timeout of 0 keeps the present timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of established TCP connections, in seconds.
    pub tcp: u32,
    /// Timeout of TCP connections after a FIN, in seconds.
    pub tcp_fin: u32,
    /// Timeout of UDP flows, in seconds.
    pub udp: u32,
}

impl Info {
    /// Parses the response to `IPVS_CMD_GET_INFO`, `genlmsghdr` included. Missing values are 0.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        for attribute in Attributes::after(uapi::HEADER, payload)? {
            let attribute = attribute?;
            match attribute.kind {
                info::VERSION => read.version = attribute.u32()?,
                info::CONN_TAB_SIZE => read.table_size = attribute.u32()?,
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Timeouts {
    /// Parses the response to `IPVS_CMD_GET_CONFIG`, `genlmsghdr` included. Missing values are 0.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        for attribute in Attributes::after(uapi::HEADER, payload)? {
            let attribute = attribute?;
            match attribute.kind {
                top::TIMEOUT_TCP => read.tcp = attribute.u32()?,
                top::TIMEOUT_TCP_FIN => read.tcp_fin = attribute.u32()?,
                top::TIMEOUT_UDP => read.udp = attribute.u32()?,
                _ => {}
            }
        }
        Ok(read)
    }
}
