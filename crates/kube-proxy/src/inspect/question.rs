//! What the loop is asked.

use tokio::sync::oneshot::Sender;

use super::facts::Facts;

/// A question to the loop, with the end at which its answer is awaited. Each takes it about 2 ms at
/// most.
pub(crate) enum Question {
    /// How it stands.
    Facts(Sender<Facts>),
}
