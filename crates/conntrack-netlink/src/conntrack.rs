//! Finds and deletes tracked flows in the kernel.

use std::net::SocketAddr;

use inet::{IpFamily, Protocol};
use netlink_batch::{Batch, Connection, Refusal, Reply, Writer};

use crate::Error;
use crate::flow::{Flow, header, write_reply};
use crate::wire::{attr, command, errno, filter, message, proto, tuple};

/// A connection to the kernel's table of tracked flows (conntrack), for the network namespace of
/// the thread that called [`open`](Self::open).
///
/// Every call blocks while the kernel works.
#[derive(Debug)]
pub struct Conntrack {
    connection: Connection,
}

/// Result of a search through the kernel's table of flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundFlows {
    /// Flows that the caller's `is_wanted` accepted, in no meaningful order.
    pub flows: Vec<Flow>,
    /// Number of flows that the search examined: all flows of the requested family and protocol.
    pub seen: usize,
}

/// Outcome of a request to delete one flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel has deleted the flow.
    Deleted,
    /// The flow had already ended. If a newer flow has the same addresses, it is not deleted.
    Absent,
    /// The kernel refused to delete the flow. `EBUSY` means that the flow is offloaded, so its
    /// packets bypass the kernel's network stack.
    Refused(Refusal),
    /// The kernel's reply was lost, so the flow may still exist. A new search shows whether the
    /// flow exists.
    Unknown,
}

impl Conntrack {
    /// Opens a connection to the kernel. If the kernel lacks connection tracking, the first search
    /// fails.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let connection = Connection::open(netlink_batch::Protocol::Netfilter);
        let connection = connection.map_err(|error| match error {
            // The kernel has not loaded nfnetlink, so it has no ctnetlink either.
            netlink_batch::Error::Open { source, .. }
                if source.raw_os_error() == Some(errno::EPROTONOSUPPORT) =>
            {
                Error::NoConntrack
            }
            error => Error::Netlink(error),
        })?;
        Ok(Self { connection })
    }

    /// Returns the flows of one family and protocol, in every zone, that `is_wanted` accepts. If
    /// `protocol` is `None`, examines the flows of all protocols.
    ///
    /// The table may have millions of flows, so the search reads it piece by piece. Kernels since
    /// 5.8 filter by family and protocol. Older kernels send all flows, and this function filters
    /// them.
    ///
    /// The search may miss flows that begin or end during the search. If the kernel reports that
    /// the table has changed, the search restarts. So this function may call `is_wanted` more than
    /// once for a flow.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoConntrack`] if the kernel lacks ctnetlink. Also fails if the socket
    /// fails, the kernel refuses (`EPERM` without `CAP_NET_ADMIN`), or a reply is malformed.
    pub fn find(
        &mut self,
        family: IpFamily,
        protocol: impl Into<Option<Protocol>>,
        mut is_wanted: impl FnMut(&Flow) -> bool,
    ) -> Result<FoundFlows, Error> {
        let protocol = protocol.into();
        let is_meant = |flow: &Flow| {
            flow.family() == family && protocol.is_none_or(|protocol| flow.protocol == protocol)
        };
        let ask = |w: &mut Writer<'_>| write_filter(w, family, protocol);
        let found = self.connection.dump_into(
            message(command::GET),
            0,
            ask,
            |found: &mut FoundFlows, kind, payload| {
                if kind != message(command::NEW) {
                    return Ok(());
                }
                let flow = Flow::decode(payload)?.filter(is_meant);
                found.seen += usize::from(flow.is_some());
                found.flows.extend(flow.filter(&mut is_wanted));
                Ok(())
            },
        );
        found.map_err(refused)
    }

    /// Returns the flow whose replies have this source and destination, or `None` if the default
    /// zone has no such flow. The kernel looks the flow up in its hash table, without a search.
    ///
    /// # Errors
    ///
    /// Fails like [`find`](Self::find).
    pub fn find_by_reply(
        &mut self,
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Result<Option<Flow>, Error> {
        let ask = |w: &mut Writer<'_>| write_reply(w, protocol, source, destination);
        let answers = match self.connection.request(message(command::GET), 0, ask) {
            Ok(answers) => answers,
            Err(netlink_batch::Error::Refused(Refusal {
                errno: errno::ENOENT,
                ..
            })) => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        let mut told = answers
            .iter()
            .filter(|(kind, _)| *kind == message(command::NEW));
        let flow = told.next().map(|(_, payload)| Flow::decode(payload));
        Ok(flow.transpose()?.flatten())
    }

    /// Deletes these flows with as few sends as possible. Returns one [`Outcome`] per flow, in the
    /// order of `flows`. Newer flows with the same addresses stay.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails or `CAP_NET_ADMIN` is missing. After a failure of the socket, any
    /// of the flows may have been deleted.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<Vec<Outcome>, Error> {
        let mut batch = Batch::new();
        for flow in flows {
            batch.push(message(command::DELETE), 0, |w| flow.write_key(w));
        }
        let replies = self.connection.execute(&batch)?;
        if replies
            .iter()
            .any(|reply| reply.errno() == Some(errno::EPERM))
        {
            let protocol = netlink_batch::Protocol::Netfilter;
            return Err(netlink_batch::Error::Permission { protocol }.into());
        }
        Ok(replies.into_iter().map(Outcome::from).collect())
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Done => Self::Deleted,
            Reply::Refused(refusal) if refusal.errno == errno::ENOENT => Self::Absent,
            Reply::Refused(refusal) => Self::Refused(refusal),
            Reply::Unknown => Self::Unknown,
        }
    }
}

fn write_filter(w: &mut Writer<'_>, family: IpFamily, protocol: Option<Protocol>) {
    w.bytes(&header(family));
    let Some(protocol) = protocol else {
        return;
    };
    w.nest(attr::TUPLE_ORIG, |w| {
        w.nest(tuple::PROTO, |w| w.attr_u8(proto::NUM, protocol.number()));
    });
    w.nest(attr::FILTER, |w| {
        w.attr_u32(filter::ORIG_FLAGS, filter::PROTO_NUM);
    });
}

fn refused(error: netlink_batch::Error) -> Error {
    match error {
        // nfnetlink returns EINVAL if the kernel cannot load ctnetlink.
        netlink_batch::Error::Refused(Refusal {
            errno: errno::EINVAL,
            ..
        }) => Error::NoConntrack,
        error => Error::Netlink(error),
    }
}

#[cfg(test)]
mod tests;
