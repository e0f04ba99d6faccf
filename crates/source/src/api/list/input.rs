//! The bytes of a list, which may be long in coming as long as some come.

use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use futures::poll;
use tokio::time::{Instant, timeout};

use super::super::end::End;

/// How long a list may stand still.
const STILL: Duration = Duration::from_mins(1);
/// How long it may take altogether: a server forgets where a list was after five minutes.
const WHOLE: Duration = Duration::from_mins(5);

/// What is read, and since when.
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

    /// What has come and is not taken yet; waits until there is some. Empty at the end.
    pub(super) async fn held(&mut self) -> Result<&[u8], End> {
        let filled = {
            let mut filling = pin!(self.body.fill_buf());
            // Of much that has come together, only the last is worth a look at the clock.
            match poll!(&mut filling) {
                Poll::Ready(filled) => filled.map(drop),
                Poll::Pending => {
                    let left = WHOLE.saturating_sub(self.began.elapsed()).min(STILL);
                    let filled = timeout(left, filling).await;
                    filled.map_err(|_| End::silent(left.max(STILL)))?.map(drop)
                }
            }
        };
        // Readers tell an error once, and then their end.
        filled.map_err(|error: io::Error| End::unreachable(&error))?;
        // There is what was waited for.
        let held = self.body.fill_buf().await;
        held.map_err(|error| End::unreachable(&error))
    }

    pub(super) fn take(&mut self, count: usize) {
        self.body.consume_unpin(count);
    }
}
