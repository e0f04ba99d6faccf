//! A flow of datagrams.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::counted::Carrying;
use super::datagram::Peer;
use super::descriptors::Held;
use super::shares::Place;

/// Whose flow it is: the number of the port, the client, and the address that it sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) port: u64,
    pub(crate) peer: Peer,
}

/// A flow of datagrams. It ends when it is dropped.
pub(crate) struct Flow {
    pub(crate) endpoint: SocketAddr,
    pub(crate) socket: Rc<UdpSocket>,
    pub(crate) carrying: Rc<Carrying>,
    answers: AbortHandle,
    pub(crate) place: Place<FlowKey>,
    _held: Held,
}

impl Flow {
    /// A flow whose answers are sent back by a task.
    pub(crate) fn new(
        endpoint: SocketAddr,
        socket: Rc<UdpSocket>,
        carrying: Rc<Carrying>,
        answers: AbortHandle,
        place: Place<FlowKey>,
        held: Held,
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
