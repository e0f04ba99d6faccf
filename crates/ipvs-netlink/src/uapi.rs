//! Constants of `include/uapi/linux/ip_vs.h`. Every IPVS message begins with a `genlmsghdr`
//! (command, version and padding), and continues with attributes.

use netlink_batch::{Attributes, Malformed};

/// Name and version of the generic netlink family (`IPVS_GENL_NAME`, `IPVS_GENL_VERSION`).
pub(crate) const NAME: &str = "IPVS";
const VERSION: u8 = 1;

/// IPVS commands (`IPVS_CMD_*`).
pub(crate) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
    pub(crate) const GET_INFO: u8 = 15;
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FLUSH: u8 = 17;
}

/// Top-level attributes of an IPVS message (`IPVS_CMD_ATTR_*`).
pub(crate) mod top {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DEST: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// Attributes of a virtual server (`IPVS_SVC_ATTR_*`).
pub(crate) mod service {
    pub(crate) const AF: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FWMARK: u16 = 5;
    pub(crate) const SCHED_NAME: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const PE_NAME: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
}

/// Attributes of a destination (`IPVS_DEST_ATTR_*`).
pub(crate) mod dest {
    pub(crate) const ADDR: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FWD_METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const U_THRESH: u16 = 5;
    pub(crate) const L_THRESH: u16 = 6;
    pub(crate) const ACTIVE_CONNS: u16 = 7;
    pub(crate) const INACT_CONNS: u16 = 8;
    pub(crate) const PERSIST_CONNS: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const ADDR_FAMILY: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
    pub(crate) const TUN_TYPE: u16 = 13;
    pub(crate) const TUN_PORT: u16 = 14;
    pub(crate) const TUN_FLAGS: u16 = 15;
}

/// Attributes of counters (`IPVS_STATS_ATTR_*`).
pub(crate) mod stats {
    pub(crate) const CONNS: u16 = 1;
    pub(crate) const INPKTS: u16 = 2;
    pub(crate) const OUTPKTS: u16 = 3;
    pub(crate) const INBYTES: u16 = 4;
    pub(crate) const OUTBYTES: u16 = 5;
    pub(crate) const CPS: u16 = 6;
    pub(crate) const INPPS: u16 = 7;
    pub(crate) const OUTPPS: u16 = 8;
    pub(crate) const INBPS: u16 = 9;
    pub(crate) const OUTBPS: u16 = 10;
}

/// Attributes of the response to `IPVS_CMD_GET_INFO` (`IPVS_INFO_ATTR_*`).
pub(crate) mod info {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const CONN_TAB_SIZE: u16 = 2;
}

/// Size of a `genlmsghdr`, in bytes.
pub(crate) const HEADER: usize = 4;

pub(crate) fn header(command: u8) -> [u8; HEADER] {
    [command, VERSION, 0, 0]
}

/// Returns the inner attributes of a message's attribute `kind`.
pub(crate) fn nested<'a>(
    payload: &'a [u8],
    kind: u16,
    name: &'static str,
) -> Result<Attributes<'a>, Malformed> {
    for attribute in Attributes::after(HEADER, payload)? {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(attribute.nested());
        }
    }
    Err(Malformed::Missing { kind, name })
}
