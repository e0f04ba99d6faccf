//! The tables of IPVS in this network namespace, where the kernel describes them.
//!
//! Linux 7.1 has a connection table for each namespace, which grows, and `/proc/net/ip_vs_status`.
//! Linux 7.2 has `net.ipv4.vs.conn_max` as well: at that many connections a new one gets no entry,
//! and its packets are dropped. Both are read only. Nothing is written: in a container they may
//! be read-only, and the defaults are the kernel's to choose.

use std::fs;
use std::io;
use std::path::Path;

use crate::Status;

const STATUS: &str = "proc/thread-self/net/ip_vs_status";
const CONNECTIONS_MAX: &str = "proc/sys/net/ipv4/vs/conn_max";

/// The tables, and their limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// As the kernel describes them.
    pub status: Status,
    /// The limit on connections, if this kernel has one.
    pub connections_max: Option<u64>,
}

impl Tables {
    /// Reads the files below `root`; `None` if this kernel does not have them.
    ///
    /// # Errors
    ///
    /// They are there, and cannot be read.
    pub fn read(root: &Path) -> Result<Option<Self>, String> {
        let path = root.join(STATUS);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let status = Status::parse(&text).map_err(|error| error.to_string())?;
        let most = fs::read_to_string(root.join(CONNECTIONS_MAX)).ok();
        Ok(Some(Self {
            status,
            connections_max: most.and_then(|most| most.trim().parse().ok()),
        }))
    }
}
