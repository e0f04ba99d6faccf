//! How much those who ask may take of this process, by who they are.
//!
//! Root asks by the local socket. At the metrics address whoever is on the node may ask, with as many
//! connections as a client is let have. Both have a room of their own, so that nobody there keeps root from
//! an answer, and in each a status waits for nothing but a status.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Unanswered;

/// Answers of a room that are worked out beside each other: what they hold in memory is bounded so.
const AT_ONCE: usize = 2;
/// Of these, so many read the kernel rule by rule.
const EXPLAINING: usize = 1;
/// How long a question waits for its turn.
pub(super) const TURN_PATIENCE: Duration = Duration::from_secs(5);
/// How much of a room's answers may wait to be taken by those who asked, in KiB: some read slowly, or
/// nothing.
const UNTAKEN_KIB: u32 = 16 << 10;
/// Answers up to this size do not count: connections are limited, too.
const SMALL_BYTES: usize = 64 << 10;
/// How long after an answer memory is given back.
const TRIM_DELAY: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// By the local socket: root, or the user that runs the daemon.
    Root,
    /// At the metrics address: whoever is on the node.
    Anyone,
}

/// What those of one kind have.
#[derive(Debug)]
pub(super) struct Room {
    at_once: Arc<Semaphore>,
    status: Arc<Semaphore>,
    explaining: Arc<Semaphore>,
    /// In KiB.
    untaken: Arc<Semaphore>,
    trims: Trims,
}

/// A turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Room {
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

    /// Waits for a turn to work out an answer.
    pub(super) async fn turn(&self) -> Result<Turn, Unanswered> {
        wait(&self.at_once, 1).await
    }

    /// Waits for one to work out a status.
    pub(super) async fn status_turn(&self) -> Result<Turn, Unanswered> {
        wait(&self.status, 1).await
    }

    /// Waits for one to read the kernel rule by rule.
    pub(super) async fn explaining_turn(&self) -> Result<Turn, Unanswered> {
        wait(&self.explaining, 1).await
    }

    /// An answer to hand out, which counts as untaken until all of it is sent, or the connection has
    /// ended.
    pub(super) async fn untaken(&self, answer: Vec<u8>) -> Result<Bytes, Unanswered> {
        if answer.len() <= SMALL_BYTES {
            return Ok(answer.into());
        }
        let size = u32::try_from(answer.len() >> 10).unwrap_or(u32::MAX);
        let room = wait(&self.untaken, size.saturating_add(1).min(UNTAKEN_KIB)).await?;
        Ok(Bytes::from_owner(Untaken {
            answer,
            _room: room,
            trims: self.trims.clone(),
        }))
    }
}

async fn wait(turns: &Arc<Semaphore>, count: u32) -> Result<Turn, Unanswered> {
    let permit = Arc::clone(turns).acquire_many_owned(count);
    match timeout(TURN_PATIENCE, permit).await {
        Ok(Ok(permit)) => Ok(Turn { _permit: permit }),
        // It is never closed.
        Ok(Err(_)) | Err(_) => Err(Unanswered::Busy),
    }
}

/// An answer that somebody is to take.
struct Untaken {
    answer: Vec<u8>,
    _room: Turn,
    trims: Trims,
}

impl AsRef<[u8]> for Untaken {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.trims.soon();
    }
}

/// Gives memory back to the system once what was asked for is over: at most once a second, and not on
/// the loop's thread. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Trims {
    is_due: Arc<AtomicBool>,
    trim: fn(),
}

impl Trims {
    /// Gives memory back by this function.
    pub(super) fn new(trim: fn()) -> Self {
        Self {
            is_due: Arc::default(),
            trim,
        }
    }

    /// In a second, with all that is over by then.
    pub(super) fn soon(&self) {
        // Where there is none any more, the process ends.
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
            // The runtime ends.
            let _ = spawn_blocking(trim).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_keeps_others_of_the_same_kind_from_large_answers_alone() {
        let trims = Trims::new(|| {});
        let [anyone, root] = [Room::new(&trims), Room::new(&trims)];
        let large = || vec![0; 6 << 20];
        let held = [
            anyone.untaken(large()).await.unwrap(),
            anyone.untaken(large()).await.unwrap(),
        ];
        assert!(matches!(
            anyone.untaken(large()).await,
            Err(Unanswered::Busy)
        ));
        assert!(anyone.untaken(vec![0; SMALL_BYTES]).await.is_ok());
        assert!(root.untaken(large()).await.is_ok());
        drop(held);
        assert_eq!(anyone.untaken(large()).await.unwrap().len(), 6 << 20);
        // Larger than all of it.
        assert!(anyone.untaken(vec![0; 40 << 20]).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_once_for_all_answers_of_a_second() {
        let trims = Trims::new(|| {});
        let room = Room::new(&trims);
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
    async fn a_status_waits_for_no_other_question() {
        let room = Room::new(&Trims::new(|| {}));
        let _others = [room.turn().await.unwrap(), room.turn().await.unwrap()];
        assert!(matches!(room.turn().await, Err(Unanswered::Busy)));
        assert!(room.status_turn().await.is_ok());
    }
}
