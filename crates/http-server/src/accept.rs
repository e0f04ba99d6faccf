//! What a server listens on.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::places::Client;

/// What connections come from.
pub trait Listen: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    ///
    /// # Errors
    ///
    /// The peer has gone already, or there is no file descriptor for it.
    fn accept(&self) -> impl Future<Output = io::Result<Accepted<Self::Stream>>> + Send;
}

/// A connection.
pub struct Accepted<S> {
    /// The bytes of it.
    pub stream: S,
    /// Whose it is.
    pub client: Client,
    /// Why nothing is answered but this, if so.
    pub refusal: Option<String>,
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Accepted<TcpStream>> {
        let (stream, peer) = Self::accept(self).await?;
        Ok(Accepted {
            stream,
            client: Client::of(peer.ip()),
            refusal: None,
        })
    }
}
