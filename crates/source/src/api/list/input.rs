//! Reads the body of a list response, with limits on each pause and on the total time.

use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use futures::poll;
use tokio::time::{Instant, timeout};

use super::super::end::End;

/// Time limit for the next bytes of a response.
const STILL: Duration = Duration::from_mins(1);
/// Time limit for a whole response. After five minutes, the server may no longer accept the
/// `continue` token of a list.
const WHOLE: Duration = Duration::from_mins(5);

/// Body of a response, with the time at which reading began.
pub(super) struct Input {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    began: Instant,
}

impl Input {
    pub(super) fn new(body: Pin<Box<dyn AsyncBufRead + Send>>) -> Self {
        Self {
            body,
            began: Instant::now(),
        }
    }

    /// Returns the bytes that have arrived and are not consumed yet. Waits until there is at least
    /// one byte. Returns an empty slice at the end of the body.
    pub(super) async fn held(&mut self) -> Result<&[u8], End> {
        let filled = {
            let mut filling = pin!(self.body.fill_buf());
            // Polls first: if bytes are ready, no timer is needed.
            match poll!(&mut filling) {
                Poll::Ready(filled) => filled.map(drop),
                Poll::Pending => {
                    let left = WHOLE.saturating_sub(self.began.elapsed()).min(STILL);
                    let filled = timeout(left, filling).await;
                    filled.map_err(|_| End::silent(left.max(STILL)))?.map(drop)
                }
            }
        };
        // Returns the error now, because the reader reports an error only once. The next read would
        // report the end of the body.
        filled.map_err(|error: io::Error| End::unreachable(&error))?;
        // The bytes have arrived, so this call returns immediately.
        let held = self.body.fill_buf().await;
        held.map_err(|error| End::unreachable(&error))
    }

    pub(super) fn take(&mut self, count: usize) {
        self.body.consume_unpin(count);
    }
}
