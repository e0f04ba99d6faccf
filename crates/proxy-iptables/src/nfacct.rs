//! Named packet counters in the kernel (nfnetlink_acct), which rules with `-m nfacct` increment.
//!
//! A counter belongs to a network namespace, and exists independently of rules. So programs can
//! read a counter without reading rules, and the counter stays when rules are removed.
//!
//! Source: `include/uapi/linux/netfilter/nfnetlink_acct.h`.

use netlink_batch::{
    Attributes, Batch, Connection, Error, Malformed, NLM_F_CREATE, Protocol, Refusal, Reply, Writer,
};

/// Body of `struct nfgenmsg`: family, version, resource id.
const HEADER: [u8; 4] = [0; 4];
const NEW: u16 = message(0);
const GET: u16 = message(1);
const NAME: u16 = 1;
const PACKETS: u16 = 2;

const fn message(command: u16) -> u16 {
    const NFNL_SUBSYS_ACCT: u16 = 7;
    NFNL_SUBSYS_ACCT << 8 | command
}

/// A named packet counter that this mode's rules increment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Number of forwarded packets that a rule dropped, because connection tracking marked them
    /// INVALID.
    InvalidDropped,
    /// Number of first packets of connections to NodePorts on 127.0.0.0/8.
    LocalhostNodePorts,
}

impl Counter {
    /// All counters that this mode uses.
    pub const ALL: [Self; 2] = [Self::InvalidDropped, Self::LocalhostNodePorts];

    /// Returns upstream's name of the counter.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidDropped => "ct_state_invalid_dropped_pkts",
            Self::LocalhostNodePorts => "localhost_nps_accepted_pkts",
        }
    }
}

/// A netlink socket for requests about counters, in the network namespace of the thread that opened
/// it.
#[derive(Debug)]
pub struct NfacctSocket {
    connection: Connection,
}

impl NfacctSocket {
    /// Opens a netlink socket. The first request shows whether the kernel supports nfacct counters.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Netfilter).map(|connection| Self { connection })
    }

    /// Creates the missing counters of [`Counter::ALL`].
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the kernel has no nfacct and could not load its module, and `EPERM`
    /// without CAP_NET_ADMIN. Otherwise, returns the error of the socket.
    pub fn ensure(&mut self) -> Result<(), Error> {
        let mut batch = Batch::new();
        for counter in Counter::ALL {
            // Queries each counter first, because an existing counter needs no write.
            if !matches!(self.packets(counter), Ok(Some(_))) {
                batch.push(NEW, NLM_F_CREATE, |w| named(w, counter));
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        for reply in self.connection.execute(&batch)? {
            match reply {
                // Without NLM_F_REPLACE, an existing counter stays unchanged.
                Reply::Refused(Refusal { errno, .. })
                    if errno == libc::EBUSY || errno == libc::EEXIST => {}
                Reply::Refused(refusal) => return Err(Error::Refused(refusal)),
                Reply::Unknown => return Err(Error::LostReply),
                Reply::Done => {}
            }
        }
        Ok(())
    }

    /// Returns the number of packets that a counter has counted, or `None` if the counter is
    /// missing.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, the kernel refuses the request, or its reply is malformed.
    pub fn packets(&mut self, counter: Counter) -> Result<Option<u64>, Error> {
        let answer = self.connection.request(GET, 0, |w| named(w, counter));
        match answer {
            Ok(answer) => {
                let (_, payload) = answer.iter().next().ok_or(Error::LostReply)?;
                Ok(packets(payload)?)
            }
            Err(Error::Refused(refusal)) if refusal.errno == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn named(w: &mut Writer<'_>, counter: Counter) {
    w.bytes(&HEADER);
    w.attr_str(NAME, counter.name());
}

fn packets(payload: &[u8]) -> Result<Option<u64>, Malformed> {
    for attribute in Attributes::after(HEADER.len(), payload)? {
        let attribute = attribute?;
        if attribute.kind == PACKETS {
            return attribute
                .array()
                .map(|bytes| Some(u64::from_be_bytes(bytes)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_names_fit_the_kernels_limit() {
        for counter in Counter::ALL {
            // NFACCT_NAME_MAX includes the final NUL byte.
            assert!(counter.name().len() < 32, "{counter:?}");
        }
    }

    #[test]
    fn packet_counters_are_decoded_as_big_endian() {
        let answer = [
            &HEADER[..],
            &[6, 0, 1, 0, b'x', 0, 0, 0],
            &[12, 0, 2, 0],
            &7_u64.to_be_bytes(),
        ]
        .concat();
        assert_eq!(packets(&answer).unwrap(), Some(7));
        assert_eq!(packets(&HEADER).unwrap(), None);
        for length in 0..answer.len() {
            let _ = packets(&answer[..length]);
        }
    }
}
