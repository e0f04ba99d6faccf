//! The tables of IPVS in this network namespace, if the kernel describes them.
//!
//! Linux 7.1 has a growing connection table for each namespace, and `/proc/net/ip_vs_status`. Linux
//! 7.2 also has the limit `net.ipv4.vs.conn_max`. Once a namespace has that number of connections,
//! the packets of further connections are dropped. This module only reads both files. They may be
//! read-only in a container, and the defaults are the kernel's choice.

use std::fs;
use std::io;
use std::path::Path;

use crate::Status;

const STATUS: &str = "proc/thread-self/net/ip_vs_status";
const CONNECTIONS_MAX: &str = "proc/sys/net/ipv4/vs/conn_max";

/// Tables of IPVS, and the limit on connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// Tables as the kernel describes them.
    pub status: Status,
    /// Limit on connections, if this kernel has one.
    pub connections_max: Option<u64>,
}

impl Tables {
    /// Reads the files below `root`. Returns `None` if this kernel does not have them.
    ///
    /// # Errors
    ///
    /// Fails if an existing file cannot be read.
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
