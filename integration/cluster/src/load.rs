//! Clients of the Service `web`. One client opens new connections, the other client keeps one
//! connection.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lab::traffic::{Client, Traffic};
use lab::{Failure, Place, http};

/// Pause of a client between a response and its next request.
const REST: Duration = Duration::from_millis(50);

/// Starts two clients. One client opens a connection for each request. The other client keeps its
/// connection open.
pub(crate) fn start(traffic: &mut Traffic, from: &Place, to: SocketAddr) {
    for (is_kept, kind) in [(false, "new connections"), (true, "one connection")] {
        let account = format!("{} to {to}, {kind}", from.name());
        let mut open = None;
        traffic.start(from, Client::new(account, REST), move || {
            let (who, socket) = ask(open.take(), to).map_err(Failure::from)?;
            open = is_kept.then_some(socket);
            Ok(who)
        });
    }
}

/// Sends one request on the connection `open`, or on a new connection if `open` is `None`. Returns
/// the response's body and the connection, which the caller may reuse.
fn ask(open: Option<TcpStream>, to: SocketAddr) -> io::Result<(String, TcpStream)> {
    let mut socket = open.map_or_else(|| http::connect(to, 0, false), Ok)?;
    let (who, _) = http::get(&mut socket, "/", false)?;
    Ok((who, socket))
}

/// Sends one request from a node or host on a new connection. Fails without a reply.
pub(crate) fn ask_once(from: &Place, to: SocketAddr) -> io::Result<()> {
    from.enter(|| ask(None, to).map(drop))
}
