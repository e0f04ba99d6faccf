//! Reads the status of the IPVS tables of this network namespace, and the limit on the number of
//! connections, if the kernel reports them.
//!
//! | since | change |
//! |---|---|
//! | Linux 7.1 | each namespace has a growing connection table; see `/proc/net/ip_vs_status` |
//! | Linux 7.2 | the sysctl `net.ipv4.vs.conn_max` limits the connections of a namespace |
//!
//! When a namespace has reached the limit, the kernel drops the packets of further connections.
//! This module does not write the sysctl: it may be read-only in a container, and the kernel's
//! default is suitable.

use std::fs;
use std::io;
use std::path::Path;

use crate::Status;

const STATUS: &str = "proc/thread-self/net/ip_vs_status";
const CONNECTIONS_MAX: &str = "proc/sys/net/ipv4/vs/conn_max";

/// Status of the IPVS tables, and the limit on the number of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// Status of the tables, from `/proc/net/ip_vs_status`.
    pub status: Status,
    /// Maximum number of connections (sysctl `net.ipv4.vs.conn_max`), or `None` if it cannot be
    /// read.
    pub connections_max: Option<u64>,
}

impl Tables {
    /// Reads the kernel's files below the directory `root`. Returns `None` if this kernel has no
    /// file `ip_vs_status`.
    ///
    /// # Errors
    ///
    /// Fails if the file `ip_vs_status` is unreadable or malformed.
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
