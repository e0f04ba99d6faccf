//! A connection that limits the time of each step that the client must make.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::connection_slots::Activity;

/// Time limit for sending the head of a request. It starts with the connection for the first
/// request, and with the first byte for later requests.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed. Scrapers and load balancers send requests more
/// often.
const IDLE_PATIENCE: Duration = Duration::from_mins(3);
/// Time limit for the client to receive the rest of a response. It starts when the socket's send
/// buffer is full.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// A connection whose reads and writes fail once the client has exceeded a time limit.
pub(super) struct TimedStream<S> {
    stream: S,
    activity: Arc<Activity>,
    awaits: PeerStep,
    /// Time at which the client must have completed its current step.
    limit: Pin<Box<Sleep>>,
}

/// Step that the client must make next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerStep {
    /// Send the rest of a request's head, or the first request's whole head.
    Head,
    /// Send another request. Until then, the connection is idle.
    Request,
    /// Receive the response to a request.
    Taking,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            activity,
            awaits: PeerStep::Head,
            limit: Box::pin(sleep(HEAD_PATIENCE)),
        }
    }

    fn await_for(&mut self, awaits: PeerStep, time: Duration) {
        self.awaits = awaits;
        self.limit.as_mut().reset(Instant::now() + time);
    }

    /// Returns an error once the time limit has passed. Stays pending until then.
    fn patience<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        ready!(self.limit.as_mut().poll(context));
        let late = format!("the peer took too long (awaited: {:?})", self.awaits);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)))
    }

    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            return result;
        }
        // Starts the time limit only once for each response. So a client that reads the response
        // byte by byte gets no additional time.
        if self.awaits != PeerStep::Taking {
            self.await_for(PeerStep::Taking, ANSWER_PATIENCE);
        }
        self.patience(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if result.is_pending() {
            if self.activity.is_busy() {
                return Poll::Pending;
            }
            return self.patience(context);
        }
        if buffer.filled().len() > before && self.awaits == PeerStep::Request {
            self.await_for(PeerStep::Head, HEAD_PATIENCE);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the connection, and marks it as idle. hyper flushes only after it has written the
    /// whole response.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if self.activity.is_busy() {
            self.activity.idle();
            self.await_for(PeerStep::Request, IDLE_PATIENCE);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
