//! Counts the bytes that the server sends for each request, including headers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::request::Entry;

/// A connection that counts the bytes written to it.
#[derive(Debug)]
pub(crate) struct MeteredStream<S> {
    stream: S,
    meter: Meter,
}

/// Log entry of the request that a connection is serving, to which the connection adds each byte it
/// sends. Clones share this entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Option<Arc<Entry>>>>);

impl Meter {
    /// Adds the bytes that the connection sends from now on to the request `entry`. `None` stops
    /// counting.
    pub(crate) fn turn_to(&self, entry: Option<Arc<Entry>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = entry;
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written
            && let Some(entry) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
        {
            entry.sent(*count);
        }
    }
}

impl<S> MeteredStream<S> {
    pub(crate) fn new(stream: S, meter: Meter) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.meter.count(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.meter.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
