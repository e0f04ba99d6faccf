//! Sources of connections for a server, such as listening sockets.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::connection_slots::Client;

/// Source of connections, such as a listening socket.
pub trait Listen: Send + 'static {
    /// Byte stream of a connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// Fails if the client has already closed the connection, or if the process has no free file
    /// descriptor.
    fn accept(&self) -> impl Future<Output = io::Result<AcceptedConnection<Self::Stream>>> + Send;
}

/// An accepted connection, with its client.
pub struct AcceptedConnection<S> {
    /// Byte stream of the connection.
    pub stream: S,
    /// Client that opened the connection.
    pub client: Client,
    /// Reason why the server rejects the client, or `None` if the client has access. A rejected
    /// client gets only this reason as its response.
    pub refusal: Option<String>,
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<AcceptedConnection<TcpStream>> {
        let (stream, peer) = Self::accept(self).await?;
        Ok(AcceptedConnection {
            stream,
            client: Client::of(peer.ip()),
            refusal: None,
        })
    }
}
