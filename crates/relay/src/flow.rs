//! A UDP flow: the relay's socket that connects one client to one endpoint.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::datagram::Peer;
use super::descriptors::DescriptorPermit;
use super::shares::ClientPlace;
use super::traffic::CountedConnection;

/// Key of a flow: the relay's number for the listening port, the client's address and port, and the
/// local address to which the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) port: u64,
    pub(crate) peer: Peer,
}

/// A UDP flow between a client and an endpoint. Dropping the flow ends it.
pub(crate) struct Flow {
    pub(crate) endpoint: SocketAddr,
    pub(crate) socket: Rc<UdpSocket>,
    pub(crate) carrying: Rc<CountedConnection>,
    answers: AbortHandle,
    pub(crate) place: ClientPlace<FlowKey>,
    _held: DescriptorPermit,
}

impl Flow {
    /// Creates a flow. Dropping the flow aborts the task `answers`, which forwards the endpoint's
    /// replies.
    pub(crate) fn new(
        endpoint: SocketAddr,
        socket: Rc<UdpSocket>,
        carrying: Rc<CountedConnection>,
        answers: AbortHandle,
        place: ClientPlace<FlowKey>,
        held: DescriptorPermit,
    ) -> Self {
        Self {
            endpoint,
            socket,
            carrying,
            answers,
            place,
            _held: held,
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.answers.abort();
    }
}
