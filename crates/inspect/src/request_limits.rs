//! Limits the work and memory for requests. Root and other clients have separate limits, so that
//! other clients cannot block root:
//!
//! - Root uses the local socket.
//! - Any process on the node may use the metrics address, which accepts a limited number of
//!   connections.
//!
//! A status request waits only for other status requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::RequestRefusal;

/// Maximum number of requests that the server processes in parallel for one kind of client, to
/// limit their memory.
const AT_ONCE: usize = 2;
/// Maximum number of traces in parallel for one kind of client. A trace reads many rules from the
/// kernel.
const EXPLAINING: usize = 1;
/// Longest time for which a request waits until it is processed.
pub(super) const TURN_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum total size of unread responses, in KiB. Without this limit, clients that read slowly or
/// never would use up memory.
const UNTAKEN_KIB: u32 = 16 << 10;
/// Size up to which a response does not count towards [`UNTAKEN_KIB`], in bytes. The limit on
/// connections suffices for small responses.
const SMALL_BYTES: usize = 64 << 10;
/// Delay between a response and the return of its memory to the system.
const TRIM_DELAY: Duration = Duration::from_secs(1);

/// Kind of client that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A client of the local socket, which is root or the daemon's own user.
    Root,
    /// A client of the metrics address, which may be any process on the node.
    Anyone,
}

/// Limits on the requests of one kind of client.
#[derive(Debug)]
pub(super) struct RequestSlots {
    at_once: Arc<Semaphore>,
    status: Arc<Semaphore>,
    explaining: Arc<Semaphore>,
    /// Room for further unread responses, in KiB.
    untaken: Arc<Semaphore>,
    trims: Trims,
}

/// Permit to process a request. Dropping it lets the next request proceed.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl RequestSlots {
    pub(super) fn new(trims: &Trims) -> Self {
        let so_many = |count| Arc::new(Semaphore::new(count));
        Self {
            at_once: so_many(AT_ONCE),
            status: so_many(AT_ONCE),
            explaining: so_many(EXPLAINING),
            untaken: so_many(UNTAKEN_KIB as usize),
            trims: trims.clone(),
        }
    }

    /// Waits until the server may process another request.
    pub(super) async fn turn(&self) -> Result<Turn, RequestRefusal> {
        wait(&self.at_once, 1).await
    }

    /// Waits until the server may process another status request.
    pub(super) async fn status_turn(&self) -> Result<Turn, RequestRefusal> {
        wait(&self.status, 1).await
    }

    /// Waits until the server may trace packets for another request.
    pub(super) async fn explaining_turn(&self) -> Result<Turn, RequestRefusal> {
        wait(&self.explaining, 1).await
    }

    /// Waits until there is room for another unread response. It counts as unread until the client
    /// has read it or disconnects.
    pub(super) async fn untaken(&self, answer: Vec<u8>) -> Result<Bytes, RequestRefusal> {
        if answer.len() <= SMALL_BYTES {
            return Ok(answer.into());
        }
        let size = u32::try_from(answer.len() >> 10).unwrap_or(u32::MAX);
        let room = wait(&self.untaken, size.saturating_add(1).min(UNTAKEN_KIB)).await?;
        Ok(Bytes::from_owner(UnreadResponse {
            answer,
            _room: room,
            trims: self.trims.clone(),
        }))
    }
}

async fn wait(turns: &Arc<Semaphore>, count: u32) -> Result<Turn, RequestRefusal> {
    let permit = Arc::clone(turns).acquire_many_owned(count);
    match timeout(TURN_PATIENCE, permit).await {
        Ok(Ok(permit)) => Ok(Turn { _permit: permit }),
        // `Ok(Err(_))` cannot happen, because nothing closes the semaphore.
        Ok(Err(_)) | Err(_) => Err(RequestRefusal::Busy),
    }
}

/// A large response that the client has not read yet.
struct UnreadResponse {
    answer: Vec<u8>,
    _room: Turn,
    trims: Trims,
}

impl AsRef<[u8]> for UnreadResponse {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.trims.soon();
    }
}

/// Timer that returns freed memory to the system after responses, at most once a second, and never
/// on the thread of the main loop. Clones share the timer.
#[derive(Debug, Clone)]
pub(super) struct Trims {
    is_due: Arc<AtomicBool>,
    trim: fn(),
}

impl Trims {
    /// Creates a timer that calls `trim` to return freed memory to the system.
    pub(super) fn new(trim: fn()) -> Self {
        Self {
            is_due: Arc::default(),
            trim,
        }
    }

    /// Starts the timer, unless it already runs.
    pub(super) fn soon(&self) {
        // Without a runtime, the process is about to end, so its memory need not be returned.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let (is_due, trim) = (Arc::clone(&self.is_due), self.trim);
        runtime.spawn(async move {
            sleep(TRIM_DELAY).await;
            is_due.store(false, Ordering::Relaxed);
            // Ignores an error, because the runtime may be shutting down.
            let _ = spawn_blocking(trim).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn large_unread_responses_delay_only_other_large_responses() {
        let trims = Trims::new(|| {});
        let [anyone, root] = [RequestSlots::new(&trims), RequestSlots::new(&trims)];
        let large = || vec![0; 6 << 20];
        let held = [
            anyone.untaken(large()).await.unwrap(),
            anyone.untaken(large()).await.unwrap(),
        ];
        assert!(matches!(
            anyone.untaken(large()).await,
            Err(RequestRefusal::Busy)
        ));
        assert!(anyone.untaken(vec![0; SMALL_BYTES]).await.is_ok());
        assert!(root.untaken(large()).await.is_ok());
        drop(held);
        assert_eq!(anyone.untaken(large()).await.unwrap().len(), 6 << 20);
        // A response that is larger than the limit passes once no other response is unread.
        assert!(anyone.untaken(vec![0; 40 << 20]).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn freed_memory_returns_to_the_system_once_per_second() {
        let trims = Trims::new(|| {});
        let room = RequestSlots::new(&trims);
        let is_due = || trims.is_due.load(Ordering::Relaxed);
        let large = async || room.untaken(vec![0; 1 << 20]).await.unwrap();
        let (one, other) = (large().await, large().await);
        assert!(!is_due(), "both are held");
        drop(one);
        assert!(is_due());
        drop(other);
        sleep(TRIM_DELAY + Duration::from_millis(1)).await;
        assert!(!is_due());
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_request_does_not_wait_for_other_requests() {
        let room = RequestSlots::new(&Trims::new(|| {}));
        let _others = [room.turn().await.unwrap(), room.turn().await.unwrap()];
        assert!(matches!(room.turn().await, Err(RequestRefusal::Busy)));
        assert!(room.status_turn().await.is_ok());
    }
}
