//! Clients that send requests during a rolling update.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use lab::traffic::{self, Traffic};
use lab::{Failure, Place, http};

use crate::web::SLOW_PATH;

/// Behaviour of a client: the lifetime of its connections, and the side that closes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientBehaviour {
    /// One connection per request, closed by the server. The client may reuse its port while IPVS
    /// still keeps the connection in TIME_WAIT.
    New,
    /// One connection per request, reset by the client. IPVS keeps the connection in CLOSE.
    Reset,
    /// A connection that lasts until the server closes it.
    Kept,
    /// Like `Kept`, but each response takes a second.
    Slow,
}

/// A client of the Service at `to`. It uses its source ports one after another, and pauses between
/// two requests.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) manner: ClientBehaviour,
    pub(crate) to: SocketAddr,
    pub(crate) ports: Range<u16>,
    pub(crate) rest: Duration,
}

impl Client {
    /// Starts the client in the background. The traffic report names it by its behaviour.
    pub(crate) fn start(self, traffic: &mut Traffic, place: &Place) {
        let mut ports = self.ports.clone().cycle();
        let mut kept: Option<TcpStream> = None;
        let client = traffic::Client::new(format!("{:?}", self.manner), self.rest);
        traffic.start(place, client, move || {
            let on = if kept.is_some() { "a kept" } else { "a new" };
            let answered = self.ask(kept.take(), &mut ports);
            let (answer, socket) = answered.map_err(|error| {
                Failure::Other(format!("{}, on {on} connection: {error}", self.to))
            })?;
            kept = socket;
            Ok(answer)
        });
    }

    /// Sends one request on the connection `kept`, or on a new connection if this is `None`.
    /// Returns the response, and the connection if the client can reuse it.
    fn ask(
        &self,
        kept: Option<TcpStream>,
        ports: &mut impl Iterator<Item = u16>,
    ) -> io::Result<(String, Option<TcpStream>)> {
        let mut socket = if let Some(socket) = kept {
            socket
        } else {
            let port = ports.next().unwrap_or_default();
            http::connect(self.to, port, self.manner == ClientBehaviour::Reset)?
        };
        let is_slow = self.manner == ClientBehaviour::Slow;
        let path = if is_slow { SLOW_PATH } else { "/" };
        let (answer, is_last) = http::get(&mut socket, path, self.manner == ClientBehaviour::New)?;
        let is_kept = !is_last && self.manner != ClientBehaviour::Reset;
        Ok((answer, is_kept.then_some(socket)))
    }
}
